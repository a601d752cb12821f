package daemon_test

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"subjectbroker/daemon/daemontest"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
	"subjectbroker/worker/workertest"
)

// keychain is a fake OS keychain: a script in place of sbd's own helper, that
// answers from a folder. A script, because the real one has 5 s to answer and a
// test's program takes long to start on a busy machine.
type keychain struct {
	t   *testing.T
	dir string
}

const keychainScript = `#!/bin/sh
cd "$(dirname "$0")" || exit 1
read -r request
echo asked >>asked
field() { printf %s "$request" | sed -n "s/.*\"$1\":\"\([^\"]*\)\".*/\1/p"; }
if [ -p hang ]; then cat hang >/dev/null; fi
item="item-$(field account)"
if [ -e refuse ]; then
	echo '{"status":"unavailable","reason":"it is locked"}'
elif [ "$(field op)" = set ]; then
	field key >"$item" && echo '{"status":"ok"}'
elif [ "$(field op)" = remove ] && [ -e "$item" ]; then
	rm "$item" && echo '{"status":"ok"}'
elif [ -e "$item" ]; then
	printf '{"status":"ok","key":"%s"}\n' "$(cat "$item")"
else
	echo '{"status":"not-found"}'
fi
`

func newKeychain(t *testing.T) keychain {
	t.Helper()
	k := keychain{t, t.TempDir()}
	must(t, workertest.WriteProgram(filepath.Join(k.dir, "keychain"), []byte(keychainScript)))
	return k
}

// options start a daemon that uses it.
func (k keychain) options() daemontest.Options {
	return daemontest.Options{KeySource: "keychain", Keychild: filepath.Join(k.dir, "keychain"), Spoiled: true, WaitKey: true}
}

// refuse makes it say that it cannot be used; allow ends that.
func (k keychain) refuse() { write(k.t, filepath.Join(k.dir, "refuse"), "") }
func (k keychain) allow()  { must(k.t, os.Remove(filepath.Join(k.dir, "refuse"))) }

// hang makes it wait; release waits until somebody asks, calls meanwhile, and
// lets it answer.
func (k keychain) hang() { must(k.t, syscall.Mkfifo(filepath.Join(k.dir, "hang"), 0o600)) }

func (k keychain) release(meanwhile func()) {
	gate, err := os.OpenFile(filepath.Join(k.dir, "hang"), os.O_WRONLY, 0)
	must(k.t, err)
	meanwhile()
	must(k.t, os.Remove(filepath.Join(k.dir, "hang")))
	must(k.t, gate.Close())
}

// A key source that does not answer leaves the daemon locked and answering,
// until it does.
func TestStartsLocked(t *testing.T) {
	t.Parallel()
	k := newKeychain(t)
	d := daemontest.StartWith(t, k.options())
	equal(t, "recorded key source", d.Status().GetKeySource(), "keychain")
	d.Put("readme", "hello")
	d.AddSubject("worker")
	d.Grant("worker", "read:readme")
	d.Stop()

	k.refuse()
	d.Start()
	status := d.Status()
	equal(t, "state", status.GetVaultState(), "waiting")
	if !strings.Contains(status.GetVaultCause(), "it is locked") {
		t.Errorf("the cause is %q", status.GetVaultCause())
	}
	equal(t, "the log", status.GetAuditState(), "failing")
	_, err := d.Broker().OpenRun(t.Context(), daemontest.Claim("worker"))
	equal(t, "a run", daemontest.Reason(err), wire.VaultLocked)
	for name, err := range map[string]error{
		"a list":   second(d.Operator().ListResources(t.Context(), &operatorv1.ListResourcesRequest{})),
		"a change": second(d.Operator().AddSubject(t.Context(), &operatorv1.AddSubjectRequest{Name: "other"})),
		"a secret": second(d.Operator().GetSecret(t.Context(), &operatorv1.GetSecretRequest{Name: "readme"})),
		"a policy": second(d.Operator().Export(t.Context(), &operatorv1.ExportRequest{})),
		"the head": second(d.Operator().AuditHead(t.Context(), &operatorv1.AuditHeadRequest{})),
	} {
		equal(t, name, daemontest.Reason(err), wire.VaultLocked)
	}
	_, err = d.Operator().Unlock(t.Context(), &operatorv1.UnlockRequest{})
	equal(t, "an unlock that cannot succeed", daemontest.Reason(err), wire.KeyUnavailable)

	k.allow()
	d.Unlock()
	equal(t, "state", d.Status().GetVaultState(), "unlocked")
	equal(t, "content", d.Content("readme"), "hello")
	equal(t, "reading", d.Open("worker").Refused("readme"), wire.Allowed)
	suppressed := last(d, "suppressed")
	equal(t, "what was refused while there was no log", suppressed.ReasonCode, "VAULT_LOCKED")
	if suppressed.Count == 0 {
		t.Error("the refusals were not counted")
	}
	d.Stop()
	d.Verify()
}

