package daemon_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"subjectbroker/audit/verify"
	"subjectbroker/daemon/daemontest"
	"subjectbroker/proto/place"
	"subjectbroker/proto/recovery"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// backedUp makes a backup of a running daemon, in a file.
func backedUp(t *testing.T, d *daemontest.Daemon, request *operatorv1.BackupRequest) (file string, info *operatorv1.BackupInfo) {
	t.Helper()
	stream, err := d.Operator().Backup(t.Context(), request)
	must(t, err)
	var raw bytes.Buffer
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
		raw.Write(part.GetChunk())
		if part.GetInfo() != nil {
			info = part.GetInfo()
		}
	}
	file = filepath.Join(t.TempDir(), "backup")
	must(t, os.WriteFile(file, raw.Bytes(), 0o600))
	return file, info
}

// newHomePath is a short path where nothing is yet.
func newHomePath(t *testing.T) string {
	t.Helper()
	return filepath.Join(daemontest.NewHome(t), "h")
}

func restoring(t *testing.T, home string, code recovery.Code, file string, args ...string) (exit int, stdout, stderr string) {
	t.Helper()
	return withCode(t, home, code.Text(), append([]string{"restore", file, "--key-source", "file"}, args...)...)
}

// A backup becomes a home with everything of its moment, which no daemon serves
// before it was accepted; grants that were revoked since are in force again, and
// those with a number of uses are used up.
func TestRestore(t *testing.T) {
	t.Parallel()
	old := newSpoilable(t, "")
	code := addRecovery(t, old.Daemon)
	pinned := filepath.Join(t.TempDir(), "readme")
	write(t, pinned, "hello")
	same := filepath.Join(t.TempDir(), "same")
	write(t, same, "stays")
	old.AddFile("readme", pinned, "content")
	old.AddFile("same", same, "content")
	file, info := backedUp(t, old.Daemon, &operatorv1.BackupRequest{Name: "first"})
	old.Put("doc", "later")
	old.Stop()
	genesis := old.Fingerprint()
	write(t, pinned, "hello, other machine")

	home := newHomePath(t)
	exit, out, said := restoring(t, home, code, file, "--dry-run")
	equal(t, "exit of the dry run: "+said, exit, wire.ExitDone)
	if _, err := os.Stat(home); err == nil {
		t.Error("the dry run made the home")
	}
	if !strings.Contains(out, "to pin again: readme, "+pinned) || strings.Contains(out, "to pin again: same") {
		t.Errorf("the dry run says\n%s", out)
	}
	exit, out, said = restoring(t, home, code, file)
	equal(t, "exit: "+said, exit, wire.ExitDone)
	for _, text := range []string{info.GetId(), info.GetHead(), fmt.Sprint(info.GetSeq()), "to pin again: readme, " + pinned, "sbd recover --home " + home} {
		if !strings.Contains(out, text) {
			t.Errorf("it does not say %q:\n%s", text, out)
		}
	}
	report, err := verify.Dir(t.Context(), filepath.Join(home, "restored", "audit"), verify.Options{Genesis: genesis, Expect: &verify.Point{Seq: info.GetSeq(), Hash: info.GetHead()}})
	if err != nil || report.ExitCode() != 0 {
		t.Errorf("the old log: %+v, %v", report, err)
	}

	refusesToStart(t, home, wire.RollbackDetected)
	recovered(t, home, info.GetId(), old.limited, "in force again")
	sound(t, home)
	d := &spoilable{Daemon: daemontest.Launch(t, daemontest.Options{Home: home}), limited: old.limited}
	equal(t, "content", d.Content("doc"), "one")
	equal(t, "cause", d.accepted(t), "RESTORED")
	cause, seq := d.begins()
	equal(t, "origin", cause, "RESTORED")
	equal(t, "old head", seq, info.GetSeq())
	equal(t, "hash of the old head", d.Entries("segment.opened")[0].ContentSHA256, info.GetHead())
	d.exhausted(t)
	if kinds := kinds(keysOf(t, d.Daemon).GetSlots()); len(kinds) != 2 || kinds[0] != "recovery" || kinds[1] != "file" {
		t.Errorf("slots: %v", kinds)
	}
	equal(t, "exit", d.Stop(), 0)
	sound(t, home)
}

