package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
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

// audience is who may connect to one socket beside its owner: nobody, or the
// members of one group.
type audience struct {
	shared bool
	gid    uint32
	uids   []uint32 // members of the group
}

func (a audience) dirMode() fs.FileMode {
	if a.shared {
		return 0o750
	}
	return 0o700
}

func (a audience) mode() fs.FileMode {
	if a.shared {
		return 0o660
	}
	return 0o600
}

func (a audience) modeOf(kind fs.FileMode) fs.FileMode {
	if kind == fs.ModeDir {
		return a.dirMode()
	}
	return a.mode()
}

// passable is the mode of a socket directory that others may pass through, to
// the directory that is theirs.
const passable = fs.FileMode(0o711)

// same reports whether two audiences look alike on the disk.
func (a audience) same(b audience) bool {
	return a.shared == b.shared && (!a.shared || a.gid == b.gid)
}

// groupNames are what the groups are called that the documentation makes.
var groupNames = map[door]string{brokerDoor: "sb-subjects", operatorDoor: "sb-operators"}

// socketPath is the path of a socket.
func (d *Daemon) socketPath(at door) string {
	if at == brokerDoor {
		return place.BrokerSocket(d.socketDir)
	}
	return place.OperatorSocket(d.socketDir)
}

// wantedUIDs are those whom a socket must be open for.
func (d *Daemon) wantedUIDs(at door) []uint32 {
	if at == operatorDoor {
		return d.doors.operators
	}
	return d.subjectUIDs()
}

// audienceFor finds the group of a socket for exactly these uids. It refuses in
// words that say what is missing.
func (d *Daemon) audienceFor(at door, uids []uint32) (audience, error) {
	if len(uids) == 0 {
		return audience{}, nil
	}
	if below(d.home, place.BrokerSocket(d.socketDir)) {
		return audience{}, errors.New("another uid cannot reach a socket in the home: move the sockets out of it, for example to /run/subject-broker, with socketDir in config.yaml or sbd --socket-dir")
	}
	known, err := readAccounts(d.passwd, d.groups)
	if err != nil {
		return audience{}, err
	}
	var here uint32
	if info, err := os.Lstat(filepath.Dir(d.socketPath(at))); err == nil {
		here = info.Sys().(*syscall.Stat_t).Gid
	}
	gid, ok := known.groupOf(uids, d.doors.own, func(gid uint32) bool { return gid == here || mayGive(gid) })
	if !ok {
		return audience{}, fmt.Errorf("the %s socket: %s", at, known.recipe(uids, d.doors.own, here, groupNames[at]))
	}
	members, _, _ := known.members(gid)
	return audience{shared: true, gid: gid, uids: members}, nil
}

// mayGive says whether the kernel lets this process give a file to a group. Where
// each account has a group of its own name, that of a single uid has exactly the
// right member and is of no use.
func mayGive(gid uint32) bool {
	if os.Geteuid() == 0 || os.Getegid() == int(gid) {
		return true
	}
	groups, err := os.Getgroups()
	return err == nil && slices.Contains(groups, int(gid))
}

// kept is who a socket's directory is open for as it lies there: while the vault
// is locked nobody knows who should be.
func (d *Daemon) kept(at door) audience {
	info, err := os.Lstat(filepath.Dir(d.socketPath(at)))
	if err != nil || !info.IsDir() || info.Mode().Perm() != 0o750 || below(d.home, d.socketPath(at)) {
		return audience{}
	}
	stat := info.Sys().(*syscall.Stat_t)
	known, err := readAccounts(d.passwd, d.groups)
	if stat.Uid != d.doors.own || err != nil {
		return audience{}
	}
	members, _, strangers := known.members(stat.Gid)
	if len(strangers) > 0 || len(without(members, d.doors.own)) == 0 {
		return audience{}
	}
	return audience{shared: true, gid: stat.Gid, uids: members}
}

