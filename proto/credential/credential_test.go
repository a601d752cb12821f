package credential_test

import (
	"strings"
	"testing"

	"subjectbroker/proto/credential"
)

func TestFind(t *testing.T) {
	forty := strings.Repeat("a1B2", 10)
	for _, token := range []string{"-----BEGIN OPENSSH PRIVATE KEY-----", "say ghp_" + forty + " twice", "AKIA" + "IOSFODNN7EXAMPLE", "Bearer sk-ant-" + forty} {
		if _, found := credential.Find([]byte(token)); !found {
			t.Errorf("%q is not recognised", token)
		}
	}
	for _, prose := range []string{"", "-----BEGIN PUBLIC KEY-----", "Set GITHUB_TOKEN to your ghp_ token."} {
		if what, found := credential.Find([]byte(prose)); found {
			t.Errorf("%q is taken for %s", prose, what)
		}
	}
}

// What stands beside a token is not a part of it, whatever is said about it.
func TestSpans(t *testing.T) {
	token := "ghp_" + strings.Repeat("a1B2", 10)
	body := strings.Repeat("ABCDEFGH", 8)
	for text, want := range map[string]string{
		"": "", "prose": "prose",
		"say " + token + " twice " + token + "!":                            "say # twice #!",
		"-----BEGIN PRIVATE KEY-----\n" + body + "\n" + body + "\nrm -rf /": "#\n#\n#\nrm -rf /",
		body + " is no key": body + " is no key",
		"-----BEGIN PRIVATE KEY-----\n" + body + "\nshort0123456789=\n-----END PRIVATE KEY-----":     "#\n#\n#\n-----END PRIVATE KEY-----",
		`-----BEGIN PRIVATE KEY-----\n` + body + `\nshort0123456789=`:                                `#\#\#`,
		"-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\n" + body + "\nshorter0123456789": "#\nProc-Type: 4,ENCRYPTED\n\n#\n#",
		// What only stands near a key is shown: it is what a person has to see.
		"echo -----BEGIN PRIVATE KEY-----; rm -rf --no-preserve-root /home/user/documents": "echo #; rm -rf --no-preserve-root /home/user/documents",
		"rm -- -----BEGIN PRIVATE KEY----- /home/user/documents":                           "rm -- # /home/user/documents",
		"-----BEGIN PRIVATE KEY-----\n" + body + " /home/user/documents":                   "#\n# /home/user/documents",
		"-----BEGIN PRIVATE KEY-----\n" + body + "\nrm\n/home/user/documents":              "#\n#\nrm\n/home/user/documents",
		"Bearer " + token + token + ".":                                                    "Bearer #.",
	} {
		got, from := "", 0
		for _, s := range credential.Spans([]byte(text)) {
			got += text[from:s.Begin] + "#"
			from = s.End
		}
		if got += text[from:]; got != want {
			t.Errorf("%q is shown as %q, want %q", text, got, want)
		}
	}
}
