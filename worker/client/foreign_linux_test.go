package client_test

import (
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"subjectbroker/proto/place"
	"subjectbroker/proto/wire"
	"subjectbroker/worker/client"
)

// owner is the uid of a daemon under an account of its own.
const owner = 12345

// newForeign is a socket directory of another uid's daemon, below a directory
// that only root can change, with a listener of the uid that listens.
func newForeign(t *testing.T, listens int) *house {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("suite left out: a daemon of another uid: it needs root")
	}
	top, err := os.MkdirTemp("/run", "sb")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(top) })
	must(t, os.Chmod(top, 0o755))
	h := &house{Places: client.Places{Home: filepath.Join(top, "absent"), SocketDir: filepath.Join(top, "sockets")}}
	dir := filepath.Dir(h.socket())
	must(t, os.MkdirAll(dir, 0o755))
	must(t, os.Chown(h.SocketDir, owner, owner))
	h.listener = listenAs(t, h.socket(), listens)
	t.Cleanup(func() { h.listener.Close() })
	must(t, os.Chown(h.socket(), owner, owner))
	must(t, os.Chmod(h.socket(), 0o660))
	must(t, os.Chown(dir, owner, owner))
	must(t, os.Chmod(dir, 0o750))
	return h
}

// listenAs listens with another uid: what the kernel tells clients is the uid of
// the thread that called listen.
func listenAs(t *testing.T, path string, uid int) *net.UnixListener {
	t.Helper()
	type result struct {
		listener *net.UnixListener
		err      error
	}
	made := make(chan result)
	go func() {
		runtime.LockOSThread() // and never unlocks: the thread ends with the goroutine
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			err = unix.Bind(fd, &unix.SockaddrUnix{Name: path})
		}
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); err == nil && errno != 0 {
			err = errno
		}
		if err == nil {
			err = unix.Listen(fd, 8)
		}
		if err != nil {
			made <- result{err: err}
			return
		}
		file := os.NewFile(uintptr(fd), path)
		defer file.Close()
		listener, err := net.FileListener(file)
		if err != nil {
			made <- result{err: err}
			return
		}
		made <- result{listener: listener.(*net.UnixListener)}
	}()
	r := <-made
	must(t, r.err)
	return r.listener
}

// Contract §2 and P62: a daemon of another uid is believed only where nobody
// else can have put its socket.
func TestForeignDaemon(t *testing.T) {
	for _, tc := range []struct {
		name    string
		listens int
		spoil   func(t *testing.T, h *house)
		says    string // empty: it is believed
	}{
		{"as it should be", owner, nil, ""},
		{"passed on by a service manager of root", 0, nil, ""},
		{"somebody else listens", 999, nil, "uid 999 listens"},
		{"directory open to others", owner, func(t *testing.T, h *house) { must(t, os.Chmod(filepath.Dir(h.socket()), 0o755)) }, "has mode 0755, want 0750"},
		{"group may change the directory", owner, func(t *testing.T, h *house) { must(t, os.Chmod(filepath.Dir(h.socket()), 0o770)) }, "has mode 0770, want 0750"},
		{"socket open to others", owner, func(t *testing.T, h *house) { must(t, os.Chmod(h.socket(), 0o666)) }, "has mode 0666, want 0660"},
		{"socket of a third uid", owner, func(t *testing.T, h *house) { must(t, os.Chown(h.socket(), 999, 999)) }, "belongs to uid 999, not to uid 12345"},
		{"parent of a third uid", owner, func(t *testing.T, h *house) { must(t, os.Chown(filepath.Dir(h.SocketDir), 999, 999)) }, "belongs to uid 999, who could replace"},
		{"parent open to a group", owner, func(t *testing.T, h *house) { must(t, os.Chmod(filepath.Dir(h.SocketDir), 0o775)) }, "can be written by others (mode 0775)"},
		{"parent for everybody, sticky", owner, func(t *testing.T, h *house) {
			must(t, os.Chmod(filepath.Dir(h.SocketDir), 0o777|os.ModeSticky))
		}, "can be written by others (mode 0777)"},
		{"socket directory open to a group", owner, func(t *testing.T, h *house) { must(t, os.Chmod(h.SocketDir, 0o775)) }, "can be written by others (mode 0775)"},
		{"reached through a link that the caller named", owner, func(t *testing.T, h *house) {
			link := filepath.Join(t.TempDir(), "l")
			must(t, os.Symlink(h.SocketDir, link))
			h.SocketDir = link
		}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := newForeign(t, tc.listens)
			if tc.spoil != nil {
				tc.spoil(t, h)
			}
			received := make(chan int, 1)
			go listenOnce(h.listener, received)
			conn, err := client.Broker(t.Context(), h.Places)
			if err == nil {
				conn.Close()
			}
			if typed := wire.FromError(err); tc.says == "" && err != nil || tc.says != "" && (err == nil || typed.Reason != wire.SocketUnsafe || !strings.Contains(typed.Message, tc.says)) {
				t.Errorf("got %v, want %q", err, tc.says)
			}
			h.listener.Close()
			if n := <-received; tc.says != "" && n > 0 {
				t.Errorf("%d bytes were sent to somebody else", n)
			}
		})
	}
	// The control: the same modes of our own uid in a directory for everybody are
	// refused as well, because anybody of the group could be meant.
	h := newHouse(t)
	must(t, os.Chmod(filepath.Dir(place.BrokerSocket(h.SocketDir)), 0o750))
	if _, err := client.Broker(t.Context(), h.Places); wire.FromError(err) == nil || wire.FromError(err).Reason != wire.SocketUnsafe {
		t.Errorf("our own socket, shared below a directory for everybody: %v", err)
	}
}
