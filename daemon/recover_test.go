package daemon_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"subjectbroker/daemon"
	"subjectbroker/daemon/daemontest"
	"subjectbroker/proto/place"
	"subjectbroker/proto/recovery"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// sbd runs one of sbd's commands on the home of a stopped daemon.
func sbd(t *testing.T, home string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	return daemontest.Exit(t, daemontest.Command(t, home, append(args, "--home", home)...))
}

// refusesToStart fails the test unless sbd and sbd check refuse the home with a
// code.
func refusesToStart(t *testing.T, home string, code wire.Reason) {
	t.Helper()
	for _, args := range [][]string{{}, {"check"}} {
		exit, _, said := sbd(t, home, args...)
		if exit != wire.Exit(code) || !strings.HasPrefix(said, "sbd: "+string(code)+": ") {
			t.Errorf("sbd %v: exit %d, says %q, want %s", args, exit, said, code)
		}
	}
}

// recovered runs sbd recover, which must do something and say all of that.
func recovered(t *testing.T, home string, says ...string) string {
	t.Helper()
	before := everything(t, home)
	exit, out, said := sbd(t, home, "recover")
	equal(t, "exit without a word of the operator's: "+said, exit, wire.ExitUsage)
	if after := everything(t, home); after != before {
		t.Errorf("without a word of the operator's it changed\n%s\nto\n%s", before, after)
	}
	exit, out2, said := sbd(t, home, "recover", "--yes")
	equal(t, "exit: "+said, exit, wire.ExitDone)
	if !strings.HasPrefix(timeless(out2), timeless(out)) {
		t.Errorf("it said beforehand\n%s\nand then\n%s", out, out2)
	}
	for _, text := range says {
		if !strings.Contains(out, text) {
			t.Errorf("it does not say %q:\n%s", text, out)
		}
	}
	return out2
}

// checks fails the test unless sbd check is content.
func checks(t *testing.T, home string) {
	t.Helper()
	exit, out, said := sbd(t, home, "check")
	equal(t, "exit of check: "+said, exit, wire.ExitDone)
	if !regexp.MustCompile(`(?m)^unchanged: \d+ files$`).MatchString(out) {
		t.Errorf("check says\n%s", out)
	}
}

// timeless takes out when something was set aside.
func timeless(text string) string {
	return regexp.MustCompile(`\d{8}T\d{6}Z`).ReplaceAllString(text, "TIME")
}

// sound fails the test unless sbd check is content, and sbd recover finds
// nothing to do.
func sound(t *testing.T, home string) {
	t.Helper()
	checks(t, home)
	exit, out, said := sbd(t, home, "recover")
	equal(t, "exit of a recovery of nothing: "+said, exit, wire.ExitDone)
	if !strings.Contains(out, "nothing is wrong") {
		t.Errorf("a recovery of nothing says\n%s", out)
	}
}

// everything describes all files of a home but the lock.
func everything(t *testing.T, home string) string {
	t.Helper()
	var all strings.Builder
	must(t, filepath.WalkDir(home, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == place.LockFile(home) || entry.Type()&fs.ModeSocket != 0 {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		var raw []byte
		if entry.Type().IsRegular() {
			if raw, err = os.ReadFile(path); err != nil {
				return err
			}
		}
		fmt.Fprintf(&all, "%s %v %x\n", path, info.Mode(), raw)
		return nil
	}))
	return all.String()
}

// remove takes files and folders away.
func remove(t *testing.T, paths ...string) {
	t.Helper()
	for _, path := range paths {
		must(t, os.RemoveAll(path))
	}
}

// spoilable is a daemon with content, two grants with uses and one without, that
// a test may damage.
type spoilable struct {
	*daemontest.Daemon
	limited, fresh string // ids of grants of worker: 3 uses of doc, one used; 2 uses of other, none
}

func newSpoilable(t *testing.T, config string) *spoilable {
	t.Helper()
	d := &spoilable{Daemon: daemontest.Launch(t, daemontest.Options{Spoiled: true, Config: config})}
	d.Put("doc", "one")
	d.Put("other", "two")
	d.Put("always", "three")
	d.Put("payroll", "four")
	d.AddSubject("worker")
	d.limited = d.Grant("worker", "read:doc", daemontest.Uses(3))
	d.fresh = d.Grant("worker", "read:other", daemontest.Uses(2))
	d.Grant("worker", "read:always")
	d.reads(t, "doc", "one")
	return d
}

