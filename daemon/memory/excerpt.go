package memory

import (
	"bytes"
	"slices"
	"strings"
	"unicode/utf8"
)

// left out is what an excerpt says where something was.
const leftOut = "…"

// Excerpt returns at most n bytes of text: those around the place where most of
// the query's terms stand, cut between words, with … where something was left
// out. A text that fits is returned whole; one in which nothing fits is cut at
// its end. Within a word it is cut only when that alone is longer than n.
func Excerpt(text string, query Query, n int) string {
	if len(text) <= n {
		return text
	}
	room := n - 2*len(leftOut)
	if room <= 0 {
		return ""
	}
	words := query.read(text)
	from, to := densest(query.occurrences(words), room)

	// What is left goes to both sides, as much as there is text.
	spare := room - (to - from)
	left := max(from-spare/2, 0)
	right := min(left+room, len(text))
	left = max(right-room, 0)
	left, right = between(text, words, left, right, from, to)
	if left == right {
		left, right = cut(text, from, from+room)
	}
	excerpt := strings.TrimSpace(text[left:right])
	if left > 0 {
		excerpt = leftOut + excerpt
	}
	if right < len(text) {
		excerpt += leftOut
	}
	return excerpt
}

// place is a word of a text: where it stands, which word of the query it is, and
// with which of its terms' last words it begins.
type place struct {
	start, stop, segment int
	word                 int
	begins               uint32
}

// read finds the words of a text.
func (q Query) read(text string) []place {
	known := q.known()
	distinct := make([]string, len(known))
	for word, i := range known {
		distinct[i] = word
	}
	prefixes := slices.ContainsFunc(q.terms, func(t term) bool { return t.prefix })
	words := make([]place, 0, len(text)/6)
	for s := newScanner(text); s.next(); {
		w := place{start: s.start, stop: s.stop, segment: s.segment, word: slices.Index(distinct, string(s.word))}
		for i := 0; prefixes && i < len(q.terms); i++ {
			if t := &q.terms[i]; t.prefix && bytes.HasPrefix(s.word, []byte(t.words[len(t.words)-1])) {
				w.begins |= 1 << i
			}
		}
		words = append(words, w)
	}
	return words
}

// known numbers the words of the query.
func (q Query) known() map[string]int {
	known := map[string]int{}
	for _, t := range q.terms {
		for _, word := range t.words {
			if _, ok := known[word]; !ok {
				known[word] = len(known)
			}
		}
	}
	return known
}

// occurrence is where a term stands.
type occurrence struct{ term, start, stop int }

// occurrences finds them, in the order in which they begin.
func (q Query) occurrences(words []place) (found []occurrence) {
	known := q.known()
	numbers := make([][]int, len(q.terms))
	for i, t := range q.terms {
		for _, word := range t.words {
			numbers[i] = append(numbers[i], known[word])
		}
	}
	for at := range words {
		for i, t := range q.terms {
			if fits(words[at:], numbers[i], t.prefix, 1<<i) {
				found = append(found, occurrence{i, words[at].start, words[at+len(t.words)-1].stop})
			}
		}
	}
	return found
}

// fits is true when words begin with those of a term.
func fits(words []place, numbers []int, prefix bool, term uint32) bool {
	if len(words) < len(numbers) {
		return false
	}
	for i, number := range numbers {
		last := prefix && i == len(numbers)-1
		if last && words[i].begins&term == 0 || !last && words[i].word != number {
			return false
		}
	}
	return true
}

// densest is the part of at most room bytes with the most different terms, then
// with the most occurrences, then the first.
func densest(found []occurrence, room int) (from, to int) {
	var counts [MaxTerms]int
	different, most, mostDifferent := 0, 0, 0
	first := 0
	for last, o := range found {
		if counts[o.term]++; counts[o.term] == 1 {
			different++
		}
		for o.stop-found[first].start > room && first < last {
			if counts[found[first].term]--; counts[found[first].term] == 0 {
				different--
			}
			first++
		}
		if o.stop-o.start > room { // alone it is too long
			continue
		}
		if all := last - first + 1; different > mostDifferent || different == mostDifferent && all > most {
			mostDifferent, most = different, all
			from, to = found[first].start, o.stop
		}
	}
	return from, to
}

// between moves the ends of a part to where words begin and end, and keeps from
// and to inside.
func between(text string, words []place, left, right, from, to int) (int, int) {
	begin, end := -1, -1
	for i, w := range words {
		apart := i == 0 || words[i-1].segment != w.segment
		if begin < 0 && (apart && w.start >= left || w.start == from) {
			begin = w.start
		}
		whole := i+1 == len(words) || words[i+1].segment != w.segment
		if w.stop <= right && (whole || w.stop == to) {
			end = w.stop
		}
	}
	if left == 0 {
		begin = 0
	}
	if right == len(text) {
		end = right
	}
	if begin < 0 || end <= begin {
		return 0, 0
	}
	return begin, end
}

// cut moves the ends of a part to where characters begin.
func cut(text string, left, right int) (int, int) {
	right = min(right, len(text))
	for right > left && right < len(text) && !utf8.RuneStart(text[right]) {
		right--
	}
	return left, right
}
