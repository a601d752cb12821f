package daemon_test

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"subjectbroker/daemon/daemontest"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

const laptop = `version: 1
owner: laptop
resources:
  declared: {kind: secret, note: "comes later"}
  readme: {file: "${home}/README.md", pin: content}
subjects:
  reviewer: {minTier: bound}
  worker: {}
grants:
  - {subject: worker, capability: "read:readme"}
  - {subject: worker, capability: "read:declared", disclose: true, uses: 3}
  - {subject: worker, capability: "read:docs.*", effect: deny}
`

// A document is applied, exported, and applied to another daemon, and both are
// in the same state.
func TestApplyAndExport(t *testing.T) {
	folder := t.TempDir()
	write(t, filepath.Join(folder, "README.md"), "the readme")
	d := daemontest.Start(t)

	d.Authenticate() // the document raises a minimum tier
	dry := applyTo(t, d, &operatorv1.ApplyRequest{Document: []byte(laptop), HomeDir: folder, DryRun: true})
	equal(t, "changes of a dry run", len(dry.GetChanges()), 7)
	equal(t, "subjects after a dry run", d.Status().GetSubjects(), 0)
	done := applyTo(t, d, &operatorv1.ApplyRequest{Document: []byte(laptop), HomeDir: folder})
	if diff := cmp.Diff(summary(dry), summary(done)); diff != "" {
		t.Errorf("the dry run promised something else: %s", diff)
	}
	if diff := cmp.Diff([]string{"declared"}, done.GetNeedContent()); diff != "" {
		t.Error(diff)
	}
	again := applyTo(t, d, &operatorv1.ApplyRequest{Document: []byte(laptop), HomeDir: folder})
	equal(t, "changes the second time", len(again.GetChanges()), 0)

	run := d.Open("worker")
	content, reason := run.Read("readme")
	equal(t, "the file: "+string(reason), content, "the readme")
	equal(t, "a resource without content", run.Refused("declared"), wire.AccessDenied)
	equal(t, "its cause", last(d, "acquire").Cause, "NO_CONTENT")
	_, err := d.Broker().OpenRun(t.Context(), daemontest.Claim("reviewer"))
	equal(t, "a subject that wants a better tier", daemontest.Reason(err), wire.AccessDenied)
	d.PutKind("declared", "secret", "now it is there")
	equal(t, "with content", run.Refused("declared"), wire.Allowed)

	first := export(t, d, &operatorv1.ExportRequest{HomeDir: folder})
	if strings.Contains(first, folder) || strings.Contains(first, "now it is there") || strings.Contains(first, "sha256") {
		t.Errorf("the export says too much:\n%s", first)
	}
	d.Restart()
	equal(t, "exported after a restart", export(t, d, &operatorv1.ExportRequest{HomeDir: folder}), first)

	other := daemontest.Start(t)
	other.Authenticate()
	applyTo(t, other, &operatorv1.ApplyRequest{Document: []byte(first), HomeDir: folder})
	equal(t, "exported elsewhere", export(t, other, &operatorv1.ExportRequest{HomeDir: folder}), first)
	equal(t, "the declared one there", other.Open("worker").Refused("declared"), wire.AccessDenied)
	pinned := export(t, d, &operatorv1.ExportRequest{HomeDir: folder, WithPins: true})
	applied := applyTo(t, other, &operatorv1.ApplyRequest{Document: []byte(pinned), HomeDir: folder})
	equal(t, "pins of the same file", len(applied.GetChanges()), 0)

	write(t, filepath.Join(folder, "README.md"), "another readme")
	equal(t, "the changed file", other.Open("worker").Refused("readme"), wire.ResourceChanged)
	third := daemontest.Start(t)
	third.Authenticate()
	_, err = third.Operator().Apply(t.Context(), &operatorv1.ApplyRequest{Document: []byte(pinned), HomeDir: folder})
	equal(t, "a pin that the file does not have", daemontest.Reason(err), wire.InvalidArgument)
}

// Pruning removes what carries the document's owner and nothing else; removing
// a thing revokes what hangs on it, and ends what is not entitled any more.
func TestPrune(t *testing.T) {
	d := daemontest.Start(t)
	folder := t.TempDir()
	write(t, filepath.Join(folder, "README.md"), "the readme")
	d.Put("mine", "not of the document")
	d.AddSubject("guest")
	d.Grant("guest", "read:mine")
	d.Authenticate() // the document raises a minimum tier
	applyTo(t, d, &operatorv1.ApplyRequest{Document: []byte(laptop), HomeDir: folder})
	d.Grant("worker", "read:mine")
	run, guest := d.Open("worker"), d.Open("guest")
	watching := run.Follow()

	const less = "version: 1\nowner: laptop\nresources: {readme: {file: '${home}/README.md', pin: content}}\n"
	kept := applyTo(t, d, &operatorv1.ApplyRequest{Document: []byte(less), HomeDir: folder})
	equal(t, "changes without pruning", len(kept.GetChanges()), 0)
	dry := applyTo(t, d, &operatorv1.ApplyRequest{Document: []byte(less), HomeDir: folder, Prune: true, DryRun: true})
	done := applyTo(t, d, &operatorv1.ApplyRequest{Document: []byte(less), HomeDir: folder, Prune: true})
	if diff := cmp.Diff(summary(dry), summary(done)); diff != "" {
		t.Errorf("the dry run promised something else: %s", diff)
	}
	event := watching.Next()
	for event == "list changed" {
		event = watching.Next()
	}
	equal(t, "the pruned subject's run", event, "ended RUN_ENDED")
	equal(t, "another's grant", guest.Refused("mine"), wire.Allowed)
	equal(t, "subjects left", d.Status().GetSubjects(), 1)
	equal(t, "resources left", d.Status().GetResources(), 2)
	equal(t, "grants left", d.Status().GetGrants(), 1)
	d.AddSubject("worker")
	equal(t, "a new subject of the pruned name", d.Open("worker").Refused("readme"), wire.AccessDenied)
	d.Restart()
	equal(t, "grants after a restart", d.Status().GetGrants(), 1)
}

