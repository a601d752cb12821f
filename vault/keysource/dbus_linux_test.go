package keysource_test

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"

	"subjectbroker/vault"
	"subjectbroker/vault/keysource"
)

// programs looks for what a suite needs, and leaves the suite out without it.
func programs(t *testing.T, suite string, names ...string) {
	t.Helper()
	for _, name := range names {
		if _, err := exec.LookPath(name); err == nil {
			continue
		}
		t.Skipf("suite left out: %s: needs %s", suite, name)
	}
}

// privateBus starts a session bus for this test alone and points the environment at it.
func privateBus(t *testing.T) *dbus.Conn {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"HOME", "XDG_RUNTIME_DIR", "XDG_DATA_HOME", "XDG_CONFIG_HOME"} {
		t.Setenv(name, dir)
	}
	cmd := exec.Command("dbus-daemon", "--session", "--nofork", "--nopidfile", "--print-address=1", "--address=unix:path="+filepath.Join(dir, "bus"))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	start(t, cmd)
	address, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("dbus-daemon says no address: %v", err)
	}
	t.Setenv("DBUS_SESSION_BUS_ADDRESS", strings.TrimSpace(address))
	conn, err := dbus.Connect(strings.TrimSpace(address))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// start runs a program until the test ends.
func start(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
	})
}

const secretsName = "org.freedesktop.secrets"

// gnomeKeyring starts the real thing on the test's bus, unlocked with a
// password, and waits until it has answered a client. Once in a great while it
// dies of its first one; another is started then.
func gnomeKeyring(t *testing.T, bus *dbus.Conn, password string) *exec.Cmd {
	t.Helper()
	for range 3 {
		cmd := exec.Command("gnome-keyring-daemon", "--unlock", "--components=secrets", "--foreground")
		cmd.Stdin = strings.NewReader(password) // a newline would be part of it
		cmd.Stderr = io.Discard
		start(t, cmd)
		if !served(t, bus) {
			t.Fatal("gnome-keyring-daemon does not serve")
		}
		answer, err := exec.Command("secret-tool", "search", "test", "first").CombinedOutput()
		if err == nil {
			return cmd
		}
		t.Logf("gnome-keyring-daemon did not live through its first client: %v: %s", err, answer)
		_ = cmd.Process.Kill()
	}
	t.Fatal("gnome-keyring-daemon dies of every client")
	return nil
}

// served reports whether somebody serves secrets on the bus, in good time.
func served(t *testing.T, bus *dbus.Conn) bool {
	t.Helper()
	for range 500 {
		var owned bool
		if err := bus.BusObject().Call("org.freedesktop.DBus.NameHasOwner", 0, secretsName).Store(&owned); err != nil {
			t.Fatal(err)
		}
		if owned {
			return true
		}
		time.Sleep(20 * time.Millisecond)
	}
	return false
}

