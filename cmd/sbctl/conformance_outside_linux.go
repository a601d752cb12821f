package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"subjectbroker/proto/place"
	"subjectbroker/proto/wire"
)

// keyLife is how long the kernel keeps the key that is bait, in seconds, when
// nobody is left to remove it.
const keyLife = 600

// keepKey has the kernel keep a key for our uid, where it does that for us.
func (h *harness) keepKey() {
	type kept struct {
		key, ring int
		err       error
	}
	made := make(chan kept)
	go func() {
		// Only who possesses a key sets its end: it is in this thread's own session
		// keyring, and the thread ends here.
		runtime.LockOSThread()
		var k kept
		if _, k.err = unix.KeyctlInt(unix.KEYCTL_JOIN_SESSION_KEYRING, 0, 0, 0, 0); k.err == nil {
			k.ring, k.err = unix.KeyctlGetKeyringID(unix.KEY_SPEC_USER_KEYRING, true)
		}
		if k.err == nil {
			_, k.err = unix.KeyctlInt(unix.KEYCTL_LINK, k.ring, unix.KEY_SPEC_SESSION_KEYRING, 0, 0)
		}
		if k.err == nil {
			k.key, k.err = unix.AddKey("user", filepath.Base(h.dir), []byte("a key to find"), k.ring)
		}
		if k.err == nil {
			_, k.err = unix.KeyctlInt(unix.KEYCTL_SET_TIMEOUT, k.key, keyLife, 0, 0)
		}
		made <- k
	}()
	k := <-made
	if k.key != 0 {
		h.cleanup = append(h.cleanup, func() { _, _ = unix.KeyctlInt(unix.KEYCTL_UNLINK, k.key, k.ring, 0, 0) })
	}
	if k.err == nil {
		h.bait.Key, h.bait.Keyring = k.key, k.ring
	}
}

// laterOrders say where the home is mounted when the program of a command line
// has started.
type laterOrders struct {
	Home, Point string
	Line        []string
}

func (o laterOrders) at() string { return filepath.Join(o.Point, "other") }

// later mounts the home at another place while a tree runs. The mounts are those
// of a process of its own, and go with it. It takes uid 0.
func (h *harness) later(ctx context.Context, supported bool) error {
	if os.Geteuid() != 0 {
		return nil
	}
	h.progress("mounting beside a tree")
	orders := laterOrders{Home: h.home, Point: filepath.Join(h.work(), "point")}
	if err := os.MkdirAll(orders.at(), 0o700); err != nil {
		return err
	}
	worked, words := map[string]bool{}, map[string]string{}
	for _, tier := range harnessTiers {
		if tier != tierCooperative && (!supported || !h.gives(tier)) {
			continue
		}
		orders.Line = h.from(tier, h.self, "__attempt", "look", filepath.Join(orders.at(), filepath.Base(place.KeyFile(h.home))))
		arg, err := json.Marshal(orders)
		if err != nil {
			return err
		}
		cmd := h.command(ctx, h.self, "__attempt", "later", string(arg))
		cmd.SysProcAttr.Cloneflags = unix.CLONE_NEWNS
		out, err := boundOutput(cmd)
		exit, exited := errors.AsType[*exec.ExitError](err)
		switch said := strings.TrimSpace(string(out)); {
		case errors.Is(err, unix.EPERM) || exited && exit.ExitCode() == exitNoMounts:
			words[tier] = errNoMounts.Error()
		case err != nil:
			return fmt.Errorf("mounting beside a tree of tier %s: %w", tier, err)
		default:
			worked[tier], words[tier] = said == "true", "it is not there"
			if said == "true" {
				words[tier] = "it is there"
			}
		}
	}
	h.judge(escape{id: "mount.later", bound: true}, "finding the home at another place, where it is mounted outside after the start", worked, words)
	return nil
}

