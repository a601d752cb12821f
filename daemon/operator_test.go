package daemon_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"subjectbroker/daemon/daemontest"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// Lock wipes what is in force and ends runs; only unlock brings it back.
func TestLockAndUnlock(t *testing.T) {
	d := daemontest.Start(t)
	d.Put("readme", "hello")
	d.AddSubject("worker")
	grant := d.Grant("worker", "read:readme", daemontest.Uses(5))
	run := d.Open("worker")
	equal(t, "before", run.Refused("readme"), wire.Allowed)
	d.Lock()
	status := d.Status()
	equal(t, "state", status.GetVaultState(), "locked")
	equal(t, "subjects in force", status.GetSubjects(), 0)
	equal(t, "runs", len(status.GetRuns()), 0)
	equal(t, "the log goes on", status.GetAuditState(), "ok")
	equal(t, "an old run", run.Refused("readme"), wire.VaultLocked)
	_, err := d.Broker().OpenRun(t.Context(), daemontest.Claim("worker"))
	equal(t, "a new run", daemontest.Reason(err), wire.VaultLocked)
	_, err = d.Operator().PutSecret(t.Context(), &operatorv1.PutSecretRequest{Name: "x", Kind: "text"})
	equal(t, "a change", daemontest.Reason(err), wire.VaultLocked)
	if n := len(d.Entries("authz")) + len(d.Entries("run.open")); n < 2 {
		t.Errorf("%d entries of refusals while locked", n)
	}
	d.Lock() // again changes nothing

	d.Unlock() //nolint:staticcheck // it is no mutex
	equal(t, "the old run, unlocked", run.Refused("readme"), wire.RunEnded)
	equal(t, "a new run, unlocked", d.Open("worker").Refused("readme"), wire.Allowed)
	equal(t, "uses", d.Grants("worker")[grant].GetUsed(), 2)
	d.Unlock() // again changes nothing
	d.Lock()
	d.Restart()
	d.Unlock()
	equal(t, "after a restart", d.Open("worker").Refused("readme"), wire.Allowed)
}

// Panic disables every subject and locks.
func TestPanic(t *testing.T) {
	d := daemontest.Start(t)
	d.Put("readme", "hello")
	d.AddSubject("one", "two", "off")
	d.SetEnabled("off", false)
	d.Grant("one", "read:readme")
	one := d.Open("one")
	watching := one.Follow()
	done, err := d.Operator().Panic(t.Context(), &operatorv1.PanicRequest{})
	must(t, err)
	if diff := cmp.Diff([]string{"one", "two"}, done.GetSubjects()); diff != "" {
		t.Error(diff)
	}
	equal(t, "runs that ended", done.GetRuns(), 1)
	event := watching.Next()
	for event == "list changed" {
		event = watching.Next()
	}
	equal(t, "a watcher", event, "ended VAULT_LOCKED")
	equal(t, "state", d.Status().GetVaultState(), "locked")
	_, err = d.Operator().Panic(t.Context(), &operatorv1.PanicRequest{})
	must(t, err) // again, while locked
	d.Unlock()
	for _, subject := range []string{"one", "two", "off"} {
		_, err := d.Broker().OpenRun(t.Context(), daemontest.Claim(subject))
		equal(t, subject, daemontest.Reason(err), wire.AccessDenied)
	}
	d.SetEnabled("one", true)
	equal(t, "enabled again", d.Open("one").Refused("readme"), wire.Allowed)
}

