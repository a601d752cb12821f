package main

import (
	"bufio"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/godbus/dbus/v5"
)

// bus starts a session bus of its own.
func bus(t *testing.T) (address string) {
	t.Helper()
	path, err := exec.LookPath("dbus-daemon")
	if err != nil {
		t.Skip("suite left out: desktop: there is no dbus-daemon")
	}
	daemon := exec.Command(path, "--session", "--nofork", "--nopidfile", "--print-address=1", "--address=unix:dir="+t.TempDir())
	out, err := daemon.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = daemon.Process.Kill()
		_ = daemon.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the bus says nothing: %v", err)
	}
	return strings.TrimSpace(line)
}

// fakeDesktop shows notifications to nobody.
type fakeDesktop struct {
	mu     sync.Mutex
	shown  [][2]string // title and text
	closed []uint32
}

// Notify is that of the specification.
func (f *fakeDesktop) Notify(_ string, _ uint32, _, title, text string, actions []string, _ map[string]dbus.Variant, _ int32) (uint32, *dbus.Error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(actions) > 0 {
		return 0, dbus.MakeFailedError(exec.ErrNotFound) // nothing can be answered there
	}
	f.shown = append(f.shown, [2]string{title, text})
	return uint32(len(f.shown)), nil
}

// CloseNotification is that of the specification.
func (f *fakeDesktop) CloseNotification(id uint32) *dbus.Error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = append(f.closed, id)
	return nil
}

func TestDesktop(t *testing.T) {
	address := bus(t)
	t.Setenv("DBUS_SESSION_BUS_ADDRESS", address)
	told, err := newDesktop(false, notifyApp())
	if err != nil {
		t.Fatal(err)
	}
	m := fakeApproval("kmpx", "worker", "desk", "publish", `{"title":"private"}`)
	m.Why = "a rule <b>with markup</b>"
	if err := told.tell(t.Context(), m); err == nil {
		t.Error("nobody shows notifications, and it was told")
	}
	conn, err := dbus.Connect(address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fake := &fakeDesktop{}
	if err := conn.Export(fake, notificationsPath, notificationsName); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.RequestName(notificationsName, dbus.NameFlagDoNotQueue); err != nil {
		t.Fatal(err)
	}
	if err := told.tell(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	told.over(t.Context(), m)
	told.over(t.Context(), m)
	fake.mu.Lock()
	defer fake.mu.Unlock()
	if len(fake.shown) != 1 || len(fake.closed) != 1 || fake.closed[0] != 1 {
		t.Fatalf("shown %v, closed %v", fake.shown, fake.closed)
	}
	title, text := fake.shown[0][0], fake.shown[0][1]
	if title != "worker asks for desk/publish" || !strings.Contains(text, "look: sbctl approvals show kmpx") || !strings.Contains(text, "&lt;b&gt;with markup") {
		t.Errorf("shown %q: %q", title, text)
	}
	if strings.Contains(text, "private") {
		t.Error("the arguments were told")
	}
	t.Setenv("DBUS_SESSION_BUS_ADDRESS", "")
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	if _, err := newDesktop(false, notifyApp()); err == nil {
		t.Error("a desktop was found where there is none")
	}
}