// Without the log, and with a passphrase; a second restore of the same file into
// another home is as good.
func TestRestoreWithoutLog(t *testing.T) {
	t.Parallel()
	old := newSpoilable(t, "")
	const passphrase = "correct horse battery"
	_, err := old.Operator().AddSlot(t.Context(), &operatorv1.AddSlotRequest{Kind: "passphrase", Secret: []byte(passphrase)})
	must(t, err)
	file, _ := backedUp(t, old.Daemon, &operatorv1.BackupRequest{NoAudit: true})
	old.Stop()
	for range 2 {
		home := newHomePath(t)
		exit, _, said := withPassphrase(t, home, "wrong "+passphrase, "restore", file, "--key-source", "file")
		equal(t, "exit with a wrong passphrase: "+said, exit, wire.ExitUnavailable)
		exit, _, said = withPassphrase(t, home, passphrase, "restore", file, "--key-source", "file")
		equal(t, "exit: "+said, exit, wire.ExitDone)
		if _, err := os.Stat(filepath.Join(home, "restored")); err == nil {
			t.Error("there is an old log from nowhere")
		}
		recovered(t, home)
		d := daemontest.Launch(t, daemontest.Options{Home: home})
		equal(t, "content", d.Content("doc"), "one")
	}
}

func withPassphrase(t *testing.T, home, passphrase string, args ...string) (exit int, stdout, stderr string) {
	t.Helper()
	read, written, err := os.Pipe()
	must(t, err)
	defer read.Close()
	_, err = written.WriteString(passphrase)
	must(t, err)
	must(t, written.Close())
	cmd := daemontest.Command(t, home, append(args, "--home", home, "--passphrase-fd", "3")...)
	cmd.Env[0] = "HOME=/" // it need not be there
	cmd.ExtraFiles = []*os.File{read}
	return daemontest.Exit(t, cmd)
}

// What is no whole backup, or does not open, leaves no vault; what is in the home
// already is never touched.
func TestRestoreRefuses(t *testing.T) {
	t.Parallel()
	old := newSpoilable(t, "")
	code := addRecovery(t, old.Daemon)
	file, _ := backedUp(t, old.Daemon, &operatorv1.BackupRequest{})
	old.Stop()
	raw, err := os.ReadFile(file)
	must(t, err)

	flipped := bytes.Clone(raw)
	flipped[len(flipped)/2] ^= 1
	for name, tc := range map[string]struct {
		content []byte
		code    recovery.Code
		exit    int
	}{
		"flipped":      {flipped, code, wire.ExitIntegrity},
		"cut":          {raw[:len(raw)-1], code, wire.ExitIntegrity},
		"longer":       {append(bytes.Clone(raw), 0), code, wire.ExitIntegrity},
		"no backup":    {[]byte("hello"), code, wire.ExitUsage},
		"empty":        {nil, code, wire.ExitUsage},
		"another code": {raw, recovery.New(), wire.ExitUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			home := newHomePath(t)
			bad := filepath.Join(t.TempDir(), "bad")
			must(t, os.WriteFile(bad, tc.content, 0o600))
			exit, _, said := restoring(t, home, tc.code, bad)
			equal(t, "exit: "+said, exit, tc.exit)
			if _, err := os.Stat(place.VaultFile(home)); err == nil {
				t.Error("there is a vault")
			}
			if exit, _, said := sbd(t, home); exit != wire.ExitIntegrity {
				t.Errorf("sbd starts there, or says %q", said)
			}
			// And the good one can be restored in its place.
			exit, _, said = restoring(t, home, code, file)
			equal(t, "exit of the good one: "+said, exit, wire.ExitDone)
		})
	}
	before := everything(t, old.Home)
	exit, _, said := restoring(t, old.Home, code, file)
	equal(t, "into a home that is one: "+said, exit, wire.ExitUsage)
	equal(t, "that home", everything(t, old.Home), before)
	old.Start()
	exit, _, _ = restoring(t, old.Home, code, file)
	equal(t, "into a home that is served", exit, wire.ExitUsage)
}

