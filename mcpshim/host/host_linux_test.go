package host

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	hostv1 "subjectbroker/proto/subjectbroker/host/v1"
	"subjectbroker/worker/workertest"
)

// program is a copy of this test binary that every uid can run.
func program(t *testing.T) string {
	t.Helper()
	content, err := os.ReadFile(self(t))
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "sbhost")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "host.test")
	if err := errors.Join(os.Chmod(dir, 0o755), workertest.WriteProgram(path, content)); err != nil {
		t.Fatal(err)
	}
	return path
}

// process is a host as sbd starts it.
type hostProcess struct {
	*daemon
	cmd    *exec.Cmd
	marker string // in the command line of everything that the server starts
}

func startHost(t *testing.T, path string, uid int, confine bool) *hostProcess {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "ours"), os.NewFile(uintptr(fds[1]), "theirs")
	conn, err := net.FileConn(ours)
	ours.Close()
	if err != nil {
		t.Fatal(err)
	}
	p := &hostProcess{cmd: exec.Command(path, "host"), marker: "marker-" + rand.Text()}
	var talk bytes.Buffer
	p.cmd.Env, p.cmd.Dir, p.cmd.ExtraFiles, p.cmd.Stderr = []string{}, "/", []*os.File{theirs}, &talk
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if uid != os.Geteuid() {
		p.cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}
	}
	err = p.cmd.Start()
	theirs.Close()
	if err != nil {
		t.Fatal(err)
	}
	p.daemon = attach(t, conn)
	go func() {
		_ = p.cmd.Wait()
		p.code <- p.cmd.ProcessState.ExitCode()
	}()
	t.Cleanup(func() {
		conn.Close()
		for range p.said {
		}
		<-p.code
		for _, pid := range p.alive() { // where the kernel did not
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		sweep(os.TempDir(), uid, time.Now().Add(2*staleAfter)) // what a killed one left; those of living hosts are held
		if t.Failed() {
			t.Logf("the host said: %s", talk.String())
		}
	})
	start := stubStart(t)
	start.Command = []string{path, "stub", "", p.marker}
	start.Confine = confine
	if !confine {
		start.Home = ""
		return p.begin(start)
	}
	err = filepath.WalkDir(start.GetHome(), func(path string, _ os.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(path, uid, uid))
	})
	if err != nil {
		t.Fatal(err)
	}
	return p.begin(start)
}

func (p *hostProcess) begin(start *hostv1.Start) *hostProcess {
	p.t.Helper()
	p.send(&hostv1.HostRequest{Message: &hostv1.HostRequest_Start{Start: start}})
	first := p.next()
	if e := first.GetEnded(); e != nil && strings.Contains(e.GetDetail(), "does not provide") {
		p.t.Skipf("NOT TESTED: %s", e.GetDetail())
	}
	started := first.GetStarted()
	if started == nil {
		p.t.Fatalf("not started: %v", first)
	}
	if got := started.GetConfinement(); !slices.Contains(got, "undumpable") || slices.Contains(got, "confined") != start.GetConfine() {
		p.t.Errorf("confinement: %q", got)
	}
	p.listed()
	return p
}

// alive lists what the server has started and is still there.
func (p *hostProcess) alive() []int {
	paths, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		p.t.Fatal(err)
	}
	var pids []int
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(content, []byte(p.marker)) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// gone waits until nothing of the server is there, or no more than rest.
func (p *hostProcess) gone(rest int) {
	p.t.Helper()
	for end := time.Now().Add(patience); len(p.alive()) > rest; time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			p.t.Fatalf("%d processes are left", len(p.alive()))
		}
	}
}

