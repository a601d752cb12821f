package daemon

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"subjectbroker/daemon/peer"
)

// strayPatience is how long the end of a host waits for the end of what it leaves
// behind, and after which it is tried again: something may fork faster than it is
// killed. Until then it goes on without any right.
const strayPatience = 2 * time.Second

// strays are processes that lost their parent below the daemon and so became its
// children. A server that runs without namespaces has the daemon's uid, or at least
// its host's: it can leave the session, and kill the host. What it has left behind
// then would be nobody's, and look like a person's program.
//
// They are told from the daemon's own children by the session: the helpers of key
// sources and of heads live in the daemon's, into which nobody gets who has left it,
// and hosts are counted.
type strays struct {
	adopt bool // the daemon may adopt them: see Config.Adopt

	began atomic.Bool // it does
	mu    sync.Mutex  // no host begins or is waited for, and no stray is, meanwhile
	hosts map[int]bool
}

// adopts reports whether there may be strays.
func (s *strays) adopts() bool { return s.began.Load() }

// begin makes the daemon the one that adopts what loses its parent below it. It is
// called before the first host starts.
func (s *strays) begin() error {
	if !s.adopt || s.began.Load() {
		return nil
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("becoming the reaper of what servers leave behind: %w", err)
	}
	s.began.Store(true)
	return nil
}

// start starts a host.
func (s *strays) start(cmd *exec.Cmd) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := cmd.Start(); err != nil {
		return err
	}
	if s.hosts == nil {
		s.hosts = map[int]bool{}
	}
	s.hosts[cmd.Process.Pid] = true
	return nil
}

// wait waits for a host that has ended.
func (s *strays) wait(cmd *exec.Cmd) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = cmd.Wait()
	delete(s.hosts, cmd.Process.Pid)
}

// end ends the strays, and waits for them; what they leave behind are strays again.
// The first process of a pid namespace has adopted others' processes as well: there
// it waits only for those that have ended.
func (s *strays) end() {
	if !s.adopts() {
		return
	}
	late := time.Now().Add(strayPatience)
	for pause := time.Millisecond; s.sweep(); pause = min(2*pause, 50*time.Millisecond) {
		if time.Now().After(late) {
			time.AfterFunc(strayPatience, s.end)
			return
		}
		time.Sleep(pause)
	}
}

// sweep kills every stray once, and reports whether any may be left.
func (s *strays) sweep() (left bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	first := os.Getpid() == 1
	for _, pid := range s.find() {
		if !first {
			_ = unix.Kill(pid, unix.SIGKILL) // it is ours until it is waited for, here
		}
		gone, err := unix.Wait4(pid, nil, unix.WNOHANG, nil)
		for errors.Is(err, unix.EINTR) {
			gone, err = unix.Wait4(pid, nil, unix.WNOHANG, nil)
		}
		left = left || gone == pid || !first
	}
	return left
}

// find returns the strays. The caller holds mu.
func (s *strays) find() (pids []int) {
	proc, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	names, _ := proc.Readdirnames(-1)
	proc.Close()
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || s.hosts[pid] {
			continue
		}
		if parent, session, err := peer.Kin(int32(pid)); err == nil && parent == int32(os.Getpid()) && session != ownSession() {
			pids = append(pids, pid)
		}
	}
	return pids
}

// isStray reports whether a process, given with its ancestors, is a stray or
// descends from one, or lives under a host.
func isStray(line []peer.Process) bool {
	for _, p := range line {
		if p.Parent == int32(os.Getpid()) && p.Session != ownSession() {
			return true
		}
	}
	return false
}

// ownSession is the daemon's; 0 where it began outside of our pid namespace.
func ownSession() int32 {
	id, _ := unix.Getsid(0)
	return int32(id)
}
