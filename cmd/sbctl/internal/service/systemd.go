package service

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"subjectbroker/proto/place"
)

// Names of the units. One socket unit for each socket: a unit gives all its
// sockets one name, and the daemon tells them apart by name.
const (
	serviceUnit  = "subject-broker.service"
	brokerUnit   = "subject-broker-broker.socket"
	operatorUnit = "subject-broker-operator.socket"
	gatewayUnit  = "subject-broker-gateway.service"
)

// systemd runs the daemon as units of the user's own manager.
type systemd struct{ cfg Config }

func (s *systemd) dir() string {
	base := filepath.Join(s.cfg.UserHome, ".config")
	if dir := s.cfg.Getenv("XDG_CONFIG_HOME"); filepath.IsAbs(dir) {
		base = dir
	}
	return filepath.Join(base, "systemd", "user")
}

func (s *systemd) unit() string { return filepath.Join(s.dir(), serviceUnit) }

func (s *systemd) files() []textFile {
	return []textFile{
		{filepath.Join(s.dir(), brokerUnit), s.socketText("broker", place.BrokerSocket(s.cfg.SocketDir))},
		{filepath.Join(s.dir(), operatorUnit), s.socketText("operator", place.OperatorSocket(s.cfg.SocketDir))},
		{s.unit(), s.serviceText()},
	}
}

func (s *systemd) gatewayFile() string { return filepath.Join(s.dir(), gatewayUnit) }

// units are those that run: the daemon's, and the gateway's if one is installed.
func (s *systemd) units(ctx context.Context) []string {
	units := []string{brokerUnit, operatorUnit, serviceUnit}
	if s.hasGateway(ctx) {
		units = append(units, gatewayUnit)
	}
	return units
}

// hasGateway says whether a gateway is to run. A package puts its unit where every
// user has it: that alone does not say so.
func (s *systemd) hasGateway(ctx context.Context) bool {
	path, _, err := s.find(gatewayUnit)
	return err == nil && path != "" && (path == s.gatewayFile() || s.ctl(ctx, "is-enabled", "--quiet", gatewayUnit) == nil)
}

// listensMark is where the unit of a gateway says where that listens.
const listensMark = "X-SubjectBrokerListens="

// gatewayText is the unit of the gateway. It starts no other program and needs no
// files but the certificate's, so that more is taken from it than from the daemon;
// what would bring a user namespace along is left out as there: the daemon looks at
// who connects.
func (s *systemd) gatewayText() string {
	return `# Written by "sbctl service install"; changes belong into a drop-in ("systemctl --user edit ` + gatewayUnit + `").
[Unit]
Description=SubjectBroker gateway
Wants=` + brokerUnit + " " + operatorUnit + " " + serviceUnit + `
After=` + brokerUnit + " " + operatorUnit + " " + serviceUnit + `
StartLimitIntervalSec=60
StartLimitBurst=5

[Service]
Type=exec
ExecStart=` + commandLine(s.cfg.Gateway.Program, s.cfg.gatewayArgs()) + `
ExecReload=/bin/kill -HUP $MAINPID
Restart=on-failure
RestartSec=2
# Refused options: trying again cannot help.
RestartPreventExitStatus=2
# It answers what is in flight first.
TimeoutStopSec=10
UMask=0077
LimitCORE=0
MemorySwapMax=0
NoNewPrivileges=yes
LockPersonality=yes
MemoryDenyWriteExecute=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native

[Install]
WantedBy=default.target

[X-SubjectBroker]
` + listensMark + unitEscape(s.cfg.Gateway.Listens) + "\n"
}

// homeMark is how an installed unit remembers its home when the command line
// does not name it. systemd ignores sections and keys that start with X-.
const homeMark = "X-SubjectBrokerHome="

