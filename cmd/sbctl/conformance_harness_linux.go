package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"subjectbroker/cmd/sbctl/internal/stdiomcp"
	"subjectbroker/proto/place"
	"subjectbroker/proto/wire"
	"subjectbroker/worker"
	"subjectbroker/worker/launch"
	machine "subjectbroker/worker/probe"
)

// The three places from which attacks are made, by the tier that they are for.
// Without is the control.
var harnessTiers = []string{tierCooperative, tierBound, tierSandboxed}

// secretVariable is in the environment of those who start trees, and of no tree.
const secretVariable = "SB_CONFORMANCE_SECRET"

// endPatience is how long it may take until all processes of a tree are gone.
const endPatience = 10 * time.Second

// dialPatience bounds a connection to ourselves.
const dialPatience = 2 * time.Second

// stillThere is how long a process that is left behind is watched to be sure
// that it is.
const stillThere = 500 * time.Millisecond

// escape says what is promised about one escape.
type escape struct {
	id string
	// kernel: some machines, or the attacked processes themselves, hold it against
	// everybody of the same uid; then the control need not work.
	kernel bool
	// bound: whether a launch holds it. A sandbox without network holds all.
	bound bool
	// closed: the attacked process holds it itself, against everybody but root.
	closed bool
}

// escapes are all that worker/probe knows. What a machine without launches holds
// by that alone is none of its controls.
func escapes(abi int, supported bool) []escape {
	list := []escape{}
	add := func(kernel, bound bool, ids ...string) {
		for _, id := range ids {
			list = append(list, escape{id: id, kernel: kernel, bound: bound})
		}
	}
	add(false, true, "home.key", "home.vault", "home.config", "home.log", "home.write", "socket.replace",
		"home.symlink", "home.dots", "home.hardlink", "home.rename", "proc.root", "proc.cwd", "proc.fd")
	add(false, true, "home.parent")
	add(!supported, true, "home.uncover")
	add(false, true, "keys")
	add(true, true, "cgroup")
	add(true, true, "process.memory", "process.ptrace")
	add(false, true, "process.signal")
	add(true, true, "process.descriptor")
	for _, name := range []string{"daemon", "shim"} {
		for _, what := range []string{"memory", "ptrace", "environ", "descriptor"} {
			list = append(list, escape{id: name + "." + what, kernel: true, bound: true, closed: true})
		}
		add(false, true, name+".signal")
	}
	add(true, true, "namespaces.join")
	for _, door := range doorNames {
		add(false, true, "door."+door)
	}
	add(false, abi >= 6, "door.abstract")
	add(false, false, "network")
	add(false, true, "memory.shared")
	add(false, false, "files")
	add(false, true, "environment")
	return list
}

// doorNames are the sockets outside, sorted.
var doorNames = []string{"containers", "gpg-agent", "operator", "podman", "session-bus", "ssh-agent", "systemd-user", "tmux"}

// harness is what attacks are made with.
type harness struct {
	*conformance
	bait    machine.Bait
	cleanup []func()
}

// keepClean starts a process that removes everything that was made when this
// process is gone, however it ended. The returned function has it do so now.
func (c *conformance) keepClean() (remove func(), err error) { return c.keepDirClean(c.dir) }

func (c *conformance) keepDirClean(dir string) (remove func(), err error) {
	keeper := exec.Command(c.self, "__attempt", "keep", dir)
	keeper.Env = []string{"PATH=" + os.Getenv("PATH")}
	keeper.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // an interrupt is not for it
	lease, err := keeper.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := keeper.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", c.self, err)
	}
	return func() {
		_ = lease.Close()
		_ = keeper.Wait()
	}, nil
}

