package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"subjectbroker/cmd/sbctl/internal/agents"
	"subjectbroker/cmd/sbctl/internal/complete"
	"subjectbroker/cmd/sbctl/internal/homefiles"
	"subjectbroker/cmd/sbctl/internal/service"
	"subjectbroker/proto/place"
	"subjectbroker/proto/wire"
)

// uninstallPlan is what uninstall found, in the order in which it goes: first
// what starts something, then what is started, then what it left.
type uninstallPlan struct {
	home       string
	running    bool // some daemon holds the home
	foreground int  // pid of one that is not the service; 0: none
	steps      []uninstallStep
}

// uninstallStep removes its items, all or none.
type uninstallStep struct {
	items []*leaving
	run   func(ctx context.Context) error // nil: everything in it stays
}

func (p *uninstallPlan) items() []*leaving {
	var all []*leaving
	for _, step := range p.steps {
		all = append(all, step.items...)
	}
	return all
}

func (p *uninstallPlan) holdsVault() bool { return hasVault(p.home) }

// run does every step until one fails: what comes later needs what comes before.
func (p *uninstallPlan) run(ctx context.Context) error {
	for _, step := range p.steps {
		if step.run == nil {
			continue
		}
		if err := step.run(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (p *uninstallPlan) add(run func(context.Context) error, items ...*leaving) {
	if len(items) > 0 {
		p.steps = append(p.steps, uninstallStep{items, run})
	}
}

// planUninstall looks at everything and changes nothing.
func (a *app) planUninstall(ctx context.Context, doing string, purge bool) (*uninstallPlan, error) {
	places, err := a.places()
	if err != nil {
		return nil, err
	}
	plan := &uninstallPlan{home: places.Home}
	if err := a.planAgents(ctx, doing, plan); err != nil {
		return nil, err
	}
	if err := a.planService(ctx, doing, plan); err != nil {
		return nil, err
	}
	files, err := homefiles.Scan(places.Home)
	if errors.Is(err, homefiles.ErrNoDir) {
		return nil, refuse(doing, "%s is no directory", places.Home)
	}
	if err != nil {
		return nil, fail(err, "%s", doing)
	}
	if purge {
		if err := a.planKeys(doing, plan, files); err != nil {
			return nil, err
		}
		planHome(doing, plan, files)
	} else {
		planSockets(doing, plan, places.Home, files)
	}
	if !strings.HasPrefix(places.SocketDir, places.Home+string(filepath.Separator)) {
		planOtherSockets(doing, plan, places.SocketDir)
	}
	userHome, err := os.UserHomeDir()
	if err != nil {
		return nil, fail(err, "finding your home directory")
	}
	for _, path := range complete.Installed(userHome, os.Getenv, a.model.Name) {
		item := &leaving{What: "completion", Name: path, Action: actionRemove}
		plan.add(removePath(doing, item), item)
	}
	return plan, nil
}

// removePath removes the file that item names.
func removePath(doing string, item *leaving) func(context.Context) error {
	return func(context.Context) error {
		if err := os.Remove(item.Name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fail(err, "%s", doing)
		}
		item.Done = true
		return nil
	}
}

// planAgents finds the entries for this home that connect wrote.
func (a *app) planAgents(ctx context.Context, doing string, plan *uninstallPlan) error {
	found, err := a.agents(ctx, doing)
	if err != nil {
		return err
	}
	for _, l := range found {
		if l.Problem != "" {
			plan.add(nil, &leaving{What: "agent", Name: l.File, Action: actionLeave, Why: l.Problem})
			continue
		}
		home := l.Home
		if home == "" {
			home, _ = place.DefaultHome()
		}
		if l.Name == "" || filepath.Clean(home) != plan.home {
			continue // no entry, or another broker's
		}
		item := &leaving{What: "agent", Name: fmt.Sprintf("%s: %s", l.File, l.Name), Action: actionRemove}
		config, err := a.agentConfig(string(l.Agent), l.Subject, string(l.Scope))
		if err != nil {
			return err
		}
		config.DryRun = true
		if _, err := agents.Disconnect(ctx, config); err != nil {
			item.Action, item.Why = actionLeave, "it was not written by connect"
			if !errors.Is(err, agents.ErrNotFound) && !errors.Is(err, agents.ErrInvalid) {
				item.Why = err.Error()
			}
			plan.add(nil, item)
			continue
		}
		config.DryRun = false
		plan.add(func(ctx context.Context) error {
			if _, err := agents.Disconnect(ctx, config); err != nil && !errors.Is(err, agents.ErrNotFound) {
				return agentFailure(err, doing)
			}
			item.Done = true
			return nil
		}, item)
	}
	return nil
}

// planService finds the service of this home, and who runs the daemon.
func (a *app) planService(ctx context.Context, doing string, plan *uninstallPlan) error {
	pid, err := homefiles.Holder(plan.home)
	if err != nil {
		return fail(err, "%s", doing)
	}
	plan.running = pid != 0
	config, err := a.serviceConfig()
	if err != nil {
		return err
	}
	s, err := service.Inspect(ctx, config)
	if err != nil && !errors.Is(err, service.ErrNoManager) && !errors.Is(err, service.ErrOtherHome) {
		return serviceFailure(err, doing)
	}
	ours := err == nil && s.Installed && s.Home == plan.home
	if pid != 0 && (!ours || s.PID != pid) {
		plan.foreground = pid
		plan.add(nil, &leaving{What: "daemon", Name: plan.home, Action: actionLeave, Why: "it runs by hand, and must be stopped first"})
	}
	if !ours {
		return nil
	}
	item := &leaving{What: "service", Name: s.Unit, Action: actionRemove, Why: s.State}
	plan.add(func(ctx context.Context) error {
		if _, err := service.Uninstall(ctx, config); err != nil {
			return serviceFailure(err, doing)
		}
		item.Done = true
		return awaitFree(ctx, doing, plan.home)
	}, item)
	return nil
}

// planKeys plans that sbd forgets the keys that are stored for the vault; only
// it can ask the keychain.
func (a *app) planKeys(doing string, plan *uninstallPlan, files []homefiles.File) error {
	keys := false
	for _, f := range files {
		keys = keys || f.Known && (f.Name == "vault.db" || strings.HasPrefix(f.Name, "secret.key"))
	}
	if !keys {
		return nil
	}
	program, err := sibling("sbd")
	if err != nil {
		return fail(err, "%s", doing)
	}
	item := &leaving{What: "key", Name: "stored for the vault in " + plan.home, Action: actionRemove}
	plan.add(func(ctx context.Context) error {
		if err := a.forgetKeys(ctx, doing, program, plan.home); err != nil {
			return err
		}
		item.Done = true
		return nil
	}, item)
	return nil
}

// forgetKeys runs `sbd forget`.
func (a *app) forgetKeys(ctx context.Context, doing, program, home string) error {
	ctx, cancel := context.WithTimeout(ctx, keyPatience)
	defer cancel()
	var said, failed bytes.Buffer
	forget := exec.CommandContext(ctx, program, "forget", "--yes", "--home", home)
	forget.Stdout, forget.Stderr = &said, &failed
	err := forget.Run()
	for line := range strings.Lines(said.String()) {
		a.done("%s", strings.TrimRight(line, "\n"))
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		code := exit.ExitCode()
		if code <= 0 {
			code = wire.ExitFailed
		}
		what := "the stored keys could not be removed, and so the vault was not: " + strings.TrimSpace(failed.String())
		return &failure{code: wire.KeyUnavailable, doing: doing, what: what, exit: code, cause: err}
	}
	return fail(err, "%s", doing)
}

// planHome plans that everything known in the home goes, and says what stays.
func planHome(doing string, plan *uninstallPlan, files []homefiles.File) {
	var items []*leaving
	byName := map[string]*leaving{}
	for _, f := range files {
		item := &leaving{What: "file", Name: filepath.Join(plan.home, filepath.FromSlash(f.Name)), Action: actionRemove}
		if f.Dir {
			item.What = "directory"
		}
		if !f.Known {
			item.Action, item.Why = actionLeave, "it is not the broker's"
		}
		byName[f.Name] = item
		items = append(items, item)
	}
	if _, err := os.Lstat(plan.home); err != nil {
		return
	}
	whole := &leaving{What: "directory", Name: plan.home, Action: actionRemove}
	byName["."] = whole
	plan.add(func(context.Context) error {
		left, err := homefiles.Scan(plan.home) // the daemon, as it stopped, and sbd, as it forgot, removed some
		if err != nil {
			return fail(err, "%s", doing)
		}
		_, err = homefiles.Remove(plan.home, left)
		for _, item := range byName {
			if _, stat := os.Lstat(item.Name); errors.Is(stat, fs.ErrNotExist) && item.Action == actionRemove {
				item.Done = true
			} else if item.Action == actionRemove {
				item.Why = "something else is in it"
			}
		}
		return fail(err, "%s", doing)
	}, append(items, whole)...)
}

// planSockets plans that the sockets go, and nothing else of the home.
func planSockets(doing string, plan *uninstallPlan, home string, files []homefiles.File) {
	for _, f := range files {
		if f.Known && strings.HasPrefix(f.Name, "run/") && strings.HasSuffix(f.Name, ".sock") {
			item := &leaving{What: "socket", Name: filepath.Join(home, filepath.FromSlash(f.Name)), Action: actionRemove}
			plan.add(removePath(doing, item), item)
		}
	}
}

// planOtherSockets plans that the sockets outside the home go.
func planOtherSockets(doing string, plan *uninstallPlan, dir string) {
	for _, path := range []string{place.BrokerSocket(dir), place.OperatorSocket(dir)} {
		if info, err := os.Lstat(path); err == nil && info.Mode().Type() == fs.ModeSocket {
			item := &leaving{What: "socket", Name: path, Action: actionRemove}
			plan.add(removePath(doing, item), item)
		}
	}
}