func (d *spoilable) reads(t *testing.T, name, want string) {
	t.Helper()
	if content, reason := d.Open("worker").Read(name); content != want {
		t.Errorf("%s reads %q: %s", name, content, reason)
	}
}

// exhausted fails the test unless only what has no limit can be read.
func (d *spoilable) exhausted(t *testing.T) {
	t.Helper()
	run := d.Open("worker")
	for _, name := range []string{"doc", "other"} {
		equal(t, name, run.Refused(name), wire.AccessDenied)
	}
	d.reads(t, "always", "three")
}

// begins returns what the first entry says of an older log.
func (d *spoilable) begins() (cause string, seq uint64) {
	first := d.Entries("segment.opened")[0]
	return first.Cause, first.Count
}

func (d *spoilable) accepted(t *testing.T) (cause string) {
	t.Helper()
	entries := d.Entries("vault.accept")
	if len(entries) != 1 {
		t.Fatalf("%d entries of kind vault.accept", len(entries))
	}
	return entries[0].Cause
}

func TestRecoverNothing(t *testing.T) {
	t.Parallel()
	d := newSpoilable(t, "")
	d.Stop()
	before := everything(t, d.Home)
	sound(t, d.Home)
	equal(t, "the home", everything(t, d.Home), before)
	d.Start()
	exit, _, said := sbd(t, d.Home, "recover", "--yes")
	equal(t, "beside a daemon: "+said, exit, wire.ExitBusy)
}

// P3: an older vault beside its log, put back right after a revoke that was
// acknowledged. What is accepted has its uses counted on.
func TestRecoverOlderVault(t *testing.T) {
	t.Parallel()
	d := newSpoilable(t, "")
	lost := d.Grant("worker", "read:payroll")
	d.Stop()
	old := daemontest.Copy(t, d.Home, "vault.db")
	d.Start()
	d.Revoke(lost)
	d.Kill()
	daemontest.Restore(t, old)
	refusesToStart(t, d.Home, wire.RollbackDetected)
	recovered(t, d.Home, "grant.revoke", lost, "in force again")
	kept, err := filepath.Glob(place.VaultFile(d.Home) + ".before-*")
	if err != nil || len(kept) != 1 {
		t.Fatalf("kept %v, %v", kept, err)
	}
	raw, err := os.ReadFile(kept[0])
	must(t, err)
	if !bytes.Equal(raw, old[place.VaultFile(d.Home)]) {
		t.Error("what was kept of the vault is not what was there")
	}
	sound(t, d.Home)
	d.Start()
	equal(t, "cause", d.accepted(t), "VAULT_OLDER")
	equal(t, "the revoked grant", d.Grants("worker")[lost].GetState(), "active")
	ends(t, d.Daemon)
	d.Stop()
	sound(t, d.Home)
}

// Uses that only the log remembers go on counting, also those of a grant that
// was granted again after the moment of the older vault.
func TestRecoverOlderVaultCountsOn(t *testing.T) {
	t.Parallel()
	d := newSpoilable(t, "")
	d.Stop()
	old := daemontest.Copy(t, d.Home, "vault.db")
	d.Start()
	d.reads(t, "doc", "one")
	equal(t, "the same grant, granted again", d.Grant("worker", "read:doc", daemontest.Uses(3)), d.limited)
	d.reads(t, "doc", "one")
	d.Kill()
	daemontest.Restore(t, old)
	recovered(t, d.Home)
	d.Start()
	d.reads(t, "doc", "one") // the third of three
	equal(t, "the fourth", d.Open("worker").Refused("doc"), wire.AccessDenied)
	d.reads(t, "other", "two")
}

