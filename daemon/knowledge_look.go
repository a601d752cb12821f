package daemon

import (
	"context"
	"errors"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	"subjectbroker/audit"
	"subjectbroker/daemon/memory"
	"subjectbroker/grants"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
	"subjectbroker/vault"
)

// look is one request of an operator to see what is in the memory: on the release
// path, as all that is handed out, and read by the same code as what agents read.
type look struct {
	lookup

	action string // of the entry
	entry  string // that it is about; empty: about none in particular
}

// tell says in the entry what was looked at.
func (c *look) tell(e *audit.Entry, v verdict) {
	e.Action, e.ResourceID, e.Tenants = c.action, c.entry, c.scope
	if len(e.Tenants) > wire.MaxTenantsNamed {
		e.Tenants = nil
	}
	if v.outcome != grants.Allowed || v.failed {
		return
	}
	e.Count, e.Bytes, e.Disclosed = c.count, &c.bytes, disclosedYes
	if len(c.scope) > wire.MaxTenantsNamed {
		e.Cause = causeAllTenants
	}
}

// lookAt makes a request about tenants of these names, about all where there are none.
func (o operator) lookAt(ctx context.Context, action string, names []string) (*look, error) {
	if err := o.d.awaitMemory(ctx); err != nil {
		return nil, err
	}
	if len(names) > wire.MaxTenantsNamed {
		return nil, refuse("at most %d tenants are named", wire.MaxTenantsNamed)
	}
	st := o.d.state()
	st.mu.RLock()
	defer st.mu.RUnlock()
	for _, name := range names {
		if _, err := st.knownTenant(name); err != nil {
			return nil, err
		}
	}
	c := &look{lookup: lookup{d: o.d, who: payerOf(callerOf(ctx), "")}, action: action}
	if c.scope = slices.Compact(slices.Sorted(slices.Values(names))); len(c.scope) == 0 {
		c.scope = slices.Sorted(maps.Keys(st.tenants))
	}
	return c, nil
}

// looked carries a look out by handle, and returns what that made once its entry is
// durable.
func looked[T proto.Message](ctx context.Context, o operator, c *look, handle func(ix *memory.Index) (T, uint64, error)) (T, error) {
	var none, made T
	var failed error
	p := callerOf(ctx)
	accountFor(ctx)
	got, err := o.d.walk(ctx, ask{
		entry: *o.entry(ctx, kindMemoryLook), peer: p,
		decide: o.d.onItsWord(ctx),
		over:   func() bool { return !p.Alive() },
		also:   c,
		stale:  c.stale,
		open: func(*opened) error {
			failed = c.carryOut(ctx, func(ix *memory.Index) (_ proto.Message, n uint64, err error) {
				made, n, err = handle(ix)
				return made, n, err
			})
			return failed
		},
	}, grants.Capability{Action: grants.MemoryRead})
	if err != nil {
		return none, err
	}
	if got.reason == wire.Allowed {
		return made, nil
	}
	if typed, ok := errors.AsType[*wire.Error](failed); ok {
		return none, typed
	}
	if errors.Is(failed, vault.ErrNotFound) { // it was removed just now
		return none, noEntry(c.entry)
	}
	if got.reason == wire.ResourceChanged {
		return none, &wire.Error{Reason: wire.ResourceChanged, Message: "entries are being taken out of the memory: try again in a moment"}
	}
	return none, o.d.notHanded(ctx, got.reason)
}

// noEntry says to an operator that there is no such entry.
func noEntry(id string) error { return refuse("there is no entry %s", id) }

// errEntryID says what an id is.
func errEntryID() error { return refuse("an id has 16 letters and digits") }

// checkLook refuses, in words, what cannot be looked for.
func checkLook(kinds []string, since int64, limit uint32) error {
	switch {
	case !kindsNamed(kinds):
		return refuse("%s", wrongKinds.rule)
	case since < 0:
		return refuse("%s", wrongSince.rule)
	case limit > wire.MaxHits:
		return refuse("%s", wrongLimit.rule)
	}
	return nil
}

