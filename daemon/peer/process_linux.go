package peer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// maxAncestors bounds a walk; deeper trees are not made by people.
const maxAncestors = 1024

// stat is what /proc/PID/stat says. It stays readable for an undumpable process.
type stat struct {
	name    string
	parent  int32
	session int32
	tty     int64
	start   uint64
	zombie  bool
}

func readStat(pid int32) (stat, error) {
	path := procDir(pid) + "/stat"
	raw, err := os.ReadFile(path)
	if err != nil {
		return stat{}, err
	}
	// The command in field 2 may contain anything; the fields count from its last ')'.
	begin, end := bytes.IndexByte(raw, '('), bytes.LastIndexByte(raw, ')')
	if begin < 0 || end < begin {
		return stat{}, fmt.Errorf("%s is malformed", path)
	}
	fields := strings.Fields(string(raw[end+1:]))
	if len(fields) < 20 {
		return stat{}, fmt.Errorf("%s is malformed", path)
	}
	s := stat{name: string(raw[begin+1 : end]), zombie: fields[0] == "Z"}
	parent, parentErr := strconv.ParseInt(fields[1], 10, 32)
	session, sessionErr := strconv.ParseInt(fields[3], 10, 32)
	tty, ttyErr := strconv.ParseInt(fields[4], 10, 64)
	start, startErr := strconv.ParseUint(fields[19], 10, 64)
	if err := errors.Join(parentErr, sessionErr, ttyErr, startErr); err != nil {
		return stat{}, fmt.Errorf("%s: %w", path, err)
	}
	s.parent, s.session, s.tty, s.start = int32(parent), int32(session), tty, start
	return s, nil
}

// status is what /proc/PID/status says beside that.
type status struct {
	uid  uint32  // effective
	pids []int32 // from our pid namespace inwards to its own
}

func readStatus(pid int32) (status, error) {
	path := procDir(pid) + "/status"
	raw, err := os.ReadFile(path)
	if err != nil {
		return status{}, err
	}
	var s status
	seen := 0
	for line := range strings.Lines(string(raw)) {
		if ids, ok := strings.CutPrefix(line, "Uid:"); ok {
			fields := strings.Fields(ids)
			if len(fields) != 4 {
				return status{}, fmt.Errorf("%s is malformed", path)
			}
			uid, err := strconv.ParseUint(fields[1], 10, 32)
			if err != nil {
				return status{}, fmt.Errorf("%s: %w", path, err)
			}
			s.uid = uint32(uid)
			seen++
		}
		if ids, ok := strings.CutPrefix(line, "NSpid:"); ok {
			for field := range strings.FieldsSeq(ids) {
				id, err := strconv.ParseInt(field, 10, 32)
				if err != nil {
					return status{}, fmt.Errorf("%s: %w", path, err)
				}
				s.pids = append(s.pids, int32(id))
			}
			seen++
		}
	}
	if seen != 2 || len(s.pids) == 0 {
		return status{}, fmt.Errorf("%s is malformed", path)
	}
	return s, nil
}

func lookup(pid int32) (Process, error) {
	if pid <= 0 {
		return Process{}, fmt.Errorf("%d is no process id", pid)
	}
	before, err := readStat(pid)
	if err != nil {
		return Process{}, err
	}
	status, err := readStatus(pid)
	if err != nil {
		return Process{}, err
	}
	p := Process{
		PID: pid, Parent: before.parent, Start: before.start, UID: status.uid, Name: before.name,
		Command: command(pid), Session: before.session, TTY: before.tty,
	}
	p.Exe, _ = os.Readlink(procDir(pid) + "/exe")
	after, err := readStat(pid)
	if err != nil {
		return Process{}, err
	}
	if after.start != before.start || after.parent != before.parent {
		return Process{}, ErrChanged
	}
	return p, nil
}

func kin(pid int32) (parent, session int32, err error) {
	s, err := readStat(pid)
	return s.parent, s.session, err
}

func ancestry(pid int32, enough func(Process) bool) ([]Process, error) {
	var line []Process
	var held Held
	defer func() { held.Close() }()
	for range maxAncestors {
		next, err := Hold(pid)
		if err != nil {
			return line, fmt.Errorf("looking at process %d: %w", pid, err)
		}
		if len(line) > 0 {
			// The child still is who it was, and this one still is its parent.
			child := line[len(line)-1]
			now, err := readStat(child.PID)
			if err != nil || now.start != child.Start || now.parent != pid || !held.Alive() {
				next.Close()
				return nil, ErrChanged
			}
		}
		held.Close()
		held = next
		line = append(line, held.Process)
		if pid = held.Parent; pid == 0 || enough(held.Process) {
			if !held.Alive() {
				return nil, ErrChanged
			}
			return line, nil
		}
	}
	return line, fmt.Errorf("process %d has more than %d ancestors", line[0].PID, maxAncestors)
}

// Held is a process that is held by a pidfd: no later process passes for it. The
// zero value is none.
type Held struct {
	Process
	process process
	open    bool
}

// Hold opens a pidfd of the process and describes it; both are of the same
// process, which was alive after it was described. It fails with ErrEnded when
// there is none, or one that has ended and that nobody has waited for. Close it.
func Hold(pid int32) (Held, error) {
	if pid <= 0 {
		return Held{}, fmt.Errorf("%d is no process id", pid)
	}
	fd, err := unix.PidfdOpen(int(pid), 0)
	if errors.Is(err, unix.ESRCH) {
		return Held{}, ErrEnded
	}
	if err != nil {
		return Held{}, err
	}
	h := Held{process: process{fd}, open: true}
	h.Process, err = lookup(pid)
	switch {
	case !h.Alive():
		err = ErrEnded
	case err == nil:
		return h, nil
	default:
		err = errors.Join(ErrChanged, err)
	}
	h.Close()
	return Held{}, err
}

// Alive reports whether the process still runs.
func (h Held) Alive() bool { return h.open && h.process.alive() }

// Wait waits until the process has ended, or until ctx has: false then.
func (h Held) Wait(ctx context.Context) bool {
	if !h.open {
		return true
	}
	fd, err := unix.FcntlInt(uintptr(h.process.pidfd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return !h.poll(ctx)
	}
	if err := unix.SetNonblock(fd, true); err != nil { // else the runtime would not wait for it
		_ = unix.Close(fd)
		return !h.poll(ctx)
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	defer f.Close()
	raw, err := f.SyscallConn()
	if err != nil {
		return !h.poll(ctx)
	}
	defer context.AfterFunc(ctx, func() { _ = f.SetReadDeadline(time.Unix(1, 0)) })()
	if err := raw.Read(func(uintptr) bool { return !h.Alive() }); err != nil && ctx.Err() == nil {
		return !h.poll(ctx)
	}
	return !h.Alive()
}

// poll is Wait for want of descriptors; it reports whether the process runs.
func (h Held) poll(ctx context.Context) bool {
	tick := time.NewTicker(pollPause)
	defer tick.Stop()
	for h.Alive() {
		select {
		case <-ctx.Done():
			return h.Alive()
		case <-tick.C:
		}
	}
	return false
}

const pollPause = 100 * time.Millisecond

// Kill ends the process at once; nil when it has ended already.
func (h Held) Kill() error {
	if !h.open {
		return ErrChanged
	}
	if err := unix.PidfdSendSignal(h.process.pidfd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("ending process %d: %w", h.PID, err)
	}
	return nil
}

// Close gives the pidfd back.
func (h *Held) Close() {
	if h.open {
		h.open = false
		h.process.close()
	}
}

func procDir(pid int32) string { return "/proc/" + strconv.Itoa(int(pid)) }
