package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"subjectbroker/audit"
	"subjectbroker/daemon/memory"
	"subjectbroker/grants"
	"subjectbroker/proto/wire"
	"subjectbroker/vault"
)

// causeScopeChanged: what the caller may read became less while it was read.
const causeScopeChanged = "SCOPE_CHANGED"

// causeAllTenants: the request was about every tenant that was granted, of which there
// were more than an entry names. Which those are is in the log: it has every grant and
// every tenant.
const causeAllTenants = "ALL_TENANTS"

// recollection is one request about the memory on the release path. What comes when
// is the same for all of them:
//
//	recall     what is asked, and of which tenants; what is malformed ends here
//	decide     the whole scope is granted, or nothing is done
//	carryOut   the handler, with the granted scope and nothing else: it finds, reads
//	           rows, and what is in no tenant of the scope is left out once more
//	take       judged again, in the place of its entry in the log
//	tell       the entry
//	answer     what the caller is told, once the entry is durable
type recollection struct {
	lookup

	r *run

	// What is asked.
	action grants.Action
	tool   string   // of the shim's, which its ceiling has to list
	named  []string // tenants, as the caller named them
	single bool     // it is about one entry, whose tenant the caller did not name
	entry  audit.Entry

	// Why it cannot be carried out although it is granted.
	unready error            // the entry that it is about could not be looked for
	barred  *grants.Decision // it is refused; nil: it is not

	// What came of it, for the entry.
	cause  string // of what was allowed; empty: there is nothing to say
	stored string // the entry that was there already; empty: it is not about that
}

// recall makes a request about tenants. Those that are named have to be names.
func (d *Daemon) recall(r *run, kind audit.Kind, tool string, action grants.Action, named []string) *recollection {
	return &recollection{lookup: lookup{d: d, who: payerOf(r.peer, r.key)}, r: r, action: action, tool: tool, named: named, entry: r.entry(kind)}
}

// tenantsNamed reports whether tenants can be named so.
func tenantsNamed(tenants []string) bool {
	return len(tenants) <= wire.MaxTenantsNamed && !slices.ContainsFunc(tenants, func(name string) bool { return grants.CheckName(name) != nil })
}

// answerFrom sees a request through, and returns the answer that handle made, once its
// entry is durable.
func answerFrom[T proto.Message](ctx context.Context, c *recollection, handle func(ix *memory.Index, scope []string) (T, uint64, error)) (T, error) {
	var none, made T
	if !c.r.ceiling.Lists(c.tool) {
		return none, c.d.refuseTool(ctx, c.r, c.action.String(), c.tool)
	}
	got, err := c.d.walk(ctx, ask{
		entry: c.entry, peer: c.r.peer, capability: c.action.String(),
		over:   func() bool { return c.d.over(c.r) },
		decide: c.decide,
		open: func(*opened) error {
			if c.unready != nil {
				return c.unready
			}
			return c.carryOut(ctx, func(ix *memory.Index) (_ proto.Message, n uint64, err error) {
				made, n, err = handle(ix, c.scope)
				return made, n, err
			})
		},
		stale: c.stale,
		also:  c, // take and tell
	}, grants.Capability{Action: c.action})
	if err == nil {
		err = c.answer(got)
	}
	if err != nil {
		return none, err
	}
	return made, nil
}

// decide judges the whole scope. What was carried out for a scope is handed out only
// as long as all of that is granted.
func (c *recollection) decide(grants.Capability) grants.Decision {
	granted, outside := c.d.state().scope(c.r.asker(), c.action, c.named, c.d.clock.read())
	denied := grants.Decision{Outcome: grants.Denied, Reason: grants.ReasonAccessDenied, Cause: grants.CauseNoGrant}
	switch {
	case len(outside) > 0 && c.single: // which tenant it is in is not the caller's to know
		return denied
	case len(outside) > 0:
		denied.Reason = grants.Reason(wire.TenantOutOfScope)
		return denied
	case len(granted) == 0:
		return denied
	case c.begun() && !includes(granted, c.scope):
		denied.Cause = causeScopeChanged
		return denied
	case c.barred != nil:
		return *c.barred
	case !c.begun():
		c.scope = granted
	}
	return grants.Decision{Outcome: grants.Allowed, Reason: grants.ReasonAllowed}
}

// tell says in the entry which tenants it is about: those that were searched, or
// named in vain.
func (c *recollection) tell(e *audit.Entry, v verdict) {
	e.Tool = c.tool
	if v.outcome == grants.Allowed && !v.failed {
		e.Tenants, e.Count, e.Bytes, e.Disclosed, e.Cause = c.scope, c.count, &c.bytes, disclosedYes, c.cause
		if c.stored != "" {
			e.ResourceID = c.stored
		}
		if len(e.Tenants) > wire.MaxTenantsNamed { // which only who names none can be about
			e.Tenants, e.Cause = nil, causeAllTenants
		}
		return
	}
	if !c.single || c.named[0] != nowhere {
		e.Tenants = c.requested()
	}
}

