package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"subjectbroker/cmd/sbctl/internal/service"
	"subjectbroker/cmd/sbctl/internal/ui"
	"subjectbroker/proto/wire"
)

type serviceCmd struct {
	Install   serviceInstallCmd   `cmd:"" help:"Install the daemon, or daemon and gateway, as a service of your user, and start it"`
	Uninstall serviceUninstallCmd `cmd:"" help:"Stop the service and remove it; the home stays"`
	Start     serviceStartCmd     `cmd:"" help:"Start the service"`
	Stop      serviceStopCmd      `cmd:"" help:"Stop the service"`
	Restart   serviceRestartCmd   `cmd:"" help:"Stop and start the service, which ends every run"`
	Status    serviceStatusCmd    `cmd:"" help:"Show what the service manager knows"`
	Logs      serviceLogsCmd      `cmd:"" help:"Show what the daemon said"`
}

// Help is the manual of service.
func (serviceCmd) Help() string {
	return `Keeps sbd, and with --gateway sb-mcp serve, running without a terminal: systemd user
units on Linux, launchd agents on macOS. Without a service manager, run sbd in a
terminal.`
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
	Linger  bool     `help:"Keep the daemon running after you log out (systemd)."`
	Replace bool     `help:"Take the place of a service for another home or program."`
	Gateway bool     `help:"Run sb-mcp serve, too: MCP over HTTP for agents with a key."`
	Listen  string   `placeholder:"ADDRESS:PORT" help:"Where the gateway listens (default: 127.0.0.1:7070, without --unix)."`
	TLSCert string   `name:"tls-cert" placeholder:"FILE" help:"Certificate of the gateway."`
	TLSKey  string   `name:"tls-key" placeholder:"FILE" help:"Its key."`
	Unix    string   `placeholder:"PATH" help:"Socket on which the gateway listens."`
	Host    []string `placeholder:"NAME" help:"Another name under which the gateway is reached; may be repeated." sep:"none"`
}

// Help is the manual of service install.
func (serviceInstallCmd) Help() string {
	return `Says so when the daemon would end at logout; --linger keeps it. Doing it again
changes nothing. With --gateway the gateway is a service beside it, with the options
that are given; without, one that is installed stays as it is.

Examples:
  sbctl service install --linger
  sbctl service install --gateway --listen :7443 --tls-cert c.pem --tls-key k.pem`
}

// gateway is the gateway that the options describe, once sb-mcp has taken them; nil:
// none is.
func (c serviceInstallCmd) gateway(ctx context.Context) (*service.Gateway, error) {
	const doing = "installing the gateway"
	if !c.Gateway {
		if c.Listen+c.TLSCert+c.TLSKey+c.Unix != "" || len(c.Host) > 0 {
			return nil, refuse(doing, "--listen, --unix, --tls-cert, --tls-key and --host are options of a gateway: add --gateway")
		}
		return nil, nil
	}
	program, err := sibling("sb-mcp")
	if err != nil {
		return nil, fail(err, doing)
	}
	g := &service.Gateway{Program: program}
	if c.Listen == "" && c.Unix == "" {
		c.Listen = "127.0.0.1:7070"
	}
	scheme := "http"
	if c.TLSCert != "" {
		scheme = "https"
	}
	var places []string
	for _, option := range []struct{ name, value string }{{"--listen", c.Listen}, {"--unix", c.Unix}, {"--tls-cert", c.TLSCert}, {"--tls-key", c.TLSKey}} {
		if option.value == "" {
			continue
		}
		switch option.name {
		case "--listen":
			places = append(places, scheme+"://"+option.value+"/mcp")
		default: // the service has another working directory
			if option.value, err = filepath.Abs(option.value); err != nil {
				return nil, fail(err, doing)
			}
			if option.name == "--unix" {
				places = append(places, "unix:"+option.value)
			}
		}
		g.Options = append(g.Options, option.name, option.value)
	}
	for _, host := range c.Host {
		g.Options = append(g.Options, "--host", host)
	}
	g.Listens = strings.Join(places, " and ")
	check := exec.CommandContext(ctx, program, append([]string{"serve", "--check"}, g.Options...)...)
	said, err := check.CombinedOutput()
	if err != nil {
		text, _, _ := strings.Cut(strings.TrimSpace(string(said)), "\n")
		return nil, refuse(doing, "%s", strings.TrimPrefix(text, "sb-mcp: "))
	}
	return g, nil
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
	if config.Gateway, err = c.gateway(ctx); err != nil {
		return err
	}
	report, err := service.Install(ctx, config)
	if err != nil {
		return serviceFailure(err, doing)
	}
	if err := service.Start(ctx, config); err != nil {
		return serviceFailure(err, "starting the service")
	}
	return a.printReport(report)
}

type serviceUninstallCmd struct {
	Gateway bool `help:"Remove the gateway alone."`
}

// Help is the manual of service uninstall.
func (serviceUninstallCmd) Help() string {
	return `Examples:
  sbctl service uninstall
  sbctl service uninstall --gateway`
}

// Run removes the service.
func (c serviceUninstallCmd) Run(ctx context.Context, a *app) error {
	config, err := a.serviceConfig()
	if err != nil {
		return err
	}
	config.GatewayOnly = c.Gateway
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
	fields := []ui.Field{
		{Name: "manager", Value: s.Manager},
		{Name: "unit", Value: s.Unit},
		{Name: "installed", Value: yesNo(s.Installed)},
		{Name: "enabled", Value: yesNo(s.Enabled)},
		{Name: "state", Value: s.State},
		{Name: "pid", Value: pid},
		{Name: "daemon", Value: s.Daemon},
		{Name: "home", Value: s.Home},
		{Name: "linger", Value: linger},
	}
	if g := s.Gateway; g != nil {
		pid := ""
		if g.PID != 0 {
			pid = fmt.Sprint(g.PID)
		}
		fields = append(fields, ui.Field{Name: "gateway", Value: g.State}, ui.Field{Name: "gatewayPid", Value: pid}, ui.Field{Name: "listens", Value: g.Listens})
	}
	return a.out.Object(ui.Object{ID: s.State, Fields: fields, Value: s})
}

type serviceLogsCmd struct {
	Follow bool `short:"f" help:"Go on with new lines until interrupted."`
	Lines  int  `short:"n" default:"50" placeholder:"N" help:"How many of the newest lines (default: 50)."`

	Gateway bool `help:"Show what the gateway said."`
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
	config.GatewayOnly = c.Gateway
	err = service.Logs(ctx, config, a.stdout, c.Lines, c.Follow)
	if interrupted(ctx, err) {
		return nil
	}
	return serviceFailure(err, "reading the daemon's log")
}
