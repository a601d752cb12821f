package service_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"subjectbroker/cmd/sbctl/internal/service"
)

// fake stands for the service manager's programs.
type fake struct {
	calls   []string
	answers map[string]string // by the whole command line
	fails   map[string]error
}

func (f *fake) run(_ context.Context, stdout io.Writer, name string, args ...string) error {
	line := strings.Join(append([]string{name}, args...), " ")
	f.calls = append(f.calls, line)
	if err := f.fails[line]; err != nil {
		return err
	}
	_, err := io.WriteString(stdout, f.answers[line])
	return err
}

// desk is an operator's home directory with a faked service manager.
func desk(t *testing.T, platform string) (service.Config, *fake) {
	t.Helper()
	home := t.TempDir()
	t.Setenv("HOME", home)
	f := &fake{answers: map[string]string{}, fails: map[string]error{}}
	return service.Config{
		Daemon: "/opt/subject broker/sbd", Home: filepath.Join(home, "100%"), UserHome: home,
		Getenv: func(string) string { return "" }, Platform: platform, Run: f.run,
	}, f
}

func lingerAnswer(f *fake, word string) {
	f.answers[fmt.Sprintf("loginctl show-user %d --property=Linger --value", os.Getuid())] = word + "\n"
}

const ctl = "systemctl --user --no-ask-password "

var units = "subject-broker-broker.socket subject-broker-operator.socket subject-broker.service"

