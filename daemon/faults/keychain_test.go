//go:build linux

package faults

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"

	"subjectbroker/daemon/daemontest"
	"subjectbroker/proto/place"
	"subjectbroker/proto/wire"
)

// bus is a session bus for one test.
type bus struct {
	t    *testing.T
	dir  string
	env  []string
	conn *dbus.Conn
}

// busConfig is a session bus that starts no service by itself.
const busConfig = `<busconfig>
<type>session</type>
<listen>unix:path=%s</listen>
<policy context="default"><allow send_destination="*"/><allow eavesdrop="true"/><allow own="*"/></policy>
</busconfig>
`

func newBus(t *testing.T) *bus {
	t.Helper()
	needPrograms(t, "dbus-daemon", "gnome-keyring-daemon", "secret-tool")
	b := &bus{t: t, dir: daemontest.NewHome(t)}
	for _, name := range []string{"HOME", "XDG_RUNTIME_DIR", "XDG_DATA_HOME", "XDG_CONFIG_HOME"} {
		b.env = append(b.env, name+"="+b.dir)
	}
	config := filepath.Join(b.dir, "bus.conf")
	write(t, config, fmt.Sprintf(busConfig, filepath.Join(b.dir, "bus")))
	cmd := exec.Command("dbus-daemon", "--config-file="+config, "--nofork", "--nopidfile", "--print-address=1")
	out, err := cmd.StdoutPipe()
	must(t, err)
	b.start(cmd)
	address, err := bufio.NewReader(out).ReadString('\n')
	must(t, err)
	b.env = append(b.env, "DBUS_SESSION_BUS_ADDRESS="+strings.TrimSpace(address))
	b.conn, err = dbus.Connect(strings.TrimSpace(address))
	must(t, err)
	t.Cleanup(func() { _ = b.conn.Close() })
	return b
}

// start runs a program on the bus until the test ends.
func (b *bus) start(cmd *exec.Cmd) *os.Process {
	b.t.Helper()
	cmd.Env = append(os.Environ(), b.env...)
	must(b.t, cmd.Start())
	b.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd.Process
}

const (
	secrets      = "org.freedesktop.secrets"
	goodPassword = "password" // of the collection that the first start makes
)

// owned waits until somebody serves secrets, or nobody does.
func (b *bus) owned(want bool) {
	b.t.Helper()
	for until := time.Now().Add(daemontest.Patience); time.Now().Before(until); time.Sleep(10 * time.Millisecond) {
		var owned bool
		must(b.t, b.conn.BusObject().Call("org.freedesktop.DBus.NameHasOwner", 0, secrets).Store(&owned))
		if owned == want {
			return
		}
	}
	b.t.Fatalf("the Secret Service: owned is not %v", want)
}

// keyring starts the real Secret Service and waits until it has answered a
// client. Once in a great while gnome-keyring dies of its first one; what is
// tested here is what comes later, so another is started then, and said so.
func (b *bus) keyring(password string) *os.Process {
	b.t.Helper()
	for range 3 {
		var said bytes.Buffer
		cmd := exec.Command("gnome-keyring-daemon", "--unlock", "--components=secrets", "--foreground")
		cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(password), io.Discard, &said
		process := b.start(cmd)
		b.owned(true)
		ask := exec.Command("secret-tool", "store", "--label=first", "test", "first")
		ask.Env, ask.Stdin = append(os.Environ(), b.env...), strings.NewReader("first")
		if password != goodPassword { // it cannot be stored there, only asked for
			ask.Args = []string{"secret-tool", "search", "test", "first"}
		}
		answer, err := ask.CombinedOutput()
		if err == nil {
			return process
		}
		b.t.Logf("the Secret Service did not live through its first client: %v: %s%s", err, answer, &said)
		_ = process.Kill()
		b.owned(false)
	}
	b.t.Fatal("the Secret Service does not serve")
	return nil
}

// sbd runs the program to its end, on the bus.
func (b *bus) sbd(home string, args ...string) (code int, said string) {
	b.t.Helper()
	cmd := daemontest.Command(b.t, home, append([]string{"--home", home}, args...)...)
	cmd.Env = append(b.env, "PATH="+os.Getenv("PATH"))
	code, _, said = daemontest.Exit(b.t, cmd)
	return code, said
}

