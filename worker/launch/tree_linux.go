package launch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const usernsHint = "user namespaces may be switched off (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone), forbidden by a container, " +
	"or restricted by AppArmor (kernel.apparmor_restrict_unprivileged_userns; packaging/apparmor has a profile that allows them to sbctl)"

// Tree is a tree of processes whose first one waits or runs the command. Its
// methods may be called from any goroutine, but Go and Wait only once each.
type Tree struct {
	control *conn
	process *os.Process
	stdio   [3]*os.File
	loose   bool // no pid namespace of its own: killing the first process ends only that
	signals chan os.Signal

	gone  chan struct{} // closed when the first process is, and everything with it
	state *os.ProcessState
	ended *int // the command's exit code, once F has told it
	died  syscall.Signal
	sent  syscall.Signal // the last that was handed on, for Wait

	grounds heldGrounds
	term    *relay // nil: the command has no terminal
	once    sync.Once
}

// handedOn are the signals that are the tree's. Those of a terminal are for the
// command's group, as the terminal would send them.
var handedOn = map[syscall.Signal]bool{
	unix.SIGINT: true, unix.SIGQUIT: true, unix.SIGHUP: true, unix.SIGTSTP: true,
	unix.SIGTERM: false, unix.SIGUSR1: false, unix.SIGUSR2: false,
}

// Check starts a tree as cfg would and ends it again. It returns an
// *Unsupported that names the first piece that is missing, an error that is
// ErrRefused when cfg must not be started anywhere, or nil.
func Check(ctx context.Context, cfg Config) error {
	tree, err := start(ctx, cfg, true)
	if err != nil {
		return err
	}
	tree.Kill()
	return nil
}

// Start makes the first process of a tree, which covers what must be covered
// and then waits. ctx bounds this step only. On an error there is nothing left.
// Errors: *Unsupported, ErrRefused, or what went wrong.
//
// From here until Wait or Kill returns, signals for this process are the
// tree's: INT, QUIT, HUP, TERM, USR1, USR2, TSTP and CONT are handed on.
func Start(ctx context.Context, cfg Config) (*Tree, error) { return start(ctx, cfg, false) }

func start(ctx context.Context, cfg Config, trial bool) (*Tree, error) {
	given := setup{Config: cfg, Around: surroundingsOf(cfg.Environ), Trial: trial, Mark: Marker{Subject: cfg.Subject, Profile: cfg.Profile, Sandbox: cfg.Sandbox, NoNet: cfg.NoNet}}
	if outer, inside := Inside(); inside {
		given.Outer = outer
		switch {
		case outer.Sandbox:
			given.Nested = noMounts
		case os.Geteuid() == 0:
			given.Nested = oldProc // uid 0's /proc has read-only parts, so the kernel gives no other
		}
		given.Mark = Marker{
			Subject: outer.Subject, Profile: outer.Profile,
			Sandbox: outer.Sandbox || cfg.Sandbox, NoNet: outer.NoNet || cfg.NoNet, Workspace: outer.Workspace,
		}
	}

	stdio := [3]*os.File{orStd(cfg.Stdin, os.Stdin), orStd(cfg.Stdout, os.Stdout), orStd(cfg.Stderr, os.Stderr)}
	if err := checkStdio(cfg, stdio); err != nil {
		return nil, err
	}
	control, theirs, err := pair()
	if err != nil {
		return nil, err
	}
	t := &Tree{
		control: control, loose: given.Nested != outermost, gone: make(chan struct{}), signals: make(chan os.Signal, 32), stdio: stdio,
	}
	for sig := range handedOn {
		if !signal.Ignored(sig) {
			signal.Notify(t.signals, sig)
		}
	}
	signal.Notify(t.signals, unix.SIGCONT, unix.SIGWINCH)
	if given.Nested == outermost && !trial {
		t.grounds = holdGrounds(given.Around)
	}
	err = t.fork(given, theirs)
	theirs.Close()
	if err == nil {
		err = t.prepare(ctx, given)
	}
	if err != nil {
		t.Kill()
		return nil, err
	}
	return t, nil
}

func orStd(file, std *os.File) *os.File {
	if file == nil {
		return std
	}
	return file
}

