package daemon

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"subjectbroker/daemon/peer"
	"subjectbroker/proto/place"
	"subjectbroker/proto/wire"
)

// view is what a waiting tree can see, looked at from outside: its root, and the
// mounts in its mount namespace. What is looked up in it is looked up as its own
// processes would, so that a link inside cannot lead the daemon elsewhere.
type view struct {
	pid  int32
	root *os.File
	tree []mount // in the tree
	ours []mount // of this process

	shared map[string]bool // file systems, by device, that we see or the tree's parent does
}

// mount is one line of /proc/PID/mountinfo.
type mount struct {
	id     uint64
	device string // major:minor
	root   string // which part of the file system it shows
	point  string // where
	ro     bool   // this mount is read-only, or its whole file system
	fstype string
}

// object is a file or directory, wherever it is seen.
type object struct {
	dev, ino uint64
	mountID  uint64 // through which it was seen
	mode     uint32
	rdev     uint64
}

func (o object) same(other object) bool { return o.dev == other.dev && o.ino == other.ino }

// probeView looks at the tree of a first process that waits, and refuses it in
// words for the first piece of its tier that does not hold. It sees mounts and
// namespaces; a Landlock ruleset cannot be seen from outside and is not counted.
// That the first process, which is sbctl, does not undo afterwards what it has
// shown is not probed: the operator runs it. parent is the process that started it.
func (d *Daemon) probeView(l launchRow, ns peer.Namespaces, parent int32) error {
	v, err := openView(l.pid, parent)
	if err != nil {
		return unsupported("a view that sbd can look at: %v", err)
	}
	defer v.root.Close()
	probes := []func() error{
		func() error { return v.probeUser(l.uid) },
		func() error { return v.probeProc(ns.PID) },
		func() error { return v.probeHidden(d.home, d.socketDir) },
		func() error { return v.probeBroker(d.socketDir) },
		func() error { return v.probeWaysOut(l.uid) },
	}
	if l.workspace != "" {
		probes = append(probes, func() error { return v.probeWorkspace(l.workspace, d.ownPlaces()) }, func() error { return v.probeClosed(l.workspace) })
		if l.uid == 0 {
			probes = append(probes, v.probeOrders)
		}
	}
	if l.noNet {
		probes = append(probes, func() error { return v.probeNet(ns.Net) })
	}
	for _, probe := range probes {
		err := probe()
		if _, typed := errors.AsType[*wire.Error](err); err != nil && !typed {
			return unsupported("a view that sbd can look at: %v", err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func openView(pid, parent int32) (*view, error) {
	v := &view{pid: pid, shared: map[string]bool{}}
	var err error
	if v.tree, err = readMounts(pid); err != nil {
		return nil, err
	}
	if v.ours, err = readMounts(ownPID()); err != nil {
		return nil, err
	}
	parents, err := readMounts(parent) // which may not live in our mount namespace
	if err != nil {
		return nil, err
	}
	for _, m := range slices.Concat(v.ours, parents) {
		v.shared[m.device] = true
	}
	fd, err := unix.Open(fmt.Sprintf("/proc/%d/root", pid), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("its root: %w", err)
	}
	v.root = os.NewFile(uintptr(fd), "root")
	return v, nil
}

// readMounts reads the mounts that a process sees.
func readMounts(pid int32) ([]mount, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
	if err != nil {
		return nil, err
	}
	return parseMounts(raw)
}

func parseMounts(raw []byte) ([]mount, error) {
	var all []mount
	lines := bufio.NewScanner(bytes.NewReader(raw))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		dash := slices.Index(fields, "-")
		if dash < 6 || len(fields) < dash+4 {
			return nil, errors.New("a line of mountinfo is malformed")
		}
		id, err := strconv.ParseUint(fields[0], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("mountinfo: %w", err)
		}
		m := mount{id: id, device: fields[2], root: unescape(fields[3]), point: unescape(fields[4]), fstype: fields[dash+1]}
		m.ro = slices.Contains(strings.Split(fields[5], ","), "ro") || slices.Contains(strings.Split(fields[dash+3], ","), "ro")
		all = append(all, m)
	}
	return all, lines.Err()
}

// unescape undoes the octal escapes of mountinfo.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if c, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(c))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// lookup finds what the tree sees at a path; false when it sees nothing there.
func (v *view) lookup(path string) (object, bool, error) {
	f, err := v.open(path, unix.O_PATH)
	if err != nil || f == nil {
		return object{}, false, err
	}
	defer f.Close()
	o, err := identify(f)
	return o, err == nil, err
}

// open opens what the tree sees at a path; nil when it sees nothing there.
func (v *view) open(path string, flags uint64) (*os.File, error) {
	how := unix.OpenHow{Flags: flags | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS}
	for range 100 {
		fd, err := unix.Openat2(int(v.root.Fd()), path, &how)
		switch {
		case err == nil:
			return os.NewFile(uintptr(fd), path), nil
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR): // something was renamed or mounted meanwhile
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.EACCES), errors.Is(err, unix.ELOOP):
			return nil, nil
		default:
			return nil, fmt.Errorf("looking at %s: %w", path, err)
		}
	}
	return nil, fmt.Errorf("looking at %s: it does not stand still", path)
}

func identify(f *os.File) (object, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return object{}, err
	}
	var stx unix.Statx_t
	if err := unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &stx); err != nil {
		return object{}, err
	}
	if stx.Mask&unix.STATX_MNT_ID == 0 {
		return object{}, errors.New("the kernel does not name the mount of a file")
	}
	return object{dev: st.Dev, ino: st.Ino, mountID: stx.Mnt_id, mode: st.Mode, rdev: st.Rdev}, nil
}

