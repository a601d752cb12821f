package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/worker/client"
	machine "subjectbroker/worker/probe"
)

// attemptCmd is what conformance starts inside and outside of trees: the attacks,
// and what they are aimed at. It attacks nothing that it is not given.
type attemptCmd struct {
	What string   `arg:"" help:"What to do."`
	Args []string `arg:"" optional:"" passthrough:"" help:"With what."`
}

// Help is the manual of the hidden verb.
func (attemptCmd) Help() string {
	return `Part of "sbctl conformance": one attack, or something to be attacked.`
}

// attemptPatience bounds everything that is started here.
const attemptPatience = 45 * time.Second

// Run makes the attempt.
func (c attemptCmd) Run(ctx context.Context, a *app) error {
	ctx, cancel := context.WithTimeout(ctx, attemptPatience)
	defer cancel()
	attempts := map[string]func(context.Context, *app) error{
		"escapes": c.escapes, "uncover": c.uncover, "victim": c.victim, "nested": c.nested, "linger": c.linger, "leave": c.leave, "stay": c.stay,
		"hand": c.hand, "terminal": c.terminal, "inject": c.inject, "commands": c.commands, "operator": c.overBroker, "keep": c.keep,
		"account": c.becomeAccount, "later": c.later, "look": c.look, "input": c.input, "pose": c.pose,
		"first": c.first, "foreign": c.foreign, "keyring": c.keyring, "pretend": c.pretend, "claim": c.claim, "eager": c.eager,
	}
	attempt, ok := attempts[c.What]
	needsNothing := []string{"victim", "nested", "linger", "leave", "stay", "inject", "operator", "first", "foreign", "pretend"}
	if !ok || len(c.Args) == 0 && !slices.Contains(needsNothing, c.What) {
		return refuse("making an attempt", "there is none of this name")
	}
	return attempt(ctx, a)
}

// open lets others of our uid look at this process, as they can at most.
func open() error { return unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0) }

// untilEOF waits until whoever started this lets go of our standard input.
func untilEOF(ctx context.Context, a *app) error {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.Copy(io.Discard, a.stdin)
	}()
	select {
	case <-ended:
	case <-ctx.Done():
	}
	return nil
}

func (c attemptCmd) escapes(ctx context.Context, a *app) error {
	var bait machine.Bait
	if err := json.Unmarshal([]byte(c.Args[0]), &bait); err != nil {
		return err
	}
	return json.NewEncoder(a.stdout).Encode(machine.Escapes(ctx, bait))
}

func (c attemptCmd) uncover(_ context.Context, a *app) error {
	said, err := machine.Uncover(c.Args[0])
	if err == nil {
		_, err = fmt.Fprintln(a.stdout, said)
	}
	return err
}

// victim forbids nothing and waits.
func (attemptCmd) victim(ctx context.Context, a *app) error {
	if err := open(); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(a.stdout, os.Getpid()); err != nil {
		return err
	}
	return untilEOF(ctx, a)
}

// again is this program making another attempt, with our streams.
func again(ctx context.Context, args ...string) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, append([]string{"__attempt"}, args...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	return cmd, nil
}

// nested is a victim in a user and a mount namespace of its own.
func (attemptCmd) nested(ctx context.Context, _ *app) error {
	if err := open(); err != nil {
		return err // the maps of the namespace are written through /proc/PID
	}
	cmd, err := again(ctx, "victim")
	if err != nil {
		return err
	}
	cmd.SysProcAttr = inNamespaces()
	stdout := cmd.Stdout
	cmd.Stdout = nil // it would print a number of its own namespace
	if err := cmd.Start(); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(stdout, cmd.Process.Pid); err != nil {
		return err
	}
	return cmd.Wait()
}

// inNamespaces is in a user, a mount and a pid namespace of its own, and confined by
// nothing.
func inNamespaces() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: os.Geteuid(), HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: os.Getegid(), HostID: os.Getegid(), Size: 1}},
	}
}

