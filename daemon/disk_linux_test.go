package daemon_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"subjectbroker/audit"
	"subjectbroker/daemon/daemontest"
	"subjectbroker/proto/place"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// P21: when the disk is full nothing is released, the reason says so, and
// everything goes on by itself when there is room again.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	daemontest.NeedRoot(t, "full disk")
	home := daemontest.NewHome(t)
	mount(t, place.AuditDir(home), "tmpfs", "size=1m,mode=0700")
	d := daemontest.StartWith(t, daemontest.Options{Home: home})
	d.Put("readme", "hello")
	d.AddSubject("worker")
	grant := d.Grant("worker", "read:readme", daemontest.Uses(1000))
	run := d.Open("worker")
	equal(t, "before", run.Refused("readme"), wire.Allowed)

	fill(t, filepath.Join(place.AuditDir(home), "filler"))
	refused := 0
	for attempts := 0; refused < 3; attempts++ {
		switch content, reason := run.Read("readme"); reason {
		case wire.AuditFailed:
			refused++
			equal(t, "content", content, "")
		case wire.Allowed: // there was room for some more
		default:
			t.Fatalf("refused with %s", reason)
		}
		if attempts > 10000 {
			t.Fatal("the disk does not get full")
		}
	}
	// P41: also while the log fails, unknown, forbidden and allowed look the same.
	equal(t, "an unknown thing", run.Refused("no-such-thing"), wire.AuditFailed)
	_, err := d.Broker().OpenRun(t.Context(), daemontest.Claim("worker"))
	equal(t, "a new run", daemontest.Reason(err), wire.AuditFailed)
	status := d.Status()
	equal(t, "the log's state", status.GetAuditState(), "failing")
	if !strings.Contains(status.GetAuditCause(), "no space on") {
		t.Errorf("the cause is %q", status.GetAuditCause())
	}

	must(t, os.Remove(filepath.Join(place.AuditDir(home), "filler")))
	recovers(t, d, func() error { return refusal(run.Refused("readme")) })
	equal(t, "the log's state afterwards", d.Status().GetAuditState(), "ok")
	uses := uint64(0)
	for _, e := range d.Entries("acquire") {
		if e.Decision == "allow" {
			uses++
		}
	}
	equal(t, "uses counted", d.Grants("worker")[grant].GetUsed(), uses)
	d.Restart()
	equal(t, "uses counted after a restart", d.Grants("worker")[grant].GetUsed(), uses)
}

// A change that the log cannot take is not made, or is made and told later, and
// what it takes away is gone either way.
func TestChangesOnAFullDisk(t *testing.T) {
	t.Parallel()
	daemontest.NeedRoot(t, "changes on a full disk")
	home := daemontest.NewHome(t)
	mount(t, place.AuditDir(home), "tmpfs", "size=1m,mode=0700")
	d := daemontest.StartWith(t, daemontest.Options{Home: home})
	d.Put("readme", "hello")
	d.AddSubject("worker")
	fill(t, filepath.Join(place.AuditDir(home), "filler"))
	added := 0
	for {
		_, err := d.Operator().CreateGrants(t.Context(), &operatorv1.CreateGrantsRequest{Subject: "worker", Capabilities: []string{"read:readme"}})
		if err != nil {
			equal(t, "a change", daemontest.Reason(err), wire.AuditFailed)
			break
		}
		if added++; added > 10000 {
			t.Fatal("the operator's reserve has no end")
		}
	}
	must(t, os.Remove(filepath.Join(place.AuditDir(home), "filler")))
	recovers(t, d, func() error {
		_, err := d.Operator().CreateGrants(t.Context(), &operatorv1.CreateGrantsRequest{Subject: "worker", Capabilities: []string{"read:readme"}})
		return err
	})
	recovers(t, d, func() error {
		_, err := d.Broker().OpenRun(t.Context(), daemontest.Claim("worker"))
		return err
	})
	equal(t, "afterwards", d.Open("worker").Refused("readme"), wire.Allowed)
	ends(t, d)
	d.Restart()
	ends(t, d)
	equal(t, "after a restart", d.Open("worker").Refused("readme"), wire.Allowed)
}

// P25: whatever is done to the log's file is noticed before the next release,
// and mended when it is undone.
func TestLogUnderAttack(t *testing.T) {
	for name, tc := range map[string]struct{ spoil, mend func(path string) error }{
		"removed":     {os.Remove, nil},
		"renamed":     {func(p string) error { return os.Rename(p, p+".away") }, func(p string) error { return os.Rename(p+".away", p) }},
		"replaced":    {replace, func(p string) error { return os.Rename(p+".away", p) }},
		"linked":      {func(p string) error { return os.Link(p, p+".second") }, func(p string) error { return os.Remove(p + ".second") }},
		"made a link": {func(p string) error { return errors.Join(os.Rename(p, p+".away"), os.Symlink(p+".away", p)) }, func(p string) error { return os.Rename(p+".away", p) }},
		"made a FIFO": {func(p string) error { return errors.Join(os.Rename(p, p+".away"), syscall.Mkfifo(p, 0o600)) }, func(p string) error { return os.Rename(p+".away", p) }},
		"opened up":   {func(p string) error { return os.Chmod(p, 0o644) }, func(p string) error { return os.Chmod(p, 0o600) }},
		"cut":         {func(p string) error { return os.Truncate(p, 100) }, nil},
		"written to":  {scribble, nil},
		"its folder":  {func(p string) error { return os.Rename(filepath.Dir(p), filepath.Dir(p)+".away") }, func(p string) error { return os.Rename(filepath.Dir(p)+".away", filepath.Dir(p)) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := daemontest.StartWith(t, daemontest.Options{Spoiled: tc.mend == nil})
			d.Put("readme", "hello")
			d.AddSubject("worker")
			d.Grant("worker", "read:readme")
			run := d.Open("worker")
			equal(t, "before", run.Refused("readme"), wire.Allowed)
			segment := filepath.Join(place.AuditDir(d.Home), "00000001.jsonl")
			must(t, tc.spoil(segment))
			content, reason := run.Read("readme")
			equal(t, "the next release", reason, wire.AuditFailed)
			equal(t, "its content", content, "")
			equal(t, "the log's state", d.Status().GetAuditState(), "failing")
			if d.Status().GetAuditCause() == "" {
				t.Error("the status does not say why")
			}
			if tc.mend == nil {
				return
			}
			must(t, tc.mend(segment))
			recovers(t, d, func() error { return refusal(run.Refused("readme")) })
		})
	}
}