// listenAll listens on both sockets, or takes them from the service manager. The
// directories are closed before a socket exists in them, and the sockets as
// closed as they must be from their first instant.
func (d *Daemon) listenAll() (*sockets, error) {
	for _, at := range []door{brokerDoor, operatorDoor} {
		to, err := d.audienceFor(at, d.wantedUIDs(at))
		if err != nil {
			return nil, fault(wire.SocketUnsafe, "%w", err)
		}
		if at == brokerDoor && d.locked() {
			to = d.kept(at)
		}
		d.doors.opens(at, to)
	}
	if s, err := d.activatedSockets(); s != nil || err != nil {
		return s, err
	}
	if err := d.makeSocketDirs(); err != nil {
		return nil, err
	}
	broker, err := d.listen(brokerDoor)
	if err != nil {
		return nil, err
	}
	operator, err := d.listen(operatorDoor)
	if err != nil {
		return nil, errors.Join(err, broker.Close())
	}
	return &sockets{broker: broker, operator: operator}, nil
}

// activatedSockets returns the listeners that systemd passed under the names of
// our units, or nil when it passed none.
func (d *Daemon) activatedSockets() (*sockets, error) {
	named, err := activation.ListenersWithNames()
	if err != nil {
		return nil, fault(wire.SocketUnsafe, "taking sockets from the service manager: %w", err)
	}
	if len(named) == 0 {
		return nil, nil
	}
	s := &sockets{activated: true}
	for at, target := range map[door]*net.Listener{brokerDoor: &s.broker, operatorDoor: &s.operator} {
		passed := named[string(at)]
		if len(passed) != 1 || passed[0] == nil {
			return nil, fault(wire.SocketUnsafe, "the service manager passed %d sockets named %s, want one", len(passed), at)
		}
		address, ok := passed[0].Addr().(*net.UnixAddr)
		if !ok {
			return nil, fault(wire.SocketUnsafe, "the service manager's socket %s is not a Unix socket", at)
		}
		if address.Name != d.socketPath(at) {
			if d.doors.openFor(at).shared {
				return nil, fault(wire.SocketUnsafe, "the service manager's socket %s is %s, and the socket directory is %s", at, address.Name, d.socketDir)
			}
			if err := checkSocket(address.Name, audience{}); err != nil {
				return nil, err
			}
		} else if err := d.settleDoor(at); err != nil {
			return nil, err
		}
		*target = passed[0]
	}
	return s, nil
}

// followSubjects opens the broker's socket for the uids that are subjects now,
// and for no others. Where no group has exactly those, it stays as it is as long
// as all of them get in, and is closed to other uids otherwise: a uid that should
// not get in is turned away by mayEnter.
func (d *Daemon) followSubjects() {
	if !d.doors.listening() || d.locked() {
		return
	}
	d.doors.following.Lock()
	defer d.doors.following.Unlock()
	now, want := d.doors.openFor(brokerDoor), d.subjectUIDs()
	to, err := d.audienceFor(brokerDoor, want)
	if err != nil {
		d.logger.Warn("the broker socket cannot be opened for the uids of subjects", "error", err)
		if to = (audience{}); now.shared && !slices.ContainsFunc(want, func(uid uint32) bool { return !slices.Contains(now.uids, uid) }) {
			to = now
		}
	}
	d.doors.opens(brokerDoor, to)
	if to.same(now) {
		return
	}
	if err := d.settleDoor(brokerDoor); err != nil {
		d.doors.opens(brokerDoor, audience{})
		d.logger.Warn("the broker socket cannot be opened for the uids of subjects", "error", err)
	}
}

// settleDoor gives the directory and the socket that lie there already to those
// who are meant, and to nobody before.
func (d *Daemon) settleDoor(at door) error {
	to, path := d.doors.openFor(at), d.socketPath(at)
	dir := filepath.Dir(path)
	if to.shared {
		if checkDir(d.socketDir, 0o700) == nil { // closed as long as nobody else was meant
			if err := os.Chmod(d.socketDir, passable); err != nil {
				return fault(wire.SocketUnsafe, "%w", err)
			}
		}
		if err := d.checkWay(); err != nil {
			return err
		}
	}
	for _, part := range []struct {
		path string
		kind fs.FileMode
	}{{path, fs.ModeSocket}, {dir, fs.ModeDir}} {
		if err := d.admitTo(part.path, part.kind, to.modeOf(part.kind), to); err != nil {
			return fault(wire.SocketUnsafe, "%w", err)
		}
	}
	return checkSocket(path, to)
}

