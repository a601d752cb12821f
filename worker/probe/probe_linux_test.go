package probe

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"subjectbroker/worker/launch"
)

const (
	patience = 30 * time.Second
	caseEnv  = "PROBE_TEST_CASE"
)

// asked is what the program that stands in for sbctl run and for a shim does.
type asked struct {
	Target Target
	Launch *launch.Config // nil: no tree, the control
}

func TestMain(m *testing.M) {
	// syscall.Exit, because os.Exit sleeps for a second under the race detector.
	if handled, code := launch.Main(os.Args); handled {
		syscall.Exit(code)
	}
	if len(os.Args) > 1 && os.Args[1] == "attack" {
		if err := standIn(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			syscall.Exit(1)
		}
		syscall.Exit(0)
	}
	os.Exit(m.Run())
}

func standIn() error {
	var a asked
	if err := json.Unmarshal([]byte(os.Getenv(caseEnv)), &a); err != nil {
		return err
	}
	if a.Launch == nil {
		ctx := context.Background()
		return json.NewEncoder(os.Stdout).Encode(append(Here(ctx), Attacks(ctx, a.Target)...))
	}
	inner, err := json.Marshal(asked{Target: a.Target})
	if err != nil {
		return err
	}
	tree, err := launch.Start(context.Background(), *a.Launch)
	if err != nil {
		return err
	}
	defer tree.Kill()
	err = tree.Go(launch.Command{Argv: []string{os.Args[0], "attack"}, Env: append(os.Environ(), caseEnv+"="+string(inner))})
	if err != nil {
		return err
	}
	if code, err := tree.Wait(); err != nil || code != 0 {
		return fmt.Errorf("exit code %d: %v", code, err)
	}
	return nil
}

// Every attack works without protection and is held with it.
func TestAttacks(t *testing.T) {
	// Not attacks on the home, or not protected by a bound tree.
	tests := []struct {
		id                      string
		plain, bound, sandboxed Status
	}{
		{"home.key", NotHeld, Held, Held},
		{"home.vault", NotHeld, Held, Held},
		{"home.audit-key", NotHeld, Held, Held},
		{"home.log", NotHeld, Held, Held},
		{"home.proc", NotHeld, Held, Held},
		{"home.symlink", NotHeld, Held, Held},
		{"home.hardlink", NotHeld, Held, Held},
		{"operator", NotHeld, Held, Held},
		{"daemon.visible", NotHeld, Held, Held},
		{"daemon.memory", NotHeld, Held, Held},
		{"bus.session", NotHeld, Held, Held},
		{"tmux", NotHeld, Held, Held},
		{"containers", NotHeld, Held, Held},
		{"ssh-agent", NotHeld, Held, Held},
		{"files", NotHeld, NotHeld, Held},
		{"network", NotHeld, NotHeld, Held},
		{"pidns", "", Held, Held},
		{"peerpidfd", Held, Held, Held},
	}
	uids := []int{os.Geteuid()}
	if uids[0] == 0 {
		uids = append(uids, 1001)
	}
	for _, uid := range uids {
		t.Run("uid"+strconv.Itoa(uid), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, uid)
			bound := launch.Config{Home: w.home, Environ: w.env}
			sandboxed := bound
			sandboxed.Sandbox, sandboxed.NoNet, sandboxed.Workspace, sandboxed.Readable = true, true, w.work, []string{w.program}
			shapes := []struct {
				name   string
				launch *launch.Config
			}{{"plain", nil}, {"bound", &bound}, {"sandboxed", &sandboxed}}
			for _, shape := range shapes {
				found := w.attack(t, asked{Target: w.target, Launch: shape.launch})
				for _, test := range tests {
					want := map[string]Status{"plain": test.plain, "bound": test.bound, "sandboxed": test.sandboxed}[shape.name]
					at := slices.IndexFunc(found, func(p Probe) bool { return p.ID == test.id })
					switch {
					case at < 0:
						t.Errorf("%s: %s was not made", shape.name, test.id)
					case want != "" && found[at].Status != want:
						t.Errorf("%s: %s: %s (%s), want %s", shape.name, test.id, found[at].Status, found[at].Words, want)
					}
				}
				for _, p := range found {
					if p.Tried == "" || p.Words == "" || p.Status == Unknown {
						t.Errorf("%s: %+v", shape.name, p)
					}
				}
			}
			if left, err := os.ReadDir(w.work); err != nil || len(left) != 0 {
				t.Errorf("left in the workspace: %v %v", left, err)
			}
		})
	}
}

