package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"subjectbroker/cmd/sbctl/internal/stdiomcp"
	"subjectbroker/cmd/sbctl/internal/ui"
	"subjectbroker/proto/place"
	"subjectbroker/proto/wire"
	"subjectbroker/worker/client"
)

type demoCmd struct {
	Document string `placeholder:"F" help:"A document of yours to hand out (default: README.md here, if there is one)."`
	Keep     bool   `help:"Keep the temporary home afterwards."`
}

// Help is the manual of demo.
func (demoCmd) Help() string {
	return `Starts a daemon in a temporary home, puts real documents in, and lets two agents
ask for them: each through a shim of its own, over stdio, in the protocol that
agents speak. Shows what is allowed, what is denied and why, a revocation that
takes effect at once, and the log that proves it. Then everything is removed.

Every step is checked; the exit code is 1 when one does not hold.

Examples:
  sbctl demo
  sbctl demo --document ~/notes/plan.md -o json`
}

type checkView struct {
	ID      string `json:"id"`
	Status  string `json:"status"` // pass or fail
	Summary string `json:"summary"`
}

// demo is one demonstration.
type demo struct {
	ctx    context.Context // lives as long as Run
	app    *app
	out    io.Writer // where the story is told
	dir    string    // everything temporary
	home   string
	checks []checkView
}

// Run demonstrates.
func (c demoCmd) Run(ctx context.Context, a *app) (err error) {
	const doing = "demonstrating"
	dir, err := shortTemp("sb-demo-")
	if err != nil {
		return fail(err, doing)
	}
	d := &demo{ctx: ctx, app: a, out: a.stdout, dir: dir, home: filepath.Join(dir, "home")}
	if a.out.Format == ui.JSON || a.out.Quiet {
		d.out = a.stderr
	}
	if c.Keep {
		defer a.say("kept: %s", dir)
	} else {
		defer func() { _ = os.RemoveAll(dir) }()
	}
	if err := d.tell(c.Document); err != nil {
		return fail(err, doing)
	}
	return d.finish()
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

// finish prints the checks for programs, and fails when one did not hold.
func (d *demo) finish() error {
	failed := 0
	list := ui.List{Items: d.checks}
	for _, check := range d.checks {
		list.IDs = append(list.IDs, check.ID)
		if check.Status != "pass" {
			failed++
		}
	}
	if d.app.out.Format == ui.JSON || d.app.out.Quiet {
		if err := d.app.out.List(list); err != nil {
			return err
		}
	}
	if failed > 0 {
		return &failure{code: wire.InternalError, doing: "demonstrating", what: count(failed, "check") + " did not hold", exit: wire.ExitFailed}
	}
	d.say("\n%d checks, all hold.\n%s", len(d.checks), forReal)
	return nil
}

// forReal says how to go on.
const forReal = `
For real:
  sbctl service install                     or run sbd in a terminal
  sbctl init                                keep the fingerprint and the recovery code elsewhere
  sbctl secret put NAME                     or: sbctl resource add NAME --file PATH
  sbctl connect claude --subject worker     or codex, gemini, opencode
  sbctl grant worker NAME --ttl 2h
  sbctl watch
  sbctl backup FILE                         keep it elsewhere, too
`

// say tells a piece of the story.
func (d *demo) say(format string, args ...any) { _, _ = fmt.Fprintf(d.out, format, args...) }

func (d *demo) title(text string) { d.say("\n── %s\n", text) }

// expect records and tells whether something holds.
func (d *demo) expect(id string, holds bool, format string, args ...any) {
	check := checkView{ID: id, Status: "pass", Summary: fmt.Sprintf(format, args...)}
	mark := "✓"
	if !holds {
		check.Status, mark = "fail", "✗"
	}
	d.checks = append(d.checks, check)
	d.say("  %s %s\n", mark, ui.Safe(check.Summary))
}

// environment is what the programs of the demonstration get.
func (d *demo) environment() []string {
	return []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "TZ=" + os.Getenv("TZ"), "SB_HOME=" + d.home}
}

// daemon starts sbd and waits until it serves. The returned function stops it.
func (d *demo) daemon() (stop func() error, err error) {
	path, err := sibling("sbd")
	if err != nil {
		return nil, err
	}
	// The demonstration is agent and operator in one process.
	if err := errors.Join(os.MkdirAll(d.home, 0o700), os.WriteFile(filepath.Join(d.home, "config.yaml"), []byte("operatorGuard: false\n"), 0o600)); err != nil {
		return nil, err
	}
	var said bytes.Buffer
	process := exec.Command(path, "--key-source", "file") // stopped in order, not by the context
	process.Env, process.Stderr = d.environment(), &said
	if err := process.Start(); err != nil {
		return nil, fmt.Errorf("starting sbd: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- process.Wait() }()
	stop = func() error {
		_ = process.Process.Signal(syscall.SIGTERM)
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
		conn, err := client.Operator(d.ctx, client.Places{Home: d.home, SocketDir: filepath.Join(d.home, "run")})
		if err == nil {
			return stop, conn.Close()
		}
		select {
		case err := <-ended:
			return nil, fmt.Errorf("sbd ended: %w: %s", err, strings.TrimSpace(said.String()))
		case <-d.ctx.Done():
			return nil, errors.Join(d.ctx.Err(), stop())
		case <-patience.C:
			return nil, errors.Join(fmt.Errorf("sbd does not serve: %w", err), stop())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

const (
	startPatience = 15 * time.Second
	stopPatience  = 6 * time.Second
)

// shim starts a shim for subject, as an agent's configuration would.
func (d *demo) shim(subject string) (*stdiomcp.Client, error) {
	path, err := sibling("sb-mcp")
	if err != nil {
		return nil, err
	}
	return stdiomcp.Start(d.ctx, stdiomcp.Config{Command: path, Args: []string{"--subject", subject}, Env: d.environment(), Stderr: d.app.stderr})
}

// sbctl runs this very program, shows the command and what it printed, and
// returns its output and exit code.
func (d *demo) sbctl(args ...string) (output string, code int, err error) {
	self, err := os.Executable()
	if err != nil {
		return "", 0, err
	}
	words := []string{"sbctl"}
	for _, arg := range args {
		words = append(words, shellQuote(strings.TrimPrefix(arg, d.dir+string(filepath.Separator))))
	}
	d.say("  $ %s\n", strings.Join(words, " "))
	process := exec.CommandContext(d.ctx, self, args...)
	process.Env = d.environment()
	var said bytes.Buffer
	process.Stdout, process.Stderr = &said, &said
	err = process.Run()
	for line := range strings.Lines(said.String()) {
		d.say("    %s\n", ui.Safe(strings.TrimRight(line, "\n")))
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return said.String(), exit.ExitCode(), nil
	}
	return said.String(), 0, err
}

// must is sbctl for a command that has to succeed for the story to go on.
func (d *demo) must(args ...string) (string, error) {
	output, code, err := d.sbctl(args...)
	if err == nil && code != 0 {
		err = fmt.Errorf("sbctl %s: exit code %d", strings.Join(args, " "), code)
	}
	return output, err
}