// A log that is gone, cut, damaged or without its key, or older than the vault,
// is set aside whole, and what it alone knew counts as used up.
func TestRecoverLog(t *testing.T) {
	t.Parallel()
	segment := func(home string) string { return filepath.Join(place.AuditDir(home), "00000001.jsonl") }
	for name, tc := range map[string]struct {
		spoil func(t *testing.T, d *spoilable, old map[string][]byte)
		code  wire.Reason
		gone  bool // there is nothing to set aside
	}{
		"folder removed":  {func(t *testing.T, d *spoilable, _ map[string][]byte) { remove(t, place.AuditDir(d.Home)) }, wire.AuditDamaged, true},
		"segment removed": {func(t *testing.T, d *spoilable, _ map[string][]byte) { remove(t, segment(d.Home)) }, wire.RollbackDetected, true},
		"older log":       {func(t *testing.T, _ *spoilable, old map[string][]byte) { daemontest.Restore(t, old) }, wire.RollbackDetected, false},
		"key removed":     {func(t *testing.T, d *spoilable, _ map[string][]byte) { remove(t, place.AuditKey(d.Home)) }, wire.AuditDamaged, false},
		"emptied":         {func(t *testing.T, d *spoilable, _ map[string][]byte) { write(t, segment(d.Home), "") }, wire.AuditDamaged, false},
		"flipped": {func(t *testing.T, d *spoilable, _ map[string][]byte) {
			raw := d.RawLog()
			raw[len(raw)/2] ^= 1
			must(t, os.WriteFile(segment(d.Home), raw, 0o600))
		}, wire.AuditDamaged, false},
		"everything and the key removed": {func(t *testing.T, d *spoilable, _ map[string][]byte) {
			remove(t, place.AuditDir(d.Home), place.AuditKey(d.Home))
		}, wire.AuditDamaged, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newSpoilable(t, "")
			old := daemontest.Copy(t, d.Home, "audit")
			d.Put("doc", "one")
			d.Kill()
			tc.spoil(t, d, old)
			spoilt := d.RawLog()
			refusesToStart(t, d.Home, tc.code)
			recovered(t, d.Home, d.limited, d.fresh, "count as used up")
			aside, err := filepath.Glob(filepath.Join(place.AuditDir(d.Home), "aside-*", "*.jsonl"))
			must(t, err)
			switch {
			case tc.gone:
				equal(t, "files set aside", len(aside), 0)
			case len(aside) != 1:
				t.Errorf("set aside: %v", aside)
			default:
				raw, err := os.ReadFile(aside[0])
				must(t, err)
				if !bytes.Equal(raw, spoilt) {
					t.Error("the log was changed when it was set aside")
				}
			}
			sound(t, d.Home)
			d.Start()
			equal(t, "cause", d.accepted(t), "LOG_SET_ASIDE")
			cause, seq := d.begins()
			equal(t, "origin", cause, "SET_ASIDE")
			if seq == 0 {
				t.Error("the new log does not say where the old one ended")
			}
			d.exhausted(t)
			d.Grant("worker", "read:doc", daemontest.Uses(1))
			d.reads(t, "doc", "one")
			d.Stop()
			sound(t, d.Home)
		})
	}
}

// An answer that stood does not stand in what was accepted: it may have been taken
// back, or used, in what was lost.
func TestRecoverEndsStandingApprovals(t *testing.T) {
	t.Parallel()
	d := daemontest.Launch(t, daemontest.Options{Spoiled: true, ApprovalWait: impatient})
	d.Authenticate()
	d.Put("readme", "hello")
	d.AddSubject("worker")
	d.Grant("worker", "read:readme", daemontest.Gated)
	id := pending(t, d.Open("worker"), "readme")
	_, reason := decide(t, d, &operatorv1.DecideApprovalRequest{ApprovalId: id, Approve: true, Scope: "uses", Uses: 5})
	equal(t, "approving", reason, wire.Allowed)
	equal(t, "reading", d.Open("worker").Refused("readme"), wire.Allowed)
	equal(t, "standing approvals", len(consents(t, d)), 1)
	d.Kill()
	remove(t, place.AuditDir(d.Home))
	recovered(t, d.Home, "lost: 1 standing approvals; a person is asked again")
	sound(t, d.Home)
	d.Start()
	equal(t, "their end", words(d.Entries("approval.void")), "approval.void deny LOG_SET_ASIDE")
	d.Authenticate()
	equal(t, "standing approvals afterwards", len(consents(t, d)), 0)
	equal(t, "reading afterwards", d.Open("worker").Refused("readme"), wire.ApprovalPending)
	d.Stop()
	sound(t, d.Home)
}

