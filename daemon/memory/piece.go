package memory

import (
	"bytes"
	"encoding/binary"
	"slices"
	"sort"
	"strings"
	"sync/atomic"
)

// wordsInBlock is the number of words of which only the first is written whole.
const wordsInBlock = 16

// piece is a part of a tenant's index. What it says of words never changes: to
// take something out, another is made.
//
//	dictionary  blocks of 16 words in order of their bytes. Each word: how many bytes it
//	            shares with the one before in its block, how many follow, those; then
//	            df, and the sizes of its documents and of its positions
//	runs        documents and positions of each word, in the same order
type piece struct {
	// documents are numbered by their place here.
	documents []*document
	// lengths are their numbers of words, and words is the sum of those.
	lengths []uint32
	words   int64
	// newest has their numbers, the newest first.
	newest []uint32

	dictionary []byte
	runs       []byte
	blocks     []block
	terms      int

	// marks has a bit for each document that is part of a chain, or whose content
	// was taken out since: of all others there is nothing more to know. It is the
	// one thing here that changes.
	marks []atomic.Uint32
}

func (p *piece) mark(number uint32) { p.marks[number/32].Or(1 << (number % 32)) }

func (p *piece) marked(number uint32) bool { return p.marks[number/32].Load()&(1<<(number%32)) != 0 }

// block is where one begins, and the first eight bytes of its first word, so that a
// search for a block looks at the dictionary at its end only.
type block struct {
	begin            uint64
	dictionary, runs uint32
}

// beginning is the first eight bytes of a word; of shorter words zeros fill it up, so
// that its order is that of the words as far as it goes.
func beginning(word []byte) uint64 {
	if len(word) >= 8 {
		return binary.BigEndian.Uint64(word)
	}
	var begin [8]byte
	copy(begin[:], word)
	return binary.BigEndian.Uint64(begin[:])
}

// weight is about what a piece takes in memory, in bytes.
func (p *piece) weight() int {
	return len(p.dictionary) + len(p.runs) + 16*len(p.blocks) + 16*len(p.documents)
}

// terms goes through a dictionary.
type terms struct {
	piece *piece
	at    int
	run   int
	left  int // in the whole dictionary
	inner int // words so far in this block

	// word is the word where it stands, valid until next, and found its postings.
	word  []byte
	found postings
}

// all goes through the whole dictionary.
func (p *piece) all() *terms { return &terms{piece: p, left: p.terms} }

// seek goes to the block in which word would be.
func (p *piece) seek(t *terms, word []byte) {
	begin := beginning(word)
	after := sort.Search(len(p.blocks), func(i int) bool {
		if first := p.blocks[i].begin; first != begin {
			return first > begin
		}
		return bytes.Compare(p.first(i), word) > 0
	})
	at := max(after-1, 0)
	t.piece, t.inner, t.word = p, 0, t.word[:0]
	t.left = p.terms - at*wordsInBlock
	if t.left > 0 {
		t.at, t.run = int(p.blocks[at].dictionary), int(p.blocks[at].runs)
	}
}

// first is the first word of a block.
func (p *piece) first(i int) []byte {
	at := int(p.blocks[i].dictionary) + 1 // it shares nothing
	size, at := number(p.dictionary, at)
	return p.dictionary[at : at+int(size)]
}

// next goes to the next word, and reports whether there is one.
func (t *terms) next() bool {
	if t.left == 0 {
		return false
	}
	t.left--
	d := t.piece.dictionary
	shared, at := number(d, t.at)
	rest, at := number(d, at)
	t.word = append(t.word[:shared], d[at:at+int(rest)]...)
	at += int(rest)
	df, at := number(d, at)
	documents, at := number(d, at)
	positions, at := number(d, at)
	t.at = at
	middle, end := t.run+int(documents), t.run+int(documents)+int(positions)
	t.found = postings{int(df), t.piece.runs[t.run:middle:middle], t.piece.runs[middle:end:end]}
	t.run = end
	return true
}

