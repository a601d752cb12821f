package memory

import (
	"bytes"
	"cmp"
	"math"
	"slices"
)

// Okapi BM25, as Robertson and Zaragoza have it (The Probabilistic Relevance
// Framework, 2009), with the logarithm that does not become negative.
const (
	saturation = 1.2  // k1
	byLength   = 0.75 // b
)

const (
	// MaxHits is the largest number of hits of a search.
	MaxHits = 1000
	// MaxReplaced is the largest number of replaced entries that a hit lists.
	MaxReplaced = 32
	// defaultHits is what a limit of 0 means.
	defaultHits = 10
)

// Scope says where to look and for what. Kinds and Since are those of the current
// entry, which is what an answer hands out, and take out before anything is
// ranked; the frequencies of words do not depend on them.
type Scope struct {
	// Tenants to look in; none means that nothing is found. Unknown ones are empty.
	Tenants []string
	// Kinds to look for; none means all, one that is not known fits nothing.
	Kinds []string
	// Since leaves out what was captured before it, in Unix milliseconds; 0 leaves
	// out nothing.
	Since int64
	// Limit is the largest number of hits, at most [MaxHits]; 0 means 10.
	Limit int
}

// Result is the answer to a query.
type Result struct {
	// Hits are the best, best first; of equal scores the newer entry, then by id.
	Hits []Hit
	// Total is the number of entries that fit.
	Total int
}

// Hit is the current version of something that fits.
type Hit struct {
	// ID is the current entry, Tenant its tenant.
	ID     string
	Tenant string
	// Score is Okapi BM25 of the version that fits best.
	Score float64
	// Matched is that version when it is not the current one, else empty.
	Matched string
	// Replaced are the entries that the current one took the place of, newest
	// first, at most [MaxReplaced]; [Index.History] has all.
	Replaced []Version
}

// filter is what a scope wants of a current entry.
type filter struct {
	kinds uint64
	since int64
}

func (ix *Index) filter(scope Scope) filter {
	f := filter{since: math.MinInt64}
	if scope.Since != 0 {
		f.since = scope.Since
	}
	if len(scope.Kinds) == 0 {
		f.kinds = math.MaxUint64
	}
	for _, kind := range scope.Kinds {
		if i := slices.Index(ix.kinds, kind); i >= 0 {
			f.kinds |= 1 << i
		}
	}
	return f
}

func (f filter) fits(d *document) bool {
	return f.kinds&(1<<d.kind) != 0 && d.created >= f.since
}

// candidate is a chain that fits.
type candidate struct {
	score            float64
	current, matched *document
}

// better orders the best first.
func better(a, b candidate) int {
	if order := cmp.Compare(b.score, a.score); order != 0 {
		return order
	}
	return byAge(a.current, b.current)
}

// search is the work of one search. It is used again by the next.
type search struct {
	terms    terms
	word     []byte
	scores   []float64 // by document of a piece
	touched  []uint32
	counts   []uint32 // by document of a piece
	norms    []float64
	best     []candidate
	chains   map[*document]candidate
	found    []matches // for each term, for each piece
	cursors  []cursor
	offsets  [][]uint32
	rest     [][]uint32
	starts   []uint32
	distinct []uint32
}

// matches are the documents of a piece that a term fits: those of a word's
// postings, or a list of pairs of document and how often.
type matches struct {
	word  postings
	pairs []uint32
}

func (m *matches) df() int { return m.word.df + len(m.pairs)/2 }

// Search returns what fits, best first.
func (ix *Index) Search(query Query, scope Scope) Result {
	ix.life.RLock()
	defer ix.life.RUnlock()
	views := ix.views(scope.Tenants)
	limit := min(scope.Limit, MaxHits)
	if limit <= 0 {
		limit = defaultHits
	}
	s, ok := ix.scratch.Get().(*search)
	if !ok {
		s = &search{chains: map[*document]candidate{}}
	}
	total := s.run(query, views, ix.filter(scope), limit)
	result := Result{Total: total}
	slices.SortFunc(s.best, better)
	for _, c := range s.best {
		if !c.current.gone.Load() && !c.matched.gone.Load() { // while this went on
			result.Hits = append(result.Hits, ix.hit(c))
		}
	}
	s.release()
	ix.scratch.Put(s)
	return result
}

// release lets go of what belongs to the index.
func (s *search) release() {
	clear(s.best)
	clear(s.found)
	clear(s.cursors[:cap(s.cursors)])
	clear(s.chains)
	s.best, s.found, s.cursors, s.terms.piece = s.best[:0], s.found[:0], s.cursors[:0], nil
}

