package daemontest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/worker/client"
)

// treeName is how the first process of a tree knows what it is.
const treeName = "daemontest-tree"

// TreeOptions say how a tree is made. The zero value is one that holds what the
// tier bound promises. It is not made by package launch: every piece of it can
// be left out, to see that the daemon notices.
type TreeOptions struct {
	Places client.Places
	// Workspace is the folder that a sandbox may write; empty: no sandbox.
	Workspace string
	// NoNet is a network of its own.
	NoNet bool

	// What is left out. Alias is a folder at which the home is seen once more.
	OldProc, OldMounts, ShowHome, ShowOperator, ShowRuntime, OpenBroker, NoBroker, OpenView, Crowded, OpenProc bool

	Alias string
	// Shown are folders that may be written at places of others.
	Shown []Shown
}

// Shown is a folder that a tree sees at the place of another.
type Shown struct{ Folder, At string }

// Tree is a tree of processes whose first one waits for a command.
type Tree struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout *bufio.Reader
	stderr *Output
	ended  bool
}

// treeCommand is what the first process is told to run.
type treeCommand struct {
	Argv []string
}

// NewTree starts a tree whose first process waits. Where there can be none the
// test is left out.
func NewTree(t testing.TB, options TreeOptions) *Tree {
	t.Helper()
	tree, err := StartTree(options)
	if err != nil {
		if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EINVAL) {
			LeaveOut(t, "launch", "there can be no namespaces here: "+err.Error())
		}
		t.Fatalf("starting a tree: %v", err)
	}
	t.Cleanup(tree.Kill)
	return tree
}

// StartTree is NewTree without a test. The program that calls it must call Main,
// or First before anything else.
func StartTree(options TreeOptions) (*Tree, error) {
	raw, err := json.Marshal(options)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	tree := &Tree{cmd: &exec.Cmd{Path: self, Args: []string{treeName, string(raw)}}, stderr: &Output{}}
	tree.cmd.Stderr = tree.stderr
	flags := uintptr(unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNS)
	if options.NoNet {
		flags |= unix.CLONE_NEWNET
	}
	if options.OldMounts {
		flags &^= unix.CLONE_NEWNS
	}
	tree.cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: flags, Pdeathsig: syscall.SIGKILL,
		AmbientCaps: []uintptr{unix.CAP_SYS_ADMIN}, // else an ordinary uid has none after exec
		UidMappings: []syscall.SysProcIDMap{{ContainerID: os.Geteuid(), HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: os.Getegid(), HostID: os.Getegid(), Size: 1}},
	}
	if tree.stdin, err = tree.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := tree.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	tree.stdout = bufio.NewReader(stdout)
	if err := tree.cmd.Start(); err != nil {
		return nil, err
	}
	if line, err := tree.stdout.ReadString('\n'); err != nil || line != "ready\n" {
		tree.Kill()
		return nil, fmt.Errorf("the first process says %q, %s: %w", line, tree.stderr, errors.Join(err, unix.EPERM))
	}
	return tree, nil
}

// PID is the process id of the first process.
func (tree *Tree) PID() int32 { return int32(tree.cmd.Process.Pid) }

// Go lets the tree run a command.
func (tree *Tree) Go(argv ...string) error {
	raw, err := json.Marshal(treeCommand{argv})
	if err != nil {
		return err
	}
	_, err = tree.stdin.Write(append(raw, '\n'))
	return err
}

// Line is the next line that the command says.
func (tree *Tree) Line() (string, error) {
	line, err := tree.stdout.ReadString('\n')
	return strings.TrimSuffix(line, "\n"), err
}

// Say writes a line to the command.
func (tree *Tree) Say(line string) error {
	_, err := io.WriteString(tree.stdin, line+"\n")
	return err
}

// Wait waits for the end and returns the exit code and what was said.
func (tree *Tree) Wait() (code int, stdout, stderr string) {
	said, _ := io.ReadAll(tree.stdout)
	_ = tree.cmd.Wait()
	tree.ended = true
	return tree.cmd.ProcessState.ExitCode(), string(said), tree.stderr.String()
}

// Kill ends the tree as kill -9 of its first process does.
func (tree *Tree) Kill() {
	if tree.ended {
		return
	}
	_ = tree.cmd.Process.Kill()
	_ = tree.cmd.Wait()
	tree.ended = true
}

// Request asks for a launch of the tree.
func (tree *Tree) Request(subject string, options TreeOptions) *operatorv1.OpenLaunchRequest {
	return &operatorv1.OpenLaunchRequest{
		Subject: subject, Sandbox: options.Workspace != "", Workspace: options.Workspace, NoNet: options.NoNet, Pid: tree.PID(), Command: "test",
	}
}

