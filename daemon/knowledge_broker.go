package daemon

import (
	"context"
	"errors"
	"slices"

	"subjectbroker/audit"
	"subjectbroker/daemon/memory"
	"subjectbroker/grants"
	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	"subjectbroker/proto/wire"
	"subjectbroker/vault"
)

// Limits of answers about the memory, beside those of package wire.
const (
	excerptBytes = 480
	maxHistory   = 256 << 10 // bytes of texts in a history
)

// An agent is told of no other limit of a query than the index has.
var _ = [1]struct{}{}[memory.MaxQuery-wire.MaxQuery]

// SearchKnowledge finds entries.
func (b broker) SearchKnowledge(ctx context.Context, req *brokerv1.SearchKnowledgeRequest) (*brokerv1.SearchKnowledgeResponse, error) {
	r, err := b.d.identify(ctx, req.GetRunId())
	if err != nil {
		return nil, err
	}
	d := b.d
	c := d.recall(r, kindMemorySearch, grants.ToolSearchKnowledge, grants.MemoryRead, req.GetTenants())
	query, err := memory.ParseQuery(req.GetQuery())
	switch {
	case err != nil:
		return nil, c.malformed(ctx, wrongQuery(err))
	case !tenantsNamed(c.named):
		return nil, c.malformed(ctx, wrongTenants)
	case !kindsNamed(req.GetKinds()):
		return nil, c.malformed(ctx, wrongKinds)
	case req.GetLimit() > wire.MaxHits:
		return nil, c.malformed(ctx, wrongLimit)
	case req.GetSince() < 0:
		return nil, c.malformed(ctx, wrongSince)
	}
	limit := orDefault(req.GetLimit(), wire.DefaultHits)
	return answerFrom(ctx, c, func(ix *memory.Index, scope []string) (*brokerv1.SearchKnowledgeResponse, uint64, error) {
		found, total, err := c.find(ix, query, memory.Scope{Tenants: scope, Kinds: req.GetKinds(), Since: req.GetSince(), Limit: limit})
		out := &brokerv1.SearchKnowledgeResponse{Tenants: scope, Total: total}
		for i := range found {
			out.Hits = append(out.Hits, found[i].message())
		}
		return out, uint64(len(out.Hits)), err
	})
}

func orDefault(value uint32, fallback int) int {
	if value == 0 {
		return fallback
	}
	return int(value)
}

func kindsNamed(kinds []string) bool {
	return len(kinds) <= len(entryKinds) && !slices.ContainsFunc(kinds, func(kind string) bool { return !slices.Contains(entryKinds, kind) })
}

// BrowseRecent lists the newest entries.
func (b broker) BrowseRecent(ctx context.Context, req *brokerv1.BrowseRecentRequest) (*brokerv1.BrowseRecentResponse, error) {
	r, err := b.d.identify(ctx, req.GetRunId())
	if err != nil {
		return nil, err
	}
	d := b.d
	c := d.recall(r, kindMemoryBrowse, grants.ToolBrowseRecent, grants.MemoryRead, req.GetTenants())
	before := req.GetBefore()
	switch {
	case !tenantsNamed(c.named):
		return nil, c.malformed(ctx, wrongTenants)
	case !kindsNamed(req.GetKinds()):
		return nil, c.malformed(ctx, wrongKinds)
	case req.GetLimit() > wire.MaxHits:
		return nil, c.malformed(ctx, wrongLimit)
	case before != "" && !isEntryID(before):
		return nil, c.malformed(ctx, wrongBefore)
	}
	limit := orDefault(req.GetLimit(), wire.DefaultRecent)
	return answerFrom(ctx, c, func(ix *memory.Index, scope []string) (*brokerv1.BrowseRecentResponse, uint64, error) {
		out := &brokerv1.BrowseRecentResponse{Tenants: scope}
		recent, err := c.recent(ix, memory.Scope{Tenants: scope, Kinds: req.GetKinds()}, limit, before)
		out.Entries = messagesOf(recent)
		return out, uint64(len(out.Entries)), err
	})
}

