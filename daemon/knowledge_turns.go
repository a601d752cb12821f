package daemon

import (
	"runtime"
	"slices"
	"sync"
)

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
