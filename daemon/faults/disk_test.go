//go:build linux

package faults

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"subjectbroker/daemon/daemontest"
)

// disk is an ext4 file system in a file, mounted for the test.
type disk struct {
	t          *testing.T
	image, dir string
}

// newDisk makes and mounts one of so many MiB.
func newDisk(t *testing.T, mib int64) *disk {
	t.Helper()
	need(t, "mkfs.ext4", "losetup", "mount", "umount", "fsfreeze")
	top := daemontest.NewHome(t)
	d := &disk{t: t, image: filepath.Join(top, "image"), dir: filepath.Join(top, "d")}
	file, err := os.Create(d.image)
	must(t, err)
	must(t, errors.Join(file.Truncate(mib<<20), file.Close()))
	must(t, os.Mkdir(d.dir, 0o700))
	d.run("mkfs.ext4", "-q", "-F", "-m", "0", d.image)
	if out, err := d.mount(); err != nil {
		daemontest.LeaveOut(t, "faults", "a file cannot be mounted here: "+string(out))
	}
	t.Cleanup(func() { _ = unix.Unmount(d.dir, unix.MNT_DETACH) })
	return d
}

// home is where a daemon may live on it.
func (d *disk) home() string { return filepath.Join(d.dir, "h") }

func (d *disk) run(name string, args ...string) {
	d.t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		d.t.Fatalf("%s %q: %v: %s", name, args, err, out)
	}
}

// flagNoLogFlush makes FS_IOC_SHUTDOWN drop the journal that was not written yet.
const (
	fsIocShutdown  = 0x8004587d
	flagNoLogFlush = 2
)

// cut cuts the power: what was not synced is gone, and nothing works any more
// until remount.
func (d *disk) cut() {
	d.t.Helper()
	fd, err := unix.Open(d.dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(d.t, err)
	defer unix.Close(fd)
	must(d.t, unix.IoctlSetPointerInt(fd, fsIocShutdown, flagNoLogFlush))
}

// remount mounts it again, as after a reboot. Nobody may use it any more.
func (d *disk) remount(options ...string) {
	d.t.Helper()
	if fd, err := unix.Open(d.dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err == nil {
		_ = unix.Syncfs(fd) // fails after a cut, as it should
		must(d.t, unix.Close(fd))
	}
	var err error
	for until := time.Now().Add(daemontest.Patience); time.Now().Before(until); time.Sleep(time.Millisecond) {
		if err = unix.Unmount(d.dir, 0); !errors.Is(err, unix.EBUSY) {
			break
		}
	}
	must(d.t, err)
	// What is on it goes on in a copy: a mount namespace that somebody made
	// meanwhile may hold the old one, and what its kernel still has to write there,
	// at its end, would be written over what is new.
	next := otherName(d.image)
	d.run("cp", "--sparse=always", d.image, next)
	must(d.t, os.Remove(d.image))
	d.image = next
	if out, err := d.mount(options...); err != nil {
		d.t.Fatalf("mounting: %v: %s", err, out)
	}
}

// otherName alternates between two names.
func otherName(image string) string {
	if before, ok := strings.CutSuffix(image, ".copy"); ok {
		return before
	}
	return image + ".copy"
}

// mount mounts it on a device of its own.
func (d *disk) mount(options ...string) (said []byte, err error) {
	device, err := exec.Command("losetup", "--find", "--show", d.image).Output()
	if err != nil {
		return nil, err
	}
	name := strings.TrimSpace(string(device))
	args := []string{name, d.dir}
	if len(options) > 0 {
		args = append([]string{"-o", options[0]}, args...)
	}
	said, err = exec.Command("mount", args...).CombinedOutput()
	// It goes with the last mount of it.
	return said, errors.Join(err, exec.Command("losetup", "--detach", name).Run())
}

func (d *disk) freeze() {
	d.t.Helper()
	d.run("fsfreeze", "-f", d.dir)
	d.t.Cleanup(func() { _ = exec.Command("fsfreeze", "-u", d.dir).Run() })
}

func (d *disk) thaw() {
	d.t.Helper()
	d.run("fsfreeze", "-u", d.dir)
}

// fill leaves so many bytes free, free gives everything back.
func (d *disk) fill(left int64) {
	d.t.Helper()
	file, err := os.OpenFile(filepath.Join(d.dir, "filler"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	must(d.t, err)
	defer file.Close()
	must(d.t, unix.Syncfs(int(file.Fd()))) // what is delayed is taken first
	for block := make([]byte, 4096); ; {
		var stat unix.Statfs_t
		must(d.t, unix.Statfs(d.dir, &stat))
		if int64(stat.Bavail)*stat.Bsize <= left {
			return
		}
		if _, err := file.Write(block); errors.Is(err, unix.ENOSPC) {
			return
		} else if err != nil {
			d.t.Fatal(err)
		}
	}
}

func (d *disk) free() {
	d.t.Helper()
	if err := os.Remove(filepath.Join(d.dir, "filler")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		d.t.Fatal(err)
	}
}