// harnessLayer makes the checks of trees. supported is false where this machine
// gives none.
func (c *conformance) harnessLayer(ctx context.Context) (supported bool, err error) {
	if marker, inside := launch.Inside(); inside {
		c.note(layerHarness, "launch", checkUnsupported, "this is inside a launch of %s: what a machine gives is seen from outside", marker.Subject)
		return false, nil
	}
	h := &harness{conformance: c}
	defer func() {
		for _, undo := range slices.Backward(h.cleanup) {
			undo()
		}
	}()
	c.progress("setting traps")
	if err := h.setBait(ctx); err != nil {
		return false, err
	}
	supported = true
	for _, tier := range harnessTiers[1:] {
		if err := h.check(ctx, tier); err != nil {
			missing, ok := errors.AsType[*launch.Unsupported](err)
			if !ok {
				return false, err
			}
			supported = supported && tier != tierBound
			c.note(layerHarness, tier+".launch", checkUnsupported, "%s", missing.Error())
		} else {
			c.note(layerHarness, tier+".launch", checkPass, "this machine gives launches of this tier")
		}
	}
	for _, part := range []func(context.Context, bool) error{
		h.escapes, h.later, h.inputs, h.impostors, h.claims, h.operator, h.handed, h.terminals, h.leftBehind, h.refusals, h.ended, h.first, h.foreign, h.falseLaunches, h.guarded, h.separate,
	} {
		if err := part(ctx, supported); err != nil {
			return supported, err
		}
	}
	return supported, nil
}

// check says whether this machine gives trees of a tier.
func (h *harness) check(ctx context.Context, tier string) error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	places := h.places()
	return launch.Check(ctx, launch.Config{
		Home: places.Home, SocketDir: places.SocketDir, Environ: h.environment(), Stdin: null, Stdout: null, Stderr: null,
		Sandbox: tier == tierSandboxed, Workspace: h.work(),
	})
}

// setBait makes what there is to reach.
func (h *harness) setBait(ctx context.Context) error {
	h.bait = machine.Bait{
		Home: h.home, Above: filepath.Dir(h.home), AboveID: machine.IDOf(filepath.Dir(h.home)), Dir: h.work(), Uncover: []string{h.self, "__attempt", "uncover"}, Doors: map[string]string{}, Guarded: map[string]machine.Process{},
		File: filepath.Join(h.person(), "diary"), Variable: secretVariable,
	}
	if err := os.WriteFile(h.bait.File, []byte("dear diary\n"), 0o600); err != nil {
		return err
	}
	uid := strconv.Itoa(os.Geteuid())
	for _, dir := range []string{"tmux-" + uid, "runtime/systemd", "runtime/gnupg", "runtime/podman"} {
		if err := os.MkdirAll(filepath.Join(h.dir, dir), 0o700); err != nil {
			return err
		}
	}
	for name, path := range map[string]string{
		"tmux": "tmux-" + uid + "/default", "session-bus": "bus", "containers": "engine.sock", "ssh-agent": "agent.sock",
		"systemd-user": "runtime/systemd/private", "gpg-agent": "runtime/gnupg/S.gpg-agent", "podman": "runtime/podman/podman.sock",
	} {
		h.bait.Doors[name] = filepath.Join(h.dir, path)
		if _, err := h.listen("unix", h.bait.Doors[name]); err != nil {
			return err
		}
	}
	h.bait.Doors["operator"] = place.OperatorSocket(h.places().SocketDir)
	h.env = append(h.env,
		"XDG_RUNTIME_DIR="+filepath.Join(h.dir, "runtime"), "TMUX_TMPDIR="+h.dir, "DBUS_SESSION_BUS_ADDRESS=unix:path="+h.bait.Doors["session-bus"], "SSH_AUTH_SOCK="+h.bait.Doors["ssh-agent"],
		"DOCKER_HOST=unix://"+h.bait.Doors["containers"], secretVariable+"=do not hand on",
	)
	h.bait.Abstract = filepath.Base(h.dir) + "-abstract"
	if _, err := h.listen("unix", "@"+h.bait.Abstract); err != nil {
		return err
	}
	port, err := h.listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	if conn, err := net.DialTimeout("tcp", port.String(), dialPatience); err == nil { // where loopback is up
		h.bait.TCP = port.(*net.TCPAddr).Port
		err = conn.Close()
		if err != nil {
			return err
		}
	}
	if err := h.shareMemory(); err != nil {
		return err
	}
	h.keepKey()
	return h.startVictims(ctx)
}

// listen answers on an address until the examination is over.
func (h *harness) listen(network, address string) (net.Addr, error) {
	listener, err := net.Listen(network, address)
	if err != nil {
		return nil, err
	}
	h.cleanup = append(h.cleanup, func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	}()
	return listener.Addr(), nil
}

