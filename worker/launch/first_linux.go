package launch

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// firstName is how Main recognises F: argv[0], and nothing after it.
const firstName = "subjectbroker-launch"

// controlFD is F's end of the pair.
const controlFD = 3

// nesting is what of a tree the surroundings already provide.
type nesting int

const (
	outermost nesting = iota
	oldProc           // inside a launch whose /proc cannot be mounted again: its pid namespace is kept
	noMounts          // inside a sandbox, where Landlock forbids mounts
)

// setup is what P tells F first.
type setup struct {
	Config Config // without Environ, which F must not keep
	Around surroundings
	Nested nesting
	Mark   Marker
	Outer  Marker // of the launch that this one is inside of
	Trial  bool   // nothing will be run: see Check
}

// Main recognises the first process of a tree by args (os.Args) and is then all
// that this process does: the caller exits with code. It must be the first
// thing in main, before flags are parsed or anything is opened.
func Main(args []string) (handled bool, code int) {
	if len(args) != 1 || args[0] != firstName {
		return false, 0
	}
	return true, first()
}

// first is F's whole life.
func first() int {
	// Landlock rules and namespaces of children go by thread; this one starts the command.
	runtime.LockOSThread()
	// What the caller happened to have open is not for the command: a directory
	// that is open leads past every cover.
	if err := unix.CloseRange(controlFD, ^uint(0), unix.CLOSE_RANGE_CLOEXEC); err != nil {
		fmt.Fprintf(os.Stderr, "%s: closing inherited descriptors: %v\n", firstName, err)
		return 2
	}
	control, err := connOf(controlFD)
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: this is started by `sbctl run` only\n", firstName)
		return 2
	}
	if err := deafen(); err != nil {
		fmt.Fprintf(os.Stderr, "%s: ignoring signals: %v\n", firstName, err)
		return 2
	}
	// Signals of the tree's terminal and of its processes are not for F.
	swallow := make(chan os.Signal, 1)
	for _, sig := range []os.Signal{
		unix.SIGINT, unix.SIGTERM, unix.SIGQUIT, unix.SIGHUP, unix.SIGUSR1, unix.SIGUSR2,
		unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU, unix.SIGPIPE, unix.SIGALRM, unix.SIGCONT,
	} {
		if !signal.Ignored(sig) { // the command inherits what is ignored
			signal.Notify(swallow, sig)
		}
	}

	// P writes the maps of this user namespace when it hears of us. The files
	// belong to our uid while we are dumpable, which a program that its uid may
	// not read is not by itself.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0); err != nil {
		return 2
	}
	if err := control.send(answer{}); err != nil {
		return 1
	}
	var given setup
	if _, err := control.receive(&given); err != nil {
		return 1
	}
	f := &firstProcess{control: control, setup: given}
	here, err := os.Getwd()
	if err != nil {
		here = "/"
	}
	f.here = here
	if err := control.send(answerTo(f.prepare())); err != nil {
		return 1
	}
	for {
		var o order
		if _, err := control.receive(&o); err != nil {
			return 1 // P is gone; so are we, and everything with us
		}
		if o.Run == nil {
			continue
		}
		master, err := f.start(*o.Run)
		if err != nil {
			if control.send(answerTo(err)) != nil {
				return 1
			}
			continue
		}
		var rights []*os.File
		if master != nil {
			rights = append(rights, master)
		}
		err = control.send(answer{}, rights...)
		if master != nil {
			master.Close()
		}
		if err != nil {
			return 1
		}
		return f.attend()
	}
}

// faults are the signals at which the runtime would end F with a dump of its
// stacks, whoever sent them.
var faults = []syscall.Signal{
	unix.SIGILL, unix.SIGTRAP, unix.SIGABRT, unix.SIGBUS, unix.SIGFPE, unix.SIGSEGV, unix.SIGSTKFLT, unix.SIGSYS,
}

// deafen ignores them when the tree sends them. A fault of F's own still ends
// it: the kernel does not let a process ignore that. It goes past the runtime,
// which therefore gives the command their default actions.
func deafen() error {
	for _, sig := range faults {
		if err := setAction(sig, ignoreSignal); err != nil {
			return err
		}
	}
	return nil
}

const (
	defaultAction uintptr = 0 // SIG_DFL
	ignoreSignal  uintptr = 1 // SIG_IGN
)