// leave leaves a process behind that has a session of its own and no parent.
func (attemptCmd) leave(ctx context.Context, _ *app) error {
	cmd, err := again(ctx, "stay")
	if err != nil {
		return err
	}
	cmd.Cancel = func() error { return nil } // it stays when this process is gone
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	return cmd.Process.Release()
}

// linger leaves one behind and waits, too.
func (c attemptCmd) linger(ctx context.Context, a *app) error {
	if err := c.leave(ctx, a); err != nil {
		return err
	}
	return untilEOF(ctx, a)
}

// stay says that it is there, and holds standard output as long as it is.
func (attemptCmd) stay(ctx context.Context, a *app) error {
	if _, err := fmt.Fprintln(a.stdout, "here"); err != nil {
		return err
	}
	return untilEOF(ctx, a)
}

// hand opens a connection to a socket and hands it over standard input, which
// is a socket, too.
func (c attemptCmd) hand(_ context.Context, _ *app) error {
	conn, err := net.Dial("unix", c.Args[0])
	if err != nil {
		return err
	}
	defer conn.Close()
	file, err := conn.(*net.UnixConn).File()
	if err != nil {
		return err
	}
	defer file.Close()
	if err := unix.Sendmsg(0, []byte("x"), unix.UnixRights(int(file.Fd())), nil, 0); err != nil {
		return err
	}
	_, err = unix.Read(0, make([]byte, 1)) // until we are told, or nobody is left to tell us
	return err
}

// terminal leads a session on the terminal that is our standard error, runs a
// program in it, and says how many bytes somebody typed in the meantime.
func (c attemptCmd) terminal(ctx context.Context, a *app) error {
	args := c.Args
	if args[0] == "--" {
		args = args[1:]
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Stderr = os.Stderr
	runErr := cmd.Run()
	if _, exited := errors.AsType[*exec.ExitError](runErr); runErr != nil && !exited {
		return runErr
	}
	typed, err := unix.IoctlGetInt(2, unix.TIOCINQ)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(a.stdout, typed)
	return err
}

// inject types a line into every terminal that this process can reach.
func (attemptCmd) inject(context.Context, *app) error {
	fds := []int{0, 1, 2}
	if fd, err := unix.Open("/dev/tty", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NOCTTY, 0); err == nil {
		defer unix.Close(fd)
		fds = append(fds, fd)
	}
	for _, fd := range fds {
		for _, char := range []byte("#\n") {
			_ = unix.IoctlSetPointerInt(fd, unix.TIOCSTI, int(char)) // the terminal shows whether it worked
		}
	}
	return nil
}

// commands runs this program with each of several lists of arguments, and prints
// their exit codes.
func (c attemptCmd) commands(ctx context.Context, a *app) error {
	var commands [][]string
	if err := json.Unmarshal([]byte(c.Args[0]), &commands); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	codes := []int{}
	for _, args := range commands {
		err := exec.CommandContext(ctx, self, args...).Run()
		exit, exited := errors.AsType[*exec.ExitError](err)
		switch {
		case exited:
			codes = append(codes, exit.ExitCode())
		case err != nil:
			return err
		default:
			codes = append(codes, 0)
		}
	}
	return json.NewEncoder(a.stdout).Encode(codes)
}

// overBroker asks for something of the operator's over each socket, and prints
// over which one it was answered.
func (attemptCmd) overBroker(ctx context.Context, a *app) error {
	places, err := a.places()
	if err != nil {
		return err
	}
	broker, err := client.Broker(ctx, places)
	if err != nil {
		_, err = fmt.Fprintln(a.stdout, "no broker")
		return err
	}
	defer func() { _ = broker.Close() }()
	_, refused := operatorv1.NewOperatorServiceClient(broker).ListRuns(ctx, &operatorv1.ListRunsRequest{})
	_, err = fmt.Fprintln(a.stdout, strconv.FormatBool(refused == nil))
	return err
}

// keep waits until whoever started this is gone, however that ended, and removes
// what it made.
func (c attemptCmd) keep(_ context.Context, a *app) error {
	_, _ = io.Copy(io.Discard, a.stdin)
	var err error
	for range 50 { // what is still ending may still write
		if err = os.RemoveAll(c.Args[0]); err == nil {
			return nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	return err
}