// serviceText is the service unit. What it does not say is on purpose: a mount
// namespace (ProtectSystem=, PrivateTmp=, …) in a user's manager brings a user
// namespace with it, in which the daemon would no longer tell uids apart, nor
// see the registered files of /tmp; and limits on system calls, address
// families or namespaces would pass on to the servers the daemon hosts. The
// session bus, and with it the keychain, stays reachable.
func (s *systemd) serviceText() string {
	return `# Written by "sbctl service install"; changes belong into a drop-in ("systemctl --user edit ` + serviceUnit + `").
[Unit]
Description=SubjectBroker daemon
Requires=` + brokerUnit + " " + operatorUnit + `
After=` + brokerUnit + " " + operatorUnit + `
StartLimitIntervalSec=60
StartLimitBurst=5

[Service]
Type=notify
NotifyAccess=main
ExecStart=` + commandLine(s.cfg.Daemon, s.cfg.daemonArgs()) + `
ExecReload=/bin/kill -HUP $MAINPID
Restart=on-failure
RestartSec=2
# Refused input, a missing or wrong key, a failed integrity check, a busy home: trying again cannot help.
RestartPreventExitStatus=2 3 4 5 6
# A keychain may ask a person first.
TimeoutStartSec=90
TimeoutStopSec=20
KillMode=mixed
UMask=0077
LimitCORE=0
MemorySwapMax=0
NoNewPrivileges=yes
LockPersonality=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes

[Install]
WantedBy=default.target

[X-SubjectBroker]
` + homeMark + unitEscape(s.cfg.Home) + "\n"
}

func (s *systemd) socketText(name, path string) string {
	return `# Written by "sbctl service install".
[Unit]
Description=SubjectBroker ` + name + ` socket

[Socket]
ListenStream=` + unitEscape(path) + `
FileDescriptorName=` + name + `
Service=` + serviceUnit + `
SocketMode=0600
DirectoryMode=0700
Backlog=128
RemoveOnStop=yes

[Install]
WantedBy=sockets.target
`
}

// unitEscape keeps systemd from expanding specifiers.
func unitEscape(text string) string { return strings.ReplaceAll(text, "%", "%%") }

// commandLine starts a program. systemd expands no variables in its own path.
func commandLine(program string, args []string) string {
	words := []string{`"` + unitEscape(program) + `"`}
	for _, word := range args {
		words = append(words, unitWord(word))
	}
	return strings.Join(words, " ")
}

// unitWord is one argument of a command line.
func unitWord(word string) string {
	word = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "$", "$$").Replace(unitEscape(word))
	if strings.ContainsAny(word, " '\";\\") || word == "" {
		return `"` + word + `"`
	}
	return word
}

func (s *systemd) ctl(ctx context.Context, args ...string) error {
	return s.cfg.Run(ctx, io.Discard, "systemctl", append([]string{"--user", "--no-ask-password"}, args...)...)
}

func (s *systemd) ask(ctx context.Context, name string, args ...string) (string, error) {
	var out bytes.Buffer
	err := s.cfg.Run(ctx, &out, name, args...)
	return strings.TrimSpace(out.String()), err
}

func (s *systemd) reachable(ctx context.Context) error {
	// "show" succeeds whatever state the manager is in.
	if err := s.ctl(ctx, "show", "--property=Version"); err != nil {
		if errors.Is(err, exec.ErrNotFound) {
			return fmt.Errorf("%w: systemctl is not on this machine; run sbd yourself", ErrNoManager)
		}
		return fmt.Errorf("%w: %w; log in as yourself, or run sbd yourself", ErrNoManager, err)
	}
	return nil
}

// packageDirs are where packages put units for every user.
var packageDirs = []string{"/etc/systemd/user", "/usr/local/lib/systemd/user", "/usr/lib/systemd/user"}

// find is the unit that systemd would take, and its text; "" if there is none.
func (s *systemd) find(unit string) (path, text string, err error) {
	dirs := s.cfg.UnitDirs
	if dirs == nil {
		dirs = packageDirs
	}
	for _, dir := range append([]string{s.dir()}, dirs...) {
		path := filepath.Join(dir, unit)
		text, err := read(path)
		if err != nil || text != "" {
			return path, text, err
		}
	}
	return "", "", nil
}

