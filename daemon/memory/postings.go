package memory

import "slices"

// Postings of a word say in which documents of a piece it stands, how often and
// where. They are two runs of variable-length numbers (seven bits in a byte, the
// lowest first, the highest bit set when more follow):
//
//	documents  for each: number of the document less that of the one before, times
//	           two, plus one if the word stands in it once; else, then, how often
//	positions  for each document, each position less the one before it there
//
// The first document is counted from document 0, the first position from 0.
type postings struct {
	df        int
	documents []byte
	positions []byte
}

func appendNumber(b []byte, n uint32) []byte {
	for n >= 0x80 {
		b = append(b, byte(n)|0x80)
		n >>= 7
	}
	return append(b, byte(n))
}

// number reads one. The runs are our own: what is read was written.
func number(b []byte, at int) (n uint32, next int) {
	c := b[at]
	if c < 0x80 {
		return uint32(c), at + 1
	}
	n = uint32(c & 0x7f)
	for shift := 7; ; shift += 7 {
		at++
		c = b[at]
		n |= uint32(c&0x7f) << shift
		if c < 0x80 {
			return n, at + 1
		}
	}
}

// appendDocument writes down that a word stands tf times in document, the one
// before being last.
func appendDocument(b []byte, document, last, tf uint32) []byte {
	code := (document - last) << 1
	if tf == 1 {
		return appendNumber(b, code|1)
	}
	return appendNumber(appendNumber(b, code), tf)
}

// all reads the documents, and how often the word is in each, into two lists.
func (p postings) all(numbers, often []uint32) ([]uint32, []uint32) {
	numbers, often = slices.Grow(numbers[:0], p.df)[:p.df], slices.Grow(often[:0], p.df)[:p.df]
	document := uint32(0)
	b, at := p.documents, 0
	for i := range numbers {
		code := uint32(b[at])
		if code < 0x80 {
			at++
		} else {
			code, at = number(b, at)
		}
		document += code >> 1
		numbers[i] = document
		tf := uint32(1)
		if code&1 == 0 {
			tf, at = number(b, at)
		}
		often[i] = tf
	}
	return numbers, often
}

// cursor goes through postings.
type cursor struct {
	postings
	at   int
	left int
	// skip is the number of positions that were not read.
	skip uint32
	pos  int

	// document is where it stands, and tf how often the word is in there.
	document uint32
	tf       uint32
}

func (p postings) cursor() cursor { return cursor{postings: p, left: p.df} }

// next goes to the next document, and reports whether there is one.
func (c *cursor) next() bool {
	if c.left == 0 {
		return false
	}
	c.left--
	c.skip += c.tf
	var code uint32
	code, c.at = number(c.documents, c.at)
	c.document += code >> 1
	c.tf = 1
	if code&1 == 0 {
		c.tf, c.at = number(c.documents, c.at)
	}
	return true
}

// where appends the positions in the document. It may be called once for each.
func (c *cursor) where(to []uint32) []uint32 {
	for skip, b := c.skip, c.positions; skip > 0; c.pos++ {
		if b[c.pos] < 0x80 {
			skip--
		}
	}
	c.skip = 0
	position, b, at := uint32(0), c.positions, c.pos
	for range c.tf {
		delta := uint32(b[at])
		if delta < 0x80 {
			at++
		} else {
			delta, at = number(b, at)
		}
		position += delta
		to = append(to, position)
	}
	c.pos = at
	c.skip -= c.tf // next adds them
	return to
}