// shareMemory makes a segment that goes with this process, because it is removed
// while it is attached.
func (h *harness) shareMemory() error {
	id, err := unix.SysvShmGet(unix.IPC_PRIVATE, 4096, unix.IPC_CREAT|0o600)
	if err != nil {
		return fmt.Errorf("making shared memory: %w", err)
	}
	data, err := unix.SysvShmAttach(id, 0, 0)
	if err != nil {
		return fmt.Errorf("attaching shared memory: %w", err)
	}
	h.cleanup = append(h.cleanup, func() { _ = unix.SysvShmDetach(data) })
	if _, err := unix.SysvShmCtl(id, unix.IPC_RMID, nil); err != nil {
		return fmt.Errorf("removing shared memory: %w", err)
	}
	h.bait.Segment, h.bait.Segments = id, true
	return nil
}

// startVictims starts the processes that there are to reach.
func (h *harness) startVictims(ctx context.Context) error {
	key, err := os.Open(place.KeyFile(h.home))
	if err != nil {
		return err
	}
	defer key.Close()
	h.bait.VictimFD = 3 // the first of ExtraFiles
	if h.bait.Victim, err = h.victim(ctx, "victim", key); err != nil {
		return err
	}
	if h.bait.Nested, err = h.victim(ctx, "nested", nil); err != nil {
		h.bait.Nested = machine.Process{} // this machine gives no namespaces
	}
	shim, err := h.shim(ctx, subjectOther)
	if err != nil {
		return err
	}
	h.cleanup = append(h.cleanup, func() { _ = shim.Close() })
	if _, err := list(shim); err != nil { // it has a run
		return err
	}
	h.bait.Guarded["shim"] = machine.Process{PID: shim.PID(), Start: machine.StartOf(shim.PID())}
	h.bait.Guarded["daemon"] = machine.Process{PID: h.pid, Start: machine.StartOf(h.pid)}
	return nil
}

// victim starts one and waits until it says its number.
func (h *harness) victim(ctx context.Context, kind string, key *os.File) (p machine.Process, err error) {
	cmd := h.command(ctx, h.self, "__attempt", kind)
	cmd.Dir = h.home
	if key != nil {
		cmd.ExtraFiles = []*os.File{key}
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		return p, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return p, err
	}
	if err := cmd.Start(); err != nil {
		return p, err
	}
	h.cleanup = append(h.cleanup, func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return p, fmt.Errorf("starting a process to attack: %w", err)
	}
	p.PID, err = strconv.Atoi(strings.TrimSpace(line))
	p.Start = machine.StartOf(p.PID)
	return p, err
}

// command is a program with what those outside have.
func (h *harness) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env, cmd.WaitDelay = h.work(), h.environment(), stopPatience
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // the person's terminal is not for it to ask on
	return cmd
}

// from is the command line that runs argv from the place of a tier.
func (h *harness) from(tier string, argv ...string) []string {
	if tier == tierCooperative || h.unprotected {
		return argv
	}
	return append(append([]string{h.self, "run", "--subject", subjectWorker}, h.shape(tier)...), append([]string{"--"}, argv...)...)
}

// shape are the flags of run for a tier.
func (h *harness) shape(tier string) []string {
	if tier == tierSandboxed {
		return []string{"--sandbox", "--no-net", "--workspace", h.work()}
	}
	return nil
}

// output runs argv from the place of a tier and returns what it printed.
func (h *harness) output(ctx context.Context, tier string, argv ...string) ([]byte, error) {
	line := h.from(tier, argv...)
	cmd := h.command(ctx, line[0], line[1:]...)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := boundOutput(cmd)
	if err != nil {
		return out, fmt.Errorf("%s from the place of tier %s: %w: %s", argv[min(2, len(argv)-1)], tier, err, oneLine(strings.TrimSpace(said.String())))
	}
	return out, nil
}

// boundOutput is cmd.Output for a program that dies with this process.
func boundOutput(cmd *exec.Cmd) ([]byte, error) {
	var out bytes.Buffer
	cmd.Stdout = &out
	ended, err := startBound(cmd)
	if err != nil {
		return nil, err
	}
	err = <-ended
	return out.Bytes(), err
}

// tiers runs something once for each tier that there is, the control first and
// the others beside each other.
func (h *harness) tiers(supported bool, try func(tier string) error) error {
	if err := try(tierCooperative); err != nil || !supported {
		return err
	}
	errs := make([]error, len(harnessTiers))
	var wait sync.WaitGroup
	for i, tier := range harnessTiers[1:] {
		switch {
		case !h.gives(tier):
		case h.unprotected: // attacks that work would be in each other's way
			errs[i] = try(tier)
		default:
			wait.Go(func() { errs[i] = try(tier) })
		}
	}
	wait.Wait()
	return errors.Join(errs...)
}

