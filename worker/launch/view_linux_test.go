package launch

import (
	"errors"
	"net"
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
	bus := []string{"the session bus", "@/tmp/.X11-unix/X0"}
	tests := []struct {
		name   string
		cfg    Config
		abi    int
		nested nesting
		open   []string
		piece  string
	}{
		{"a sandbox without Landlock", Config{Sandbox: true}, 0, outermost, nil, "Landlock"},
		{"a sandbox in a sandbox without Landlock", Config{Sandbox: true}, 0, noMounts, nil, "Landlock"},
		{"a sandbox with the oldest", Config{Sandbox: true}, 1, outermost, nil, ""},
		{"a bound tree without Landlock", Config{}, 0, outermost, nil, ""},
		{"a bus without a path", Config{}, 5, outermost, bus, "a way to hide the session bus, which is a socket without a path (Landlock ABI 6)"},
		{"a bus without a path and a sandbox", Config{Sandbox: true}, 5, outermost, bus, "a way to hide the session bus, which is a socket without a path (Landlock ABI 6)"},
		{"a bus without a path, cut off", Config{}, 6, outermost, bus, ""},
		{"a bus without a path, no network", Config{NoNet: true}, 0, outermost, bus, ""},
		{"hidden by the outer launch", Config{}, 5, oldProc, bus, ""},
	}
	for _, test := range tests {
		err := lacking(test.cfg, test.abi, test.nested, test.open)
		missing, _ := errors.AsType[*Unsupported](err)
		if (missing != nil) != (test.piece != "") || missing != nil && (missing.Piece != test.piece || missing.Hint == "") {
			t.Errorf("%s: %v, want %q", test.name, err, test.piece)
		}
	}
	if fd, err := (&view{sandbox: true}).ruleset(0); err == nil || fd != -1 {
		t.Errorf("rules without Landlock: %d %v", fd, err)
	}
}

// Sockets without a path that are called like what is covered as a file.
func TestOpenNames(t *testing.T) {
	const listing = `Num       RefCount Protocol Flags    Type St Inode Path
00000000a: 00000002 00000000 00010000 0001 01 100 @/tmp/.X11-unix/X0
00000000b: 00000002 00000000 00010000 0001 01 101 /tmp/.X11-unix/X0
00000000c: 00000003 00000000 00000000 0001 03 102
00000000d: 00000002 00000000 00010000 0001 01 103 @/tmp/dbus-qwerty@@@
00000000e: 00000002 00000000 00010000 0001 01 104 @/tmp/else/X0
00000000f: 00000002 00000000 00010000 0001 01 105 @/home/me/.cache/ibus/dbus-abc
000000010: 00000002 00000000 00010000 0001 01 106 @/run/user/7/ bus
000000011: 00000002 00000000 00010000 0001 01 107 @12ab/bus/systemd/bus-api-system
000000012: 00000002 00000000 00010000 0001 01 108 @/org/bluez/audio
000000013: 00000002 00000000 00010000 0001 01 109 @/srv/agent/S
000000014: 00000003 00000000 00000000 0001 03 110 @/tmp/.X11-unix/X0
`
	v := &view{covers: []cover{{path: "/srv/agent"}, {path: "/run/user/7"}}}
	want := []string{"@/tmp/.X11-unix/X0", "@/tmp/dbus-qwerty@@@", "@/home/me/.cache/ibus/dbus-abc", "@/run/user/7/ bus", "@/srv/agent/S"}
	if got := v.doorsIn(listing); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	name := "@/srv/agent/" + t.Name()
	listener, err := net.Listen("unix", name)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if got := v.openNames(surroundings{AbstractBus: true}); !slices.Contains(got, name) || got[0] != "the session bus" {
		t.Errorf("%q has no %s", got, name)
	}
	if !surroundingsOf([]string{"DBUS_SESSION_BUS_ADDRESS=unix:abstract=/tmp/dbus-x,guid=1"}).AbstractBus {
		t.Error("a bus without a path was not seen in the environment")
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
