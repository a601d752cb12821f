package daemon_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"subjectbroker/daemon/daemontest"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/worker/workertest"
)

// flight is how a process leaves what runs it: two sessions away, with the one in
// between and the host dead.
type flight struct {
	Places string // as knocked takes them
	File   string // takes its pid, and then a line for each time that it was answered
	Host   int32
}

// startEscape begins a flight.
func startEscape(raw string) string {
	var f flight
	if err := json.Unmarshal([]byte(raw), &f); err != nil {
		return err.Error()
	}
	return fmt.Sprint(f.begin("escape"))
}

func (f flight) begin(role string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	raw, err := json.Marshal(f)
	if err != nil {
		return err
	}
	cmd := exec.Command(self, role, string(raw))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd.Start()
}

func escape(raw string) int {
	var f flight
	if err := json.Unmarshal([]byte(raw), &f); err != nil || f.begin("escaped") != nil {
		return 1
	}
	return 0
}

func escaped(raw string) int {
	var f flight
	if err := json.Unmarshal([]byte(raw), &f); err != nil {
		return 1
	}
	file, err := os.OpenFile(f.File, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return 1
	}
	fmt.Fprintln(file, os.Getpid())
	parent := os.Getppid()
	_ = syscall.Kill(int(f.Host), syscall.SIGKILL)
	for range 100 {
		if os.Getppid() != parent {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	for range 50 {
		fmt.Fprintln(file, knocked(f.Places))
		time.Sleep(20 * time.Millisecond)
	}
	return 0
}

// fly calls escape of a server, and returns what the process that left it was
// answered before it ended.
func fly(t *testing.T, d *daemontest.Daemon, stream *hostedStream, server string) []string {
	t.Helper()
	places, err := json.Marshal(d.Places)
	must(t, err)
	f := flight{string(places), filepath.Join(t.TempDir(), "answers"), process(t, d, server, "worker").GetPid()}
	raw, err := json.Marshal(f)
	must(t, err)
	args, err := json.Marshal(map[string]string{"flight": string(raw)})
	must(t, err)
	answered := make(chan ended, 1)
	go func() { answered <- stream.call("escape", string(args)) }() // or the host died before it could
	lines := func() []string {
		raw, _ := os.ReadFile(f.File)
		return strings.Split(strings.TrimSuffix(string(raw), "\n"), "\n")
	}
	eventually(t, "it has left", func() bool { _, err := strconv.Atoi(lines()[0]); return err == nil })
	pid, err := strconv.Atoi(lines()[0])
	must(t, err)
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) })
	eventually(t, "it ends, and is waited for", func() bool { return syscall.Kill(pid, 0) != nil })
	<-answered
	return lines()[1:]
}

// What leaves the session of a host and outlives it has no right either, and ends
// with it. Without a daemon that adopts it it is a person's program like any other.
func TestNothingEscapesItsHost(t *testing.T) {
	server := func(d *daemontest.Daemon) *hostedStream {
		d.AddSubject("worker")
		addServer(t, d, "hub", &operatorv1.Server{Command: []string{"tools=escape,echo"}}, "worker")
		trust(t, d, "hub")
		stream := hostedRelay(t, d.Open("worker"), "hub")
		equal(t, "a call", stream.call("echo", `{}`).String(), "OK {}")
		return stream
	}
	inside := hosting(t)
	stream := server(inside)
	if got := fly(t, inside, stream, "hub"); !slices.Contains(got, "operator ALLOWED, broker ALLOWED") {
		t.Errorf("without: %q", got)
	}

	dir, err := os.MkdirTemp("", "sbd")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	must(t, os.Symlink(self(t), filepath.Join(dir, "sb-mcp")))
	must(t, os.Link(daemontest.Program(t), filepath.Join(dir, "sbd")))
	d := daemontest.Launch(t, daemontest.Options{Wrap: []string{"sh", "-c", `shift; exec "$0"/sbd "$@"`, dir}})
	stream = server(d)
	for range 2 {
		if got := fly(t, d, stream, "hub"); strings.Contains(strings.Join(got, " "), "ALLOWED") || len(got) >= 50 {
			t.Errorf("it went on: %q", got)
		}
		_, err := d.Operator().RestartServer(t.Context(), &operatorv1.RestartServerRequest{Name: "hub"})
		must(t, err)
		equal(t, "a call afterwards", stream.call("echo", `{}`).String(), "OK {}")
	}
}

// withoutNamespaces becomes a command that, with all that it starts, has no user
// namespaces.
func withoutNamespaces(argv []string) error {
	const (
		load, number, flags = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, 0, 16
		equal, set, end     = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, unix.BPF_RET | unix.BPF_K
	)
	filter := []unix.SockFilter{
		{Code: load, K: number},
		{Code: equal, K: unix.SYS_CLONE3, Jt: 4}, // whose flags cannot be seen
		{Code: equal, K: unix.SYS_CLONE, Jt: 1},
		{Code: equal, K: unix.SYS_UNSHARE, Jf: 4},
		{Code: load, K: flags},
		{Code: set, K: unix.CLONE_NEWUSER, Jt: 1, Jf: 2},
		{Code: end, K: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)},
		{Code: end, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
		{Code: end, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	runtime.LockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_PRCTL, unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program))); errno != 0 {
		return errno
	}
	return unix.Exec(argv[0], argv[1:], os.Environ())
}

// The same with the real program in between, where there are no user namespaces.
func TestNothingEscapesWithoutNamespaces(t *testing.T) {
	dir := realHost(t)
	program := filepath.Join(dir, "sb-mcp")
	must(t, os.Rename(program, filepath.Join(dir, "real")))
	script := fmt.Sprintf("#!/bin/sh\nexec %s without-namespaces %s/real sb-mcp host\n", self(t), dir)
	must(t, workertest.WriteProgram(program, []byte(script)))
	for what, d := range map[string]*daemontest.Daemon{
		"without": daemontest.StartWith(t, daemontest.Options{HostProgram: program}),
		"adopted": daemontest.Launch(t, daemontest.Options{Wrap: []string{"sh", "-c", `shift; exec "$0"/sbd "$@"`, dir}}),
	} {
		d.AddSubject("worker")
		_, err := d.Operator().AddServer(t.Context(), &operatorv1.AddServerRequest{
			Server: &operatorv1.Server{Name: "real", Command: []string{self(t), "mcp-server", "-"}}, Subjects: []string{"worker"},
		})
		must(t, err)
		trust(t, d, "real")
		stream := hostedRelay(t, d.Open("worker"), "real")
		equal(t, "a call", stream.call("env", `{}`).end.String(), "RELAY_END_OK")
		if held := process(t, d, "real", "worker").GetConfinement(); slices.Contains(held, "confined") {
			t.Fatalf("there are namespaces after all: %v", held)
		}
		got := fly(t, d, stream, "real")
		if reached := strings.Contains(strings.Join(got, " "), "ALLOWED"); reached != (what == "without") {
			t.Errorf("%s: %q", what, got)
		}
	}
}