func (s *systemd) installed() (daemon, home string, err error) {
	path, text, err := s.find(serviceUnit)
	if err != nil || text == "" {
		return "", "", err
	}
	return s.parse(path, text)
}

// parse reads program and home from a unit as serviceText writes it.
func (s *systemd) parse(path, text string) (daemon, home string, err error) {
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if words, found := strings.CutPrefix(line, `ExecStart="`); found {
			daemon, _, _ = strings.Cut(words, `"`)
		}
		if value, found := strings.CutPrefix(line, homeMark); found {
			home = value
		}
	}
	if daemon == "" || home == "" {
		return "", "", fmt.Errorf("%w: %s was not written by sbctl", ErrOtherHome, path)
	}
	plain := strings.NewReplacer("%%", "%", "%h", s.cfg.UserHome)
	return plain.Replace(daemon), plain.Replace(home), nil
}

func (s *systemd) install(ctx context.Context) (Report, error) {
	var r Report
	files := s.files()
	if s.cfg.Gateway != nil {
		files = append(files, textFile{s.gatewayFile(), s.gatewayText()})
	}
	written, err := writeAll(files)
	r.Files, r.Changed = written, len(written) > 0
	if err != nil {
		return r, err
	}
	if err := s.ctl(ctx, "daemon-reload"); err != nil {
		return r, fmt.Errorf("reloading the service manager: %w", err)
	}
	if err := s.ctl(ctx, append([]string{"enable", "--quiet"}, s.units(ctx)...)...); err != nil {
		return r, fmt.Errorf("enabling the service: %w", err)
	}
	if slices.Contains(written, s.gatewayFile()) { // one that runs has other options
		if err := s.ctl(ctx, "try-restart", gatewayUnit); err != nil {
			return r, fmt.Errorf("restarting the gateway: %w", err)
		}
	}
	if s.cfg.Linger {
		if err := s.cfg.Run(ctx, io.Discard, "loginctl", "--no-ask-password", "enable-linger", strconv.Itoa(os.Getuid())); err != nil {
			return r, fmt.Errorf("keeping the service after logout: %w", err)
		}
	}
	r.Warnings = s.lingerWarnings(s.linger(ctx))
	return r, nil
}

// linger asks whether the user's services survive logout; nil: not known.
func (s *systemd) linger(ctx context.Context) *bool {
	word, err := s.ask(ctx, "loginctl", "show-user", strconv.Itoa(os.Getuid()), "--property=Linger", "--value")
	if err != nil || word != "yes" && word != "no" {
		return nil
	}
	yes := word == "yes"
	return &yes
}

func (s *systemd) lingerWarnings(linger *bool) []string {
	switch {
	case linger == nil:
		return []string{"it is not known whether the daemon would survive your logout: loginctl does not say"}
	case !*linger:
		return []string{"the daemon ends when you log out for the last time; \"sbctl service install --linger\" keeps it"}
	}
	return nil
}

func (s *systemd) uninstall(ctx context.Context) (Report, error) {
	var r Report
	units, files := s.units(ctx), append(s.files(), textFile{path: s.gatewayFile()})
	if s.cfg.GatewayOnly {
		if !slices.Contains(units, gatewayUnit) {
			return r, nil
		}
		units, files = []string{gatewayUnit}, files[len(files)-1:]
	}
	if err := s.ctl(ctx, append([]string{"disable", "--quiet", "--now"}, units...)...); err != nil {
		return r, fmt.Errorf("disabling the service: %w", err)
	}
	removed, err := removeAll(files)
	r.Files, r.Changed = removed, len(removed) > 0
	if err != nil {
		return r, err
	}
	if err := s.ctl(ctx, "daemon-reload"); err != nil {
		return r, fmt.Errorf("reloading the service manager: %w", err)
	}
	return r, nil
}