// A document that cannot be applied changes nothing.
func TestApplyRefuses(t *testing.T) {
	d := daemontest.Start(t)
	d.Put("readme", "hello")
	before := d.Status().GetGeneration()
	past := time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)
	for name, tc := range map[string]struct{ document, says string }{
		"empty":                     {"", "empty"},
		"no version":                {"owner: laptop\n", "version"},
		"unknown key":               {"version: 1\nfrobs: {}\n", "line 2"},
		"tenants that are no list":  {"version: 1\ntenants: {acme: {}}\n", "line 2: tenants must be a list"},
		"grant of no tenant":        {"version: 1\nsubjects: {a: {}}\ngrants: [{subject: a, capability: \"memory.read:acme\"}]\n", "no tenant"},
		"duplicate key":             {"version: 1\nsubjects: {a: {}, a: {}}\n", "line 2"},
		"alias":                     {"version: 1\nsubjects: {a: &x {}, b: *x}\n", "line 2"},
		"two documents":             {"version: 1\n---\nversion: 1\n", "line"},
		"wrong type":                {"version: 1\nsubjects: []\n", "line 2"},
		"dangling subject":          {"version: 1\ngrants: [{subject: nobody, capability: 'read:readme'}]\n", "nobody"},
		"dangling resource":         {"version: 1\nsubjects: {a: {}}\ngrants: [{subject: a, capability: 'read:nothing'}]\n", "nothing"},
		"past end":                  {"version: 1\nsubjects: {a: {}}\ngrants: [{subject: a, capability: 'read:readme', until: '" + past + "'}]\n", "past"},
		"kind changed":              {"version: 1\nresources: {readme: {kind: binary}}\n", "readme"},
		"file that is not there":    {"version: 1\nresources: {f: {file: /nonexistent/file}}\n", "/nonexistent"},
		"file in the broker's home": {"version: 1\nresources: {f: {file: " + d.Home + "/secret.key}}\n", "home"},
		"half of it is fine":        {"version: 1\nsubjects: {fine: {}}\nresources: {f: {file: /nonexistent/file}}\n", "/nonexistent"},
		"home without a folder":     {"version: 1\nresources: {f: {file: '${home}/f'}}\n", "${home}"},
		"secret without disclose":   {"version: 1\nsubjects: {a: {}}\nresources: {s: {kind: secret}}\ngrants: [{subject: a, capability: 'read:s'}]\n", "disclose"},
	} {
		for _, dry := range []bool{true, false} {
			_, err := d.Operator().Apply(t.Context(), &operatorv1.ApplyRequest{Document: []byte(tc.document), DryRun: dry})
			refusal := wire.FromError(err)
			if err == nil || wire.Exit(refusal.Reason) != wire.ExitUsage || !strings.Contains(refusal.Message, tc.says) {
				t.Errorf("%s (dry run: %v): %v, want a refusal that says %q", name, dry, err, tc.says)
			}
		}
	}
	equal(t, "the generation", d.Status().GetGeneration(), before)
	equal(t, "subjects", d.Status().GetSubjects(), 0)
}

// What an export leaves out, and what it does not.
func TestExportOfGrants(t *testing.T) {
	d := daemontest.Start(t)
	d.Put("readme", "hello")
	d.PutKind("key", "secret", "hush")
	d.AddSubject("worker")
	d.Grant("worker", "read:readme", daemontest.For(time.Hour))
	d.Grant("worker", "read:key", daemontest.Disclosing)
	d.Grant("worker", "read:*", daemontest.For(48*time.Hour))
	d.Revoke(d.Grant("worker", "read:later-*"))
	plain := export(t, d, &operatorv1.ExportRequest{})
	if strings.Contains(plain, `"read:readme"`) || strings.Contains(plain, "later") || !strings.Contains(plain, "read:*") {
		t.Errorf("a plain export holds grants that end soon, or lacks others:\n%s", plain)
	}
	all := export(t, d, &operatorv1.ExportRequest{All: true})
	if !strings.Contains(all, "read:readme") || !strings.Contains(all, "disclose: true") || strings.Contains(all, "hush") {
		t.Errorf("an export of all lacks some:\n%s", all)
	}
	done := applyTo(t, d, &operatorv1.ApplyRequest{Document: []byte(all)})
	equal(t, "changes when it is applied again", len(done.GetChanges()), 0)
}

func applyTo(t *testing.T, d *daemontest.Daemon, request *operatorv1.ApplyRequest) *operatorv1.ApplyResponse {
	t.Helper()
	done, err := d.Operator().Apply(t.Context(), request)
	must(t, err)
	return done
}

func export(t *testing.T, d *daemontest.Daemon, request *operatorv1.ExportRequest) string {
	t.Helper()
	done, err := d.Operator().Export(t.Context(), request)
	must(t, err)
	return string(done.GetDocument())
}

// summary is one line for each change.
func summary(done *operatorv1.ApplyResponse) []string {
	var lines []string
	for _, c := range done.GetChanges() {
		lines = append(lines, strings.TrimSpace(c.GetVerb()+" "+c.GetWhat()+" "+c.GetName()+" "+c.GetDetail()))
	}
	return lines
}
