package service_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestUnderSystemd runs the service's whole life under a real systemd user
// manager, in a mount and pid namespace of its own. It needs root and systemd.
func TestUnderSystemd(t *testing.T) {
	if os.Getenv("TEST_ALL") != "1" {
		t.Skip("suite left out: service under systemd: runs with TEST_ALL=1")
	}
	if os.Geteuid() != 0 {
		t.Fatal("needs root for a mount namespace")
	}
	for _, program := range []string{"/usr/lib/systemd/systemd", "/usr/bin/systemctl", "/usr/bin/unshare"} {
		if _, err := os.Stat(program); err != nil {
			t.Fatal("needs ", program, " (packages systemd, util-linux)")
		}
	}
	bin := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-o", bin+"/", "subjectbroker/cmd/sbd", "subjectbroker/cmd/sbctl", "subjectbroker/cmd/sb-mcp")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building: %v\n%s", err, out)
	}
	// A short path: sockets go below it.
	home, err := os.MkdirTemp("/var/tmp", "sb")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(home) })
	t.Cleanup(groupsBefore(t))
	out, err := exec.CommandContext(t.Context(), "unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child",
		"bash", "testdata/under-systemd.sh", home, bin).CombinedOutput()
	if err != nil || !strings.HasSuffix(string(out), "== done\n") {
		t.Errorf("%v\n%s", err, out)
	}
}

// groupsBefore notes which control groups there are. What it returns removes
// those that the manager left, which are empty once its namespace is gone.
func groupsBefore(t *testing.T) func() {
	groups := func() map[string]bool {
		found := map[string]bool{}
		for _, pattern := range []string{"/sys/fs/cgroup/*", "/sys/fs/cgroup/*/*", "/sys/fs/cgroup/*/*/*"} {
			names, err := filepath.Glob(pattern)
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range names {
				if info, err := os.Stat(name); err == nil && info.IsDir() {
					found[name] = true
				}
			}
		}
		return found
	}
	before := groups()
	return func() {
		for range 3 { // children first; one level a round
			for name := range groups() {
				if !before[name] {
					_ = os.Remove(name)
				}
			}
		}
	}
}
