//go:build linux

package faults

import (
	"bufio"
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"subjectbroker/daemon/daemontest"
)

// injection is strace at work on a running process.
type injection struct {
	t     *testing.T
	cmd   *exec.Cmd
	trace string
	done  chan struct{}
}

// inject attaches to a process. What it does there is said in strace's own
// words, such as "inject=fdatasync:error=EIO"; paths, if any, are the files it
// is limited to.
func inject(t *testing.T, pid int, what string, paths ...string) *injection {
	t.Helper()
	trace := filepath.Join(t.TempDir(), "trace")
	calls, _, _ := strings.Cut(strings.TrimPrefix(what, "inject="), ":")
	args := []string{"-f", "-p", strconv.Itoa(pid), "-o", trace, "-e", "trace=" + calls, "-e", what}
	for _, path := range paths {
		args = append(args, "-P", path)
	}
	i := &injection{t: t, cmd: exec.Command("strace", args...), trace: trace, done: make(chan struct{})}
	stderr, err := i.cmd.StderrPipe()
	must(t, err)
	must(t, i.cmd.Start())
	talk := bufio.NewReader(stderr)
	for attached := false; !attached; {
		line, err := talk.ReadString('\n')
		if err != nil {
			t.Fatalf("strace does not attach: %s", line)
		}
		attached = strings.Contains(line, "attached")
	}
	go func() {
		defer close(i.done)
		_, _ = io.Copy(io.Discard, talk)
		_ = i.cmd.Wait()
	}()
	t.Cleanup(i.end)
	return i
}

// end lets go of the process, if it still is there.
func (i *injection) end() {
	_ = i.cmd.Process.Signal(syscall.SIGINT)
	impatient := time.AfterFunc(daemontest.Patience, func() { _ = i.cmd.Process.Kill() })
	defer impatient.Stop()
	<-i.done
}

func (i *injection) lines() []byte {
	raw, err := os.ReadFile(i.trace)
	must(i.t, err)
	return raw
}

// hits is how often it struck.
func (i *injection) hits() int { return bytes.Count(i.lines(), []byte("(INJECTED)")) }

// under runs a command under strace from its start on. strace stays outside:
// the command is the child.
func under(what string, paths ...string) []string {
	wrap := []string{"strace", "-D", "-f", "-qq", "-o", "/dev/null"}
	for _, path := range paths {
		wrap = append(wrap, "-P", path)
	}
	calls, _, _ := strings.Cut(strings.TrimPrefix(what, "inject="), ":")
	return append(wrap, "-e", "trace="+calls, "-e", what)
}
