package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/worker/launch"
	machine "subjectbroker/worker/probe"
)

func TestOperatorIsJudged(t *testing.T) {
	bound := []string{"bound demanded by worker"}
	for _, test := range []struct {
		name    string
		state   *operatorv1.GetOperatorResponse
		demands []string
		status  string
		want    []string
	}{
		{"nothing set", &operatorv1.GetOperatorResponse{Guard: true}, nil, probeWarn, []string{"no passphrase is set", "can do what sbctl can"}},
		{"a passphrase", &operatorv1.GetOperatorResponse{Passphrase: true, Guard: true}, nil, probeOK, []string{"a passphrase is set", "nothing else asks"}},
		{"a passphrase that is needed", &operatorv1.GetOperatorResponse{Passphrase: true, Guard: true}, bound, probeOK, []string{"as bound demanded by worker, so do disclosing and granting verbs"}},
		{"another uid", &operatorv1.GetOperatorResponse{Operators: []uint32{1001}, Guard: true}, bound, probeOK, []string{"the uid 1001 is an operator by itself"}},
		{"none where one is needed", &operatorv1.GetOperatorResponse{Guard: true}, bound, probeFail, []string{"nothing that discloses or grants can be done"}},
	} {
		probes := judgeOperator(test.state, "unlocked", test.demands)
		if probes[0].Status != test.status {
			t.Errorf("%s: %+v", test.name, probes[0])
		}
		for _, words := range test.want {
			if !strings.Contains(probes[0].Summary, words) {
				t.Errorf("%s: %q does not say %q", test.name, probes[0].Summary, words)
			}
		}
		if !strings.Contains(probes[1].Summary, "no boundary") {
			t.Errorf("%s: %q does not say that the guard is no boundary", test.name, probes[1].Summary)
		}
	}
	if locked := judgeOperator(&operatorv1.GetOperatorResponse{Guard: true}, "locked", nil)[0]; locked.Status != probeOK || !strings.Contains(locked.Summary, "not known: the vault is locked") {
		t.Errorf("%+v", locked)
	}
	probes := judgeOperator(&operatorv1.GetOperatorResponse{WaitMs: 4000}, "unlocked", nil)
	if probes[1].Status != probeWarn || len(probes) != 3 || !strings.Contains(probes[2].Summary, "wrong passphrases") {
		t.Errorf("%+v", probes)
	}
}