// find returns the postings of a word.
func (p *piece) find(t *terms, word []byte) (postings, bool) {
	p.seek(t, word)
	for range wordsInBlock {
		if !t.next() {
			break
		}
		if order := bytes.Compare(t.word, word); order == 0 {
			return t.found, true
		} else if order > 0 {
			break
		}
	}
	return postings{}, false
}

// writer makes the dictionary of a piece.
type writer struct {
	piece
	last []byte
	run  int // where the word's documents begin
}

// word begins the postings of a word; words come in order.
func (w *writer) word(word []byte) {
	shared := 0
	if w.terms%wordsInBlock == 0 {
		w.blocks = append(w.blocks, block{beginning(word), uint32(len(w.dictionary)), uint32(len(w.runs))})
	} else {
		for shared < len(word) && shared < len(w.last) && word[shared] == w.last[shared] {
			shared++
		}
	}
	w.dictionary = appendNumber(w.dictionary, uint32(shared))
	w.dictionary = appendNumber(w.dictionary, uint32(len(word)-shared))
	w.dictionary = append(w.dictionary, word[shared:]...)
	w.last = append(w.last[:0], word...)
	w.run = len(w.runs)
}

// end ends them: of df documents, their positions beginning at middle.
func (w *writer) end(df, middle int) {
	w.dictionary = appendNumber(w.dictionary, uint32(df))
	w.dictionary = appendNumber(w.dictionary, uint32(middle-w.run))
	w.dictionary = appendNumber(w.dictionary, uint32(len(w.runs)-middle))
	w.terms++
}

// done returns the piece, without room to grow, as the one in which its documents
// now lie.
func (w *writer) done() *piece {
	p := w.piece
	p.dictionary, p.runs, p.blocks = slices.Clip(bytes.Clone(p.dictionary)), slices.Clip(bytes.Clone(p.runs)), slices.Clone(p.blocks)
	p.newest = make([]uint32, len(p.documents))
	for i := range p.newest {
		p.newest[i] = uint32(i)
	}
	p.marks = make([]atomic.Uint32, (len(p.documents)+31)/32)
	for i, d := range p.documents {
		d.in, d.number = &p, uint32(i)
		if d.chain.Load() != nil {
			p.mark(d.number)
		}
	}
	slices.SortFunc(p.newest, func(a, b uint32) int { return byAge(p.documents[a], p.documents[b]) })
	for _, n := range p.lengths {
		p.words += int64(n)
	}
	return &p
}

// builder takes texts apart for a piece.
type builder struct {
	scan  *scanner
	known map[string]int
	found []occurrences
	piece piece
	// words is how many it has taken in.
	words int
}

// occurrences are the postings of one word, as they grow.
type occurrences struct {
	word                 string
	df                   int
	documents, positions []byte
	// last is the last document that is written down; document is the one that is
	// being read, tf and position how often and where the word was in it.
	last, document uint32
	tf, position   uint32
}

func (o *occurrences) flush() {
	if o.tf > 0 {
		o.documents = appendDocument(o.documents, o.document, o.last, o.tf)
		o.last, o.tf, o.position = o.document, 0, 0
		o.df++
	}
}

func newBuilder() *builder {
	return &builder{scan: newScanner(""), known: map[string]int{}}
}

// add takes in an entry.
func (b *builder) add(d *document, e *Entry) {
	number := uint32(len(b.piece.documents))
	b.piece.documents = append(b.piece.documents, d)
	position, length := uint32(0), uint32(0)
	text := func(s string) {
		b.scan.reset(s)
		for b.scan.next() {
			at, ok := b.known[string(b.scan.word)]
			if !ok {
				at = len(b.found)
				word := strings.Clone(string(b.scan.word))
				b.known[word] = at
				b.found = append(b.found, occurrences{word: word})
			}
			o := &b.found[at]
			if o.document != number {
				o.flush()
				o.document = number
			}
			o.tf++
			o.positions = appendNumber(o.positions, position-o.position)
			o.position = position
			position++
			length++
		}
		position++ // no phrase goes on in the next one
	}
	text(e.Title)
	text(e.Text)
	for _, tag := range e.Tags {
		text(tag)
	}
	b.piece.lengths = append(b.piece.lengths, length)
	b.words += int(length)
}

