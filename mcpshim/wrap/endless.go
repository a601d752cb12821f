package wrap

import (
	"bytes"
	"errors"
	"io"
)

// errEndless: a line of the server has no end, as far as anybody waits for it.
var errEndless = errors.New("a line without an end")

// unending reads until a line goes on for twice the limit: what is longer than the
// limit is thrown away in any case, and nobody waits for its end for ever.
type unending struct {
	in    io.Reader
	limit int
	over  func() // called once, before the error
	since int    // bytes since the latest end of a line
}

// Read implements io.Reader. Its errors are those of the stream, and errEndless.
func (u *unending) Read(p []byte) (int, error) {
	if u.since > 2*u.limit {
		return 0, errEndless
	}
	n, err := u.in.Read(p)
	if at := bytes.LastIndexByte(p[:n], '\n'); at >= 0 {
		u.since = n - at - 1
	} else {
		u.since += n
	}
	if u.since > 2*u.limit {
		u.over()
		return 0, errEndless
	}
	return n, err
}