func replace(path string) error {
	raw, err := os.ReadFile(path)
	return errors.Join(err, os.Rename(path, path+".away"), os.WriteFile(path, raw, 0o600))
}

func scribble(path string) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	_, err = io.WriteString(file, "{}\n")
	return errors.Join(err, file.Close())
}

// P22: a disk that does not answer denies, and does not hang.
func TestStalledDisk(t *testing.T) {
	t.Parallel()
	home := daemontest.NewHome(t)
	stall, thaw := stallable(t, place.AuditDir(home))
	d := daemontest.StartWith(t, daemontest.Options{Home: home, Spoiled: true, AuditWait: audit.DefaultWaitLimit})
	d.Put("readme", "hello")
	d.AddSubject("worker")
	grant := d.Grant("worker", "read:readme", daemontest.Uses(10))
	reader := d.Open("worker")
	equal(t, "before", reader.Refused("readme"), wire.Allowed)
	stall()
	equal(t, "while it stands still", reader.Refused("readme"), wire.AuditFailed)
	equal(t, "the log's state", d.Status().GetAuditState(), "failing")
	thaw()
	recovers(t, d, func() error { return refusal(reader.Refused("readme")) })
	// What became durable too late to be honoured is named.
	withheld := len(d.Entries("release.withheld"))
	uses := 0
	for _, e := range d.Entries("acquire") {
		if e.Decision == "allow" {
			uses++
		}
	}
	if withheld == 0 {
		t.Error("no entry names what was withheld")
	}
	if used := d.Grants("worker")[grant].GetUsed(); used < uint64(uses) {
		t.Errorf("%d uses counted, %d in the log", used, uses)
	}
}

// stallable puts a disk on a folder that can be made not to answer for a while.
func stallable(t *testing.T, dir string) (stall, thaw func()) {
	t.Helper()
	daemontest.NeedRoot(t, "stalled disk")
	image := filepath.Join(daemontest.NewHome(t), "image")
	file, err := os.Create(image)
	must(t, err)
	must(t, errors.Join(file.Truncate(16<<20), file.Close()))
	if !run(t, "mkfs.ext4", "-q", "-F", image) {
		daemontest.LeaveOut(t, "stalled disk", "mkfs.ext4 is not installed")
	}
	must(t, os.Mkdir(dir, 0o700))
	if !run(t, "mount", "-o", "loop", image, dir) {
		daemontest.LeaveOut(t, "stalled disk", "a file cannot be mounted here")
	}
	t.Cleanup(func() { run(t, "umount", "-l", dir) })
	must(t, os.Chmod(dir, 0o700))
	stalled := false
	thaw = func() {
		if stalled {
			stalled = !run(t, "fsfreeze", "-u", dir)
		}
	}
	stall = func() {
		t.Helper()
		if stalled = run(t, "fsfreeze", "-f", dir); !stalled {
			daemontest.LeaveOut(t, "stalled disk", "fsfreeze does not work here")
		}
	}
	t.Cleanup(thaw)
	return stall, thaw
}

// recovers tries until it succeeds: the log looks now and then whether it can
// be written again.
func recovers(t *testing.T, d *daemontest.Daemon, try func() error) {
	t.Helper()
	until := time.Now().Add(daemontest.Patience)
	for err := try(); err != nil; err = try() {
		if time.Now().After(until) {
			t.Fatalf("it does not recover: %v; the log: %s", err, d.Status().GetAuditCause())
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func refusal(reason wire.Reason) error {
	if reason == wire.Allowed {
		return nil
	}
	return wire.Deny(reason)
}

// mount mounts a new file system on a folder for the test.
func mount(t *testing.T, dir, kind, options string) {
	t.Helper()
	must(t, os.Mkdir(dir, 0o700))
	if err := unix.Mount("sbd-test", dir, kind, 0, options); err != nil {
		daemontest.LeaveOut(t, kind, "it cannot be mounted here: "+err.Error())
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
}

// fill writes a file until there is no room left.
func fill(t *testing.T, path string) {
	t.Helper()
	file, err := os.Create(path)
	must(t, err)
	defer file.Close()
	for block := make([]byte, 4096); ; {
		if _, err := file.Write(block); err != nil {
			if !errors.Is(err, unix.ENOSPC) {
				t.Fatal(err)
			}
			return
		}
	}
}