// gives says whether this machine gives trees of a tier.
func (h *harness) gives(tier string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.ContainsFunc(h.checks, func(c conformanceCheck) bool { return c.ID == tier+".launch" && c.Status == checkPass })
}

// judge records what came of one attack in every tier. worked says for each tier
// that was tried whether the attack worked, and words what came of it.
func (h *harness) judge(e escape, tried string, worked map[string]bool, words map[string]string) {
	control, made := worked[tierCooperative]
	switch {
	case !made:
		h.note(layerHarness, tierCooperative+"."+e.id, checkUnsupported, "%s: %s", tried, words[tierCooperative])
	case control && e.closed && os.Geteuid() != 0:
		h.note(layerHarness, tierCooperative+"."+e.id, checkFail, "%s: %s although that process closes itself", tried, words[tierCooperative])
	case control:
		h.note(layerHarness, tierCooperative+"."+e.id, checkNotProvided, "not provided in tier cooperative: %s: %s", tried, words[tierCooperative])
	case e.kernel:
		h.note(layerHarness, tierCooperative+"."+e.id, checkPass, "%s: %s, even without a launch", tried, words[tierCooperative])
	default:
		h.note(layerHarness, tierCooperative+"."+e.id, checkFail, "%s: %s although nothing forbids it: what holds it elsewhere shows nothing", tried, words[tierCooperative])
	}
	for _, tier := range harnessTiers[1:] {
		id := tier + "." + e.id
		promised := tier == tierSandboxed || e.bound
		got, tried2 := worked[tier]
		switch {
		case !h.gives(tier):
			h.note(layerHarness, id, checkUnsupported, "this machine gives no launch of this tier")
		case !tried2 && !made:
			h.note(layerHarness, id, checkUnsupported, "%s: %s", tried, words[tier])
		case !tried2:
			h.note(layerHarness, id, checkFail, "%s: it could not be tried: %s", tried, words[tier])
		case got && !promised:
			h.note(layerHarness, id, checkNotProvided, "not provided in tier %s: %s: %s", tier, tried, words[tier])
		default:
			h.expect(layerHarness, id, !got, "%s: %s", tried, words[tier])
		}
	}
}

