package daemon_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"subjectbroker/daemon/daemontest"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// predecessor is a policy file of SubjectBroker about files below root.
func predecessor(root string) string {
	return `{"version": 1, "storageRoot": "` + root + `", "subjects": ["coder", "reviewer"],
 "resources": {"plan": {"path": "` + root + `/plan.md"}, "notes": {"path": "` + root + `/notes.md"}},
 "rules": [{"subject": "coder", "resource": "plan", "action": "read", "decision": "allow"},
  {"subject": "reviewer", "resource": "plan", "action": "read", "decision": "deny"}]}`
}

// folders makes a storage root with two files, and a folder to work in.
func folders(t *testing.T) (root, working string) {
	t.Helper()
	top, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	root, working = filepath.Join(top, "root"), filepath.Join(top, "working")
	must(t, os.Mkdir(root, 0o700))
	must(t, os.Mkdir(working, 0o755))
	write(t, filepath.Join(root, "plan.md"), "the plan")
	write(t, filepath.Join(root, "notes.md"), "the notes")
	return root, working
}

// A policy file of SubjectBroker becomes files, subjects and grants; twice is
// once, and it can be dry.
func TestImportSubjectBroker(t *testing.T) {
	root, working := folders(t)
	d := daemontest.Start(t)
	request := &operatorv1.ApplyRequest{Document: []byte(predecessor(root)), Format: "subject-broker", WorkingDir: working, DryRun: true}
	want := []string{
		"add resource notes", "add resource plan", "add subject coder", "add subject reviewer",
		"add grant coder allow read:plan", "add grant reviewer deny read:plan",
	}
	if diff := cmp.Diff(want, summary(applyTo(t, d, request))); diff != "" {
		t.Errorf("dry: %s", diff)
	}
	equal(t, "resources after a dry run", d.Status().GetResources(), 0)
	request.DryRun = false
	if diff := cmp.Diff(want, summary(applyTo(t, d, request))); diff != "" {
		t.Error(diff)
	}
	equal(t, "changes the second time", len(applyTo(t, d, request).GetChanges()), 0)
	coder := d.Open("coder")
	content, _ := coder.Read("plan")
	equal(t, "what is allowed", content, "the plan")
	equal(t, "what no rule is about", coder.Refused("notes"), wire.AccessDenied)
	equal(t, "what is denied", d.Open("reviewer").Refused("plan"), wire.AccessDenied)
	equal(t, "the cause", last(d, "acquire").Cause, "EXPLICIT_DENY")
	write(t, filepath.Join(root, "plan.md"), "another plan")
	equal(t, "a changed file", coder.Refused("plan"), wire.ResourceChanged)
}

// A storage root that somebody else could get at, or an agent is started in, is
// refused, and nothing is applied of it.
func TestImportedStorageRoots(t *testing.T) {
	for name, tc := range map[string]struct {
		arrange func(t *testing.T, root, working string) (document, dir string)
		want    string
	}{
		"mode": {func(t *testing.T, root, working string) (string, string) {
			must(t, os.Chmod(root, 0o750))
			return predecessor(root), working
		}, "has mode 0750, want 0700"},
		"the working directory":  {func(_ *testing.T, root, _ string) (string, string) { return predecessor(root), root }, "where the command was given"},
		"below the working one":  {func(_ *testing.T, root, _ string) (string, string) { return predecessor(root), filepath.Dir(root) }, "where the command was given"},
		"around the working one": {inside, "inside of storageRoot"},
		"a link to the root":     {func(t *testing.T, root, working string) (string, string) { return predecessor(link(t, root)), working }, "symbolic link"},
		"a link above the root": {func(t *testing.T, root, working string) (string, string) {
			return predecessor(link(t, filepath.Dir(root)) + "/root"), working
		}, "symbolic link"},
		"a link to the working": {func(t *testing.T, root, _ string) (string, string) {
			return predecessor(root), link(t, filepath.Dir(root))
		}, "where the command was given"},
		"absent": {func(_ *testing.T, root, working string) (string, string) { return predecessor(root + "x"), working }, "no such file"},
		"a file": {func(_ *testing.T, root, working string) (string, string) {
			return predecessor(root + "/plan.md"), working
		}, "is not a folder"},
		"no working directory":    {func(_ *testing.T, root, _ string) (string, string) { return predecessor(root), "" }, "absolute path"},
		"a working one not there": {func(_ *testing.T, root, working string) (string, string) { return predecessor(root), working + "x" }, "no such file"},
		"a link for a file":       {linkedFile, "plan"},
		"relative":                {func(_ *testing.T, _, working string) (string, string) { return predecessor("root"), working }, "storageRoot"},
		"not of the format at all": {func(_ *testing.T, _, working string) (string, string) {
			return "version: 1\nsubjects: {coder: {}}\n", working
		}, "line"},
	} {
		t.Run(name, func(t *testing.T) {
			root, working := folders(t)
			d := daemontest.Start(t)
			document, dir := tc.arrange(t, root, working)
			for _, dry := range []bool{true, false} {
				_, err := d.Operator().Apply(t.Context(), &operatorv1.ApplyRequest{
					Document: []byte(document), Format: "subject-broker", WorkingDir: dir, DryRun: dry,
				})
				if got := wire.FromError(err); got == nil || got.Reason != wire.InvalidArgument || !strings.Contains(got.Message, tc.want) {
					t.Errorf("dry %v: %v, want %q", dry, err, tc.want)
				}
			}
			equal(t, "subjects", d.Status().GetSubjects(), 0)
			equal(t, "resources", d.Status().GetResources(), 0)
		})
	}
	_, err := daemontest.Start(t).Operator().Apply(t.Context(), &operatorv1.ApplyRequest{Document: []byte("version: 1\n"), Format: "other"})
	equal(t, "another format", daemontest.Reason(err), wire.InvalidArgument)
}

func link(t *testing.T, to string) string {
	t.Helper()
	from := filepath.Join(filepath.Dir(filepath.Dir(to)), "link-"+filepath.Base(to))
	must(t, os.Symlink(to, from))
	t.Cleanup(func() { _ = os.Remove(from) })
	return from
}

func inside(t *testing.T, root, _ string) (document, dir string) {
	t.Helper()
	below := filepath.Join(root, "below")
	must(t, os.Mkdir(below, 0o700))
	return predecessor(root), below
}

func linkedFile(t *testing.T, root, working string) (document, dir string) {
	t.Helper()
	must(t, os.Rename(filepath.Join(root, "plan.md"), filepath.Join(root, "real.md")))
	must(t, os.Symlink("real.md", filepath.Join(root, "plan.md")))
	return predecessor(root), working
}
