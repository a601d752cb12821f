package vault

import (
	"encoding/binary"
	"errors"
	"time"
)

// errEncoding is the one answer of every decoder: a plaintext is either exactly what the encoder writes, or refused.
var errEncoding = errors.New("malformed encoding")

// lp writes a list as a count and length-prefixed fields. The count is written first and must be known: a list that
// grows is counted by its writer.
type lp []byte

func newLP(buf []byte, fields int) lp { return binary.BigEndian.AppendUint32(buf, uint32(fields)) }

func (b lp) bytes(p []byte) lp {
	return append(binary.BigEndian.AppendUint32(b, uint32(len(p))), p...)
}

func (b lp) text(s string) lp {
	return append(binary.BigEndian.AppendUint32(b, uint32(len(s))), s...)
}

func (b lp) u32(n uint32) lp {
	return binary.BigEndian.AppendUint32(append(b, 0, 0, 0, 4), n)
}

func (b lp) u64(n uint64) lp {
	return binary.BigEndian.AppendUint64(append(b, 0, 0, 0, 8), n)
}

func (b lp) time(t time.Time) lp { return b.u64(uint64(nanos(t))) }

// nest reserves the length of a field that is written in place; the caller passes the mark to endNest.
func (b lp) nest(fields int) (list lp, mark int) {
	b = append(b, 0, 0, 0, 0)
	return newLP(b, fields), len(b)
}

func (b lp) endNest(mark int) lp {
	binary.BigEndian.PutUint32(b[mark-4:mark], uint32(len(b)-mark))
	return b
}

// nanos is the stored form of a time. The zero time is 0, so 1970 itself cannot be stored; nothing here is that old.
func nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

func fromNanos(n int64) time.Time {
	if n == 0 {
		return time.Time{}
	}
	return time.Unix(0, n).UTC()
}

// lpReader reads what lp wrote. The first fault sticks, later reads answer zero values, and done reports it, so that a
// decoder reads like the format. Every slice it gives out points into the input.
type lpReader struct {
	rest []byte
	left uint32
	bad  bool
}

func readLP(p []byte) *lpReader {
	r := &lpReader{rest: p}
	if len(p) < 4 {
		r.bad = true
		return r
	}
	r.left = binary.BigEndian.Uint32(p)
	r.rest = p[4:]
	// Each field takes four bytes at least, so a count beyond that is a lie, and nobody may allocate by it.
	if uint64(r.left)*4 > uint64(len(r.rest)) {
		r.bad = true
	}
	return r
}

func (r *lpReader) bytes() []byte {
	if r.bad || r.left == 0 || len(r.rest) < 4 {
		r.bad = true
		return nil
	}
	n := binary.BigEndian.Uint32(r.rest)
	if uint64(n) > uint64(len(r.rest)-4) {
		r.bad = true
		return nil
	}
	p := r.rest[4 : 4+n : 4+n]
	r.rest = r.rest[4+n:]
	r.left--
	return p
}

func (r *lpReader) fixed(n int) []byte {
	p := r.bytes()
	if len(p) != n {
		r.bad = true
		return make([]byte, n)
	}
	return p
}

func (r *lpReader) label(want string) {
	if string(r.bytes()) != want {
		r.bad = true
	}
}

func (r *lpReader) text() string    { return string(r.bytes()) }
func (r *lpReader) u32() uint32     { return binary.BigEndian.Uint32(r.fixed(4)) }
func (r *lpReader) u64() uint64     { return binary.BigEndian.Uint64(r.fixed(8)) }
func (r *lpReader) time() time.Time { return fromNanos(int64(r.u64())) }
func (r *lpReader) hash() [32]byte  { return [32]byte(r.fixed(32)) }
func (r *lpReader) nested() *lpReader {
	return readLP(r.bytes())
}

// more reports whether fields are left; a reader with a fault has none.
func (r *lpReader) more() bool { return !r.bad && r.left > 0 }

func (r *lpReader) done() error {
	if r.bad || r.left != 0 || len(r.rest) != 0 {
		return errEncoding
	}
	return nil
}