// sigsetSize is the size of the kernel's set of signals, in bytes.
const sigsetSize = 8

// setAction changes what a signal does behind the runtime's back. The action
// is the first of the kernel's words about a signal, and the others may be zero.
func setAction(sig syscall.Signal, action uintptr) error {
	words := [16]uintptr{action}
	_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&words)), 0, sigsetSize, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// firstProcess is F: pid 1 of the tree.
type firstProcess struct {
	control *conn
	setup   setup
	view    *view
	here    string // working directory outside
	command int    // pid
	slave   *os.File

	sending sync.Mutex
}

func (f *firstProcess) prepare() error {
	if _, err := unix.Setsid(); err != nil {
		return fmt.Errorf("beginning a session: %w", err)
	}
	if f.setup.Nested != outermost {
		// Without a pid namespace of its own a tree is kept together by this.
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("becoming the reaper: %w", err)
		}
	}
	// The keys that the caller's session holds in the kernel stay outside.
	if _, _, errno := unix.RawSyscall(unix.SYS_KEYCTL, unix.KEYCTL_JOIN_SESSION_KEYRING, 0, 0); errno != 0 && errno != unix.ENOSYS && errno != unix.EPERM {
		return fmt.Errorf("beginning a session keyring: %w", errno)
	}
	cfg, around := f.setup.Config, f.setup.Around
	v, err := viewOf(cfg, around)
	if err != nil {
		return err // before anything is made
	}
	if err := lacking(cfg, LandlockABI(), f.setup.Nested, v.openNames(around)); err != nil {
		return err
	}
	if f.setup.Nested == outermost && !f.setup.Trial {
		boundPIDs(cfg.Tasks)
		if err := makeGrounds(around); err != nil {
			return err
		}
		if v, err = viewOf(cfg, around); err != nil { // once more, with what was made
			return err
		}
	}
	f.view = v
	if f.setup.Nested == noMounts && cfg.Sandbox {
		// The directories are the outer sandbox's, and where its workspace lies in
		// one of them, that is not this one's.
		v.places = slices.DeleteFunc(v.places, func(p place) bool { return p.kind == ownDir && within(f.setup.Outer.Workspace, p.path) })
	}
	f.setup.Mark.Workspace = cmp.Or(v.workspace, f.setup.Mark.Workspace)
	if err := build(v, f.setup.Nested, f.setup.Mark); err != nil {
		return err
	}
	if cfg.NoNet {
		return loopback()
	}
	return nil
}

// lacking names what cfg needs and a kernel with this version of Landlock does
// not give. open are the sockets without a path that must be cut off.
func lacking(cfg Config, abi int, nested nesting, open []string) error {
	switch {
	case cfg.Sandbox && abi < 1:
		return &Unsupported{Piece: "Landlock", Hint: "a kernel from 5.13 on with landlock among its security modules (lsm= on its command line) has it"}
	case !cfg.NoNet && abi < landlockScopes && nested == outermost && len(open) > 0:
		return &Unsupported{
			Piece: "a way to hide " + open[0] + ", which is a socket without a path (Landlock ABI 6)",
			Hint:  "--no-net hides it, and so does a kernel from 6.12 on",
		}
	}
	return nil
}

// makeGrounds makes the directories that programs make at their first start,
// empty and with the same modes, so that there is something to cover: a server
// that is started later outside would otherwise take orders from inside. As a rule
// they are there: see holdGrounds.
func makeGrounds(around surroundings) error {
	for _, g := range grounds(around) {
		if info, err := os.Stat(filepath.Dir(g.path)); err != nil || !info.IsDir() {
			continue
		}
		err := os.Mkdir(g.path, 0o700)
		if err == nil && g.shared {
			err = os.Chmod(g.path, 0o777|fs.ModeSticky) // everyone's, as X makes it
		}
		switch {
		case err == nil, errors.Is(err, fs.ErrExist):
		case errors.Is(err, fs.ErrPermission), errors.Is(err, unix.EROFS): // nor will the program be able to
		default:
			return fmt.Errorf("making %s to cover it: %w", g.path, err)
		}
	}
	return nil
}

