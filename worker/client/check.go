package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"subjectbroker/proto/place"
	"subjectbroker/proto/wire"
)

// startHint is the command that mends a daemon that is not there.
const startHint = "sbctl service start"

// backlogWait bounds how long a full listen queue is waited for: connect(2) on
// a Unix socket answers EAGAIN at once instead of waiting.
const backlogWait = time.Second

// maxLock is the largest lock file that is looked at, in bytes: a pid and a newline.
const maxLock = 32

// peer is who accepted a connection, as the kernel tells it.
type peer struct {
	uid int
	pid int // 0: not visible from this pid namespace
}

// dial connects to socket and returns the connection only when the daemon of
// places is at its other end. Nothing has been written to it.
func dial(ctx context.Context, places Places, socket string) (net.Conn, error) {
	if err := place.CheckSocketPath(socket); err != nil {
		return nil, &wire.Error{Reason: wire.ConfigInvalid, Message: err.Error()}
	}
	owner, err := checkPath(places, socket)
	if err != nil {
		return nil, err
	}
	conn, err := connectUnix(ctx, socket)
	if err != nil {
		return nil, err
	}
	if err := checkPeer(conn, places, socket, owner); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

// modes are the most that a socket and its directory may let anybody do.
type modes struct{ dir, socket fs.FileMode }

// checkPath looks at the socket and the directories above it, without
// following a link at the end of either, and returns the uid that owns them: our
// own, or another one under the conditions of checkForeign.
func checkPath(places Places, socket string) (owner int, err error) {
	// Whoever may write here could put a whole broker/ of his own.
	if top, err := os.Stat(places.SocketDir); err == nil && top.Mode().Perm()&0o002 != 0 {
		return 0, refuse("directory %s is writable by everybody", places.SocketDir)
	}
	own := os.Geteuid()
	dir := filepath.Dir(socket)
	above, err := os.Lstat(dir)
	if err != nil {
		return 0, unavailable(socket, err)
	}
	stat, ok := above.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, wire.Deny(wire.PlatformUnsupported)
	}
	owner = int(stat.Uid)
	// A daemon that serves other uids shares each socket with one group. Whether
	// it does is its own word: what nobody else can change cannot be too open for
	// us.
	most := modes{dir: 0o700, socket: 0o600}
	if shared := above.Mode().Perm() == 0o750; shared || owner != own {
		most = modes{dir: 0o750, socket: 0o660}
		if err := checkForeign(places.SocketDir, owner); err != nil {
			return 0, err
		}
	}
	for _, part := range []struct {
		path, noun string
		kind       fs.FileMode
		most       fs.FileMode
	}{
		{dir, "directory", fs.ModeDir, most.dir},
		{socket, "socket", fs.ModeSocket, most.socket},
	} {
		info, err := os.Lstat(part.path)
		if err != nil {
			return 0, unavailable(socket, err)
		}
		if info.Mode().Type() != part.kind {
			return 0, refuse("%s is not a %s", part.path, part.noun)
		}
		if loose := info.Mode().Perm() &^ part.most; loose != 0 {
			return 0, refuse("%s %s has mode %04o, want %04o", part.noun, part.path, info.Mode().Perm(), part.most)
		}
		stat, ok := info.Sys().(*syscall.Stat_t)
		if !ok {
			return 0, wire.Deny(wire.PlatformUnsupported)
		}
		if int(stat.Uid) != owner {
			return 0, refuse("%s %s belongs to uid %d, not to uid %d", part.noun, part.path, stat.Uid, owner)
		}
	}
	return owner, nil
}

// checkForeign says whether the sockets of another uid's daemon, or of one that
// serves other uids, may be believed: nobody but root and that uid may be able to
// put anything in their place, down from the root. Directories where everybody
// may make something are not good enough, sticky or not: whoever was there first
// would be the daemon.
func checkForeign(socketDir string, owner int) error {
	resolved, err := filepath.EvalSymlinks(socketDir)
	if err != nil {
		return unavailable(socketDir, err)
	}
	for dir := resolved; ; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err != nil {
			return unavailable(socketDir, err)
		}
		stat, ok := info.Sys().(*syscall.Stat_t)
		switch {
		case !ok:
			return wire.Deny(wire.PlatformUnsupported)
		case stat.Uid != 0 && int(stat.Uid) != owner:
			return refuse("the sockets belong to uid %d, and directory %s belongs to uid %d, who could replace them", owner, dir, stat.Uid)
		case info.Mode().Perm()&0o022 != 0:
			return refuse("the sockets belong to uid %d, and directory %s can be written by others (mode %04o)", owner, dir, info.Mode().Perm())
		}
		if dir == filepath.Dir(dir) {
			return nil
		}
	}
}