// fork starts F. A thread of its own stays with it, because the death of a
// parent that the kernel tells children about is that of its thread.
func (t *Tree) fork(given setup, theirs *os.File) error {
	forked := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		var err error
		t.process, err = startFirst(given, [4]*os.File{t.stdio[0], t.stdio[1], t.stdio[2], theirs})
		forked <- err
		if err != nil {
			close(t.gone)
			return
		}
		t.state, err = t.process.Wait()
		if err != nil {
			t.state = nil
		}
		close(t.gone)
	}()
	return <-forked
}

// startFirst starts F with a user namespace that has no maps yet. Were they
// written before F is another program, this one would have to be dumpable for
// that long: the files in /proc/PID of a copy of it belong to uid 0 otherwise.
func startFirst(given setup, files [4]*os.File) (*os.Process, error) {
	// Kept over exec, which is not uid 0's. uid 0 needs more of them to give its
	// uid to the command, and to see the files that it sees outside.
	caps := []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_NET_ADMIN}
	if os.Geteuid() == 0 {
		caps = append(caps, unix.CAP_SETFCAP, unix.CAP_DAC_OVERRIDE)
	}
	sys := &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWIPC | unix.CLONE_NEWPID,
		Pdeathsig:   unix.SIGKILL,
		AmbientCaps: caps,
	}
	switch given.Nested {
	case outermost:
	case oldProc:
		sys.Cloneflags &^= unix.CLONE_NEWPID
		sys.Pdeathsig = 0 // F must live to end the rest
	case noMounts:
		sys.Cloneflags &^= unix.CLONE_NEWPID | unix.CLONE_NEWNS
		sys.Pdeathsig = 0
	}
	if given.Config.NoNet {
		sys.Cloneflags |= unix.CLONE_NEWNET
	}
	process, err := os.StartProcess("/proc/self/exe", []string{firstName}, &os.ProcAttr{
		Files: files[:], Env: []string{}, Sys: sys,
	})
	if err != nil {
		return nil, missing("user namespaces", usernsHint, err)
	}
	return process, nil
}

// writeMaps maps this process's uid and gid into F's user namespace and nothing
// else, which needs no capability.
func writeMaps(pid int) error {
	for _, file := range []struct{ name, content string }{
		{"setgroups", "deny"}, // without which the next one is refused
		{"gid_map", fmt.Sprintf("%[1]d %[1]d 1", os.Getegid())},
		{"uid_map", fmt.Sprintf("%[1]d %[1]d 1", os.Geteuid())},
	} {
		if err := os.WriteFile(fmt.Sprintf("/proc/%d/%s", pid, file.name), []byte(file.content), 0); err != nil {
			return missing("user namespaces", usernsHint, err)
		}
	}
	return nil
}

// prepare gives F its orders and waits until it is ready.
func (t *Tree) prepare(ctx context.Context, given setup) error {
	stop := context.AfterFunc(ctx, func() { _ = t.process.Kill() })
	defer stop()
	var a answer
	_, err := t.control.receive(&a)
	var refused error
	if err == nil {
		refused = writeMaps(t.process.Pid)
	}
	if err == nil && refused == nil {
		if err = t.control.send(given); err == nil {
			_, err = t.control.receive(&a)
		}
	}
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("starting a launch: %w", context.Cause(ctx))
	case refused != nil:
		return refused
	case err != nil:
		return fmt.Errorf("%w while it was prepared", ErrEnded)
	}
	return a.err()
}

// PID of the first process, as this process sees it.
func (t *Tree) PID() int { return t.process.Pid }

// Go starts the command. An error says why it could not be started; fs.ErrNotExist
// and fs.ErrPermission are kept, as a shell's exit codes 127 and 126 need. The
// tree is still there then, and only Kill is left to do.
func (t *Tree) Go(cmd Command) error {
	cmd.Env = lastWins(cmd.Env)
	order := order{Run: &run{Command: cmd}}
	term := newRelay(t.stdio)
	if term != nil {
		order.Run.Terminal, order.Run.Files = &term.like, term.files
	}
	if err := t.control.send(order); err != nil {
		return fmt.Errorf("%w before the command was started", ErrEnded)
	}
	var a answer
	master, err := t.control.receive(&a)
	if err != nil {
		return fmt.Errorf("%w before the command was started", ErrEnded)
	}
	if err := a.err(); err != nil {
		return err
	}
	if term != nil {
		if master == nil {
			return errors.New("the tree has no terminal to relay")
		}
		t.term = term
		return term.begin(master)
	}
	return nil
}