// KnowledgeStats counts entries.
func (b broker) KnowledgeStats(ctx context.Context, req *brokerv1.KnowledgeStatsRequest) (*brokerv1.KnowledgeStatsResponse, error) {
	r, err := b.d.identify(ctx, req.GetRunId())
	if err != nil {
		return nil, err
	}
	d := b.d
	c := d.recall(r, kindMemoryStats, grants.ToolKnowledgeStats, grants.MemoryRead, req.GetTenants())
	if !tenantsNamed(c.named) {
		return nil, c.malformed(ctx, wrongTenants)
	}
	return answerFrom(ctx, c, func(ix *memory.Index, scope []string) (*brokerv1.KnowledgeStatsResponse, uint64, error) {
		writable, _ := d.state().scope(r.asker(), grants.MemoryWrite, nil, d.clock.read())
		out := &brokerv1.KnowledgeStatsResponse{}
		for _, one := range ix.Stats(scope) {
			stats := &brokerv1.TenantStats{
				Tenant: one.Tenant, Superseded: uint64(one.Superseded), Newest: one.Newest, Oldest: one.Oldest,
				Writable: inScope(writable, one.Tenant), Kinds: map[string]uint64{},
			}
			for kind, n := range one.Kinds {
				stats.Kinds[kind] = uint64(n)
			}
			out.Tenants = append(out.Tenants, stats)
		}
		return out, uint64(len(out.Tenants)), nil
	})
}

// ReadEntry returns one entry.
func (b broker) ReadEntry(ctx context.Context, req *brokerv1.ReadEntryRequest) (*brokerv1.ReadEntryResponse, error) {
	d, id := b.d, req.GetEntryId()
	r, err := d.identify(ctx, req.GetRunId())
	if err != nil {
		return nil, err
	}
	c, err := d.recallEntry(ctx, r, kindMemoryRead, grants.ToolReadEntry, id)
	if err != nil {
		return nil, err
	}
	return answerFrom(ctx, c, func(ix *memory.Index, scope []string) (*brokerv1.ReadEntryResponse, uint64, error) {
		e, err := c.entryOf(ix, scope, id)
		if err != nil {
			return nil, 0, err
		}
		return &brokerv1.ReadEntryResponse{Entry: e.message()}, 1, nil
	})
}

// EntryHistory returns the chain of an entry: the newest versions, or, of one that is
// not among these, those from there on.
func (b broker) EntryHistory(ctx context.Context, req *brokerv1.EntryHistoryRequest) (*brokerv1.EntryHistoryResponse, error) {
	d, id := b.d, req.GetEntryId()
	r, err := d.identify(ctx, req.GetRunId())
	if err != nil {
		return nil, err
	}
	c, err := d.recallEntry(ctx, r, kindMemoryHistory, grants.ToolHistory, id)
	if err != nil {
		return nil, err
	}
	return answerFrom(ctx, c, func(ix *memory.Index, scope []string) (*brokerv1.EntryHistoryResponse, uint64, error) {
		chain, err := c.chainOf(ix, scope, id)
		return &brokerv1.EntryHistoryResponse{Entries: messagesOf(chain)}, uint64(len(chain)), err
	})
}

// nowhere is a tenant that cannot be: what is asked for in it is refused as what
// somebody else has.
const nowhere = "-"

