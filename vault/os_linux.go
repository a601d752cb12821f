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

// exchange swaps the names of two files, or, on a file system that cannot, renames one over the other: the other then has
// no name any more.
func exchange(from, to string) error {
	err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_EXCHANGE)
	switch {
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS):
		return os.Rename(from, to)
	case err != nil:
		return &os.LinkError{Op: "exchange", Old: from, New: to, Err: err}
	}
	return nil
}

// writesInPlace reports whether the file system is known to write changes where the changed bytes lie.
func writesInPlace(f *os.File) bool {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &fs); err != nil {
		return false
	}
	switch uint32(fs.Type) {
	case unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.TMPFS_MAGIC, unix.RAMFS_MAGIC: // ext2 and ext3 call themselves ext4
		return true
	}
	return false
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
