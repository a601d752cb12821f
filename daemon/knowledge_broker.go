package daemon

import (
	"context"
	"errors"
	"maps"
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
		found, err := c.search(ix, query, memory.Scope{Tenants: scope, Kinds: req.GetKinds(), Since: req.GetSince(), Limit: limit})
		if err != nil {
			return nil, 0, err
		}
		out := &brokerv1.SearchKnowledgeResponse{Tenants: scope, Total: uint64(found.Total)}
		err = c.hits(ix, scope, query, found.Hits, out)
		return out, uint64(len(out.Hits)), err
	})
}

// hits reads what was found. Older versions are named only as far as their rows are
// of the scope, too.
func (c *recollection) hits(ix *memory.Index, scope []string, query memory.Query, found []memory.Hit, out *brokerv1.SearchKnowledgeResponse) error {
	byID := make(map[string]*memory.Hit, len(found))
	older := map[string]knowledgeEntry{} // what is named beside the hits
	var order []string
	for i := range found {
		hit := &found[i]
		byID[hit.ID] = hit
		order = append(order, hit.ID)
		if hit.Matched != "" {
			older[hit.Matched] = knowledgeEntry{}
		}
		for _, version := range hit.Replaced {
			older[version.ID] = knowledgeEntry{}
		}
	}
	if len(older) > 0 {
		ids := slices.Collect(maps.Keys(older))
		clear(older)
		err := c.rows(scope, ids, func(e knowledgeEntry) error {
			e.Text = ""
			older[e.ID] = e
			return nil
		})
		if err != nil {
			return err
		}
	}
	return c.rows(scope, order, func(e knowledgeEntry) error {
		if e.Forgotten != 0 {
			return nil
		}
		hit := byID[e.ID]
		message := c.d.entryMessage(ix, e)
		shorten(message, query)
		one := &brokerv1.KnowledgeHit{Entry: message, Score: hit.Score, Matched: older[hit.Matched].ID}
		if older[hit.Matched].Tenant != e.Tenant && hit.Matched != "" { // not a version of this
			return nil
		}
		for _, version := range hit.Replaced {
			if was, ok := older[version.ID]; ok && was.Tenant == e.Tenant {
				one.Replaced = append(one.Replaced, &brokerv1.KnowledgeReplaced{EntryId: was.ID, Title: was.Title, Replaced: version.Superseded})
			}
		}
		out.Hits = append(out.Hits, one)
		return nil
	})
}

// shorten leaves of an entry's text what fits a query best.
func shorten(e *brokerv1.KnowledgeEntry, query memory.Query) {
	whole := e.Text
	e.Text = memory.Excerpt(whole, query, excerptBytes)
	e.Cut = e.Text != whole
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

// entryMessage is an entry as callers see it, with its whole text.
func (d *Daemon) entryMessage(ix *memory.Index, e knowledgeEntry) *brokerv1.KnowledgeEntry {
	message := e.message()
	if version, known := ix.Version(e.ID); known && version.Tenant == e.Tenant {
		message.SupersededBy, message.Superseded = version.SupersededBy, version.Superseded
	}
	return message
}

// message is an entry without what became of it.
func (e *knowledgeEntry) message() *brokerv1.KnowledgeEntry {
	return &brokerv1.KnowledgeEntry{
		EntryId: e.ID, Tenant: e.Tenant, Kind: e.Kind, Title: e.Title, Text: e.Text, Tags: e.Tags, Subject: e.Subject, Created: e.Created,
		RunId: e.Run, KeyId: e.Key, Supersedes: e.Supersedes, Forgotten: e.Forgotten != 0,
	}
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
		recent, err := ix.Recent(memory.Scope{Tenants: scope, Kinds: req.GetKinds()}, limit, before)
		if err != nil { // before is none of these, which an end of the list looks like as well
			return out, 0, nil
		}
		ids := make([]string, len(recent))
		for i, version := range recent {
			ids[i] = version.ID
		}
		err = c.rows(scope, ids, func(e knowledgeEntry) error {
			if e.Forgotten != 0 {
				return nil
			}
			message := d.entryMessage(ix, e)
			shorten(message, memory.Query{})
			out.Entries = append(out.Entries, message)
			return nil
		})
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
		out := &brokerv1.ReadEntryResponse{}
		err := c.rows(scope, []string{id}, func(e knowledgeEntry) error {
			out.Entry = d.entryMessage(ix, e)
			return nil
		})
		if err == nil && out.Entry == nil { // removed just now
			err = vault.ErrNotFound
		}
		if err == nil {
			err = c.successors(scope, out.Entry)
		}
		return out, 1, err
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
		out := &brokerv1.EntryHistoryResponse{}
		versions := map[string]memory.Version{}
		var ids []string
		for _, version := range windowOf(ix.History(id), id) {
			versions[version.ID] = version
			ids = append(ids, version.ID)
		}
		left := maxHistory
		err := c.rows(scope, ids, func(e knowledgeEntry) error {
			message := e.message()
			message.SupersededBy, message.Superseded = versions[e.ID].SupersededBy, versions[e.ID].Superseded
			if len(message.Text) > left {
				message.Text, message.Cut = memory.Excerpt(message.Text, memory.Query{}, min(left, excerptBytes)), true
			}
			left -= len(message.Text)
			out.Entries = append(out.Entries, message)
			return nil
		})
		if err == nil {
			err = c.successors(scope, out.Entries...)
		}
		return out, uint64(len(out.Entries)), err
	})
}

