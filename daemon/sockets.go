package daemon

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/activation"
	"golang.org/x/sys/unix"

	"subjectbroker/proto/place"
	"subjectbroker/proto/wire"
)

// sockets are the daemon's two listeners.
type sockets struct {
	broker, operator net.Listener
	activated        bool
}

// listenAll listens on both sockets below dir, or takes them from the service
// manager. The directories are owner-only before a socket exists in them, and
// the sockets 0600 from their first instant.
func listenAll(dir string) (*sockets, error) {
	if s, err := activatedSockets(); s != nil || err != nil {
		return s, err
	}
	if err := makeSocketDirs(dir); err != nil {
		return nil, err
	}
	broker, err := listen(place.BrokerSocket(dir))
	if err != nil {
		return nil, err
	}
	operator, err := listen(place.OperatorSocket(dir))
	if err != nil {
		return nil, errors.Join(err, broker.Close())
	}
	return &sockets{broker: broker, operator: operator}, nil
}

// activatedSockets returns the listeners that systemd passed under the names of
// our units, or nil when it passed none.
func activatedSockets() (*sockets, error) {
	named, err := activation.ListenersWithNames()
	if err != nil {
		return nil, fault(wire.SocketUnsafe, "taking sockets from the service manager: %w", err)
	}
	if len(named) == 0 {
		return nil, nil
	}
	s := &sockets{activated: true}
	for name, target := range map[string]*net.Listener{"broker": &s.broker, "operator": &s.operator} {
		passed := named[name]
		if len(passed) != 1 || passed[0] == nil {
			return nil, fault(wire.SocketUnsafe, "the service manager passed %d sockets named %s, want one", len(passed), name)
		}
		address, ok := passed[0].Addr().(*net.UnixAddr)
		if !ok {
			return nil, fault(wire.SocketUnsafe, "the service manager's socket %s is not a Unix socket", name)
		}
		if err := checkSocket(address.Name); err != nil {
			return nil, err
		}
		*target = passed[0]
	}
	return s, nil
}

// checkSocket wants an existing socket that nobody else can reach.
func checkSocket(path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return fault(wire.SocketUnsafe, "%w", err)
	}
	stat := info.Sys().(*syscall.Stat_t)
	if info.Mode()&fs.ModeSocket == 0 || int(stat.Uid) != os.Geteuid() || info.Mode().Perm() != 0o600 {
		return fault(wire.SocketUnsafe, "%s must be a socket of uid %d with mode 0600", path, os.Geteuid())
	}
	if err := checkDir(filepath.Dir(path), 0o700); err != nil {
		return fault(wire.SocketUnsafe, "%w", err)
	}
	return nil
}

// makeSocketDirs makes the socket directory and one owner-only directory for
// each socket, and refuses loose ones.
func makeSocketDirs(dir string) error {
	broker, operator := place.BrokerSocket(dir), place.OperatorSocket(dir)
	for _, path := range []string{broker, operator} {
		if err := place.CheckSocketPath(path); err != nil {
			return fault(wire.SocketUnsafe, "%w", err)
		}
	}
	for _, path := range []string{dir, filepath.Dir(broker), filepath.Dir(operator)} {
		if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return fault(wire.SocketUnsafe, "making the socket directory: %w", err)
		}
		if err := checkDir(path, 0o700); err != nil {
			return fault(wire.SocketUnsafe, "%w", err)
		}
	}
	if err := checkParents(dir); err != nil {
		return fault(wire.SocketUnsafe, "%w", err)
	}
	return nil
}

// listen replaces a stale socket of ours and refuses anything else at path.
func listen(path string) (net.Listener, error) {
	if err := clearStale(path); err != nil {
		return nil, err
	}
	// Linux gives the socket the mode that its descriptor has at bind, so that
	// nothing depends on the umask, which belongs to the whole process.
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		return raw.Control(func(fd uintptr) { _ = unix.Fchmod(int(fd), 0o600) })
	}}
	listener, err := config.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, fault(wire.SocketUnsafe, "listening: %w", err)
	}
	if checkSocket(path) != nil { // where the descriptor's mode does not count
		if err := os.Chmod(path, 0o600); err != nil {
			return nil, errors.Join(fault(wire.SocketUnsafe, "%w", err), listener.Close())
		}
	}
	if err := checkSocket(path); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return listener, nil
}

// clearStale removes the socket at path when it is ours and nobody listens.
func clearStale(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fault(wire.SocketUnsafe, "%w", err)
	case info.Mode()&fs.ModeSocket == 0:
		return fault(wire.SocketUnsafe, "%s exists and is not a socket", path)
	case int(info.Sys().(*syscall.Stat_t).Uid) != os.Geteuid():
		return fault(wire.SocketUnsafe, "%s belongs to another uid", path)
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		_ = conn.Close()
		return fault(wire.SocketUnsafe, "another process listens on %s", path)
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		return fault(wire.SocketUnsafe, "%s: %w", path, err)
	}
	if err := os.Remove(path); err != nil {
		return fault(wire.SocketUnsafe, "removing a stale socket: %w", err)
	}
	return nil
}
