package wire

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestWholeText(t *testing.T) {
	for text, want := range map[string]bool{
		`"plain"`: true, `"é 🚀"`: true, `"\ud83d\ude80"`: true, `"\uD83D\uDE80\ud83d\ude80"`: true, `"�"`: true, `"\ufffd"`: true,
		`"\ud800"`: false, `"\udc00"`: false, `"x\ud800y"`: false, `"\ud83d\u0041"`: false, `"\ud83d\ud83d\ude80"`: false, `"\ud83d\\ude80"`: false,
		`"\\ud800"`: true, `"\\\ud800"`: false, `"\ud800\n"`: false, `"\"\ud800"`: false, `["a","\udfff"]`: false, `{"\ud800":1}`: false,
	} {
		if got := WholeText([]byte(text)); got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
}

// FuzzWholeText: of what is JSON it says whether a decoder would put something in the
// place of what stands there.
func FuzzWholeText(f *testing.F) {
	for _, text := range []string{`"\ud800"`, `"\ud83d\ude80"`, `"\\ud800"`, `"\ufffd"`} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var decoded string
		if json.Unmarshal([]byte(text), &decoded) != nil || strings.Contains(text, "\ufffd") || strings.Contains(strings.ToLower(text), `\ufffd`) || strings.ToValidUTF8(text, "") != text {
			return
		}
		if got, want := WholeText([]byte(text)), !strings.Contains(decoded, "\ufffd"); got != want {
			t.Errorf("%s: %v, decoded %q", text, got, decoded)
		}
	})
}
