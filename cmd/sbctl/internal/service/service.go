// Package service keeps the daemon running without a terminal: as systemd user
// units on Linux, as a launchd agent on macOS. It protects the daemon from its
// surroundings as far as a user's own service manager can (umask, no swap, no
// core dumps, no new privileges), and the operator from a daemon that ends
// unnoticed at logout.
//
// It is no boundary against the operator's own uid, which can change the units,
// and it does not start the daemon by other means where there is no service
// manager. It never uses a terminal.
package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"subjectbroker/proto/place"
)

// Sentinels, for exit codes and hints.
var (
	ErrInvalid      = errors.New("refused input")         // Config
	ErrNoManager    = errors.New("no service manager")    // none that this user can talk to
	ErrNotInstalled = errors.New("service not installed") // hint: service install
	ErrOtherHome    = errors.New("service is installed for another home")
	ErrRunning      = errors.New("a daemon that is not the service already runs")
)

// Config says which daemon is meant, and where its units go.
type Config struct {
	Daemon    string // absolute path of sbd; required to install
	Home      string // absolute home; required
	SocketDir string // absolute; "": run below Home

	Linger  bool // Install: keep the daemon after logout (systemd)
	Replace bool // Install: take the place of a service for another home

	// Gateway of Install is one to run beside the daemon; nil: one that is installed
	// stays as it is.
	Gateway *Gateway
	// GatewayOnly has Uninstall remove the gateway alone, and Logs show its log.
	GatewayOnly bool

	UserHome string              // absolute; "": HOME, else the password database
	Getenv   func(string) string // XDG_CONFIG_HOME is read; nil: os.Getenv
	Platform string              // "linux" or "darwin"; "": the one this runs on
	Run      Runner              // nil: Exec
	UnitDirs []string            // where packages put systemd units, looked at after the user's own; nil: the usual ones
}

// Gateway is "sb-mcp serve" with its options. It starts after the daemon, and goes on
// without it: it refuses everybody then.
type Gateway struct {
	Program string   // absolute path of sb-mcp
	Options []string // of serve, without those that say which daemon
	Listens string   // where, for people
}

// Runner runs a program to its end, with stdout where the caller wants it, and
// returns what it said on stderr in the error.
type Runner func(ctx context.Context, stdout io.Writer, name string, args ...string) error

// Report is what a verb did.
type Report struct {
	Files    []string // written by Install, removed by Uninstall; absolute
	Changed  bool
	Warnings []string // one sentence each
}

// Status is what the service manager knows.
type Status struct {
	Manager   string   `json:"manager"` // "systemd" or "launchd"
	Unit      string   `json:"unit"`    // file of the service
	Installed bool     `json:"installed"`
	Enabled   bool     `json:"enabled"` // starts at login
	State     string   `json:"state"`   // the manager's word: "active", "inactive", "failed", …
	PID       int      `json:"pid,omitempty"`
	Daemon    string   `json:"daemon,omitempty"` // program and home of the installed service
	Home      string   `json:"home,omitempty"`
	Linger    *bool    `json:"linger,omitempty"` // systemd: survives logout; absent: not known
	Warnings  []string `json:"warnings,omitempty"`

	Gateway *GatewayStatus `json:"gateway,omitempty"` // absent: none is installed
}

// GatewayStatus is what the service manager knows of the gateway.
type GatewayStatus struct {
	Unit    string `json:"unit"`
	Enabled bool   `json:"enabled"`
	State   string `json:"state"`
	PID     int    `json:"pid,omitempty"`
	Listens string `json:"listens,omitempty"`
}

// manager is one kind of service manager.
type manager interface {
	install(ctx context.Context) (Report, error)
	uninstall(ctx context.Context) (Report, error)
	start(ctx context.Context) error
	stop(ctx context.Context) error
	restart(ctx context.Context) error
	status(ctx context.Context) (Status, error)
	logs(ctx context.Context, w io.Writer, lines int, follow bool) error
	// installed is the program and home of the installed service; "" if none is.
	installed() (daemon, home string, err error)
	reachable(ctx context.Context) error
}

// Install writes the units and enables them: the daemon starts at the next
// login, and now with Start. Doing it again changes nothing.
//
// Errors: ErrInvalid, ErrNoManager, ErrOtherHome, or what the manager said.
func Install(ctx context.Context, cfg Config) (Report, error) {
	m, err := cfg.manager(true)
	if err != nil {
		return Report{}, err
	}
	if err := m.reachable(ctx); err != nil {
		return Report{}, err
	}
	daemon, home, err := m.installed()
	if err != nil {
		return Report{}, err
	}
	if daemon != "" && !cfg.Replace && home != cfg.Home {
		return Report{}, fmt.Errorf("%w: it runs %s for %s", ErrOtherHome, daemon, home)
	}
	return m.install(ctx)
}

// Uninstall stops the daemon and the gateway and removes the units, or those of the
// gateway alone. The home stays as it is.
func Uninstall(ctx context.Context, cfg Config) (Report, error) {
	m, err := cfg.ready(ctx)
	if err != nil {
		return Report{}, err
	}
	return m.uninstall(ctx)
}

// Start starts the installed service and waits until it is ready.
func Start(ctx context.Context, cfg Config) error {
	m, err := cfg.ready(ctx)
	if err != nil {
		return err
	}
	return m.start(ctx)
}

// Stop stops the service, and the sockets that would start it again.
func Stop(ctx context.Context, cfg Config) error {
	m, err := cfg.ready(ctx)
	if err != nil {
		return err
	}
	return m.stop(ctx)
}

