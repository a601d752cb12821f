package host

import (
	"fmt"
	"os"
	"os/user"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	hostv1 "subjectbroker/proto/subjectbroker/host/v1"
)

// plain is a command without walls around it, in a process group of its own.
type plain struct {
	process *os.Process
	alone   bool // this process has no other children
	waited  chan struct{}
	state   *os.ProcessState
	killing sync.Mutex
}

// startPlain starts a command where there are no namespaces. alone says that this
// process is there for nothing else, so that whatever is below it is the server's.
func startPlain(start *hostv1.Start, dir string, stdio [3]*os.File, alone bool) (running, error) {
	var environ []string
	for _, pair := range start.GetEnv() {
		environ = append(environ, string(pair))
	}
	slices.Reverse(environ) // of two values the later counts
	path, err := lookPath(start.GetCommand()[0], environ, dir)
	if err != nil {
		return nil, err
	}
	slices.Reverse(environ)
	if alone {
		if err := adopt(); err != nil {
			return nil, fmt.Errorf("becoming the reaper: %w", err)
		}
	}
	p := &plain{alone: alone, waited: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		// The death of a parent that the kernel tells children about is that of its thread.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		var err error
		p.process, err = os.StartProcess(path, start.GetCommand(), &os.ProcAttr{Dir: dir, Env: environ, Files: stdio[:], Sys: attributes()})
		started <- err
		if err != nil {
			return
		}
		p.state, err = p.process.Wait()
		if err != nil {
			p.state = nil
		}
		close(p.waited)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("starting %s: %w", start.GetCommand()[0], err)
	}
	return p, nil
}

func (p *plain) wait() int {
	<-p.waited
	if p.state == nil {
		return -1
	}
	return p.state.ExitCode()
}

func (p *plain) ask() { _ = syscall.Kill(-p.process.Pid, syscall.SIGTERM) }

func (p *plain) kill() {
	p.killing.Lock()
	defer p.killing.Unlock()
	_ = syscall.Kill(-p.process.Pid, syscall.SIGKILL) // the group goes on to exist while one of it does
	_ = p.process.Kill()
	<-p.waited
	if p.alone {
		clearChildren()
	}
}

// accountHome is the home directory in the password database; "/" where there is none.
func accountHome() string {
	account, err := user.LookupId(strconv.Itoa(os.Geteuid()))
	if err != nil || !strings.HasPrefix(account.HomeDir, "/") {
		return "/"
	}
	return account.HomeDir
}
