package launch

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// What namespaces do not separate is refused by the kernel before it begins:
//
//   - Keyrings. They belong to a uid and not to a namespace: whoever finds the
//     number of a key of the same uid outside, and they are listed, can link it
//     and read it. A tree has none (ENOSYS, as on a kernel without them).
//   - Namespaces of cgroups. A new one begins where its process is, among the
//     processes outside that share its cgroup, and in a mount of it they can be
//     frozen and killed (EPERM).
//   - clone3, whose flags a filter cannot see (ENOSYS: programs then use clone).
//
// The list is for the commands of each architecture that a kernel can run.
type calls struct {
	arch                                             uint32
	addKey, requestKey, keyctl, clone, unshare, new3 uint32
}

// clone3 has one number everywhere.
const clone3 = 435

var amd64Calls = []calls{
	{unix.AUDIT_ARCH_X86_64, 248, 249, 250, 56, 272, clone3}, // and x32, whose numbers have one bit more
	{unix.AUDIT_ARCH_I386, 286, 287, 288, 120, 310, clone3},
}

var arm64Calls = []calls{
	{unix.AUDIT_ARCH_AARCH64, 217, 218, 219, 220, 97, clone3},
	{unix.AUDIT_ARCH_ARM, 309, 310, 311, 120, 337, clone3},
}

// Offsets in the kernel's struct seccomp_data, little-endian.
const (
	offsetNumber = 0
	offsetArch   = 4
	offsetFlags  = 16 // low half of the first argument of clone and unshare
	x32Bit       = 0x40000000
)

// filterCalls applies the filter to this thread and what it starts. The thread
// must have given up new privileges.
func filterCalls() error {
	var known []calls
	switch runtime.GOARCH {
	case "amd64":
		known = amd64Calls
	case "arm64":
		known = arm64Calls
	default:
		return &Unsupported{Piece: "a filter of system calls for " + runtime.GOARCH, Hint: ""}
	}
	program := filterOf(known)
	fprog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	_, _, errno := unix.RawSyscall(unix.SYS_PRCTL, unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&fprog)))
	runtime.KeepAlive(program)
	if errno != 0 {
		return fmt.Errorf("filtering system calls: %w", &Unsupported{
			Piece: "filters of system calls (seccomp)", Hint: "a kernel with CONFIG_SECCOMP_FILTER has them", Err: errno,
		})
	}
	return nil
}

// filterOf is the program. What is not of a known architecture does nothing.
func filterOf(known []calls) []unix.SockFilter {
	statement := func(code uint16, k uint32) unix.SockFilter { return unix.SockFilter{Code: code, K: k} }
	jump := func(code uint16, k uint32, yes, no uint8) unix.SockFilter {
		return unix.SockFilter{Code: code, K: k, Jt: yes, Jf: no}
	}
	const (
		load  = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		equal = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		set   = unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K
		end   = unix.BPF_RET | unix.BPF_K
	)
	absent := statement(end, unix.SECCOMP_RET_ERRNO|uint32(unix.ENOSYS))
	program := []unix.SockFilter{statement(load, offsetArch)}
	for _, c := range known {
		// Jumps are relative to the next line; each ends at a line of this part.
		part := []unix.SockFilter{
			statement(load, offsetNumber),
			statement(unix.BPF_ALU|unix.BPF_AND|unix.BPF_K, ^uint32(x32Bit)),
			jump(equal, c.addKey, 8, 0),
			jump(equal, c.requestKey, 7, 0),
			jump(equal, c.keyctl, 6, 0),
			jump(equal, c.new3, 5, 0),
			jump(equal, c.clone, 1, 0),
			jump(equal, c.unshare, 0, 4), // else it is allowed
			statement(load, offsetFlags),
			jump(set, unix.CLONE_NEWCGROUP, 0, 2),
			statement(end, unix.SECCOMP_RET_ERRNO|uint32(unix.EPERM)),
			absent,
			statement(end, unix.SECCOMP_RET_ALLOW),
		}
		program = append(program, jump(equal, c.arch, 0, uint8(len(part))))
		program = append(program, part...)
	}
	return append(program, absent)
}
