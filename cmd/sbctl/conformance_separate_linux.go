package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"subjectbroker/cmd/sbctl/internal/stdiomcp"
	"subjectbroker/proto/place"
	machine "subjectbroker/worker/probe"
)

// separation is a machine on which everybody has a uid of their own: the account
// of sbd, a subject, and somebody who is nobody there. The uids and the group
// that sbd and the subject share are in no file of this machine; sbd runs where
// files of the examination are bound over those.
type separation struct {
	*harness
	top                       string
	account, subject, nobody  uint32
	group                     uint32
	brokerHome, sockets, work string
}

// orders are what becomeAccount does.
type orders struct {
	Parent      int
	UID, Group  uint32
	Files       map[string]string // of accounts, and what they are bound over
	Program     string
	Args, Envir []string
}

// errNoMounts says that this uid 0 is one of a container that mounts nothing.
var errNoMounts = errors.New("nothing can be mounted")

// exitNoMounts is how becomeAccount says it.
const exitNoMounts = 77

// separateEscapes are the attacks that other uids are held from, as in escapes.
func separateEscapes() []escape {
	var list []escape
	for _, e := range escapes(0, true) {
		family, _, _ := strings.Cut(e.id, ".")
		if (family == "home" || family == "daemon" || e.id == "socket.replace" || e.id == "door.operator") && e.id != "home.uncover" && e.id != "home.parent" {
			list = append(list, e)
		}
	}
	return list
}

// separate makes the checks of subjects with uids of their own. Only uid 0 can
// take other uids.
func (h *harness) separate(ctx context.Context, _ bool) (err error) {
	const id = tierSeparate + ".uid"
	if os.Geteuid() != 0 {
		h.note(layerHarness, id, checkUnsupported, "only uid 0 can start processes of other uids")
		return nil
	}
	h.progress("becoming others")
	top, err := os.MkdirTemp("/run", "sb-check-")
	if err != nil {
		h.note(layerHarness, id, checkUnsupported, "no place that only uid 0 can write: %v", err)
		return nil
	}
	remove, err := h.keepDirClean(top)
	if err != nil {
		return err
	}
	defer remove()
	s := &separation{harness: h, top: top, brokerHome: filepath.Join(top, "home"), sockets: filepath.Join(top, "run"), work: filepath.Join(top, "work")}
	if err := s.choose(); err != nil {
		h.note(layerHarness, id, checkUnsupported, "%v", err)
		return nil
	}
	if err := s.furnish(); err != nil {
		h.note(layerHarness, id, checkUnsupported, "other uids cannot be given anything: %v", err)
		return nil
	}
	if out, err := s.as(ctx, s.subject, h.self, "--version").CombinedOutput(); err != nil {
		h.note(layerHarness, id, checkUnsupported, "other uids cannot execute %s: %v %s", h.self, err, oneLine(string(out)))
		return nil
	}
	pid, stop, err := s.serve(ctx)
	if errors.Is(err, errNoMounts) {
		h.note(layerHarness, id, checkUnsupported, "sbd cannot be started as an account that is in no file of this machine: %v", err)
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	if err := s.fill(ctx); err != nil {
		return err
	}
	if err := s.asks(ctx); err != nil {
		return err
	}
	return s.attacks(ctx, pid)
}

// choose finds numbers that nobody has.
func (s *separation) choose() error {
	const first, last = 60300, 60500 // below those that systemd gives away
	var free []uint32
	for number := first; number < last && len(free) < 4; number++ {
		_, noUser := user.LookupId(strconv.Itoa(number))
		_, noGroup := user.LookupGroupId(strconv.Itoa(number))
		if noUser != nil && noGroup != nil {
			free = append(free, uint32(number))
		}
	}
	if len(free) < 4 {
		return errors.New("there are no uids that nobody has")
	}
	s.account, s.subject, s.nobody, s.group = free[0], free[1], free[2], free[3]
	return nil
}

// furnish makes the folders, and the files that say who is who.
func (s *separation) furnish() error {
	if err := os.Chmod(s.top, 0o755); err != nil { //nolint:gosec // every uid passes through it
		return err
	}
	for dir, owner := range map[string]uint32{s.brokerHome: s.account, s.sockets: s.account, s.work: s.subject, s.work + "-account": s.account} {
		mode := os.FileMode(0o700)
		if dir == s.sockets {
			mode = 0o755
		}
		if err := errors.Join(os.Mkdir(dir, mode), os.Chown(dir, int(owner), int(owner))); err != nil {
			return err
		}
	}
	passwd, group := "root:x:0:0::/root:/bin/sh\n", "root:x:0:\n"
	for name, uid := range map[string]uint32{"sb-check": s.account, "sb-subject": s.subject, "sb-nobody": s.nobody} {
		passwd += fmt.Sprintf("%s:x:%d:%d::/nonexistent:/bin/sh\n", name, uid, uid)
		group += fmt.Sprintf("%s:x:%d:\n", name, uid)
	}
	group += fmt.Sprintf("sb-subjects:x:%d:sb-subject\n", s.group)
	config := place.ConfigFile(s.brokerHome)
	for path, text := range map[string]string{filepath.Join(s.top, "passwd"): passwd, filepath.Join(s.top, "group"): group, config: "operatorGuard: false\n"} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil { //nolint:gosec // everybody may know who is who
			return err
		}
	}
	return errors.Join(os.Chmod(config, 0o600), os.Chown(config, int(s.account), int(s.account)))
}

