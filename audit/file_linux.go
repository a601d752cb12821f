package audit

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Sync flushes data and size, not the times, which nobody reads.
func (f *osFile) Sync() error {
	for {
		if err := unix.Fdatasync(int(f.Fd())); !errors.Is(err, unix.EINTR) {
			return wrapSyscall("fdatasync", err)
		}
	}
}

func (f *osFile) Reserve(offset, length int64) error {
	for {
		err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, offset, length)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOSYS):
			return errors.ErrUnsupported
		}
		return wrapSyscall("fallocate", err)
	}
}

func wrapSyscall(name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", name, err)
}
