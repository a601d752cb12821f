package vault

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Where keys lie, in the words of KeyMemory.
const (
	memorySecret = "memfd_secret" // nobody but this process can read it, the kernel included
	memoryLocked = "mlock"        // never swapped out, on Linux never in a core
	memoryPlain  = "ordinary"     // neither could be had
)

// keyMemory is memory for keys: outside of the heap, so that nothing ever copies it, in the best place the system has, and
// gone when it is freed.
type keyMemory struct {
	mem  []byte
	kind string
	used int
}

func newKeyMemory(size int) (*keyMemory, error) {
	page := os.Getpagesize()
	size = (size + page - 1) / page * page
	mem, kind, err := mapKeys(size)
	if err != nil {
		return nil, fmt.Errorf("memory for keys: %w", err)
	}
	return &keyMemory{mem: mem, kind: kind}, nil
}

// take returns n zeroed bytes, which live until free. Who makes the memory knows what will be taken.
func (m *keyMemory) take(n int) []byte {
	p := m.mem[m.used : m.used+n : m.used+n]
	m.used += n
	return p
}

// free wipes and unmaps. Whoever still reads ends the program.
func (m *keyMemory) free() {
	if m.mem == nil {
		return
	}
	clear(m.mem)
	// It is wiped; that an address range stays in use harms nobody.
	_ = unix.Munmap(m.mem)
	m.mem = nil
}

// mapLocked is the second choice.
func mapLocked(size int) (mem []byte, kind string, err error) {
	mem, err = unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, "", os.NewSyscallError("mmap", err)
	}
	dontDump(mem)
	if unix.Mlock(mem) != nil {
		// The limit on locked memory is a matter of configuration. Who looks is told: see KeyMemory.
		return mem, memoryPlain, nil
	}
	return mem, memoryLocked, nil
}