// It asks again by itself. A lock by the operator beats an attempt that is
// under way.
func TestWaitingForTheKey(t *testing.T) {
	t.Parallel()
	k := newKeychain(t)
	d := daemontest.StartWith(t, k.options())
	d.Put("readme", "hello")
	d.Stop()

	k.refuse()
	d.Start()
	k.hang()
	k.allow()
	k.release(func() {
		d.Lock()
		equal(t, "while the key source is asked", d.Status().GetVaultState(), "locked")
	})
	_, err := d.Operator().ListResources(t.Context(), &operatorv1.ListResourcesRequest{})
	equal(t, "when it has answered", daemontest.Reason(err), wire.VaultLocked)
	equal(t, "state", d.Status().GetVaultState(), "locked")
	d.Unlock()
	equal(t, "content", d.Content("readme"), "hello")
	d.Stop()

	k.refuse()
	d.Start()
	k.hang()
	k.allow()
	k.release(func() {}) // the second attempt, which nobody asked for
	for d.Status().GetVaultState() == "waiting" {
		time.Sleep(time.Millisecond) // there is no event for it
	}
	equal(t, "after it answered", d.Status().GetVaultState(), "unlocked")

	// A stop does not wait for it.
	d.Lock()
	k.hang()
	unlocking := make(chan error, 1)
	go func() {
		_, err := d.Operator().Unlock(t.Context(), &operatorv1.UnlockRequest{})
		unlocking <- err
	}()
	k.release(func() { equal(t, "exit code", d.Stop(), 0) })
	if err := <-unlocking; err == nil {
		t.Error("the unlock succeeded")
	}
}

// Without a vault there is nothing to wait with; with one, only a service waits.
func TestKeychainThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	k := newKeychain(t)
	d := daemontest.StartWith(t, k.options())
	d.Stop()
	bus := filepath.Join(daemontest.NewHome(t), "bus")
	silent, err := net.Listen("unix", bus) // takes calls and never answers
	must(t, err)
	defer silent.Close()
	dead := "DBUS_SESSION_BUS_ADDRESS=unix:path=" + bus + ".absent"
	mute := "DBUS_SESSION_BUS_ADDRESS=unix:path=" + bus

	run := func(home string, bus string, args ...string) (int, string) {
		cmd := daemontest.Command(t, home, append(args, "--home", home)...)
		cmd.Env = append(cmd.Env, bus)
		code, _, stderr := daemontest.Exit(t, cmd)
		return code, stderr
	}
	code, said := run(d.Home, dead)
	equal(t, "in the foreground: exit", code, wire.ExitUnavailable)
	equal(t, "in the foreground: "+said, strings.HasPrefix(said, "sbd: KEY_UNAVAILABLE: "), true)

	fresh := daemontest.NewHome(t)
	code, said = run(fresh, dead, "--key-source", "keychain", "--wait-key")
	equal(t, "a first start: exit", code, wire.ExitUnavailable)
	equal(t, "a first start: "+said, strings.HasPrefix(said, "sbd: KEY_UNAVAILABLE: "), true)
	if _, err := os.Stat(filepath.Join(fresh, "vault.db")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a first start without a key made a vault: %v", err)
	}

	launched := daemontest.Options{Home: d.Home, Spoiled: true, Env: []string{dead}}
	launched.WaitKey = true
	waiting := daemontest.Launch(t, launched)
	equal(t, "with --wait-key", waiting.Status().GetVaultState(), "waiting")
	equal(t, "stopped while it waits", waiting.Stop(), 0)

	// Under a service manager the same, and it is told.
	launched.WaitKey = false
	notify := filepath.Join(daemontest.NewHome(t), "notify")
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: notify, Net: "unixgram"})
	must(t, err)
	defer manager.Close()
	launched.Env = []string{dead, "NOTIFY_SOCKET=" + notify}
	waiting = daemontest.Launch(t, launched)
	equal(t, "under a service manager", waiting.Status().GetVaultState(), "waiting")
	equal(t, "the service manager hears", datagram(t, manager), "READY=1")
	equal(t, "stopped", waiting.Stop(), 0)
	equal(t, "the service manager hears", datagram(t, manager), "STOPPING=1")

	// P65: SIGTERM while start-up is blocked in a key source that hangs.
	for name, home := range map[string]string{"a vault": d.Home, "no vault": fresh} {
		cmd := daemontest.Command(t, home, "--home", home, "--key-source", "keychain")
		cmd.Env = append(cmd.Env, mute)
		must(t, cmd.Start())
		conn, err := silent.Accept() // the key source's child has asked
		must(t, err)
		must(t, cmd.Process.Signal(syscall.SIGTERM))
		_ = cmd.Wait()
		equal(t, "stopped while the key source hangs, with "+name, cmd.ProcessState.ExitCode(), 0)
		_ = conn.Close()
	}
	if _, err := os.Stat(filepath.Join(fresh, "vault.db")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a stop in the first start left a vault: %v", err)
	}
}

func datagram(t *testing.T, conn *net.UnixConn) string {
	t.Helper()
	must(t, conn.SetReadDeadline(time.Now().Add(daemontest.Patience)))
	buffer := make([]byte, 100)
	n, err := conn.Read(buffer)
	must(t, err)
	return string(buffer[:n])
}

// second is the error of a call.
func second[T any](_ T, err error) error { return err }
