package launch

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// devices are all that a tree has of /dev, beside terminals of its own.
var devices = []string{"null", "zero", "full", "random", "urandom", "tty"}

const (
	mountHint = usernsHint
	procHint  = "in a container, /proc must not be masked (docker: --security-opt systempaths=unconfined)"
)

// tree of mounts, detached, to be put somewhere.
type clone struct {
	fd  int
	dir bool
}

// drop lets go of a clone that is not needed.
func (c *clone) drop() {
	if c != nil {
		unix.Close(c.fd)
	}
}

// builder carries a view out in the mount namespace of this process. The first
// error stays and makes the rest do nothing.
type builder struct {
	view   *view
	nested nesting
	top    string // where the root of the tree is being made: "" or a directory
	err    error
}

func (b *builder) fail(doing string, err error) {
	if b.err == nil && err != nil {
		b.err = fmt.Errorf("%s: %w", doing, err)
	}
}

// at is where path of the tree is now.
func (b *builder) at(path string) string { return b.top + path }

// build is all of it. What is inherited stays under locks of the kernel.
func build(v *view, nested nesting, mark Marker) error {
	if nested == noMounts {
		return nil
	}
	b := &builder{view: v, nested: nested}
	// Private: what is mounted outside later, the home at another place maybe, must
	// not appear inside, where nobody looks any more.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return missing("mounts in a user namespace", mountHint, err)
	}
	// Everything that will be shown again is taken in hand before it is covered.
	var broker *clone
	if v.broker != "" {
		broker = b.clone(v.broker, true)
	}
	kept := b.cloneAll(v.kept)
	places := b.cloneAll(v.places)
	nulls := b.nulls()
	nodes := map[string]*clone{}
	for _, name := range devices {
		nodes[name] = b.clone("/dev/"+name, false)
	}
	b.noDevices()
	if v.sandbox {
		b.newRoot(places)
	} else {
		b.pin()
	}
	b.cover(nulls)
	b.run(kept, mark)
	b.attach(broker, v.broker)
	b.dev(nodes)
	b.proc()
	b.freeze()
	if v.sandbox {
		b.pivot()
	}
	return b.err
}

// clone takes a tree of mounts in hand, read-only when asked for. What cannot
// be taken is an error.
func (b *builder) clone(path string, ro bool) *clone {
	if b.err != nil {
		return nil
	}
	fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE|unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		b.fail("taking "+path, missing("mounts in a user namespace", mountHint, err))
		return nil
	}
	if ro {
		// No setuid, no devices: nothing that is shown read-only needs them.
		attr := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV}
		if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, attr); err != nil {
			b.fail("making "+path+" read-only", missing("read-only mounts (mount_setattr, from Linux 5.12 on)", "", err))
		}
	}
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		b.fail("looking at "+path, err)
	}
	return &clone{fd: fd, dir: stat.Mode&unix.S_IFMT == unix.S_IFDIR}
}

// nulls takes what covers a file, once for each: a mount that is not in the tree
// yet cannot be bound a second time (Linux before 6.15), only put somewhere.
func (b *builder) nulls() map[string]*clone {
	clones := map[string]*clone{}
	for _, c := range b.view.covers {
		if c.file {
			clones[c.path] = b.clone("/dev/null", false)
		}
	}
	return clones
}

// noDevices makes device files, of which uid 0 may have some in odd places,
// mere files. Those of /dev have been taken before.
func (b *builder) noDevices() {
	if b.err != nil {
		return
	}
	attr := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NODEV}
	if err := unix.MountSetattr(unix.AT_FDCWD, "/", unix.AT_RECURSIVE, attr); err != nil {
		b.fail("taking devices away", missing("read-only mounts (mount_setattr, from Linux 5.12 on)", "", err))
	}
}

func (b *builder) cloneAll(places []place) map[string]*clone {
	clones := map[string]*clone{}
	for _, p := range places {
		if p.kind == readOnly || p.kind == readWrite {
			clones[p.path] = b.clone(p.path, p.kind == readOnly)
			if c := clones[p.path]; c != nil && p.kind == readWrite {
				attr := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV}
				b.fail("taking devices away from "+p.path, unix.MountSetattr(c.fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, attr))
			}
		}
	}
	return clones
}

// pin makes mounts of the directories above the broker's home and its sockets
// that this uid could rename: moving one would put another home in the place of
// the true one, outside too. A mount cannot be moved away.
func (b *builder) pin() {
	pinned := map[string]bool{}
	for _, path := range []string{b.view.home, b.view.broker} {
		if path == "" {
			continue
		}
		for _, dir := range parents(path) {
			if pinned[dir] || unix.Access(filepath.Dir(dir), unix.W_OK) != nil {
				continue
			}
			pinned[dir] = true
			b.attach(b.clone(dir, false), dir)
		}
	}
}

