package daemon_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"subjectbroker/daemon/daemontest"
	"subjectbroker/proto/place"
	"subjectbroker/proto/wire"
	"subjectbroker/worker/client"
)

// P7: of many that start at once in one home, one serves.
func TestOneDaemonPerHome(t *testing.T) {
	t.Parallel()
	home := daemontest.NewHome(t)
	const n = 8
	codes := make(chan int, n)
	cmds := make([]*exec.Cmd, n)
	for i := range cmds {
		cmds[i] = daemontest.Command(t, home, "--home", home, "--key-source", "file")
		must(t, cmds[i].Start())
		go func() {
			_ = cmds[i].Wait()
			codes <- cmds[i].ProcessState.ExitCode()
		}()
	}
	for range n - 1 {
		equal(t, "exit code of all but one", <-codes, wire.ExitBusy)
	}
	lock, err := os.ReadFile(place.LockFile(home))
	must(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(lock)))
	must(t, err)
	if !slices.ContainsFunc(cmds, func(cmd *exec.Cmd) bool { return cmd.Process.Pid == pid }) {
		t.Errorf("the lock names process %d, which is none of ours", pid)
	}
	must(t, syscall.Kill(pid, syscall.SIGTERM))
	equal(t, "exit code of the one", <-codes, wire.ExitDone)
	daemontest.VerifyVault(t, home)
}

// P8, as far as kill -9 goes: a first start that dies leaves no vault or a good
// one, and the next start serves.
func TestFirstStartDies(t *testing.T) {
	t.Parallel()
	for range 6 {
		t.Run("", func(t *testing.T) {
			home := daemontest.NewHome(t)
			cmd := daemontest.Command(t, home, "--home", home, "--key-source", "file")
			must(t, cmd.Start())
			// Die at any moment between the lock and serving.
			awaitFile(t, place.LockFile(home))
			time.Sleep(time.Duration(rand.IntN(40)) * time.Millisecond)
			must(t, cmd.Process.Kill())
			_ = cmd.Wait()
			daemontest.Launch(t, daemontest.Options{Home: home})
		})
	}
}

// P65: SIGTERM at any moment ends with exit 0, and what was being created is
// whole or absent.
func TestStoppedAtAnyMoment(t *testing.T) {
	t.Parallel()
	home := daemontest.NewHome(t)
	for range 6 {
		cmd := daemontest.Command(t, home, "--home", home, "--key-source", "file")
		must(t, cmd.Start())
		before := time.Now()
		for held := false; !held; { // from the moment on at which the home is held
			held = heldBy(home, cmd.Process.Pid)
			if time.Since(before) > daemontest.Patience {
				t.Fatal("the daemon does not take the lock")
			}
		}
		time.Sleep(time.Duration(rand.IntN(40)) * time.Millisecond)
		must(t, cmd.Process.Signal(syscall.SIGTERM))
		_ = cmd.Wait()
		equal(t, "exit code", cmd.ProcessState.ExitCode(), wire.ExitDone)
		if _, err := os.Stat(place.VaultFile(home)); err == nil {
			daemontest.VerifyVault(t, home)
		}
	}
}

func heldBy(home string, pid int) bool {
	lock, err := os.ReadFile(place.LockFile(home))
	return err == nil && strings.TrimSpace(string(lock)) == strconv.Itoa(pid)
}

func awaitFile(t *testing.T, path string) {
	t.Helper()
	for start := time.Now(); time.Since(start) < daemontest.Patience; {
		if _, err := os.Stat(path); err == nil {
			return
		}
	}
	t.Fatalf("%s does not appear", path)
}

// P65: a stop is not held up by whoever is connected, and answers or refuses
// what is in flight.
func TestStopWithClients(t *testing.T) {
	t.Parallel()
	d := daemontest.Launch(t, daemontest.Options{})
	d.Put("readme", "hello")
	d.AddSubject("worker")
	d.Grant("worker", "read:readme")
	for _, socket := range []string{place.BrokerSocket(d.SocketDir), place.OperatorSocket(d.SocketDir)} {
		mute, err := net.Dial("unix", socket) // never says anything
		must(t, err)
		defer mute.Close()
		slow, err := net.Dial("unix", socket) // stops in the middle of a word
		must(t, err)
		defer slow.Close()
		_, err = slow.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n"))
		must(t, err)
	}
	watching := d.Open("worker").Follow()
	var reading sync.WaitGroup
	answered := make([]uint64, 4)
	for i := range answered {
		run := d.Open("worker")
		reading.Go(func() {
			for {
				got, err := run.Acquire(t.Context(), acquire(run, "readme"))
				if err != nil {
					return
				}
				answered[i] = got.GetAuditSeq()
			}
		})
	}
	equal(t, "exit code", d.Stop(), wire.ExitDone)
	reading.Wait()
	equal(t, "what a watcher is told", watching.Next(), "ended BROKER_UNAVAILABLE")
	entries := d.Entries()
	newest := entries[len(entries)-1]
	equal(t, "the newest entry", newest.Kind, "vault.close")
	for _, seq := range answered {
		if seq > newest.Seq {
			t.Errorf("entry %d was answered, and the log ends at %d", seq, newest.Seq)
		}
	}
	ends := 0
	for _, e := range entries {
		if e.Kind == "run.end" {
			ends++
		}
	}
	equal(t, "ends of runs in the log", ends, 5)
}