// Contract §4: what may be stored, byte for byte.
func TestContent(t *testing.T) {
	const limit = 4096
	d := daemontest.StartWith(t, daemontest.Options{Config: fmt.Sprintf("maxContent: %d\n", limit)})
	d.AddSubject("worker")
	d.Grant("worker", "read:*")
	run := d.Open("worker")
	for name, content := range map[string]string{
		"empty": "", "bom": "\ufeffwith a mark", "crlf": "a\r\nb\n", "unicode": "žluťoučký 🐎 \u202e", "full": strings.Repeat("x", limit), "nul": "a\x00b",
	} {
		d.Put(name, content)
		got, reason := run.Read(name)
		equal(t, name+": "+string(reason), got, content)
		equal(t, name+", for the operator", d.Content(name), content)
	}
	binary := string([]byte{0, 0xff, 0xfe, '\n', 0x80})
	d.PutKind("binary", "binary", binary)
	got, _ := run.Read("binary")
	equal(t, "binary", got, binary)

	generation := d.Status().GetGeneration()
	for name, tc := range map[string]struct {
		request *operatorv1.PutSecretRequest
		want    wire.Reason
	}{
		"one byte too many": {&operatorv1.PutSecretRequest{Name: "big", Kind: "text", Content: make([]byte, limit+1)}, wire.ResourceTooLarge},
		"text that is none": {&operatorv1.PutSecretRequest{Name: "bad", Kind: "text", Content: []byte(binary)}, wire.ResourceEncodingInvalid},
		"no kind":           {&operatorv1.PutSecretRequest{Name: "bad", Content: []byte("x")}, wire.InvalidArgument},
		"an unknown kind":   {&operatorv1.PutSecretRequest{Name: "bad", Kind: "file", Content: []byte("x")}, wire.InvalidArgument},
		"another kind":      {&operatorv1.PutSecretRequest{Name: "nul", Kind: "binary", Content: []byte("x")}, wire.InvalidArgument},
		"if absent":         {&operatorv1.PutSecretRequest{Name: "nul", Kind: "text", Content: []byte("x"), IfAbsent: true}, wire.InvalidArgument},
		"a long note":       {&operatorv1.PutSecretRequest{Name: "note", Kind: "text", Note: strings.Repeat("n", 1025)}, wire.InvalidArgument},
	} {
		_, err := d.Operator().PutSecret(t.Context(), tc.request)
		equal(t, name, daemontest.Reason(err), tc.want)
	}
	for _, name := range badNames {
		_, err := d.Operator().PutSecret(t.Context(), &operatorv1.PutSecretRequest{Name: name, Kind: "text"})
		equal(t, fmt.Sprintf("the name %q", name), daemontest.Reason(err), wire.InvalidArgument)
	}
	equal(t, "the generation after refusals", d.Status().GetGeneration(), generation)

	// A smaller limit afterwards is checked before anything is opened.
	d.Stop()
	must(t, os.WriteFile(filepath.Join(d.Home, "config.yaml"), []byte(daemontest.NoGuard+"maxContent: 100\n"), 0o600))
	d.Start()
	equal(t, "content above the limit", d.Open("worker").Refused("full"), wire.ResourceTooLarge)
	_, err := d.Operator().GetSecret(t.Context(), &operatorv1.GetSecretRequest{Name: "full"})
	equal(t, "for the operator", daemontest.Reason(err), wire.ResourceTooLarge)
}

var badNames = []string{"", ".", "-x", "a b", "a/b", "a\nb", "ä", "a\x00", "a\u202eb", strings.Repeat("n", 129), "a:b", "*"}

