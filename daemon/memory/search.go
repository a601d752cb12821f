package memory

import (
	"cmp"
	"errors"
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
	MaxReplaced = 8
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
	// Done ends a search that is going on, soon after it is closed; nil means never.
	Done <-chan struct{}
	// Long is called, once, by a search that turns out to take more than some
	// milliseconds, before it goes on; false ends it. The index waits for nobody
	// meanwhile but Drop, so that Long has to return when Done is closed. Nil is true.
	Long func() bool
}

// Errors of [Result].
var (
	// ErrEnded says that Done was closed, or that Long returned false.
	ErrEnded = errors.New("the search was ended")
	// ErrWork says that the words that were asked for stand in too many places.
	ErrWork = errors.New("the search would take too long")
)

// What a search may read, in bytes of postings and about as many nanoseconds times
// five.
const (
	longSearch    = 1 << 20
	longestSearch = 1 << 27
)

// Result is the answer to a query.
type Result struct {
	// Hits are the best, best first; of equal scores the newer entry, then by id.
	Hits []Hit
	// Total is the number of entries that fit.
	Total int
	// Err is why there are no hits of a search that was not finished.
	Err error
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
	numbers  []uint32 // of the documents with a word
	often    []uint32 // and how often it is in each
	best     []candidate
	chains   map[*document]candidate
	found    []matches // for each term, for each piece
	parts    []part
	places   []starts
	flat     []uint32
	distinct []uint32
	effort   effort
}

// effort is what a search has read so far.
type effort struct {
	scope *Scope
	spent int
	asked bool
	err   error
}

// spend says that so many bytes are read next, and reports whether to. No more are
// read at once than are in one piece.
func (e *effort) spend(n int) bool {
	if e.err != nil {
		return false
	}
	select {
	case <-e.scope.Done:
		e.err = ErrEnded
		return false
	default:
	}
	if e.spent += n; e.spent > longestSearch {
		e.err = ErrWork
	} else if e.spent > longSearch && !e.asked {
		e.asked = true
		if e.scope.Long != nil && !e.scope.Long() {
			e.err = ErrEnded
		}
	}
	return e.err == nil
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
	s.effort = effort{scope: &scope}
	total := s.run(query, views, scope, ix.filter(scope), limit)
	result := Result{Total: total, Err: s.effort.err}
	if result.Err != nil {
		result.Total, s.best = 0, s.best[:0]
	}
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
	clear(s.parts[:cap(s.parts)])
	clear(s.chains)
	s.effort = effort{}
	s.best, s.found, s.terms = s.best[:0], s.found[:0], terms{word: s.terms.word[:0]}
}

func (ix *Index) hit(c candidate) Hit {
	h := Hit{ID: c.current.id, Tenant: c.current.tenant.name, Score: c.score}
	if c.matched != c.current {
		h.Matched = c.matched.id
	}
	versions := c.current.versions()
	at := len(versions) - 1 // near the end, however long the chain is
	for at >= 0 && versions[at] != c.current {
		at--
	}
	for i := at - 1; i >= 0 && len(h.Replaced) < MaxReplaced; i-- {
		h.Replaced = append(h.Replaced, ix.version(versions, i))
	}
	return h
}

// run finds the best candidates, and returns how many there were.
func (s *search) run(query Query, views []*view, scope Scope, wanted filter, limit int) (total int) {
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
	average := float64(words) / float64(entries)
	worths := make([]worth, len(query.terms))
	s.found = slices.Grow(s.found[:0], len(query.terms)*len(pieces))
	for i, t := range query.terms {
		df := 0
		for _, p := range pieces {
			m := s.match(p, t)
			df += m.df()
			s.found = append(s.found, m)
		}
		worths[i] = worth{math.Log(1 + (float64(entries)-float64(df)+0.5)/(float64(df)+0.5)), average, nil}
		if df > tabled {
			worths[i].tabulate()
		}
	}
	all := len(scope.Kinds) == 0 && scope.Since == 0

	s.best = s.best[:0]
	for n, p := range pieces {
		if s.effort.err != nil {
			return 0
		}
		s.touched = s.touched[:0]
		for i := range query.terms {
			s.add(p, &s.found[i*len(pieces)+n], &worths[i])
		}
		for _, number := range s.touched {
			score := s.scores[number]
			s.scores[number] = 0
			chained := p.marked(number)
			if !chained && all {
				total++
				if len(s.best) == limit && score < s.best[0].score {
					continue
				}
				s.keep(candidate{score, p.documents[number], p.documents[number]}, limit)
				continue
			}
			d := p.documents[number]
			current := d
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
func later(a, b *document) bool { return a.place.Load() > b.place.Load() }

// worth is what a term is worth in a document.
type worth struct {
	rarity  float64
	average float64 // length of documents
	// once is that for one occurrence, by length.
	once []float64
}

// tabled is the number of documents from which on a table is worth making.
const tabled = 1 << 10

func (w *worth) tabulate() {
	once := make([]float64, 512)
	for length := range once {
		once[length] = w.of(1, uint32(length))
	}
	w.once = once
}

// of is Okapi BM25 of a term that stands tf times in a document of so many words.
func (w *worth) of(tf, length uint32) float64 {
	if tf == 1 && int(length) < len(w.once) {
		return w.once[length]
	}
	norm := saturation * (1 - byLength + byLength*float64(length)/w.average)
	return w.rarity * (float64(tf) * (saturation + 1) / (float64(tf) + norm))
}

// add adds what a term is worth to the scores of the documents of a piece.
func (s *search) add(p *piece, m *matches, w *worth) {
	scores, lengths, touched := s.scores[:len(p.lengths)], p.lengths, s.touched
	document := uint32(0)
	for b, at := m.word.documents, 0; at < len(b); {
		code := uint32(b[at])
		if code < 0x80 {
			at++
		} else {
			code, at = number(b, at)
		}
		document += code >> 1
		tf := uint32(1)
		if code&1 == 0 {
			tf, at = number(b, at)
		}
		value := 0.0
		if length := lengths[document]; tf == 1 && int(length) < len(w.once) {
			value = w.once[length]
		} else {
			value = w.of(tf, length)
		}
		if scores[document] == 0 {
			touched = append(touched, document)
		}
		scores[document] += value
	}
	s.touched = touched
	for i := 0; i < len(m.pairs); i += 2 {
		number := m.pairs[i]
		if s.scores[number] == 0 {
			s.touched = append(s.touched, number)
		}
		s.scores[number] += w.of(m.pairs[i+1], p.lengths[number])
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
