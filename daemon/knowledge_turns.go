package daemon

import (
	"errors"
	"runtime"
	"slices"
	"sync"

	"subjectbroker/daemon/memory"
	"subjectbroker/proto/wire"
)

// longRows is how many bytes of texts a request about the memory may read before it
// is a long one.
const longRows = 256 << 10

// causeSearchTooLong: what was looked for stands in too many places.
const causeSearchTooLong = "SEARCH_TOO_LONG"

// turns lets what would hold up all others be done by a few at once, and by one of
// each process or key. Who waits is served in turn, not in the order of the requests:
// it does not help to make many.
type turns struct {
	limit int // how many at once

	mu      sync.Mutex
	working map[payer]bool
	waiting map[payer][]chan struct{}
	line    []payer // of waiting, who was served longest ago first
}

// newLongTurns are those of requests that work for long: on half of the processors, so
// that all others find one that is free.
func newLongTurns() *turns { return newTurns(max(1, runtime.GOMAXPROCS(0)/2)) }

func newTurns(limit int) *turns {
	return &turns{limit: limit, working: map[payer]bool{}, waiting: map[payer][]chan struct{}{}}
}

// take waits for a turn; false says that done was closed before. Who was given one
// gives it back.
func (t *turns) take(done <-chan struct{}, who payer) bool {
	turn := make(chan struct{})
	t.mu.Lock()
	if len(t.waiting[who]) == 0 {
		t.line = append(t.line, who)
	}
	t.waiting[who] = append(t.waiting[who], turn)
	t.next()
	t.mu.Unlock()
	select {
	case <-turn:
		return true
	case <-done:
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if i := slices.Index(t.waiting[who], turn); i >= 0 {
		t.leave(who, i)
		return false
	}
	delete(t.working, who) // it came just now
	t.next()
	return false
}

func (t *turns) give(who payer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.working, who)
	t.next()
}

// next hands out what turns there are. The caller holds mu.
func (t *turns) next() {
	for len(t.working) < t.limit {
		at := slices.IndexFunc(t.line, func(who payer) bool { return !t.working[who] })
		if at < 0 {
			return
		}
		who := t.line[at]
		t.line = append(slices.Delete(t.line, at, at+1), who)
		t.working[who] = true
		close(t.waiting[who][0])
		t.leave(who, 0)
	}
}

// leave takes one of those who wait out. The caller holds mu.
func (t *turns) leave(who payer, i int) {
	t.waiting[who] = slices.Delete(t.waiting[who], i, i+1)
	if len(t.waiting[who]) == 0 {
		delete(t.waiting, who)
		t.line = slices.DeleteFunc(t.line, func(one payer) bool { return one == who })
	}
}

// long takes a turn for the rest of the work, unless it has one; false says that
// nobody waits for the answer any more, or that the memory was dropped.
func (c *recollection) long() bool {
	if !c.turn {
		c.turn = c.d.turns.take(c.work.Done(), payerOf(c.r.peer, c.r.key))
	}
	return c.turn
}

// ended is what an end of the work means: also to the log, as the entry of a request
// always says what came of it.
func (c *recollection) ended() error {
	if c.from.dropped.Load() {
		return wire.Deny(wire.VaultLocked)
	}
	return &wire.Error{Reason: wire.BrokerUnavailable, Cause: causeCancelled}
}

// rowsBetween is how many rows are read before it is seen how long that takes.
const rowsBetween = 8

// rows is [Daemon.rows] for a request: a long one takes a turn, and the vault is not
// held while it waits.
func (c *recollection) rows(scope, ids []string, each func(knowledgeEntry) error) error {
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
func (c *recollection) search(ix *memory.Index, query memory.Query, scope memory.Scope) (memory.Result, error) {
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
