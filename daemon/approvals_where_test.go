package daemon

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"subjectbroker/audit"
	"subjectbroker/proto/place"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// outcome asks without waiting, forwards what is approved, and says what came of it.
func (k *desk) outcome(args string) string {
	k.t.Helper()
	g := k.ask(args)
	g.wait = -1
	switch outcome := k.call(g); outcome {
	case gateApproved:
		return "done"
	case gatePending:
		return "asked"
	default:
		return fmt.Sprint(outcome)
	}
}

// stands lets calls like one pass where a rule matches, and returns the answer.
func (k *desk) stands(args, where string) *operatorv1.Consent {
	k.t.Helper()
	return k.decide(&operatorv1.DecideApprovalRequest{
		ApprovalId: k.pending(args), Approve: true, Scope: scopeUntil, Until: k.clock.now().Add(time.Hour).UnixMilli(), Where: []byte(where),
	}).GetConsent()
}

// An answer with a rule covers calls that the rule matches and that are what was shown
// in everything else, also after a restart, and until what it is bound to changes. One
// without covers what was shown.
func TestAnswerWithARule(t *testing.T) {
	home := t.TempDir()
	k := newDesk(t, home)
	look := func(when string, want map[string]string) {
		t.Helper()
		for args, outcome := range want {
			if got := k.outcome(args); got != outcome {
				t.Errorf("%s: %s: %s, want %s", when, args, got, outcome)
			}
		}
		k.voidCards(causeVoid) // there may be 16 of a subject
	}
	exact := k.stands(`{"path":"/exact","mode":"r"}`, "")
	if exact.GetCovers() != "exactly these arguments" || len(exact.GetWhere()) != 0 || exact.GetRule() != "" {
		t.Errorf("the answer without a rule covers %v", exact)
	}
	look("an answer without a rule", map[string]string{
		`{"path":"/exact","mode":"r"}`: "done", `{"path":"/exact2","mode":"r"}`: "asked", `{"path":"/data/b","mode":"r"}`: "asked",
	})
	made := k.stands(`{"path":"/data/marked-a","mode":"r"}`, `{"path": {"prefix":"/data/"}}`)
	if got, want := made.GetCovers(), `calls where path begins with "/data/", and all else is as it was shown`; got != want {
		t.Errorf("it covers %q, want %q", got, want)
	}
	if got, want := string(made.GetWhere()), `{"path":{"prefix":["/data/"]}}`; got != want || len(made.GetRule()) != 64 {
		t.Errorf("its rule is %s %s, want %s", got, made.GetRule(), want)
	}
	covered := map[string]string{
		`{"path":"/data/marked-a","mode":"r"}`: "done", `{"path":"/data/b","mode":"r"}`: "done", `{"path":"/data/b", "mode":"r"}`: "done",
		`{"path":"/etc/b","mode":"r"}`: "asked", `{"path":"/data/b","mode":"w"}`: "asked", `{"path":"/data/b"}`: "asked",
		`{"path":"/data/b","mode":"r","n":1}`: "asked", `{"path":"/data/b","Path":"/etc","mode":"r"}`: "asked", `{"Path":"/data/b","mode":"r"}`: "asked",
		`{"mode":"r","path":"/data/b"}`: "asked", `{"/path":"/data/b","mode":"r"}`: "asked", `{}`: "asked", ``: "asked",
	}
	look("with the rule", covered)
	other := k.open("worker")
	mine := k.run
	k.run = other
	look("from another run", map[string]string{`{"path":"/data/b","mode":"r"}`: "done"})
	k.run = mine

	var inLog []string
	for _, e := range k.entries(kindApprovalApprove, kindApprovalRun) {
		if e.ApprovalID == made.GetConsentId() {
			inLog = append(inLog, string(e.Kind)+" "+e.ArgsDigest.String())
		}
	}
	if len(inLog) != 5 || inLog[0] != "approval.approve "+made.GetRule() || strings.Contains(strings.Join(inLog[1:], " "), made.GetRule()) {
		t.Errorf("the log says %q of it, want its rule %s and four uses with their arguments", inLog, made.GetRule())
	}

	k.leave()
	for _, word := range []string{"/data/", "marked-a", "prefix"} {
		for _, file := range append(glob(t, place.AuditDir(home)), place.VaultFile(home)) {
			if raw, err := os.ReadFile(file); err != nil || bytes.Contains(raw, []byte(word)) {
				t.Errorf("%s holds %q: %v", filepath.Base(file), word, err)
			}
		}
	}
	k = newDesk(t, home)
	look("after a restart", covered)
	list, err := k.op().ListApprovals(k.ctx, &operatorv1.ListApprovalsRequest{ApprovalId: made.GetConsentId()[:6]})
	k.must(list, err)
	if got := list.GetConsents(); len(got) != 1 || got[0].GetCovers() != made.GetCovers() || got[0].GetRule() != made.GetRule() {
		t.Errorf("by its id stands %v", got)
	}
	k.pin(`{"description":"writes elsewhere","name":"write"}`)
	look("under another pin", map[string]string{`{"path":"/data/b","mode":"r"}`: "asked", `{"path":"/data/marked-a","mode":"r"}`: "asked"})
	var end *audit.Entry
	for until := time.Now().Add(patience); end == nil && time.Now().Before(until); time.Sleep(time.Millisecond) {
		k.endConsents()
		for _, e := range k.entries(kindApprovalVoid) {
			if e.ApprovalID == made.GetConsentId() {
				end = &e
			}
		}
	}
	if end == nil || end.Cause != causePin || end.ArgsDigest.String() != made.GetRule() {
		t.Errorf("its end in the log: %v", end)
	}
}

