package wrap

import (
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// Waits for a server that is to end.
const (
	closedGrace = 10 * time.Second       // after its input was closed, before it is asked to end
	askedGrace  = 5 * time.Second        // after it was asked, before it is killed
	outputGrace = 500 * time.Millisecond // after it has exited, for what a process that it left behind holds open
)

// process is the server: the leader of a process group of its own.
type process struct {
	stdin  *os.File
	stdout *os.File // read to its end before code counts
	pid    int

	closeInput func()
	exited     chan struct{}
	code       int // set before exited is closed

	mu   sync.Mutex
	gone bool // its pid may be somebody else's
}

// start runs the server. It dies with this process.
func start(config Config) (*process, error) {
	in, stdin, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer in.Close()
	stdout, out, err := os.Pipe()
	if err != nil {
		stdin.Close()
		return nil, err
	}
	defer out.Close()
	command := exec.Command(config.Command[0], config.Command[1:]...)
	command.Env = config.Environ
	if command.Env == nil {
		command.Env = []string{} // nil would mean all of ours
	}
	command.Stdin, command.Stdout = in, out
	if config.Stderr != nil {
		command.Stderr = config.Stderr
	}
	command.SysProcAttr = attributes()
	p := &process{stdin: stdin, stdout: stdout, exited: make(chan struct{})}
	p.closeInput = sync.OnceFunc(func() { stdin.Close() })
	started := make(chan error)
	go p.run(command, started)
	if err := <-started; err != nil {
		stdin.Close()
		stdout.Close()
		return nil, err
	}
	return p, nil
}

// run starts the server and waits for it, in one thread: the kernel's promise that
// the server dies with its parent is about the thread that started it.
func (p *process) run(command *exec.Cmd, started chan<- error) {
	runtime.LockOSThread()
	err := command.Start()
	if err == nil {
		p.pid = command.Process.Pid
	}
	started <- err
	if err != nil {
		return
	}
	p.reap(command)
	p.code = exitCode(command.ProcessState)
	_ = p.stdout.SetReadDeadline(time.Now().Add(outputGrace))
	close(p.exited)
}

func exitCode(state *os.ProcessState) int {
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return state.ExitCode()
}

// signal sends a signal to the server and all of its group.
func (p *process) signal(sig syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.gone {
		p.killGroup(sig)
	}
}

func (p *process) killGroup(sig syscall.Signal) {
	_ = syscall.Kill(-p.pid, sig) // it may have gone
}

// end asks the server to end, and makes it if it does not. It does not wait.
func (p *process) end() {
	p.closeInput()
	p.signal(syscall.SIGTERM)
	p.killAfter(askedGrace)
}

// endAfterInput closes the server's input and gives it time to end by itself. It
// does not wait.
func (p *process) endAfterInput() {
	p.closeInput()
	time.AfterFunc(closedGrace, p.end)
}

func (p *process) killAfter(grace time.Duration) {
	time.AfterFunc(grace, func() { p.signal(syscall.SIGKILL) })
}