// later makes the mounts of laterOrders around a program, and prints what that
// one says.
func (c attemptCmd) later(ctx context.Context, a *app) error {
	var o laterOrders
	if err := json.Unmarshal([]byte(c.Args[0]), &o); err != nil {
		return err
	}
	// What is mounted below a shared mount appears in every copy of it that has not
	// been made private.
	if unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "") != nil || unix.Mount(o.Point, o.Point, "", unix.MS_BIND, "") != nil ||
		unix.Mount("", o.Point, "", unix.MS_SHARED, "") != nil {
		return exitCode(exitNoMounts)
	}
	cmd := exec.CommandContext(ctx, o.Line[0], o.Line[1:]...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	lines := bufio.NewReader(out)
	_, err = lines.ReadString('\n')
	if err == nil {
		err = unix.Mount(o.Home, o.at(), "", unix.MS_BIND, "")
	}
	if err == nil {
		_, err = os.Stat(place.KeyFile(o.at()))
	}
	_ = in.Close()
	said, readErr := lines.ReadString('\n')
	if err = errors.Join(err, readErr, cmd.Wait()); err != nil {
		return err
	}
	_, err = fmt.Fprint(a.stdout, said)
	return err
}

// look says that it is there, waits, and says whether a file can be read then.
func (c attemptCmd) look(ctx context.Context, a *app) error {
	if _, err := fmt.Fprintln(a.stdout, "here"); err != nil {
		return err
	}
	if err := untilEOF(ctx, a); err != nil {
		return err
	}
	return reads(a, c.Args[0])
}

// reads prints whether a file can be read.
func reads(a *app, path string) error {
	_, err := os.ReadFile(path)
	_, err = fmt.Fprintln(a.stdout, err == nil)
	return err
}

// inputs starts trees to which the home is open: as their standard input, and as
// a descriptor that their starter just had.
func (h *harness) inputs(ctx context.Context, supported bool) error {
	h.progress("handing the home over as a descriptor")
	for _, way := range []struct {
		id, tried string
		fd        int
	}{
		{"stdin", "a directory, the home, as standard input", 0},
		{"inherited", "the home, open in whoever starts the tree", inheritedFD},
	} {
		worked, words := map[string]bool{}, map[string]string{}
		for _, tier := range harnessTiers {
			if tier != tierCooperative && (!supported || !h.gives(tier)) {
				continue
			}
			said, code, err := h.withHome(ctx, way.fd, h.from(tier, h.self, "__attempt", "input", strconv.Itoa(way.fd)))
			switch {
			case err != nil:
				return err
			case code == 0:
				worked[tier], words[tier] = said == "true", "the key was read through it: "+said
			case code == wire.ExitUsage:
				worked[tier], words[tier] = false, "refused: "+said
			default:
				words[tier] = fmt.Sprintf("exit code %d: %s", code, said)
			}
		}
		h.judge(escape{id: way.id, bound: true}, way.tried, worked, words)
	}
	return nil
}

// inheritedFD is a descriptor that nobody who starts programs uses.
const inheritedFD = 20

// withHome runs a command line with the home as one of its descriptors, and
// returns what it said.
func (h *harness) withHome(ctx context.Context, fd int, line []string) (said string, code int, err error) {
	home, err := os.Open(h.home)
	if err != nil {
		return "", 0, err
	}
	defer home.Close()
	cmd := h.command(ctx, line[0], line[1:]...)
	if fd == 0 {
		cmd.Stdin = home
	} else {
		cmd.ExtraFiles = make([]*os.File, fd-2) // which begin at 3; nil is closed
		cmd.ExtraFiles[fd-3] = home
	}
	out, err := cmd.CombinedOutput()
	said = oneLine(strings.TrimSpace(string(out)))
	if exit, exited := errors.AsType[*exec.ExitError](err); exited {
		return said, exit.ExitCode(), nil
	}
	return said, 0, err
}

// input reads the key through a descriptor, which is a directory.
func (c attemptCmd) input(_ context.Context, a *app) error {
	return reads(a, filepath.Join("/proc/self/fd", c.Args[0], filepath.Base(place.KeyFile("/"))))
}