// P3: a matching older pair is noticed by the head outside the home.
func TestRecoverOlderPair(t *testing.T) {
	t.Parallel()
	head := filepath.Join(t.TempDir(), "head")
	d := newSpoilable(t, "audit: {headFile: "+head+"}\n")
	lost := d.Grant("worker", "read:payroll")
	d.Stop()
	old := daemontest.Copy(t, d.Home, "vault.db", "audit", "audit.key")
	d.Start()
	d.Revoke(lost)
	d.Kill()
	remove(t, place.AuditDir(d.Home))
	must(t, os.Mkdir(place.AuditDir(d.Home), 0o700))
	daemontest.Restore(t, old)
	refusesToStart(t, d.Home, wire.RollbackDetected)
	kept, err := os.ReadFile(head)
	must(t, err)
	recovered(t, d.Home, head, "in force again")
	moved, err := filepath.Glob(head + ".before-*")
	if err != nil || len(moved) != 1 {
		t.Fatalf("the head became %v, %v", moved, err)
	}
	again, err := os.ReadFile(moved[0])
	must(t, err)
	equal(t, "the old head", string(again), string(kept))
	sound(t, d.Home)
	d.Start()
	equal(t, "cause", d.accepted(t), "OLDER_THAN_HEAD")
	d.exhausted(t)
	d.Stop()
	sound(t, d.Home)

	// Without the head nobody could tell: what opens is the old pair.
	must(t, os.WriteFile(filepath.Join(d.Home, "config.yaml"), nil, 0o600))
	remove(t, place.AuditDir(d.Home))
	must(t, os.Mkdir(place.AuditDir(d.Home), 0o700))
	daemontest.Restore(t, old)
	d.Start()
	equal(t, "the revoked grant", d.Grants("worker")[lost].GetState(), "active")
}

// A vault that cannot be read cannot be recovered, and nothing is done to it.
func TestRecoverDamagedVault(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		spoil func(t *testing.T, path string, raw []byte)
		code  wire.Reason
	}{
		"rows": {func(t *testing.T, path string, raw []byte) {
			for i := range raw {
				if i > 40 && bytes.HasSuffix(raw[:i], []byte("v1:1:")) {
					raw[i+30] ^= 1
				}
			}
			must(t, os.WriteFile(path, raw, 0o600))
		}, wire.IntegrityFailed},
		"removed": {func(t *testing.T, path string, _ []byte) { remove(t, path) }, wire.VaultMissing},
		"garbage": {func(t *testing.T, path string, _ []byte) { write(t, path, "garbage") }, wire.VaultDamaged},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newSpoilable(t, "")
			d.Stop()
			raw, err := os.ReadFile(place.VaultFile(d.Home))
			must(t, err)
			tc.spoil(t, place.VaultFile(d.Home), raw)
			before := everything(t, d.Home)
			exit, _, said := sbd(t, d.Home, "recover", "--yes")
			equal(t, "exit", exit, wire.ExitIntegrity)
			if !strings.HasPrefix(said, "sbd: "+string(tc.code)+": ") || !strings.Contains(said, "sbd restore FILE") {
				t.Errorf("says %q", said)
			}
			equal(t, "the home", everything(t, d.Home), before)
		})
	}
}

// One damaged content does not stand in the way of accepting the rest, which a
// start would serve, too; alone it cannot be recovered.
func TestRecoverBesideDamagedContent(t *testing.T) {
	t.Parallel()
	d := newSpoilable(t, "")
	d.Put("large", strings.Repeat("x", 9000))
	d.Stop()
	damageContent(t, d.Home)
	exit, _, said := sbd(t, d.Home, "recover", "--yes")
	equal(t, "alone: "+said, exit, wire.ExitIntegrity)
	remove(t, place.AuditDir(d.Home))
	recovered(t, d.Home, "found: verifying vault: ")
	exit, _, said = sbd(t, d.Home, "check")
	equal(t, "check: "+said, exit, wire.ExitIntegrity)
	d.Start()
	d.reads(t, "always", "three")
}

