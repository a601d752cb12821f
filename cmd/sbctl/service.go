package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"subjectbroker/cmd/sbctl/internal/service"
	"subjectbroker/cmd/sbctl/internal/ui"
	"subjectbroker/proto/wire"
)

type serviceCmd struct {
	Install   serviceInstallCmd   `cmd:"" help:"Install the daemon as a service of your user, and start it"`
	Uninstall serviceUninstallCmd `cmd:"" help:"Stop the service and remove it; the home stays"`
	Start     serviceStartCmd     `cmd:"" help:"Start the service"`
	Stop      serviceStopCmd      `cmd:"" help:"Stop the service"`
	Restart   serviceRestartCmd   `cmd:"" help:"Stop and start the service, which ends every run"`
	Status    serviceStatusCmd    `cmd:"" help:"Show what the service manager knows"`
	Logs      serviceLogsCmd      `cmd:"" help:"Show what the daemon said"`
}

// Help is the manual of service.
func (serviceCmd) Help() string {
	return `Keeps sbd running without a terminal: systemd user units on Linux, a launchd agent
on macOS. Without a service manager, run sbd in a terminal.`
}

func (a *app) serviceConfig() (service.Config, error) {
	places, err := a.places()
	if err != nil {
		return service.Config{}, err
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return service.Config{}, fail(err, "finding your home directory")
	}
	return service.Config{Home: places.Home, SocketDir: places.SocketDir, UserHome: home, Getenv: os.Getenv}, nil
}

// serviceFailure is an error of the service manager as the operator sees it.
func serviceFailure(err error, doing string) error {
	if err == nil {
		return nil
	}
	failed := &failure{code: wire.InternalError, doing: doing, what: err.Error(), exit: wire.ExitFailed, cause: err}
	switch {
	case errors.Is(err, service.ErrInvalid):
		failed.code, failed.exit = wire.InvalidArgument, wire.ExitUsage
	case errors.Is(err, service.ErrNoManager):
		failed.code, failed.hint = wire.PlatformUnsupported, "sbd"
	case errors.Is(err, service.ErrNotInstalled):
		failed.hint = "sbctl service install"
	case errors.Is(err, service.ErrRunning):
		failed.code, failed.exit, failed.hint = wire.AlreadyRunning, wire.ExitBusy, "sbctl status"
	case errors.Is(err, service.ErrOtherHome):
		failed.code, failed.exit, failed.hint = wire.InvalidArgument, wire.ExitUsage, "sbctl service install --replace"
	}
	return failed
}

type reportView struct {
	Files    []string `json:"files"`
	Changed  bool     `json:"changed"`
	Warnings []string `json:"warnings"`
}

func (a *app) printReport(report service.Report) error {
	for _, warning := range report.Warnings {
		a.say("warning: %s", warning)
	}
	return a.out.Object(ui.Object{
		ID: strings.Join(report.Files, "\n"),
		Fields: []ui.Field{
			{Name: "files", Value: strings.Join(report.Files, ", ")},
			{Name: "changed", Value: yesNo(report.Changed)},
		},
		Value: reportView{append([]string{}, report.Files...), report.Changed, append([]string{}, report.Warnings...)},
	})
}

type serviceInstallCmd struct {
	Linger  bool `help:"Keep the daemon running after you log out (systemd)."`
	Replace bool `help:"Take the place of a service for another home or program."`
}

// Help is the manual of service install.
func (serviceInstallCmd) Help() string {
	return `Says so when the daemon would end at logout; --linger keeps it. Doing it again
changes nothing.

Examples:
  sbctl service install --linger`
}

// Run installs and starts the service.
func (c serviceInstallCmd) Run(ctx context.Context, a *app) error {
	const doing = "installing the service"
	config, err := a.serviceConfig()
	if err != nil {
		return err
	}
	if config.Daemon, err = sibling("sbd"); err != nil {
		return fail(err, doing)
	}
	config.Linger, config.Replace = c.Linger, c.Replace
	report, err := service.Install(ctx, config)
	if err != nil {
		return serviceFailure(err, doing)
	}
	if err := service.Start(ctx, config); err != nil {
		return serviceFailure(err, "starting the service")
	}
	return a.printReport(report)
}

