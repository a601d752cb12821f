package service

import (
	"context"
	"encoding/xml"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"subjectbroker/proto/place"
)

// label is the service's name in launchd.
const label = "subject-broker"

// gatewayLabel is that of the gateway.
const gatewayLabel = "subject-broker-gateway"

// launchd runs the daemon as an agent of the user's graphical session. The
// daemon makes its own sockets: launchd's can only be taken through a C library.
type launchd struct{ cfg Config }

func (l *launchd) unit() string { return l.agent(label) }

// agent is the property list of one label.
func (l *launchd) agent(label string) string {
	return filepath.Join(l.cfg.UserHome, "Library", "LaunchAgents", label+".plist")
}

func (l *launchd) logFile(label string) string {
	return filepath.Join(l.cfg.UserHome, "Library", "Logs", label+".log")
}

// labels are those of what is to run.
func (l *launchd) labels() []string {
	labels := []string{label}
	if text, err := read(l.agent(gatewayLabel)); err == nil && text != "" {
		labels = append(labels, gatewayLabel)
	}
	return labels
}

func (l *launchd) domain() string { return "gui/" + strconv.Itoa(os.Getuid()) }

func (l *launchd) files() []textFile {
	files := []textFile{{l.unit(), l.text(label, append([]string{l.cfg.Daemon}, l.cfg.daemonArgs()...), "SubjectBrokerHome", l.cfg.Home)}}
	if g := l.cfg.Gateway; g != nil {
		files = append(files, textFile{l.agent(gatewayLabel), l.text(gatewayLabel, append([]string{g.Program}, l.cfg.gatewayArgs()...), "SubjectBrokerListens", g.Listens)})
	}
	return files
}

// text is the property list of a program. mark is what it remembers. Umask is decimal
// there: 63 is 0077.
func (l *launchd) text(label string, program []string, mark, value string) string {
	var words strings.Builder
	for _, word := range program {
		words.WriteString("\n\t\t<string>" + xmlText(word) + "</string>")
	}
	return `<?xml version="1.0" encoding="UTF-8"?>
<!-- Written by "sbctl service install". -->
<plist version="1.0">
<dict>
	<key>Label</key>
	<string>` + label + `</string>
	<key>ProgramArguments</key>
	<array>` + words.String() + `
	</array>
	<key>RunAtLoad</key>
	<true/>
	<key>KeepAlive</key>
	<dict>
		<key>SuccessfulExit</key>
		<false/>
	</dict>
	<key>ThrottleInterval</key>
	<integer>10</integer>
	<key>ExitTimeOut</key>
	<integer>20</integer>
	<key>Umask</key>
	<integer>63</integer>
	<key>HardResourceLimits</key>
	<dict>
		<key>Core</key>
		<integer>0</integer>
	</dict>
	<key>StandardErrorPath</key>
	<string>` + xmlText(l.logFile(label)) + `</string>
	<key>` + mark + `</key>
	<string>` + xmlText(value) + `</string>
</dict>
</plist>
`
}

func xmlText(text string) string {
	var b strings.Builder
	if err := xml.EscapeText(&b, []byte(text)); err != nil {
		return ""
	}
	return b.String()
}

func (l *launchd) ctl(ctx context.Context, stdout io.Writer, args ...string) error {
	return l.cfg.Run(ctx, stdout, "launchctl", args...)
}

func (l *launchd) reachable(ctx context.Context) error {
	if err := l.ctl(ctx, io.Discard, "print", l.domain()); err != nil {
		return fmt.Errorf("%w: %w; log in at the screen, or run sbd yourself", ErrNoManager, err)
	}
	return nil
}

// plistString finds the strings that text wrote, in its own layout.
var plistString = regexp.MustCompile(`<string>([^<]*)</string>`)

func (l *launchd) installed() (daemon, home string, err error) {
	text, err := read(l.unit())
	if err != nil || text == "" {
		return "", "", err
	}
	_, arguments, found := strings.Cut(text, "<key>ProgramArguments</key>")
	_, mark, marked := strings.Cut(text, "<key>SubjectBrokerHome</key>")
	first, last := plistString.FindStringSubmatch(arguments), plistString.FindStringSubmatch(mark)
	if !found || !marked || first == nil || last == nil {
		return "", "", fmt.Errorf("%w: %s was not written by sbctl", ErrOtherHome, l.unit())
	}
	return fromXML(first[1]), fromXML(last[1]), nil
}

// fromXML decodes character data.
func fromXML(text string) string {
	var decoded string
	if err := xml.Unmarshal([]byte("<s>"+text+"</s>"), &decoded); err != nil {
		return text
	}
	return decoded
}

func (l *launchd) install(ctx context.Context) (Report, error) {
	var r Report
	written, err := writeAll(l.files())
	r.Files, r.Changed = written, len(written) > 0
	if err != nil {
		return r, err
	}
	for _, label := range l.labels() {
		if err := l.ctl(ctx, io.Discard, "enable", l.domain()+"/"+label); err != nil {
			return r, fmt.Errorf("enabling the service: %w", err)
		}
	}
	if slices.Contains(written, l.agent(gatewayLabel)) && l.loaded(ctx, gatewayLabel) { // it has other options
		if err := l.unload(ctx, gatewayLabel); err != nil {
			return r, fmt.Errorf("restarting the gateway: %w", err)
		}
	}
	r.Warnings = l.logoutWarnings()
	return r, nil
}