// escapes makes all attacks of worker/probe.
func (h *harness) escapes(ctx context.Context, supported bool) error {
	h.progress("attacking from three places")
	arg, err := json.Marshal(h.bait)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	found := map[string]map[string]machine.Probe{}
	err = h.tiers(supported, func(tier string) error {
		out, err := h.output(ctx, tier, h.self, "__attempt", "escapes", string(arg))
		if err != nil {
			return err
		}
		var probes []machine.Probe
		if err := json.Unmarshal(out, &probes); err != nil {
			return fmt.Errorf("reading what an attack printed: %w", err)
		}
		mu.Lock()
		defer mu.Unlock()
		found[tier] = map[string]machine.Probe{}
		for _, p := range probes {
			found[tier][p.ID] = p
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, e := range escapes(launch.LandlockABI(), supported) {
		worked, words, tried := map[string]bool{}, map[string]string{}, e.id
		for tier, probes := range found {
			p, made := probes[e.id]
			if made && p.Status != machine.Unknown {
				worked[tier] = p.Status == machine.NotHeld
			}
			words[tier] = cmp.Or(p.Words, "this machine gives nothing to try it on")
			if p.Tried != "" {
				tried = p.Tried
			}
		}
		h.judge(e, tried, worked, words)
	}
	if !supported {
		return nil
	}
	return h.withoutNet(ctx)
}

// withoutNet tries the network from a launch that has none.
func (h *harness) withoutNet(ctx context.Context) error {
	if h.bait.TCP == 0 {
		h.note(layerHarness, "bound.no-net", checkUnsupported, "there is no network here to keep a launch from")
		return nil
	}
	arg, err := json.Marshal(machine.Bait{TCP: h.bait.TCP})
	if err != nil {
		return err
	}
	line := []string{h.self, "run", "--subject", subjectWorker, "--no-net", "--"}
	if h.unprotected {
		line = nil
	}
	line = append(line, h.self, "__attempt", "escapes", string(arg))
	out, err := boundOutput(h.command(ctx, line[0], line[1:]...))
	var probes []machine.Probe
	if err == nil {
		err = json.Unmarshal(out, &probes)
	}
	if err != nil || len(probes) != 1 {
		return fmt.Errorf("attacking from a launch without network: %w", err)
	}
	h.expect(layerHarness, "bound.no-net", probes[0].Status == machine.Held, "from a launch with --no-net: %s: %s", probes[0].Tried, probes[0].Words)
	return nil
}

// claims starts a shim in a tree that says it is somebody else.
func (h *harness) claims(ctx context.Context, supported bool) error {
	h.progress("claiming another subject")
	path, err := sibling("sb-mcp")
	if err != nil {
		return err
	}
	worked, words := map[string]bool{}, map[string]string{}
	for _, tier := range harnessTiers {
		if tier != tierCooperative && (!supported || !h.gives(tier)) {
			continue
		}
		line := h.from(tier, path, "--subject", subjectOther)
		shim, err := stdiomcp.Start(ctx, stdiomcp.Config{Command: line[0], Args: line[1:], Env: h.environment(), Dir: h.work(), Stderr: h.stderr})
		if err != nil {
			return err
		}
		hidden, err := read(shim, docHidden)
		if err == nil {
			worked[tier] = hidden.Decision == decisionAllow
			words[tier] = hidden.Decision + " " + hidden.ReasonCode
			err = h.insideOf(tier, shim)
		}
		if err = errors.Join(err, shim.Close()); err != nil {
			return err
		}
	}
	h.judge(escape{id: "claim", bound: true}, "claiming another subject for a shim, and reading what is that one's alone", worked, words)
	if !supported {
		return nil
	}
	opened, err := h.entries(ctx, "--kind", "run.open")
	if err != nil {
		return err
	}
	for _, tier := range harnessTiers[1:] {
		recorded := slices.ContainsFunc(opened, func(e logEntry) bool {
			return e.SubjectID == subjectWorker && e.Tier == tier && e.Cause == "SUBJECT_MISMATCH"
		})
		if h.gives(tier) {
			h.expect(layerHarness, tier+".claim-logged", recorded, "the log says that a run of this tier claimed to be another subject (SUBJECT_MISMATCH)")
		}
	}
	return nil
}

// insideOf looks at what a subject gets in a tree, whatever it claimed.
func (h *harness) insideOf(tier string, shim *stdiomcp.Client) error {
	if tier == tierCooperative {
		return nil
	}
	shared, err := read(shim, docShared)
	if err != nil {
		return err
	}
	bound, err := read(shim, docBound)
	if err != nil {
		return err
	}
	h.expect(layerHarness, tier+".authorised", shared.Decision == decisionAllow && bound.Decision == decisionAllow,
		"in a launch the subject reads what it was granted, and what is for launches alone: %s, %s", shared.Decision, bound.Decision)
	report, err := reportOf(shim)
	if err != nil {
		return err
	}
	h.expect(layerHarness, tier+".reported", report.SubjectID == subjectWorker && report.Tier == tier, "it is told that it is %s, in tier %s", report.SubjectID, report.Tier)
	return nil
}

// operator tries verbs of the operator's, through sbctl and over the broker's
// socket.
func (h *harness) operator(ctx context.Context, supported bool) error {
	h.progress("trying what is the operator's")
	verbs := [][]string{
		{"status", "-q"}, {"secret", "get", docHidden, "-q"}, {"grant", subjectWorker, docHidden, "-q"}, {"subject", "list", "-q"}, {"audit", "list", "-q"},
		{"run", "--subject", subjectOther, "--", "true"}, {"run", "--subject", subjectWorker, "--env", "X=" + docShared, "--", "true"},
	}
	ids := []string{"operator.status", "operator.content", "operator.grant", "operator.policy", "operator.log", "operator.another-launch", "operator.environment"}
	arg, err := json.Marshal(verbs)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	codes, over := map[string][]int{}, map[string]string{}
	err = h.tiers(supported, func(tier string) error {
		out, err := h.output(ctx, tier, h.self, "__attempt", "commands", string(arg))
		if err != nil {
			return err
		}
		var got []int
		if err := json.Unmarshal(out, &got); err != nil || len(got) != len(verbs) {
			return fmt.Errorf("reading exit codes: %w", err)
		}
		said, err := h.output(ctx, tier, h.self, "__attempt", "operator")
		mu.Lock()
		defer mu.Unlock()
		codes[tier], over[tier] = got, strings.TrimSpace(string(said))
		return err
	})
	if err != nil {
		return err
	}
	// The control granted it.
	if _, _, err := h.sbctl(ctx, "revoke", subjectWorker, docHidden, "-q"); err != nil {
		return err
	}
	for i, id := range ids {
		worked, words := map[string]bool{}, map[string]string{}
		for tier, got := range codes {
			worked[tier], words[tier] = got[i] == 0, fmt.Sprintf("exit code %d", got[i])
		}
		h.judge(escape{id: id, bound: true, kernel: !supported && i >= 5}, "sbctl "+strings.Join(verbs[i], " "), worked, words)
	}
	for _, tier := range harnessTiers {
		if said, tried := over[tier]; tried {
			h.expect(layerHarness, tier+".operator.over-broker", said == "false", "the broker's socket answers nothing of the operator's")
		}
	}
	return nil
}

// handed has a process in a tree hand its connection to this one, which is a
// sibling of the tree.
func (h *harness) handed(ctx context.Context, supported bool) error {
	h.progress("handing descriptors over")
	claimed, after := map[string]bool{}, map[string]bool{}
	words, afterWords := map[string]string{}, map[string]string{}
	for _, tier := range harnessTiers {
		if tier != tierCooperative && (!supported || !h.gives(tier)) {
			continue
		}
		who, alive, dead, late, err := h.handOver(ctx, tier)
		if err != nil {
			return err
		}
		claimed[tier], words[tier] = who == subjectOther, "the run is "+who+"'s"
		after[tier], afterWords[tier] = dead || late, fmt.Sprintf("while it lives: %t; with its run, after it ended: %t; with its connection alone: %t", alive, dead, late)
		if !alive {
			return errors.New("a connection that was handed over cannot be used at all: the check is blind")
		}
	}
	h.judge(escape{id: "descriptor.claim", bound: true}, "handing a connection to a sibling, which claims another subject over it", claimed, words)
	h.judge(escape{id: "descriptor.dead", bound: true, kernel: true}, "using a connection whose process has ended", after, afterWords)
	return nil
}

// handOver returns whose run a connection from a tree opened here, whether it
// could be read with while its process lived, and after it had ended; and whether
// a run could be opened over a second connection after its process had ended.
func (h *harness) handOver(ctx context.Context, tier string) (who string, alive, dead, late bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	conn, end, err := h.fromTree(ctx, tier)
	if err != nil {
		return who, alive, dead, late, err
	}
	run, err := over(ctx, conn)
	if err != nil {
		return who, alive, dead, late, errors.Join(err, end())
	}
	defer run.Close()
	who = run.Subject
	_, readErr := run.Acquire(ctx, docShared)
	alive = readErr == nil
	if err := end(); err != nil {
		return who, alive, dead, late, err
	}
	_, readErr = run.Acquire(ctx, docShared)
	dead = readErr == nil

	second, end, err := h.fromTree(ctx, tier)
	if err != nil {
		return who, alive, dead, late, err
	}
	if err := end(); err != nil {
		return who, alive, dead, late, err
	}
	if run, err := over(ctx, second); err == nil {
		run.Close()
		late = true
	}
	return who, alive, dead, late, nil
}

// fromTree starts a process in a tree and takes over its connection to the
// broker. end has the process end, and waits until it and its tree have.
func (h *harness) fromTree(ctx context.Context, tier string) (conn net.Conn, end func() error, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	ours, theirs := pair[0], os.NewFile(uintptr(pair[1]), "pair")
	line := h.from(tier, h.self, "__attempt", "hand", place.BrokerSocket(h.places().SocketDir))
	cmd := h.command(ctx, line[0], line[1:]...)
	var said bytes.Buffer
	cmd.Stdin, cmd.Stderr = theirs, &said
	ended, err := startBound(cmd)
	theirs.Close()
	if err != nil {
		unix.Close(ours)
		return nil, nil, err
	}
	end = sync.OnceValue(func() error {
		unix.Close(ours)
		return <-ended
	})
	control := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(ours, make([]byte, 1), control, unix.MSG_CMSG_CLOEXEC)
	if err == nil {
		conn, err = connOf(control[:n])
	}
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("taking a connection over: %w", err), end(), errors.New(oneLine(said.String())))
	}
	return conn, end, nil
}

// connOf is the connection in a control message.
func connOf(control []byte) (net.Conn, error) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return nil, err
	}
	if len(messages) != 1 {
		return nil, errors.New("no descriptor came")
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fds[0]), "handed")
	defer file.Close()
	return net.FileConn(file)
}

