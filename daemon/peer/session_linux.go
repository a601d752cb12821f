package peer

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// endSession kills what it finds, and looks again until it finds nothing: what is
// found may start another one before it dies.
func endSession(leader int32) {
	for range maxSweeps {
		if !killSession(leader) {
			return
		}
	}
}

// maxSweeps bounds how often a session that goes on growing is looked through.
const maxSweeps = 100

func killSession(leader int32) (found bool) {
	proc, err := os.Open("/proc")
	if err != nil {
		return false
	}
	names, _ := proc.Readdirnames(-1)
	proc.Close()
	for _, name := range names {
		pid, err := strconv.ParseInt(name, 10, 32)
		if err != nil || int32(pid) == leader {
			continue
		}
		before, err := readStat(int32(pid))
		if err != nil || before.session != leader || before.zombie {
			continue
		}
		fd, err := unix.PidfdOpen(int(pid), 0)
		if err != nil {
			continue
		}
		if after, err := readStat(int32(pid)); err == nil && after.start == before.start && after.session == leader {
			found = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) == nil || found
		}
		_ = unix.Close(fd)
	}
	return found
}
