package audit

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
)

// cut is a line taken apart from both ends, without reading what is between.
type cut struct {
	seq  uint64
	prev Hash
	body []byte // up to the comma before "sig"; nil when unsigned
	sig  []byte // base64; nil when unsigned
}

const lineStart = `{"v":1,"seq":`

// cutLine takes one line with its newline apart. Chain and signature need no
// more than this; the fields in the middle are vouched for by both.
func cutLine(line []byte) (c cut, ok bool) {
	rest, ok := bytes.CutPrefix(line, []byte(lineStart))
	if !ok || !bytes.HasSuffix(line, []byte(lineEnd)) {
		return c, false
	}
	digits := 0
	for digits < len(rest) && isDigit(rest[digits]) {
		if digits == 19 {
			return c, false
		}
		c.seq = c.seq*10 + uint64(rest[digits]-'0')
		digits++
	}
	if digits == 0 || rest[0] == '0' {
		return c, false
	}
	end := len(line) - len(lineEnd)
	if from := end - sigDigit - len(sigKey) - 1; from > 0 && string(line[from:from+1+len(sigKey)]) == `"`+sigKey {
		c.sig, c.body = line[end-sigDigit:end], line[:from+1]
		end = from
	}
	from := end - prevDigit - len(prevKey)
	if from < 0 || string(line[from:from+len(prevKey)]) != prevKey {
		return c, false
	}
	if _, err := hex.Decode(c.prev[:], line[from+len(prevKey):end]); err != nil {
		return c, false
	}
	return c, true
}

// decodeLine reads one line with its newline. A line that the writer would
// have written in any other way is refused: whatever passes encodes to the
// same bytes.
func decodeLine(line []byte) (Entry, error) {
	var e Entry
	if len(line) > maxLine {
		return e, fmt.Errorf("%w: a line of %d bytes", ErrDamaged, len(line))
	}
	if err := json.Unmarshal(line, &e); err != nil {
		return e, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if !bytes.Equal(appendLine(make([]byte, 0, len(line)), &e), line) {
		return e, fmt.Errorf("%w: a line is not in the form it is written in", ErrDamaged)
	}
	if c, ok := cutLine(line); !ok || string(c.sig) != e.Sig {
		return e, fmt.Errorf("%w: a line cannot be taken apart", ErrDamaged)
	}
	if e.V != 1 {
		return e, fmt.Errorf("%w: an entry of version %d", ErrDamaged, e.V)
	}
	if err := e.check(); err != nil {
		return e, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return e, nil
}

func hashLine(line []byte) Hash { return sha256.Sum256(line) }
