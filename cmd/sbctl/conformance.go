package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"subjectbroker/cmd/sbctl/internal/ui"
	"subjectbroker/proto/terminal"
	"subjectbroker/proto/wire"
)

type conformanceCmd struct {
	Host        bool `help:"Look at this machine and at your own broker's home, too; nothing of it is changed."`
	Unprotected bool `hidden:"" help:"Make the attacks of confined trees without confining them, to see that checks fail."`
}

// Help is the manual of conformance.
func (conformanceCmd) Help() string {
	return `Checks on this machine what the broker promises: starts a daemon in a temporary
home, makes subjects, documents and processes of its own, and attacks them. Nothing
of your own broker is touched. Each attack is made three times: by an unprotected
process of the same uid, from a launch ("sbctl run"), and from a sandbox. The first
is the control: an attack that fails there too would show nothing.

The result of a check is one of
  pass          it holds
  fail          it does not hold, or its control did not work
  not-provided  the named tier does not promise it; another tier does
  unsupported   this machine lacks what it takes to try

The layers are broker (what is decided and logged), harness (what a tree of
processes can reach) and, with --host, host (this machine and your home).

Exit codes:
  0 nothing failed    1 a check failed    2 this machine gives no launch

Examples:
  sbctl conformance
  sbctl conformance --host -o json`
}

// Layers and results of checks.
const (
	layerBroker  = "broker"
	layerHarness = "harness"
	layerHost    = "host"

	checkPass        = "pass"
	checkFail        = "fail"
	checkNotProvided = "not-provided"
	checkUnsupported = "unsupported"
)

// exitUnsupported is the exit code of conformance on a machine without launches.
const exitUnsupported = 2

type conformanceCheck struct {
	ID      string `json:"id"`
	Layer   string `json:"layer"`  // broker, harness or host
	Status  string `json:"status"` // pass, fail, not-provided or unsupported
	Summary string `json:"summary"`
}

type conformanceView struct {
	Schema   int                `json:"schemaVersion"`
	Version  string             `json:"version"`
	Platform string             `json:"platform"`
	Status   string             `json:"status"` // pass, fail or unsupported
	Checks   []conformanceCheck `json:"checks"`
}

// above is the folder in which the home of an examination lies.
const above = "up"

// conformance is one examination.
type conformance struct {
	*stage
	app         *app
	self        string // this program
	unprotected bool   // trees are not confined

	mu     sync.Mutex
	checks []conformanceCheck
}

// Run examines.
func (c conformanceCmd) Run(ctx context.Context, a *app) error {
	const doing = "checking conformance"
	view, err := c.examine(ctx, a)
	if err != nil {
		return fail(err, doing)
	}
	if err := printConformance(a, view); err != nil {
		return fail(err, doing)
	}
	switch view.Status {
	case checkFail:
		return exitCode(wire.ExitFailed)
	case checkUnsupported:
		return exitCode(exitUnsupported)
	}
	return nil
}

func (c conformanceCmd) examine(ctx context.Context, a *app) (view conformanceView, err error) {
	self, err := os.Executable()
	if err != nil {
		return view, err
	}
	said := &lastWords{}
	s, err := newStage("sb-chk-", said)
	if err != nil {
		return view, err
	}
	defer func() {
		if words := said.String(); err != nil && words != "" {
			err = fmt.Errorf("%w; what was said last: %s", err, words)
		}
	}()
	// The home lies in a folder that may be moved: the attacks try that.
	s.home = filepath.Join(s.dir, above, "home")
	examined := &conformance{stage: s, app: a, self: self, unprotected: c.Unprotected}
	remove, err := examined.keepClean()
	if err != nil {
		return view, err
	}
	defer remove()
	if err := examined.prepare(); err != nil {
		return view, err
	}
	supported, err := examined.all(ctx)
	examined.progress("")
	if err != nil {
		return view, err
	}
	if c.Host {
		if err := examined.hostLayer(ctx); err != nil {
			return view, err
		}
	}
	view = conformanceView{Schema: 1, Version: version, Platform: runtime.GOOS + "/" + runtime.GOARCH, Status: checkPass, Checks: examined.checks}
	switch {
	case slices.ContainsFunc(view.Checks, func(c conformanceCheck) bool { return c.Status == checkFail }):
		view.Status = checkFail
	case !supported:
		view.Status = checkUnsupported
	}
	return view, nil
}

