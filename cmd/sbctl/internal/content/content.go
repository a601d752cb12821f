// Package content holds the rules for bytes that an operator hands over to be
// sealed: which kind they get when nobody says, what looks like a credential
// that must not be filed as an ordinary document, and how a newline that an
// editor or echo added is kept from becoming part of a token.
//
// It protects the operator from an oversight. It is no scanner: content that it
// does not recognise may still be secret.
package content

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"unicode/utf8"

	"subjectbroker/proto/credential"
)

// Kinds of sealed content.
const (
	Text   = "text"
	Secret = "secret"
	Binary = "binary"
)

// Bytes are content on their way to or from the vault. Printing them by any
// means shows that they were there and nothing else.
type Bytes []byte

const redacted = "[redacted]"

// String says [redacted].
func (Bytes) String() string { return redacted }

// GoString says [redacted].
func (Bytes) GoString() string { return redacted }

// Format says [redacted] for every verb.
func (Bytes) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, redacted) }

// LogValue says [redacted].
func (Bytes) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalJSON says [redacted].
func (Bytes) MarshalJSON() ([]byte, error) { return []byte(`"` + redacted + `"`), nil }

// Wipe overwrites the bytes.
func (b Bytes) Wipe() { clear(b) }

// KindOf is the kind of bytes that came from a file or from standard input.
func KindOf(b Bytes) string {
	if utf8.Valid(b) && bytes.IndexByte(b, 0) < 0 {
		return Text
	}
	return Binary
}

// Credential says what b looks like, when it looks like a known token or a
// private key.
func Credential(b Bytes) (what string, found bool) { return credential.Find(b) }

// EndsInOneNewline says whether the last byte of b, and not the one before it,
// ends a line: what echo and editors leave behind.
func EndsInOneNewline(b Bytes) bool {
	body, ended := bytes.CutSuffix(b, []byte("\n"))
	return ended && !bytes.HasSuffix(bytes.TrimSuffix(body, []byte("\r")), []byte("\n"))
}

// TrimNewline is b without the line end at its end.
func TrimNewline(b Bytes) Bytes {
	if body, ended := bytes.CutSuffix(b, []byte("\n")); ended {
		return bytes.TrimSuffix(body, []byte("\r"))
	}
	return b
}

// Read takes everything from r, at most limit bytes, and says whether there
// was more.
func Read(r io.Reader, limit uint64) (content Bytes, more bool, err error) {
	b := make([]byte, limit+1) // one allocation: growing would leave copies behind
	n, err := io.ReadFull(r, b)
	switch {
	case err == nil:
		clear(b)
		return nil, true, nil
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return b[:n], false, nil
	}
	clear(b)
	return nil, false, err
}