// over opens a run for the other subject over a connection.
func over(ctx context.Context, conn net.Conn) (*worker.Run, error) {
	return worker.Open(ctx, worker.Config{Subject: subjectOther, Version: version, Dial: func(context.Context) (*grpc.ClientConn, error) {
		return grpc.NewClient("passthrough:///handed", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("subject-broker"),
			grpc.WithNoProxy(), grpc.WithDisableRetry(), grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return conn, nil }))
	}})
}

// terminals types into the terminal of whoever started a tree.
func (h *harness) terminals(ctx context.Context, supported bool) error {
	h.progress("typing into another's terminal")
	worked, words := map[string]bool{}, map[string]string{}
	for _, tier := range harnessTiers {
		if tier != tierCooperative && (!supported || !h.gives(tier)) {
			continue
		}
		typed, err := h.typed(ctx, tier)
		if err != nil {
			return err
		}
		worked[tier], words[tier] = typed > 0, count(typed, "byte")+" arrived"
	}
	h.judge(escape{id: "terminal", bound: true, kernel: true}, "typing into the terminal outside (TIOCSTI)", worked, words)
	return nil
}

// typed is how many bytes an attack typed into a terminal.
func (h *harness) typed(ctx context.Context, tier string) (int, error) {
	master, slave, err := openTerminal()
	if err != nil {
		return 0, err
	}
	defer master.Close()
	defer slave.Close()
	go func() { _, _ = io.Copy(io.Discard, master) }() // what is echoed
	args := append([]string{"__attempt", "terminal", "--"}, h.from(tier, h.self, "__attempt", "inject")...)
	cmd := h.command(ctx, h.self, args...)
	cmd.Stderr = slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 2}
	out, err := boundOutput(cmd)
	if err != nil {
		return 0, fmt.Errorf("typing into a terminal: %w", err)
	}
	return strconv.Atoi(strings.TrimSpace(string(out)))
}

