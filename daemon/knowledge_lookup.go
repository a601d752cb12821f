package daemon

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"subjectbroker/daemon/memory"
	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	"subjectbroker/proto/wire"
	"subjectbroker/vault"
)

// longRows is how many bytes of texts a request about the memory may read before it
// is a long one.
const longRows = 256 << 10

// causeSearchTooLong: what was looked for stands in too many places.
const causeSearchTooLong = "SEARCH_TOO_LONG"

// lookup is what one request looks at in the memory, for whoever asks: an agent, as
// far as it was granted, or an operator. What is no entry of the scope that it is told
// goes nowhere, and what takes long is done by turns.
type lookup struct {
	d   *Daemon
	who payer

	scope []string // tenants that it may look at, sorted
	from  *knowledge
	cuts  uint64 // of the scope, when it began

	work context.Context // ends with who asks, and with the memory; nil: it has not begun
	turn bool            // it has one: see turns
	read int             // bytes of texts, so far

	// What came of it, for the entry.
	count uint64
	bytes int64
}

// The rest of what could be judged beside the grants, and is not.
func (c *lookup) judge(*verdict)       {}
func (c *lookup) at(uint64, time.Time) {}
func (c *lookup) giveBack()            {}
func (c *lookup) strict() bool         { return true }

// take refuses what was read before something was taken out of one of the tenants.
func (c *lookup) take(v *verdict) {
	if c.begun() && c.stale() {
		v.failed, v.reason, v.cause = true, wire.ResourceChanged, causeReplaced
	}
}

// carryOut has a handler do what is asked, in the scope.
func (c *lookup) carryOut(ctx context.Context, handle func(ix *memory.Index) (proto.Message, uint64, error)) error {
	ix, end, err := c.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	made, count, err := handle(ix)
	c.count = count
	if err != nil {
		return err
	}
	c.bytes = int64(proto.Size(made))
	if !shareOf(ctx).grow(c.bytes) {
		return errUnread
	}
	return nil
}

// begun reports whether it was begun, also where that has ended.
func (c *lookup) begun() bool { return c.work != nil }

// begin begins the work, and returns what ends it.
func (c *lookup) begin(ctx context.Context) (ix *memory.Index, end func(), err error) {
	c.from = c.d.state().knowledge
	c.cuts = c.from.cutsOf(c.scope) // before the index is: what is taken out between the two counts
	if ix, err = c.from.use(); err != nil {
		return nil, nil, err
	}
	work, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(c.from.life, cancel)
	c.work, c.turn, c.read = work, false, 0
	return ix, func() {
		stop()
		cancel()
		if c.turn {
			c.d.turns.give(c.who)
		}
	}, nil
}

// stale reports whether something was taken out of the scope since it began: nothing
// that was forgotten is handed out after that was said.
func (c *lookup) stale() bool {
	return c.d.state().knowledge != c.from || c.from.cutsOf(c.scope) != c.cuts
}

// long takes a turn for the rest of the work, unless it has one; false says that
// nobody waits for the answer any more, or that the memory was dropped.
func (c *lookup) long() bool {
	if !c.turn {
		c.turn = c.d.turns.take(c.work.Done(), c.who)
	}
	return c.turn
}

// ended is what an end of the work means: also to the log, as the entry of a request
// always says what came of it.
func (c *lookup) ended() error {
	if c.from.dropped.Load() {
		return wire.Deny(wire.VaultLocked)
	}
	return &wire.Error{Reason: wire.BrokerUnavailable, Cause: causeCancelled}
}

// rowsBetween is how many rows are read before it is seen how long that takes.
const rowsBetween = 8

