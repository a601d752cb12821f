package probe

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"subjectbroker/worker/launch"
)

// attackTime bounds one connection that is tried.
const attackTime = 2 * time.Second

// Here returns the facts about this machine and kernel, in a fixed order. It
// starts a program for a moment (true, in namespaces of its own) and changes
// nothing.
func Here(ctx context.Context) []Probe {
	return []Probe{
		userNamespaces(ctx), restricted(), landlockABI(), ownProcesses(), network(),
		peerPIDFD(), secretMemory(), ptraceScope(), swap(),
	}
}

func userNamespaces(ctx context.Context) Probe {
	p := Probe{ID: "userns", Tried: "a program in user, pid, mount and IPC namespaces of its own"}
	path, err := exec.LookPath("true")
	if err != nil {
		return p.unknown("there is no program `true` to start")
	}
	cmd := exec.CommandContext(ctx, path)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWIPC}
	if err := cmd.Run(); err != nil {
		return p.result(false, fmt.Sprintf("the kernel gives none: %v", err))
	}
	return p.result(true, "the kernel gives them to this uid")
}

func restricted() Probe {
	p := Probe{ID: "userns.apparmor", Tried: "reading kernel.apparmor_restrict_unprivileged_userns"}
	content, err := os.ReadFile("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
	if err != nil {
		return p.result(true, "this kernel has no such restriction")
	}
	if strings.TrimSpace(string(content)) == "0" {
		return p.result(true, "AppArmor does not restrict user namespaces")
	}
	return p.result(false, "AppArmor allows user namespaces only to programs with a profile; packaging/apparmor has one for sbctl")
}

func landlockABI() Probe {
	p := Probe{ID: "landlock", Tried: "asking for the version of Landlock"}
	switch abi := launch.LandlockABI(); {
	case abi == 0:
		return p.result(false, "this kernel has no Landlock, or it was not switched on at boot; a sandbox needs it")
	case abi < 6:
		return p.result(true, fmt.Sprintf("ABI %d: enough for a sandbox, but sockets without a path can be reached, and where X or a bus has one a launch needs --no-net", abi))
	default:
		return p.result(true, fmt.Sprintf("ABI %d", abi))
	}
}

// ownProcesses says whether this process is in a pid namespace that is not the
// machine's first one.
func ownProcesses() Probe {
	p := Probe{ID: "pidns", Tried: "looking at this process's pid namespace"}
	link, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return p.unknown(fmt.Sprintf("it could not be read: %v", cause(err)))
	}
	const first = "pid:[4026531836]"
	if link == first {
		return p.result(false, "the machine's: every process of this machine has a number here")
	}
	return p.result(true, "one of its own: processes outside have no number here")
}

func network() Probe {
	p := Probe{ID: "network", Tried: "listing the network's interfaces"}
	interfaces, err := net.Interfaces()
	if err != nil {
		return p.unknown(fmt.Sprintf("they could not be listed: %v", err))
	}
	for _, one := range interfaces {
		if one.Flags&net.FlagLoopback == 0 {
			return p.result(false, one.Name+" is there: the network is shared")
		}
	}
	return p.result(true, "loopback and nothing else")
}

func peerPIDFD() Probe {
	p := Probe{ID: "peerpidfd", Tried: "asking a socket for a handle on its peer (SO_PEERPIDFD)"}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return p.unknown(err.Error())
	}
	defer unix.Close(fds[0])
	defer unix.Close(fds[1])
	fd, err := unix.GetsockoptInt(fds[0], unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	if err != nil {
		return p.result(false, "this kernel has none (from Linux 6.5 on); pid and start time are compared instead")
	}
	unix.Close(fd)
	return p.result(true, "the kernel gives one")
}

func secretMemory() Probe {
	p := Probe{ID: "memfd_secret", Tried: "making memory that even uid 0 cannot read through /proc"}
	fd, err := unix.MemfdSecret(0)
	if err != nil {
		return p.result(false, fmt.Sprintf("the kernel gives none: %v", err))
	}
	unix.Close(fd)
	return p.result(true, "the kernel gives it")
}

func ptraceScope() Probe {
	p := Probe{ID: "ptrace", Tried: "reading kernel.yama.ptrace_scope"}
	content, err := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope")
	if err != nil {
		return p.result(false, "this kernel does not have it: processes of one uid may read each other's memory, unless they forbid it themselves as sbd, sbctl and sb-mcp do")
	}
	if scope := strings.TrimSpace(string(content)); scope != "0" {
		return p.result(true, "scope "+scope+": processes of one uid may not attach to each other freely")
	}
	return p.result(false, "scope 0: processes of one uid may read each other's memory, unless they forbid it themselves as sbd, sbctl and sb-mcp do")
}

// attacker has what attacks have in common.
type attacker struct {
	ctx    context.Context       //nolint:containedctx // lives for one call of Escapes
	target struct{ Home string } // the broker's
}

// opened tries to read one byte of a file, and says what stood in the way.
func opened(path string) error {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = file.Read(make([]byte, 1))
	return err
}

// cause is an error without the path in it, which tells nothing to whoever
// wrote it.
func cause(err error) error {
	if path, ok := errors.AsType[*fs.PathError](err); ok {
		return path.Err
	}
	if link, ok := errors.AsType[*os.LinkError](err); ok {
		return link.Err
	}
	return err
}

func (a attacker) log() Probe {
	p := Probe{ID: "home.log", Tried: "reading the log"}
	entries, err := os.ReadDir(filepath.Join(a.target.Home, "audit"))
	if err != nil {
		return p.result(true, fmt.Sprintf("not readable: %v", cause(err)))
	}
	for _, entry := range entries {
		if opened(filepath.Join(a.target.Home, "audit", entry.Name())) == nil {
			return p.result(false, "the log can be read, and changed")
		}
	}
	return p.result(true, "no segment can be read")
}

// processes lists the other processes that are visible.
func processes() []string {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	own := strconv.Itoa(os.Getpid())
	var pids []string
	for _, entry := range entries {
		if _, err := strconv.Atoi(entry.Name()); err == nil && entry.Name() != own {
			pids = append(pids, entry.Name())
		}
	}
	return pids
}

// connects tries to connect to a Unix socket.
func (a attacker) connects(address string) bool {
	ctx, cancel := context.WithTimeout(a.ctx, attackTime)
	defer cancel()
	for _, network := range []string{"unix", "unixpacket", "unixgram"} {
		var dialer net.Dialer
		conn, err := dialer.DialContext(ctx, network, address)
		if err == nil {
			conn.Close()
			return true
		}
		if !errors.Is(err, unix.EPROTOTYPE) {
			return false
		}
	}
	return false
}
