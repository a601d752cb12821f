package daemon_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"subjectbroker/audit/verify"
	"subjectbroker/daemon/daemontest"
	"subjectbroker/proto/place"
	"subjectbroker/proto/wire"
	"subjectbroker/worker/workertest"
)

// P61: a stale socket is replaced; whatever else is at the path is refused, and
// stays as it is.
func TestWhatIsAtTheSocketsPath(t *testing.T) {
	t.Parallel()
	home := daemontest.NewHome(t)
	d := daemontest.Launch(t, daemontest.Options{Home: home})
	d.Kill()
	for _, tc := range []struct {
		name string
		root bool
		make func(path string)
	}{
		{"a regular file", false, func(path string) { write(t, path, "somebody's") }},
		{"an empty file", false, func(path string) { write(t, path, "") }},
		{"a directory", false, func(path string) { must(t, os.Mkdir(path, 0o700)) }},
		{"a FIFO", false, func(path string) { must(t, syscall.Mkfifo(path, 0o600)) }},
		{"a link to nothing", false, func(path string) { must(t, os.Symlink("absent", path)) }},
		{"a link to a file", false, func(path string) { must(t, os.Symlink(place.LockFile(home), path)) }},
		{"a link to a live socket", false, func(path string) {
			live(t, path+".live")
			must(t, os.Symlink(path+".live", path))
		}},
		{"a live socket", false, func(path string) { live(t, path) }},
		{"a live socket that others may use", false, func(path string) {
			live(t, path)
			must(t, os.Chmod(path, 0o666))
		}},
		{"a stale socket of another uid", true, func(path string) {
			stale(t, path)
			must(t, os.Chown(path, 65534, 65534))
		}},
	} {
		if tc.root && os.Geteuid() != 0 {
			continue
		}
		for _, path := range []string{place.BrokerSocket(d.SocketDir), place.OperatorSocket(d.SocketDir)} {
			must(t, os.RemoveAll(path))
			tc.make(path)
			before, err := os.Lstat(path)
			must(t, err)
			code, _, said := daemontest.Exit(t, daemontest.Command(t, home, "--home", home))
			if code != wire.ExitUsage || !strings.HasPrefix(said, "sbd: SOCKET_UNSAFE: ") {
				t.Errorf("%s at %s: exit %d: %s", tc.name, filepath.Base(path), code, said)
			}
			after, err := os.Lstat(path)
			if err != nil || !os.SameFile(before, after) || before.Mode() != after.Mode() || !before.ModTime().Equal(after.ModTime()) {
				t.Errorf("%s at %s was touched: %v, %v", tc.name, filepath.Base(path), after, err)
			}
			must(t, os.RemoveAll(path))
		}
	}
	// The control: what a crash left is replaced.
	for _, path := range []string{place.BrokerSocket(d.SocketDir), place.OperatorSocket(d.SocketDir)} {
		stale(t, path)
	}
	d.Start()
	equal(t, "state", d.Status().GetVaultState(), "unlocked")
}

// live listens at path until the test ends.
func live(t *testing.T, path string) {
	t.Helper()
	_ = os.Remove(path)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	must(t, err)
	l.SetUnlinkOnClose(false)
	must(t, os.Chmod(path, 0o600))
	t.Cleanup(func() { l.Close() })
}

// stale is the socket of a process that is gone.
func stale(t *testing.T, path string) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	must(t, err)
	l.SetUnlinkOnClose(false)
	must(t, l.Close())
}

// P60: nothing is made open and closed afterwards. With an umask of 0, and the
// kernel's own word for everything that happens in the home: no mode is ever
// changed, so each is what it was from the first instant.
func TestNoModeIsEverChanged(t *testing.T) {
	t.Parallel()
	home := daemontest.NewHome(t)
	dirs := []string{home, filepath.Join(home, "audit"), filepath.Join(home, "run"), filepath.Join(home, "run/broker"), filepath.Join(home, "run/operator")}
	for _, dir := range dirs[1:] {
		must(t, os.Mkdir(dir, 0o700))
	}
	changes := watchModes(t, dirs)
	control := filepath.Join(home, "control")
	write(t, control, "")
	must(t, os.Chmod(control, 0o644))
	must(t, os.Remove(control))

	d := daemontest.Launch(t, daemontest.Options{Home: home, Wrap: []string{"/bin/sh", "-c", `umask 0; exec "$@"`, "sh"}})
	d.Put("readme", "hello")
	d.Signal(syscall.SIGHUP)
	awaitFile(t, filepath.Join(place.AuditDir(home), "00000002.jsonl"))
	d.Restart()
	d.Stop()
	loose(t, home, map[string]bool{}) // and what is left is closed
	created, changed := changes()
	for _, name := range []string{"vault.db", "secret.key", "audit.key", "lock", "00000001.jsonl", "00000002.jsonl", "broker.sock", "operator.sock"} {
		if !created[name] {
			t.Errorf("%s was never seen to be made", name)
		}
	}
	if !changed["control"] {
		t.Error("the kernel does not tell of changed modes")
	}
	delete(changed, "control")
	delete(changed, "vault.db.new") // which become their files by another link
	delete(changed, "secret.key.new")
	if len(changed) > 0 {
		t.Errorf("modes were changed: %v", changed)
	}
}

