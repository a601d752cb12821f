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
		return p.result(true, fmt.Sprintf("ABI %d: enough for a sandbox, but a bound tree can reach sockets without a path", abi))
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

// Attacks makes every attack on target from where this process stands, in a
// fixed order. The ids are the same inside and outside a tree, so that the
// control without protection is the same code.
func Attacks(ctx context.Context, target Target) []Probe {
	a := attacker{ctx: ctx, target: target}
	var all []Probe
	if target.Home != "" {
		all = append(all,
			a.read("home.key", "reading the key", "secret.key"),
			a.read("home.vault", "reading the vault", "vault.db"),
			a.read("home.audit-key", "reading the log's signing key", "audit.key"),
			a.log(),
			a.otherRoots(),
		)
		if target.Workspace != "" {
			all = append(all, a.symbolicLink(), a.hardLink())
		}
		all = append(all, a.operator())
	}
	if target.DaemonPID > 0 {
		all = append(all, a.daemonVisible(), a.daemonMemory())
	}
	all = append(all, a.shimMemory(), a.sessionBus(),
		a.doors("bus.system", "connecting to the system's bus", "/run/dbus/system_bus_socket", "/var/run/dbus/system_bus_socket"),
		a.doors("systemd", "connecting to systemd's private sockets", "/run/systemd/private", runtimeDir("systemd/private"), runtimeDir("systemd/notify")),
		a.doors("tmux", "connecting to tmux and screen", a.tmux()...),
		a.doors("containers", "connecting to container engines", a.engines()...),
		a.doors("ssh-agent", "connecting to agents that hold keys", a.agents()...),
	)
	if len(target.Files) > 0 {
		all = append(all, a.files())
	}
	return all
}