// However a host ends, nothing of its server is left: not what went into sessions
// of its own and ignores signals either. Where there are no namespaces, a host
// that is killed takes the server with it and no more; that this is so is the
// control of the rest.
func TestNothingOutlivesTheHost(t *testing.T) {
	path := program(t)
	uids := []int{os.Geteuid()}
	if uids[0] == 0 {
		uids = append(uids, 1001)
	}
	for _, uid := range uids {
		for _, confine := range []bool{true, false} {
			for name, end := range map[string]func(*hostProcess){
				"killed":      func(p *hostProcess) { _ = p.cmd.Process.Kill() },
				"terminated":  func(p *hostProcess) { _ = p.cmd.Process.Signal(syscall.SIGTERM) },
				"hung up":     func(p *hostProcess) { p.conn.Close() },
				"stopped":     func(p *hostProcess) { p.stop(0) },
				"server died": func(p *hostProcess) { p.call(&hostv1.Call{Id: 9, Tool: "die"}) },
			} {
				if uid != uids[0] && (name == "terminated" || name == "server died") {
					continue // the same as for the first
				}
				t.Run(fmt.Sprintf("uid %d, confined %v, %s", uid, confine, name), func(t *testing.T) {
					t.Parallel()
					p := startHost(t, path, uid, confine)
					if got, end := p.ask("fork", `{"dir":"`+p.marker+`"}`); end != hostv1.End_END_OK {
						t.Fatalf("%v %s", end, got)
					}
					before := len(p.alive())
					if before < 4 {
						t.Fatalf("%d processes are there, want the server and three others", before)
					}
					end(p)
					if name == "killed" && !confine {
						p.gone(before - 1)
						if len(p.alive()) == 0 {
							t.Error("the control does not work: nothing outlives a plain host that is killed")
						}
						return
					}
					p.gone(0)
				})
			}
		}
	}
}

// What a killed host left behind is removed by the next, what a living one holds
// is not.
func TestSweep(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	held, err := newFolder()
	if err != nil {
		t.Fatal(err)
	}
	defer held.remove()
	left := filepath.Join(dir, folderPrefix+"left")
	other := filepath.Join(dir, "other")
	for _, path := range []string{filepath.Join(left, "deep"), other} {
		if err := os.MkdirAll(path, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	now := time.Now()
	uid := os.Geteuid()
	sweep(dir, uid, now)
	if _, err := os.Stat(left); err != nil {
		t.Errorf("a young folder is gone: %v", err)
	}
	sweep(dir, uid+1, now.Add(2*staleAfter))
	if _, err := os.Stat(left); err != nil {
		t.Errorf("another account's folder is gone: %v", err)
	}
	sweep(dir, uid, now.Add(2*staleAfter))
	if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a stale folder is left: %v", err)
	}
	for _, path := range []string{held.path, other} {
		if _, err := os.Stat(path); err != nil {
			t.Errorf("%s is gone: %v", path, err)
		}
	}
}

// Nobody but the daemon starts it.
func TestMainAlone(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, self(t), "host")
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() != 2 || string(out) != "this is started by sbd only\n" {
		t.Errorf("%v: %s", err, out)
	}
}

// What a server may have at once is bounded, confined or not, as far as the kernel
// counts it: open files, cores, and where it is confined processes.
func TestBounds(t *testing.T) {
	path := program(t)
	uids := []int{os.Geteuid()}
	if uids[0] == 0 {
		uids = append(uids, 1001)
	}
	for _, uid := range uids {
		for _, confine := range []bool{true, false} {
			t.Run(fmt.Sprintf("uid %d, confined %v", uid, confine), func(t *testing.T) {
				p := startHost(t, path, uid, confine)
				got, end := p.ask("limits", `{}`)
				if end != hostv1.End_END_OK {
					t.Fatalf("%v %s", end, got)
				}
				var r struct{ Content []struct{ Text string } }
				if err := json.Unmarshal([]byte(got), &r); err != nil {
					t.Fatal(err)
				}
				words := strings.Fields(r.Content[0].Text) // files soft, files hard, core hard, processes soft, largest number
				if words[0] != strconv.Itoa(defaultFiles) || words[1] != strconv.Itoa(maxFiles) || words[2] != "0" {
					t.Errorf("files and core: %q", words)
				}
				if confine && words[3] != strconv.Itoa(maxTasks) {
					t.Errorf("processes: %q", words)
				}
			})
		}
	}
}
