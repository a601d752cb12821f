package daemon

import (
	"context"
	"fmt"
	"os/exec"
	"testing"
	"time"

	"subjectbroker/daemon/peer"
)

// A row is of the process that has its pid now only when everything agrees; it
// certainly is of none when nothing does; between the two nobody knows.
func TestProve(t *testing.T) {
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	held, err := peer.Hold(int32(cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	ns, err := peer.NamespacesOf(held.PID)
	if err != nil {
		t.Fatal(err)
	}
	const boot = "this boot"
	row := someLaunch
	row.uid, row.pid, row.start, row.bootID, row.pidNS, row.userNS = held.UID, held.PID, held.Start, boot, ns.PID, ns.User
	other := peer.Namespace{Dev: ns.PID.Dev, Ino: 1}
	here, err := peer.NamespacesOf(ownPID())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		change func(*launchRow)
		boot   string
		want   string
	}{
		{"the same", func(*launchRow) {}, boot, "open"},
		{"another boot", func(*launchRow) {}, "the next boot", "ended"},
		{"a boot without a name", func(r *launchRow) { r.bootID = "" }, "", "ended"},
		{"another process of that pid", func(r *launchRow) { r.start--; r.pidNS, r.userNS = other, other }, boot, "ended"},
		{"another start time", func(r *launchRow) { r.start-- }, boot, "unproven"},
		{"another uid", func(r *launchRow) { r.uid++ }, boot, "unproven"},
		{"another pid namespace", func(r *launchRow) { r.pidNS = other }, boot, "unproven"},
		{"another user namespace", func(r *launchRow) { r.userNS = other }, boot, "unproven"},
		{"no process", func(r *launchRow) { r.pid = 1 << 22 }, boot, "ended"},
		{"seen from here", func(r *launchRow) { r.seenFrom = here.PID }, boot, "open"},
		{"no process, seen from here", func(r *launchRow) { r.pid, r.seenFrom = 1<<22, here.PID }, boot, "ended"},
		{"seen from elsewhere", func(r *launchRow) { r.seenFrom = other }, boot, "unproven"},
		{"no process here, seen from elsewhere", func(r *launchRow) { r.pid, r.seenFrom = 1<<22, other }, boot, "unproven"},
	} {
		t.Run(c.name, func(t *testing.T) {
			changed := row
			c.change(&changed)
			l := prove(changed, c.boot)
			defer l.release()
			if got := l.state(); got != c.want {
				t.Errorf("it is %s, want %s", got, c.want)
			}
			elsewhere := changed.seenFrom == other
			if l.alive() != (c.want != "ended" && !elsewhere) {
				t.Errorf("a process is held: %v", l.alive())
			}
			ls := newLaunches()
			ls.add(l)
			if in := len(ls.proven()) > 0; in != (c.want == "open") {
				t.Errorf("somebody can be in it: %v", in)
			}
		})
	}
	_ = cmd.Process.Kill()
	_, _ = cmd.Process.Wait()
	if got := prove(row, boot).state(); got != "ended" {
		t.Errorf("after its end it is %s", got)
	}
}

// The process of an unproven launch is held until the launch ends, and that of one
// that is proven until the process does.
func TestFollowLetsGo(t *testing.T) {
	for _, unproven := range []bool{true, false} {
		t.Run(fmt.Sprintf("unproven %v", unproven), func(t *testing.T) {
			cmd := exec.Command("sleep", "1000")
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
			held, err := peer.Hold(int32(cmd.Process.Pid))
			if err != nil {
				t.Fatal(err)
			}
			d := &Daemon{launches: newLaunches()}
			d.life, d.endLife = context.WithCancel(t.Context())
			l := newLaunch(someLaunch, held)
			l.unproven = unproven
			d.launches.add(l)
			d.launches.end(l, time.Unix(1, 0), causeTreeEnded)
			if !unproven {
				d.endLife()
			}
			if gone := d.awaitTree(l); gone != unproven {
				t.Errorf("it is not waited for any more: %v", gone)
			}
			d.launches.close()
			if l.alive() {
				t.Error("the process is held after the close")
			}
			d.endLife()
		})
	}
}

// A peer whose namespaces cannot be read is in a launch when its first process is
// among the ancestors, and in none otherwise.
func TestLaunchByAncestry(t *testing.T) {
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	parent, err := peer.Hold(ownPID())
	if err != nil {
		t.Fatal(err)
	}
	row := someLaunch
	row.pid, row.start = parent.PID, parent.Start
	l := newLaunch(row, parent)
	defer l.release()
	ls := newLaunches()
	ls.add(l)
	child := &peer.Peer{PID: int32(cmd.Process.Pid), Foreign: true}
	if got, ok := ls.of(child); !ok || got != l {
		t.Error("a child of the first process is in no launch")
	}
	if _, ok := ls.of(&peer.Peer{PID: int32(cmd.Process.Pid)}); ok {
		t.Error("a peer of our own pid namespace is in a launch")
	}
	if _, ok := ls.of(&peer.Peer{PID: parent.Parent, Foreign: true}); ok {
		t.Error("a parent of the first process is in its launch")
	}
	elsewhere := &peer.Peer{PID: int32(cmd.Process.Pid), Foreign: true, Namespaces: []peer.Namespace{{Dev: 1, Ino: 1}}}
	if _, ok := ls.of(elsewhere); ok {
		t.Error("a peer of another pid namespace is in the launch")
	}
	elsewhere.Namespaces = append(elsewhere.Namespaces, row.pidNS)
	if _, ok := ls.of(elsewhere); !ok {
		t.Error("a pid namespace within that of the launch is not in it")
	}
}