// as is a program of a uid, which is in the group of the sockets if it is the
// subject or sbd's own.
func (s *separation) as(ctx context.Context, uid uint32, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env, cmd.WaitDelay = "/", s.variables(), stopPatience
	credential := &syscall.Credential{Uid: uid, Gid: uid}
	if uid != s.nobody {
		credential.Groups = []uint32{s.group}
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: credential}
	return cmd
}

func (s *separation) variables() []string {
	return []string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "TZ=UTC", "SB_HOME=" + s.brokerHome, "SB_SOCKET=" + s.sockets}
}

// serve starts sbd as its account and waits until it serves.
func (s *separation) serve(ctx context.Context) (pid int, stop func() error, err error) {
	path, err := sibling("sbd")
	if err != nil {
		return 0, nil, err
	}
	arg, err := json.Marshal(orders{
		Parent: os.Getpid(), UID: s.account, Group: s.group, Program: path, Args: []string{"sbd", "--key-source", "file", "--socket-dir", s.sockets}, Envir: s.variables(),
		Files: map[string]string{filepath.Join(s.top, "passwd"): "/etc/passwd", filepath.Join(s.top, "group"): "/etc/group"},
	})
	if err != nil {
		return 0, nil, err
	}
	cmd := exec.Command(s.self, "__attempt", "account", string(arg)) // stopped in order, not by the context
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
	var said bytes.Buffer
	cmd.Stderr = &said
	ended, err := startBound(cmd)
	if errors.Is(err, fs.ErrPermission) {
		return 0, nil, errNoMounts
	}
	if err != nil {
		return 0, nil, err
	}
	stop = func() error {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case err := <-ended:
			return err
		case <-time.After(stopPatience):
			_ = cmd.Process.Kill()
			return errors.New("sbd did not stop in time")
		}
	}
	for deadline := s.app.now().Add(startPatience); ; {
		err := s.as(ctx, s.account, s.self, "status", "-q").Run()
		switch {
		case err == nil:
			return cmd.Process.Pid, stop, nil
		case ctx.Err() != nil || s.app.now().After(deadline):
			return 0, nil, errors.Join(fmt.Errorf("sbd does not serve under an account of its own: %w", err), stop(), ctx.Err())
		}
		select {
		case err := <-ended:
			if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == exitNoMounts {
				return 0, nil, errNoMounts
			}
			return 0, nil, fmt.Errorf("sbd ended: %w: %s", err, oneLine(strings.TrimSpace(said.String())))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// becomeAccount takes an account and becomes a program.
func (c attemptCmd) becomeAccount(_ context.Context, _ *app) error {
	var o orders
	if err := json.Unmarshal([]byte(c.Args[0]), &o); err != nil {
		return err
	}
	if unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "") != nil {
		return exitCode(exitNoMounts)
	}
	for from, to := range o.Files {
		if unix.Mount(from, to, "", unix.MS_BIND, "") != nil {
			return exitCode(exitNoMounts)
		}
	}
	if err := errors.Join(syscall.Setgroups([]int{int(o.Group)}), syscall.Setgid(int(o.UID)), syscall.Setuid(int(o.UID))); err != nil {
		return err
	}
	// With the uid the kernel forgot that this process dies with its parent.
	runtime.LockOSThread()
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return err
	}
	if os.Getppid() != o.Parent {
		return errors.New("the parent has ended")
	}
	return syscall.Exec(o.Program, o.Args, o.Envir)
}

