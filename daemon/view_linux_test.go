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