// admitTo gives a directory or socket of ours its group and mode. It is closed to
// everybody while the group changes. What is another's, of another kind, or open
// in a way that we never make, is left alone.
func (d *Daemon) admitTo(path string, kind, mode fs.FileMode, to audience) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	stat := info.Sys().(*syscall.Stat_t)
	if info.Mode()&fs.ModeSymlink != 0 {
		return fmt.Errorf("%s is a symbolic link", path)
	}
	if info.Mode().Type() != kind || int(stat.Uid) != os.Geteuid() {
		return fmt.Errorf("%s must be a %s of uid %d", path, kindName(kind), os.Geteuid())
	}
	wasShared := info.Mode().Perm() == (audience{shared: true}).modeOf(kind) && !below(d.home, path)
	if loose := info.Mode().Perm() &^ mode; loose != 0 && !wasShared {
		return fmt.Errorf("%s has mode %04o, not %04o", path, info.Mode().Perm(), mode)
	}
	if to.shared && stat.Gid != to.gid {
		if err := os.Chmod(path, mode&0o700); err != nil {
			return err
		}
		if err := os.Lchown(path, -1, int(to.gid)); err != nil {
			return fmt.Errorf("giving %s to group %d: %w; sbd must be a member of that group", path, to.gid, errnoOf(err))
		}
	} else if info.Mode().Perm() == mode {
		return nil
	}
	return os.Chmod(path, mode)
}

func kindName(kind fs.FileMode) string {
	if kind == fs.ModeSocket {
		return "socket"
	}
	return "directory"
}

func errnoOf(err error) error {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno
	}
	return err
}

// checkSocket wants an existing socket, in a directory, that nobody can reach
// who is not meant.
func checkSocket(path string, to audience) error {
	info, err := os.Lstat(path)
	if err != nil {
		return fault(wire.SocketUnsafe, "%w", err)
	}
	stat := info.Sys().(*syscall.Stat_t)
	if info.Mode()&fs.ModeSocket == 0 || int(stat.Uid) != os.Geteuid() || info.Mode().Perm() != to.mode() {
		return fault(wire.SocketUnsafe, "%s must be a socket of uid %d with mode %04o", path, os.Geteuid(), to.mode())
	}
	dir := filepath.Dir(path)
	if err := checkDir(dir, to.dirMode()); err != nil {
		return fault(wire.SocketUnsafe, "%w", err)
	}
	if !to.shared {
		return nil
	}
	above, err := os.Lstat(dir)
	if err != nil {
		return fault(wire.SocketUnsafe, "%w", err)
	}
	for where, gid := range map[string]uint32{path: stat.Gid, dir: above.Sys().(*syscall.Stat_t).Gid} {
		if gid != to.gid {
			return fault(wire.SocketUnsafe, "%s belongs to group %d, not to group %d", where, gid, to.gid)
		}
	}
	return nil
}

// makeSocketDirs makes the socket directory and one directory for each socket,
// and refuses loose ones.
func (d *Daemon) makeSocketDirs() error {
	for _, at := range []door{brokerDoor, operatorDoor} {
		if err := place.CheckSocketPath(d.socketPath(at)); err != nil {
			return fault(wire.SocketUnsafe, "%w", err)
		}
	}
	shared := d.doors.openFor(brokerDoor).shared || d.doors.openFor(operatorDoor).shared
	mode := fs.FileMode(0o700)
	if shared {
		mode = passable
	}
	made := os.Mkdir(d.socketDir, mode)
	if made != nil && !errors.Is(made, fs.ErrExist) {
		return fault(wire.SocketUnsafe, "making the socket directory: %w", made)
	}
	if shared {
		if made == nil || checkDir(d.socketDir, 0o700) == nil {
			if err := os.Chmod(d.socketDir, mode); err != nil { // whatever the umask
				return fault(wire.SocketUnsafe, "%w", err)
			}
		}
		if err := d.checkWay(); err != nil {
			return err
		}
	} else {
		if err := d.checkTop(); err != nil {
			return fault(wire.SocketUnsafe, "%w", err)
		}
		if err := checkParents(d.socketDir); err != nil {
			return fault(wire.SocketUnsafe, "%w", err)
		}
	}
	for _, at := range []door{brokerDoor, operatorDoor} {
		to, dir := d.doors.openFor(at), filepath.Dir(d.socketPath(at))
		if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return fault(wire.SocketUnsafe, "making the socket directory: %w", err)
		}
		if err := d.admitTo(dir, fs.ModeDir, to.dirMode(), to); err != nil {
			return fault(wire.SocketUnsafe, "%w", err)
		}
		if err := checkDir(dir, to.dirMode()); err != nil {
			return fault(wire.SocketUnsafe, "%w", err)
		}
	}
	return nil
}

