package content_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"subjectbroker/cmd/sbctl/internal/content"
)

func TestKindOf(t *testing.T) {
	for _, test := range []struct{ name, bytes, want string }{
		{"empty", "", content.Text},
		{"ascii", "hello\n", content.Text},
		{"utf-8", "Grüße, 世界", content.Text},
		{"byte order mark", "\ufeffhello", content.Text},
		{"NUL", "hel\x00lo", content.Binary},
		{"latin-1", "Gr\xfc\xdfe", content.Binary},
	} {
		if got := content.KindOf(content.Bytes(test.bytes)); got != test.want {
			t.Errorf("%s: kind %s, want %s", test.name, got, test.want)
		}
	}
}

func TestCredential(t *testing.T) {
	forty := strings.Repeat("a1B2", 10)
	for _, token := range []string{
		"-----BEGIN PRIVATE KEY-----\nMC4CAQ\n-----END PRIVATE KEY-----\n",
		"-----BEGIN OPENSSH PRIVATE KEY-----",
		"-----BEGIN RSA PRIVATE KEY-----",
		"-----BEGIN PGP PRIVATE KEY BLOCK-----",
		"ghp_" + forty, "github_pat_" + forty, "glpat-" + forty, "sk-ant-" + forty, "sk_live_" + forty,
		"AKIA" + "IOSFODNN7EXAMPLE", "xoxb-1234567890-abc", "npm_" + forty, "hf_" + forty, "ak_live_" + forty,
		"token=ghs_" + forty + "\n",
		"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0." + forty,
	} {
		if _, found := content.Credential(content.Bytes(token)); !found {
			t.Errorf("%q is not recognised", token)
		}
	}
	for _, prose := range []string{
		"", "hello", "-----BEGIN PUBLIC KEY-----", "-----BEGIN CERTIFICATE-----", "the task-force met", "ask-me-anything-about-the-weather-today",
		"Set GITHUB_TOKEN to your ghp_ token.", "disk-usage-of-the-machine-was-high",
	} {
		if what, found := content.Credential(content.Bytes(prose)); found {
			t.Errorf("%q is taken for %s", prose, what)
		}
	}
}

func TestNewlines(t *testing.T) {
	for _, test := range []struct {
		bytes   string
		one     bool
		trimmed string
	}{
		{"", false, ""},
		{"a", false, "a"},
		{"a\n", true, "a"},
		{"a\r\n", true, "a"},
		{"\n", true, ""},
		{"a\n\n", false, "a\n"},
		{"a\r\n\r\n", false, "a\r\n"},
		{"a\nb", false, "a\nb"},
		{"a\nb\n", true, "a\nb"},
	} {
		if got := content.EndsInOneNewline(content.Bytes(test.bytes)); got != test.one {
			t.Errorf("EndsInOneNewline(%q) = %v", test.bytes, got)
		}
		if got := string(content.TrimNewline(content.Bytes(test.bytes))); got != test.trimmed {
			t.Errorf("TrimNewline(%q) = %q, want %q", test.bytes, got, test.trimmed)
		}
	}
}

func TestBytesNeverShow(t *testing.T) {
	secret := content.Bytes("marker-7f3a")
	text, err := json.Marshal(map[string]any{"x": secret})
	if err != nil {
		t.Fatal(err)
	}
	shown := fmt.Sprint(secret) + fmt.Sprintf("%v %+v %#v %s %q %x %d", secret, secret, secret, secret, secret, secret, secret) +
		secret.LogValue().String() + string(text)
	if strings.Contains(shown, "marker") || strings.Contains(shown, fmt.Sprintf("%x", "marker")) {
		t.Errorf("content shows: %s", shown)
	}
}

func TestReadLimit(t *testing.T) {
	for _, test := range []struct {
		size int
		more bool
	}{{0, false}, {9, false}, {10, false}, {11, true}} {
		got, more, err := content.Read(strings.NewReader(strings.Repeat("x", test.size)), 10)
		if err != nil || more != test.more || (!more && len(got) != test.size) {
			t.Errorf("%d bytes: got %d, more %v, %v", test.size, len(got), more, err)
		}
	}
}