func glob(t *testing.T, dir string) []string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(all) == 0 {
		t.Fatalf("nothing is in %s: %v", dir, err)
	}
	var files []string
	for _, one := range all {
		if info, err := os.Stat(one); err == nil && info.Mode().IsRegular() {
			files = append(files, one)
		}
	}
	return files
}

// Paths are looked at when a call is judged, as policies do it.
func TestRuleLooksAtPaths(t *testing.T) {
	k := newDesk(t, t.TempDir())
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	inside, outside := filepath.Join(dir, "in"), filepath.Join(dir, "out")
	for _, one := range []string{inside, outside} {
		if err := os.Mkdir(one, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	call := func(path string) string { return fmt.Sprintf(`{"path":%q}`, path) }
	k.stands(call(inside+"/a"), fmt.Sprintf(`{"path":{"path":%q}}`, inside))
	link := inside + "/link"
	check := func(when, path, want string) {
		t.Helper()
		if got := k.outcome(call(path)); got != want {
			t.Errorf("%s: %s, want %s", when, got, want)
		}
	}
	check("below it", inside+"/b/c", "done")
	check("out of it again", inside+"/../out/x", "asked")
	check("a link that is not there yet", link+"/x", "done")
	if err := os.Symlink(outside, link); err != nil {
		t.Fatal(err)
	}
	check("a link out of it", link+"/x", "asked")
	if err := os.Remove(link); err != nil {
		t.Fatal(err)
	}
	check("which is gone", link+"/x", "done")
}

// What an answer with a rule may not be is refused, and the request waits on.
func TestRuleRefused(t *testing.T) {
	k := newDesk(t, t.TempDir())
	id := k.pending(`{"path":"/data/a","n":1.50}`)
	until := k.clock.now().Add(time.Hour).UnixMilli()
	for name, q := range map[string]*operatorv1.DecideApprovalRequest{
		"once":                          {Approve: true, Where: []byte(`{"path":"^/data/"}`)},
		"once, said":                    {Approve: true, Scope: scopeOnce, Where: []byte(`{"path":"^/data/"}`)},
		"a denial":                      {Where: []byte(`{"path":"^/data/"}`)},
		"what does not match":           {Approve: true, Scope: scopeUntil, Until: until, Where: []byte(`{"path":{"prefix":"/etc/"}}`)},
		"an argument that is not there": {Approve: true, Scope: scopeUntil, Until: until, Where: []byte(`{"file":".*"}`)},
		"in another case":               {Approve: true, Scope: scopeUntil, Until: until, Where: []byte(`{"Path":".*"}`)},
		"a part that is not there":      {Approve: true, Scope: scopeUntil, Until: until, Where: []byte(`{"/path/0":".*"}`)},
		"another number":                {Approve: true, Scope: scopeUntil, Until: until, Where: []byte(`{"n":{"exact":1.51}}`)},
		"no rule":                       {Approve: true, Scope: scopeUntil, Until: until, Where: []byte(`{}`)},
		"no JSON":                       {Approve: true, Scope: scopeUntil, Until: until, Where: []byte(`path=x`)},
		"the same twice":                {Approve: true, Scope: scopeUntil, Until: until, Where: []byte(`{"path":".*","path":".*"}`)},
		"a rule that is too long":       {Approve: true, Scope: scopeUntil, Until: until, Where: []byte(`{"path":".*"}` + strings.Repeat(" ", maxRule))},
	} {
		q.ApprovalId = id
		if _, err := k.op().DecideApproval(k.ctx, q); refusal(err).Reason != wire.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got := k.state().consents; len(got) != 0 {
		t.Errorf("%d answers stand", len(got))
	}
	if k.waiting(0) != id {
		t.Error("it does not wait any more")
	}
	long := k.pending(`{"path":"/data/a","content":"` + strings.Repeat("x", maxRuleArgs) + `"}`)
	if _, err := k.op().DecideApproval(k.ctx, &operatorv1.DecideApprovalRequest{ApprovalId: long, Approve: true, Scope: scopeUntil, Until: until, Where: []byte(`{"path":".*"}`)}); refusal(err).Reason != wire.InvalidArgument {
		t.Errorf("of arguments that are too long: %v", err)
	}
	k.decide(&operatorv1.DecideApprovalRequest{ApprovalId: id, Approve: true, Scope: scopeUntil, Until: until, Where: []byte(`{"path":"^/data/","n":{"exact":1.5}}`)})
	if got := k.outcome(`{"path":"/data/b","n":15e-1}`); got != "done" {
		t.Errorf("the control: %s", got)
	}
}

// A row says what it covers, or it is refused.
func TestRowOfARule(t *testing.T) {
	k := newDesk(t, t.TempDir())
	made := k.stands(`{"path":"/data/a"}`, `{"path":{"prefix":"/data/"}}`)
	row, err := encodeConsent(k.state().consents[made.GetConsentId()])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := decodeConsent(row); err != nil {
		t.Fatal(err)
	}
	rest := bytes.Index(row, []byte(`"rest":`))
	for name, other := range map[string][]byte{
		"without rest":         append(append([]byte{}, row[:rest]...), row[rest+len(`"rest":"",`)+64:]...),
		"another rule":         bytes.Replace(row, []byte(`"prefix"`), []byte(`"prefiy"`), 1),
		"and a digest":         bytes.Replace(row, []byte(`"where"`), []byte(`"argsDigest":"`+audit.Hash{1}.String()+`","where"`), 1),
		"a member that is new": bytes.Replace(row, []byte(`"where"`), []byte(`"when":1,"where"`), 1),
	} {
		if bytes.Equal(other, row) {
			t.Errorf("%s: it is the same", name)
		}
		if c, err := decodeConsent(other); err == nil {
			t.Errorf("%s: it is taken: %v", name, c.rule)
		}
	}
}

// What cannot be removed because nothing can be written is told once, and once more
// when that has changed.
func TestStuckAnswersAreToldOnce(t *testing.T) {
	var said lines
	k := newDesk(t, t.TempDir(), slog.NewTextHandler(&said, nil))
	k.stands(`{"path":"/data/a"}`, `{"path":"^/data/"}`)
	told := func(word string) int { return strings.Count(said.String(), word) }
	const stuck = "are not removed"
	if err := k.log().Close(); err != nil { // nothing is written any more
		t.Fatal(err)
	}
	k.offset.Store(int64(2 * time.Hour))
	for range 5 {
		k.endConsents()
	}
	if told(stuck) != 1 {
		t.Errorf("it is told %d times: %s", told(stuck), said.String())
	}
	k.approvals.stick(false) // as when it goes again
	k.endConsents()
	if told(stuck) != 2 {
		t.Errorf("another time it is told %d times in all", told(stuck))
	}
}

// lines is what a logger has written.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