func connectUnix(ctx context.Context, socket string) (*net.UnixConn, error) {
	var dialer net.Dialer
	patience := time.Now().Add(backlogWait)
	for {
		conn, err := dialer.DialContext(ctx, "unix", socket)
		if err == nil {
			unixConn, ok := conn.(*net.UnixConn)
			if !ok {
				conn.Close()
				return nil, wire.Deny(wire.PlatformUnsupported)
			}
			return unixConn, nil
		}
		if !errors.Is(err, syscall.EAGAIN) || time.Now().After(patience) {
			return nil, unavailable(socket, err)
		}
		select {
		case <-ctx.Done():
			return nil, unavailable(socket, ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// checkPeer compares who accepted with the socket's owner and with the lock.
// The path can be replaced between looking at it and connecting to it; what the
// kernel says about the accepted connection cannot.
func checkPeer(conn *net.UnixConn, places Places, socket string, owner int) error {
	who, err := peerOf(conn)
	if err != nil {
		if typed, ok := errors.AsType[*wire.Error](err); ok {
			return typed
		}
		return refuse("asking who listens at %s: %v", socket, err)
	}
	// A service manager that passes the socket on listens as root.
	if who.uid != owner && (who.uid != 0 || owner == os.Geteuid()) {
		return refuse("uid %d listens at %s, which belongs to uid %d", who.uid, socket, owner)
	}
	// Whoever runs the daemon of another uid cannot be in a launch of ours, and
	// checkForeign has found that nobody of ours can replace its sockets. With pid
	// 0 it is we who are in one.
	if who.pid != 0 && owner == os.Geteuid() {
		if err := checkNamespace(conn, who.pid); err != nil {
			return refuse("process %d listens at %s, and may not be the daemon: %v", who.pid, socket, err)
		}
	}
	if who.pid == 0 || places.HomeUnknown || activated(who.pid) || owner != os.Geteuid() {
		return nil // no pid to compare, or no lock to compare it with
	}
	holder, err := lockHolder(place.LockFile(places.Home))
	switch {
	case errors.Is(err, fs.ErrPermission):
		return nil // another account's home
	case errors.Is(err, fs.ErrNotExist) && !below(places.SocketDir, places.Home):
		return nil
	case err != nil:
		return refuse("process %d listens at %s, and no daemon holds the lock of %s", who.pid, socket, places.Home)
	case holder != who.pid:
		return refuse("process %d listens at %s, but process %d holds the lock of %s", who.pid, socket, holder, places.Home)
	}
	return nil
}

// lockHolder reads the pid that the daemon wrote into its lock.
func lockHolder(path string) (pid int, err error) {
	// Not following and not blocking: the path may be anything by now.
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return 0, errors.New("the lock is not a regular file")
	}
	content := make([]byte, maxLock)
	n, err := file.Read(content)
	if err != nil {
		return 0, err
	}
	pid, err = strconv.Atoi(string(bytes.TrimSuffix(content[:n], []byte("\n"))))
	if err != nil || pid <= 0 {
		return 0, errors.New("the lock names no process")
	}
	return pid, nil
}

func refuse(format string, args ...any) error {
	return &wire.Error{Reason: wire.SocketUnsafe, Message: fmt.Sprintf(format, args...), Hint: "sbctl doctor"}
}

func unavailable(socket string, err error) error {
	what := err
	if path, ok := errors.AsType[*fs.PathError](err); ok {
		what = path.Err
	} else if call, ok := errors.AsType[*os.SyscallError](err); ok {
		what = call.Err
	}
	if errors.Is(err, fs.ErrPermission) { // somebody may well listen, and no start of theirs mends it
		return &wire.Error{Reason: wire.BrokerUnavailable, Message: fmt.Sprintf("uid %d may not connect to %s: %v", os.Geteuid(), socket, what), Hint: "sbctl doctor"}
	}
	return &wire.Error{Reason: wire.BrokerUnavailable, Message: fmt.Sprintf("nobody listens at %s: %v", socket, what), Hint: startHint}
}