// P9, P11: the real Secret Service is stopped, goes on, dies, and comes back
// locked. sbd says that the key is not there, changes nothing, makes no other
// key, and serves again when the service does.
func TestSecretService(t *testing.T) {
	t.Parallel()
	b := newBus(t)
	s := keepScore(t, "a Secret Service that stops, dies and comes back locked")
	keyring := b.keyring(goodPassword)
	options := daemontest.Options{KeySource: "keychain", Env: b.env, WaitKey: true, Spoiled: true}
	w := newWorld(t, s, nil, options)
	w.populate()
	w.Stop()
	before, err := os.ReadFile(place.VaultFile(w.Home))
	must(t, err)
	// without is a start in the foreground without the key.
	without := func(what string) {
		t.Helper()
		code, said := b.sbd(w.Home)
		equal(t, what+": exit code: "+said, code, wire.ExitUnavailable)
		after, err := os.ReadFile(place.VaultFile(w.Home))
		must(t, err)
		if !bytes.Equal(before, after) {
			s.lost(t, "%s: the vault has changed", what)
		}
		if _, err := os.Stat(place.KeyFile(w.Home)); !errors.Is(err, fs.ErrNotExist) {
			s.lost(t, "%s: there is a key file", what)
		}
		s.add(faults, 1)
	}

	must(t, keyring.Signal(syscall.SIGSTOP))
	without("stopped")
	w.Start()
	equal(t, "with a stopped service", w.Status().GetVaultState(), "waiting")
	equal(t, "reading", w.access("worker", "note"), string(wire.VaultLocked))
	must(t, keyring.Signal(syscall.SIGCONT))
	w.restored(func() error { // by itself
		if state := w.Status().GetVaultState(); state != "unlocked" {
			return errors.New(state)
		}
		return nil
	})
	equal(t, "when it goes on", w.access("worker", "note"), hello)

	// What is in memory needs no service; the next start does.
	must(t, keyring.Kill())
	b.owned(false)
	equal(t, "without the service", w.access("worker", "note"), hello)
	w.crash(false)
	equal(t, "after a crash, without the service", w.access("worker", "note"), string(wire.VaultLocked))
	w.Kill()
	before, err = os.ReadFile(place.VaultFile(w.Home))
	must(t, err)
	without("dead")
	locked := b.keyring("not the password")
	without("locked")
	must(t, locked.Kill())
	b.owned(false)
	b.keyring(goodPassword)
	w.Start()
	equal(t, "when it is back", w.access("worker", "note"), hello)
}

// P11: a service that takes a key and keeps nothing, or answers nonsense, or
// nothing. A first start ends with exit 4, and leaves no vault.
func TestLyingSecretService(t *testing.T) {
	t.Parallel()
	s := keepScore(t, "a lying Secret Service at the first start")
	for _, mode := range []string{"keeps nothing", "nonsense", "refuses", "silent"} {
		t.Run(mode, func(t *testing.T) {
			b := newBus(t)
			b.lie(mode)
			home := filepath.Join(daemontest.NewHome(t), "h")
			code, said := b.sbd(home, "--key-source", "keychain")
			equal(t, "exit code: "+said, code, wire.ExitUnavailable)
			if !strings.HasPrefix(said, "sbd: KEY_UNAVAILABLE: ") {
				t.Errorf("it said %s", said)
			}
			s.add(faults, 1)
			for _, file := range []string{place.VaultFile(home), place.KeyFile(home), place.AuditKey(home)} {
				if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
					s.lost(t, "%s is there", file)
				}
			}
		})
	}
}

// lie serves as little of the Secret Service as go-keyring asks for, and lies.
func (b *bus) lie(mode string) {
	b.t.Helper()
	const (
		service    = dbus.ObjectPath("/org/freedesktop/secrets")
		collection = dbus.ObjectPath("/org/freedesktop/secrets/collection/login")
		none       = dbus.ObjectPath("/")
	)
	type secret struct {
		Session           dbus.ObjectPath
		Parameters, Value []byte
		ContentType       string
	}
	for _, export := range []struct {
		path  dbus.ObjectPath
		iface string
		calls map[string]any
	}{
		{service, "org.freedesktop.DBus.Properties", map[string]any{"Get": func(string, string) (dbus.Variant, *dbus.Error) {
			switch mode {
			case "nonsense":
				return dbus.MakeVariant("not a list of paths"), nil
			case "refuses":
				return dbus.Variant{}, dbus.NewError("org.freedesktop.DBus.Error.Failed", nil)
			case "silent":
				select {}
			}
			return dbus.MakeVariant([]dbus.ObjectPath{collection}), nil
		}}},
		{service, "org.freedesktop.Secret.Service", map[string]any{
			"Unlock": func(paths []dbus.ObjectPath) ([]dbus.ObjectPath, dbus.ObjectPath, *dbus.Error) {
				return paths, none, nil
			},
			"OpenSession": func(string, dbus.Variant) (dbus.Variant, dbus.ObjectPath, *dbus.Error) {
				return dbus.MakeVariant(""), "/org/freedesktop/secrets/session/1", nil
			},
		}},
		{collection, "org.freedesktop.Secret.Collection", map[string]any{
			"SearchItems": func(map[string]string) ([]dbus.ObjectPath, *dbus.Error) { return []dbus.ObjectPath{}, nil },
			"CreateItem": func(map[string]dbus.Variant, secret, bool) (dbus.ObjectPath, dbus.ObjectPath, *dbus.Error) {
				return "/org/freedesktop/secrets/collection/login/1", none, nil // and forgets it
			},
		}},
	} {
		must(b.t, b.conn.ExportMethodTable(export.calls, export.path, export.iface))
	}
	reply, err := b.conn.RequestName(secrets, dbus.NameFlagDoNotQueue)
	if err != nil || reply != dbus.RequestNameReplyPrimaryOwner {
		b.t.Fatalf("the name is not ours: %v, %v", reply, err)
	}
}