// Versions: each put is a new one, revert brings an old one forward.
func TestVersions(t *testing.T) {
	d := daemontest.Start(t)
	for _, content := range []string{"one", "two", "three"} {
		d.Put("doc", content)
	}
	_, err := d.Operator().RevertSecret(t.Context(), &operatorv1.RevertSecretRequest{Name: "doc", To: 1})
	must(t, err)
	equal(t, "newest", d.Content("doc"), "one")
	shown, err := d.Operator().GetResource(t.Context(), &operatorv1.GetResourceRequest{Name: "doc"})
	must(t, err)
	var history []string
	for _, v := range shown.GetVersions() {
		history = append(history, fmt.Sprintf("%d from %d, %d bytes", v.GetVersion(), v.GetRevertedFrom(), v.GetSize()))
	}
	if diff := cmp.Diff([]string{"4 from 1, 3 bytes", "3 from 0, 5 bytes", "2 from 0, 3 bytes", "1 from 0, 3 bytes"}, history); diff != "" {
		t.Error(diff)
	}
	for version, want := range map[uint32]string{1: "one", 2: "two", 3: "three", 4: "one"} {
		got, err := d.Operator().GetSecret(t.Context(), &operatorv1.GetSecretRequest{Name: "doc", Version: version})
		must(t, err)
		equal(t, fmt.Sprintf("version %d", version), string(got.GetContent()), want)
	}
	for _, to := range []uint32{0, 4, 5} {
		_, err := d.Operator().RevertSecret(t.Context(), &operatorv1.RevertSecretRequest{Name: "doc", To: to})
		equal(t, fmt.Sprintf("reverting to %d", to), daemontest.Reason(err), wire.InvalidArgument)
	}
	_, err = d.Operator().GetSecret(t.Context(), &operatorv1.GetSecretRequest{Name: "doc", Version: 9})
	equal(t, "a version that is not there", daemontest.Reason(err), wire.InvalidArgument)
}

// Contract §4 and §9: what a grant needs, and the hour of a disclosed secret.
func TestGranting(t *testing.T) {
	clock := newClock()
	d := daemontest.StartWith(t, daemontest.Options{Now: clock.Now})
	d.Put("readme", "hello")
	d.PutKind("key", "secret", "hush")
	d.AddSubject("worker")
	request := func(change func(*operatorv1.CreateGrantsRequest)) *operatorv1.CreateGrantsRequest {
		r := &operatorv1.CreateGrantsRequest{Subject: "worker", Capabilities: []string{"read:readme"}}
		change(r)
		return r
	}
	for name, change := range map[string]func(*operatorv1.CreateGrantsRequest){
		"no such subject":        func(r *operatorv1.CreateGrantsRequest) { r.Subject = "nobody" },
		"no such resource":       func(r *operatorv1.CreateGrantsRequest) { r.Capabilities = []string{"read:nothing"} },
		"no such, to use":        func(r *operatorv1.CreateGrantsRequest) { r.Capabilities = []string{"use:nothing"} },
		"nothing":                func(r *operatorv1.CreateGrantsRequest) { r.Capabilities = nil },
		"one is wrong":           func(r *operatorv1.CreateGrantsRequest) { r.Capabilities = append(r.Capabilities, "read:nothing") },
		"twice":                  func(r *operatorv1.CreateGrantsRequest) { r.Capabilities = append(r.Capabilities, "read:readme") },
		"no pattern":             func(r *operatorv1.CreateGrantsRequest) { r.Capabilities = []string{"read:re*"} },
		"no action":              func(r *operatorv1.CreateGrantsRequest) { r.Capabilities = []string{"eat:readme"} },
		"ttl and end":            func(r *operatorv1.CreateGrantsRequest) { r.TtlMs, r.Until = 1, clock.Now().Add(time.Hour).UnixMilli() },
		"past":                   func(r *operatorv1.CreateGrantsRequest) { r.Until = clock.Now().UnixMilli() },
		"negative":               func(r *operatorv1.CreateGrantsRequest) { r.TtlMs = -1 },
		"overflow":               func(r *operatorv1.CreateGrantsRequest) { r.TtlMs = 1 << 62 },
		"no such tier":           func(r *operatorv1.CreateGrantsRequest) { r.Tier = "godlike" },
		"secret, not to be seen": func(r *operatorv1.CreateGrantsRequest) { r.Capabilities = []string{"read:key"} },
		"deny with uses":         func(r *operatorv1.CreateGrantsRequest) { r.Deny, r.Uses = true, 1 },
		"bad note":               func(r *operatorv1.CreateGrantsRequest) { r.Note = "two\nlines" },
	} {
		_, err := d.Operator().CreateGrants(t.Context(), request(change))
		equal(t, name, daemontest.Reason(err), wire.InvalidArgument)
	}
	equal(t, "grants after refusals", d.Status().GetGrants(), 0)

	made, err := d.Operator().CreateGrants(t.Context(), request(func(r *operatorv1.CreateGrantsRequest) { r.Capabilities, r.Disclose = []string{"read:key"}, true }))
	must(t, err)
	equal(t, "the default end", made.GetGrants()[0].GetUntil(), clock.Now().Add(time.Hour).UnixMilli())
	equal(t, "warnings", len(made.GetWarnings()), 1)
	again, err := d.Operator().CreateGrants(t.Context(), request(func(r *operatorv1.CreateGrantsRequest) {
		r.Capabilities, r.Disclose, r.NoLimit = []string{"read:key"}, true, true
	}))
	must(t, err)
	equal(t, "without a limit", again.GetGrants()[0].GetUntil(), 0)
	equal(t, "the id stays", again.GetGrants()[0].GetGrantId(), made.GetGrants()[0].GetGrantId())
	limited, err := d.Operator().CreateGrants(t.Context(), request(func(r *operatorv1.CreateGrantsRequest) {
		r.Capabilities, r.Disclose, r.Uses = []string{"read:key"}, true, 1
	}))
	must(t, err)
	equal(t, "with uses there is a limit", limited.GetGrants()[0].GetUntil(), 0)

	run := d.Open("worker")
	d.Grant("worker", "read:*")
	equal(t, "a wildcard and a secret", listed(run, "key"), true) // by its exact grant
	equal(t, "the one use", run.Refused("key"), wire.Allowed)
	equal(t, "a wildcard alone", run.Refused("key"), wire.AccessDenied)
	equal(t, "a gated grant", gated(d, run), wire.ApprovalDenied)
}

