package memory

import (
	"cmp"
	"strings"
	"sync/atomic"
)

// document is what is known of an entry beside its words.
type document struct {
	id         string
	tenant     *tenant
	supersedes string
	created    int64
	// turn says when it came in: a search that began before does not see it.
	turn  uint32
	kind  uint8
	gone  atomic.Bool // its content was taken out
	chain atomic.Pointer[chain]
	// place is the number of older versions. Where one comes in among others it is
	// wrong for a moment.
	place atomic.Uint32

	// in is the piece that it lies in now, and number its place there; writing of
	// its tenant, nil when its content was taken out.
	in     *piece
	number uint32
}

// mark tells searches that there is more to know about it.
func (d *document) mark() {
	if d.in != nil {
		d.in.mark(d.number)
	}
}

// chain is a line of entries, each of which took the place of the one before. An
// entry alone has none. Who changes one holds writing of the tenant and Index.mu.
type chain struct {
	// versions are the entries, the oldest first. The list that is behind the
	// pointer does not change.
	versions atomic.Pointer[[]*document]
}

func (d *document) versions() []*document {
	if c := d.chain.Load(); c != nil {
		return *c.versions.Load()
	}
	return nil
}

// currentAt is the entry that stood in its place at a turn.
func (d *document) currentAt(turn uint32) *document {
	versions := d.versions()
	for i := len(versions) - 1; i >= 0; i-- {
		if versions[i].turn <= turn {
			return versions[i]
		}
	}
	return d
}

// byAge orders the newest first, and of equal times by id.
func byAge(a, b *document) int {
	if order := cmp.Compare(b.created, a.created); order != 0 {
		return order
	}
	return strings.Compare(a.id, b.id)
}

// link puts d between what it takes the place of and what took its place, of which
// either may be nil; the caller holds writing of their tenant.
func link(older, d, newer *document) {
	if older == nil && newer == nil {
		return
	}
	for _, other := range []*document{older, d, newer} {
		if other != nil {
			other.mark()
		}
	}
	before, after := line(older), line(newer)
	if newer == nil { // what readers hold ends before the place that is written to
		c := of(older)
		all := append(before, d)
		d.place.Store(uint32(len(before)))
		c.versions.Store(&all)
		d.chain.Store(c)
		return
	}
	all := make([]*document, 0, len(before)+1+len(after))
	all = append(append(append(all, before...), d), after...)
	for i := len(before); i < len(all); i++ {
		all[i].place.Store(uint32(i))
	}
	stays, moves := of(newer), before
	if len(before) > len(after) {
		stays, moves = of(older), after
	}
	stays.versions.Store(&all)
	for _, other := range moves {
		if c := other.chain.Load(); c != nil {
			c.versions.Store(&all) // for who looked it up just now
		}
		other.chain.Store(stays)
	}
	d.chain.Store(stays)
}

// line is the chain of a document, of itself at least.
func line(d *document) []*document {
	if d == nil {
		return nil
	}
	if versions := d.versions(); versions != nil {
		return versions
	}
	return []*document{d}
}

// of is the chain of a document, made if it has none.
func of(d *document) *chain {
	c := d.chain.Load()
	if c == nil {
		c = &chain{}
		alone := []*document{d}
		c.versions.Store(&alone)
		d.chain.Store(c)
	}
	return c
}
