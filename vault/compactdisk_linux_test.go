package vault_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"subjectbroker/vault"
	"subjectbroker/vault/vaulttest"
)

// No room for a copy: the vault goes on with its old file, and nothing is left of the new one.
func TestCompactOnAFullDisk(t *testing.T) {
	dir := tmpfs(t, "full disk", "1m")
	p := purgedIn(t, dir)
	filler := filepath.Join(dir, "filler")
	v := open(t, p.cfg)
	vaulttest.Check(t, v)
	mutate(t, v, put("new", vault.KindText, strings.Repeat("x", 100_000)))
	p.state = v.State()
	full := 0
	for room := 0; ; room += 16 << 10 {
		fill(t, filler, room)
		overwritten, err := v.Compact()
		if err == nil {
			t.Logf("%d times too little, %d KiB are enough, overwritten %v", full, room>>10, overwritten)
			break
		}
		full++
		if !errors.Is(err, unix.ENOSPC) || errors.Is(err, vault.ErrDamaged) {
			t.Fatalf("with %d KiB left: %v", room>>10, err)
		}
		oneLine(t, err)
		if diff := cmp.Diff(append([]string{"filler"}, wholeHome...), listing(t, dir)); diff != "" {
			t.Fatalf("home (-want +got):\n%s", diff)
		}
		p.compare(t, v)
		if _, err := v.Snapshot(filepath.Join(dir, "copy")); !errors.Is(err, unix.ENOSPC) {
			t.Fatalf("a snapshot with %d KiB left: %v", room>>10, err)
		}
	}
	if full < 3 {
		t.Errorf("full only %d times", full)
	}
	if left := p.found(t); len(left) != 0 {
		t.Errorf("still there: %v", left)
	}
	p.compare(t, v)
	remove(t, dir, "filler")
	mutate(t, v, put("newer", vault.KindText, "x"))
}

// fill leaves so many bytes free.
func fill(t *testing.T, filler string, room int) {
	t.Helper()
	if err := os.RemoveAll(filler); err != nil {
		t.Fatal(err)
	}
	var stat unix.Statfs_t
	if err := unix.Statfs(filepath.Dir(filler), &stat); err != nil {
		t.Fatal(err)
	}
	spit(t, filler, make([]byte, max(0, int(stat.Bavail)*int(stat.Bsize)-room)))
}

// disk is an ext4 file system in a file.
type disk struct{ image, dir string }

func newDisk(t *testing.T, suite string) *disk {
	t.Helper()
	top := t.TempDir()
	d := &disk{image: filepath.Join(top, "image"), dir: filepath.Join(top, "d")}
	if err := errors.Join(os.Mkdir(d.dir, 0o700), os.WriteFile(d.image, nil, 0o600), os.Truncate(d.image, 16<<20)); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("mkfs.ext4", "-q", "-F", "-m", "0", d.image).CombinedOutput(); err != nil {
		t.Skipf("suite left out: %s: making a file system: %v %s", suite, err, bytes.TrimSpace(out))
	}
	if out, err := d.attach(); err != nil {
		t.Skipf("suite left out: %s: mounting a file: %v %s", suite, err, bytes.TrimSpace(out))
	}
	t.Cleanup(func() { _ = unix.Unmount(d.dir, unix.MNT_DETACH) })
	return d
}

