package grants

import "slices"

// index holds the grants of one subject for one action. A question costs one
// look-up for the exact object and one for each distinct length among the
// subject's prefixes that could match, however many grants there are.
type index struct {
	exact   map[string]slot
	prefix  map[string]slot
	lengths []length // of the prefixes, longest first
}

// length counts the prefixes that are n bytes long.
type length struct{ n, count int }

// slot holds the grants of one pattern.
type slot struct{ allow, deny *Grant }

func (s slot) of(e Effect) *Grant {
	switch e {
	case Allow:
		return s.allow
	case Deny:
		return s.deny
	}
	return nil
}

func (s *slot) set(e Effect, g *Grant) {
	if e == Allow {
		s.allow = g
	} else {
		s.deny = g
	}
}

func (ix *index) side(p Pattern) *map[string]slot {
	if p.Prefix {
		return &ix.prefix
	}
	return &ix.exact
}

func (ix *index) get(p Pattern) slot {
	return (*ix.side(p))[p.Object]
}

func (ix *index) put(g *Grant) {
	side := ix.side(g.Pattern)
	if *side == nil {
		*side = map[string]slot{}
	}
	s, known := (*side)[g.Pattern.Object]
	s.set(g.Effect, g)
	(*side)[g.Pattern.Object] = s
	if g.Pattern.Prefix && !known {
		ix.count(len(g.Pattern.Object), 1)
	}
}

func (ix *index) remove(g *Grant) {
	side := *ix.side(g.Pattern)
	s := side[g.Pattern.Object]
	s.set(g.Effect, nil)
	if s != (slot{}) {
		side[g.Pattern.Object] = s
		return
	}
	delete(side, g.Pattern.Object)
	if g.Pattern.Prefix {
		ix.count(len(g.Pattern.Object), -1)
	}
}

func (ix *index) count(n, by int) {
	at, known := slices.BinarySearchFunc(ix.lengths, n, func(l length, n int) int { return n - l.n })
	if !known {
		ix.lengths = slices.Insert(ix.lengths, at, length{n: n})
	}
	if ix.lengths[at].count += by; ix.lengths[at].count == 0 {
		ix.lengths = slices.Delete(ix.lengths, at, at+1)
	}
}

func (ix *index) each(visit func(*Grant)) {
	for _, side := range []map[string]slot{ix.exact, ix.prefix} {
		for _, s := range side {
			for _, g := range []*Grant{s.allow, s.deny} {
				if g != nil {
					visit(g)
				}
			}
		}
	}
}

// match shows the judge every slot whose pattern matches object: the exact one
// first, then longer prefixes before shorter ones. It never stops early.
func (ix *index) match(object string, j *judge) {
	if s, ok := ix.exact[object]; ok {
		j.hear(s)
	}
	for _, l := range ix.lengths {
		if l.n > len(object) || l.n > 0 && !endsAtSeparator(object[:l.n]) {
			continue
		}
		if s, ok := ix.prefix[object[:l.n]]; ok {
			j.hear(s)
		}
	}
}