// checkTop wants the socket directory to be ours alone, or, outside the home, to
// be one that others may pass through: its sockets were shared, or will be.
func (d *Daemon) checkTop() error {
	err := checkDir(d.socketDir, 0o700)
	if err == nil || below(d.home, place.BrokerSocket(d.socketDir)) {
		return err
	}
	for _, mode := range []fs.FileMode{passable, 0o755} {
		if checkDir(d.socketDir, mode) == nil {
			return nil
		}
	}
	return err
}

// checkWay wants a way to shared sockets that others can walk and only root and
// we can change: whoever can rename a directory on it can put another daemon in
// our place, and a client of another uid could not tell.
func (d *Daemon) checkWay() error { return d.checkWayFrom(d.socketDir) }

// checkWayTo is checkWay before a socket is opened for others: the socket
// directory itself may still be closed.
func (d *Daemon) checkWayTo(at door) error {
	if d.doors.openFor(at).shared || checkDir(d.socketDir, 0o700) != nil {
		return d.checkWay()
	}
	return d.checkWayFrom(filepath.Dir(d.socketDir))
}

func (d *Daemon) checkWayFrom(last string) error {
	if info, err := os.Lstat(d.socketDir); err != nil {
		return fault(wire.SocketUnsafe, "%w", err)
	} else if !info.IsDir() {
		return fault(wire.SocketUnsafe, "%s is not a directory", d.socketDir)
	}
	resolved, err := filepath.EvalSymlinks(last)
	if err != nil {
		return fault(wire.SocketUnsafe, "%w", err)
	}
	for dir := resolved; ; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err != nil {
			return fault(wire.SocketUnsafe, "%w", err)
		}
		stat := info.Sys().(*syscall.Stat_t)
		switch {
		case stat.Uid != 0 && int(stat.Uid) != os.Geteuid():
			return fault(wire.SocketUnsafe, "%s belongs to uid %d, who could replace what is in it", dir, stat.Uid)
		case info.Mode().Perm()&0o022 != 0:
			return fault(wire.SocketUnsafe, "%s can be written by others (mode %04o): choose a socket directory whose parents only root can change, such as /run/subject-broker", dir, info.Mode().Perm())
		case info.Mode().Perm()&0o001 == 0:
			return fault(wire.SocketUnsafe, "%s cannot be entered by other uids (mode %04o)", dir, info.Mode().Perm())
		}
		if dir == filepath.Dir(dir) {
			return nil
		}
	}
}

// listen replaces a stale socket of ours and refuses anything else at its path.
func (d *Daemon) listen(at door) (net.Listener, error) {
	path, to := d.socketPath(at), d.doors.openFor(at)
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
	if checkSocket(path, to) != nil { // it is shared, or the descriptor's mode does not count here
		if err := os.Chmod(path, 0o600); err != nil {
			return nil, errors.Join(fault(wire.SocketUnsafe, "%w", err), listener.Close())
		}
		if err := d.admitTo(path, fs.ModeSocket, to.mode(), to); err != nil {
			return nil, errors.Join(fault(wire.SocketUnsafe, "%w", err), listener.Close())
		}
	}
	if err := checkSocket(path, to); err != nil {
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