// outside finds what we see at a path; false when nothing is there.
func outside(path string) (object, bool, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return object{}, false, nil
	}
	if err != nil {
		return object{}, false, fmt.Errorf("looking at %s: %w", path, err)
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	o, err := identify(f)
	return o, err == nil, err
}

// outsideExactly finds what we see at a path that leads over no link; the zero
// object when nothing is there.
func outsideExactly(path string) (object, error) {
	if real, err := filepath.EvalSymlinks(path); err != nil || real != path {
		return object{}, nil //nolint:nilerr // then it is not there
	}
	o, _, err := outside(path)
	return o, err
}

// origin is where an object lies in its file system.
type origin struct {
	device, path string
}

// originOf finds where that is, by the mount through which we see the object.
func (v *view) originOf(path string, o object) (origin, error) {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return origin{}, err
	}
	for _, m := range v.ours {
		if m.id != o.mountID {
			continue
		}
		rel, err := filepath.Rel(m.point, real)
		if err != nil {
			return origin{}, err
		}
		return origin{m.device, filepath.Join(m.root, rel)}, nil
	}
	return origin{}, fmt.Errorf("no mount shows %s", path)
}

// probeUser makes sure that the tree has no other uid than ours: nothing in it
// becomes somebody else.
func (v *view) probeUser(uid uint32) error {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/uid_map", v.pid))
	if err != nil {
		return err
	}
	fields := strings.Fields(string(raw))
	if len(fields) != 3 || fields[2] != "1" || fields[1] != strconv.FormatUint(uint64(uid), 10) {
		return unsupported("a user namespace in which there is no uid but its own")
	}
	return nil
}

// probeProc makes sure that the tree sees the processes of its own pid namespace
// only, and that there is none yet but the first.
func (v *view) probeProc(ns peer.Namespace) error {
	lacks := unsupported("a /proc of its own")
	dir, err := v.open("/proc", unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	if dir == nil {
		return lacks
	}
	defer dir.Close()
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(dir.Fd()), &fs); err != nil {
		return err
	}
	link := make([]byte, 64)
	n, err := unix.Readlinkat(int(dir.Fd()), "1/ns/pid", link)
	if fs.Type != unix.PROC_SUPER_MAGIC || err != nil || string(link[:n]) != fmt.Sprintf("pid:[%d]", ns.Ino) {
		return lacks
	}
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil && pid != 1 {
			return unsupported("a first process that is alone until it is a launch")
		}
	}
	at, err := identify(dir)
	if err != nil {
		return err
	}
	device := ""
	for _, m := range v.tree {
		if m.id == at.mountID {
			device = m.device
		}
	}
	for _, m := range v.tree {
		if m.fstype != "proc" || m.device == device {
			continue
		}
		if seen, err := v.sees(m); err != nil {
			return err
		} else if seen {
			return unsupported("a view without other processes: %s shows them", m.point)
		}
	}
	return nil
}

