package memory

import (
	"slices"
	"sync"
	"sync/atomic"
)

const (
	// fullPiece is the weight, in bytes, from which on a piece is not merged any
	// more: it bounds what one writer may have to do to four times as much.
	fullPiece = 1 << 20
	// smallPiece is the weight of the first level; each next one has four times it.
	smallPiece = 4 << 10
	// perLevel is the number of pieces of one level that are merged into one.
	perLevel = 4
	// piecesWords is the number of words after which AddAll begins another piece.
	piecesWords = 1 << 18
)

// tenant is the index of one tenant.
type tenant struct {
	name string
	// turn is that of the entry that came in last; Index.mu.
	turn uint32

	// writing is held by who changes it, before Index.mu.
	writing sync.Mutex
	// removed is true when it is not in the index any more; writing.
	removed bool
	// now is what a search reads.
	now atomic.Pointer[view]

	// held is what the index of it takes, in bytes, and all that of the whole index;
	// writing.
	held int64
	all  *atomic.Int64
}

// view is a tenant's index at a moment. It does not change.
type view struct {
	pieces  []*piece
	entries int
	words   int64
	// turn is that of the newest entry in it.
	turn uint32
	// forgotten are the entries without content.
	forgotten []*document
}

// show makes pieces what searches read from now on; the caller holds writing.
func (t *tenant) show(pieces []*piece, turn uint32, forgotten []*document) {
	v := &view{pieces: pieces, turn: turn, forgotten: forgotten}
	for _, p := range pieces {
		v.entries += len(p.documents)
		v.words += p.words
	}
	t.now.Store(v)
	t.hold(pieces)
}

// hold counts what pieces take; the caller holds writing.
func (t *tenant) hold(pieces []*piece) {
	held := int64(0)
	for _, p := range pieces {
		held += int64(p.weight())
	}
	t.all.Add(held - t.held)
	t.held = held
}

// level is how far a piece has come: pieces of one level weigh about as much.
func level(p *piece) int {
	at := 0
	for limit := smallPiece; limit <= fullPiece && p.weight() >= limit; limit *= perLevel {
		at++
	}
	return at
}

// fullLevel is the level of a piece that is not merged any more.
const fullLevel = 5

// tidy merges pieces of the same level, until no level has too many.
func tidy(pieces []*piece) []*piece {
	for at := 0; at < fullLevel; at++ {
		var same, others []*piece
		for _, p := range pieces {
			if level(p) == at {
				same = append(same, p)
			} else {
				others = append(others, p)
			}
		}
		if len(same) >= perLevel {
			pieces = append(others, merge(same, nil))
		}
	}
	return pieces
}

// settle merges all pieces into as few as may be.
func settle(pieces []*piece) []*piece {
	slices.SortStableFunc(pieces, func(a, b *piece) int { return b.weight() - a.weight() })
	var done, now []*piece
	weight := 0
	flush := func() {
		switch {
		case len(now) == 1:
			done = append(done, now[0])
		case len(now) > 1:
			done = append(done, merge(now, nil))
		}
		now, weight = nil, 0
	}
	for _, p := range pieces {
		if weight+p.weight() > perLevel*fullPiece {
			flush()
		}
		now = append(now, p)
		weight += p.weight()
	}
	flush()
	return done
}
