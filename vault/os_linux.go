package vault

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// renameNew gives a new file its name and refuses to replace another: ErrExists.
func renameNew(from, to string) error {
	err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE)
	switch {
	case errors.Is(err, unix.EEXIST):
		return ErrExists
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS):
		// A file system without that flag. The home has one daemon, so looking first is good enough.
		return renameChecked(from, to)
	case err != nil:
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: err}
	}
	return nil
}

// dropCache makes the kernel forget what it holds of a file in memory, so that the next read comes from the disk. Best
// effort: pages that somebody else has mapped stay.
func dropCache(path string) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return
	}
	defer f.Close()
	_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
}