func (ix *Index) hit(c candidate) Hit {
	h := Hit{ID: c.current.id, Tenant: c.current.tenant.name, Score: c.score}
	if c.matched != c.current {
		h.Matched = c.matched.id
	}
	versions := c.current.versions()
	for i := slices.Index(versions, c.current) - 1; i >= 0 && len(h.Replaced) < MaxReplaced; i-- {
		h.Replaced = append(h.Replaced, ix.version(versions, i))
	}
	return h
}

// run finds the best candidates, and returns how many there were.
func (s *search) run(query Query, views []*view, wanted filter, limit int) (total int) {
	var pieces []*piece
	var turns []uint32
	entries, words, largest := 0, int64(0), 0
	for _, v := range views {
		entries += v.entries
		words += v.words
		for _, p := range v.pieces {
			pieces = append(pieces, p)
			turns = append(turns, v.turn)
			largest = max(largest, len(p.documents))
		}
	}
	if words == 0 {
		return 0
	}
	if len(s.scores) < largest {
		s.scores, s.counts = make([]float64, largest), make([]uint32, largest)
	}

	// How rare each term is, in all the tenants that were asked for.
	rarity := make([]float64, len(query.terms))
	s.found = slices.Grow(s.found[:0], len(query.terms)*len(pieces))
	for i, t := range query.terms {
		df := 0
		for _, p := range pieces {
			m := s.match(p, t)
			df += m.df()
			s.found = append(s.found, m)
		}
		rarity[i] = math.Log(1 + (float64(entries)-float64(df)+0.5)/(float64(df)+0.5))
	}

	average := float64(words) / float64(entries)
	if s.norms == nil {
		s.norms = make([]float64, 512)
	}
	for length := range s.norms {
		s.norms[length] = normOf(length, average)
	}
	s.best = s.best[:0]
	for n, p := range pieces {
		s.touched = s.touched[:0]
		for i := range query.terms {
			s.add(p, &s.found[i*len(pieces)+n], rarity[i], average)
		}
		for _, number := range s.touched {
			score := s.scores[number]
			s.scores[number] = 0
			d := p.documents[number]
			current := d
			chained := d.chain.Load() != nil
			if chained {
				current = d.currentAt(turns[n])
			}
			if !wanted.fits(current) || d.gone.Load() || current.gone.Load() {
				continue
			}
			c := candidate{score, current, d}
			if !chained {
				total++
				s.keep(c, limit)
				continue
			}
			if other, ok := s.chains[current]; !ok || score > other.score || score == other.score && later(d, other.matched) {
				s.chains[current] = c
			}
		}
	}
	for _, c := range s.chains {
		total++
		s.keep(c, limit)
	}
	return total
}

// later is true when a is a later version of the same as b.
func later(a, b *document) bool {
	versions := a.versions()
	return slices.Index(versions, a) > slices.Index(versions, b)
}

func normOf(length int, average float64) float64 {
	return saturation * (1 - byLength + byLength*float64(length)/average)
}

// add adds what a term is worth to the scores of the documents of a piece.
func (s *search) add(p *piece, m *matches, rarity, average float64) {
	one := func(number, tf uint32) {
		length := int(p.lengths[number])
		norm := 0.0
		if length < len(s.norms) {
			norm = s.norms[length]
		} else {
			norm = normOf(length, average)
		}
		worth := rarity * (float64(tf) * (saturation + 1) / (float64(tf) + norm))
		if s.scores[number] == 0 {
			s.touched = append(s.touched, number)
		}
		s.scores[number] += worth
	}
	for c := m.word.cursor(); c.next(); {
		one(c.document, c.tf)
	}
	for i := 0; i < len(m.pairs); i += 2 {
		one(m.pairs[i], m.pairs[i+1])
	}
}

// keep puts a candidate among the best, if it belongs there: a heap with the
// worst on top.
func (s *search) keep(c candidate, limit int) {
	h := s.best
	if len(h) < limit {
		h = append(h, c)
		for i := len(h) - 1; i > 0; {
			up := (i - 1) / 2
			if better(h[i], h[up]) < 0 {
				break
			}
			h[i], h[up] = h[up], h[i]
			i = up
		}
		s.best = h
		return
	}
	if c.score < h[0].score || better(c, h[0]) > 0 {
		return
	}
	h[0] = c
	for i := 0; ; {
		worst := i
		for _, down := range []int{2*i + 1, 2*i + 2} {
			if down < len(h) && better(h[down], h[worst]) > 0 {
				worst = down
			}
		}
		if worst == i {
			return
		}
		h[i], h[worst] = h[worst], h[i]
		i = worst
	}
}