// recallEntry makes a request about one entry: about its tenant. An entry that is
// not there is refused as one of a tenant that is not the caller's.
func (d *Daemon) recallEntry(ctx context.Context, r *run, kind audit.Kind, tool, id string) (*recollection, error) {
	c := d.recall(r, kind, tool, grants.MemoryRead, []string{nowhere})
	if !isEntryID(id) {
		c.entry.ResourceID = d.mask(id)
		return nil, c.malformed(ctx, wrongEntry)
	}
	c.entry.ResourceID = id
	c.single = true
	ix, err := d.state().knowledge.use()
	if err != nil { // said to who may read anything at all
		c.named, c.single, c.unready = nil, false, err
		return c, nil
	}
	if tenant, known := ix.TenantOf(id); known {
		c.named = []string{tenant}
	}
	return c, nil
}

// CaptureKnowledge adds an entry.
func (b broker) CaptureKnowledge(ctx context.Context, req *brokerv1.CaptureKnowledgeRequest) (*brokerv1.CaptureKnowledgeResponse, error) {
	d := b.d
	r, err := d.identify(ctx, req.GetRunId())
	if err != nil {
		return nil, err
	}
	c := d.recall(r, kindMemoryCapture, grants.ToolCaptureKnowledge, grants.MemoryWrite, []string{req.GetTenant()})
	e := knowledgeEntry{
		ID: newEntryID(), Tenant: req.GetTenant(), Kind: req.GetKind(), Title: req.GetTitle(), Text: req.GetText(), Tags: req.GetTags(),
		Subject: r.subject, Run: r.id, Launch: r.launchID(), Key: r.key, Supersedes: req.GetSupersedes(),
	}
	if !tenantsNamed(c.named) {
		return nil, c.malformed(ctx, wrongTenant)
	}
	if wrong, ok := errors.AsType[*wrongField](e.check()); ok {
		return nil, c.malformed(ctx, wrong)
	}
	switch err := d.capture(ctx, c, &e); {
	case errors.Is(err, errNotGranted), errors.Is(err, errFull): // the path of all refusals records it
		_, err = answerFrom(ctx, c, func(*memory.Index, []string) (*brokerv1.CaptureKnowledgeResponse, uint64, error) {
			return &brokerv1.CaptureKnowledgeResponse{}, 0, wire.Deny(wire.AccessDenied)
		})
		return nil, err
	case errors.Is(err, errExisted):
		return d.captured(ctx, c, e.digest())
	case errors.Is(err, errNotCurrent):
		return nil, c.malformed(ctx, wrongSuperseded)
	case errors.Is(err, errSuperseded):
		return nil, d.tooLate(ctx, c)
	case err != nil:
		return nil, err
	}
	go func() { _, _ = d.state().knowledge.use() }() // into the index; nobody waits for that: who searches first sees to it
	message := e.message()
	message.Text = ""
	return &brokerv1.CaptureKnowledgeResponse{Entry: message}, nil
}

// captured is the answer to who captures what is there already. Who may not read the
// tenant learns of it what it sent, and no more.
func (d *Daemon) captured(ctx context.Context, c *recollection, digest entryDigest) (*brokerv1.CaptureKnowledgeResponse, error) {
	c.cause = causeExisted
	return answerFrom(ctx, c, func(ix *memory.Index, scope []string) (*brokerv1.CaptureKnowledgeResponse, uint64, error) {
		out := &brokerv1.CaptureKnowledgeResponse{Existed: true}
		id := c.from.same(digest)
		c.stored = id
		err := c.rows(scope, []string{id}, func(e knowledgeEntry) error {
			if !c.reads(e.Tenant) {
				e = knowledgeEntry{ID: e.ID, Tenant: e.Tenant, Kind: e.Kind, Title: e.Title, Tags: e.Tags}
			}
			e.Text = ""
			stands := standing(ix, e)
			out.Entry = stands.message()
			return nil
		})
		if id == "" || err == nil && (out.Entry == nil || out.Entry.GetForgotten()) { // it changed just now
			err = wire.Deny(wire.ResourceChanged)
		}
		return out, 1, err
	})
}

// reads reports whether who asks may read a tenant now.
func (c *recollection) reads(tenant string) bool {
	readable, _ := c.d.state().scope(c.r.asker(), grants.MemoryRead, nil, c.d.clock.read())
	return inScope(readable, tenant)
}

