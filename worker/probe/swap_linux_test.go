package probe

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSwap(t *testing.T) {
	const head = "Filename\t\t\tType\t\tSize\tUsed\tPriority\n"
	known := map[string]bool{"/dev/dm-1": true, "/dev/sda2": false, "/swapfile": false}
	encrypted := func(path string) (bool, bool) {
		yes, found := known[path]
		return yes, found
	}
	for _, test := range []struct{ list, want string }{
		{head, "held there is none"},
		{head + "/dev/zram0 partition 1 0 100\n", "held only in memory or on an encrypted device"},
		{head + "/dev/dm-1 partition 1 0 -2\n", "held only in memory or on an encrypted device"},
		{head + "/dev/dm-1 partition 1 0 -2\n/dev/sda2 partition 1 0 -2\n/swapfile file 1 0 -3\n", "not held not encrypted: /dev/sda2, /swapfile; "},
		{head + "/dev/odd partition 1 0 -2\n", "unknown whether it is encrypted cannot be told: /dev/odd"},
	} {
		p := Probe{ID: "swap"}.judgeSwap(test.list, encrypted)
		if got := string(p.Status) + " " + p.Words; !strings.HasPrefix(got, test.want) {
			t.Errorf("%q: %q, want %q", test.list, got, test.want)
		}
	}
}

// A device is encrypted if it, or all that it is built on, is.
func TestEncryptedDevice(t *testing.T) {
	sys := t.TempDir()
	device := func(name, uuid string, below ...string) {
		for _, dir := range []string{"dm", "slaves"} {
			if err := os.MkdirAll(filepath.Join(sys, name, dir), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		if uuid != "" {
			if err := os.WriteFile(filepath.Join(sys, name, "dm", "uuid"), []byte(uuid+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for _, slave := range below {
			if err := os.Symlink(filepath.Join(sys, slave), filepath.Join(sys, name, "slaves", slave)); err != nil {
				t.Fatal(err)
			}
		}
	}
	device("disk", "")
	device("crypt", "CRYPT-LUKS2-x", "disk")
	device("lvm", "LVM-x", "crypt")
	device("plain", "LVM-x", "disk")
	device("both", "LVM-x", "crypt", "disk")
	device("loop", "LVM-x", "loop")
	for name, want := range map[string][2]bool{
		"disk": {false, true}, "crypt": {true, true}, "lvm": {true, true}, "plain": {false, true}, "both": {false, true},
		"loop": {false, false}, "missing": {false, false},
	} {
		if yes, known := encryptedDevice(filepath.Join(sys, name), 0); yes != want[0] || known != want[1] {
			t.Errorf("%s: encrypted %v, known %v", name, yes, known)
		}
	}
}
