package stateless

import (
	"strings"
	"testing"
)

// What is written into a header is read out of it again, and is one line of ASCII.
func FuzzHeaderText(f *testing.F) {
	for _, text := range []string{"", "plain", " padded ", "Grüße", "a\r\nb", "=?base64?", "=?base64?w6k=?=", "\xff"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		header := HeaderText(text)
		if strings.ContainsFunc(header, func(c rune) bool { return c < 0x20 || c > 0x7e }) {
			t.Errorf("%q", header)
		}
		if got, ok := Text(header); !ok || got != text {
			t.Errorf("%q became %q, and then %q, %v", text, header, got, ok)
		}
	})
}

func TestText(t *testing.T) {
	for header, want := range map[string]string{"plain": "plain", "=?base64?w6k=?=": "é", "": "", "=?base64?w6k=": "=?base64?w6k=", "w6k=?=": "w6k=?="} {
		if got, ok := Text(header); !ok || got != want {
			t.Errorf("%q: %q, %v", header, got, ok)
		}
	}
	for _, bad := range []string{"=?base64?***?=", "=?base64?w6k?="} {
		if got, ok := Text(bad); ok {
			t.Errorf("%q: %q", bad, got)
		}
	}
}