// P20: everything that a client received has its entry, whenever the daemon dies.
func TestEverythingReceivedHasItsEntry(t *testing.T) {
	t.Parallel()
	d := daemontest.Launch(t, daemontest.Options{})
	d.Put("readme", "hello")
	d.AddSubject("worker")
	d.Grant("worker", "read:readme")
	for range 4 {
		const clients = 8
		received := make([]uint64, clients)
		var reading sync.WaitGroup
		busy := make(chan struct{}, clients)
		for i := range clients {
			run := d.Open("worker")
			reading.Go(func() {
				for n := 0; ; n++ {
					got, err := run.Acquire(t.Context(), acquire(run, "readme"))
					if err != nil {
						return
					}
					received[i] = got.GetAuditSeq()
					if n == 3 {
						busy <- struct{}{}
					}
				}
			})
		}
		for range clients {
			<-busy
		}
		d.Kill()
		reading.Wait()
		d.Start()
		bySeq := map[uint64]string{}
		for _, e := range d.Entries("acquire") {
			bySeq[e.Seq] = e.Decision
		}
		for _, seq := range received {
			equal(t, fmt.Sprintf("the entry %d of a release", seq), bySeq[seq], "allow")
		}
	}
}

// P60: with an umask of 0, everything is owner-only from the first instant.
func TestModesWithoutUmask(t *testing.T) {
	t.Parallel()
	top := daemontest.NewHome(t)
	home := filepath.Join(top, "h")
	looked := map[string]bool{}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() { // looks at everything that appears, as soon as it does
		defer close(done)
		for last := false; ; {
			loose(t, home, looked)
			if last {
				return
			}
			select {
			case <-stop:
				last = true
			default:
			}
		}
	}()
	d := daemontest.Launch(t, daemontest.Options{Home: home, Guard: true, Wrap: []string{"/bin/sh", "-c", `umask 0; exec "$@"`, "sh"}})
	d.Put("readme", "hello")
	d.Signal(syscall.SIGHUP)
	awaitFile(t, filepath.Join(place.AuditDir(home), "00000002.jsonl"))
	d.Stop()
	close(stop)
	<-done
	for _, name := range []string{"vault.db", "secret.key", "audit.key", "lock", "audit/00000001.jsonl", "audit/00000002.jsonl", "run/broker/broker.sock", "run/operator/operator.sock"} {
		if !looked[name] {
			t.Errorf("%s was never seen", name)
		}
	}
}

// loose reports everything below home that others could use.
func loose(t *testing.T, home string, looked map[string]bool) {
	_ = filepath.WalkDir(home, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return nil
		}
		info, err := entry.Info()
		if err != nil {
			return nil // gone again
		}
		name, _ := filepath.Rel(home, path)
		looked[name] = true
		if mode := info.Mode(); mode.Perm()&0o077 != 0 || mode&fs.ModeSocket != 0 && mode.Perm() != 0o600 {
			t.Errorf("%s has mode %v", name, mode)
		}
		return nil
	})
}

// Socket activation: sockets come from the service manager, by name.
func TestSocketActivation(t *testing.T) {
	t.Parallel()
	home := daemontest.NewHome(t)
	dir := filepath.Join(home, "run")
	broker, operator := listener(t, place.BrokerSocket(dir)), listener(t, place.OperatorSocket(dir))
	options := daemontest.Options{
		Home: home, Spoiled: true, Wrap: []string{"/bin/sh", "-c", `LISTEN_PID=$$ exec "$@"`, "sh"},
		Files: []*os.File{broker, operator}, Env: []string{"LISTEN_FDS=2", "LISTEN_FDNAMES=broker:operator"},
	}
	// Only systemd is known to listen for others, so the kit cannot connect: the
	// sockets alone are named.
	d := daemontest.Launch(t, options)
	places := client.Places{Home: home, SocketDir: dir, HomeUnknown: true}
	for what, connect := range map[string]func() error{
		"broker":   func() error { conn, err := client.Broker(t.Context(), places); return errors.Join(err, conn.Close()) },
		"operator": func() error { conn, err := client.Operator(t.Context(), places); return errors.Join(err, conn.Close()) },
	} {
		if err := connect(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	equal(t, "exit code", d.Stop(), 0)
	if _, err := os.Stat(place.BrokerSocket(dir)); err != nil {
		t.Errorf("the service manager's socket is gone: %v", err)
	}

	for name, spoil := range map[string]func(*exec.Cmd){
		"a name is missing": func(cmd *exec.Cmd) { cmd.Env = append(cmd.Env, "LISTEN_FDNAMES=broker:other") },
		"one socket alone":  func(cmd *exec.Cmd) { cmd.Env = append(cmd.Env, "LISTEN_FDS=1", "LISTEN_FDNAMES=broker") },
		"no socket at all": func(cmd *exec.Cmd) {
			null, err := os.Open(os.DevNull)
			must(t, err)
			cmd.ExtraFiles[0] = null
		},
	} {
		cmd := exec.Command("/bin/sh", "-c", `LISTEN_PID=$$ exec "$@"`, "sh", daemontest.Program(t), "--home", home)
		cmd.Env = append([]string{"HOME=" + home}, options.Env...)
		cmd.ExtraFiles = slices.Clone(options.Files)
		spoil(cmd)
		code, _, said := daemontest.Exit(t, cmd)
		if code != wire.ExitUsage || !strings.HasPrefix(said, "sbd: SOCKET_UNSAFE: ") {
			t.Errorf("%s: exit %d: %s", name, code, said)
		}
	}
}

// listener is a socket as a service manager would pass it.
func listener(t *testing.T, path string) *os.File {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o700))
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	must(t, err)
	l.SetUnlinkOnClose(false)
	must(t, os.Chmod(path, 0o600))
	file, err := l.File()
	must(t, err)
	t.Cleanup(func() { file.Close(); l.Close() })
	return file
}