// Restart stops and starts the service, which ends every run.
func Restart(ctx context.Context, cfg Config) error {
	m, err := cfg.ready(ctx)
	if err != nil {
		return err
	}
	return m.restart(ctx)
}

// Inspect asks the service manager. A service that is not installed is no
// error, and neither is a machine without a service manager for this user: that
// is a Status with a warning.
func Inspect(ctx context.Context, cfg Config) (Status, error) {
	m, err := cfg.manager(false)
	if err != nil {
		return Status{}, err
	}
	return m.status(ctx)
}

// Logs writes the newest lines of the daemon's log to w; with follow it goes on
// until ctx ends.
func Logs(ctx context.Context, cfg Config, w io.Writer, lines int, follow bool) error {
	m, err := cfg.ready(ctx)
	if err != nil {
		return err
	}
	return m.logs(ctx, w, lines, follow)
}

// ready is the manager of a service that is installed.
func (cfg Config) ready(ctx context.Context) (manager, error) {
	m, err := cfg.manager(false)
	if err != nil {
		return nil, err
	}
	daemon, _, err := m.installed()
	if err != nil {
		return nil, err
	}
	if daemon == "" {
		return nil, ErrNotInstalled
	}
	return m, m.reachable(ctx)
}

func (cfg Config) manager(installing bool) (manager, error) {
	if cfg.Platform == "" {
		cfg.Platform = runtime.GOOS
	}
	if cfg.Getenv == nil {
		cfg.Getenv = os.Getenv
	}
	if cfg.Run == nil {
		cfg.Run = Exec
	}
	if cfg.UserHome == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return nil, fmt.Errorf("%w: finding your home directory: %w", ErrInvalid, err)
		}
		cfg.UserHome = home
	}
	if !filepath.IsAbs(cfg.Home) || cfg.SocketDir != "" && !filepath.IsAbs(cfg.SocketDir) {
		return nil, fmt.Errorf("%w: Config.Home and Config.SocketDir must be absolute paths", ErrInvalid)
	}
	if installing && !filepath.IsAbs(cfg.Daemon) {
		return nil, fmt.Errorf("%w: Config.Daemon must be the absolute path of sbd", ErrInvalid)
	}
	words := []string{cfg.Daemon, cfg.Home, cfg.SocketDir}
	if g := cfg.Gateway; g != nil {
		if !filepath.IsAbs(g.Program) {
			return nil, fmt.Errorf("%w: Gateway.Program must be the absolute path of sb-mcp", ErrInvalid)
		}
		words = append(append(words, g.Program, g.Listens), g.Options...)
	}
	for _, path := range words {
		if i := strings.IndexFunc(path, func(r rune) bool { return r < 0x20 || r == 0x7f }); i >= 0 {
			return nil, fmt.Errorf("%w: a control character in %q", ErrInvalid, path)
		}
	}
	if cfg.SocketDir == "" {
		cfg.SocketDir = filepath.Join(cfg.Home, "run")
	}
	for _, socket := range []string{place.BrokerSocket(cfg.SocketDir), place.OperatorSocket(cfg.SocketDir)} {
		if err := place.CheckSocketPath(socket); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
		}
	}
	switch cfg.Platform {
	case "linux":
		// What systemd refuses in a program's path.
		programs := []string{cfg.Daemon}
		if cfg.Gateway != nil {
			programs = append(programs, cfg.Gateway.Program)
		}
		for _, program := range programs {
			if strings.ContainsAny(program, "\"'\\") {
				return nil, fmt.Errorf("%w: systemd cannot start a program with quotes or backslashes in its path, %s", ErrInvalid, program)
			}
		}
		return &systemd{cfg}, nil
	case "darwin":
		return &launchd{cfg}, nil
	}
	return nil, fmt.Errorf("%w: nothing is known about those of %s", ErrNoManager, cfg.Platform)
}

// daemonArgs are the arguments of sbd; what is the default is left out.
func (cfg Config) daemonArgs() []string {
	return cfg.whichDaemon("--socket-dir")
}

// gatewayArgs are the arguments of sb-mcp.
func (cfg Config) gatewayArgs() []string {
	return slices.Concat([]string{"serve"}, cfg.Gateway.Options, cfg.whichDaemon("--socket"))
}

// whichDaemon are the flags that say which daemon is meant, of which the one for the
// sockets has another name in each program.
func (cfg Config) whichDaemon(socketFlag string) (args []string) {
	if usual, err := place.DefaultHome(); err != nil || cfg.Home != usual {
		args = append(args, "--home", cfg.Home)
	}
	if cfg.SocketDir != filepath.Join(cfg.Home, "run") {
		args = append(args, socketFlag, cfg.SocketDir)
	}
	return args
}

// gatewayFailed is what there is to say of a gateway that does not run.
func gatewayFailed(g *GatewayStatus) string {
	return fmt.Sprintf("the gateway is %s; \"sbctl service logs --gateway\" says why", g.State)
}

// Exec is the Runner that really runs programs.
func Exec(ctx context.Context, stdout io.Writer, name string, args ...string) error {
	var said strings.Builder
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = stdout, &said
	err := cmd.Run()
	if err == nil {
		return nil
	}
	if text := strings.TrimSpace(said.String()); text != "" {
		line, _, _ := strings.Cut(text, "\n")
		return fmt.Errorf("%s: %s: %w", name, line, err)
	}
	return fmt.Errorf("%s: %w", name, err)
}