func TestSystemdInstallAndUninstall(t *testing.T) {
	cfg, f := desk(t, "linux")
	lingerAnswer(f, "no")
	report, err := service.Install(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(cfg.UserHome, ".config", "systemd", "user")
	want := []string{filepath.Join(dir, "subject-broker-broker.socket"), filepath.Join(dir, "subject-broker-operator.socket"), filepath.Join(dir, "subject-broker.service")}
	if diff := cmp.Diff(want, report.Files); diff != "" {
		t.Error(diff)
	}
	if len(report.Warnings) != 1 || !strings.Contains(report.Warnings[0], "ends when you log out") {
		t.Errorf("warnings: %q", report.Warnings)
	}
	calls := []string{ctl + "show --property=Version", ctl + "daemon-reload", ctl + "enable --quiet " + units, f.calls[len(f.calls)-1]}
	if diff := cmp.Diff(calls, f.calls); diff != "" {
		t.Error(diff)
	}
	if again, err := service.Install(t.Context(), cfg); err != nil || again.Changed {
		t.Errorf("a second time: %+v, %v", again, err)
	}
	other := cfg
	other.Home = filepath.Join(cfg.UserHome, "other")
	if _, err := service.Install(t.Context(), other); !errors.Is(err, service.ErrOtherHome) {
		t.Errorf("another home: %v", err)
	}
	f.calls = nil
	gone, err := service.Uninstall(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, gone.Files); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{ctl + "show --property=Version", ctl + "disable --quiet --now " + units, ctl + "daemon-reload"}, f.calls); diff != "" {
		t.Error(diff)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	if err := service.Start(t.Context(), cfg); !errors.Is(err, service.ErrNotInstalled) {
		t.Errorf("starting what is not installed: %v", err)
	}
}

func TestSystemdUnitsSayWhatTheyMust(t *testing.T) {
	cfg, _ := desk(t, "linux")
	if _, err := service.Install(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(cfg.UserHome, ".config", "systemd", "user")
	for name, lines := range map[string][]string{
		"subject-broker.service": {
			"Type=notify", "NotifyAccess=main", "UMask=0077", "MemorySwapMax=0", "LimitCORE=0", "KillMode=mixed", "NoNewPrivileges=yes",
			`ExecStart="/opt/subject broker/sbd" --home ` + strings.ReplaceAll(cfg.Home, "%", "%%"),
		},
		"subject-broker-broker.socket": {
			"ListenStream=" + strings.ReplaceAll(cfg.Home, "%", "%%") + "/run/broker/broker.sock", "FileDescriptorName=broker", "SocketMode=0600", "DirectoryMode=0700", "Service=subject-broker.service",
		},
		"subject-broker-operator.socket": {
			"ListenStream=" + strings.ReplaceAll(cfg.Home, "%", "%%") + "/run/operator/operator.sock", "FileDescriptorName=operator", "SocketMode=0600", "DirectoryMode=0700", "Service=subject-broker.service",
		},
	} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range lines {
			if !strings.Contains("\n"+string(text), "\n"+line+"\n") {
				t.Errorf("%s lacks %q:\n%s", name, line, text)
			}
		}
	}
	st, err := service.Inspect(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if !st.Installed || st.Daemon != cfg.Daemon || st.Home != cfg.Home {
		t.Errorf("read back: %+v", st)
	}
}

// TestSystemdVerify has systemd itself read the units.
func TestSystemdVerify(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("suite left out: units read by systemd: needs systemd-analyze")
	}
	cfg, _ := desk(t, "linux")
	// It looks for the program, too.
	cfg.Home += ` "a" $b\c`
	cfg.Daemon = filepath.Join(t.TempDir(), `s b 100%$d`)
	if err := os.WriteFile(cfg.Daemon, []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	cfg = withGateway(cfg)
	cfg.Gateway.Program = cfg.Daemon
	report, err := service.Install(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), analyze, append([]string{"--user", "--man=no", "verify"}, report.Files...)...)
	cmd.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+t.TempDir())
	out, err := cmd.CombinedOutput()
	if err != nil || len(out) > 0 {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
	if st, err := service.Inspect(t.Context(), cfg); err != nil || st.Daemon != cfg.Daemon {
		t.Errorf("read back %q, want %q (%v)", st.Daemon, cfg.Daemon, err)
	}
}

// packaging is where the units for packages lie.
const packaging = "../../../../packaging/systemd"

// TestPackagedUnits keeps the units for packages equal to those that Install
// writes, but for places, and has them recognised where a package puts them.
func TestPackagedUnits(t *testing.T) {
	cfg, _ := desk(t, "linux")
	cfg.Daemon, cfg.Home = "/usr/bin/sbd", filepath.Join(cfg.UserHome, ".local", "state", "subject-broker")
	cfg.Gateway = &service.Gateway{Program: "/usr/bin/sb-mcp", Options: []string{"--listen", "127.0.0.1:7070"}, Listens: "http://127.0.0.1:7070/mcp"}
	report, err := service.Install(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range report.Files {
		ours, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		_, want, _ := strings.Cut(strings.ReplaceAll(string(ours), cfg.UserHome, "%h"), "\n")
		packaged, err := os.ReadFile(filepath.Join(packaging, filepath.Base(file)))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, string(packaged)); diff != "" {
			t.Errorf("%s: %s", filepath.Base(file), diff)
		}
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
	cfg.UnitDirs = []string{packaging}
	if st, err := service.Inspect(t.Context(), cfg); err != nil || !st.Installed || st.Daemon != cfg.Daemon || st.Home != cfg.Home {
		t.Errorf("from a package: %+v, %v", st, err)
	}
}

func TestSystemdVerbs(t *testing.T) {
	cfg, f := desk(t, "linux")
	cfg.Linger = true
	lingerAnswer(f, "yes")
	report, err := service.Install(t.Context(), cfg)
	if err != nil || len(report.Warnings) > 0 {
		t.Fatalf("%+v, %v", report, err)
	}
	if want := fmt.Sprintf("loginctl --no-ask-password enable-linger %d", os.Getuid()); f.calls[3] != want {
		t.Errorf("called %q, want %q", f.calls[3], want)
	}
	show := ctl + "show --property=Version"
	for _, test := range []struct {
		name string
		verb func() error
		want []string
	}{
		{"start", func() error { return service.Start(t.Context(), cfg) }, []string{show, ctl + "is-active --quiet subject-broker-operator.socket", ctl + "start " + units}},
		{"stop", func() error { return service.Stop(t.Context(), cfg) }, []string{show, ctl + "stop " + units}},
		{"restart", func() error { return service.Restart(t.Context(), cfg) }, []string{show, ctl + "restart subject-broker.service"}},
		{"logs", func() error { return service.Logs(t.Context(), cfg, io.Discard, 7, true) },
			[]string{show, "journalctl --user --unit=subject-broker.service --no-pager --lines=7 --output=cat --follow"}},
	} {
		f.calls = nil
		if err := test.verb(); err != nil {
			t.Errorf("%s: %v", test.name, err)
		}
		if diff := cmp.Diff(test.want, f.calls); diff != "" {
			t.Errorf("%s: %s", test.name, diff)
		}
	}
}

func TestSystemdStatus(t *testing.T) {
	cfg, f := desk(t, "linux")
	lingerAnswer(f, "no")
	if _, err := service.Install(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	f.answers["systemctl --user show subject-broker.service --property=ActiveState,MainPID,UnitFileState,NeedDaemonReload"] =
		"ActiveState=active\nMainPID=42\nUnitFileState=enabled\nNeedDaemonReload=no\n"
	st, err := service.Inspect(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if st.State != "active" || st.PID != 42 || !st.Enabled || st.Linger == nil || *st.Linger || len(st.Warnings) != 1 {
		t.Errorf("%+v", st)
	}
	f.fails[ctl+"show --property=Version"] = errors.New("exit status 1")
	if st, err = service.Inspect(t.Context(), cfg); err != nil || st.State != "unknown" || !st.Installed || len(st.Warnings) != 1 {
		t.Errorf("without a manager: %+v, %v", st, err)
	}
	if err := service.Start(t.Context(), cfg); !errors.Is(err, service.ErrNoManager) {
		t.Errorf("without a manager: %v", err)
	}
}

const gatewayUnit = "subject-broker-gateway.service"

// withGateway adds a gateway to what is to be installed.
func withGateway(cfg service.Config) service.Config {
	cfg.Gateway = &service.Gateway{
		Program: "/opt/subject broker/sb-mcp", Options: []string{"--listen", "127.0.0.1:7070", "--host", "a.example"}, Listens: "http://127.0.0.1:7070/mcp",
	}
	return cfg
}

// The gateway is a service beside the daemon's: it comes, goes and is started with
// it, and can be removed alone.
func TestSystemdGateway(t *testing.T) {
	plain, f := desk(t, "linux")
	lingerAnswer(f, "yes")
	cfg := withGateway(plain)
	if _, err := service.Install(t.Context(), plain); err != nil {
		t.Fatal(err)
	}
	f.calls = nil
	report, err := service.Install(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(cfg.UserHome, ".config", "systemd", "user", gatewayUnit)
	if diff := cmp.Diff([]string{file}, report.Files); diff != "" {
		t.Error(diff)
	}
	show, all := ctl+"show --property=Version", units+" "+gatewayUnit
	if diff := cmp.Diff([]string{show, ctl + "daemon-reload", ctl + "enable --quiet " + all, ctl + "try-restart " + gatewayUnit}, f.calls[:4]); diff != "" {
		t.Error(diff)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"After=" + units, "Wants=" + units, "UMask=0077", "MemorySwapMax=0", "LimitCORE=0", "NoNewPrivileges=yes", "RestrictNamespaces=yes", "MemoryDenyWriteExecute=yes",
		`ExecStart="/opt/subject broker/sb-mcp" serve --listen 127.0.0.1:7070 --host a.example --home ` + strings.ReplaceAll(cfg.Home, "%", "%%"),
	} {
		if !strings.Contains("\n"+string(text), "\n"+line+"\n") {
			t.Errorf("the unit lacks %q:\n%s", line, text)
		}
	}
	if again, err := service.Install(t.Context(), cfg); err != nil || again.Changed {
		t.Errorf("a second time: %+v, %v", again, err)
	}
	if again, err := service.Install(t.Context(), plain); err != nil || again.Changed {
		t.Errorf("without saying so again: %+v, %v", again, err)
	}
	only := plain
	only.GatewayOnly = true
	for _, test := range []struct {
		name string
		verb func() error
		want string
	}{
		{"start", func() error { return service.Start(t.Context(), plain) }, ctl + "start " + all},
		{"stop", func() error { return service.Stop(t.Context(), plain) }, ctl + "stop " + all},
		{"restart", func() error { return service.Restart(t.Context(), plain) }, ctl + "restart subject-broker.service " + gatewayUnit},
		{"logs", func() error { return service.Logs(t.Context(), only, io.Discard, 7, false) },
			"journalctl --user --unit=" + gatewayUnit + " --no-pager --lines=7 --output=cat"},
	} {
		if err := test.verb(); err != nil || f.calls[len(f.calls)-1] != test.want {
			t.Errorf("%s: %v, called %q", test.name, err, f.calls[len(f.calls)-1])
		}
	}
	for _, unit := range []string{"subject-broker.service", gatewayUnit} {
		f.answers["systemctl --user show "+unit+" --property=ActiveState,MainPID,UnitFileState,NeedDaemonReload"] = "ActiveState=active\nMainPID=42\nUnitFileState=enabled\n"
	}
	want := &service.GatewayStatus{Unit: file, Enabled: true, State: "active", PID: 42, Listens: "http://127.0.0.1:7070/mcp"}
	st, err := service.Inspect(t.Context(), plain)
	if err != nil || len(st.Warnings) > 0 {
		t.Errorf("%+v, %v", st, err)
	}
	if diff := cmp.Diff(want, st.Gateway); diff != "" {
		t.Error(diff)
	}
	f.answers["systemctl --user show "+gatewayUnit+" --property=ActiveState,MainPID,UnitFileState,NeedDaemonReload"] = "ActiveState=failed\n"
	if st, err := service.Inspect(t.Context(), plain); err != nil || len(st.Warnings) != 1 || !strings.Contains(st.Warnings[0], "the gateway is failed") {
		t.Errorf("one that failed: %+v, %v", st, err)
	}
	gone, err := service.Uninstall(t.Context(), only)
	if err != nil || !slices.Equal(gone.Files, []string{file}) || !slices.Contains(f.calls, ctl+"disable --quiet --now "+gatewayUnit) {
		t.Errorf("alone: %+v, %v", gone, err)
	}
	if st, err := service.Inspect(t.Context(), plain); err != nil || st.Gateway != nil || !st.Installed {
		t.Errorf("when it is gone: %+v, %v", st, err)
	}
	if again, err := service.Uninstall(t.Context(), only); err != nil || again.Changed {
		t.Errorf("one that is not there: %+v, %v", again, err)
	}
	if _, err := service.Install(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	if gone, err := service.Uninstall(t.Context(), plain); err != nil || len(gone.Files) != 4 {
		t.Errorf("with the daemon's: %+v, %v", gone, err)
	}
	cfg.Gateway.Program = "sb-mcp"
	if _, err := service.Install(t.Context(), cfg); !errors.Is(err, service.ErrInvalid) {
		t.Errorf("a relative path: %v", err)
	}
}

// A package puts the gateway's unit where every user has it. It is a gateway of those
// who enabled it.
func TestPackagedGateway(t *testing.T) {
	cfg, f := desk(t, "linux")
	cfg.UnitDirs = []string{packaging}
	f.fails[ctl+"is-enabled --quiet "+gatewayUnit] = errors.New("exit status 1")
	if st, err := service.Inspect(t.Context(), cfg); err != nil || st.Gateway != nil {
		t.Errorf("one that nobody enabled: %+v, %v", st.Gateway, err)
	}
	delete(f.fails, ctl+"is-enabled --quiet "+gatewayUnit)
	if st, err := service.Inspect(t.Context(), cfg); err != nil || st.Gateway == nil || st.Gateway.Listens != "http://127.0.0.1:7070/mcp" {
		t.Errorf("one that is enabled: %+v, %v", st.Gateway, err)
	}
}

func TestLaunchdGateway(t *testing.T) {
	plain, f := desk(t, "darwin")
	cfg := withGateway(plain)
	report, err := service.Install(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	agents := filepath.Join(cfg.UserHome, "Library", "LaunchAgents")
	file := filepath.Join(agents, "subject-broker-gateway.plist")
	if diff := cmp.Diff([]string{filepath.Join(agents, "subject-broker.plist"), file}, report.Files); diff != "" {
		t.Error(diff)
	}
	text, err := os.ReadFile(file)
	if err != nil || !strings.Contains(string(text), "<string>serve</string>") || !strings.Contains(string(text), "<integer>63</integer>") {
		t.Errorf("%v\n%s", err, text)
	}
	domain := fmt.Sprintf("gui/%d", os.Getuid())
	target := domain + "/subject-broker-gateway"
	f.answers["launchctl print "+domain+"/subject-broker"] = "{\n\tstate = running\n}\n"
	f.answers["launchctl print "+target] = "{\n\tstate = running\n\tpid = 43\n}\n"
	want := &service.GatewayStatus{Unit: file, Enabled: true, State: "active", PID: 43, Listens: "http://127.0.0.1:7070/mcp"}
	st, err := service.Inspect(t.Context(), plain)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, st.Gateway); diff != "" {
		t.Error(diff)
	}
	if err := service.Restart(t.Context(), plain); err != nil || f.calls[len(f.calls)-1] != "launchctl kickstart -k "+target {
		t.Errorf("restart: %v, %q", err, f.calls)
	}
	other := cfg
	other.Gateway = &service.Gateway{Program: cfg.Gateway.Program, Options: []string{"--unix", "/x"}, Listens: "unix:/x"}
	if _, err := service.Install(t.Context(), other); err != nil || f.calls[len(f.calls)-1] != "launchctl bootout "+target {
		t.Errorf("other options: %v, %q", err, f.calls)
	}
	f.fails["launchctl print "+target] = errors.New("exit status 113")
	if err := service.Start(t.Context(), plain); err != nil || f.calls[len(f.calls)-1] != "launchctl bootstrap "+domain+" "+file {
		t.Errorf("start: %v, %q", err, f.calls)
	}
	only := plain
	only.GatewayOnly = true
	if gone, err := service.Uninstall(t.Context(), only); err != nil || !slices.Equal(gone.Files, []string{file}) {
		t.Errorf("alone: %+v, %v", gone, err)
	}
}

func TestStartRefusesBesideAnotherDaemon(t *testing.T) {
	cfg, f := desk(t, "linux")
	if _, err := service.Install(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(cfg.Home, "run", "operator", "operator.sock")
	if err := os.MkdirAll(filepath.Dir(socket), 0o700); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if err := service.Start(t.Context(), cfg); err != nil {
		t.Errorf("the service's own socket: %v", err)
	}
	f.fails[ctl+"is-active --quiet subject-broker-operator.socket"] = errors.New("exit status 3")
	if err := service.Start(t.Context(), cfg); !errors.Is(err, service.ErrRunning) {
		t.Errorf("another daemon's socket: %v", err)
	}
}

func TestNoManagerInstallsNothing(t *testing.T) {
	cfg, f := desk(t, "linux")
	f.fails[ctl+"show --property=Version"] = errors.New("exit status 1")
	if _, err := service.Install(t.Context(), cfg); !errors.Is(err, service.ErrNoManager) {
		t.Errorf("%v", err)
	}
	if _, err := os.Stat(filepath.Join(cfg.UserHome, ".config")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("something was written: %v", err)
	}
}

func TestLaunchd(t *testing.T) {
	cfg, f := desk(t, "darwin")
	cfg.Daemon = `/opt/a & "b"/sbd`
	report, err := service.Install(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	plist := filepath.Join(cfg.UserHome, "Library", "LaunchAgents", "subject-broker.plist")
	if diff := cmp.Diff([]string{plist}, report.Files); diff != "" {
		t.Error(diff)
	}
	if len(report.Warnings) != 1 {
		t.Errorf("warnings: %q", report.Warnings)
	}
	target := fmt.Sprintf("gui/%d/subject-broker", os.Getuid())
	f.answers["launchctl print "+target] = target + " = {\n\tstate = running\n\tpid = 42\n}\n"
	st, err := service.Inspect(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if st.Daemon != cfg.Daemon || st.Home != cfg.Home || st.State != "active" || st.PID != 42 {
		t.Errorf("read back: %+v", st)
	}
	f.calls = nil
	if err := service.Restart(t.Context(), cfg); err != nil || f.calls[len(f.calls)-1] != "launchctl kickstart -k "+target {
		t.Errorf("restart: %v, %q", err, f.calls)
	}
	f.calls = nil
	f.fails["launchctl print "+target] = errors.New("exit status 113")
	if err := service.Start(t.Context(), cfg); err != nil || f.calls[len(f.calls)-1] != fmt.Sprintf("launchctl bootstrap gui/%d %s", os.Getuid(), plist) {
		t.Errorf("start: %v, %q", err, f.calls)
	}
	if gone, err := service.Uninstall(t.Context(), cfg); err != nil || !gone.Changed {
		t.Errorf("uninstall: %+v, %v", gone, err)
	}
}

func TestConfigIsChecked(t *testing.T) {
	for name, change := range map[string]func(*service.Config){
		"daemon":    func(c *service.Config) { c.Daemon = "sbd" },
		"home":      func(c *service.Config) { c.Home = "x" },
		"control":   func(c *service.Config) { c.Home = "/x\ny" },
		"long path": func(c *service.Config) { c.Home = "/" + strings.Repeat("x", 100) },
	} {
		cfg, _ := desk(t, "linux")
		change(&cfg)
		if _, err := service.Install(t.Context(), cfg); !errors.Is(err, service.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	cfg, _ := desk(t, "plan9")
	if _, err := service.Install(t.Context(), cfg); !errors.Is(err, service.ErrNoManager) {
		t.Errorf("another platform: %v", err)
	}
}