// match finds the documents of a piece that a term fits.
func (s *search) match(p *piece, t term) matches {
	switch {
	case len(t.words) > 1:
		return matches{pairs: s.phrase(p, t)}
	case t.prefix:
		return matches{pairs: s.prefix(p, t.words[0])}
	}
	s.word = append(s.word[:0], t.words[0]...)
	found, _ := p.find(&s.terms, s.word)
	return matches{word: found}
}

// beginning calls yield for the postings of each word that begins with prefix.
func (s *search) beginning(p *piece, prefix string, yield func(postings)) {
	s.word = append(s.word[:0], prefix...)
	p.seek(&s.terms, s.word)
	for s.terms.next() {
		if bytes.HasPrefix(s.terms.word, s.word) {
			yield(s.terms.found)
		} else if bytes.Compare(s.terms.word, s.word) > 0 {
			return
		}
	}
}

// prefix finds the documents with words that begin so, and how many.
func (s *search) prefix(p *piece, prefix string) []uint32 {
	s.distinct = s.distinct[:0]
	s.beginning(p, prefix, func(found postings) {
		for c := found.cursor(); c.next(); {
			if s.counts[c.document] == 0 {
				s.distinct = append(s.distinct, c.document)
			}
			s.counts[c.document] += c.tf
		}
	})
	pairs := make([]uint32, 0, 2*len(s.distinct))
	for _, number := range s.distinct {
		pairs = append(pairs, number, s.counts[number])
		s.counts[number] = 0
	}
	return pairs
}

// phrase finds the documents in which words stand one after the other, and how
// often they do.
func (s *search) phrase(p *piece, t term) (pairs []uint32) {
	whole := t.words
	if t.prefix {
		whole = t.words[:len(t.words)-1]
	}
	s.cursors = s.cursors[:0]
	for _, word := range whole {
		s.word = append(s.word[:0], word...)
		found, ok := p.find(&s.terms, s.word)
		if !ok {
			return nil
		}
		s.cursors = append(s.cursors, found.cursor())
	}
	for len(s.offsets) < len(whole) {
		s.offsets = append(s.offsets, nil)
	}
	// candidates are the documents with the words that are whole, for the last one.
	var candidates [][]uint32
	var numbers []uint32
	for s.together() {
		s.starts = s.consecutive(s.starts[:0])
		switch number := s.cursors[0].document; {
		case len(s.starts) == 0:
		case t.prefix:
			candidates = append(candidates, slices.Clone(s.starts))
			numbers = append(numbers, number)
			s.counts[number] = uint32(len(candidates))
		default:
			pairs = append(pairs, number, uint32(len(s.starts)))
		}
	}
	if !t.prefix || len(candidates) == 0 {
		return pairs
	}
	often := make([]uint32, len(candidates))
	var positions []uint32
	s.beginning(p, t.words[len(t.words)-1], func(found postings) {
		for c := found.cursor(); c.next(); {
			which := s.counts[c.document]
			if which == 0 {
				continue
			}
			positions = c.where(positions[:0])
			for _, at := range positions {
				if _, ok := slices.BinarySearch(candidates[which-1], at-uint32(len(whole))); ok && at >= uint32(len(whole)) {
					often[which-1]++
				}
			}
		}
	})
	for i, number := range numbers {
		s.counts[number] = 0
		if often[i] > 0 {
			pairs = append(pairs, number, often[i])
		}
	}
	return pairs
}

// together moves all cursors to the next document that they share.
func (s *search) together() bool {
	if !s.cursors[0].next() {
		return false
	}
	for i := 0; i < len(s.cursors); {
		target, c := s.cursors[0].document, &s.cursors[i]
		for c.document < target || c.left == c.df {
			if !c.next() {
				return false
			}
		}
		if c.document > target {
			for s.cursors[0].document < c.document {
				if !s.cursors[0].next() {
					return false
				}
			}
			i = 0
			continue
		}
		i++
	}
	return true
}

// consecutive appends the places where the words of all cursors follow each other
// in the document where they stand.
func (s *search) consecutive(starts []uint32) []uint32 {
	for i := range s.cursors {
		s.offsets[i] = s.cursors[i].where(s.offsets[i][:0])
	}
	s.rest = append(s.rest[:0], s.offsets[:len(s.cursors)]...)
	rest := s.rest
	for _, start := range rest[0] {
		fits := true
		for i := 1; i < len(rest) && fits; i++ {
			for len(rest[i]) > 0 && rest[i][0] < start+uint32(i) {
				rest[i] = rest[i][1:]
			}
			fits = len(rest[i]) > 0 && rest[i][0] == start+uint32(i)
		}
		if fits {
			starts = append(starts, start)
		}
	}
	return starts
}