// damageContent flips a bit of the one large content in a vault.
func damageContent(t *testing.T, home string) {
	t.Helper()
	raw, err := os.ReadFile(place.VaultFile(home))
	must(t, err)
	at := regexp.MustCompile(`v1:1:[A-Za-z0-9+/]{1000}`).FindIndex(raw)
	if at == nil {
		t.Fatal("the content is not where it is looked for")
	}
	raw[at[0]+100] ^= 1
	must(t, os.WriteFile(place.VaultFile(home), raw, 0o600))
}

// A lost slot key: the recovery code opens the vault and makes a new one.
func TestRecoverKey(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		spoil func(t *testing.T, path string)
		code  wire.Reason
		kept  int
	}{
		"removed": {func(t *testing.T, path string) { remove(t, path) }, wire.KeyUnavailable, 0},
		"another": {func(t *testing.T, path string) { write(t, path, strings.Repeat("k", 32)) }, wire.WrongKey, 1},
		"cut":     {func(t *testing.T, path string) { write(t, path, "k") }, wire.KeyFileUnsafe, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newSpoilable(t, "")
			code := addRecovery(t, d.Daemon)
			d.Stop()
			tc.spoil(t, place.KeyFile(d.Home))
			exit, _, _ := sbd(t, d.Home)
			equal(t, "exit", exit, wire.Exit(tc.code))
			exit, _, said := sbd(t, d.Home, "recover", "--yes")
			equal(t, "exit without the code", exit, wire.Exit(tc.code))
			if !strings.Contains(said, "hint: sbd recover --slot recovery") {
				t.Errorf("says %q", said)
			}
			// What check says with the code is that all is well but the key.
			exit, out, said := withCode(t, d.Home, code.Text(), "check")
			equal(t, "exit of check: "+said, exit, wire.ExitDone)
			if !strings.Contains(out, "key: the slot file does not open") {
				t.Errorf("check says %q", out)
			}
			before := everything(t, d.Home)
			exit, _, _ = withCode(t, d.Home, "00000-00000", "recover", "--yes")
			equal(t, "exit with a malformed code", exit, wire.ExitUsage)
			equal(t, "the home", everything(t, d.Home), before)

			exit, out, said = withCode(t, d.Home, strings.ToLower(code.Text())+"\n", "recover", "--yes")
			equal(t, "exit: "+said, exit, wire.ExitDone)
			kept, err := filepath.Glob(place.KeyFile(d.Home) + ".before-*")
			must(t, err)
			equal(t, "key files kept", len(kept), tc.kept)
			sound(t, d.Home)
			d.Start()
			d.reads(t, "doc", "one")
			if n := len(d.Entries("key.slot_replace")); n != 1 {
				t.Errorf("%d entries tell of it; sbd said\n%s", n, out)
			}
			equal(t, "accepted vaults", len(d.Entries("vault.accept")), 0)
		})
	}
}

// offline makes one of sbd's commands work in this process, with a fake keychain.
func (k keychain) offline(home string, code recovery.Code) (o daemon.Offline, said *strings.Builder) {
	said = &strings.Builder{}
	return daemon.Offline{
		Config: daemon.Config{
			Home: home, Logger: slog.New(slog.DiscardHandler), Self: filepath.Join(k.dir, "keychain"), KeychildArg: "none", Version: "test",
		},
		Person: knowing{code}, Slot: "recovery", Say: func(line string) { fmt.Fprintln(said, line) },
	}, said
}

// knowing says yes, and the recovery code.
type knowing struct{ code recovery.Code }

func (knowing) Confirm(string) (bool, error)    { return true, nil }
func (k knowing) Secret(string) ([]byte, error) { return k.code.Seed(), nil }

