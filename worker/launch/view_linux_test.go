package launch

import (
	"errors"
	"os"
	"slices"
	"testing"
)

func TestAliases(t *testing.T) {
	all := []mount{
		{"8:1", "/", "/"},
		{"8:2", "/", "/home"},
		{"8:2", "/me/.state", "/mnt/above"},
		{"8:2", "/me/.state/broker", "/mnt/itself"},
		{"8:2", "/me/.state/broker/audit", "/mnt/below"},
		{"8:2", "/me/other", "/mnt/beside"},
		{"8:2", "/me/.state/broker2", "/mnt/almost"},
		{"8:3", "/logs", "/home/me/.state/broker/audit"},
		{"8:3", "/", "/srv/logs"},
		{"8:3", "/logs/old", "/mnt/old"},
		{"8:1", "/me/.state", "/mnt/another-disk"},
		{"8:2", "/", "/mnt/hidden"},
		{"8:4", "/", "/mnt/hidden"},
	}
	got := aliases(all, "/home/me/.state/broker")
	slices.Sort(got)
	want := []string{"/mnt/above/broker", "/mnt/below", "/mnt/itself", "/mnt/old", "/srv/logs/logs"}
	if !slices.Equal(slices.Compact(got), want) {
		t.Errorf("%q, want %q", got, want)
	}
	for path, want := range map[string]spot{
		"/home/me":                           {"8:2", "/me"},
		"/home":                              {"8:2", "/"},
		"/homes":                             {"8:1", "/homes"},
		"/home/me/.state/broker/audit/00001": {"8:3", "/logs/00001"},
		"/mnt/hidden/me":                     {"8:4", "/me"},
		"/mnt/above/broker/audit":            {"8:2", "/me/.state/broker/audit"},
	} {
		if got := spotOf(all, path); got != want {
			t.Errorf("%s is at %v, want %v", path, got, want)
		}
	}
	if got, want := unescape(`/a\040b\134c\011`), "/a b\\c\t"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestLacking(t *testing.T) {
	abstract := []string{"DBUS_SESSION_BUS_ADDRESS=unix:abstract=/tmp/dbus-x,guid=1"}
	tests := []struct {
		name   string
		cfg    Config
		abi    int
		nested nesting
		piece  string
	}{
		{"a sandbox without Landlock", Config{Sandbox: true}, 0, outermost, "Landlock"},
		{"a sandbox in a sandbox without Landlock", Config{Sandbox: true}, 0, noMounts, "Landlock"},
		{"a sandbox with the oldest", Config{Sandbox: true}, 1, outermost, ""},
		{"a bound tree without Landlock", Config{}, 0, outermost, ""},
		{"a bus without a path", Config{Environ: abstract}, 5, outermost, "a way to hide the session bus, which is a socket without a path"},
		{"a bus without a path and a sandbox", Config{Environ: abstract, Sandbox: true}, 5, outermost, "a way to hide the session bus, which is a socket without a path"},
		{"a bus without a path, cut off", Config{Environ: abstract}, 6, outermost, ""},
		{"a bus without a path, no network", Config{Environ: abstract, NoNet: true}, 0, outermost, ""},
		{"hidden by the outer launch", Config{Environ: abstract}, 5, oldProc, ""},
	}
	for _, test := range tests {
		err := lacking(test.cfg, test.abi, test.nested)
		missing, _ := errors.AsType[*Unsupported](err)
		if (missing != nil) != (test.piece != "") || missing != nil && (missing.Piece != test.piece || missing.Hint == "") {
			t.Errorf("%s: %v, want %q", test.name, err, test.piece)
		}
	}
	if fd, err := (&view{sandbox: true}).ruleset(0); err == nil || fd != -1 {
		t.Errorf("rules without Landlock: %d %v", fd, err)
	}
}

func TestSocketsIn(t *testing.T) {
	w := newWorld(t, os.Geteuid())
	path := w.broker + "/run/operator/operator.sock"
	for _, value := range []string{path, path + ",123,0", "unix:" + path, "unix://" + path, "unix:path=" + path + ",guid=0", "tcp:x;unix:path=" + path} {
		if got := socketsIn([]string{"NAME=" + value}); !slices.Contains(got, path) {
			t.Errorf("%q: %q", value, got)
		}
	}
	if got := socketsIn([]string{"PATH=/bin:/usr/bin", "NAME=" + w.broker, "REL=run/operator"}); len(got) != 0 {
		t.Errorf("not sockets: %q", got)
	}
}