// rows is [Daemon.rows] for a request: a long one takes a turn, and the vault is not
// held while it waits.
func (c *lookup) rows(scope, ids []string, each func(knowledgeEntry) error) error {
	for some := range slices.Chunk(ids, rowsBetween) {
		if c.work.Err() != nil || c.read > longRows && !c.long() {
			return c.ended()
		}
		err := c.d.rows(scope, some, func(e knowledgeEntry) error {
			c.read += len(e.Text)
			return each(e)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// search is a search of the index, whose end it can be told.
func (c *lookup) search(ix *memory.Index, query memory.Query, scope memory.Scope) (memory.Result, error) {
	scope.Done, scope.Long = c.work.Done(), c.long
	found := ix.Search(query, scope)
	switch {
	case found.Err == nil:
		return found, nil
	case errors.Is(found.Err, memory.ErrWork):
		return found, &wire.Error{Reason: wire.ResourceTooLarge, Cause: causeSearchTooLong}
	}
	return found, c.ended()
}

// stands is an entry, and what became of it.
type stands struct {
	knowledgeEntry
	supersededBy string
	superseded   int64
	cut          bool // Text is an excerpt
}

// standing is an entry with what the index says became of it.
func standing(ix *memory.Index, e knowledgeEntry) stands {
	s := stands{knowledgeEntry: e}
	if version, known := ix.Version(e.ID); known && version.Tenant == e.Tenant {
		s.supersededBy, s.superseded = version.SupersededBy, version.Superseded
	}
	return s
}

// shorten leaves of the text what fits a query best.
func (s *stands) shorten(query memory.Query) {
	whole := s.Text
	s.Text = memory.Excerpt(whole, query, excerptBytes)
	s.cut = s.Text != whole
}

// message is an entry as agents see it.
func (s *stands) message() *brokerv1.KnowledgeEntry {
	e := s.knowledgeEntry.message()
	e.SupersededBy, e.Superseded, e.Cut = s.supersededBy, s.superseded, s.cut
	return e
}

func messagesOf(list []stands) (messages []*brokerv1.KnowledgeEntry) {
	for i := range list {
		messages = append(messages, list[i].message())
	}
	return messages
}

// message is an entry without what became of it.
func (e *knowledgeEntry) message() *brokerv1.KnowledgeEntry {
	return &brokerv1.KnowledgeEntry{
		EntryId: e.ID, Tenant: e.Tenant, Kind: e.Kind, Title: e.Title, Text: e.Text, Tags: e.Tags, Subject: e.Subject, Created: e.Created,
		RunId: e.Run, KeyId: e.Key, Supersedes: e.Supersedes, Forgotten: e.Forgotten != 0,
	}
}

// hit is the current version of something that fits a query.
type hit struct {
	stands
	score    float64
	matched  string // the version that fits, where it is an older one
	replaced []replaced
}

// replaced is a version whose place was taken.
type replaced struct {
	id, title string
	at        int64
}

func (h *hit) message() *brokerv1.KnowledgeHit {
	one := &brokerv1.KnowledgeHit{Entry: h.stands.message(), Score: h.score, Matched: h.matched}
	for _, was := range h.replaced {
		one.Replaced = append(one.Replaced, &brokerv1.KnowledgeReplaced{EntryId: was.id, Title: was.title, Replaced: was.at})
	}
	return one
}

// find searches, and reads what was found; total is how many entries fit in all.
// Older versions are named only as far as their rows are of the scope, too.
func (c *lookup) find(ix *memory.Index, query memory.Query, scope memory.Scope) (hits []hit, total uint64, err error) {
	found, err := c.search(ix, query, scope)
	if err != nil {
		return nil, 0, err
	}
	byID := make(map[string]*memory.Hit, len(found.Hits))
	older := map[string]knowledgeEntry{} // what is named beside the hits
	var order []string
	for i := range found.Hits {
		hit := &found.Hits[i]
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
		err := c.rows(scope.Tenants, ids, func(e knowledgeEntry) error {
			e.Text = ""
			older[e.ID] = e
			return nil
		})
		if err != nil {
			return nil, 0, err
		}
	}
	err = c.rows(scope.Tenants, order, func(e knowledgeEntry) error {
		if e.Forgotten != 0 {
			return nil
		}
		was := byID[e.ID]
		one := hit{stands: standing(ix, e), score: was.Score, matched: older[was.Matched].ID}
		one.shorten(query)
		if older[was.Matched].Tenant != e.Tenant && was.Matched != "" { // not a version of this
			return nil
		}
		for _, version := range was.Replaced {
			if before, ok := older[version.ID]; ok && before.Tenant == e.Tenant {
				one.replaced = append(one.replaced, replaced{before.ID, before.Title, version.Superseded})
			}
		}
		hits = append(hits, one)
		return nil
	})
	return hits, uint64(found.Total), err
}

// recent are the newest current entries, those that come after before where that is
// one of the scope, with the beginning of their texts.
func (c *lookup) recent(ix *memory.Index, scope memory.Scope, limit int, before string) (list []stands, err error) {
	recent, err := ix.Recent(scope, limit, before)
	if err != nil { // before is none of these, which an end of the list looks like as well
		return nil, nil
	}
	ids := make([]string, len(recent))
	for i, version := range recent {
		ids[i] = version.ID
	}
	err = c.rows(scope.Tenants, ids, func(e knowledgeEntry) error {
		if e.Forgotten != 0 {
			return nil
		}
		one := standing(ix, e)
		one.shorten(memory.Query{})
		list = append(list, one)
		return nil
	})
	return list, err
}

// entryOf is one entry, whole; vault.ErrNotFound where it is none of the scope.
func (c *lookup) entryOf(ix *memory.Index, scope []string, id string) (stands, error) {
	var found []stands
	err := c.rows(scope, []string{id}, func(e knowledgeEntry) error {
		found = append(found, standing(ix, e))
		return nil
	})
	if err == nil && len(found) == 0 { // removed just now
		err = vault.ErrNotFound
	}
	if err == nil {
		err = c.successors(scope, found)
	}
	if err != nil {
		return stands{}, err
	}
	return found[0], nil
}

// chainOf are the versions of an entry: the newest, or, of one that is not among
// these, those from there on. Texts are whole as far as maxHistory goes.
func (c *lookup) chainOf(ix *memory.Index, scope []string, id string) (list []stands, err error) {
	versions := map[string]memory.Version{}
	var ids []string
	for _, version := range windowOf(ix.History(id), id) {
		versions[version.ID] = version
		ids = append(ids, version.ID)
	}
	left := maxHistory
	err = c.rows(scope, ids, func(e knowledgeEntry) error {
		one := stands{knowledgeEntry: e, supersededBy: versions[e.ID].SupersededBy, superseded: versions[e.ID].Superseded}
		if len(one.Text) > left {
			one.Text, one.cut = memory.Excerpt(one.Text, memory.Query{}, min(left, excerptBytes)), true
		}
		left -= len(one.Text)
		list = append(list, one)
		return nil
	})
	if err == nil {
		err = c.successors(scope, list)
	}
	return list, err
}

// successors takes out of entries what took their place, where the rows do not say so
// themselves, or are of no tenant of the scope.
func (c *lookup) successors(scope []string, entries []stands) error {
	replaces := map[string]string{}
	for i := range entries {
		replaces[entries[i].ID] = entries[i].Supersedes
	}
	var others []string
	for i := range entries {
		if _, read := replaces[entries[i].supersededBy]; entries[i].supersededBy != "" && !read {
			others = append(others, entries[i].supersededBy)
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
	for i := range entries {
		if e := &entries[i]; e.supersededBy != "" && replaces[e.supersededBy] != e.ID {
			e.supersededBy, e.superseded = "", 0
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