func TestRealKeychain(t *testing.T) {
	programs(t, "keychain", "dbus-daemon", "gnome-keyring-daemon", "secret-tool")
	bounded(t, "real keychain")
	bus := privateBus(t)
	daemon := gnomeKeyring(t, bus, "password")
	source := keysource.Keychain(self(t), patient)

	if _, err := source.Load(t.Context(), id); !errors.Is(err, vault.ErrKeyUnavailable) {
		t.Fatalf("nothing stored yet: %v", err)
	}
	if err := source.Remove(t.Context(), id); !errors.Is(err, vault.ErrKeyUnavailable) {
		t.Errorf("removing nothing: %v", err)
	}
	if err := source.Store(t.Context(), id, someKey(1)); err != nil {
		t.Fatal(err)
	}
	if err := source.Store(t.Context(), id, someKey(2)); !errors.Is(err, vault.ErrKeyExists) {
		t.Errorf("storing another: %v", err)
	}
	if key, err := source.Load(t.Context(), id); err != nil || !bytes.Equal(key, someKey(1)) {
		t.Errorf("loads %x, %v", key, err)
	}
	chooseKeychain(t, source)

	// A whole vault on it.
	cfg := vault.Config{File: filepath.Join(t.TempDir(), "vault.db"), Keys: source}
	v, err := vault.Create(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	v.Lock()
	if err := v.Unlock(t.Context()); err != nil || v.KeyKind() != keysource.KindKeychain {
		t.Errorf("unlocks a vault of kind %s with %v", v.KeyKind(), err)
	}
	v.Lock()
	defer v.Close()

	// Stopped, it is silent, and not to be taken for empty.
	if err := syscall.Kill(daemon.Process.Pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := v.UnlockWith(t.Context(), keysource.Keychain(self(t), hasty)); !errors.Is(err, vault.ErrKeyNotAnswering) {
		t.Errorf("stopped: %v", err)
	}
	if err := syscall.Kill(daemon.Process.Pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err := v.Unlock(t.Context()); err != nil {
		t.Errorf("going on: %v", err)
	}
}

// A keyring that nobody unlocked says so, or asks somebody who is not there: not answering, and not "no such key".
func TestLockedKeychain(t *testing.T) {
	programs(t, "keychain", "dbus-daemon", "gnome-keyring-daemon", "secret-tool")
	bounded(t, "locked keychain")
	bus := privateBus(t)
	daemon := gnomeKeyring(t, bus, "password")
	if err := keysource.Keychain(self(t), patient).Store(t.Context(), id, someKey(1)); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(daemon.Process.Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for range 500 {
		var owned bool
		if err := bus.BusObject().Call("org.freedesktop.DBus.NameHasOwner", 0, secretsName).Store(&owned); err != nil {
			t.Fatal(err)
		}
		if !owned {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	gnomeKeyring(t, bus, "not the password")
	source := keysource.Keychain(self(t), 5*time.Second)
	if _, err := source.Load(t.Context(), id); !errors.Is(err, vault.ErrKeyNotAnswering) {
		t.Errorf("loads with %v", err)
	}
	if err := source.Store(t.Context(), id, someKey(2)); !errors.Is(err, vault.ErrKeyNotAnswering) {
		t.Errorf("stores with %v", err)
	}
}

// lyingService is a Secret Service that answers as a test wants, and not as it should.
type lyingService struct {
	bus  *dbus.Conn
	mode string
}

const (
	secretsPath = dbus.ObjectPath("/org/freedesktop/secrets")
	loginPath   = dbus.ObjectPath("/org/freedesktop/secrets/collection/login")
	promptPath  = dbus.ObjectPath("/org/freedesktop/secrets/prompt/1")
	noPrompt    = dbus.ObjectPath("/")
)

var errRefused = dbus.NewError("org.freedesktop.DBus.Error.Failed", nil)

func silence() { select {} }

// Get serves org.freedesktop.DBus.Properties.
func (s *lyingService) Get(string, string) (dbus.Variant, *dbus.Error) {
	switch s.mode {
	case "silent":
		silence()
	case "malformed":
		return dbus.MakeVariant("not a list of paths"), nil
	case "refusing":
		return dbus.Variant{}, errRefused
	}
	return dbus.MakeVariant([]dbus.ObjectPath{loginPath}), nil
}

// Unlock serves org.freedesktop.Secret.Service.
func (s *lyingService) Unlock(paths []dbus.ObjectPath) ([]dbus.ObjectPath, dbus.ObjectPath, *dbus.Error) {
	switch s.mode {
	case "unlock prompt":
		return []dbus.ObjectPath{}, promptPath, nil
	case "locked":
		return []dbus.ObjectPath{}, noPrompt, nil
	}
	return paths, noPrompt, nil
}

// OpenSession serves org.freedesktop.Secret.Service.
func (s *lyingService) OpenSession(string, dbus.Variant) (dbus.Variant, dbus.ObjectPath, *dbus.Error) {
	return dbus.MakeVariant(""), "/org/freedesktop/secrets/session/1", nil
}

// SearchItems serves org.freedesktop.Secret.Collection: there is never anything.
func (s *lyingService) SearchItems(map[string]string) ([]dbus.ObjectPath, *dbus.Error) {
	return []dbus.ObjectPath{}, nil
}

// secret is how the interface sends one.
type secret struct {
	Session           dbus.ObjectPath
	Parameters, Value []byte
	ContentType       string
}

// CreateItem serves org.freedesktop.Secret.Collection: it stores nothing.
func (s *lyingService) CreateItem(map[string]dbus.Variant, secret, bool) (dbus.ObjectPath, dbus.ObjectPath, *dbus.Error) {
	return noPrompt, promptPath, nil
}

// Prompt serves org.freedesktop.Secret.Prompt.
func (s *lyingService) Prompt(string) *dbus.Error {
	switch s.mode {
	case "dismissed":
		_ = s.bus.Emit(promptPath, "org.freedesktop.Secret.Prompt.Completed", true, dbus.MakeVariant(""))
	case "odd prompt":
		_ = s.bus.Emit(promptPath, "org.freedesktop.Secret.Prompt.Completed", "yes")
	}
	return nil
}

// serve exports the liar under the names of the real objects.
func (s *lyingService) serve(t *testing.T) {
	t.Helper()
	for _, export := range []struct {
		path  dbus.ObjectPath
		iface string
		calls map[string]any
	}{
		{secretsPath, "org.freedesktop.DBus.Properties", map[string]any{"Get": s.Get}},
		{secretsPath, "org.freedesktop.Secret.Service", map[string]any{"Unlock": s.Unlock, "OpenSession": s.OpenSession}},
		{loginPath, "org.freedesktop.Secret.Collection", map[string]any{"SearchItems": s.SearchItems, "CreateItem": s.CreateItem}},
		{promptPath, "org.freedesktop.Secret.Prompt", map[string]any{"Prompt": s.Prompt}},
	} {
		if err := s.bus.ExportMethodTable(export.calls, export.path, export.iface); err != nil {
			t.Fatal(err)
		}
	}
	reply, err := s.bus.RequestName(secretsName, dbus.NameFlagDoNotQueue)
	if err != nil || reply != dbus.RequestNameReplyPrimaryOwner {
		t.Fatalf("the name is not ours: %v, %v", reply, err)
	}
}

// P11: a service that never replies, replies nonsense, or asks a person who is not there or says no.
func TestLyingKeychain(t *testing.T) {
	programs(t, "keychain", "dbus-daemon")
	for mode, want := range map[string]struct{ load, store error }{
		"silent":        {vault.ErrKeyNotAnswering, vault.ErrKeyNotAnswering},
		"malformed":     {vault.ErrKeyNotAnswering, vault.ErrKeyNotAnswering}, // panics the library
		"locked":        {vault.ErrKeyNotAnswering, vault.ErrKeyNotAnswering},
		"refusing":      {vault.ErrKeyNotAnswering, vault.ErrKeyNotAnswering},
		"unlock prompt": {vault.ErrKeyNotAnswering, vault.ErrKeyNotAnswering}, // never completed
		"dismissed":     {vault.ErrKeyUnavailable, vault.ErrKeyNotAnswering},  // Set reports success
		"odd prompt":    {vault.ErrKeyUnavailable, vault.ErrKeyNotAnswering},  // panics the library
		"no answer":     {vault.ErrKeyUnavailable, vault.ErrKeyNotAnswering},  // prompt of CreateItem never completed
	} {
		t.Run(mode, func(t *testing.T) {
			bounded(t, mode)
			service := &lyingService{bus: privateBus(t), mode: mode}
			service.serve(t)
			limit := patient
			if strings.Contains("silent, unlock prompt", mode) {
				limit = hasty
			}
			source := keysource.Keychain(self(t), limit)
			if _, err := source.Load(t.Context(), id); !errors.Is(err, want.load) {
				t.Errorf("loads with %v, want %v", err, want.load)
			}
			if mode == "no answer" {
				source = keysource.Keychain(self(t), hasty)
			}
			err := source.Store(t.Context(), id, someKey(1))
			if !errors.Is(err, want.store) {
				t.Errorf("stores with %v, want %v", err, want.store)
			}
			t.Log(err)
			// And no vault comes of it, in no form.
			dir := t.TempDir()
			if _, err := vault.Create(t.Context(), vault.Config{File: filepath.Join(dir, "vault.db"), Keys: source}); err == nil {
				t.Error("a vault without a key")
			}
			if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
				t.Errorf("left: %v, %v", entries, err)
			}
		})
	}
}
