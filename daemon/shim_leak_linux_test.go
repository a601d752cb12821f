package daemon_test

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"fmt"
	"io"
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

	"subjectbroker/daemon/daemontest"
	"subjectbroker/daemon/peer"
	"subjectbroker/proto/place"
	"subjectbroker/worker/workertest"
)

// buildShim builds sb-mcp where every uid may run it.
func buildShim(t *testing.T) string {
	t.Helper()
	dir := daemontest.NewHome(t)
	must(t, os.Chmod(dir, 0o755))
	path := filepath.Join(dir, "sb-mcp")
	out, err := exec.Command("go", "build", "-o", path, "subjectbroker/cmd/sb-mcp").CombinedOutput()
	if err != nil {
		t.Fatalf("building sb-mcp: %v\n%s", err, out)
	}
	return path
}

// shim is a running sb-mcp.
type shim struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func startShim(t *testing.T, cmd *exec.Cmd) *shim {
	t.Helper()
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return &shim{t, cmd, in, bufio.NewReaderSize(out, 1<<20)}
}

// ask sends one line and returns the next answer.
func (s *shim) ask(line string) string {
	s.t.Helper()
	_, err := io.WriteString(s.in, line+"\n")
	must(s.t, err)
	for {
		answer, err := s.out.ReadString('\n')
		if err != nil {
			s.t.Fatalf("no answer to %q: %v", line, err)
		}
		if strings.Contains(answer, `"id":`) { // not a notification
			return answer
		}
	}
}