// Wait relays the terminal until the command ends and returns its exit code, or
// 128 plus the number of the signal that ended it. The tree is gone when it
// returns. ErrEnded: its first process was killed.
func (t *Tree) Wait() (code int, err error) {
	stops := make(chan syscall.Signal)
	go func() {
		defer close(stops)
		for {
			var a answer
			if _, err := t.control.receive(&a); err != nil {
				return
			}
			if a.Ended {
				t.ended, t.died = &a.Code, syscall.Signal(a.Signal)
			}
			if a.Stopped != 0 {
				select {
				case stops <- syscall.Signal(a.Stopped):
				case <-t.gone:
					return
				}
			}
		}
	}()
	told := stops
	for {
		select {
		case <-t.gone:
			// What F said last is there already.
			_ = t.control.unix.SetReadDeadline(time.Now().Add(drainTime))
			for range stops {
			}
			t.end()
			return t.code()
		case sig, more := <-told:
			if !more {
				told = nil // F is about to be gone
				continue
			}
			t.suspend(sig)
		case sig := <-t.signals:
			t.handOn(sig)
		case <-t.term.ticks():
			t.term.look()
		}
	}
}

func (t *Tree) code() (int, error) {
	if t.ended != nil {
		return *t.ended, nil
	}
	if t.state != nil {
		if status, ok := t.state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			return 128 + int(status.Signal()), ErrEnded
		}
	}
	return 1, ErrEnded // F failed, and its exit code is not the command's
}

func (t *Tree) handOn(sig os.Signal) {
	number, ok := sig.(syscall.Signal)
	if !ok {
		return
	}
	if group, handed := handedOn[number]; handed {
		t.sent = number
		_ = t.control.send(order{Signal: int(number), Group: group}) // F is gone: t.gone follows
		return
	}
	t.term.look() // WINCH, CONT: another size, or in the foreground again
}

// Signal has Wait hand sig on as if this process had got it. It does not wait.
func (t *Tree) Signal(sig syscall.Signal) {
	select {
	case t.signals <- sig:
	default: // so many are waiting that one more says nothing
	}
}

// suspend stops this process as the command was stopped, so that the shell
// that started it takes over, and goes on when the shell says so.
func (t *Tree) suspend(sig syscall.Signal) {
	t.term.pause()
	t.stopSelf(sig)
	t.term.look()
	_ = t.control.send(order{Resume: true})
}

// stopSelf stops this process and its group, and returns when it goes on. It
// returns at once where nobody could make it go on: the kernel does not stop a
// group without a shell above it.
func (t *Tree) stopSelf(sig syscall.Signal) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if sig == unix.SIGSTOP {
		_ = unix.Tgkill(unix.Getpid(), unix.Gettid(), unix.SIGSTOP)
		return
	}
	ignored := signal.Ignored(unix.SIGTSTP)
	// The others of the group first, which a pipeline has; then this thread
	// alone, because only then does the signal arrive before the next line.
	signal.Ignore(unix.SIGTSTP)
	_ = unix.Kill(0, unix.SIGTSTP)
	if ignored {
		return
	}
	// The runtime does not give a signal back its default action.
	if setAction(unix.SIGTSTP, defaultAction) == nil {
		_ = unix.Tgkill(unix.Getpid(), unix.Gettid(), unix.SIGTSTP)
	}
	signal.Notify(t.signals, unix.SIGTSTP)
}

// end gives back what Start and Go took.
func (t *Tree) end() {
	t.once.Do(func() {
		signal.Stop(t.signals)
		_ = t.control.unix.Close()
		t.term.finish()
		t.grounds.release()
	})
}

// Kill ends every process of the tree at once and waits until they are gone. It
// may be called more than once, before and after Wait. Inside a launch, where a
// tree can be without a pid namespace of its own, its first process ends the
// others one by one; those that it does not reach in a few seconds end with the
// outer launch.
func (t *Tree) Kill() {
	_ = t.control.unix.CloseWrite()
	if t.loose {
		select {
		case <-t.gone:
		case <-time.After(clearTime):
		}
	}
	if t.process != nil {
		_ = t.process.Kill() // it may be gone
	}
	<-t.gone
	t.end()
}

// clearTime bounds how long the first process of a tree inside a launch may
// take to end the others.
const clearTime = 5 * time.Second