// P13: a process of the same uid reads nothing of the daemon, and no core is left.
func TestMemoryIsClosed(t *testing.T) {
	t.Parallel()
	const marker = "MARKER-in-the-environment"
	home := daemontest.NewHome(t)
	as := func(args ...string) *exec.Cmd { return exec.Command(args[0], args[1:]...) }
	if os.Geteuid() == 0 { // root may look at everything
		setpriv, err := exec.LookPath("setpriv")
		if err != nil {
			daemontest.LeaveOut(t, "closed memory", "setpriv is not installed")
		}
		must(t, os.Chown(home, 65534, 65534))
		as = func(args ...string) *exec.Cmd {
			return exec.Command(setpriv, append([]string{"--reuid=65534", "--regid=65534", "--clear-groups"}, args...)...)
		}
	}
	cores := t.TempDir()
	must(t, os.Chmod(cores, 0o777))
	cmd := as("/bin/sh", "-c", `cd "$0" && ulimit -c unlimited 2>/dev/null; exec "$@"`, cores, daemontest.Program(t), "--home", home, "--key-source", "file", "--log", "json")
	cmd.Env = []string{"HOME=" + home, "OTHER=" + marker}
	stderr, err := cmd.StderrPipe()
	must(t, err)
	must(t, cmd.Start())
	awaitLine(t, stderr, `"msg":"serving"`)
	pid := strconv.Itoa(cmd.Process.Pid)

	control := as("/bin/sh", "-c", "sleep 100")
	control.Env = []string{"OTHER=" + marker}
	must(t, control.Start())
	defer control.Wait()
	defer control.Process.Kill()
	readable := func(pid, name string) (string, error) {
		out, err := as("/bin/cat", "/proc/"+pid+"/"+name).Output()
		return string(out), err
	}
	controlPID := strconv.Itoa(control.Process.Pid)
	for until := time.Now().Add(daemontest.Patience); ; {
		out, _ := readable(controlPID, "environ")
		if strings.Contains(out, marker) {
			break
		}
		if time.Now().After(until) {
			t.Fatal("this test cannot see the memory of any process")
		}
	}
	for _, name := range []string{"environ", "maps", "mem", "auxv", "fd/0", "root/etc/passwd"} {
		if out, err := readable(pid, name); err == nil {
			t.Errorf("/proc/PID/%s can be read: %d bytes", name, len(out))
		}
	}
	must(t, cmd.Process.Signal(syscall.SIGABRT))
	_ = cmd.Wait()
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.CoreDump() {
		t.Error("it left a core")
	}
	left, err := os.ReadDir(cores)
	must(t, err)
	equal(t, "files left by the abort", len(left), 0)
}

func awaitLine(t *testing.T, from interface{ Read([]byte) (int, error) }, text string) {
	t.Helper()
	var seen bytes.Buffer
	for buffer := make([]byte, 4096); !strings.Contains(seen.String(), text); {
		n, err := from.Read(buffer)
		seen.Write(buffer[:n])
		if err != nil {
			t.Fatalf("it ended: %s", seen.String())
		}
	}
}

// SIGHUP begins a new segment, also while many read.
func TestRotationUnderLoad(t *testing.T) {
	d := daemontest.Start(t)
	d.Put("readme", "hello")
	d.AddSubject("worker")
	d.Grant("worker", "read:readme")
	stop := make(chan struct{})
	var reading sync.WaitGroup
	for range 4 {
		run := d.Open("worker")
		reading.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if reason := run.Refused("readme"); reason != wire.Allowed {
					t.Errorf("refused with %s", reason)
					return
				}
			}
		})
	}
	for segment := range 5 {
		d.Signal(syscall.SIGHUP)
		awaitFile(t, filepath.Join(place.AuditDir(d.Home), fmt.Sprintf("%08d.jsonl", segment+2)))
	}
	close(stop)
	reading.Wait()
}
