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

// checkPath looks at the socket and the directories above it, without
// following a link at the end of either, and returns the uid that owns them.
func checkPath(places Places, socket string) (owner int, err error) {
	// Whoever may write here could put a whole broker/ of his own.
	if top, err := os.Stat(places.SocketDir); err == nil && top.Mode().Perm()&0o002 != 0 {
		return 0, refuse("directory %s is writable by everybody", places.SocketDir)
	}
	own := os.Geteuid()
	dir := filepath.Dir(socket)
	for _, part := range []struct {
		path, noun string
		kind       fs.FileMode
		limit      fs.FileMode
	}{
		{dir, "directory", fs.ModeDir, 0o700},
		{socket, "socket", fs.ModeSocket, 0o600},
	} {
		info, err := os.Lstat(part.path)
		if err != nil {
			return 0, unavailable(socket, err)
		}
		if info.Mode().Type() != part.kind {
			return 0, refuse("%s is not a %s", part.path, part.noun)
		}
		if loose := info.Mode().Perm() &^ part.limit; loose != 0 {
			return 0, refuse("%s %s has mode %04o, want %04o", part.noun, part.path, info.Mode().Perm(), part.limit)
		}
		stat, ok := info.Sys().(*syscall.Stat_t)
		if !ok {
			return 0, wire.Deny(wire.PlatformUnsupported)
		}
		if owner = int(stat.Uid); owner != own {
			return 0, refuse("%s %s belongs to uid %d, not to uid %d", part.noun, part.path, owner, own)
		}
	}
	return owner, nil
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
	if who.uid != owner {
		return refuse("uid %d listens at %s, which belongs to uid %d", who.uid, socket, owner)
	}
	if who.pid == 0 || places.HomeUnknown || activated(who.pid) {
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
	return &wire.Error{Reason: wire.BrokerUnavailable, Message: fmt.Sprintf("nobody listens at %s: %v", socket, what), Hint: startHint}
}