// prepare makes the folders in which the examination takes place, and says what
// its programs get. HOME is not the person's: sandboxes must not show a file
// that lies in it.
func (c *conformance) prepare() error {
	for _, dir := range []string{above, "person", "work", "in"} {
		if err := os.Mkdir(filepath.Join(c.dir, dir), 0o700); err != nil {
			return err
		}
	}
	c.env = []string{
		"PATH=" + filepath.Dir(c.self) + string(os.PathListSeparator) + os.Getenv("PATH"), "HOME=" + c.person(), "TZ=UTC",
	}
	return nil
}

// lastWords keeps the last line that programs wrote. It is safe for concurrent use.
type lastWords struct {
	mu   sync.Mutex
	line string
}

func (w *lastWords) Write(text []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if line := strings.TrimSpace(string(text)); line != "" {
		w.line = line
	}
	return len(text), nil
}

func (w *lastWords) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return oneLine(w.line)
}

func (c *conformance) person() string { return filepath.Join(c.dir, "person") }
func (c *conformance) work() string   { return filepath.Join(c.dir, "work") }

// all makes the checks of the broker and of the trees.
func (c *conformance) all(ctx context.Context) (supported bool, err error) {
	c.progress("starting a daemon")
	stop, err := c.daemon(ctx)
	if err != nil {
		return false, err
	}
	defer func() {
		if stopped := stop(); err == nil {
			err = stopped
		}
	}()
	if err := c.brokerLayer(ctx); err != nil {
		return false, err
	}
	if supported, err = c.harnessLayer(ctx); err != nil {
		return supported, err
	}
	if err := c.authenticated(ctx, supported); err != nil {
		return supported, err
	}
	return supported, c.finalLog(ctx)
}

// note records a check.
func (c *conformance) note(layer, id, status, format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.checks = append(c.checks, conformanceCheck{ID: id, Layer: layer, Status: status, Summary: oneLine(fmt.Sprintf(format, args...))})
}

// expect records a check that passes when holds.
func (c *conformance) expect(layer, id string, holds bool, format string, args ...any) {
	status := checkFail
	if holds {
		status = checkPass
	}
	c.note(layer, id, status, format, args...)
}

// progress tells a person at a terminal what is being done; nothing removes it.
func (c *conformance) progress(what string) {
	if terminal.Is(c.app.stderr) {
		_, _ = fmt.Fprintf(c.app.stderr, "\r\x1b[K%s", what)
	}
}

// must runs this program with args, which has to succeed for the rest to be of
// any use, and returns what it printed.
func (c *conformance) must(ctx context.Context, args ...string) (string, error) {
	output, code, err := c.sbctl(ctx, args...)
	if err == nil && code != 0 {
		err = fmt.Errorf("sbctl %s: exit code %d: %s", strings.Join(args, " "), code, oneLine(output))
	}
	return output, err
}

func printConformance(a *app, view conformanceView) error {
	if a.out.Format == ui.JSON && !a.out.Quiet {
		return a.out.Object(ui.Object{Value: view})
	}
	list := ui.List{Head: []string{"LAYER", "STATUS", "CHECK", "SUMMARY"}}
	counts := map[string]int{}
	for _, check := range view.Checks {
		list.Rows = append(list.Rows, []string{check.Layer, check.Status, check.ID, check.Summary})
		list.IDs = append(list.IDs, check.ID)
		counts[check.Status]++
	}
	if err := a.out.List(list); err != nil {
		return err
	}
	var parts []string
	for _, status := range []string{checkPass, checkFail, checkNotProvided, checkUnsupported} {
		if n := counts[status]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, status))
		}
	}
	a.done("%s: %s, %s (%s)", view.Status, count(len(view.Checks), "check"), cmp.Or(strings.Join(parts, ", "), "none"), view.Platform)
	return nil
}
