package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"subjectbroker/cmd/sbctl/internal/stdiomcp"
	"subjectbroker/proto/place"
	"subjectbroker/worker/client"
)

const (
	startPatience = 15 * time.Second
	stopPatience  = 6 * time.Second
)

// stage is a broker of its own in a temporary home, for what shows or checks
// something with real programs. Nothing of the person's own broker is touched.
type stage struct {
	dir    string   // everything temporary
	home   string   // of the broker
	env    []string // what the programs get besides SB_HOME; nil: a little of ours
	stderr io.Writer
	guard  bool // the daemon knows agents by what started their shims, also where operators are started by the same
	pid    int  // of the daemon, once it was started
}

// newStage makes the temporary directory of a stage.
func newStage(pattern string, stderr io.Writer) (*stage, error) {
	dir, err := shortTemp(pattern)
	if err != nil {
		return nil, err
	}
	return &stage{dir: dir, home: filepath.Join(dir, "home"), stderr: stderr}, nil
}

// shortTemp makes a temporary directory whose path leaves room for a socket's,
// and has no link in it: a registered file may not be reached through one.
func shortTemp(pattern string) (string, error) {
	for _, base := range []string{os.TempDir(), "/tmp"} {
		base, err := filepath.EvalSymlinks(base)
		if err != nil {
			continue
		}
		dir, err := os.MkdirTemp(base, pattern)
		if err != nil {
			continue
		}
		if place.CheckSocketPath(place.OperatorSocket(filepath.Join(dir, "home", "run"))) == nil {
			return dir, nil
		}
		_ = os.Remove(dir)
	}
	return "", fmt.Errorf("making a temporary directory: none with a short path can be made below %s or /tmp", os.TempDir())
}

// environment is what the programs of the stage get.
func (s *stage) environment() []string {
	env := s.env
	if env == nil {
		env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "TZ=" + os.Getenv("TZ")}
	}
	return append(env[:len(env):len(env)], "SB_HOME="+s.home)
}

// places is where the daemon of the stage is.
func (s *stage) places() client.Places {
	return client.Places{Home: s.home, SocketDir: filepath.Join(s.home, "run")}
}

// daemon starts sbd and waits until it serves. The returned function stops it.
// It does not outlive this process, however that ends.
func (s *stage) daemon(ctx context.Context) (stop func() error, err error) {
	path, err := sibling("sbd")
	if err != nil {
		return nil, err
	}
	// Where it is not set, agent and operator are one process.
	config := fmt.Appendf(nil, "operatorGuard: %t\n", s.guard)
	if err := errors.Join(os.MkdirAll(s.home, 0o700), os.WriteFile(place.ConfigFile(s.home), config, 0o600)); err != nil {
		return nil, err
	}
	var said bytes.Buffer
	process := exec.Command(path, "--key-source", "file") // stopped in order, not by the context
	process.Env, process.Stderr = s.environment(), &said
	ended, err := startBound(process)
	if err != nil {
		return nil, fmt.Errorf("starting sbd: %w", err)
	}
	s.pid = process.Process.Pid
	stop = func() error {
		_ = process.Process.Signal(os.Interrupt)
		select {
		case err := <-ended:
			return err
		case <-time.After(stopPatience):
			_ = process.Process.Kill()
			return errors.New("sbd did not stop in time")
		}
	}
	patience := time.NewTimer(startPatience)
	defer patience.Stop()
	for {
		conn, err := client.Operator(ctx, s.places())
		if err == nil {
			return stop, conn.Close()
		}
		select {
		case err := <-ended:
			return nil, fmt.Errorf("sbd ended: %w: %s", err, strings.TrimSpace(said.String()))
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), stop())
		case <-patience.C:
			return nil, errors.Join(fmt.Errorf("sbd does not serve: %w", err), stop())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// startBound starts a process that dies with this one where the platform can
// say so. What it ended with comes out of the channel.
func startBound(process *exec.Cmd) (<-chan error, error) {
	started, ended := make(chan error), make(chan error, 1)
	dieWithUs(process)
	go func() {
		// The death of a parent that the kernel tells children about is that of its
		// thread: this one stays as long as the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := process.Start()
		started <- err
		if err == nil {
			ended <- process.Wait()
		}
	}()
	return ended, <-started
}

// shim starts a shim for subject, as an agent's configuration would.
func (s *stage) shim(ctx context.Context, subject string, args ...string) (*stdiomcp.Client, error) {
	path, err := sibling("sb-mcp")
	if err != nil {
		return nil, err
	}
	return stdiomcp.Start(ctx, stdiomcp.Config{Command: path, Args: append([]string{"--subject", subject}, args...), Env: s.environment(), Stderr: s.stderr})
}

// sbctl runs this very program and returns what it printed and its exit code.
func (s *stage) sbctl(ctx context.Context, args ...string) (output string, code int, err error) {
	return s.sbctlWith(ctx, "", args...)
}

// sbctlWith is sbctl with what --passphrase-fd 3 reads.
func (s *stage) sbctlWith(ctx context.Context, passphrase string, args ...string) (output string, code int, err error) {
	self, err := os.Executable()
	if err != nil {
		return "", 0, err
	}
	process := exec.CommandContext(ctx, self, args...)
	process.Env, process.Dir = s.environment(), s.dir        // where this uid can be, in a launch too
	process.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // the person's terminal is not for it to ask on
	var said bytes.Buffer
	process.Stdout, process.Stderr = &said, &said
	process.WaitDelay = stopPatience
	if passphrase != "" {
		read, write, err := os.Pipe()
		if err != nil {
			return "", 0, err
		}
		defer read.Close()
		process.ExtraFiles = []*os.File{read}
		_, err = write.WriteString(passphrase) // a pipe holds more than that
		if err = errors.Join(err, write.Close()); err != nil {
			return "", 0, err
		}
	}
	err = process.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return said.String(), exit.ExitCode(), nil
	}
	return said.String(), 0, err
}

// searchFiles looks for named pieces of content in every file below dir, and
// returns "NAME in FILE" for each that it finds.
func searchFiles(dir string, markers map[string][]byte) (found []string, files int, err error) {
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		files++
		for name, marker := range markers {
			if bytes.Contains(content, marker) {
				found = append(found, name+" in "+filepath.Base(path))
			}
		}
		return nil
	})
	return found, files, err
}
