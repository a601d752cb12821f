package client_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"subjectbroker/proto/place"
	"subjectbroker/proto/wire"
	"subjectbroker/worker/client"
)

// Variables that make this test program one that listens at the sockets of a
// home that it has put in the place of another.
const (
	impostorAt     = "CLIENT_TEST_IMPOSTOR"
	impostorLeaves = "CLIENT_TEST_IMPOSTOR_LEAVES"
	impostorStays  = "CLIENT_TEST_IMPOSTOR_STAYS"
)

// TestImpostor is not a test: it is the program that startImpostor starts.
func TestImpostor(t *testing.T) {
	home := os.Getenv(impostorAt)
	if os.Getenv(impostorStays) != "" { // holds what it was given, and goes with its parent's parent
		_, _ = io.Copy(io.Discard, os.Stdin)
		return
	}
	if home == "" {
		return // as a test it has nothing to show
	}
	must(t, os.Rename(filepath.Dir(home), filepath.Dir(home)+".x"))
	received := make(chan int, 2)
	var held []*os.File
	for _, socket := range []string{place.BrokerSocket(filepath.Join(home, "run")), place.OperatorSocket(filepath.Join(home, "run"))} {
		must(t, os.MkdirAll(filepath.Dir(socket), 0o700))
		listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
		must(t, err)
		listener.SetUnlinkOnClose(false)
		must(t, os.Chmod(socket, 0o600))
		file, err := listener.File()
		must(t, err)
		held = append(held, file)
		go listenOnce(listener, received)
	}
	if os.Getenv(impostorLeaves) != "" {
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestImpostor$")
		cmd.Env = append(os.Environ(), impostorStays+"=1")
		cmd.Stdin, cmd.ExtraFiles = os.Stdin, held
		must(t, cmd.Start())
		fmt.Println("ready")
		syscall.Exit(0)
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
	syscall.Exit(0)
}

// startImpostor moves a parent of a home away and makes a home in the old place,
// whose lock names the process that listens there: as every process of the uid
// may do that can write the parent, and in namespaces as flags say.
func startImpostor(t *testing.T, flags uintptr, leaves bool) client.Places {
	t.Helper()
	top, err := os.MkdirTemp("", "sb")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(top) })
	home := filepath.Join(top, "state", "broker")
	must(t, os.MkdirAll(home, 0o700))
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestImpostor$")
	cmd.Env = append(os.Environ(), impostorAt+"="+home)
	if leaves {
		cmd.Env = append(cmd.Env, impostorLeaves+"=1")
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags}
	if flags&unix.CLONE_NEWUSER != 0 {
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: os.Geteuid(), HostID: os.Geteuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getegid(), HostID: os.Getegid(), Size: 1}}
	}
	stdin, err := cmd.StdinPipe()
	must(t, err)
	stdout, err := cmd.StdoutPipe()
	must(t, err)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EINVAL) {
		t.Skipf("suite left out: launch: there can be no namespaces here: %v", err)
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stdin.Close()
		_, _ = io.Copy(io.Discard, stdout) // until nobody holds it
		_ = cmd.Wait()
	})
	said := bufio.NewScanner(stdout)
	if !said.Scan() || said.Text() != "ready" {
		t.Fatalf("it says %q", said.Text())
	}
	if leaves {
		_, err := cmd.Process.Wait()
		must(t, err)
	}
	h := &house{Places: client.Places{Home: home, SocketDir: filepath.Join(home, "run")}}
	h.lock(t, cmd.Process.Pid)
	return h.Places
}

// The tree of a launch can put a home of its own in the place of the broker's,
// and name itself in its lock; nobody outside believes it.
func TestListenerInALaunch(t *testing.T) {
	for _, tc := range []struct {
		name   string
		flags  uintptr
		leaves bool
		says   string // empty: it is believed
	}{
		// The control: all else that is looked at is as it should be.
		{"outside", 0, false, ""},
		{"in a user namespace alone", unix.CLONE_NEWUSER, false, ""},
		{"in a launch", unix.CLONE_NEWUSER | unix.CLONE_NEWPID, false, "another pid namespace"},
		{"gone, so that its pid may become another's", 0, true, "gone"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if _, err := unix.GetsockoptInt(socketPair(t), unix.SOL_SOCKET, unix.SO_PEERPIDFD); tc.leaves && err != nil {
				t.Skipf("suite left out: pidfd: this kernel has no handle on who listens: %v", err)
			}
			places := startImpostor(t, tc.flags, tc.leaves)
			unknown := places
			unknown.HomeUnknown = true // only the sockets are named: there is no lock to compare
			for how, connect := range map[string]func() (io.Closer, error){
				"broker":                 func() (io.Closer, error) { return client.Broker(t.Context(), places) },
				"operator":               func() (io.Closer, error) { return client.Operator(t.Context(), places) },
				"sockets without a home": func() (io.Closer, error) { return client.Operator(t.Context(), unknown) },
			} {
				conn, err := connect()
				if err == nil {
					conn.Close()
				}
				typed := wire.FromError(err)
				if tc.says == "" && err != nil || tc.says != "" && (err == nil || typed.Reason != wire.SocketUnsafe || !strings.Contains(typed.Message, tc.says)) {
					t.Errorf("%s: got %v, want %q", how, err, tc.says)
				}
			}
		})
	}
}

func socketPair(t *testing.T) int {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	t.Cleanup(func() {
		unix.Close(fds[0])
		unix.Close(fds[1])
	})
	return fds[0]
}