// P28, P63: nothing that a client of the shim says is anywhere but in its own
// answers, however loud the libraries are asked to be; and the shim holds no key
// and nothing that its subject was not given, in memory, descriptors, arguments,
// environment or files.
func TestShimLeaksNothing(t *testing.T) {
	t.Parallel()
	daemontest.NeedRoot(t, "memory of the shim")
	loud := []string{"GODEBUG=http2debug=2", "GRPC_GO_LOG_SEVERITY_LEVEL=info", "GRPC_GO_LOG_VERBOSITY_LEVEL=99", "GOTRACEBACK=crash", "MCPGODEBUG=all=1"}
	temp := t.TempDir()
	d := daemontest.Launch(t, daemontest.Options{Env: append(loud, "TMPDIR="+temp)})
	d.Put("plan", "zyxw-content")
	d.Put("other", "zyxw-withheld")
	d.AddSubject("worker")
	d.Grant("worker", "read:plan")

	stderr, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	must(t, err)
	defer stderr.Close()
	cmd := exec.Command(buildShim(t), "--subject", "worker", "--home", d.Home)
	cmd.Env = append(loud, "HOME="+temp, "TMPDIR="+temp)
	cmd.Stderr = stderr
	s := startShim(t, cmd)
	const m = `MARKER \u0022\u202e\u001b[31m\n zyxw`
	s.ask(`{"jsonrpc":"2.0","id":"` + m + `","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"experimental":{"` + m + `":{}}},"clientInfo":{"name":"` + m + `","version":"` + m + `","title":"` + m + `"},"_meta":{"` + m + `":"` + m + `"}}}`)
	_, err = io.WriteString(s.in, `{"jsonrpc":"2.0","method":"notifications/initialized"}`+"\n")
	must(t, err)
	for _, line := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"read_resource","arguments":{"resourceId":"` + m + `"}}}`,
		`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"read_resource","arguments":{"resourceId":"plan","` + m + `":"` + m + `","subject":"` + m + `"}}}`,
		`{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"explain_decision","arguments":{"resourceId":"` + m + `","action":"` + m + `"}}}`,
		`{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"name":"` + m + `","arguments":{"` + m + `":[{"` + m + `":1}]}}}`,
		`{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"list_resources","arguments":{"` + m + `":0},"_meta":{"progressToken":"` + m + `"}}}`,
		`{"jsonrpc":"2.0","id":6,"method":"resources/read","params":{"uri":"sb://resource/` + m + `"}}`,
		`{"jsonrpc":"2.0","id":7,"method":"resources/subscribe","params":{"uri":"` + m + `"}}`,
		`{"jsonrpc":"2.0","id":8,"method":"` + m + `","params":{"` + m + `":"` + m + `"}}`,
		`{"jsonrpc":"2.0","id":9,"method":"completion/complete","params":{"ref":{"type":"ref/prompt","name":"` + m + `"},"argument":{"name":"` + m + `","value":"` + m + `"}}}`,
		`{"jsonrpc":"2.0","id":10,"method":"logging/setLevel","params":{"level":"` + m + `"}}`,
		`{"jsonrpc":"2.0","id":11,"id":11,"method":"MARKER"}`,
		`{"jsonrpc":"2.0","id":12,"method":"tools/call","params":{"name":"read_resource","arguments":"` + m,
		`MARKER not JSON at all`,
		`[{"jsonrpc":"2.0","id":13,"method":"MARKER"}]`,
		"{\"jsonrpc\":\"2.0\",\"id\":14,\"method\":\"MARKER \xff\xfe\"}",
	} {
		s.ask(line)
	}
	answer := s.ask(`{"jsonrpc":"2.0","id":99,"method":"tools/call","params":{"name":"read_resource","arguments":{"resourceId":"plan"}}}`)
	if !strings.Contains(answer, "zyxw-content") {
		t.Fatalf("the content is not released: %s", answer)
	}

	// What the process holds.
	held := processMemory(t, cmd.Process.Pid)
	key, err := os.ReadFile(place.KeyFile(d.Home))
	must(t, err)
	if bytes.Contains(held, key) || bytes.Contains(held, []byte(hex.EncodeToString(key))) {
		t.Error("the key is in the shim's memory")
	}
	if found := find(map[string][]byte{"memory": held}, "zyxw-withheld"); len(found) > 0 {
		t.Errorf("what the subject may not read is in the shim's memory: %v", found)
	}
	if !bytes.Contains(held, []byte(d.Home)) {
		t.Error("not even its home is in its memory: this test shows nothing")
	}
	descriptors, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", cmd.Process.Pid))
	must(t, err)
	for _, fd := range descriptors {
		target, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", cmd.Process.Pid, fd.Name()))
		if err == nil && (strings.HasPrefix(target, d.Home) || strings.HasPrefix(target, temp)) {
			t.Errorf("the shim has %s open", target)
		}
	}
	environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", cmd.Process.Pid))
	must(t, err)
	if bytes.Contains(environ, []byte("DEBUG")) || bytes.Contains(environ, []byte("GRPC_")) {
		t.Errorf("its environment is %q", environ)
	}
	must(t, s.in.Close())
	must(t, cmd.Wait())
	d.Stop()

	texts := files(t, d.Home, temp)
	texts["the shim's messages"], err = os.ReadFile(stderr.Name())
	must(t, err)
	texts["the daemon's messages"] = []byte(d.Messages())
	for _, word := range []string{"MARKER", "zyxw-content", "zyxw-withheld"} {
		for _, found := range find(texts, word) {
			t.Errorf("%s is in %s", word, found)
		}
	}
	if !bytes.Contains(d.RawLog(), []byte("~")) {
		t.Error("no entry stands for a malformed name")
	}
}

// processMemory is everything that a process has in memory and may write.
func processMemory(t *testing.T, pid int) []byte {
	t.Helper()
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	must(t, err)
	memory, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	must(t, err)
	defer memory.Close()
	var all []byte
	for line := range strings.Lines(string(maps)) {
		fields := strings.Fields(line)
		if !strings.HasPrefix(fields[1], "rw") {
			continue
		}
		first, last, _ := strings.Cut(fields[0], "-")
		from, err := strconv.ParseUint(first, 16, 63)
		must(t, err)
		to, err := strconv.ParseUint(last, 16, 63)
		must(t, err)
		part := make([]byte, min(to-from, 256<<20))
		n, _ := memory.ReadAt(part, int64(from))
		all = append(all, part[:n]...)
	}
	return all
}