// sees reports whether the tree can reach a mount, that is, nothing covers it.
func (v *view) sees(m mount) (bool, error) {
	o, there, err := v.lookup(m.point)
	return there && o.mountID == m.id, err
}

// probeHidden makes sure that no path of the tree leads to the broker's home or
// to the operator's socket, through no mount of it either; what is in the home
// may be seen only below the directory of the broker's socket.
func (v *view) probeHidden(home, socketDir string) error {
	homeOrigin, brokerOrigin := origin{}, origin{}
	broker := filepath.Dir(place.BrokerSocket(socketDir))
	if o, there, err := outside(broker); err != nil {
		return err
	} else if there {
		if brokerOrigin, err = v.originOf(broker, o); err != nil {
			return err
		}
	}
	operator := place.OperatorSocket(socketDir)
	for _, path := range []string{
		home, place.VaultFile(home), place.KeyFile(home), place.AuditKey(home), place.AuditDir(home), place.LockFile(home),
		filepath.Dir(operator), operator,
	} {
		o, there, err := outside(path)
		if err != nil {
			return err
		}
		if !there {
			continue
		}
		from, err := v.originOf(path, o)
		if err != nil {
			return err
		}
		if path == home {
			homeOrigin = from
		}
		if err := v.hides(path, o, from); err != nil {
			return err
		}
	}
	for _, m := range v.tree {
		part := origin{m.device, m.root}
		if m.device != homeOrigin.device || !inside(homeOrigin.path, m.root) || part == brokerOrigin {
			continue
		}
		if seen, err := v.sees(m); err != nil {
			return err
		} else if seen {
			return unsupported("a view without the broker's home: a part of it is at %s", m.point)
		}
	}
	return nil
}

// hides makes sure that an object of ours is not what the tree sees at its path,
// nor where any of its mounts would show it.
func (v *view) hides(path string, o object, from origin) error {
	paths := []string{path}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		paths = append(paths, real)
	}
	for _, m := range v.tree {
		if m.device == from.device && inside(m.root, from.path) {
			rel, err := filepath.Rel(m.root, from.path)
			if err != nil {
				return err
			}
			paths = append(paths, filepath.Join(m.point, rel))
		}
	}
	slices.Sort(paths)
	for _, candidate := range slices.Compact(paths) {
		seen, there, err := v.lookup(candidate)
		if err != nil {
			return err
		}
		if there && seen.same(o) {
			return unsupported("a view without %s: it is at %s", path, candidate)
		}
	}
	return nil
}

// probeBroker makes sure that the tree reaches the broker's socket, and cannot
// put another one in its place.
func (v *view) probeBroker(socketDir string) error {
	dir := filepath.Dir(place.BrokerSocket(socketDir))
	ours, there, err := outside(dir)
	if err != nil {
		return err
	}
	seen, visible, err := v.lookup(dir)
	if err != nil {
		return err
	}
	if !there || !visible || !seen.same(ours) {
		return unsupported("the directory of the broker's socket, %s", dir)
	}
	for _, m := range v.tree {
		if m.id == seen.mountID && m.ro {
			return nil
		}
	}
	return unsupported("a read-only directory of the broker's socket: another one could be put there")
}

// probeWaysOut makes sure that what would do something outside for the tree is not
// there: the session bus and the runtime directory, managers of services and of
// containers, terminals of others.
func (v *view) probeWaysOut(uid uint32) error {
	id := strconv.FormatUint(uint64(uid), 10)
	for _, path := range []string{
		"/run/user/" + id, "/run/dbus", "/run/systemd/private", "/run/docker.sock", "/run/podman", "/run/containerd", "/run/crio",
		"/run/screen", "/tmp/tmux-" + id,
	} {
		o, there, err := outside(path)
		if errors.Is(err, unix.EACCES) { // then the tree cannot, either
			continue
		}
		if err != nil {
			return err
		}
		if !there {
			continue
		}
		from, err := v.originOf(path, o)
		if err != nil {
			return err
		}
		if err := v.hides(path, o, from); err != nil {
			return err
		}
	}
	return nil
}

