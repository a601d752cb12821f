package strict

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

func TestLineReader(t *testing.T) {
	const limit = 5
	for _, tc := range []struct {
		in   string
		want []string // "!" for a line that was skipped
	}{
		{"", nil},
		{"a\nb\n", []string{"a", "b"}},
		{"a\nb", []string{"a", "b"}},
		{"\n\n", []string{"", ""}},
		{"12345\n123456\nx\n", []string{"12345", "!", "x"}},
		{"12345", []string{"12345"}},
		{"123456", []string{"!"}},
		{strings.Repeat("y", 100000) + "\nx", []string{"!", "x"}},
		{strings.Repeat("y", 100000), []string{"!"}},
	} {
		for _, reader := range []io.Reader{strings.NewReader(tc.in), iotest.OneByteReader(strings.NewReader(tc.in)), iotest.DataErrReader(strings.NewReader(tc.in))} {
			got := allLines(t, reader, limit)
			if strings.Join(got, "|") != strings.Join(tc.want, "|") || len(got) != len(tc.want) {
				t.Errorf("%.20q: got %q, want %q", tc.in, got, tc.want)
			}
		}
	}
}

func allLines(t testing.TB, in io.Reader, limit int) (lines []string) {
	t.Helper()
	reader := NewLineReader(in, limit)
	for {
		line, err := reader.Next()
		switch err {
		case nil:
			lines = append(lines, string(line))
		case ErrLineTooLong:
			lines = append(lines, "!")
		case io.EOF:
			return lines
		default:
			t.Fatal(err)
		}
	}
}

// FuzzLineReader: what is read is what was written, short of what is too long,
// however it arrives.
func FuzzLineReader(f *testing.F) {
	f.Add([]byte("a\nbb\n\nccc"), 2)
	f.Add([]byte("\n"), 0)
	f.Fuzz(func(t *testing.T, data []byte, limit int) {
		limit = limit & 0xff
		var want []string
		for line := range bytes.SplitAfterSeq(data, []byte("\n")) {
			if len(line) == 0 {
				continue
			}
			line = bytes.TrimSuffix(line, []byte("\n"))
			if len(line) > limit {
				want = append(want, "!")
				continue
			}
			want = append(want, string(line))
		}
		if got := allLines(t, iotest.HalfReader(bytes.NewReader(data)), limit); strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Fatalf("got %q, want %q", got, want)
		}
	})
}