type attacker struct {
	ctx    context.Context //nolint:containedctx // lives for one call of Attacks
	target Target
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

func (a attacker) read(id, tried, name string) Probe {
	p := Probe{ID: id, Tried: tried}
	err := opened(filepath.Join(a.target.Home, name))
	if err != nil {
		return p.result(true, fmt.Sprintf("not readable: %v", cause(err)))
	}
	return p.result(false, name+" can be read")
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

// otherRoots looks for the home through the eyes of every other process.
func (a attacker) otherRoots() Probe {
	p := Probe{ID: "home.proc", Tried: "reading the home through other processes in /proc"}
	tried := 0
	for _, pid := range processes() {
		for _, name := range []string{"vault.db", "secret.key"} {
			tried++
			if opened(filepath.Join("/proc", pid, "root", a.target.Home, name)) == nil {
				return p.result(false, "the root of process "+pid+" shows it")
			}
		}
	}
	return p.result(true, fmt.Sprintf("no other process shows it (%d tried)", tried/2))
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

func (a attacker) symbolicLink() Probe {
	p := Probe{ID: "home.symlink", Tried: "reading the vault through a symbolic link"}
	dir, err := os.MkdirTemp(a.target.Workspace, ".probe")
	if err != nil {
		return p.unknown(fmt.Sprintf("the workspace cannot be written: %v", cause(err)))
	}
	defer os.RemoveAll(dir)
	way := filepath.Join(dir, "way")
	if err := os.Symlink(a.target.Home, way); err != nil {
		return p.unknown(fmt.Sprintf("the link could not be made: %v", cause(err)))
	}
	for _, name := range []string{"vault.db", "secret.key"} {
		if opened(filepath.Join(way, name)) == nil {
			return p.result(false, name+" can be read through it")
		}
	}
	return p.result(true, "the link leads to nothing")
}

func (a attacker) hardLink() Probe {
	p := Probe{ID: "home.hardlink", Tried: "giving the vault a second name (a hard link)"}
	dir, err := os.MkdirTemp(a.target.Workspace, ".probe")
	if err != nil {
		return p.unknown(fmt.Sprintf("the workspace cannot be written: %v", cause(err)))
	}
	defer os.RemoveAll(dir)
	for _, name := range []string{"vault.db", "secret.key"} {
		err = os.Link(filepath.Join(a.target.Home, name), filepath.Join(dir, name))
		if err == nil {
			return p.result(false, name+" got one")
		}
	}
	if errors.Is(err, unix.EXDEV) {
		return p.unknown("the workspace is on another file system")
	}
	return p.result(true, fmt.Sprintf("refused: %v", cause(err)))
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

func (a attacker) doors(id, tried string, addresses ...string) Probe {
	p := Probe{ID: id, Tried: tried}
	for _, address := range addresses {
		if a.connects(address) {
			return p.result(false, address+" answers")
		}
	}
	return p.result(true, "none answers here")
}

func (a attacker) operator() Probe {
	dir := a.target.SocketDir
	if dir == "" {
		dir = filepath.Join(a.target.Home, "run")
	}
	return a.doors("operator", "connecting to the operator's socket", filepath.Join(dir, "operator", "operator.sock"))
}

func runtimeDir(name string) string {
	return filepath.Join("/run/user", strconv.Itoa(os.Geteuid()), name)
}

func (a attacker) sessionBus() Probe {
	addresses := []string{runtimeDir("bus")}
	for address := range strings.SplitSeq(os.Getenv("DBUS_SESSION_BUS_ADDRESS"), ";") {
		address, _, _ = strings.Cut(address, ",")
		if path, ok := strings.CutPrefix(address, "unix:path="); ok {
			addresses = append(addresses, path)
		} else if name, ok := strings.CutPrefix(address, "unix:abstract="); ok {
			addresses = append(addresses, "@"+name)
		}
	}
	return a.doors("bus.session", "connecting to the session's bus", addresses...)
}

func (a attacker) tmux() []string {
	uid := strconv.Itoa(os.Geteuid())
	var found []string
	if value, _, _ := strings.Cut(os.Getenv("TMUX"), ","); value != "" {
		found = append(found, value)
	}
	return append(found, globs(filepath.Join("/tmp", "tmux-"+uid, "*"), filepath.Join(os.Getenv("TMUX_TMPDIR"), "tmux-"+uid, "*"), "/run/screen/*/*", "/run/screens/*/*", runtimeDir("tmux*/*"))...)
}

func (a attacker) engines() []string {
	found := []string{
		"/run/docker.sock", "/var/run/docker.sock", "/run/podman/podman.sock", "/run/containerd/containerd.sock", runtimeDir("docker.sock"), runtimeDir("podman/podman.sock"),
		"/var/lib/lxd/unix.socket", "/var/snap/lxd/common/lxd/unix.socket",
	}
	for _, name := range []string{"DOCKER_HOST", "CONTAINER_HOST"} {
		if path, ok := strings.CutPrefix(os.Getenv(name), "unix://"); ok {
			found = append(found, path)
		}
	}
	return found
}

func (a attacker) agents() []string {
	var found []string
	if path := os.Getenv("SSH_AUTH_SOCK"); path != "" {
		found = append(found, path)
	}
	home := os.Getenv("HOME")
	return append(found, globs("/tmp/ssh-*/agent.*", filepath.Join(home, ".gnupg", "S.gpg-agent*"), filepath.Join(home, ".ssh", "agent", "*"), runtimeDir("gnupg/S.gpg-agent*"), runtimeDir("keyring/*"))...)
}

func globs(patterns ...string) []string {
	var found []string
	for _, pattern := range patterns {
		if !filepath.IsAbs(pattern) {
			continue
		}
		if paths, err := filepath.Glob(pattern); err == nil {
			found = append(found, paths...)
		}
	}
	return found
}

// daemon is the daemon's directory in /proc, if the process of that number is
// the daemon. In another pid namespace it is something else or nothing.
func (a attacker) daemon() (string, bool) {
	dir := filepath.Join("/proc", strconv.Itoa(a.target.DaemonPID))
	comm, err := os.ReadFile(filepath.Join(dir, "comm"))
	return dir, err == nil && strings.TrimSpace(string(comm)) == "sbd"
}

func (a attacker) daemonVisible() Probe {
	p := Probe{ID: "daemon.visible", Tried: "finding the daemon's process"}
	if _, there := a.daemon(); there {
		return p.result(false, "it can be seen, and by its own uid be ended")
	}
	return p.result(true, "it cannot be seen")
}

func (a attacker) daemonMemory() Probe {
	p := Probe{ID: "daemon.memory", Tried: "opening the daemon's memory"}
	dir, there := a.daemon()
	if !there {
		return p.result(true, "the daemon cannot be seen")
	}
	return p.memory(dir)
}

// memory opens a process's memory without reading it: the kernel asks the same
// question as for ptrace.
func (p Probe) memory(dir string) Probe {
	file, err := os.Open(filepath.Join(dir, "mem"))
	if err != nil {
		return p.result(true, fmt.Sprintf("refused: %v", cause(err)))
	}
	file.Close()
	return p.result(false, "it can be read")
}

func (a attacker) shimMemory() Probe {
	p := Probe{ID: "shim.memory", Tried: "opening the memory of another shim"}
	tried := 0
	for _, pid := range processes() {
		comm, err := os.ReadFile(filepath.Join("/proc", pid, "comm"))
		if err != nil || strings.TrimSpace(string(comm)) != "sb-mcp" {
			continue
		}
		tried++
		if result := p.memory(filepath.Join("/proc", pid)); result.Status == NotHeld {
			return result
		}
	}
	if tried == 0 {
		return p.result(true, "no other shim can be seen")
	}
	return p.result(true, fmt.Sprintf("refused (%d tried)", tried))
}

func (a attacker) files() Probe {
	p := Probe{ID: "files", Tried: "reading other files of the same uid"}
	for _, path := range a.target.Files {
		if opened(path) == nil {
			return p.result(false, path+" can be read")
		}
	}
	return p.result(true, fmt.Sprintf("none can be read (%d tried)", len(a.target.Files)))
}