// OpenTree starts a tree and makes it a launch of subject.
func (d *Daemon) OpenTree(subject string, options TreeOptions) (*Tree, *operatorv1.Launch) {
	d.t.Helper()
	options.Places = d.Places
	tree := NewTree(d.t, options)
	ctx, cancel := d.context()
	defer cancel()
	opened, err := d.Operator().OpenLaunch(ctx, tree.Request(subject, options))
	d.must("opening a launch of "+subject, err)
	return tree, opened.GetLaunch()
}

// First is all that a first process does; it returns false in every other one.
func First() (code int, is bool) {
	if len(os.Args) != 2 || os.Args[0] != treeName {
		return 0, false
	}
	var options TreeOptions
	if err := json.Unmarshal([]byte(os.Args[1]), &options); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1, true
	}
	if err := options.build(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1, true
	}
	if options.Crowded {
		if err := exec.Command("sleep", "1000").Start(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1, true
		}
	}
	fmt.Println("ready")
	code, err := obey()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1, true
	}
	return code, true
}

// obey reads one command and runs it. Its input goes on after that line.
func obey() (int, error) {
	var line []byte
	for one := make([]byte, 1); ; line = append(line, one[0]) {
		if _, err := os.Stdin.Read(one); err != nil {
			return 0, nil //nolint:nilerr // it was not wanted
		}
		if one[0] == '\n' {
			break
		}
	}
	var command treeCommand
	if err := json.NewDecoder(bytes.NewReader(line)).Decode(&command); err != nil {
		return 0, err
	}
	runtime.LockOSThread() // which starts the command, without this process's rights over its mounts
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return 0, err
	}
	cmd := exec.CommandContext(context.Background(), command.Argv[0], command.Argv[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err := cmd.Run()
	if cmd.ProcessState == nil {
		return 0, err
	}
	return cmd.ProcessState.ExitCode(), nil
}

// build covers what must be covered.
func (o TreeOptions) build() error {
	if o.OldMounts {
		return nil
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("making mounts its own: %w", err)
	}
	broker := filepath.Join(o.Places.SocketDir, "broker")
	taken, err := take(broker, !o.OpenBroker)
	if err != nil {
		return err
	}
	workspace := -1
	if o.Workspace != "" {
		if workspace, err = take(o.Workspace, false); err != nil {
			return err
		}
	}
	if o.Alias != "" {
		if err := unix.Mount(o.Places.Home, o.Alias, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("showing the home twice: %w", err)
		}
	}
	shown := make([]int, len(o.Shown))
	for i, s := range o.Shown {
		if shown[i], err = take(s.Folder, false); err != nil {
			return err
		}
	}
	if o.Workspace != "" && !o.OpenView {
		attr := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
		if err := unix.MountSetattr(unix.AT_FDCWD, "/", unix.AT_RECURSIVE, attr); err != nil {
			return fmt.Errorf("closing the view: %w", err)
		}
	}
	if o.Workspace != "" {
		if err := put(workspace, o.Workspace); err != nil {
			return err
		}
	}
	for i, s := range o.Shown {
		if err := put(shown[i], s.At); err != nil {
			return err
		}
	}
	if !o.ShowRuntime {
		for _, dir := range []string{"/run", "/tmp/tmux-" + strconv.Itoa(os.Geteuid())} {
			if err := empty(dir); err != nil && !errors.Is(err, unix.ENOENT) {
				return err
			}
		}
	}
	if !o.ShowHome {
		if err := empty(o.Places.Home); err != nil {
			return err
		}
	}
	operator := filepath.Join(o.Places.SocketDir, "operator")
	if _, err := os.Stat(operator); err == nil && !o.ShowOperator {
		if err := empty(operator); err != nil {
			return err
		}
	}
	if !o.NoBroker {
		if err := os.MkdirAll(broker, 0o700); err != nil {
			return err
		}
		if err := put(taken, broker); err != nil {
			return err
		}
	}
	if o.OldProc {
		return nil
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("a fresh /proc: %w", err)
	}
	if o.Workspace == "" || o.OpenProc {
		return nil
	}
	for _, name := range []string{"sys", "sysrq-trigger", "irq", "bus", "fs", "acpi", "scsi"} {
		path := "/proc/" + name
		if _, err := os.Lstat(path); err != nil {
			continue
		}
		closed, err := take(path, true)
		if err != nil {
			return err
		}
		if err := put(closed, path); err != nil {
			return err
		}
	}
	return nil
}

// take holds a folder before it is covered.
func take(path string, ro bool) (int, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return -1, fmt.Errorf("taking %s: %w", path, err)
	}
	if ro {
		attr := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
		if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, attr); err != nil {
			return -1, fmt.Errorf("making %s read-only: %w", path, err)
		}
	}
	return fd, nil
}

func put(fd int, path string) error {
	if err := unix.MoveMount(fd, "", unix.AT_FDCWD, path, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("showing %s: %w", path, err)
	}
	return nil
}

func empty(path string) error {
	if err := unix.Mount("tmpfs", path, "tmpfs", 0, "mode=0700"); err != nil {
		return fmt.Errorf("covering %s: %w", path, err)
	}
	return nil
}