// ListKnowledge lists the newest current entries.
func (o operator) ListKnowledge(ctx context.Context, req *operatorv1.ListKnowledgeRequest) (*operatorv1.ListKnowledgeResponse, error) {
	if err := checkLook(req.GetKinds(), req.GetSince(), req.GetLimit()); err != nil {
		return nil, err
	}
	before := req.GetBefore()
	if before != "" && !isEntryID(before) {
		return nil, errEntryID()
	}
	c, err := o.lookAt(ctx, "list", req.GetTenants())
	if err != nil {
		return nil, err
	}
	return looked(ctx, o, c, func(ix *memory.Index) (*operatorv1.ListKnowledgeResponse, uint64, error) {
		scope := memory.Scope{Tenants: c.scope, Kinds: req.GetKinds(), Since: req.GetSince()}
		if _, known := ix.TenantOf(before); before != "" && !known {
			return nil, 0, noEntry(before)
		}
		list, err := c.recent(ix, scope, orDefault(req.GetLimit(), wire.DefaultRecent), before)
		return &operatorv1.ListKnowledgeResponse{Entries: shownEntries(list)}, uint64(len(list)), err
	})
}

// GetKnowledge shows an entry and its versions.
func (o operator) GetKnowledge(ctx context.Context, req *operatorv1.GetKnowledgeRequest) (*operatorv1.GetKnowledgeResponse, error) {
	id := req.GetEntryId()
	if !isEntryID(id) {
		return nil, errEntryID()
	}
	c, err := o.lookAt(ctx, "show", nil)
	if err != nil {
		return nil, err
	}
	ix, err := o.d.state().knowledge.use()
	if err != nil {
		return nil, err
	}
	tenant, known := ix.TenantOf(id)
	if !known {
		return nil, noEntry(id)
	}
	c.scope, c.entry = []string{tenant}, id
	return looked(ctx, o, c, func(ix *memory.Index) (*operatorv1.GetKnowledgeResponse, uint64, error) {
		e, err := c.entryOf(ix, c.scope, id)
		if err != nil {
			return nil, 0, err
		}
		chain, err := c.chainOf(ix, c.scope, id)
		for i := range chain {
			chain[i].Text, chain[i].cut = "", false
		}
		return &operatorv1.GetKnowledgeResponse{
			Entry: shownEntry(&e), Versions: shownEntries(chain), Total: uint64(len(ix.History(id))),
		}, uint64(len(chain)), err
	})
}

// SearchKnowledge searches as agents do.
func (o operator) SearchKnowledge(ctx context.Context, req *operatorv1.SearchKnowledgeRequest) (*operatorv1.SearchKnowledgeResponse, error) {
	query, err := memory.ParseQuery(req.GetQuery())
	if err != nil {
		return nil, refuse("%v", err)
	}
	if err := checkLook(req.GetKinds(), req.GetSince(), req.GetLimit()); err != nil {
		return nil, err
	}
	c, err := o.lookAt(ctx, "search", req.GetTenants())
	if err != nil {
		return nil, err
	}
	return looked(ctx, o, c, func(ix *memory.Index) (*operatorv1.SearchKnowledgeResponse, uint64, error) {
		scope := memory.Scope{Tenants: c.scope, Kinds: req.GetKinds(), Since: req.GetSince(), Limit: orDefault(req.GetLimit(), wire.DefaultRecent)}
		found, total, err := c.find(ix, query, scope)
		out := &operatorv1.SearchKnowledgeResponse{Total: total}
		for i := range found {
			hit := &found[i]
			one := &operatorv1.KnowledgeHit{Entry: shownEntry(&hit.stands), Score: hit.score, Matched: hit.matched}
			for _, was := range hit.replaced {
				one.Replaced = append(one.Replaced, &operatorv1.KnowledgeReplaced{EntryId: was.id, Title: was.title, Replaced: was.at})
			}
			out.Hits = append(out.Hits, one)
		}
		return out, uint64(len(found)), err
	})
}

// shownEntry is an entry as the operator sees it.
func shownEntry(s *stands) *operatorv1.KnowledgeEntry {
	return &operatorv1.KnowledgeEntry{
		EntryId: s.ID, Tenant: s.Tenant, Kind: s.Kind, Title: s.Title, Text: s.Text, Tags: s.Tags, Subject: s.Subject, Created: s.Created,
		RunId: s.Run, LaunchId: s.Launch, KeyId: s.Key, Supersedes: s.Supersedes, SupersededBy: s.supersededBy, Superseded: s.superseded,
		Forgotten: s.Forgotten, Cut: s.cut,
	}
}

func shownEntries(list []stands) (shown []*operatorv1.KnowledgeEntry) {
	for i := range list {
		shown = append(shown, shownEntry(&list[i]))
	}
	return shown
}