// answer is what the caller is told; nil: what the handler made.
func (c *recollection) answer(got answer) error {
	c.r.count("", got.reason == wire.Allowed, nil)
	switch got.reason {
	case wire.Allowed:
		return nil
	case wire.TenantOutOfScope:
		return wire.OutOfScope(c.tool, c.requested(), c.allowed())
	}
	return got.refusal()
}

// requested are the tenants as the caller named them, those that are the caller's own
// too, sorted and each once.
func (c *recollection) requested() []string {
	return slices.Compact(slices.Sorted(slices.Values(c.named)))
}

// allowed are the caller's own tenants, for an answer to who named others.
func (c *recollection) allowed() []string {
	granted, _ := c.d.state().scope(c.r.asker(), c.action, nil, c.d.clock.read())
	return granted
}

// malformed records a request that is no good, and says which argument is not, and
// what it has to be.
func (c *recollection) malformed(ctx context.Context, wrong *wrongField) error {
	c.entry.Tool = c.tool
	if err := c.d.malformed(ctx, c.r.peer, c.entry); wire.FromError(err).Reason != wire.InvalidArgument {
		return err
	}
	return wire.Invalid(wrong.field, wrong.rule)
}

// What arguments of requests have to be.
var (
	wrongTenant     = &wrongField{"tenant", "tenant is the name of one: letters, digits, '.', '_' or '-'"}
	wrongTenants    = &wrongField{"tenants", fmt.Sprintf("tenants are at most %d names: letters, digits, '.', '_' or '-'", wire.MaxTenantsNamed)}
	wrongKinds      = &wrongField{"kinds", "kinds are " + strings.Join(entryKinds, ", ")}
	wrongLimit      = &wrongField{"limit", fmt.Sprintf("limit is a number from 1 to %d", wire.MaxHits)}
	wrongSince      = &wrongField{"since", "since is a moment after 1970"}
	wrongBefore     = &wrongField{"before", "before is the id of an entry: 16 letters and digits"}
	wrongEntry      = &wrongField{"entryId", "entryId is the id of an entry: 16 letters and digits"}
	wrongSuperseded = &wrongField{"supersedes", "supersedes is the id of a current entry of the same tenant; read the history of that one, and supersede the version that is current"}
)

// wrongQuery says what is wrong with a query.
func wrongQuery(err error) *wrongField {
	return &wrongField{"query", err.Error()}
}

// rows reads entries from the vault, whatever the index says of them: what is in no
// tenant of the scope is left out. Ids that have no row are left out too: they were
// removed meanwhile. What is being forgotten has no content any more.
func (d *Daemon) rows(scope, ids []string, each func(knowledgeEntry) error) error {
	k := d.state().knowledge
	return d.vault.View(func(tx *vault.Tx) error {
		for _, id := range ids {
			e, err := readEntry(tx, id)
			if errors.Is(err, vault.ErrNotFound) {
				continue
			}
			if err == nil && inScope(scope, e.Tenant) {
				if k.goes(id) {
					e = e.tombstone(d.clock.now().UnixMilli())
				}
				err = each(e)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// readEntry reads one row. Errors are those of the vault.
func readEntry(tx *vault.Tx, id string) (knowledgeEntry, error) {
	row, err := tx.Get(bucketKnowledge, id)
	if err != nil {
		return knowledgeEntry{}, err
	}
	return decodeEntry(id, row)
}

// includes reports whether all of part is in whole; both are sorted.
func includes(whole, part []string) bool {
	return !slices.ContainsFunc(part, func(one string) bool { return !inScope(whole, one) })
}

// inScope is the second layer: whatever led here, an entry of another tenant goes
// nowhere.
func inScope(scope []string, tenant string) bool {
	_, found := slices.BinarySearch(scope, tenant)
	return found
}

// Tools of the memory, by what they need.
var memoryTools = map[grants.Action][]string{
	grants.MemoryRead:  grants.BuiltinsFor(grants.MemoryRead),
	grants.MemoryWrite: grants.BuiltinsFor(grants.MemoryWrite),
}

// knowledgeTools are those that the run may use now on some tenant.
func (d *Daemon) knowledgeTools(r *run) []string {
	st, at := d.state(), d.clock.read()
	var tools []string
	for action, names := range memoryTools {
		if !st.anyTenant(r.asker(), action, at) {
			continue
		}
		for _, name := range names {
			if r.ceiling.Lists(name) {
				tools = append(tools, name)
			}
		}
	}
	slices.Sort(tools)
	return tools
}