// gated reads through a grant that needs a person. It is listed, explained as
// pending, and refused.
func gated(d *daemontest.Daemon, run *daemontest.Run) wire.Reason {
	d.Put("gated", "only with a person")
	d.Grant("worker", "read:gated", daemontest.Gated)
	decision, reason := run.Explained("gated")
	if decision != "pending" || reason != wire.ApprovalPending || !listed(run, "gated") {
		return reason
	}
	return run.Refused("gated")
}

func listed(run *daemontest.Run, name string) bool {
	for _, n := range run.List() {
		if n == name {
			return true
		}
	}
	return false
}

// Revoking works by id, by a prefix, by name and for all, and tells what went.
func TestRevoking(t *testing.T) {
	d := daemontest.Start(t)
	d.Put("readme", "hello")
	d.Put("other", "hello")
	d.AddSubject("worker", "second")
	run := d.Open("worker")
	id := d.Grant("worker", "read:readme")
	for name, request := range map[string]*operatorv1.RevokeGrantsRequest{
		"nothing":            {},
		"subject alone":      {Subject: "worker"},
		"id and subject":     {GrantId: id, Subject: "worker"},
		"all and capability": {Subject: "worker", All: true, Capability: "read:readme"},
		"no such id":         {GrantId: "zzzzzzzzzz"},
		"no such grant":      {Subject: "worker", Capability: "read:other"},
		"another's grant":    {Subject: "second", Capability: "read:readme"},
		"no such subject":    {Subject: "nobody", All: true},
	} {
		_, err := d.Operator().RevokeGrants(t.Context(), request)
		equal(t, name, daemontest.Reason(err), wire.InvalidArgument)
	}
	equal(t, "after refusals", run.Refused("readme"), wire.Allowed)
	for name, request := range map[string]func(id string) *operatorv1.RevokeGrantsRequest{
		"by id": func(id string) *operatorv1.RevokeGrantsRequest { return &operatorv1.RevokeGrantsRequest{GrantId: id} },
		"by prefix": func(id string) *operatorv1.RevokeGrantsRequest {
			return &operatorv1.RevokeGrantsRequest{GrantId: id[:6]}
		},
		"by name": func(string) *operatorv1.RevokeGrantsRequest {
			return &operatorv1.RevokeGrantsRequest{Subject: "worker", Capability: "read:readme"}
		},
		"all": func(string) *operatorv1.RevokeGrantsRequest {
			return &operatorv1.RevokeGrantsRequest{Subject: "worker", All: true}
		},
	} {
		id := d.Grant("worker", "read:readme")
		equal(t, name+", before", run.Refused("readme"), wire.Allowed)
		done, err := d.Operator().RevokeGrants(t.Context(), request(id))
		must(t, err)
		equal(t, name+", what went", done.GetGrants()[0].GetGrantId(), id)
		equal(t, name+", its state", done.GetGrants()[0].GetState(), "revoked")
		equal(t, name, run.Refused("readme"), wire.AccessDenied)
	}
	none, err := d.Operator().RevokeGrants(t.Context(), &operatorv1.RevokeGrantsRequest{Subject: "worker", All: true})
	must(t, err)
	equal(t, "all of none", len(none.GetGrants()), 0)
}

