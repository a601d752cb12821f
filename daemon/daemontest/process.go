package daemontest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// Main runs the tests of a package that uses Launch, Command or Program, and
// removes what they built. Call it from TestMain:
//
//	func TestMain(m *testing.M) { os.Exit(daemontest.Main(m)) }
//
// It also is the first process of the trees that a test starts: see TreeOptions.
func Main(m *testing.M) int {
	if code, is := First(); is {
		return code
	}
	code := m.Run()
	build.Lock()
	defer build.Unlock()
	if build.dir != "" {
		_ = os.RemoveAll(build.dir)
	}
	return code
}

// build is the one copy of sbd that the tests of a process share.
var build struct {
	sync.Mutex
	dir string
	err error
}

// Program builds sbd as it is released, once for all tests of the process, and
// returns its path. Every uid may run it.
func Program(t testing.TB) string {
	t.Helper()
	build.Lock()
	defer build.Unlock()
	if build.dir == "" && build.err == nil {
		build.dir, build.err = compile()
	}
	if build.err != nil {
		t.Fatalf("building sbd: %v", build.err)
	}
	return filepath.Join(build.dir, "sbd")
}

func compile() (string, error) {
	dir, err := os.MkdirTemp("", "sbd")
	if err != nil {
		return "", err
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return dir, err
	}
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", dir+"/", "subjectbroker/cmd/sbd")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return dir, fmt.Errorf("%w\n%s", err, out)
	}
	return dir, os.Chmod(filepath.Join(dir, "sbd"), 0o755)
}

// Command is sbd with arguments and an environment of its own: HOME and PATH,
// and what is added.
func Command(t testing.TB, home string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(Program(t), args...)
	cmd.Env = []string{"HOME=" + home, "PATH=" + os.Getenv("PATH")}
	return cmd
}

// Exit runs a command to its end and returns its exit code and what it wrote.
func Exit(t testing.TB, cmd *exec.Cmd) (code int, stdout, stderr string) {
	t.Helper()
	var out, talk strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &talk
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(Patience, func() { _ = cmd.Process.Kill() })
	err := cmd.Wait()
	if !timer.Stop() {
		t.Fatalf("%s goes on; it said %s%s", cmd, out.String(), talk.String())
	}
	if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), talk.String()
}

// process is the program sbd as a child.
type process struct {
	d    *Daemon
	cmd  *exec.Cmd
	done chan struct{}
	line string // the line that begins with "sbd: "; set before done is closed
}

func launch(d *Daemon) engine {
	d.t.Helper()
	cmd := Command(d.t, d.Home, append(d.arguments(), d.options.Args...)...)
	if wrap := d.options.Wrap; len(wrap) > 0 {
		path, err := exec.LookPath(wrap[0])
		if err != nil {
			d.t.Fatal(err)
		}
		cmd.Args = append(append([]string{}, wrap...), cmd.Args...)
		cmd.Path = path
	}
	cmd.Env = append(cmd.Env, d.options.Env...)
	cmd.ExtraFiles = d.options.Files
	stderr, err := cmd.StderrPipe()
	if err != nil {
		d.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		d.t.Fatalf("starting: %v", err)
	}
	p := &process{d: d, cmd: cmd, done: make(chan struct{})}
	ready := make(chan struct{})
	go p.follow(stderr, ready)
	select {
	case <-ready:
	case <-p.done:
		d.t.Fatalf("starting: exit %d: %s", p.code(), p.line)
	case <-time.After(Patience):
		p.kill()
		d.t.Fatal("starting: the daemon does not get ready")
	}
	return p
}

func (d *Daemon) arguments() []string {
	args := []string{"--home", d.Home, "--key-source", d.options.KeySource, "--log", "json"}
	if d.options.SocketDir != "" {
		args = append(args, "--socket-dir", d.options.SocketDir)
	}
	if d.options.WaitKey {
		args = append(args, "--wait-key")
	}
	return args
}

// follow keeps what sbd says until it has ended.
func (p *process) follow(stderr io.Reader, ready chan struct{}) {
	defer close(p.done)
	lines := bufio.NewScanner(stderr)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		_, _ = io.WriteString(p.d.messages, line+"\n")
		if strings.HasPrefix(line, "sbd: ") {
			p.line = line
		}
		if ready != nil && strings.Contains(line, `"msg":"serving"`) {
			close(ready)
			ready = nil
		}
	}
	_ = p.cmd.Wait() // the code is in ProcessState
}

func (p *process) stop() int {
	_ = p.cmd.Process.Signal(os.Interrupt)
	select {
	case <-p.done:
	case <-time.After(Patience):
		p.kill()
		p.d.t.Error("the daemon does not stop")
	}
	return p.code()
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

func (p *process) ended() <-chan struct{} { return p.done }
func (p *process) code() int              { return p.cmd.ProcessState.ExitCode() }
func (p *process) fault() string          { return p.line }

// Signal sends a signal to the daemon.
func (d *Daemon) Signal(signal os.Signal) {
	d.t.Helper()
	switch e := d.running.(type) {
	case *process:
		if err := e.cmd.Process.Signal(signal); err != nil {
			d.t.Fatal(err)
		}
	case *inside:
		e.hup <- signal // it is asked to rotate, whatever the signal
	}
}

// PID is the daemon's process; this one, after Start.
func (d *Daemon) PID() int {
	if p, ok := d.running.(*process); ok {
		return p.cmd.Process.Pid
	}
	return os.Getpid()
}

// Output collects what a process says. It is safe for concurrent use.
type Output struct {
	mu   sync.Mutex
	text strings.Builder
}

// Write implements io.Writer.
func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

// String is everything so far.
func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}