// start starts the command. The returned file is the terminal's master.
func (f *firstProcess) start(order run) (*os.File, error) {
	if len(order.Argv) == 0 {
		return nil, errors.New("there is no command")
	}
	dir := f.workingDir(order.Dir)
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return nil, fmt.Errorf("working directory %s: %w", dir, unix.ENOENT)
	}
	program, err := lookPath(order.Argv[0], order.Env, dir)
	if err != nil {
		return nil, err
	}
	files := [3]uintptr{0, 1, 2}
	var master *os.File
	if order.Terminal != nil {
		var slave *os.File
		if master, slave, err = openTerminal(*order.Terminal); err != nil {
			return nil, err
		}
		f.slave = slave
		for i, isTerminal := range order.Files {
			if isTerminal {
				files[i] = slave.Fd()
			}
		}
	}
	if f.command, err = f.fork(program, dir, order, files); err != nil {
		if master != nil {
			master.Close()
			f.slave.Close()
		}
		return nil, err
	}
	// From here on F holds what the command was given, and nothing of it is read again.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return nil, err
	}
	if f.slave != nil {
		f.foreground()
	}
	forgetStreams()
	return master, nil
}

// fork starts the program in a user namespace below F's: whatever it is
// allowed there, it has no right over F's mounts, network or processes.
func (f *firstProcess) fork(program, dir string, order run, files [3]uintptr) (pid int, err error) {
	rules := -1
	if f.view.sandbox || f.setup.Nested == outermost {
		if rules, err = f.view.ruleset(LandlockABI()); err != nil {
			return 0, err
		}
	}
	if err := restrictThread(rules); err != nil {
		return 0, err
	}
	if err := filterCalls(); err != nil {
		return 0, err
	}
	if rules >= 0 {
		unix.Close(rules)
	}
	uid, gid := os.Geteuid(), os.Getegid()
	unbound, err := bindTasks(f.setup.Config.Tasks)
	if err != nil {
		return 0, fmt.Errorf("limiting its processes: %w", err)
	}
	defer unbound()
	pid, err = syscall.ForkExec(program, order.Argv, &syscall.ProcAttr{
		Dir: dir, Env: order.Env, Files: files[:],
		Sys: &syscall.SysProcAttr{
			Cloneflags:  unix.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: uid, HostID: uid, Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: gid, HostID: gid, Size: 1}},
			// A group of its own in F's session: its parent is then in the same
			// session and another group, without which the kernel would not let the
			// terminal stop it.
			Setpgid: true,
		},
	})
	if err != nil {
		return 0, fmt.Errorf("starting %s: %w", order.Argv[0], err)
	}
	return pid, nil
}

// workingDir is where the command starts.
func (f *firstProcess) workingDir(asked string) string {
	for _, dir := range []string{asked, f.here, f.view.workspace} {
		if dir == "" {
			continue
		}
		if info, err := os.Stat(dir); err == nil && info.IsDir() || dir == asked {
			return dir
		}
	}
	return "/"
}

// lookPath finds a program the way a shell does, in the PATH of env.
func lookPath(name string, env []string, dir string) (string, error) {
	if strings.Contains(name, "/") {
		path := name
		if !filepath.IsAbs(path) {
			path = filepath.Join(dir, path)
		}
		if _, err := os.Stat(path); err != nil {
			return "", fmt.Errorf("starting %s: %w", name, err)
		}
		return path, nil
	}
	denied := false
	for _, place := range filepath.SplitList(lookup(env, "PATH")) {
		if !filepath.IsAbs(place) {
			continue // as os/exec: not from the working directory
		}
		path := filepath.Join(place, name)
		info, err := os.Stat(path)
		if err != nil || info.IsDir() {
			continue
		}
		if unix.Access(path, unix.X_OK) == nil {
			return path, nil
		}
		denied = true
	}
	if denied {
		return "", fmt.Errorf("starting %s: %w", name, fs.ErrPermission)
	}
	return "", fmt.Errorf("starting %s: %w", name, &exec.Error{Name: name, Err: unix.ENOENT})
}