// successors takes out of entries what took their place, where the rows do not say so
// themselves, or are of no tenant of the scope.
func (c *recollection) successors(scope []string, entries ...*brokerv1.KnowledgeEntry) error {
	replaces := map[string]string{}
	for _, e := range entries {
		replaces[e.GetEntryId()] = e.GetSupersedes()
	}
	var others []string
	for _, e := range entries {
		if _, read := replaces[e.GetSupersededBy()]; e.GetSupersededBy() != "" && !read {
			others = append(others, e.GetSupersededBy())
		}
	}
	if len(others) > 0 {
		err := c.rows(scope, others, func(e knowledgeEntry) error {
			replaces[e.ID] = e.Supersedes
			return nil
		})
		if err != nil {
			return err
		}
	}
	for _, e := range entries {
		if e.GetSupersededBy() != "" && replaces[e.GetSupersededBy()] != e.GetEntryId() {
			e.SupersededBy, e.Superseded = "", 0
		}
	}
	return nil
}

// windowOf is as much of a chain as one answer holds: so that the last of one answer is
// what the next one is asked for with.
func windowOf(chain []memory.Version, id string) []memory.Version {
	if len(chain) <= wire.MaxVersions {
		return chain
	}
	at := slices.IndexFunc(chain, func(v memory.Version) bool { return v.ID == id })
	if at < wire.MaxVersions-1 {
		at = 0
	}
	return chain[at:min(at+wire.MaxVersions, len(chain))]
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
		readable, _ := d.state().scope(c.r.asker(), grants.MemoryRead, nil, d.clock.read())
		err := c.rows(scope, []string{id}, func(e knowledgeEntry) error {
			if !inScope(readable, e.Tenant) {
				e = knowledgeEntry{ID: e.ID, Tenant: e.Tenant, Kind: e.Kind, Title: e.Title, Tags: e.Tags}
			}
			out.Entry = d.entryMessage(ix, e)
			out.Entry.Text = ""
			return nil
		})
		if id == "" || err == nil && (out.Entry == nil || out.Entry.GetForgotten()) { // it changed just now
			err = wire.Deny(wire.ResourceChanged)
		}
		return out, 1, err
	})
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
			if !known || older.SupersededBy != "" || older.Tenant != e.Tenant {
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

// errNotCurrent: what is to be superseded is no current entry of the tenant. To who
// asks it is an argument that is no good, whatever else it may be.
var errNotCurrent = errors.New("not a current entry")