// A keychain that is down keeps its slot, and the vault gets one more; one that
// has lost the key has its slot replaced.
func TestRecoverKeychain(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		spoil func(k keychain)
		slots string
	}{
		"down": {keychain.refuse, "keychain recovery file"},
		"lost": {func(k keychain) {
			items, err := filepath.Glob(filepath.Join(k.dir, "item-*"))
			must(k.t, err)
			remove(k.t, items...)
		}, "recovery keychain"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := newKeychain(t)
			d := daemontest.StartWith(t, k.options())
			d.Put("doc", "one")
			code := addRecovery(t, d)
			d.Stop()
			tc.spoil(k)
			o, said := k.offline(d.Home, code)
			must(t, daemon.Recover(t.Context(), o))
			d.Start()
			equal(t, "state", d.Status().GetVaultState(), "unlocked")
			equal(t, "slots; it said\n"+said.String(), strings.Join(kinds(keysOf(t, d).GetSlots()), " "), tc.slots)
			equal(t, "content", d.Content("doc"), "one")
		})
	}
}

// forget takes the keychain's item away.
func TestForgetKeychain(t *testing.T) {
	t.Parallel()
	k := newKeychain(t)
	d := daemontest.StartWith(t, k.options())
	d.Stop()
	o, said := k.offline(d.Home, recovery.Code{})
	must(t, daemon.Forget(t.Context(), o))
	items, err := filepath.Glob(filepath.Join(k.dir, "item-*"))
	must(t, err)
	if len(items) > 0 || !strings.Contains(said.String(), "removed: the keychain's item") {
		t.Errorf("left %v; it said\n%s", items, said)
	}
	must(t, daemon.Forget(t.Context(), o))
	if !strings.Contains(said.String(), "holds no key") {
		t.Errorf("the second time it said\n%s", said)
	}
	k.refuse()
	if err := daemon.Forget(t.Context(), o); err == nil {
		t.Error("a keychain that does not answer passes for one that has forgotten")
	}
}

// withCode gives a recovery code to a command in a descriptor.
func withCode(t *testing.T, home, code string, args ...string) (exit int, stdout, stderr string) {
	t.Helper()
	read, written, err := os.Pipe()
	must(t, err)
	defer read.Close()
	_, err = written.WriteString(code)
	must(t, err)
	must(t, written.Close())
	cmd := daemontest.Command(t, home, append(args, "--home", home, "--recovery-code-fd", "3")...)
	cmd.ExtraFiles = []*os.File{read}
	return daemontest.Exit(t, cmd)
}