// Registered files: what is read is what was pinned.
func TestFiles(t *testing.T) {
	d := daemontest.Start(t)
	folder := t.TempDir()
	file := func(name string) string { return filepath.Join(folder, name) }
	write(t, file("pinned"), "one")
	write(t, file("followed"), "one")
	must(t, os.Symlink(file("pinned"), file("link")))
	must(t, os.Mkdir(file("folder"), 0o700))
	must(t, os.WriteFile(file("large"), bytes.Repeat([]byte("x"), 1<<20+1), 0o600))
	for name, tc := range map[string]struct {
		path, pin string
		want      wire.Reason
	}{
		"relative":       {"pinned", "", wire.InvalidArgument},
		"not clean":      {folder + "/./pinned", "", wire.InvalidArgument},
		"absent":         {file("absent"), "", wire.InvalidArgument},
		"a link":         {file("link"), "", wire.InvalidArgument},
		"a folder":       {file("folder"), "", wire.InvalidArgument},
		"too large":      {file("large"), "", wire.ResourceTooLarge},
		"in the home":    {filepath.Join(d.Home, "secret.key"), "", wire.InvalidArgument},
		"an unknown pin": {file("pinned"), "inode", wire.InvalidArgument},
	} {
		_, err := d.Operator().AddFile(t.Context(), &operatorv1.AddFileRequest{Name: "f", Path: tc.path, Pin: tc.pin})
		equal(t, name, daemontest.Reason(err), tc.want)
	}
	d.AddFile("pinned", file("pinned"), "content")
	d.AddFile("followed", file("followed"), "path")
	_, err := d.Operator().AddFile(t.Context(), &operatorv1.AddFileRequest{Name: "pinned", Path: file("followed")})
	equal(t, "a name that is taken", daemontest.Reason(err), wire.InvalidArgument)
	_, err = d.Operator().PutSecret(t.Context(), &operatorv1.PutSecretRequest{Name: "pinned", Kind: "text"})
	equal(t, "content for a file", daemontest.Reason(err), wire.InvalidArgument)
	_, err = d.Operator().GetSecret(t.Context(), &operatorv1.GetSecretRequest{Name: "pinned"})
	equal(t, "content of a file", daemontest.Reason(err), wire.InvalidArgument)

	d.AddSubject("worker")
	d.Grant("worker", "read:*")
	run := d.Open("worker")
	read := func(name string) string {
		content, reason := run.Read(name)
		if reason != wire.Allowed {
			return string(reason)
		}
		return content
	}
	equal(t, "pinned", read("pinned"), "one")
	write(t, file("pinned"), "two")
	write(t, file("followed"), "two")
	equal(t, "pinned, changed", read("pinned"), "RESOURCE_CHANGED")
	equal(t, "followed, changed", read("followed"), "two")
	if e := last(d, "acquire"); e.ContentSHA256 == "" || e.Version != 0 {
		t.Errorf("the entry of a file: %+v", e)
	}
	checked, err := d.Operator().CheckFiles(t.Context(), &operatorv1.CheckFilesRequest{})
	must(t, err)
	states := map[string]string{}
	for _, f := range checked.GetFiles() {
		states[f.GetName()] = f.GetState()
	}
	if diff := cmp.Diff(map[string]string{"pinned": "changed", "followed": "ok"}, states); diff != "" {
		t.Error(diff)
	}
	_, err = d.Operator().RepinFile(t.Context(), &operatorv1.RepinFileRequest{Name: "pinned", ExpectSha256: checked.GetFiles()[1].GetPinnedSha256()})
	equal(t, "repinned to something else than was shown", daemontest.Reason(err), wire.ResourceChanged)
	_, err = d.Operator().RepinFile(t.Context(), &operatorv1.RepinFileRequest{Name: "pinned", ExpectSha256: checked.GetFiles()[1].GetCurrentSha256()})
	must(t, err)
	equal(t, "repinned", read("pinned"), "two")

	must(t, os.Remove(file("followed")))
	must(t, os.Symlink("/etc/passwd", file("followed")))
	equal(t, "followed, now a link", read("followed"), "RESOURCE_CHANGED")
	must(t, os.Remove(file("pinned")))
	equal(t, "pinned, gone", read("pinned"), "RESOURCE_CHANGED")
	equal(t, "still listed", listed(run, "pinned"), true)
}

