package mcpshim

import (
	"encoding/base64"
	"io"
)

// chunk is how much content is escaped at a time, in bytes.
const chunk = 8 << 10

const hexDigits = "0123456789abcdef"

// appendEscaped appends text as the inside of a JSON string. Text is UTF-8; it
// may be cut anywhere, because only ASCII is ever escaped.
func appendEscaped(dst, text []byte) []byte {
	start := 0
	for i, c := range text {
		if c >= 0x20 && c != '"' && c != '\\' {
			continue
		}
		dst = append(dst, text[start:i]...)
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		}
		start = i + 1
	}
	return append(dst, text[start:]...)
}

// escaper writes what it is given as the inside of a JSON string.
type escaper struct {
	out io.Writer
	buf []byte
}

func (e *escaper) Write(text []byte) (int, error) {
	for rest := text; len(rest) > 0; {
		part := rest[:min(chunk, len(rest))]
		rest = rest[len(part):]
		e.buf = appendEscaped(e.buf[:0], part)
		if _, err := e.out.Write(e.buf); err != nil {
			return 0, err
		}
	}
	return len(text), nil
}

// writeBase64 writes content in standard base64.
func writeBase64(out io.Writer, content []byte) error {
	encoder := base64.NewEncoder(base64.StdEncoding, out)
	if _, err := encoder.Write(content); err != nil {
		return err
	}
	return encoder.Close()
}