// dieAt carries out a command of sbd and dies as by kill -9 at a step.
func dieAt(verb, step, home, file string) int {
	o := daemon.Offline{
		Config: daemon.Config{Home: home, KeySource: "file", Logger: slog.New(slog.DiscardHandler), Self: "/nonexistent", KeychildArg: "none", Version: "test"},
		Person: obliging{}, Slot: os.Getenv("TEST_SLOT"),
		Say: func(line string) { fmt.Println(line) },
	}
	daemon.DieAt(&o, step)
	var err error
	switch verb {
	case "recover":
		err = daemon.Recover(context.Background(), o)
	case "restore":
		err = daemon.Restore(context.Background(), o, file, false)
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// obliging says yes, and the secret in its environment, in hex.
type obliging struct{}

func (obliging) Confirm(string) (bool, error)  { return true, nil }
func (obliging) Secret(string) ([]byte, error) { return hex.DecodeString(os.Getenv("TEST_SECRET")) }

// dies runs dieAt in a process of its own and reports whether it came to the
// step.
func dies(t *testing.T, verb, step, home, file string, env ...string) bool {
	t.Helper()
	cmd := exec.Command(os.Args[0], "die", verb, step, home, file)
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if err == nil {
		return false
	}
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
		t.Fatalf("dying at %s: %v\n%s", step, err, out)
	}
	return true
}

// P12: killed between any two steps, a recovery finishes when it is run again,
// or the next start does.
func TestRecoverDies(t *testing.T) {
	t.Parallel()
	head := filepath.Join(t.TempDir(), "head")
	d := newSpoilable(t, "audit: {headFile: "+head+"}\n")
	d.Stop()
	old := daemontest.Copy(t, d.Home, "vault.db", "audit", "audit.key")
	d.Start()
	d.Put("doc", "late")
	d.Stop()
	newer := daemontest.Copy(t, d.Home, "vault.db", "audit", "audit.key")
	newest, err := os.ReadFile(head)
	must(t, err)
	for name, tc := range map[string]struct {
		from  []map[string][]byte
		cause string
		steps string
	}{
		"older pair":  {[]map[string][]byte{old}, "OLDER_THAN_HEAD", "kept|set aside|opened|marked|intended|committed|accepted|moved|done"},
		"older log":   {[]map[string][]byte{newer, without(old, place.VaultFile(d.Home))}, "LOG_SET_ASIDE", "kept|set aside|opened|marked|intended|committed|accepted|moved|done"},
		"older vault": {[]map[string][]byte{newer, only(old, place.VaultFile(d.Home))}, "VAULT_OLDER", "kept|opened|marked|intended|committed|accepted|moved|done"},
	} {
		for _, step := range strings.Split(tc.steps, "|") {
			t.Run(name+", "+step, func(t *testing.T) {
				clearHome(t, d.Home)
				for _, files := range tc.from {
					daemontest.Restore(t, files)
				}
				must(t, os.WriteFile(head, newest, 0o600))
				if !dies(t, "recover", step, d.Home, "") {
					t.Fatal("it does not come to this step")
				}
				exit, out, said := sbd(t, d.Home, "recover", "--yes")
				equal(t, "exit of the second attempt: "+said, exit, wire.ExitDone)
				checks(t, d.Home)
				d.Start()
				ends(t, d.Daemon)
				causes := []string{}
				for _, e := range d.Entries("vault.accept") {
					causes = append(causes, e.Cause)
				}
				if len(causes) == 0 || len(causes) > 2 || causes[0] != tc.cause && causes[0] != "LOG_SET_ASIDE" {
					t.Errorf("accepted: %v; the second attempt said\n%s", causes, out)
				}
				if name != "older vault" {
					d.exhausted(t)
				} else {
					d.reads(t, "doc", "one")
				}
				equal(t, "exit", d.Stop(), 0)
			})
		}
	}
}

// Killed while the new key slot is made: the vault opens with what the person
// has until it opens with the new key, and the next attempt finishes.
func TestRecoverKeyDies(t *testing.T) {
	t.Parallel()
	d := newSpoilable(t, "")
	code := addRecovery(t, d.Daemon)
	d.Stop()
	kept := daemontest.Copy(t, d.Home, "vault.db", "audit", "audit.key")
	env := []string{"TEST_SLOT=recovery", "TEST_SECRET=" + hex.EncodeToString(code.Seed())}
	for _, step := range strings.Split("opened|key file kept|intended|committed|slot made|done", "|") {
		t.Run(step, func(t *testing.T) {
			clearHome(t, d.Home)
			daemontest.Restore(t, kept)
			left, err := filepath.Glob(place.KeyFile(d.Home) + "*")
			must(t, err)
			remove(t, left...)
			write(t, place.KeyFile(d.Home), strings.Repeat("k", 32))
			if !dies(t, "recover", step, d.Home, "", env...) {
				t.Fatal("it does not come to this step")
			}
			exit, _, said := withCode(t, d.Home, code.Text(), "recover", "--yes")
			equal(t, "exit of the second attempt: "+said, exit, wire.ExitDone)
			checks(t, d.Home)
			d.Start()
			d.reads(t, "always", "three")
			ends(t, d.Daemon)
			equal(t, "exit", d.Stop(), 0)
		})
	}
}

func only(files map[string][]byte, path string) map[string][]byte {
	return map[string][]byte{path: files[path]}
}

func without(files map[string][]byte, path string) map[string][]byte {
	rest := map[string][]byte{}
	for name, raw := range files {
		if name != path {
			rest[name] = raw
		}
	}
	return rest
}

// clearHome leaves nothing of log and vault.
func clearHome(t *testing.T, home string) {
	t.Helper()
	left, err := filepath.Glob(place.VaultFile(home) + "*")
	must(t, err)
	remove(t, append(left, place.AuditDir(home), place.AuditKey(home))...)
	must(t, os.Mkdir(place.AuditDir(home), 0o700))
}
