package main

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"subjectbroker/cmd/sbctl/internal/ui"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

const hookSecret = "a secret of the hook, long enough"

// posted is one request that a receiver got.
type posted struct {
	path   string
	header http.Header
	body   []byte
}

// receiver is who is told: it answers with codes, one after the other, then 200.
type receiver struct {
	*httptest.Server
	mu    sync.Mutex
	codes []int
	got   []posted
	came  chan struct{}
}

func newReceiver(t *testing.T, codes ...int) *receiver {
	t.Helper()
	r := &receiver{codes: codes, came: make(chan struct{}, 64)}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		body, _ := io.ReadAll(request.Body)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.got = append(r.got, posted{request.URL.Path, request.Header.Clone(), body})
		code := http.StatusOK
		if len(r.codes) > 0 {
			code, r.codes = r.codes[0], r.codes[1:]
		}
		if code/100 == 3 {
			w.Header().Set("Location", "/elsewhere")
		}
		w.WriteHeader(code)
		r.came <- struct{}{}
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) all() []posted {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]posted{}, r.got...)
}

func hookFile(t *testing.T, content string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "hook.key")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
	return path
}

func notifyApp() *app {
	return &app{
		stdout: io.Discard, stderr: io.Discard, now: time.Now,
		out: &ui.Printer{Out: io.Discard, Zone: time.UTC},
	}
}

// hook is a webhook to a receiver that does not wait between tries.
func hook(t *testing.T, r *receiver, format string, arguments bool) (*webhook, *[]time.Duration) {
	t.Helper()
	w, err := newWebhook("notifying", r.URL+"/hook", format, hookFile(t, hookSecret+"\n", 0o600), arguments, notifyApp())
	if err != nil {
		t.Fatal(err)
	}
	var pauses []time.Duration
	w.pause = func(_ context.Context, d time.Duration) error {
		pauses = append(pauses, d)
		return nil
	}
	return w, &pauses
}

// genuine says whether a post is signed as the manual of notify says.
func genuine(p posted, secret string) bool {
	stamp, mac, ok := strings.Cut(strings.TrimPrefix(p.header.Get("SB-Signature"), "t="), ",v1=")
	want := hmac.New(sha256.New, []byte(secret))
	_, _ = io.WriteString(want, stamp+"."+string(p.body))
	got, err := hex.DecodeString(mac)
	return ok && err == nil && hmac.Equal(got, want.Sum(nil))
}

func TestGenericPost(t *testing.T) {
	m := fakeApproval("kmpx", "worker", "desk", "publish", `{"title":"private"}`)
	for _, arguments := range []bool{false, true} {
		r := newReceiver(t)
		w, _ := hook(t, r, formatGeneric, arguments)
		if err := w.tell(t.Context(), m); err != nil {
			t.Fatal(err)
		}
		p := r.all()[0]
		if !genuine(p, hookSecret) {
			t.Errorf("the signature %q does not fit", p.header.Get("SB-Signature"))
		}
		if genuine(p, hookSecret+"\n") {
			t.Error("the final newline of the file is part of the secret")
		}
		p.body = append(p.body, ' ')
		if genuine(p, hookSecret) {
			t.Error("the signature fits any body")
		}
		var post genericPost
		if err := json.Unmarshal(p.body, &post); err != nil {
			t.Fatal(err)
		}
		if post.Event != "approval.pending" || post.Approval.ApprovalID != "kmpx" || post.Approval.SubjectID != "worker" || post.Look != "sbctl approvals show kmpx" {
			t.Errorf("posted %+v", post)
		}
		if got := strings.Contains(string(p.body), "private"); got != arguments {
			t.Errorf("arguments wanted: %v, posted: %v", arguments, got)
		}
		if got := post.Approval.ArgsDigest != ""; got != arguments {
			t.Errorf("arguments wanted: %v, their digest posted: %v", arguments, got)
		}
		if id := p.header.Get("SB-Delivery"); id != "kmpx" {
			t.Errorf("SB-Delivery is %q", id)
		}
	}
}

// What an agent wrote is text in Slack: no link, no mention, no markup.
func TestSlackPost(t *testing.T) {
	r := newReceiver(t)
	w, _ := hook(t, r, formatSlack, true)
	m := fakeApproval("kmpx", "worker", "desk", "publish", `{"title":"<!channel> <https://evil|ok> & \u202e"}`)
	m.Arguments = append(m.Arguments, "\u202e\x1b[31m"...)
	if err := w.tell(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	var post slackPost
	if err := json.Unmarshal(r.all()[0].body, &post); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"worker asks for desk/publish\n", "why: the tool's gate\n", "&lt;!channel&gt;", "look: sbctl approvals show kmpx"} {
		if !strings.Contains(post.Text, want) {
			t.Errorf("no %q in %q", want, post.Text)
		}
	}
	if strings.ContainsAny(post.Text, "<>\u202e\x1b") || post.Markdown {
		t.Errorf("markup in %q", post.Text)
	}
}

