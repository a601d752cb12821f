package vault

import "golang.org/x/sys/unix"

// mapKeys prefers memfd_secret(2), which old kernels and some containers lack, and which counts as locked memory.
func mapKeys(size int) (mem []byte, kind string, err error) {
	if mem, err = mapSecret(size); err == nil {
		return mem, memorySecret, nil
	}
	return mapLocked(size)
}

func mapSecret(size int) ([]byte, error) {
	fd, err := unix.MemfdSecret(unix.O_CLOEXEC)
	if err != nil {
		return nil, err
	}
	// The mapping outlives it.
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		return nil, err
	}
	return unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
}

// dontDump keeps memory out of cores, and out of children.
func dontDump(mem []byte) {
	_ = unix.Madvise(mem, unix.MADV_DONTDUMP)
	_ = unix.Madvise(mem, unix.MADV_DONTFORK)
}
