package daemon

import (
	"os"
	"reflect"
	"testing"
)

func TestParseMounts(t *testing.T) {
	got, err := parseMounts([]byte(
		"36 35 98:0 /a\\040b /mnt\\011x rw,noatime master:1 shared:2 - ext3 /dev/root rw,errors=continue\n" +
			"37 36 0:24 / /run ro,nosuid - tmpfs tmpfs rw\n" +
			"38 36 0:25 / /cd rw - iso9660 /dev/sr0 ro\n"))
	want := []mount{
		{id: 36, device: "98:0", root: "/a b", point: "/mnt\tx", fstype: "ext3"},
		{id: 37, device: "0:24", root: "/", point: "/run", ro: true, fstype: "tmpfs"},
		{id: 38, device: "0:25", root: "/", point: "/cd", ro: true, fstype: "iso9660"},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v: read %+v, want %+v", err, got, want)
	}
	for _, bad := range []string{"36 35\n", "x 35 98:0 / /mnt rw - ext3 root rw\n", "36 35 98:0 / /mnt rw ext3 root rw\n", "36 35 98:0 / - ext3 root rw\n"} {
		if _, err := parseMounts([]byte(bad)); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}

// A file system that we do not see is a tree's own only when nothing keeps what is
// written to it elsewhere.
func TestOwns(t *testing.T) {
	v := &view{shared: map[string]bool{"0:24": true}}
	for _, c := range []struct {
		fstype, device string
		want           bool
	}{
		{"tmpfs", "0:25", true},
		{"proc", "0:25", true},
		{"devpts", "0:25", true},
		{"tmpfs", "0:24", false}, // ours
		{"overlay", "0:25", false},
		{"fuse.sshfs", "0:25", false},
		{"ext4", "8:1", false},
	} {
		if got := v.owns(mount{fstype: c.fstype, device: c.device}); got != c.want {
			t.Errorf("%s on %s is its own: %v", c.fstype, c.device, got)
		}
	}
}

// Whatever the lines hold, they are read or refused.
func FuzzParseMounts(f *testing.F) {
	raw, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	f.Add([]byte("36 35 98:0 / /mnt\\04 rw - ext3 root rw\n"))
	f.Fuzz(func(_ *testing.T, raw []byte) { _, _ = parseMounts(raw) })
}