// openTerminal makes a terminal.
func openTerminal() (master, slave *os.File, err error) {
	master, err = os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, err
	}
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		master.Close()
		return nil, nil, err
	}
	return master, slave, nil
}

// leftBehind looks whether processes outlive what they belong to.
func (h *harness) leftBehind(ctx context.Context, supported bool) error {
	h.progress("leaving processes behind")
	for _, attack := range []struct {
		id, what, tried string
		kill            bool
	}{
		{"left-behind", "leave", "leaving a process behind, with a session of its own and no parent", false},
		{"supervisor", "linger", "outliving the process that started the tree, which is killed (kill -9)", true},
	} {
		var mu sync.Mutex
		worked, words := map[string]bool{}, map[string]string{}
		err := h.tiers(supported, func(tier string) error {
			lives, err := h.outlives(ctx, tier, attack.what, attack.kill)
			mu.Lock()
			defer mu.Unlock()
			worked[tier], words[tier] = lives, "nothing was left"
			if lives {
				words[tier] = "it lives on"
			}
			return err
		})
		if err != nil {
			return err
		}
		h.judge(escape{id: attack.id, bound: true}, attack.tried, worked, words)
	}
	return nil
}

// outlives says whether a process that an attack leaves behind lives on when its
// tree has ended, or the supervisor was killed. Both hold the same pipe, which
// ends with the last of them.
func (h *harness) outlives(ctx context.Context, tier, what string, kill bool) (bool, error) {
	line := h.from(tier, h.self, "__attempt", what)
	cmd := h.command(ctx, line[0], line[1:]...)
	inRead, inWrite, err := os.Pipe()
	if err != nil {
		return false, err
	}
	defer inWrite.Close() // ends whatever is left
	outRead, outWrite, err := os.Pipe()
	if err != nil {
		return false, errors.Join(err, inRead.Close())
	}
	defer outRead.Close()
	cmd.Stdin, cmd.Stdout = inRead, outWrite
	ended, err := startBound(cmd)
	err = errors.Join(err, inRead.Close(), outWrite.Close())
	if err != nil {
		return false, err
	}
	reader := bufio.NewReader(outRead)
	if err := outRead.SetReadDeadline(h.app.now().Add(patience)); err != nil {
		return false, err
	}
	// A tree may end so soon that what was left behind in it never said a word.
	if _, err := reader.ReadString('\n'); err != nil && (kill || !errors.Is(err, io.EOF)) {
		return false, fmt.Errorf("waiting for a process that will be left behind: %w", err)
	}
	if kill {
		if err := cmd.Process.Kill(); err != nil {
			return false, err
		}
	}
	<-ended //nolint:errcheck // killed, or as it liked
	limit := endPatience
	if tier == tierCooperative || h.unprotected {
		limit = stillThere
	}
	if err := outRead.SetReadDeadline(h.app.now().Add(limit)); err != nil {
		return false, err
	}
	_, err = reader.ReadString('\n')
	return errors.Is(err, os.ErrDeadlineExceeded), nil
}

