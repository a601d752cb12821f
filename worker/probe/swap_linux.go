package probe

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// swap says whether memory, and with it what agents were given, may reach a disk
// in clear.
func swap() Probe {
	p := Probe{ID: "swap", Tried: "reading /proc/swaps"}
	list, err := os.ReadFile("/proc/swaps")
	if err != nil {
		return p.unknown(fmt.Sprintf("it could not be read: %v", cause(err)))
	}
	return p.judgeSwap(string(list), onEncrypted)
}

// judgeSwap is the probe for a list as /proc/swaps has it.
func (p Probe) judgeSwap(list string, encrypted func(path string) (yes, known bool)) Probe {
	lines := strings.Split(strings.TrimSpace(list), "\n")
	var clear, unknown []string
	for _, line := range lines[1:] {
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(words[0], "/dev/zram") {
			continue // compressed memory, not a disk
		}
		switch yes, known := encrypted(words[0]); {
		case !known:
			unknown = append(unknown, words[0])
		case !yes:
			clear = append(clear, words[0])
		}
	}
	switch {
	case len(clear) > 0:
		return p.result(false, "not encrypted: "+strings.Join(clear, ", ")+"; what agents hold in memory may reach the disk")
	case len(unknown) > 0:
		return p.unknown("whether it is encrypted cannot be told: " + strings.Join(unknown, ", "))
	case len(lines) == 1:
		return p.result(true, "there is none")
	}
	return p.result(true, "only in memory or on an encrypted device")
}

// onEncrypted says whether a device, or the device that a file lies on, is an
// encrypted one of the device mapper, or built on such.
func onEncrypted(path string) (yes, known bool) {
	info, err := os.Stat(path)
	if err != nil {
		return false, false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return false, false
	}
	device := stat.Dev
	if info.Mode()&os.ModeDevice != 0 {
		device = stat.Rdev
	}
	return encryptedDevice(fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(device), unix.Minor(device)), 0)
}

// deepestStack bounds devices that are built on devices.
const deepestStack = 8

func encryptedDevice(sys string, depth int) (yes, known bool) {
	if _, err := os.Stat(sys); err != nil || depth > deepestStack {
		return false, false // such as a file system of several devices
	}
	if uuid, err := os.ReadFile(filepath.Join(sys, "dm", "uuid")); err == nil && strings.HasPrefix(string(uuid), "CRYPT-") {
		return true, true
	}
	below, err := os.ReadDir(filepath.Join(sys, "slaves"))
	if err != nil || len(below) == 0 {
		return false, true
	}
	for _, device := range below {
		if yes, known := encryptedDevice(filepath.Join(sys, "slaves", device.Name()), depth+1); !yes {
			return false, known
		}
	}
	return true, true
}