// P13: another process of the same uid gets at neither program, by any way that
// the kernel has: not by ptrace, not by its memory, not by its descriptors.
func TestNobodyPriesOpen(t *testing.T) {
	t.Parallel()
	daemontest.NeedRoot(t, "prying")
	dir := daemontest.NewHome(t)
	must(t, os.Chmod(dir, 0o755))
	pryer := filepath.Join(dir, "pry")
	self, err := os.ReadFile("/proc/self/exe")
	must(t, err)
	must(t, workertest.WriteProgram(pryer, self))
	const nobody = 65534
	as := func(name string, args ...string) *exec.Cmd {
		cmd := exec.Command(name, args...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		cmd.Env = []string{"HOME=" + dir}
		return cmd
	}
	home := daemontest.NewHome(t)
	must(t, os.Chown(home, nobody, nobody))

	sbd := as(daemontest.Program(t), "--home", home, "--key-source", "file", "--log", "json")
	talk, err := sbd.StderrPipe()
	must(t, err)
	must(t, sbd.Start())
	t.Cleanup(func() { _ = sbd.Process.Kill(); _ = sbd.Wait() })
	awaitLine(t, talk, `"msg":"serving"`)
	s := startShim(t, as(buildShim(t), "--subject", "worker", "--home", home))
	s.ask(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}`)
	control := as("/bin/sleep", "100")
	must(t, control.Start())
	t.Cleanup(func() { _ = control.Process.Kill(); _ = control.Wait() })

	// The process that asks the keychain, while that does not answer.
	bus := filepath.Join(dir, "bus")
	silent, err := net.ListenUnix("unix", &net.UnixAddr{Name: bus, Net: "unix"})
	must(t, err)
	defer silent.Close()
	must(t, os.Chmod(bus, 0o666))
	other := daemontest.NewHome(t)
	must(t, os.Chown(other, nobody, nobody))
	asking := as(daemontest.Program(t), "--home", other, "--key-source", "keychain")
	asking.Env = append(asking.Env, "DBUS_SESSION_BUS_ADDRESS=unix:path="+bus)
	must(t, asking.Start())
	t.Cleanup(func() { _ = asking.Process.Kill(); _ = asking.Wait() })
	asked, err := silent.AcceptUnix()
	must(t, err)
	defer asked.Close()
	child, err := peer.Accept(asked)
	must(t, err)
	defer child.Close()

	pried := func(pid int) string {
		code, said, talk := daemontest.Exit(t, as(pryer, "pry", strconv.Itoa(pid)))
		equal(t, "prying: "+talk, code, 0)
		return said
	}
	equal(t, "ways into sbd", pried(sbd.Process.Pid), "")
	equal(t, "ways into sb-mcp", pried(s.cmd.Process.Pid), "")
	if int(child.PID) == asking.Process.Pid {
		t.Error("sbd asks the keychain itself")
	}
	equal(t, "ways into its key child", pried(int(child.PID)), "")
	ways := ""
	for until := time.Now().Add(daemontest.Patience); ways == "" && time.Now().Before(until); { // it must have become sleep
		ways = pried(control.Process.Pid)
	}
	if !strings.Contains(ways, "environ") || !strings.Contains(ways, "maps") {
		t.Errorf("into an ordinary process there are the ways %q: this test shows nothing", ways)
	}
	t.Logf("ways into an ordinary process: %s", ways)
}

// pry prints the ways by which this process gets into another one: see TestMain.
func pry(text string) int {
	pid, err := strconv.Atoi(text)
	if err != nil {
		return 1
	}
	dir := "/proc/" + text + "/"
	var ways []string
	for _, name := range []string{"environ", "maps", "auxv", "mem", "exe", "cwd", "fd/0", "map_files", "stack", "root/etc/passwd", "ns/pid"} {
		file, err := os.Open(dir + name)
		if err != nil {
			continue
		}
		_ = file.Close()
		ways = append(ways, name)
	}
	if unix.PtraceAttach(pid) == nil {
		ways = append(ways, "ptrace")
		_ = unix.PtraceDetach(pid)
	}
	if unix.PtraceSeize(pid) == nil {
		ways = append(ways, "seize")
	}
	buffer := make([]byte, 1)
	_, err = unix.ProcessVMReadv(pid, []unix.Iovec{{Base: &buffer[0], Len: 1}}, []unix.RemoteIovec{{Base: 0x400000, Len: 1}}, 0)
	if err == nil || err == unix.EFAULT {
		ways = append(ways, "process_vm_readv")
	}
	if fd, err := unix.PidfdOpen(pid, 0); err == nil {
		if _, err := unix.PidfdGetfd(fd, 0, 0); err == nil {
			ways = append(ways, "pidfd_getfd")
		}
	}
	slices.Sort(ways)
	if len(ways) > 0 {
		fmt.Println(strings.Join(ways, " "))
	}
	return 0
}