// devices that a tree may have: null, zero, full, random, urandom, tty and ptmx.
var harmless = map[uint64]bool{
	unix.Mkdev(1, 3): true, unix.Mkdev(1, 5): true, unix.Mkdev(1, 7): true, unix.Mkdev(1, 8): true, unix.Mkdev(1, 9): true,
	unix.Mkdev(5, 0): true, unix.Mkdev(5, 2): true,
}

// kinds of file systems that a tree may have for itself alone: what is in them is
// nowhere else. Others keep it in a file or folder outside, or with a process.
var private = map[string]bool{"tmpfs": true, "devpts": true, "proc": true}

// owns reports whether the tree alone has the file system of a mount.
func (v *view) owns(m mount) bool { return private[m.fstype] && !v.shared[m.device] }

// probeWorkspace makes sure that no mount of ours makes a workspace overlap with
// what is the broker's, whatever their paths are.
func (v *view) probeWorkspace(workspace string, places []string) error {
	var all []origin
	for _, path := range append([]string{workspace}, places...) {
		o, there, err := outside(path)
		if err != nil {
			return err
		}
		if !there {
			return fmt.Errorf("there is no %s", path)
		}
		from, err := v.originOf(path, o)
		if err != nil {
			return err
		}
		all = append(all, from)
	}
	for i, own := range all[1:] {
		if own.device == all[0].device && (inside(own.path, all[0].path) || inside(all[0].path, own.path)) {
			return refuse("workspace: %s contains %s or lies in it, which is the broker's", workspace, places[i])
		}
	}
	return nil
}

// probeClosed makes sure that the tree can write nowhere but in its workspace,
// which must be the folder that we see there, and in file systems that it alone
// has.
func (v *view) probeClosed(workspace string) error {
	for _, m := range v.tree {
		if m.ro || v.owns(m) {
			continue
		}
		o, there, err := v.lookup(m.point)
		if err != nil {
			return err
		}
		if !there || o.mountID != m.id { // covered
			continue
		}
		if o.mode&unix.S_IFMT == unix.S_IFCHR && harmless[o.rdev] {
			continue
		}
		if inside(workspace, m.point) {
			if ours, err := outsideExactly(m.point); err != nil {
				return err
			} else if ours.same(o) {
				continue
			}
		}
		return unsupported("a closed view: %s can be written", m.point)
	}
	return nil
}

// orders are the places in /proc where uid 0 gives orders to the kernel without any
// capability.
var orders = []string{"sys", "sysrq-trigger", "irq", "bus", "fs", "acpi", "scsi"}

// probeOrders makes sure that a tree of uid 0 writes to none of them.
func (v *view) probeOrders() error {
	for _, name := range orders {
		path := "/proc/" + name
		o, there, err := v.lookup(path)
		if err != nil {
			return err
		}
		if there && !slices.ContainsFunc(v.tree, func(m mount) bool { return m.id == o.mountID && m.ro }) {
			return unsupported("a closed view: %s can be written", path)
		}
	}
	return nil
}

// probeNet makes sure that the tree has a network of its own with nothing in it
// but a loopback.
func (v *view) probeNet(ns peer.Namespace) error {
	own, err := peer.NamespacesOf(ownPID())
	if err != nil {
		return err
	}
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/dev", v.pid))
	if err != nil {
		return err
	}
	lines := strings.Split(strings.TrimSpace(string(raw)), "\n")
	for _, line := range lines[min(2, len(lines)):] { // after the headings
		if name, _, _ := strings.Cut(strings.TrimSpace(line), ":"); name != "lo" {
			return unsupported("a view without a network: there is %s", peer.Printable(name))
		}
	}
	if ns == own.Net {
		return unsupported("a network of its own")
	}
	return nil
}