func (l *launchd) logoutWarnings() []string {
	if l.cfg.Linger {
		return []string{"launchd has no --linger: the daemon ends when you log out"}
	}
	return []string{"the daemon ends when you log out"}
}

func (l *launchd) loaded(ctx context.Context, label string) bool {
	return l.ctl(ctx, io.Discard, "print", l.domain()+"/"+label) == nil
}

func (l *launchd) uninstall(ctx context.Context) (Report, error) {
	var r Report
	files := []textFile{{path: l.agent(gatewayLabel)}}
	stop := func() error { return l.unload(ctx, gatewayLabel) }
	if !l.cfg.GatewayOnly {
		files, stop = append([]textFile{{path: l.unit()}}, files...), func() error { return l.stop(ctx) }
	}
	if err := stop(); err != nil {
		return r, err
	}
	removed, err := removeAll(files)
	r.Files, r.Changed = removed, len(removed) > 0
	return r, err
}

func (l *launchd) start(ctx context.Context) error {
	for _, one := range l.labels() {
		if l.loaded(ctx, one) {
			continue
		}
		if one == label && listening(ctx, place.OperatorSocket(l.cfg.SocketDir)) {
			return fmt.Errorf("%w for %s; stop that one first", ErrRunning, l.cfg.Home)
		}
		if err := l.ctl(ctx, io.Discard, "bootstrap", l.domain(), l.agent(one)); err != nil {
			return err
		}
	}
	return nil
}

func (l *launchd) stop(ctx context.Context) error {
	for _, one := range l.labels() {
		if err := l.unload(ctx, one); err != nil {
			return err
		}
	}
	return nil
}

func (l *launchd) unload(ctx context.Context, label string) error {
	if !l.loaded(ctx, label) {
		return nil
	}
	return l.ctl(ctx, io.Discard, "bootout", l.domain()+"/"+label)
}

func (l *launchd) restart(ctx context.Context) error {
	if !l.loaded(ctx, label) {
		return l.start(ctx)
	}
	for _, one := range l.labels() {
		args := []string{"kickstart", "-k", l.domain() + "/" + one}
		if one != label && !l.loaded(ctx, one) {
			args = []string{"bootstrap", l.domain(), l.agent(one)}
		}
		if err := l.ctl(ctx, io.Discard, args...); err != nil {
			return err
		}
	}
	return nil
}

func (l *launchd) status(ctx context.Context) (Status, error) {
	st := Status{Manager: "launchd", Unit: l.unit(), State: "inactive"}
	var err error
	if st.Daemon, st.Home, err = l.installed(); err != nil {
		return st, err
	}
	st.Installed = st.Daemon != ""
	st.Enabled = st.Installed
	if err := l.reachable(ctx); err != nil {
		st.State = "unknown"
		st.Warnings = append(st.Warnings, err.Error())
		return st, nil
	}
	st.State, st.PID = l.show(ctx, label)
	if text, err := read(l.agent(gatewayLabel)); err == nil && text != "" {
		st.Gateway = &GatewayStatus{Unit: l.agent(gatewayLabel), Enabled: true}
		st.Gateway.State, st.Gateway.PID = l.show(ctx, gatewayLabel)
		if _, mark, found := strings.Cut(text, "<key>SubjectBrokerListens</key>"); found {
			if value := plistString.FindStringSubmatch(mark); value != nil {
				st.Gateway.Listens = fromXML(value[1])
			}
		}
		if st.State == "active" && st.Gateway.State != "active" {
			st.Warnings = append(st.Warnings, gatewayFailed(st.Gateway))
		}
	}
	if st.Installed {
		if st.Home != l.cfg.Home {
			st.Warnings = append(st.Warnings, fmt.Sprintf("the service is for another home, %s", st.Home))
		}
		st.Warnings = append(st.Warnings, l.logoutWarnings()...)
	}
	return st, nil
}

// show is what launchd says of a label, in systemd's words where it has them.
func (l *launchd) show(ctx context.Context, label string) (state string, pid int) {
	state = "inactive"
	var out strings.Builder
	if l.ctl(ctx, &out, "print", l.domain()+"/"+label) != nil {
		return state, 0
	}
	for line := range strings.Lines(out.String()) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), " = ")
		switch key {
		case "state":
			if state = value; value == "running" {
				state = "active"
			}
		case "pid":
			pid, _ = strconv.Atoi(value)
		}
	}
	return state, pid
}

func (l *launchd) logs(ctx context.Context, w io.Writer, lines int, follow bool) error {
	file := l.logFile(label)
	if l.cfg.GatewayOnly {
		file = l.logFile(gatewayLabel)
	}
	args := []string{"-n", strconv.Itoa(lines)}
	if follow {
		args = append(args, "-F")
	}
	if err := l.cfg.Run(ctx, w, "tail", append(args, file)...); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}
