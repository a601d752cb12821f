package daemon

import (
	"os"
	"os/exec"
	"slices"
	"syscall"
	"testing"

	"subjectbroker/daemon/peer"
)

// What the daemon starts for itself stays in its session, and is nobody's stray.
func TestIsStray(t *testing.T) {
	self, session := int32(os.Getpid()), ownSession()
	child := func(session int32) peer.Process { return peer.Process{PID: 70001, Parent: self, Session: session} }
	above := peer.Process{PID: self, Parent: 1, Session: session}
	below := peer.Process{PID: 70002, Parent: 70001, Session: 70002}
	for _, c := range []struct {
		what string
		line []peer.Process
		want bool
	}{
		{"nobody", nil, false},
		{"the daemon", []peer.Process{above}, false},
		{"a helper", []peer.Process{child(session), above}, false},
		{"below a helper", []peer.Process{below, child(session), above}, false},
		{"a child of another session", []peer.Process{child(70001), above}, true},
		{"a child of a session that is gone", []peer.Process{child(69999), above}, true},
		{"below one", []peer.Process{below, child(70001), above}, true},
		{"below one, with no more to be seen", []peer.Process{below, child(70001)}, true},
		{"a stranger", []peer.Process{below, {PID: 70001, Parent: 1, Session: 70001}}, false},
	} {
		if got := isStray(c.line); got != c.want {
			t.Errorf("%s: %v", c.what, got)
		}
	}
}

// Neither helpers nor hosts are taken for strays; everything else is waited for.
func TestStraysAreTold(t *testing.T) {
	s := &strays{}
	start := func(own bool) *exec.Cmd {
		cmd := exec.Command("/bin/sleep", "1000")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: !own, Setpgid: own}
		return cmd
	}
	helper, host, stray := start(true), start(false), start(false)
	for _, err := range []error{helper.Start(), s.start(host), stray.Start()} {
		if err != nil {
			t.Fatal(err)
		}
	}
	defer func() {
		_, _ = helper.Process.Kill(), helper.Wait()
		_ = host.Process.Kill()
		s.wait(host)
		if found := s.find(); slices.Contains(found, host.Process.Pid) {
			t.Error("a host that was waited for is found")
		}
		_, _ = stray.Process.Kill(), stray.Wait()
	}()
	found := s.find()
	if slices.Contains(found, helper.Process.Pid) || slices.Contains(found, host.Process.Pid) || !slices.Contains(found, stray.Process.Pid) {
		t.Errorf("found %v of helper %d, host %d, stray %d", found, helper.Process.Pid, host.Process.Pid, stray.Process.Pid)
	}
}