// parents are the directories that path lies in, from the top, without the root.
func parents(path string) []string {
	var dirs []string
	for dir := filepath.Dir(path); dir != "/" && dir != "."; dir = filepath.Dir(dir) {
		dirs = append(dirs, dir)
	}
	slices.Reverse(dirs)
	return dirs
}

// attach puts a clone where the tree has path, making the way there. A clone
// is used up.
func (b *builder) attach(c *clone, path string) {
	if b.err != nil || c == nil {
		return
	}
	b.ground(path, c.dir)
	if b.err == nil {
		b.fail("showing "+path, unix.MoveMount(c.fd, "", unix.AT_FDCWD, b.at(path), unix.MOVE_MOUNT_F_EMPTY_PATH))
	}
	c.drop()
}

// ground makes sure that there is something to mount on.
func (b *builder) ground(path string, dir bool) {
	if b.err != nil {
		return
	}
	target := b.at(path)
	if _, err := os.Lstat(target); err == nil {
		return
	}
	if dir {
		b.fail("making "+path, os.MkdirAll(target, 0o755)) //nolint:gosec // G301: in a file system of the tree's own
		return
	}
	b.fail("making the way to "+path, os.MkdirAll(filepath.Dir(target), 0o755)) //nolint:gosec // G301: the same
	if b.err == nil {
		b.fail("making "+path, os.WriteFile(target, nil, 0o600))
	}
}

// tmpfs mounts an empty file system.
func (b *builder) tmpfs(path, mode string) {
	b.ground(path, true)
	if b.err != nil {
		return
	}
	if err := unix.Mount("tmpfs", b.at(path), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode="+mode); err != nil {
		b.fail("covering "+path, missing("mounts in a user namespace", mountHint, err))
	}
}

// readOnly makes the mount at path read-only, without those in it.
func (b *builder) readOnly(path string) {
	if b.err != nil {
		return
	}
	attr := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	b.fail("making "+path+" read-only", unix.MountSetattr(unix.AT_FDCWD, b.at(path), 0, attr))
}

// newRoot begins an empty root and puts into it what a sandbox shows.
func (b *builder) newRoot(clones map[string]*clone) {
	b.tmpfs("/tmp", "0755")
	b.top = "/tmp"
	for _, p := range b.view.places {
		switch p.kind {
		case readOnly, readWrite:
			b.attach(clones[p.path], p.path)
		case ownDir:
			mode := "0700"
			if p.path == "/tmp" || p.path == "/var/tmp" {
				mode = "1777"
			}
			b.tmpfs(p.path, mode)
		case link:
			b.link(p.target, p.path)
		}
	}
}

func (b *builder) link(target, path string) {
	if b.err != nil {
		return
	}
	if _, err := os.Lstat(b.at(path)); err == nil {
		return
	}
	b.fail("making the way to "+path, os.MkdirAll(filepath.Dir(b.at(path)), 0o755)) //nolint:gosec // G301: in a file system of the tree's own
	if b.err == nil {
		b.fail("making "+path, os.Symlink(target, b.at(path)))
	}
}

// cover hides what must not be seen. In a sandbox most of it is not there.
func (b *builder) cover(nulls map[string]*clone) {
	for _, c := range b.view.covers {
		if b.err != nil {
			return
		}
		if b.view.sandbox && !c.secret {
			if _, err := os.Lstat(b.at(c.path)); err != nil {
				nulls[c.path].drop()
				continue
			}
		}
		if c.file {
			b.attach(nulls[c.path], c.path)
			continue
		}
		b.tmpfs(c.path, "0700")
	}
}

// run makes a /run with names of hosts, a directory for the session, and the
// marker.
func (b *builder) run(kept map[string]*clone, mark Marker) {
	b.tmpfs("/run", "0755")
	for _, p := range b.view.kept {
		if p.kind == link {
			b.link(p.target, p.path)
			continue
		}
		b.attach(kept[p.path], p.path)
	}
	b.tmpfs(b.view.runtimeDir, "0700")
	b.tmpfs("/run/lock", "1777")
	content, err := json.Marshal(mark)
	b.fail("marking the launch", err)
	b.ground(filepath.Dir(markerPath), true)
	if b.err == nil {
		b.fail("marking the launch", os.WriteFile(b.at(markerPath), content, 0o444)) //nolint:gosec // G306: no secret, for everyone inside
	}
}

