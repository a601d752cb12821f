package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"subjectbroker/cmd/sbctl/internal/stdiomcp"
	"subjectbroker/cmd/sbctl/internal/ui"
	"subjectbroker/proto/wire"
)

type demoCmd struct {
	Broker demoBrokerCmd `cmd:"" default:"withargs" help:"Documents, two agents, and the log that proves what they got"`
	Tools  demoToolsCmd  `cmd:"" help:"A rogue agent against the policy around an MCP server"`
	Memory demoMemoryCmd `cmd:"" help:"Two agents that share a memory as far as they were granted"`
}

// Help is the manual of demo.
func (demoCmd) Help() string {
	return `Shows what the broker does, with the real programs in a temporary home: "demo" with
documents, "demo tools" with the tools of a server, "demo memory" with the memory
that agents share. Nothing of your own broker is touched. Every step is checked; the
exit code is 1 when one does not hold.`
}

type demoBrokerCmd struct {
	Document string `placeholder:"F" help:"A document of yours to hand out (default: README.md here, if there is one)."`
	Keep     bool   `help:"Keep the temporary home afterwards."`
}

// Help is the manual of demo broker.
func (demoBrokerCmd) Help() string {
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
	ctx context.Context // lives as long as Run
	app *app
	out io.Writer // where the story is told
	*stage
	checks []checkView
}

// Run demonstrates.
func (c demoBrokerCmd) Run(ctx context.Context, a *app) error {
	return demonstrate(ctx, a, c.Keep, forReal, func(d *demo, genesis string) error { return d.tell(c.Document, genesis) })
}

// demonstrate tells a story on a stage of its own, and how to go on. genesis is the
// fingerprint of the log there.
func demonstrate(ctx context.Context, a *app, keep bool, after string, tell func(d *demo, genesis string) error) error {
	const doing = "demonstrating"
	s, err := newStage("sb-demo-", a.stderr)
	if err != nil {
		return fail(err, doing)
	}
	d := &demo{ctx: ctx, app: a, out: a.stdout, stage: s}
	if a.out.Format == ui.JSON || a.out.Quiet {
		d.out = a.stderr
	}
	if keep {
		defer a.say("kept: %s", d.dir)
	} else {
		defer func() { _ = os.RemoveAll(d.dir) }()
	}
	if err := d.within(tell); err != nil {
		return fail(err, doing)
	}
	return d.finish(after)
}

// finish prints the checks for programs, and fails when one did not hold.
func (d *demo) finish(after string) error {
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
	d.say("\n%d checks, all hold.\n%s", len(d.checks), after)
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

// within tells a story between the start of a daemon of its own and its end.
func (d *demo) within(tell func(d *demo, genesis string) error) (err error) {
	d.title("A daemon of its own, in " + d.home)
	stop, err := d.daemon(d.ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	genesis, err := d.must("init", "-q")
	if err != nil {
		return err
	}
	return tell(d, strings.TrimSpace(genesis))
}

// act is a title and what happens under it.
type act struct {
	title string
	do    func() error
}

// play tells acts, one after the other.
func (d *demo) play(acts []act) error {
	for _, one := range acts {
		d.title(one.title)
		if err := one.do(); err != nil {
			return err
		}
	}
	return nil
}

// intact holds the log against its fingerprint, and looks in every file of the home for
// what must not stand there; what says what that is.
func (d *demo) intact(genesis, what string, markers map[string][]byte) error {
	_, code, err := d.sbctl("audit", "verify", "--genesis", genesis)
	if err != nil {
		return err
	}
	d.expect("verify", code == 0, "the log is intact")
	found, files, err := searchFiles(d.home, markers)
	if err != nil {
		return err
	}
	d.expect("no-content", len(found) == 0, "%s searched for %s, found: %s", count(files, "file"), what, strings.Join(append(found, "nothing")[:max(len(found), 1)], ", "))
	return nil
}

// shim starts a shim for subject.
func (d *demo) shim(subject string) (*stdiomcp.Client, error) { return d.stage.shim(d.ctx, subject) }

// sbctl runs this very program, shows the command and what it printed, and
// returns its output and exit code.
func (d *demo) sbctl(args ...string) (output string, code int, err error) {
	return d.sbctlWith("", args...)
}

// sbctlWith is sbctl by who knows the operator's passphrase.
func (d *demo) sbctlWith(passphrase string, args ...string) (output string, code int, err error) {
	words := []string{"sbctl"}
	for _, arg := range args {
		words = append(words, shellQuote(strings.TrimPrefix(arg, d.dir+string(filepath.Separator))))
	}
	d.say("  $ %s\n", strings.Join(words, " "))
	if passphrase != "" {
		args = append([]string{passphraseOption, "3"}, args...)
	}
	output, code, err = d.stage.sbctlWith(d.ctx, passphrase, args...)
	for line := range strings.Lines(output) {
		d.say("    %s\n", ui.Safe(strings.TrimRight(line, "\n")))
	}
	return output, code, err
}

// must is sbctl for a command that has to succeed for the story to go on.
func (d *demo) must(args ...string) (string, error) {
	output, code, err := d.sbctl(args...)
	if err == nil && code != 0 {
		err = fmt.Errorf("sbctl %s: exit code %d", strings.Join(args, " "), code)
	}
	return output, err
}