func TestPostIsTriedAgain(t *testing.T) {
	many := []int{500, 500, 500, 500, 500, 500, 500, 500}
	for _, test := range []struct {
		name  string
		codes []int
		tries int
		err   string
	}{
		{"well", nil, 1, ""},
		{"after two faults", []int{500, 503}, 3, ""},
		{"too many requests", []int{429}, 2, ""},
		{"for ever", many, postTries, "it answered 500, 6 times"},
		{"not wanted", []int{404}, 1, "it answered 404"},
		{"elsewhere", []int{307}, 1, "it answered 307: redirects are not followed"},
	} {
		r := newReceiver(t, test.codes...)
		w, pauses := hook(t, r, formatGeneric, false)
		err := w.tell(t.Context(), fakeApproval("kmpx", "worker", "desk", "publish"))
		if got := len(r.all()); got != test.tries || len(*pauses) != test.tries-1 {
			t.Errorf("%s: %d tries with %d pauses, want %d", test.name, got, len(*pauses), test.tries)
		}
		if test.err == "" && err != nil || test.err != "" && (err == nil || err.Error() != test.err) {
			t.Errorf("%s: %v, want %q", test.name, err, test.err)
		}
		for i, one := range r.all() {
			if one.path != "/hook" || one.header.Get("SB-Delivery") != "kmpx" {
				t.Errorf("%s: try %d went to %s", test.name, i, one.path)
			}
		}
	}
	// Nobody is told of what is over.
	r := newReceiver(t, many...)
	w, _ := hook(t, r, formatGeneric, false)
	m := fakeApproval("kmpx", "worker", "desk", "publish")
	m.Expires = time.Now().UnixMilli()
	if err := w.tell(t.Context(), m); err == nil || len(r.all()) != 1 {
		t.Errorf("%v after %d tries", err, len(r.all()))
	}
}

func TestWebhookThatIsRefused(t *testing.T) {
	good := hookFile(t, hookSecret, 0o600)
	for _, test := range []struct{ name, address, format, file, want string }{
		{"good", "https://hooks.example.com/x", formatGeneric, good, ""},
		{"this machine", "http://127.0.0.1:1/x", formatGeneric, good, ""},
		{"this machine by name", "http://localhost/x", formatGeneric, good, ""},
		{"slack unsigned", "https://hooks.slack.com/x", formatSlack, "", ""},
		{"clear text", "http://hooks.example.com/x", formatGeneric, good, "has to be https, or http to this machine"},
		{"nearly this machine", "http://127.0.0.1.example.com/x", formatGeneric, good, "has to be https"},
		{"another scheme", "file:///etc/passwd", formatGeneric, good, "is no URL"},
		{"with a user", "https://user:word@hooks.example.com/x", formatGeneric, good, "without a user"},
		{"nonsense", "hooks.example.com", formatGeneric, good, "is no URL"},
		{"unsigned", "https://hooks.example.com/x", formatGeneric, "", "a generic post is signed"},
		{"a secret that others read", "https://hooks.example.com/x", formatGeneric, hookFile(t, hookSecret, 0o640), "others can read"},
		{"a short secret", "https://hooks.example.com/x", formatGeneric, hookFile(t, "short\n", 0o600), "at least 16 bytes"},
		{"a large secret", "https://hooks.example.com/x", formatGeneric, hookFile(t, strings.Repeat("x", 5000), 0o600), "longer than 4096 bytes"},
		{"no file", "https://hooks.example.com/x", formatGeneric, t.TempDir(), "is no file"},
	} {
		_, err := newWebhook("notifying", test.address, test.format, test.file, false, notifyApp())
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: %v, want %q", test.name, err, test.want)
		}
		if err != nil && strings.Contains(err.Error(), "word") {
			t.Errorf("%s: what may be secret is in %v", test.name, err)
		}
	}
}

// Whatever localhost stands for: nothing in clear leaves this machine.
func TestClearTextStaysHere(t *testing.T) {
	post := func(address string) (int, error) {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, address, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := postClient(true).Do(request)
		if err != nil {
			return 0, err
		}
		return response.StatusCode, response.Body.Close()
	}
	if code, err := post("http://192.0.2.1:9/"); err == nil || !strings.Contains(err.Error(), "it is not on this machine") {
		t.Errorf("%d, %v", code, err)
	}
	if code, err := post(newReceiver(t).URL); err != nil || code != http.StatusOK {
		t.Errorf("%d, %v", code, err)
	}
}

// Each request is told once, and taken back when it is over.
func TestEachIsToldOnce(t *testing.T) {
	n := &notifier{told: map[string]bool{}}
	m := func(id, state string) *operatorv1.Approval {
		one := fakeApproval(id, "worker", "desk", "publish")
		one.State = state
		return one
	}
	for i, step := range []struct {
		m    *operatorv1.Approval
		want string
	}{
		{m("a", "pending"), "told"}, {m("a", "pending"), ""}, {m("b", "denied"), ""}, {nil, ""}, {m("b", "pending"), "told"},
		{m("a", "approved"), "over"}, {m("a", "settled"), ""}, {m("b", "pending"), ""},
	} {
		got := ""
		if next, ok := n.next(step.m); ok {
			got = "told"
			if next.over {
				got = "over"
			}
		}
		if got != step.want {
			t.Errorf("step %d: %q, want %q", i, got, step.want)
		}
	}
	if len(n.told) != 1 {
		t.Errorf("%d are remembered", len(n.told))
	}
}