// refusals asks for workspaces that must not be.
func (h *harness) refusals(ctx context.Context, supported bool) error {
	if !supported || !h.gives(tierSandboxed) {
		return nil
	}
	h.progress("asking for forbidden workspaces")
	way := filepath.Join(h.work(), "way")
	if err := os.Symlink(h.dir, way); err != nil {
		return err
	}
	defer os.Remove(way)
	for _, ask := range []struct{ id, dir, tried string }{
		{"workspace.around", h.dir, "a workspace that holds the broker's home"},
		{"workspace.home", h.home, "the home itself as the workspace"},
		{"workspace.inside", filepath.Join(h.home, "audit"), "a workspace inside the home"},
		{"workspace.symlink", way, "a symbolic link to what holds the home as the workspace"},
		{"workspace.root", "/", "everything as the workspace"},
	} {
		_, code, err := h.sbctl(ctx, "run", "--subject", subjectWorker, "--sandbox", "--workspace", ask.dir, "--", "true")
		if err != nil {
			return err
		}
		h.expect(layerHarness, tierSandboxed+"."+ask.id, code == wire.ExitUsage, "%s is refused: exit code %d", ask.tried, code)
	}
	_, code, err := h.sbctl(ctx, "run", "--subject", subjectWorker, "--sandbox", "--workspace", h.work(), "--", "true")
	if err != nil {
		return err
	}
	h.expect(layerHarness, tierSandboxed+".workspace.other", code == 0, "a workspace beside the home is not: exit code %d", code)
	return nil
}

// ended ends a launch by the operator's word.
func (h *harness) ended(ctx context.Context, supported bool) error {
	if !supported || h.unprotected {
		return nil
	}
	h.progress("ending a launch")
	line := h.from(tierBound, h.self, "__attempt", "linger")
	cmd := h.command(ctx, line[0], line[1:]...)
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	defer in.Close()
	outRead, outWrite, err := os.Pipe()
	if err != nil {
		return err
	}
	defer outRead.Close()
	cmd.Stdout = outWrite
	ended, err := startBound(cmd)
	if err = errors.Join(err, outWrite.Close()); err != nil {
		return err
	}
	reader := bufio.NewReader(outRead)
	if _, err := reader.ReadString('\n'); err != nil {
		return fmt.Errorf("waiting for a launch: %w", err)
	}
	shown, err := h.must(ctx, "runs", "-o", "json")
	if err != nil {
		return err
	}
	var list struct {
		Launches []struct{ LaunchID, SubjectID, Tier string }
	}
	if err := json.Unmarshal([]byte(shown), &list); err != nil {
		return fmt.Errorf("reading the launches: %w", err)
	}
	seen := len(list.Launches) == 1 && list.Launches[0].SubjectID == subjectWorker && list.Launches[0].Tier == tierBound
	h.expect(layerHarness, "bound.shown", seen, "the operator sees the launch, its subject and its tier")
	if !seen {
		return nil
	}
	if _, err := h.must(ctx, "runs", "end", list.Launches[0].LaunchID, "-q", "--yes"); err != nil {
		return err
	}
	if err := outRead.SetReadDeadline(h.app.now().Add(endPatience)); err != nil {
		return err
	}
	_, err = reader.ReadString('\n')
	<-ended //nolint:errcheck // ended from outside
	h.expect(layerHarness, "bound.ended", errors.Is(err, io.EOF), "the operator's word ends a launch and every process in it, one left behind by its parents as well")
	return nil
}
