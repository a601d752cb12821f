package daemon_test

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"subjectbroker/daemon/daemontest"
	"subjectbroker/proto/wire"
)

// check needs no right to write: it works on a home that is mounted read-only,
// where a start does not.
func TestCheckReadOnly(t *testing.T) {
	t.Parallel()
	daemontest.NeedRoot(t, "read-only mount")
	d := newSpoilable(t, "")
	d.Kill()
	must(t, unix.Mount(d.Home, d.Home, "", unix.MS_BIND, ""))
	t.Cleanup(func() { _ = unix.Unmount(d.Home, unix.MNT_DETACH) })
	must(t, unix.Mount("", d.Home, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""))
	if err := os.WriteFile(d.Home+"/control", nil, 0o600); err == nil {
		t.Fatal("the mount is not read-only")
	}
	exit, out, said := sbd(t, d.Home, "check")
	equal(t, "exit: "+said, exit, wire.ExitDone)
	if !strings.Contains(out, "unchanged: ") {
		t.Errorf("it says\n%s", out)
	}
}
