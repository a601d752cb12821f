package daemon_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"subjectbroker/daemon/daemontest"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
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

// The same with the real program in between, where there are no user namespaces.
func TestNothingEscapesWithoutNamespaces(t *testing.T) {
	const inside = "TEST_WITHOUT_NAMESPACES"
	if os.Getenv(inside) == "" {
		cmd := exec.Command("unshare", "-Ur", "sh", "-c", `echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"`, "sh",
			self(t), "-test.run=^TestNothingEscapesWithoutNamespaces$", "-test.v")
		cmd.Env = append(os.Environ(), inside+"=1")
		out, err := cmd.CombinedOutput()
		switch {
		case err != nil && !strings.Contains(string(out), "=== RUN"):
			daemontest.LeaveOut(t, "hosts", fmt.Sprintf("user namespaces cannot be switched off: %v %s", err, out))
		case err != nil:
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	dir := realHost(t)
	for what, d := range map[string]*daemontest.Daemon{
		"without": daemontest.StartWith(t, daemontest.Options{HostProgram: filepath.Join(dir, "sb-mcp")}),
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
		if slices.Contains(process(t, d, "real", "worker").GetConfinement(), "confined") {
			t.Fatal("there are namespaces after all")
		}
		got := fly(t, d, stream, "real")
		if reached := strings.Contains(strings.Join(got, " "), "ALLOWED"); reached != (what == "without") {
			t.Errorf("%s: %q", what, got)
		}
	}
}