type world struct {
	uid                 int
	home, work, program string
	env                 []string
	target              Target
}

func newWorld(t *testing.T, uid int) *world {
	t.Helper()
	base, err := os.MkdirTemp("", "sb")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(base) })
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.Chmod(base, 0o755))
	w := &world{uid: uid, home: filepath.Join(base, "broker"), work: filepath.Join(base, "work"), program: filepath.Join(base, "probe.test")}
	for _, dir := range []string{"broker/run/broker", "broker/run/operator", "broker/audit", "work", "home", "tmux-" + strconv.Itoa(uid)} {
		must(os.MkdirAll(filepath.Join(base, dir), 0o700))
	}
	for _, name := range []string{"broker/secret.key", "broker/vault.db", "broker/audit.key", "broker/audit/00000001.jsonl", "home/diary"} {
		must(os.WriteFile(filepath.Join(base, name), []byte("content"), 0o600))
	}
	tmux := filepath.Join(base, "tmux-"+strconv.Itoa(uid), "default")
	bus, agent, engine := filepath.Join(base, "bus"), filepath.Join(base, "agent"), filepath.Join(base, "engine")
	for _, address := range []string{filepath.Join(w.home, "run/operator/operator.sock"), tmux, bus, agent, engine} {
		listen(t, address)
	}
	copyFile(t, os.Args[0], w.program)
	sleep, err := exec.LookPath("sleep")
	must(err)
	copyFile(t, sleep, filepath.Join(base, "sbd"))
	must(filepath.WalkDir(base, func(path string, _ os.DirEntry, err error) error {
		if err != nil || path == base {
			return err
		}
		return os.Lchown(path, uid, uid)
	}))
	w.env = []string{
		"PATH=/usr/bin:/bin", "HOME=" + filepath.Join(base, "home"), "DBUS_SESSION_BUS_ADDRESS=unix:path=" + bus + ",guid=0", "TMUX_TMPDIR=" + base,
		"SSH_AUTH_SOCK=" + agent, "DOCKER_HOST=unix://" + engine,
	}
	daemon := w.command(t, filepath.Join(base, "sbd"), "300")
	must(daemon.Start())
	t.Cleanup(func() {
		daemon.Process.Kill()
		daemon.Wait()
	})
	w.target = Target{Home: w.home, DaemonPID: daemon.Process.Pid, Workspace: w.work, Files: []string{filepath.Join(base, "home/diary")}}
	return w
}

func listen(t *testing.T, address string) {
	t.Helper()
	listener, err := net.Listen("unix", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			conn.Close()
		}
	}()
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	source, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer source.Close()
	target, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(target, source); err != nil {
		t.Fatal(err)
	}
	if err := target.Close(); err != nil {
		t.Fatal(err)
	}
}

func (w *world) command(t *testing.T, args ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir, cmd.Env, cmd.WaitDelay = w.work, w.env, 5*time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if w.uid != os.Geteuid() {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(w.uid), Gid: uint32(w.uid)}
	}
	return cmd
}

func (w *world) attack(t *testing.T, a asked) []Probe {
	t.Helper()
	content, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	cmd := w.command(t, w.program, "attack")
	cmd.Env = append(cmd.Env, caseEnv+"="+string(content))
	var talk bytes.Buffer
	cmd.Stderr = &talk
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, talk.String())
	}
	var found []Probe
	if err := json.Unmarshal(out, &found); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if strings.Contains(string(out), "content") {
		t.Errorf("content was told: %s", out)
	}
	return found
}
