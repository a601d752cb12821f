package homefiles

import (
	"errors"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"

	"subjectbroker/proto/place"
)

// Holder is the process id of the daemon that holds home, 0 when none does, and
// -1 when one does that does not say which.
func Holder(home string) (pid int, err error) {
	// Without blocking: what should be a file may be a pipe.
	file, err := os.OpenFile(place.LockFile(home), os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer file.Close()
	err = syscall.Flock(int(file.Fd()), syscall.LOCK_SH|syscall.LOCK_NB)
	if err == nil {
		return 0, nil
	}
	if !errors.Is(err, syscall.EWOULDBLOCK) {
		return 0, err
	}
	text := make([]byte, 32)
	n, _ := file.Read(text)
	if pid, err = strconv.Atoi(strings.TrimSpace(string(text[:n]))); err != nil || pid <= 0 {
		return -1, nil
	}
	return pid, nil
}
