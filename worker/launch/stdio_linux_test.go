package launch

import (
	"bytes"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// What a command is started with leads it nowhere that is covered.
func TestStandardDescriptors(t *testing.T) {
	asEach(t, func(t *testing.T, w *world) {
		alias := filepath.Join(w.base, "alias")
		if err := os.Symlink(w.broker, alias); err != nil {
			t.Fatal(err)
		}
		listening, err := net.Listen("unix", filepath.Join(w.base, "other", "s"))
		if err != nil {
			t.Fatal(err)
		}
		accept(t, listening)
		open := func(path string, flags int) func() (*os.File, error) {
			return func() (*os.File, error) {
				fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0)
				return os.NewFile(uintptr(fd), path), err
			}
		}
		connected := func(path string) func() (*os.File, error) {
			return func() (*os.File, error) {
				conn, err := net.Dial("unix", path)
				if err != nil {
					return nil, err
				}
				defer conn.Close()
				return conn.(*net.UnixConn).File()
			}
		}
		tests := []struct {
			name string
			open func() (*os.File, error)
			says string // empty: it is allowed
		}{
			{"the home", open(w.broker, unix.O_RDONLY), "a directory"},
			{"another directory", open(w.work, unix.O_RDONLY), "a directory"},
			{"the home as a path", open(w.broker, unix.O_PATH), "a directory"},
			{"a file as a path", open(filepath.Join(w.home, "diary"), unix.O_PATH), "O_PATH"},
			{"a link as a path", open(alias, unix.O_PATH|unix.O_NOFOLLOW), "O_PATH"},
			{"the key", open(filepath.Join(w.broker, "secret.key"), unix.O_RDONLY), "is a file of the broker"},
			{"the key through a link", open(filepath.Join(alias, "secret.key"), unix.O_RDONLY), "is a file of the broker"},
			{"the operator's socket", connected(filepath.Join(w.broker, "run", "operator", "operator.sock")), "connected to the broker's socket"},
			{"the operator's socket through a link", connected(filepath.Join(alias, "run", "operator", "operator.sock")), "connected to the broker's socket"},
			{"the broker's socket", connected(filepath.Join(w.broker, "run", "broker", "broker.sock")), "connected to the broker's socket"},
			{"an epoll", func() (*os.File, error) {
				fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
				return os.NewFile(uintptr(fd), "epoll"), err
			}, "no file, pipe, terminal or socket"},

			{"a file", open(filepath.Join(w.home, "diary"), unix.O_RDWR), ""},
			{"nothing", open(os.DevNull, unix.O_RDWR), ""},
			{"a pipe", func() (*os.File, error) {
				r, to, err := os.Pipe()
				if err == nil {
					to.Close()
				}
				return r, err
			}, ""},
			{"a socket pair", func() (*os.File, error) {
				fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
				if err != nil {
					return nil, err
				}
				unix.Close(fds[1])
				return os.NewFile(uintptr(fds[0]), "pair"), nil
			}, ""},
			{"another program's socket", connected(listening.Addr().String()), ""},
		}
		for _, test := range tests {
			file, err := test.open()
			if err != nil {
				t.Fatalf("%s: %v", test.name, err)
			}
			for number, name := range []string{"standard input", "standard output", "standard error"} {
				stdio := [3]*os.File{os.Stdin, os.Stdout, os.Stderr}
				stdio[number] = file
				err := checkStdio(w.config(), stdio)
				if test.says == "" && err != nil || test.says != "" && (!errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), test.says) || !strings.Contains(err.Error(), name+" is ")) {
					t.Errorf("%s as %s: %v, want %q", test.name, name, err, test.says)
				}
			}
			file.Close()
		}

		// A whole launch: refused before anything runs.
		home, err := os.Open(w.broker)
		if err != nil {
			t.Fatal(err)
		}
		defer home.Close()
		const script = "cd /proc/self/fd/0 && cat secret.key"
		cmd := w.launch(w.config(), "sh", "-c", script)
		cmd.Stdin = home
		if out, code := output(t, cmd); code != 2 || strings.Contains(out, secret) || !strings.Contains(out, "refused: standard input is a directory") {
			t.Errorf("exit %d, %s", code, out)
		}
		// Without the launch it leads there.
		cmd = w.command("sh", "-c", script)
		cmd.Stdin = home
		if out, code := output(t, cmd); code != 0 || !strings.Contains(out, secret) {
			t.Errorf("the control: exit %d, %s", code, out)
		}
		// And with what is usual a launch starts.
		cmd = w.launch(w.config(), "cat")
		cmd.Stdin = bytes.NewReader([]byte("hello"))
		if out, code := output(t, cmd); code != 0 || out != "hello" {
			t.Errorf("exit %d, %s", code, out)
		}
	})
}

// A launch without a network is handed no socket that reaches one.
func TestStandardSocketsWithoutNetwork(t *testing.T) {
	asEach(t, func(t *testing.T, w *world) {
		server, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		accept(t, server)
		file := func(conn any, err error) *os.File {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
			f, err := conn.(interface{ File() (*os.File, error) }).File()
			if err != nil {
				t.Fatal(err)
			}
			return f
		}
		socket := func(domain, kind int) *os.File {
			t.Helper()
			fd, err := unix.Socket(domain, kind|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			return os.NewFile(uintptr(fd), "socket")
		}
		pair := func(kind int) *os.File {
			t.Helper()
			fds, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			unix.Close(fds[1])
			return os.NewFile(uintptr(fds[0]), "pair")
		}
		for _, test := range []struct {
			name    string
			file    *os.File
			allowed bool
		}{
			{"a datagram socket", socket(unix.AF_INET, unix.SOCK_DGRAM), false},
			{"a connection", file(net.Dial("tcp", server.Addr().String())), false},
			{"a socket of the kernel's", socket(unix.AF_NETLINK, unix.SOCK_RAW), false},
			{"a local socket without a peer", socket(unix.AF_UNIX, unix.SOCK_STREAM), false},
			{"local datagrams", pair(unix.SOCK_DGRAM), false},
			{"a pair", pair(unix.SOCK_STREAM), true},
			{"a pair of packets", pair(unix.SOCK_SEQPACKET), true},
		} {
			stdio := [3]*os.File{test.file, os.Stdout, os.Stderr}
			cfg := w.config()
			if err := checkStdio(cfg, stdio); err != nil {
				t.Errorf("%s, with a network: %v", test.name, err)
			}
			cfg.NoNet = true
			if err := checkStdio(cfg, stdio); (err == nil) != test.allowed || err != nil && !errors.Is(err, ErrRefused) {
				t.Errorf("%s, without one: %v", test.name, err)
			}
			test.file.Close()
		}
	})
}
