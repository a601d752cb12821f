package memory

import (
	"fmt"
	"math"
	"strings"
	"sync"
)

// source draws numbers that are the same in every run.
type source uint64

func (s *source) next() uint64 { // splitmix64
	*s += 0x9e3779b97f4a7c15
	z := uint64(*s)
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

func (s *source) below(n int) int { return int(s.next() % uint64(n)) }

func (s *source) float() float64 { return float64(s.next()>>11) / (1 << 53) }

// vocabulary draws words as they are used: the k-th most frequent one a k-th as
// often as the first.
type vocabulary struct {
	words []string
	sums  []float64
}

func newVocabulary(n int) *vocabulary {
	draw := source(1)
	v := &vocabulary{}
	sum := 0.0
	for k := range n {
		sum += 1 / float64(k+1)
		v.sums = append(v.sums, sum)
		v.words = append(v.words, spell(k, &draw))
	}
	return v
}

var syllables = strings.Fields("ka to re mi sun der lo van pi est or in al ment ti con ra ber ste gra no fel")

// spell makes up a word: the more frequent, the shorter.
func spell(k int, draw *source) string {
	var b strings.Builder
	for range 1 + int(math.Log2(float64(k+2))/4) + draw.below(2) {
		b.WriteString(syllables[draw.below(len(syllables))])
	}
	fmt.Fprintf(&b, "%x", k) // each is another
	return b.String()
}

func (v *vocabulary) draw(s *source) string {
	target := s.float() * v.sums[len(v.sums)-1]
	lo, hi := 0, len(v.sums)-1
	for lo < hi {
		if mid := (lo + hi) / 2; v.sums[mid] < target {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return v.words[lo]
}

// text is of so many words.
func (v *vocabulary) text(s *source, words int) string {
	var b strings.Builder
	for i := range words {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(v.draw(s))
		if s.below(12) == 0 {
			b.WriteByte('.')
		}
	}
	return b.String()
}

// entry makes up the n-th entry: 60 to 200 words, a title of six, two tags.
func (v *vocabulary) entry(s *source, n int, tenant string) Entry {
	return Entry{
		ID:      fmt.Sprintf("%016x", uint64(n)*0x9e3779b97f4a7c15),
		Tenant:  tenant,
		Kind:    modelKinds[s.below(len(modelKinds))],
		Title:   v.text(s, 6),
		Text:    v.text(s, 60+s.below(141)),
		Tags:    []string{v.words[s.below(200)], v.words[s.below(200)]},
		Created: 1_700_000_000_000 + int64(n)*1000,
	}
}

var words100k = sync.OnceValue(func() *vocabulary { return newVocabulary(100_000) })