// fill puts content in, as the account, and says who may have it.
func (s *separation) fill(ctx context.Context) error {
	for _, name := range []string{docShared, docHidden} {
		cmd := s.as(ctx, s.account, s.self, "secret", "put", name, "--kind", "text", "--from-file", "-", "-q")
		cmd.Stdin = strings.NewReader("content of " + name)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("storing content under an account of its own: %w: %s", err, oneLine(string(out)))
		}
	}
	for _, args := range [][]string{
		{"subject", "add", subjectWorker, "--uid", strconv.Itoa(int(s.subject)), "-q"}, {"subject", "add", subjectOther, "-q"},
		{"grant", subjectWorker, docShared, "-q"}, {"grant", subjectOther, docHidden, "-q"},
	} {
		if out, err := s.as(ctx, s.account, s.self, args...).CombinedOutput(); err != nil {
			return fmt.Errorf("sbctl %s: %w: %s", strings.Join(args, " "), err, oneLine(string(out)))
		}
	}
	return nil
}

// asks starts shims of the subject and of somebody else.
func (s *separation) asks(ctx context.Context) error {
	path, err := sibling("sb-mcp")
	if err != nil {
		return err
	}
	ask := func(uid uint32, subject string) (shared, hidden reading, report tierReport, err error) {
		cmd := s.as(ctx, uid, path, "--subject", subject)
		shim, err := stdiomcp.Start(ctx, stdiomcp.Config{Command: path, Args: cmd.Args[1:], Env: cmd.Env, Credential: cmd.SysProcAttr.Credential, Stderr: s.stderr})
		if err != nil {
			return shared, hidden, report, err
		}
		defer func() { err = errors.Join(err, shim.Close()) }()
		if shared, err = read(shim, docShared); err != nil {
			return shared, hidden, report, err
		}
		if hidden, err = read(shim, docHidden); err != nil || uid == s.nobody {
			return shared, hidden, report, err
		}
		report, err = reportOf(shim)
		return shared, hidden, report, err
	}
	shared, hidden, report, err := ask(s.subject, subjectOther)
	if err != nil {
		return err
	}
	s.expect(layerHarness, "separate.uid", shared.Decision == decisionAllow && report.Tier == tierSeparate && report.SubjectID == subjectWorker,
		"a uid that is a subject's is that subject whatever it says: it reads what it was granted, in tier %s", report.Tier)
	s.expect(layerHarness, "separate.claim", hidden.Decision == "deny" && hidden.Content == nil, "it reads nothing of the subject that it claims to be: %s %s", hidden.Decision, hidden.ReasonCode)
	shared, hidden, _, err = ask(s.nobody, subjectWorker)
	if err != nil {
		return err
	}
	s.expect(layerHarness, "separate.stranger", shared.Decision != decisionAllow && hidden.Decision != decisionAllow && shared.Content == nil,
		"a uid that is nobody's is not answered at all: %s", shared.ReasonCode)
	return nil
}

// attacks makes the attacks of the subject's uid, and of sbd's own as the control.
func (s *separation) attacks(ctx context.Context, pid int) error {
	found := map[uint32]map[string]machine.Probe{}
	for uid, dir := range map[uint32]string{s.account: s.work + "-account", s.subject: s.work} {
		arg, err := json.Marshal(machine.Bait{
			Home: s.brokerHome, SocketDir: s.sockets, Dir: dir, Doors: map[string]string{"operator": place.OperatorSocket(s.sockets)},
			Guarded: map[string]machine.Process{"daemon": {PID: pid, Start: machine.StartOf(pid)}},
		})
		if err != nil {
			return err
		}
		cmd := s.as(ctx, uid, s.self, "__attempt", "escapes", string(arg))
		var said bytes.Buffer
		cmd.Stderr = &said
		out, err := cmd.Output()
		if err != nil {
			return fmt.Errorf("attacking as uid %d: %w: %s", uid, err, oneLine(said.String()))
		}
		var probes []machine.Probe
		if err := json.NewDecoder(io.LimitReader(bytes.NewReader(out), 1<<20)).Decode(&probes); err != nil {
			return fmt.Errorf("reading what an attack printed: %w", err)
		}
		found[uid] = map[string]machine.Probe{}
		for _, p := range probes {
			found[uid][p.ID] = p
		}
	}
	for _, e := range separateEscapes() {
		control, p := found[s.account][e.id], found[s.subject][e.id]
		shown := control.Status == machine.NotHeld || e.kernel && control.Status == machine.Held
		words := p.Tried + " as another uid: " + p.Words
		if !shown {
			words += "; but as its own uid, too: " + control.Words
		}
		s.expect(layerHarness, tierSeparate+"."+e.id, shown && p.Status == machine.Held, "%s", words)
	}
	return nil
}