// A tier that does not hold is refused, which is a failure only where somebody
// demands it.
func TestTiersAreJudged(t *testing.T) {
	missing := &launch.Unsupported{Piece: "user namespaces", Hint: "ask for them", Err: errors.New("operation not permitted")}
	tiers := func() []probe {
		return []probe{judgeTier(tierBound, fmt.Errorf("trying: %w", missing), "holds"), judgeTier(tierSandboxed, nil, "holds")}
	}
	got := tiers()
	want := []probe{
		{"tier bound", probeWarn, "does not hold, and is refused: this machine does not provide user namespaces: operation not permitted; ask for them", ""},
		{"tier sandboxed", probeOK, "holds", ""},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	demanded(got, &operatorv1.StatusResponse{Probes: []*operatorv1.Probe{
		{Name: "demands-bound", Summary: "demanded by worker"}, {Name: "demands-sandboxed", Summary: "demanded by other"}, {Name: "bound"},
	}})
	if got[0].Status != probeFail || !strings.HasSuffix(got[0].Summary, "; demanded by worker") || got[1].Status != probeOK {
		t.Errorf("%+v", got)
	}
	// With a daemon of another uid a sandbox cannot be had, and so not be demanded.
	got = judgeForeign(1502)
	demanded(got, &operatorv1.StatusResponse{Probes: []*operatorv1.Probe{{Name: "demands-bound", Summary: "x"}, {Name: "demands-sandboxed", Summary: "y"}}})
	if got[0].Status != probeOK || got[1].Status != probeFail {
		t.Errorf("%+v", got)
	}
	if p := judgeTier(tierBound, errors.New("no memory"), "holds"); p.Status != probeWarn || !strings.Contains(p.Summary, "could not be tried") {
		t.Errorf("%+v", p)
	}
}

func TestFactsAreJudged(t *testing.T) {
	settings := func(name string) string {
		return map[string]string{"kernel.yama.ptrace_scope": "0", "user.max_user_namespaces": "0"}[name]
	}
	for _, test := range []struct {
		fact machine.Probe
		want probe
	}{
		{machine.Probe{ID: "landlock", Status: machine.Held, Words: "ABI 7"}, probe{"landlock", probeOK, "ABI 7", ""}},
		{machine.Probe{ID: "landlock", Status: machine.NotHeld, Words: "none"}, probe{"landlock", probeWarn, "none", ""}},
		{machine.Probe{ID: "landlock", Status: machine.Unknown, Tried: "asking", Words: "no answer"}, probe{"landlock", probeWarn, "could not be tried: asking: no answer", ""}},
		{machine.Probe{ID: "network", Status: machine.NotHeld, Words: "shared"}, probe{"network", probeOK, "shared", ""}},
		{machine.Probe{ID: "ptrace", Status: machine.NotHeld, Words: "scope 0"}, probe{"ptrace", probeWarn, "scope 0", "sysctl -w kernel.yama.ptrace_scope=1"}},
		{machine.Probe{ID: "userns", Status: machine.NotHeld, Words: "none"}, probe{"userns", probeWarn, "none", "sysctl -w user.max_user_namespaces=15000"}},
		{machine.Probe{ID: "userns.apparmor", Status: machine.NotHeld, Words: "x"}, probe{"userns.apparmor", probeWarn, "x", installProfile}},
		{machine.Probe{ID: "swap", Status: machine.NotHeld, Words: "not encrypted: /swapfile"}, probe{"swap", probeWarn, "not encrypted: /swapfile", ""}},
	} {
		if diff := cmp.Diff(test.want, judgeFact(test.fact, settings)); diff != "" {
			t.Error(diff)
		}
	}
}

// That AppArmor keeps others from user namespaces is no fault where launches work.
func TestProfileExcusesTheRestriction(t *testing.T) {
	facts := func() []probe {
		restricted := func(string) string { return "1" }
		return []probe{
			judgeFact(machine.Probe{ID: "userns.apparmor", Status: machine.NotHeld, Words: "restricted"}, restricted),
			judgeFact(machine.Probe{ID: "landlock", Status: machine.NotHeld, Words: "none"}, restricted),
		}
	}
	for _, test := range []struct {
		bound string
		want  probe
	}{
		{probeOK, probe{"userns.apparmor", probeOK, "restricted; tier bound holds all the same", ""}},
		{probeWarn, probe{"userns.apparmor", probeWarn, "restricted", installProfile}},
	} {
		got := excused(facts(), []probe{{Name: "tier cooperative", Status: probeOK}, {Name: "tier bound", Status: test.bound}})
		if diff := cmp.Diff([]probe{test.want, {"landlock", probeWarn, "none", ""}}, got); diff != "" {
			t.Errorf("bound %s: %s", test.bound, diff)
		}
	}
}

func TestParentsOfShims(t *testing.T) {
	parent := func(pid int32) (int, string) {
		return map[int32]int{1: 100, 2: 100, 3: 200, 4: 1, 5: 1, 6: 300, 7: 300}[pid], "agent"
	}
	runs := []*operatorv1.Run{
		{Pid: 1, Subject: "a"}, {Pid: 2, Subject: "b"}, // one agent, two subjects
		{Pid: 3, Subject: "a"}, {Pid: 4, Subject: "a"}, {Pid: 5, Subject: "b"}, // orphans have no context in common
		{Pid: 6, Subject: "a"}, {Pid: 7, Subject: "a"},
	}
	got := probeParents(runs, parent)
	if len(got) != 1 || !strings.Contains(got[0].Summary, "process 100 (agent) started shims of a and b: its effective authority is the union of a and b") {
		t.Errorf("%+v", got)
	}
	if pid, name := parentOf(int32(os.Getpid())); name == "" && pid != 0 || pid != 0 && pid != os.Getppid() {
		t.Errorf("this process was started by %d (%s), not %d", pid, name, os.Getppid())
	}
}

func TestSocketsAreJudged(t *testing.T) {
	home, err := os.MkdirTemp("", "sb") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(home)
	path := filepath.Join(home, "operator", "operator.sock")
	if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, found := judgeSocket("s", path, true); found {
		t.Error("a socket that is not there was judged")
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	for _, test := range []struct {
		dir, socket os.FileMode
		inHome      bool
		want        string
	}{
		{0o700, 0o600, true, probeOK},
		{0o750, 0o660, false, probeOK},
		{0o750, 0o660, true, probeFail},
		{0o755, 0o600, false, probeFail},
		{0o700, 0o666, false, probeFail},
	} {
		if err := errors.Join(os.Chmod(filepath.Dir(path), test.dir), os.Chmod(path, test.socket)); err != nil {
			t.Fatal(err)
		}
		p, found := judgeSocket("s", path, test.inHome)
		if !found || p.Status != test.want {
			t.Errorf("%o %o in the home %v: %+v", test.dir, test.socket, test.inHome, p)
		}
	}
}