// What the operator sees of runs and subjects.
func TestRunsAndSubjects(t *testing.T) {
	d := daemontest.Start(t)
	d.Put("readme", "hello")
	d.AddSubject("worker")
	d.Grant("worker", "read:readme")
	run := d.Open("worker")
	run.Refused("readme")
	run.Refused("nothing")
	list, err := d.Operator().ListRuns(t.Context(), &operatorv1.ListRunsRequest{})
	must(t, err)
	shown := list.GetRuns()[0]
	equal(t, "reads", shown.GetReads(), 1)
	equal(t, "denials", shown.GetDenials(), 1)
	equal(t, "resources", strings.Join(shown.GetResources(), " "), "readme")
	equal(t, "pid", int(shown.GetPid()), os.Getpid())
	equal(t, "tier", shown.GetTier(), "cooperative")
	equal(t, "attested", shown.GetAttested(), "plain")
	subjects, err := d.Operator().ListSubjects(t.Context(), &operatorv1.ListSubjectsRequest{})
	must(t, err)
	equal(t, "its runs", subjects.GetSubjects()[0].GetRuns(), 1)
	equal(t, "its grants", subjects.GetSubjects()[0].GetGrants(), 1)
	run.Close()
	list, err = d.Operator().ListRuns(t.Context(), &operatorv1.ListRunsRequest{Ended: true})
	must(t, err)
	equal(t, "ended", list.GetRuns()[0].GetEnded() > 0, true)
	_, err = d.Operator().EndRun(t.Context(), &operatorv1.EndRunRequest{RunId: run.ID})
	equal(t, "ending an ended run", daemontest.Reason(err), wire.InvalidArgument)
	_, err = d.Operator().AddSubject(t.Context(), &operatorv1.AddSubjectRequest{Name: "worker"})
	equal(t, "a subject twice", daemontest.Reason(err), wire.InvalidArgument)

	denials, err := d.Operator().ListDenials(t.Context(), &operatorv1.ListDenialsRequest{Subject: "worker"})
	must(t, err)
	equal(t, "groups of denials", len(denials.GetGroups()), 1)
	equal(t, "the capability", denials.GetGroups()[0].GetCapability(), "read:nothing")
	equal(t, "the cause", denials.GetGroups()[0].GetCause(), "UNKNOWN_RESOURCE")
}
