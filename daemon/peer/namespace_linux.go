package peer

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// maxNested is how deep the kernel lets pid and user namespaces be nested.
const maxNested = 32

func namespacesOf(pid int32) (Namespaces, error) {
	var ns Namespaces
	for name, at := range map[string]*Namespace{"pid": &ns.PID, "user": &ns.User, "mnt": &ns.Mount, "net": &ns.Net} {
		var err error
		if *at, err = linkOf(pid, name); err != nil {
			return Namespaces{}, err
		}
	}
	status, err := readStatus(pid)
	if err != nil {
		return Namespaces{}, err
	}
	ns.First = status.pids[len(status.pids)-1] == 1
	if ns.Within, err = pidNamespaces(pid); err != nil {
		return Namespaces{}, err
	}
	f, err := os.Open(procDir(pid) + "/ns/user")
	if err != nil {
		return Namespaces{}, err
	}
	defer f.Close()
	parent, err := parentOf(f)
	if errors.Is(err, unix.EPERM) { // ours, or one that we cannot see from here
		return ns, nil
	}
	if err != nil {
		return Namespaces{}, err
	}
	defer parent.Close()
	ns.Maker, err = identityOf(parent)
	return ns, err
}

// pidNamespaces returns the pid namespaces that a process lives in, its own
// first, ours and those around it left out.
func pidNamespaces(pid int32) ([]Namespace, error) {
	ours, err := linkOf(int32(os.Getpid()), "pid")
	if err != nil {
		return nil, err
	}
	f, err := os.Open(procDir(pid) + "/ns/pid")
	if err != nil {
		return nil, err
	}
	defer func() { f.Close() }()
	var all []Namespace
	for range maxNested + 1 {
		one, err := identityOf(f)
		if err != nil {
			return nil, err
		}
		if one == ours {
			return all, nil
		}
		all = append(all, one)
		parent, err := parentOf(f)
		if err != nil {
			return nil, err
		}
		f.Close()
		f = parent
	}
	return nil, fmt.Errorf("pid namespaces of process %d: nested too deeply", pid)
}

func parentOf(f *os.File) (*os.File, error) {
	fd, err := unix.IoctlRetInt(int(f.Fd()), unix.NS_GET_PARENT)
	if err != nil {
		return nil, fmt.Errorf("parent of a namespace: %w", err)
	}
	unix.CloseOnExec(fd)
	return os.NewFile(uintptr(fd), "namespace"), nil
}

func linkOf(pid int32, name string) (Namespace, error) {
	var st unix.Stat_t
	path := procDir(pid) + "/ns/" + name
	if err := unix.Stat(path, &st); err != nil {
		return Namespace{}, fmt.Errorf("%s: %w", path, err)
	}
	return Namespace{st.Dev, st.Ino}, nil
}

func identityOf(f *os.File) (Namespace, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return Namespace{}, err
	}
	return Namespace{st.Dev, st.Ino}, nil
}