// impostors listen where somebody outside is told that the broker's sockets are.
func (h *harness) impostors(ctx context.Context, supported bool) error {
	h.progress("posing as the daemon")
	worked, words := map[string]bool{}, map[string]string{}
	for _, tier := range harnessTiers {
		if tier != tierCooperative && (!supported || !h.gives(tier)) {
			continue
		}
		spoken, said, code, err := h.impostor(ctx, tier)
		switch {
		case err != nil:
			return err
		case spoken:
			worked[tier], words[tier] = true, "it was taken for the broker"
		case code == wire.ExitUsage:
			worked[tier], words[tier] = false, "refused: "+said
		default:
			words[tier] = fmt.Sprintf("exit code %d: %s", code, said)
		}
	}
	h.judge(escape{id: "impostor", bound: true}, "listening in the daemon's stead, at sockets that sbctl is told of without the home", worked, words)
	return nil
}

// impostor says whether sbctl outside spoke to a process that poses as the daemon,
// and what sbctl said, with which exit code.
func (h *harness) impostor(ctx context.Context, tier string) (spoken bool, said string, code int, err error) {
	dir := filepath.Join(h.work(), "pose")
	defer os.RemoveAll(dir)
	line := h.from(tier, h.self, "__attempt", "pose", dir)
	cmd := h.command(ctx, line[0], line[1:]...)
	in, err := cmd.StdinPipe()
	if err != nil {
		return false, "", 0, err
	}
	defer in.Close()
	outRead, outWrite, err := os.Pipe()
	if err != nil {
		return false, "", 0, err
	}
	defer outRead.Close()
	cmd.Stdout = outWrite
	ended, err := startBound(cmd)
	if err = errors.Join(err, outWrite.Close()); err != nil {
		return false, "", 0, err
	}
	lines := bufio.NewReader(outRead)
	_, err = lines.ReadString('\n')
	if err == nil {
		sbctl := h.command(ctx, h.self, "--socket", dir, "status", "-q")
		sbctl.Env = slices.DeleteFunc(sbctl.Env, func(v string) bool { return strings.HasPrefix(v, place.EnvHome+"=") })
		out, failed := sbctl.CombinedOutput()
		if exit, exited := errors.AsType[*exec.ExitError](failed); exited {
			code = exit.ExitCode()
		} else {
			err = failed
		}
		said, _, _ = strings.Cut(oneLine(strings.TrimSpace(string(out))), "; hint: ")
	}
	_ = in.Close()
	answer, readErr := lines.ReadString('\n')
	if err = errors.Join(err, readErr, <-ended); err != nil {
		return false, "", 0, fmt.Errorf("posing as the daemon from the place of tier %s: %w", tier, err)
	}
	return strings.TrimSpace(answer) == "true", said, code, nil
}

// pose listens at the operator's socket of a directory until standard input ends,
// and says whether anybody spoke to it.
func (c attemptCmd) pose(ctx context.Context, a *app) error {
	socket := place.OperatorSocket(c.Args[0])
	if err := os.MkdirAll(filepath.Dir(socket), 0o700); err != nil {
		return err
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return err
	}
	defer func() { _ = listener.Close() }()
	if err := os.Chmod(socket, 0o600); err != nil {
		return err
	}
	spoken := make(chan bool)
	go func() {
		heard := false
		for {
			conn, err := listener.Accept()
			if err != nil {
				spoken <- heard
				return
			}
			n, _ := conn.Read(make([]byte, 1)) // nothing comes where it ends
			heard = heard || n > 0
			_ = conn.Close()
		}
	}()
	if _, err := fmt.Fprintln(a.stdout, "here"); err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, a.stdin)
	// Whoever connected has been here by now.
	if err := listener.SetDeadline(a.now().Add(200 * time.Millisecond)); err != nil {
		return err
	}
	select {
	case heard := <-spoken:
		_, err = fmt.Fprintln(a.stdout, heard)
	case <-ctx.Done():
		err = ctx.Err()
	}
	return err
}