func (d *disk) unmount(t *testing.T) {
	t.Helper()
	if fd, err := unix.Open(d.dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err == nil {
		_ = unix.Syncfs(fd) // fails after a cut, as it should
		_ = unix.Close(fd)
	}
	var err error
	for until := time.Now().Add(time.Minute); time.Now().Before(until); time.Sleep(time.Millisecond) {
		if err = unix.Unmount(d.dir, 0); !errors.Is(err, unix.EBUSY) {
			break
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

// mount mounts what is on it once more, from a copy: a mount namespace that
// somebody made meanwhile may hold the old one, and what its kernel still has to
// write there, at its end, would be written over what is new.
func (d *disk) mount(t *testing.T) {
	t.Helper()
	next, ok := strings.CutSuffix(d.image, ".copy")
	if !ok {
		next = d.image + ".copy"
	}
	if out, err := exec.Command("cp", "--sparse=always", d.image, next).CombinedOutput(); err != nil {
		t.Fatalf("copying a disk: %v %s", err, out)
	}
	if err := os.Remove(d.image); err != nil {
		t.Fatal(err)
	}
	d.image = next
	if out, err := d.attach(); err != nil {
		t.Fatalf("mounting: %v %s", err, out)
	}
}

// attach mounts it on a device of its own.
func (d *disk) attach() (said []byte, err error) {
	device, err := exec.Command("losetup", "--find", "--show", d.image).Output()
	if err != nil {
		return nil, err
	}
	name := string(bytes.TrimSpace(device))
	said, err = exec.Command("mount", name, d.dir).CombinedOutput()
	// It goes with the last mount of it.
	return said, errors.Join(err, exec.Command("losetup", "--detach", name).Run())
}

// cutPower makes a file system forget what was not synced, and refuse everything from now on.
func cutPower(dir string) error {
	const fsIocShutdown, noLogFlush = 0x8004587d, 2
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.IoctlSetPointerInt(fd, fsIocShutdown, noLogFlush)
}

// TestChildLosesPower is no test but what child processes run.
func TestChildLosesPower(t *testing.T) {
	dir := os.Getenv(compactDir)
	if dir == "" {
		return
	}
	cfg := homeConfig(dir)
	vault.OnStep(&cfg, func(step string) {
		if step != os.Getenv(compactStep) {
			return
		}
		// The control: this is lost, or the power was not cut.
		err := os.WriteFile(filepath.Join(dir, "unsynced"), []byte("x"), 0o600)
		if err = errors.Join(err, cutPower(dir)); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	})
	_, err := open(t, cfg).Compact()
	t.Fatal(err)
}

// P12: the power goes between any two steps.
func TestCompactLosesPower(t *testing.T) {
	d := newDisk(t, "power cuts")
	for i, step := range compactSteps {
		home := filepath.Join(d.dir, fmt.Sprint(i))
		if err := os.Mkdir(home, 0o700); err != nil {
			t.Fatal(err)
		}
		p := purgedIn(t, home)
		unix.Sync()
		out, err := child(t, "TestChildLosesPower", home, step).CombinedOutput()
		if !killed(err) {
			t.Fatalf("%s: the child ended with %v: %s", step, err, out)
		}
		d.unmount(t)
		d.mount(t)
		left := listing(t, home)
		if slices.Contains(left, "unsynced") {
			t.Errorf("%s: nothing was lost: the power was not cut", step)
		}
		p.check(t)
		if diff := cmp.Diff(wholeHome, listing(t, home)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step, diff)
		}
		v := open(t, p.cfg)
		if overwritten, err := v.Compact(); err != nil || !overwritten {
			t.Errorf("%s: the next try: overwritten %v, %v", step, overwritten, err)
		}
		if err := v.Close(); err != nil {
			t.Fatal(err)
		}
		if found := p.found(t); len(found) != 0 {
			t.Errorf("%s: still there: %v", step, found)
		}
		t.Logf("%s: left %v", step, left)
	}
}

// Overwritten means overwritten: below the file system there is nothing either.
func TestCompactOnTheMedium(t *testing.T) {
	d := newDisk(t, "raw disk")
	home := filepath.Join(d.dir, "home")
	if err := os.Mkdir(home, 0o700); err != nil {
		t.Fatal(err)
	}
	p := purgedIn(t, home)
	medium := &purged{dir: filepath.Dir(d.image), deleted: p.deleted}
	raw := func() []string {
		d.unmount(t)
		defer d.mount(t)
		return medium.found(t)
	}
	if len(raw()) == 0 {
		t.Fatal("nothing of it on the medium: this proves nothing")
	}
	v := open(t, p.cfg)
	overwritten, err := v.Compact()
	if err != nil || !overwritten {
		t.Errorf("overwritten %v, %v", overwritten, err)
	}
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	if left := raw(); len(left) != 0 {
		t.Errorf("still on the medium: %v", left)
	}
	p.check(t)
}