// done returns the piece, and begins another.
func (b *builder) done() *piece {
	order := make([]uint32, len(b.found))
	for i := range order {
		order[i] = uint32(i)
	}
	slices.SortFunc(order, func(x, y uint32) int { return strings.Compare(b.found[x].word, b.found[y].word) })
	w := writer{piece: b.piece}
	var word []byte
	for _, i := range order {
		o := &b.found[i]
		o.flush()
		word = append(word[:0], o.word...)
		w.word(word)
		w.runs = append(w.runs, o.documents...)
		middle := len(w.runs)
		w.runs = append(w.runs, o.positions...)
		w.end(o.df, middle)
	}
	clear(b.known)
	b.found, b.piece, b.words = b.found[:0], piece{}, 0
	return w.done()
}

// merge makes one piece of several, without the documents that gone names. It
// returns nil when nothing is left.
func merge(pieces []*piece, gone func(*document) bool) *piece {
	type source struct {
		*terms
		numbers []uint32 // of its documents in the new piece
		whole   bool
	}
	const none = ^uint32(0)
	var w writer
	var sources []*source
	for _, p := range pieces {
		s := &source{terms: p.all(), numbers: make([]uint32, len(p.documents)), whole: true}
		for i, d := range p.documents {
			if gone != nil && gone(d) {
				s.numbers[i], s.whole = none, false
				continue
			}
			s.numbers[i] = uint32(len(w.documents))
			w.documents = append(w.documents, d)
			w.lengths = append(w.lengths, p.lengths[i])
		}
		if s.next() {
			sources = append(sources, s)
		}
	}
	if len(w.documents) == 0 {
		return nil
	}
	var same []*source
	var word []byte
	var positions []byte
	for len(sources) > 0 {
		same = same[:0]
		for _, s := range sources { // in the order of the pieces, which is that of the numbers
			order := -1
			if len(same) > 0 {
				order = bytes.Compare(s.word, same[0].word)
			}
			if order < 0 {
				same = same[:0]
			}
			if order <= 0 {
				same = append(same, s)
			}
		}
		word = append(word[:0], same[0].word...)
		w.run = len(w.runs)
		df, last, begun := 0, uint32(0), false
		positions = positions[:0]
		for _, s := range same {
			begin := func() {
				if !begun {
					w.word(word)
					begun = true
				}
			}
			p := s.found
			if s.whole {
				begin()
			}
			document, at, pos := uint32(0), 0, 0
			for range p.df {
				var code uint32
				code, at = number(p.documents, at)
				document += code >> 1
				tf := uint32(1)
				if code&1 == 0 {
					tf, at = number(p.documents, at)
				}
				from := pos
				if !s.whole {
					for range tf {
						_, pos = number(p.positions, pos)
					}
				}
				now := s.numbers[document]
				if now == none {
					continue
				}
				begin()
				w.runs = appendDocument(w.runs, now, last, tf)
				last = now
				df++
				if !s.whole {
					positions = append(positions, p.positions[from:pos]...)
				}
			}
			if s.whole {
				positions = append(positions, p.positions...)
			}
		}
		if begun {
			middle := len(w.runs)
			w.runs = append(w.runs, positions...)
			w.end(df, middle)
		}
		for _, s := range same {
			if !s.next() {
				sources = slices.DeleteFunc(sources, func(other *source) bool { return other == s })
			}
		}
	}
	return w.done()
}