func (b *builder) dev(nodes map[string]*clone) {
	b.tmpfs("/dev", "0755")
	for _, name := range devices {
		b.attach(nodes[name], "/dev/"+name)
	}
	b.ground("/dev/pts", true)
	if b.err == nil {
		if err := unix.Mount("devpts", b.at("/dev/pts"), "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0600"); err != nil {
			b.fail("making terminals", missing("terminals of a tree's own (devpts)", mountHint, err))
		}
	}
	b.tmpfs("/dev/shm", "1777")
	b.link("pts/ptmx", "/dev/ptmx")
	b.link("/proc/self/fd", "/dev/fd")
	for i, name := range []string{"stdin", "stdout", "stderr"} {
		b.link(fmt.Sprintf("/proc/self/fd/%d", i), "/dev/"+name)
	}
	b.readOnly("/dev")
}

// orders are the places in /proc where uid 0 could give orders to the kernel
// even without any capability.
var orders = []string{"sys", "sysrq-trigger", "irq", "bus", "fs", "acpi", "scsi"}

func (b *builder) proc() {
	b.ground("/proc", true)
	if b.err != nil {
		return
	}
	if b.nested == oldProc {
		if b.top == "" {
			return
		}
		old := b.clone("/proc", false)
		b.attach(old, "/proc")
		return
	}
	if err := unix.Mount("proc", b.at("/proc"), "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		b.fail("mounting /proc", missing("a fresh /proc", procHint, err))
		return
	}
	if !b.view.root {
		return // the kernel lets nobody else
	}
	for _, name := range orders {
		path := "/proc/" + name
		if _, err := os.Lstat(b.at(path)); err == nil {
			b.attach(b.cloneAt(path), path)
		}
	}
}

// cloneAt takes a part of the tree that is being made, read-only.
func (b *builder) cloneAt(path string) *clone {
	return b.clone(b.at(path), true)
}

// freeze makes read-only what was only written to build it.
func (b *builder) freeze() {
	for _, c := range b.view.covers {
		if c.file || b.err != nil {
			continue
		}
		if _, err := os.Lstat(b.at(c.path)); err == nil {
			b.freezeOwn(c.path)
		}
	}
	b.readOnly("/run")
	if b.view.sandbox || b.err != nil {
		return
	}
	attr := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	err := unix.MountSetattr(unix.AT_FDCWD, "/sys", unix.AT_RECURSIVE, attr)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, fs.ErrNotExist) { // EINVAL: not a mount of its own
		b.fail("making /sys read-only", err)
	}
}

// freezeOwn is readOnly for a cover, which a later cover may have hidden.
func (b *builder) freezeOwn(path string) {
	if b.err != nil {
		return
	}
	attr := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	if err := unix.MountSetattr(unix.AT_FDCWD, b.at(path), 0, attr); err != nil && !errors.Is(err, unix.EINVAL) {
		b.fail("making "+path+" read-only", err)
	}
}

// pivot makes the new root the root and lets go of the old one.
func (b *builder) pivot() {
	if b.err != nil {
		return
	}
	old := filepath.Join(b.top, ".old")
	b.fail("making the way to the old root", os.Mkdir(old, 0o700))
	if b.err != nil {
		return
	}
	if err := unix.PivotRoot(b.top, old); err != nil {
		b.fail("changing the root", missing("mounts in a user namespace", mountHint, err))
		return
	}
	b.top = ""
	b.fail("entering the new root", unix.Chdir("/"))
	b.fail("letting go of the old root", unix.Unmount("/.old", unix.MNT_DETACH))
	b.fail("letting go of the old root", os.Remove("/.old"))
	b.readOnly("/")
}

// loopback brings the only interface of an empty network up.
func loopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("bringing loopback up: %w", err)
	}
	defer unix.Close(fd)
	request, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, request); err != nil {
		return missing("a network of a tree's own", mountHint, fmt.Errorf("bringing loopback up: %w", err))
	}
	interfaces, err := net.Interfaces()
	if err != nil || len(interfaces) != 1 {
		return fmt.Errorf("the new network has %d interfaces, want loopback alone (%v)", len(interfaces), err)
	}
	return nil
}

// Inside reports whether this process is in a tree, by what the first process
// left there.
func Inside() (Marker, bool) {
	var mark Marker
	maps, err := os.ReadFile("/proc/self/uid_map")
	if err != nil || len(strings.Fields(string(maps))) != 3 || !strings.HasSuffix(strings.TrimSpace(string(maps)), " 1") {
		return mark, false // the whole machine's uids are here, or many: no tree of ours
	}
	var stat unix.Statfs_t
	if unix.Statfs(filepath.Dir(markerPath), &stat) != nil || stat.Type != unix.TMPFS_MAGIC || stat.Flags&unix.ST_RDONLY == 0 {
		return mark, false
	}
	content, err := os.ReadFile(markerPath)
	if err != nil || json.Unmarshal(content, &mark) != nil {
		return Marker{}, false
	}
	return mark, true
}
