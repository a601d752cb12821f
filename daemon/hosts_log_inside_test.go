package daemon

import (
	"strings"
	"testing"
	"time"

	"subjectbroker/grants"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

// What a server writes of its own secrets is not in the logs that an operator reads;
// the rest is.
func TestLogsWithoutSecrets(t *testing.T) {
	k := newDesk(t, t.TempDir())
	st := k.state()
	for name, content := range map[string]string{"one": "s3cr3t-value\n", "lines": "first-line-of-it\nab\n\tsecond\x01line-of-it"} {
		k.must(k.op().PutSecret(k.ctx, &operatorv1.PutSecretRequest{Name: name, Kind: "secret", Content: []byte(content)}))
	}
	st.mu.Lock()
	st.servers["files"] = grants.Server{Name: "files", Command: []string{"/bin/true"}, Hosted: true, Env: map[string]string{"A": "x ${secret:one}", "B": "${secret:lines}"}}
	st.mu.Unlock()
	token := "ghp_" + strings.Repeat("a1B2", 10)
	for text, want := range map[string]string{
		"plain words":                     "plain words",
		"have s3cr3t-value, s3cr3t-value": "have [masked 12 bytes], [masked 12 bytes]",
		"got first-line-of-it":            "got [masked 16 bytes]",
		"got second\x01line-of-it":        `got [masked 22 bytes]`,
		"ab":                              "ab",
		"token " + token:                  "token [masked 44 bytes]",
	} {
		got := k.unsaid("files", []logLine{{text: escaped([]byte(text)), at: time.UnixMilli(1)}})
		if len(got) != 1 || got[0] != want {
			t.Errorf("%q is shown as %q, want %q", text, got, want)
		}
	}
}
