package launch

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// tryCalls tries what namespaces do not separate, and says how each went.
func tryCalls() int {
	_, err := unix.KeyctlInt(unix.KEYCTL_GET_KEYRING_ID, unix.KEY_SPEC_USER_KEYRING, 1, 0, 0)
	fmt.Println("keyctl:", errno(err))
	_, err = unix.AddKey("user", "sb-launch-test", []byte("x"), unix.KEY_SPEC_PROCESS_KEYRING)
	fmt.Println("add_key:", errno(err))
	_, err = unix.RequestKey("user", "sb-launch-none", "", 0)
	fmt.Println("request_key:", errno(err))
	_, _, failed := unix.RawSyscall(unix.SYS_CLONE3, 0, 0, 0)
	fmt.Println("clone3:", errno(failed))
	for _, namespaces := range []struct {
		name  string
		flags int
	}{{"user", unix.CLONE_NEWUSER}, {"cgroup", unix.CLONE_NEWUSER | unix.CLONE_NEWCGROUP}} {
		pid, err := syscall.ForkExec("/bin/true", []string{"true"}, &syscall.ProcAttr{Sys: &syscall.SysProcAttr{Cloneflags: uintptr(namespaces.flags)}})
		fmt.Println(namespaces.name+":", errno(err))
		if err == nil {
			_, _ = syscall.Wait4(pid, nil, 0, nil)
		}
	}
	return 0
}

func errno(err error) string {
	if number, ok := errors.AsType[syscall.Errno](err); ok && number != 0 {
		return unix.ErrnoName(number)
	}
	return "ok"
}

// A tree has no keys in the kernel and no way to the cgroups of others, in a
// sandbox too; outside the same program has both.
func TestFilteredCalls(t *testing.T) {
	asEach(t, func(t *testing.T, w *world) {
		outside, code := output(t, w.command(w.program, "calls"))
		if code != 0 || !strings.Contains(outside, "clone3: EINVAL") || !strings.Contains(outside, "user: ok") || !strings.Contains(outside, "cgroup: ok") ||
			strings.Contains(outside, "keyctl: ENOSYS") || strings.Contains(outside, "add_key: ENOSYS") || strings.Contains(outside, "request_key: ENOSYS") {
			t.Errorf("outside, where nothing is refused: %d\n%s", code, outside)
		}
		const want = "keyctl: ENOSYS\nadd_key: ENOSYS\nrequest_key: ENOSYS\nclone3: ENOSYS\nuser: ok\ncgroup: EPERM\n"
		for _, sandbox := range []bool{false, true} {
			cfg := w.config()
			cfg.Sandbox = sandbox
			if got, _ := output(t, w.launch(cfg, w.program, "calls")); got != want {
				t.Errorf("sandbox %v:\n%swant\n%s", sandbox, got, want)
			}
		}
	})
}

// Nothing above the broker's home can be moved away from inside, so that no
// other home gets its place; outside it can.
func TestHomeStaysInPlace(t *testing.T) {
	asEach(t, func(t *testing.T, w *world) {
		state := filepath.Join(w.home, ".state")
		if said, code := output(t, w.launch(w.config(), "mv", state, state+".x")); code == 0 {
			t.Errorf("the folder above the home was moved: %s", said)
		}
		if _, err := os.Stat(filepath.Join(w.broker, "secret.key")); err != nil {
			t.Error(err)
		}
		if said, code := output(t, w.command("mv", state, state+".x")); code != 0 {
			t.Errorf("outside: %s", said)
		}
	})
}

// What is mounted outside after the start does not appear inside, however the
// mounts around it are shared: it may be the home, at another place.
func TestLaterMountsStayOutside(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("suite left out: mounting outside: it needs root")
	}
	w := newWorld(t, 0)
	point := filepath.Join(w.base, "shared")
	for _, step := range []func() error{
		func() error { return os.Mkdir(point, 0o755) },
		func() error { return syscall.Mount("tmpfs", point, "tmpfs", 0, "") },
		func() error { return syscall.Mount("", point, "", syscall.MS_SHARED, "") },
		func() error { return os.Mkdir(filepath.Join(point, "other"), 0o755) },
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { syscall.Unmount(point, syscall.MNT_DETACH) })
	cmd := w.launch(w.config(), "sh", "-c", `echo ready; read -r line; ls "$BASE/shared/other"`)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(out)
	if line, err := lines.ReadString('\n'); line != "ready\n" {
		t.Fatalf("%q %v", line, err)
	}
	other := filepath.Join(point, "other")
	if err := syscall.Mount(w.broker, other, "", syscall.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Unmount(other, syscall.MNT_DETACH) })
	if _, err := os.Stat(filepath.Join(other, "secret.key")); err != nil {
		t.Fatal("outside it is there:", err)
	}
	in.Close()
	if line, _ := lines.ReadString('\n'); line != "" {
		t.Errorf("inside there is %s", line)
	}
	_ = cmd.Wait()
}