func (s *systemd) start(ctx context.Context) error {
	// systemd would take the path of a living socket away from a daemon that
	// somebody started by hand, and then fail on the home's lock.
	if s.ctl(ctx, "is-active", "--quiet", operatorUnit) != nil && listening(ctx, place.OperatorSocket(s.cfg.SocketDir)) {
		return fmt.Errorf("%w for %s; stop that one first", ErrRunning, s.cfg.Home)
	}
	return s.ctl(ctx, append([]string{"start"}, s.units(ctx)...)...)
}

func listening(ctx context.Context, path string) bool {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", path)
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

func (s *systemd) stop(ctx context.Context) error {
	// The sockets first and in one go, or the next client would start it again.
	return s.ctl(ctx, append([]string{"stop"}, s.units(ctx)...)...)
}

func (s *systemd) restart(ctx context.Context) error {
	// The sockets stay: clients wait in them meanwhile.
	return s.ctl(ctx, append([]string{"restart"}, s.units(ctx)[2:]...)...)
}

func (s *systemd) status(ctx context.Context) (Status, error) {
	st := Status{Manager: "systemd", Unit: s.unit(), State: "inactive"}
	var err error
	if st.Daemon, st.Home, err = s.installed(); err != nil {
		return st, err
	}
	st.Installed = st.Daemon != ""
	if err := s.reachable(ctx); err != nil {
		st.State = "unknown"
		st.Warnings = append(st.Warnings, err.Error())
		return st, nil
	}
	known, err := s.show(ctx, serviceUnit)
	if err != nil {
		return st, err
	}
	st.State, st.PID, st.Enabled = known.state, known.pid, known.enabled
	const reload = "the unit changed on disk; \"sbctl service install\" makes the service manager read it"
	if known.changed {
		st.Warnings = append(st.Warnings, reload)
	}
	if !st.Installed {
		return st, nil
	}
	if s.hasGateway(ctx) {
		path, text, err := s.find(gatewayUnit)
		if err != nil {
			return st, err
		}
		known, err := s.show(ctx, gatewayUnit)
		if err != nil {
			return st, err
		}
		st.Gateway = &GatewayStatus{Unit: path, State: known.state, PID: known.pid, Enabled: known.enabled}
		if _, mark, found := strings.Cut(text, listensMark); found {
			line, _, _ := strings.Cut(mark, "\n")
			st.Gateway.Listens = strings.ReplaceAll(line, "%%", "%")
		}
		if known.changed {
			st.Warnings = append(st.Warnings, reload)
		}
		if st.State == "active" && known.state != "active" {
			st.Warnings = append(st.Warnings, gatewayFailed(st.Gateway))
		}
	}
	if st.Home != s.cfg.Home {
		st.Warnings = append(st.Warnings, fmt.Sprintf("the service is for another home, %s", st.Home))
	}
	st.Linger = s.linger(ctx)
	st.Warnings = append(st.Warnings, s.lingerWarnings(st.Linger)...)
	return st, nil
}

// shown is what systemd says of a unit.
type shown struct {
	state            string
	pid              int
	enabled, changed bool // changed: on disk, and systemd has not read it
}

func (s *systemd) show(ctx context.Context, unit string) (known shown, err error) {
	text, err := s.ask(ctx, "systemctl", "--user", "show", unit, "--property=ActiveState,MainPID,UnitFileState,NeedDaemonReload")
	known.state = "inactive"
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		switch key {
		case "ActiveState":
			known.state = value
		case "MainPID":
			known.pid, _ = strconv.Atoi(value)
		case "UnitFileState":
			known.enabled = value == "enabled"
		case "NeedDaemonReload":
			known.changed = value == "yes"
		}
	}
	return known, err
}

func (s *systemd) logs(ctx context.Context, w io.Writer, lines int, follow bool) error {
	unit := serviceUnit
	if s.cfg.GatewayOnly {
		unit = gatewayUnit
	}
	args := []string{"--user", "--unit=" + unit, "--no-pager", "--lines=" + strconv.Itoa(lines), "--output=cat"}
	if follow {
		args = append(args, "--follow")
	}
	if err := s.cfg.Run(ctx, w, "journalctl", args...); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}
