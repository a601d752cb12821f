package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"subjectbroker/cmd/sbctl/internal/homefiles"
	"subjectbroker/cmd/sbctl/internal/ui"
	"subjectbroker/proto/place"
	"subjectbroker/proto/wire"
)

type uninstallCmd struct {
	Purge  bool   `help:"Also remove the stored keys, the vault and the log. Nothing brings them back but a backup."`
	Backup string `placeholder:"FILE" help:"With --purge: make this backup before."`
	DryRun bool   `help:"List what would be removed, and change nothing."`
}

// Help is the manual of uninstall.
func (uninstallCmd) Help() string {
	return `Lists everything first, then asks, or needs --yes. Removed are the entries that
"connect" wrote into agents' configurations for this home (of those in
directories, only the one you are in is known), the service with its sockets, and
completion scripts. The programs themselves stay, and so does the home with
everything in it.

With --purge the keys that are stored for the vault are removed, from the keychain
and from the key file, and then the vault, the log and the rest of the home. A
backup is offered before; --yes alone makes none, --backup FILE does. Only files
that the broker keeps are removed: anything else in the home is left and named.

A daemon that runs as the service is stopped. One that somebody started by hand
must be stopped first.

Examples:
  sbctl uninstall --dry-run
  sbctl secret export --to ~/exported --reveal
  sbctl uninstall --purge --backup ~/last.sbb`
}

// leaving is one thing that uninstall finds.
type leaving struct {
	What   string `json:"what"` // agent, service, daemon, key, socket, file, directory, completion
	Name   string `json:"name"`
	Action string `json:"action"` // remove, leave
	Why    string `json:"why,omitempty"`
	Done   bool   `json:"done"`
}

const (
	actionRemove = "remove"
	actionLeave  = "leave"
)

// Run uninstalls.
func (c uninstallCmd) Run(ctx context.Context, a *app) error {
	const doing = "uninstalling"
	if c.Backup != "" && !c.Purge {
		return refuse(doing, "--backup goes with --purge: without it nothing is lost")
	}
	plan, err := a.planUninstall(ctx, doing, c.Purge)
	if err != nil {
		return err
	}
	if c.DryRun {
		return a.printLeavings(plan.items())
	}
	if plan.foreground != 0 {
		if c.Purge {
			a.say("a backup can be made while it still runs: %s", a.paste("backup", "FILE"))
		}
		return foreground(doing, plan.foreground)
	}
	for _, item := range plan.items() {
		a.done("%s", item.sentence())
	}
	if len(plan.items()) == 0 {
		return a.printLeavings(nil)
	}
	if err := c.saveFirst(ctx, a, doing, plan); err != nil {
		return err
	}
	question := "Remove these?"
	if c.Purge {
		question = "Remove these? Nothing brings vault and log back but a backup."
	}
	if err := a.confirm(ctx, doing, question); err != nil {
		return err
	}
	failed := plan.run(ctx)
	return errors.Join(failed, a.printLeavings(plan.items()))
}

func (l *leaving) sentence() string {
	text := fmt.Sprintf("%s: %s %s", l.Action, l.What, l.Name)
	if l.Why != "" {
		text += " (" + l.Why + ")"
	}
	return text
}

func (a *app) printLeavings(items []*leaving) error {
	list := ui.List{Head: []string{"WHAT", "NAME", "ACTION", "DONE", "WHY"}, Items: items}
	for _, item := range items {
		list.IDs = append(list.IDs, item.Name)
		list.Rows = append(list.Rows, []string{item.What, item.Name, item.Action, yesNo(item.Done), item.Why})
	}
	return a.list(list, "there is nothing to remove")
}

// foreground refuses while a daemon runs that no service manager stops.
func foreground(doing string, pid int) error {
	what := "a daemon that is not the service holds the home: stop it where it runs"
	failed := &failure{code: wire.AlreadyRunning, doing: doing, what: what, exit: wire.ExitBusy}
	if pid > 0 {
		failed.what = fmt.Sprintf("sbd runs by hand as pid %d: stop it where it runs, or with the hint", pid)
		failed.hint = fmt.Sprintf("kill %d", pid)
	}
	return failed
}

// saveFirst makes the backup that was asked for, or that a person wants when
// asked. What cannot be made ends everything, before anything was removed.
func (c uninstallCmd) saveFirst(ctx context.Context, a *app, doing string, plan *uninstallPlan) error {
	path := c.Backup
	if path == "" && c.Purge && !a.opts.Yes && plan.holdsVault() {
		offered, err := a.offerBackup(ctx, doing, plan)
		if err != nil {
			return err
		}
		path = offered
	}
	if path == "" {
		return nil
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return fail(err, "%s", doing)
	}
	made, err := a.makeBackup(ctx, path, &backupMakeCmd{File: path})
	if failed, ok := errors.AsType[*failure](err); ok {
		failed.what += "; nothing was removed"
		return failed
	}
	if err != nil {
		return err
	}
	a.done("backup %s: %s, head %d:%s", made.GetId(), path, made.GetSeq(), made.GetHead())
	return nil
}

// offerBackup asks whether a backup should be made, and returns its path; empty
// when none is wanted, or none can be made.
func (a *app) offerBackup(ctx context.Context, doing string, plan *uninstallPlan) (string, error) {
	if !plan.running {
		a.say("no daemon runs, so no backup can be made now; to make one: %s", a.located(startService))
		return "", nil
	}
	tty, err := a.tty()
	if err != nil {
		return "", nil // the question to come says that --yes is missing
	}
	defer func() { _ = tty.Close() }()
	here, err := os.Getwd()
	if err != nil {
		return "", fail(err, "%s", doing)
	}
	path := filepath.Join(here, "subject-broker-"+a.now().Format(time.DateOnly)+".sbb")
	yes, err := tty.Confirm(ctx, ui.Safe("Make a backup first, "+path+"?"))
	if err != nil || !yes {
		return "", fail(err, "%s", doing)
	}
	return path, nil
}

// leavePatience bounds how long a daemon that was told to stop is waited for.
const leavePatience = 20 * time.Second

// awaitFree waits until no daemon holds the home.
func awaitFree(ctx context.Context, doing, home string) error {
	ctx, cancel := context.WithTimeout(ctx, leavePatience)
	defer cancel()
	for {
		pid, err := homefiles.Holder(home)
		if err != nil {
			return fail(err, "%s", doing)
		}
		if pid == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return foreground(doing, pid)
		case <-time.After(pollEvery):
		}
	}
}

// hasVault says whether the home holds what a backup would be of.
func hasVault(home string) bool {
	_, err := os.Lstat(place.VaultFile(home))
	return err == nil
}