// A content, or a closed segment of the log, that was damaged before the backup
// was made does not take the rest with it.
func TestRestoreDamaged(t *testing.T) {
	t.Parallel()
	old := newSpoilable(t, "")
	code := addRecovery(t, old.Daemon)
	old.Put("large", strings.Repeat("x", 9000))
	old.Signal(syscall.SIGHUP)
	awaitFile(t, filepath.Join(place.AuditDir(old.Home), "00000002.jsonl"))
	old.Put("other", "two")
	old.Stop()
	damageContent(t, old.Home)
	closed := filepath.Join(place.AuditDir(old.Home), "00000001.jsonl")
	raw, err := os.ReadFile(closed)
	must(t, err)
	raw[len(raw)/2] ^= 1
	must(t, os.WriteFile(closed, raw, 0o600))
	old.Start()
	file, _ := backedUp(t, old.Daemon, &operatorv1.BackupRequest{})
	old.Stop()
	home := newHomePath(t)
	exit, out, said := restoring(t, home, code, file)
	equal(t, "exit: "+said, exit, wire.ExitDone)
	if n := strings.Count(out, "\ndamaged: "); n != 2 {
		t.Errorf("it says of %d things that they are damaged:\n%s", n, out)
	}
	recovered(t, home, "found: the vault was restored")
	d := daemontest.Launch(t, daemontest.Options{Home: home, Spoiled: true})
	equal(t, "content", d.Content("doc"), "one")
}

// P12: killed between any two steps, a restore starts over when it is run again,
// and no daemon starts meanwhile.
func TestRestoreDies(t *testing.T) {
	t.Parallel()
	old := newSpoilable(t, "")
	code := addRecovery(t, old.Daemon)
	file, _ := backedUp(t, old.Daemon, &operatorv1.BackupRequest{})
	old.Stop()
	env := []string{"TEST_SLOT=recovery", "TEST_SECRET=" + hex.EncodeToString(code.Seed())}
	for _, step := range strings.Split("marked|unpacked|slot made|prepared|renamed|done", "|") {
		t.Run(step, func(t *testing.T) {
			home := newHomePath(t)
			if !dies(t, "restore", step, home, file, env...) {
				t.Fatal("it does not come to this step")
			}
			if step != "done" {
				refusesToStart(t, home, wire.VaultMissing)
				exit, _, said := restoring(t, home, code, file)
				equal(t, "exit of the second attempt: "+said, exit, wire.ExitDone)
			}
			refusesToStart(t, home, wire.RollbackDetected)
			exit, _, said := sbd(t, home, "recover", "--yes")
			equal(t, "exit of recover: "+said, exit, wire.ExitDone)
			checks(t, home)
			d := daemontest.Launch(t, daemontest.Options{Home: home})
			equal(t, "content", d.Content("doc"), "one")
		})
	}
	// Between a restore and its acceptance, too.
	home := newHomePath(t)
	exit, _, said := restoring(t, home, code, file)
	equal(t, "exit: "+said, exit, wire.ExitDone)
	kept := daemontest.Copy(t, home, "vault.db", "secret.key")
	for _, step := range strings.Split("kept|opened|marked|intended|committed|accepted|done", "|") {
		t.Run("accepting, "+step, func(t *testing.T) {
			clearHome(t, home)
			daemontest.Restore(t, kept)
			if !dies(t, "recover", step, home, "") {
				t.Fatal("it does not come to this step")
			}
			exit, out, said := sbd(t, home, "recover", "--yes")
			equal(t, "exit of the second attempt: "+said, exit, wire.ExitDone)
			checks(t, home)
			d := daemontest.Launch(t, daemontest.Options{Home: home})
			accepted := d.Entries("vault.accept")
			if len(accepted) != 1 || accepted[0].Cause != "RESTORED" {
				t.Errorf("accepted: %v; the second attempt said\n%s", accepted, out)
			}
			first := d.Entries("segment.opened")[0]
			equal(t, "origin", first.Cause, "RESTORED")
			ends(t, d)
		})
	}
}