// causeSuperseded: what a capture was to supersede was superseded by another meanwhile.
const causeSuperseded = "SUPERSEDED"

// tooLate is the answer to who supersedes what another has superseded, and may read
// both. It is no fault of the caller's: of two who saw the same, one is the second.
func (d *Daemon) tooLate(ctx context.Context, c *recollection) error {
	_, err := answerFrom(ctx, c, func(*memory.Index, []string) (*brokerv1.CaptureKnowledgeResponse, uint64, error) {
		return nil, 0, &wire.Error{Reason: wire.ResourceChanged, Cause: causeSuperseded}
	})
	if wire.FromError(err).Reason != wire.ResourceChanged {
		return err
	}
	return wire.Overtaken(wrongSuperseded.field, "another entry has taken the place of that one; read its history, and supersede the version that is current")
}

// What stops a capture: it has to be refused, or there is nothing to add.
var (
	errNotGranted = errors.New("not granted")
	errExisted    = errors.New("it is there already")
)

// capture stores an entry, judged again where no other change can come in between.
func (d *Daemon) capture(ctx context.Context, c *recollection, e *knowledgeEntry) error {
	if c.decide(grants.Capability{}).Outcome != grants.Allowed || !c.r.ceiling.Lists(c.tool) {
		return errNotGranted
	}
	if !d.pace.take(e.Subject, d.share.rate, d.clock.now()) {
		return c.bar(wire.RateLimited, causeCapturesRate)
	}
	record := c.entry
	record.Action, record.Tool, record.Tenants = c.action.String(), c.tool, []string{e.Tenant}
	record.Decision, record.ReasonCode = decisionAllow, string(wire.Allowed)
	who := payerOf(c.r.peer, c.r.key)
	if !d.captures.take(ctx.Done(), who) {
		return ctx.Err()
	}
	defer d.captures.give(who)
	return d.mutate(ctx, func(st *state) (change, error) {
		if d.over(c.r) || c.decide(grants.Capability{}).Outcome != grants.Allowed {
			return change{}, errNotGranted
		}
		ix, err := st.knowledge.use()
		if err != nil {
			return change{}, err
		}
		e.Created = d.clock.now().UnixMilli()
		if e.Supersedes == "" && st.knowledge.same(e.digest()) != "" {
			return change{}, errExisted
		}
		if cause, ok := st.knowledge.room(e, d.share); !ok {
			return change{}, c.bar(wire.PolicyBlocked, cause)
		}
		if e.Supersedes != "" {
			older, known := ix.Version(e.Supersedes)
			switch {
			case !known || older.Tenant != e.Tenant:
				return change{}, errNotCurrent
			case older.SupersededBy != "" && c.reads(e.Tenant):
				return change{}, errSuperseded
			case older.SupersededBy != "":
				return change{}, errNotCurrent
			}
			e.Created = max(e.Created, older.Created) // whatever the clock did
		}
		row, err := encodeEntry(*e)
		if err != nil {
			return change{}, err
		}
		size := int64(len(e.Title) + len(e.Text))
		record.ResourceID, record.Bytes = e.ID, &size
		return change{
			subject: true,
			effects: []*audit.Entry{&record},
			write:   func(tx *vault.Tx) error { return tx.Put(bucketKnowledge, e.ID, row) },
			permit:  func(st *state) { st.knowledge.note(func(k *knowledge) { k.add(*e) }) },
		}, nil
	})
}

// causeExisted: the same entry was there already.
const causeExisted = "EXISTED"

// What keeps an entry from superseding another: that is no current entry of the tenant,
// and to who asks an argument that is no good, whatever else it may be; or it was one,
// and who asks may know.
var (
	errNotCurrent = errors.New("not a current entry")
	errSuperseded = errors.New("not a current entry any more")
)