type serviceUninstallCmd struct{}

// Help is the manual of service uninstall.
func (serviceUninstallCmd) Help() string {
	return `Examples:
  sbctl service uninstall`
}

// Run removes the service.
func (serviceUninstallCmd) Run(ctx context.Context, a *app) error {
	config, err := a.serviceConfig()
	if err != nil {
		return err
	}
	report, err := service.Uninstall(ctx, config)
	if err != nil {
		return serviceFailure(err, "removing the service")
	}
	return a.printReport(report)
}

type serviceStartCmd struct{}

// Help is the manual of service start.
func (serviceStartCmd) Help() string {
	return `Returns when the daemon is ready.

Examples:
  sbctl service start`
}

// Run starts the service.
func (serviceStartCmd) Run(ctx context.Context, a *app) error {
	return a.serviceVerb(ctx, "starting the service", service.Start)
}

type serviceStopCmd struct{}

// Help is the manual of service stop.
func (serviceStopCmd) Help() string {
	return `Also stops the sockets that would start it again.

Examples:
  sbctl service stop`
}

// Run stops the service.
func (serviceStopCmd) Run(ctx context.Context, a *app) error {
	return a.serviceVerb(ctx, "stopping the service", service.Stop)
}

type serviceRestartCmd struct{}

// Help is the manual of service restart.
func (serviceRestartCmd) Help() string {
	return `Examples:
  sbctl service restart`
}

// Run restarts the service.
func (serviceRestartCmd) Run(ctx context.Context, a *app) error {
	return a.serviceVerb(ctx, "restarting the service", service.Restart)
}

func (a *app) serviceVerb(ctx context.Context, doing string, verb func(context.Context, service.Config) error) error {
	config, err := a.serviceConfig()
	if err != nil {
		return err
	}
	if err := verb(ctx, config); err != nil {
		return serviceFailure(err, doing)
	}
	return a.printService(ctx, config)
}

type serviceStatusCmd struct{}

// Help is the manual of service status.
func (serviceStatusCmd) Help() string {
	return `What the daemon knows of itself is in "sbctl status".

Examples:
  sbctl service status`
}

// Run shows the service.
func (serviceStatusCmd) Run(ctx context.Context, a *app) error {
	config, err := a.serviceConfig()
	if err != nil {
		return err
	}
	return a.printService(ctx, config)
}

func (a *app) printService(ctx context.Context, config service.Config) error {
	s, err := service.Inspect(ctx, config)
	if err != nil {
		return serviceFailure(err, "asking the service manager")
	}
	for _, warning := range s.Warnings {
		a.done("warning: %s", warning)
	}
	pid, linger := "", ""
	if s.PID != 0 {
		pid = fmt.Sprint(s.PID)
	}
	if s.Linger != nil {
		linger = yesNo(*s.Linger)
	}
	return a.out.Object(ui.Object{
		ID: s.State,
		Fields: []ui.Field{
			{Name: "manager", Value: s.Manager},
			{Name: "unit", Value: s.Unit},
			{Name: "installed", Value: yesNo(s.Installed)},
			{Name: "enabled", Value: yesNo(s.Enabled)},
			{Name: "state", Value: s.State},
			{Name: "pid", Value: pid},
			{Name: "daemon", Value: s.Daemon},
			{Name: "home", Value: s.Home},
			{Name: "linger", Value: linger},
		},
		Value: s,
	})
}

type serviceLogsCmd struct {
	Follow bool `short:"f" help:"Go on with new lines until interrupted."`
	Lines  int  `short:"n" default:"50" placeholder:"N" help:"How many of the newest lines (default: 50)."`
}

// Help is the manual of service logs.
func (serviceLogsCmd) Help() string {
	return `What the daemon said about its own work; who read what is in "sbctl audit".

Examples:
  sbctl service logs -f`
}

// Run shows the daemon's log.
func (c serviceLogsCmd) Run(ctx context.Context, a *app) error {
	config, err := a.serviceConfig()
	if err != nil {
		return err
	}
	err = service.Logs(ctx, config, a.stdout, c.Lines, c.Follow)
	if interrupted(ctx, err) {
		return nil
	}
	return serviceFailure(err, "reading the daemon's log")
}
