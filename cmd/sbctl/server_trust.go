package main

import (
	"context"
	"fmt"
	"strings"

	"subjectbroker/cmd/sbctl/internal/descriptor"
	"subjectbroker/cmd/sbctl/internal/ui"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

type serverDiffCmd struct {
	Server string `arg:"" help:"Name of the server."`
	Seen   bool   `help:"Compare what was seen last, and start nothing."`
}

// Help is the manual of server diff.
func (serverDiffCmd) Help() string {
	return `Compares what the server offers now, its instructions included, with what was
trusted last. A hosted server that nobody runs is started for it. Characters that
do not show are written out, as \u{200b}; long texts are broken into lines that
begin with a bar, and "\n" stands where the text itself has a line break.

The exit code is 0 when everything is as trusted, and 1 when something is not.

Examples:
  sbctl server diff github
  sbctl server diff github -o json`
}

type serverDiffView struct {
	Server string     `json:"server"`
	Same   bool       `json:"same"`
	Tools  []toolView `json:"tools"` // that are not as trusted
}

// Run compares.
func (c serverDiffCmd) Run(ctx context.Context, a *app) error {
	got, err := a.server(ctx, "comparing server "+c.Server, c.Server, !c.Seen)
	if err != nil {
		return a.nearServer(ctx, err, "diff", c.Server)
	}
	different := notTrusted(got.GetTools())
	view := serverDiffView{Server: c.Server, Same: len(different) == 0, Tools: viewTools(different)}
	switch {
	case a.out.Format == ui.JSON || a.out.Quiet:
		var ids []string
		for _, t := range different {
			ids = append(ids, toolName(t))
		}
		if a.out.Quiet {
			err = a.out.List(ui.List{IDs: ids})
		} else {
			err = a.out.Object(ui.Object{Value: view})
		}
	case view.Same:
		a.done("everything is as trusted: %s", toolsOf(got.GetServer()))
	default:
		_, err = fmt.Fprint(a.stdout, differences(got.GetServer(), different))
		a.done("to trust it as it is: %s", a.paste("server", "trust", c.Server))
	}
	if err == nil && !view.Same {
		return exitCode(wire.ExitFailed)
	}
	return err
}

// notTrusted are the tools, or instructions, that are not as they were trusted.
func notTrusted(tools []*operatorv1.ServerToolState) []*operatorv1.ServerToolState {
	var found []*operatorv1.ServerToolState
	for _, t := range tools {
		if t.GetState() != toolTrusted {
			found = append(found, t)
		}
	}
	return found
}

// differences shows tools beside what was trusted of them.
func differences(s *operatorv1.Server, tools []*operatorv1.ServerToolState) string {
	var text strings.Builder
	for i, t := range tools {
		if i > 0 {
			text.WriteString("\n")
		}
		fmt.Fprintf(&text, "%s: %s", t.GetState(), ui.Safe(toolName(t)))
		if s.GetHosted() && t.GetExposed() != "" {
			fmt.Fprintf(&text, ", which agents see as %s", ui.Safe(t.GetExposed()))
		}
		text.WriteString("\n")
		before, after := t.GetTrusted(), t.GetSeen()
		switch t.GetState() {
		case toolWithheld:
			text.WriteString("  agents are never shown it: its name is too long, or no name\n")
		case toolGone:
			after = nil
		}
		shown := descriptor.Diff(descriptor.Lines(before), descriptor.Lines(after))
		for _, line := range shown {
			text.WriteString("  " + line + "\n")
		}
		if n := ui.Hidden(descriptor.Text(after)); n > 0 {
			fmt.Fprintf(&text, "  ! %s in it that does not show, written out above\n", count(n, "character"))
		}
	}
	return text.String()
}

type serverTrustCmd struct {
	Server string   `arg:"" help:"Name of the server."`
	Tool   []string `sep:"none" placeholder:"T" help:"Only this tool, and not the instructions. Repeatable."`
}

// Help is the manual of server trust.
func (serverTrustCmd) Help() string {
	return `Shows what the server offers now beside what was trusted last, as "server diff"
does, and asks. What is trusted is pinned: name, description, schemas and
annotations of each tool, and the instructions of the server. What changes later,
or is new, is withheld from agents until it is trusted again, and "sbctl doctor"
and "sbctl watch" say so.

Read what you trust: a description is text that agents follow. If the server offers
something else by the time that you answer, nothing is trusted.

A server that is only wrapped is judged by its policy until something of it is
trusted; from then on only what is trusted is listed and can be called.

Examples:
  sbctl server trust github
  sbctl server trust github --tool search --tool get_issue --yes`
}

type serverTrustView struct {
	serverView
	Changed []toolView `json:"changed"` // what was trusted by this, each with its state before
}

// Run trusts.
func (c serverTrustCmd) Run(ctx context.Context, a *app) error {
	doing := "trusting server " + c.Server
	if _, err := a.server(ctx, doing, c.Server, true); err != nil {
		return a.nearServer(ctx, err, "trust", c.Server)
	}
	trial, err := a.trust(ctx, doing, &operatorv1.TrustServerRequest{Name: c.Server, Tools: c.Tool, DryRun: true})
	if err != nil {
		return err
	}
	if len(trial.GetTools()) == 0 {
		a.done("everything is as trusted already")
		return a.printTrusted(trial)
	}
	if a.out.Format == ui.JSON || a.out.Quiet {
		_, err = fmt.Fprint(a.stderr, differences(trial.GetServer(), trial.GetTools()))
	} else {
		_, err = fmt.Fprint(a.stdout, differences(trial.GetServer(), trial.GetTools())+"\n")
	}
	if err != nil {
		return fail(err, "%s", doing)
	}
	question := fmt.Sprintf("Let agents have %s of %s as shown?", partsOf(trial.GetTools()), c.Server)
	if err := a.consent(ctx, doing, "what was shown has to be read, and there is no terminal to ask on: add --yes", question); err != nil {
		return err
	}
	got, err := a.trust(ctx, doing, &operatorv1.TrustServerRequest{Name: c.Server, Tools: c.Tool, Shown: trial.GetShown()})
	if err != nil {
		return err
	}
	a.warn(got.GetWarnings())
	if err := a.printTrusted(got); err != nil {
		return err
	}
	if len(got.GetServer().GetSubjects()) == 0 {
		a.done("no subject may call it yet: %s", a.paste("grant", "SUBJECT", "call:"+c.Server+"/*"))
	}
	return nil
}

func (a *app) trust(ctx context.Context, doing string, request *operatorv1.TrustServerRequest) (*operatorv1.TrustServerResponse, error) {
	return callWithin(ctx, a, serverPatience, doing, request, operatorv1.OperatorServiceClient.TrustServer)
}

func (a *app) printTrusted(got *operatorv1.TrustServerResponse) error {
	return a.out.Object(ui.Object{
		ID: got.GetServer().GetName(),
		Fields: []ui.Field{
			{Name: "server", Value: got.GetServer().GetName()},
			{Name: "tools", Value: toolsOf(got.GetServer())},
			{Name: "trusted", Value: a.out.When(got.GetServer().GetTrusted())},
			{Name: "subjects", Value: strings.Join(got.GetServer().GetSubjects(), ", ")},
		},
		Value: serverTrustView{viewServer(got.GetServer()), viewTools(got.GetTools())},
	})
}

// partsOf counts tools, and names the instructions.
func partsOf(tools []*operatorv1.ServerToolState) string {
	n := 0
	for _, t := range tools {
		if t.GetName() != "" {
			n++
		}
	}
	words := count(n, "tool")
	switch {
	case n == 0:
		return "the instructions"
	case n < len(tools):
		return words + " and the instructions"
	}
	return words
}

// consent asks a person about something that can be taken back. --yes answers
// beforehand; without a terminal and without --yes it refuses with otherwise.
func (a *app) consent(ctx context.Context, doing, otherwise, question string) error {
	if a.opts.Yes {
		return nil
	}
	tty, err := a.tty()
	if err != nil {
		return refuse(doing, "%s", otherwise)
	}
	defer func() { _ = tty.Close() }()
	yes, err := tty.Confirm(ctx, ui.Safe(question))
	if err != nil {
		return fail(err, "%s", doing)
	}
	if !yes {
		return &failure{code: wire.InvalidArgument, doing: doing, what: "not confirmed, nothing was changed", exit: wire.ExitFailed}
	}
	return nil
}
