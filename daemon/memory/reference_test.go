package memory

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
)

// reference is what the index is measured against: every entry as a list of
// words, gone through from end to end for each question. Its texts are plain
// words between spaces, and it shares nothing with the index.
type reference struct {
	entries map[string]*Entry
}

func (r *reference) newer(id string) *Entry {
	for _, e := range r.entries {
		if e.Supersedes == id {
			return e
		}
	}
	return nil
}

func (r *reference) current(id string) *Entry {
	for {
		newer := r.newer(id)
		if newer == nil {
			return r.entries[id]
		}
		id = newer.ID
	}
}

// fields are the words of each part of an entry.
func fields(e *Entry) [][]string {
	parts := [][]string{strings.Fields(e.Title), strings.Fields(e.Text)}
	for _, tag := range e.Tags {
		parts = append(parts, strings.Fields(tag))
	}
	return parts
}

// often is how often a term stands in an entry.
func often(e *Entry, words []string, prefix bool) (n int) {
	for _, part := range fields(e) {
		for at := 0; at+len(words) <= len(part); at++ {
			fits := true
			for i, word := range words {
				if prefix && i == len(words)-1 {
					fits = fits && strings.HasPrefix(part[at+i], word)
				} else {
					fits = fits && part[at+i] == word
				}
			}
			if fits {
				n++
			}
		}
	}
	return n
}

type answer struct {
	id, matched string
	score       float64
	replaced    []string
}

// asked is a query as the test made it up.
type asked struct {
	words  []string
	prefix bool
}

func (a asked) String() string {
	s := strings.Join(a.words, " ")
	if a.prefix {
		s += "*"
	}
	if len(a.words) > 1 {
		s = `"` + s + `"`
	}
	return s
}

// search is Okapi BM25 by the book. It rounds where the index does: two entries
// that are worth the same, as it happens, would else be in another order.
func (r *reference) search(terms []asked, scope Scope) (all []answer) {
	var granted []*Entry
	words := 0
	length := func(e *Entry) (n int) {
		for _, part := range fields(e) {
			n += len(part)
		}
		return n
	}
	for _, e := range r.entries {
		if slices.Contains(scope.Tenants, e.Tenant) && !e.Forgotten {
			granted = append(granted, e)
			words += length(e)
		}
	}
	n := float64(len(granted))
	average := float64(words) / n
	best := map[string]answer{}
	scores := map[string]float64{}
	for _, term := range terms {
		df := 0.0
		for _, e := range granted {
			if often(e, term.words, term.prefix) > 0 {
				df++
			}
		}
		idf := math.Log(1 + (n-df+0.5)/(df+0.5))
		for _, e := range granted {
			if tf := float64(often(e, term.words, term.prefix)); tf > 0 {
				scores[e.ID] += idf * (tf * 2.2 / (tf + 1.2*(0.25+0.75*float64(length(e))/average)))
			}
		}
	}
	for id, score := range scores {
		current := r.current(id)
		if current.Forgotten || len(scope.Kinds) > 0 && !slices.Contains(scope.Kinds, current.Kind) || scope.Since != 0 && current.Created < scope.Since {
			continue
		}
		a := answer{id: current.ID, score: score}
		if id != current.ID {
			a.matched = id
		}
		if other, ok := best[current.ID]; !ok || score > other.score || score == other.score && r.later(id, other) {
			best[current.ID] = a
		}
	}
	for id, a := range best {
		for older := r.entries[id].Supersedes; r.entries[older] != nil; older = r.entries[older].Supersedes {
			a.replaced = append(a.replaced, fmt.Sprintf("%s at %d", older, r.newer(older).Created))
		}
		all = append(all, a)
	}
	slices.SortFunc(all, func(a, b answer) int {
		return cmp.Or(cmp.Compare(b.score, a.score), cmp.Compare(r.entries[b.id].Created, r.entries[a.id].Created), strings.Compare(a.id, b.id))
	})
	return all
}

// later is true when id is a later version than the one that fits so far.
func (r *reference) later(id string, than answer) bool {
	older := cmp.Or(than.matched, than.id)
	for at := r.newer(older); at != nil; at = r.newer(at.ID) {
		if at.ID == id {
			return true
		}
	}
	return false
}
