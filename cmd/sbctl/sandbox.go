package main

import (
	"subjectbroker/cmd/sbctl/internal/ui"
	"subjectbroker/worker/launch"
)

type sandboxCmd struct {
	Show sandboxShowCmd `cmd:"" default:"withargs" help:"Show what a command in a launch sees"`
}

// Help is the manual of sandbox.
func (sandboxCmd) Help() string {
	return `What "sbctl run" leaves of this machine for a command, place by place.`
}

type sandboxShowCmd struct {
	Workspace string   `placeholder:"DIR" help:"Folder that may be written; the current one when not given."`
	NoNet     bool     `help:"As with run --no-net."`
	Bound     bool     `help:"As without run --sandbox."`
	Command   []string `arg:"" optional:"" name:"cmd" passthrough:"partial" help:"The command that would be started; its own folder is readable."`
}

// Help is the manual of sandbox show.
func (sandboxShowCmd) Help() string {
	return `Lists what a command that is started with "sbctl run --sandbox" from this folder
may read and write, what it gets of its own, and what is hidden from it. Nothing
is started and nobody is asked: what really holds is tried by "sbctl conformance".

ACCESS is one of
  hidden      covered by something empty
  read        read and execute
  read-write  as outside, as far as the modes allow
  own         the launch has its own, which is gone with it
  as outside  nothing is changed

Examples:
  sbctl sandbox show
  sbctl sandbox show --workspace ~/project --no-net -- codex
  sbctl sandbox show --bound -o json`
}

// Run lists the rules.
func (c sandboxShowCmd) Run(a *app) error {
	const doing = "describing the sandbox"
	places, err := a.places()
	if err != nil {
		return err
	}
	if c.Bound && c.Workspace != "" {
		return refuse(doing, "--workspace is for a sandbox, and --bound is without one")
	}
	as := runCmd{Sandbox: !c.Bound, Workspace: c.Workspace, NoNet: c.NoNet, Command: c.Command}
	config, err := as.config(doing, places)
	if err != nil {
		return err
	}
	rules, err := launch.Describe(config)
	if err != nil {
		return notLaunched(doing, err)
	}
	list := ui.List{Head: []string{"ACCESS", "PLACE", "WHY"}, Items: rules}
	for _, rule := range rules {
		list.Rows = append(list.Rows, []string{string(rule.Access), rule.Path, rule.Why})
		list.IDs = append(list.IDs, rule.Path)
	}
	return a.list(list, "nothing is hidden")
}
