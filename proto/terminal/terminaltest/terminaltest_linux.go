// Package terminaltest runs a program on a terminal of its own and types on it,
// as a person would: each key after what it answers has been shown.
//
// Nothing in it waits for a time: Expect waits for output, at most Patience.
package terminaltest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Patience is how long output is waited for at most, also on a busy machine.
const Patience = 60 * time.Second

// Program is a program on a terminal.
type Program struct {
	t      testing.TB
	master *os.File
	cmd    *exec.Cmd
	ended  chan struct{} // closed once all output is in

	mu    sync.Mutex
	shown bytes.Buffer
	more  chan struct{} // closed and replaced whenever shown grows
	from  int           // what Expect has seen already
}

// Start starts cmd as the leader of a session whose controlling terminal is a new
// one. Streams that cmd does not name are that terminal. The program is killed at
// the end of the test.
func Start(t testing.TB, cmd *exec.Cmd) *Program {
	t.Helper()
	master, slave, err := open()
	if err != nil {
		t.Fatal(err)
	}
	defer slave.Close()
	for _, stream := range []struct {
		is  bool
		set func()
	}{
		{cmd.Stdin == nil, func() { cmd.Stdin = slave }},
		{cmd.Stdout == nil, func() { cmd.Stdout = slave }},
		{cmd.Stderr == nil, func() { cmd.Stderr = slave }},
	} {
		if stream.is {
			stream.set()
		}
	}
	// The terminal itself is always there as one more descriptor, so that it can be
	// made the controlling one whatever the streams are.
	cmd.ExtraFiles = append(cmd.ExtraFiles, slave)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 2 + len(cmd.ExtraFiles)}
	if err := cmd.Start(); err != nil {
		master.Close()
		t.Fatal(err)
	}
	p := &Program{t: t, master: master, cmd: cmd, ended: make(chan struct{}), more: make(chan struct{})}
	go p.read()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		master.Close()
		<-p.ended
	})
	return p
}

// open makes a new terminal.
func open() (master, slave *os.File, err error) {
	master, err = os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, err
	}
	raw, err := master.SyscallConn()
	if err != nil {
		master.Close()
		return nil, nil, err
	}
	number := 0
	var failed error
	err = raw.Control(func(fd uintptr) {
		if failed = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0); failed != nil {
			return
		}
		if number, failed = unix.IoctlGetInt(int(fd), unix.TIOCGPTN); failed != nil {
			return
		}
		failed = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: 40, Col: 160})
	})
	if err = errors.Join(err, failed); err != nil {
		master.Close()
		return nil, nil, err
	}
	slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		master.Close()
		return nil, nil, err
	}
	return master, slave, nil
}

func (p *Program) read() {
	defer close(p.ended)
	buffer := make([]byte, 4096)
	for {
		n, err := p.master.Read(buffer)
		p.mu.Lock()
		p.shown.Write(buffer[:n])
		close(p.more)
		p.more = make(chan struct{})
		p.mu.Unlock()
		if err != nil {
			return // EIO: nobody has the terminal open any more
		}
	}
}

// Type types keys.
func (p *Program) Type(keys string) {
	p.t.Helper()
	if _, err := p.master.WriteString(keys); err != nil {
		p.t.Fatalf("typing %q: %v\n%s", keys, err, p.Shown())
	}
}

// Expect waits until pattern is shown after what the last Expect found, and
// returns what matched.
func (p *Program) Expect(pattern string) string {
	p.t.Helper()
	want := regexp.MustCompile(pattern)
	patience := time.After(Patience)
	for {
		p.mu.Lock()
		rest := p.shown.Bytes()[p.from:]
		more := p.more
		if at := want.FindIndex(rest); at != nil {
			found := string(rest[at[0]:at[1]])
			p.from += at[1]
			p.mu.Unlock()
			return found
		}
		p.mu.Unlock()
		select {
		case <-more:
		case <-p.ended:
			p.mu.Lock()
			late := want.Match(p.shown.Bytes()[p.from:])
			p.mu.Unlock()
			if !late {
				p.t.Fatalf("it ended and never showed %q:\n%s", pattern, p.Shown())
			}
		case <-patience:
			p.t.Fatalf("waited in vain for %q:\n%s", pattern, p.Shown())
		}
	}
}

// Shown is everything that was shown.
func (p *Program) Shown() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.shown.String()
}

// Cooked says whether the terminal is in its usual mode: lines, shown as typed.
func (p *Program) Cooked() bool {
	p.t.Helper()
	raw, err := p.master.SyscallConn()
	if err != nil {
		p.t.Fatal(err)
	}
	var mode *unix.Termios
	var failed error
	err = raw.Control(func(fd uintptr) { mode, failed = unix.IoctlGetTermios(int(fd), unix.TCGETS) })
	if err = errors.Join(err, failed); err != nil {
		p.t.Fatal(err)
	}
	const usual = unix.ECHO | unix.ICANON | unix.ISIG
	return mode.Lflag&usual == usual
}

// Signal sends a signal to the program.
func (p *Program) Signal(signal os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(signal); err != nil {
		p.t.Fatal(err)
	}
}

// Wait waits for the program to end and returns its exit code; 128 and the number
// of the signal that ended it.
func (p *Program) Wait() int {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = p.cmd.Process.Kill() })
	defer stop()
	err := p.cmd.Wait()
	if ctx.Err() != nil {
		p.t.Fatalf("it does not end:\n%s", p.Shown())
	}
	<-p.ended
	if err == nil {
		return 0
	}
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok {
		p.t.Fatal(err)
	}
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return exit.ExitCode()
}
