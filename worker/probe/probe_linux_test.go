package probe

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"subjectbroker/worker/launch"
	"subjectbroker/worker/workertest"
)

const (
	patience = 30 * time.Second
	caseEnv  = "PROBE_TEST_CASE"
)

// asked is what the program that stands in for sbctl run does.
type asked struct {
	Launch *launch.Config // nil: no tree, the control
}

func TestMain(m *testing.M) {
	// syscall.Exit, because os.Exit sleeps for a second under the race detector.
	if handled, code := launch.Main(os.Args); handled {
		syscall.Exit(code)
	}
	if len(os.Args) > 1 && os.Args[1] == "here" {
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
		return json.NewEncoder(os.Stdout).Encode(Here(context.Background()))
	}
	inner, err := json.Marshal(asked{})
	if err != nil {
		return err
	}
	tree, err := launch.Start(context.Background(), *a.Launch)
	if err != nil {
		return err
	}
	defer tree.Kill()
	err = tree.Go(launch.Command{Argv: []string{os.Args[0], "here"}, Env: append(os.Environ(), caseEnv+"="+string(inner))})
	if err != nil {
		return err
	}
	if code, err := tree.Wait(); err != nil || code != 0 {
		return fmt.Errorf("exit code %d: %v", code, err)
	}
	return nil
}

// Facts are found where they are: outside, in a tree, in a sandbox. What escapes
// find is tested where their bait is made, by sbctl conformance.
func TestHere(t *testing.T) {
	tests := []struct {
		id                      string
		plain, bound, sandboxed Status
	}{
		{"network", NotHeld, NotHeld, Held},
		{"pidns", "", Held, Held},
		{"peerpidfd", Held, Held, Held},
		{"userns", Held, Held, Held},
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
				found := w.here(t, asked{Launch: shape.launch})
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
		})
	}
}

type world struct {
	uid                 int
	home, work, program string
	env                 []string
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
	for _, dir := range []string{"broker/run/broker", "work", "home"} {
		must(os.MkdirAll(filepath.Join(base, dir), 0o700))
	}
	self, err := os.ReadFile(os.Args[0])
	must(err)
	must(workertest.WriteProgram(w.program, self))
	must(filepath.WalkDir(base, func(path string, _ os.DirEntry, err error) error {
		if err != nil || path == base {
			return err
		}
		return os.Lchown(path, uid, uid)
	}))
	w.env = []string{"PATH=/usr/bin:/bin", "HOME=" + filepath.Join(base, "home")}
	return w
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

func (w *world) here(t *testing.T, a asked) []Probe {
	t.Helper()
	content, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	cmd := w.command(t, w.program, "here")
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
	return found
}