// watchModes follows directories; what it returns tells which names appeared in
// them, and the modes of which were changed.
func watchModes(t *testing.T, dirs []string) func() (created, changed map[string]bool) {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	must(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	for _, dir := range dirs {
		_, err := unix.InotifyAddWatch(fd, dir, unix.IN_CREATE|unix.IN_MOVED_TO|unix.IN_ATTRIB)
		must(t, err)
	}
	return func() (created, changed map[string]bool) {
		created, changed = map[string]bool{}, map[string]bool{}
		buffer := make([]byte, 1<<16)
		for {
			n, err := unix.Read(fd, buffer)
			if err != nil || n <= 0 {
				return created, changed
			}
			for rest := buffer[:n]; len(rest) >= unix.SizeofInotifyEvent; {
				mask := binary.NativeEndian.Uint32(rest[4:])
				length := binary.NativeEndian.Uint32(rest[12:])
				name := string(bytes.TrimRight(rest[unix.SizeofInotifyEvent:unix.SizeofInotifyEvent+int(length)], "\x00"))
				rest = rest[unix.SizeofInotifyEvent+int(length):]
				switch {
				case mask&unix.IN_ATTRIB != 0:
					changed[name] = true
				case mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0:
					created[name] = true
				}
			}
		}
	}
}

// P60: another uid gets no byte: the kernel refuses it at the directories, and
// at the socket; and where somebody has opened all those, the daemon does.
func TestForeignUIDIsRefused(t *testing.T) {
	t.Parallel()
	daemontest.NeedRoot(t, "foreign uid")
	dir := daemontest.NewHome(t)
	must(t, os.Chmod(dir, 0o755))
	program := filepath.Join(dir, "knock")
	self, err := os.ReadFile("/proc/self/exe")
	must(t, err)
	must(t, workertest.WriteProgram(program, self))
	d := daemontest.Launch(t, daemontest.Options{Spoiled: true})
	d.Put("readme", "hello")
	d.AddSubject("worker")
	d.Grant("worker", "read:readme")
	for _, socket := range []string{place.BrokerSocket(d.SocketDir), place.OperatorSocket(d.SocketDir)} {
		knocks := func(uid uint32) string {
			cmd := exec.Command(program, "knock", socket)
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
			_, said, talk := daemontest.Exit(t, cmd)
			return said + talk
		}
		equal(t, "the daemon's own uid", knocks(0), "answered\n")
		equal(t, "another uid", knocks(65534), "permission denied\n")
		for dir := filepath.Dir(socket); dir != filepath.Dir(d.Home); dir = filepath.Dir(dir) {
			must(t, os.Chmod(dir, 0o755))
		}
		equal(t, "another uid, all directories open", knocks(65534), "permission denied\n")
		must(t, os.Chmod(socket, 0o666))
		equal(t, "another uid, the socket open too", knocks(65534), "refused\n")
		equal(t, "the daemon's own uid still", knocks(0), "answered\n")
	}
	equal(t, "runs", len(d.Status().GetRuns()), 0)
}

// knock says what a socket does with one that greets: see TestMain.
func knock(socket string) int {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		fmt.Println(unwrapped(err))
		return 1
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
	_ = conn.SetReadDeadline(time.Now().Add(daemontest.Patience))
	if n, err := conn.Read(make([]byte, 1)); n == 0 || err != nil {
		fmt.Println("refused")
		return 1
	}
	fmt.Println("answered")
	return 0
}

// unwrapped is the innermost error.
func unwrapped(err error) error {
	for {
		inner, ok := err.(interface{ Unwrap() error })
		if !ok {
			return err
		}
		err = inner.Unwrap()
	}
}

// P45: a run ends with its process, also when another one holds its connection
// and nobody asks for anything.
func TestRunOfADeadProcessEnds(t *testing.T) {
	t.Parallel()
	d := daemontest.Launch(t, daemontest.Options{})
	d.AddSubject("worker")
	conn, child := handed(t, d)
	run := d.OpenOn(conn, "worker")
	equal(t, "runs while it lives", len(d.Status().GetRuns()), 1)
	must(t, child.Kill())
	_, _ = child.Wait()
	ended := d.Await(0, func(e verify.Entry) bool { return e.Kind == "run.end" && e.RunID == run.ID })
	equal(t, "the cause", ended.Cause, "PEER_CHANGED")
	equal(t, "runs when it is dead", len(d.Status().GetRuns()), 0)
	equal(t, "asking all the same", run.Refused("readme"), wire.RunEnded)
	equal(t, "the cause", last(d, "authz").Cause, "PEER_CHANGED")
}
