package memory

import (
	"bytes"
	"slices"
)

// match finds the documents of a piece that a term fits.
func (s *search) match(p *piece, t term) matches {
	switch {
	case len(t.words) > 1:
		return matches{pairs: s.phrase(p, t)}
	case t.prefix:
		return matches{pairs: s.prefix(p, t.words[0])}
	}
	s.word = append(s.word[:0], t.words[0]...)
	found, ok := p.find(&s.terms, s.word)
	if !ok || !s.effort.spend(len(found.documents)) {
		return matches{}
	}
	return matches{word: found}
}

// beginning calls yield for the postings of each word that begins with prefix, of
// which it reads the documents, or the whole.
func (s *search) beginning(p *piece, prefix string, whole bool, yield func(postings)) {
	s.word = append(s.word[:0], prefix...)
	p.seek(&s.terms, s.word)
	for s.terms.next() {
		if bytes.HasPrefix(s.terms.word, s.word) {
			read := len(s.terms.found.documents)
			if whole {
				read += len(s.terms.found.positions)
			}
			if !s.effort.spend(read) {
				return
			}
			yield(s.terms.found)
		} else if bytes.Compare(s.terms.word, s.word) > 0 {
			return
		}
	}
}

// prefix finds the documents with words that begin so, and how many.
func (s *search) prefix(p *piece, prefix string) []uint32 {
	s.distinct = s.distinct[:0]
	s.beginning(p, prefix, false, func(found postings) {
		s.numbers, s.often = found.all(s.numbers, s.often)
		for i, number := range s.numbers {
			if s.counts[number] == 0 {
				s.distinct = append(s.distinct, number)
			}
			s.counts[number] += s.often[i]
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
	s.parts = s.parts[:0]
	for i, word := range whole {
		s.word = append(s.word[:0], word...)
		found, ok := p.find(&s.terms, s.word)
		if !ok {
			return nil
		}
		s.parts = append(s.parts, part{found, uint32(i)})
	}
	slices.SortStableFunc(s.parts, func(a, b part) int { return a.df - b.df }) // the rarest is read whole
	s.places = s.places[:0]
	for i, part := range s.parts {
		if i > 0 && len(s.places) == 0 {
			break
		}
		if !s.effort.spend(len(part.documents) + len(part.positions)) {
			return nil
		}
		if i == 0 {
			s.spread(part)
		} else {
			s.narrow(part)
		}
	}
	if len(s.places) == 0 {
		return nil
	}
	if t.prefix {
		s.narrowToPrefix(p, t.words[len(t.words)-1], uint32(len(whole)))
	}
	for _, place := range s.places {
		if place.count > 0 {
			pairs = append(pairs, place.document, place.count)
		}
	}
	return pairs
}

// part is a word of a phrase: its postings, and which word it is.
type part struct {
	postings
	offset uint32
}

// starts are the places in a document where a phrase may begin: count of
// search.flat, one after the other.
type starts struct{ document, count uint32 }

// spread begins with every place of a word.
func (s *search) spread(w part) {
	s.numbers, s.often = w.all(s.numbers, s.often)
	s.places, s.flat = s.places[:0], s.flat[:0]
	at := 0
	for i, document := range s.numbers {
		position, count := uint32(0), uint32(0)
		for range s.often[i] {
			delta := uint32(w.positions[at])
			if delta < 0x80 {
				at++
			} else {
				delta, at = number(w.positions, at)
			}
			if position += delta; position >= w.offset {
				s.flat = append(s.flat, position-w.offset)
				count++
			}
		}
		if count > 0 {
			s.places = append(s.places, starts{document, count})
		}
	}
}

// narrow leaves those places that fit another word too.
func (s *search) narrow(w part) {
	s.numbers, s.often = w.all(s.numbers, s.often)
	b, at := w.positions, 0
	flat, places := s.flat, s.places
	skip := uint32(0)         // positions that nobody asks for
	next, from := 0, 0        // what is read of places and of flat
	left, to := places[:0], 0 // what is written there
	for i, document := range s.numbers {
		for next < len(places) && places[next].document < document {
			from += int(places[next].count)
			next++
		}
		if next == len(places) {
			break
		}
		if places[next].document > document {
			skip += s.often[i]
			continue
		}
		for ; skip > 0; at++ {
			if b[at] < 0x80 {
				skip--
			}
		}
		end := from + int(places[next].count)
		next++
		position, count := uint32(0), uint32(0)
		for range s.often[i] {
			delta := uint32(b[at])
			if delta < 0x80 {
				at++
			} else {
				delta, at = number(b, at)
			}
			position += delta
			for from < end && flat[from]+w.offset < position {
				from++
			}
			if from < end && flat[from]+w.offset == position {
				flat[to] = flat[from]
				from++
				to++
				count++
			}
		}
		from = end
		if count > 0 {
			left = append(left, starts{document, count})
		}
	}
	s.places, s.flat = left, flat[:to]
}

// narrowToPrefix leaves those places that a word with a beginning fits.
func (s *search) narrowToPrefix(p *piece, prefix string, offset uint32) {
	begins := make([]int, len(s.places)+1)
	for i, place := range s.places {
		begins[i+1] = begins[i] + int(place.count)
		s.counts[place.document] = uint32(i) + 1
		s.places[i].count = 0
	}
	var positions []uint32
	s.beginning(p, prefix, true, func(found postings) {
		for c := found.cursor(); c.next(); {
			i := s.counts[c.document]
			if i == 0 {
				continue
			}
			positions = c.where(positions[:0])
			for _, position := range positions {
				if position < offset {
					continue
				}
				if _, ok := slices.BinarySearch(s.flat[begins[i-1]:begins[i]], position-offset); ok {
					s.places[i-1].count++
				}
			}
		}
	})
	for _, place := range s.places {
		s.counts[place.document] = 0
	}
}