// openTerminal makes a terminal of the tree's own that looks like the caller's.
func openTerminal(like terminal) (master, slave *os.File, err error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("opening a terminal: %w", err)
	}
	master = os.NewFile(uintptr(fd), "master")
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		master.Close()
		return nil, nil, fmt.Errorf("unlocking a terminal: %w", err)
	}
	peer, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		master.Close()
		return nil, nil, fmt.Errorf("opening a terminal's other end: %w", errno)
	}
	slave = os.NewFile(peer, "slave")
	err = errors.Join(
		unix.IoctlSetTermios(int(peer), unix.TCSETS, &like.Termios),
		unix.IoctlSetWinsize(int(peer), unix.TIOCSWINSZ, &like.Size),
		unix.IoctlSetInt(int(peer), unix.TIOCSCTTY, 0),
	)
	if err != nil {
		master.Close()
		slave.Close()
		return nil, nil, fmt.Errorf("setting up a terminal: %w", err)
	}
	return master, slave, nil
}

// foreground gives the tree's terminal to the command's group, as a shell does.
// A command that was quicker and has been stopped for touching it goes on: see
// attend.
func (f *firstProcess) foreground() {
	if f.slave == nil {
		return
	}
	// The command may be gone already; then nobody minds.
	_ = unix.IoctlSetPointerInt(int(f.slave.Fd()), unix.TIOCSPGRP, f.command)
}

func (f *firstProcess) inForeground() bool {
	if f.slave == nil {
		return false
	}
	group, err := unix.IoctlGetInt(int(f.slave.Fd()), unix.TIOCGPGRP)
	return err == nil && group == f.command
}

// forgetStreams closes F's copies of the caller's terminal and of the command's
// streams: whoever reads those hears of their end when the command has closed them.
func forgetStreams() {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return
	}
	defer null.Close()
	for i := range 3 {
		_ = unix.Dup3(int(null.Fd()), i, 0)
	}
}

// attend hands signals on, reaps, and returns the command's exit code.
func (f *firstProcess) attend() int {
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		for {
			var o order
			if _, err := f.control.receive(&o); err != nil {
				return
			}
			f.obey(o)
		}
	}()
	ended := make(chan answer, 1)
	go func() { ended <- f.reap() }()
	select {
	case <-gone:
		f.clear()
		return 1
	case a := <-ended:
		f.clear()
		if a.Ended {
			_ = f.tell(a) // P may be gone
		}
		return a.Code
	}
}

// tell is send for F's several goroutines.
func (f *firstProcess) tell(a answer) error {
	f.sending.Lock()
	defer f.sending.Unlock()
	return f.control.send(a)
}

func (f *firstProcess) obey(o order) {
	if o.Resume {
		f.foreground()
		_ = unix.Kill(-f.command, unix.SIGCONT)
		return
	}
	target := f.command
	if o.Group {
		target = -f.command
	}
	_ = unix.Kill(target, syscall.Signal(o.Signal))
}

// reap waits for all children, those that were orphaned too, until the command
// ends, and says how it did. Without Ended it was not the command that ended.
func (f *firstProcess) reap() answer {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WUNTRACED, nil)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return answer{Code: 1}
		case pid != f.command:
			continue
		case status.Exited():
			return answer{Ended: true, Code: status.ExitStatus()}
		case status.Signaled():
			return answer{Ended: true, Code: 128 + int(status.Signal()), Signal: int(status.Signal())}
		case status.Stopped():
			sig := status.StopSignal()
			if (sig == unix.SIGTTIN || sig == unix.SIGTTOU) && f.inForeground() {
				_ = unix.Kill(-f.command, unix.SIGCONT) // it was quicker than foreground
				continue
			}
			if err := f.tell(answer{Stopped: int(sig)}); err != nil && !errors.Is(err, io.EOF) {
				return answer{Code: 1}
			}
		}
	}
}

// clear ends what is left where no pid namespace ends it.
func (f *firstProcess) clear() {
	if f.setup.Nested == outermost {
		return
	}
	for range 200 { // whoever forks faster than this ends with the outer launch
		all := reapChildren(os.Getpid())
		if len(all) == 0 {
			return
		}
		for _, pid := range all {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		time.Sleep(time.Millisecond)
	}
}

// reapChildren reaps the children of all threads of this process, pid, that have
// ended, and lists the others.
func reapChildren(pid int) []int {
	paths, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		return nil
	}
	var all []int
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		for field := range strings.FieldsSeq(string(content)) {
			child, err := strconv.Atoi(field)
			if err != nil {
				continue
			}
			if pid, err := unix.Wait4(child, nil, unix.WNOHANG, nil); err != nil || pid != 0 {
				continue // reaped
			}
			all = append(all, child)
		}
	}
	return all
}
