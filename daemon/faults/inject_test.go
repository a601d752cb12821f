//go:build linux

package faults

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"subjectbroker/daemon/daemontest"
	"subjectbroker/proto/place"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// P21, P23: system calls of the release build fail, on the log and on the vault
// separately, while many read and one writes. Nothing is answered that does not
// last, the daemon goes on by itself when the fault has gone, and then the power
// goes, so that only what is on the disk counts.
func TestFailingCalls(t *testing.T) {
	t.Parallel()
	need(t, "strace")
	s := keepScore(t, "failing system calls while many read and one writes")
	for _, c := range []struct {
		what string
		log  bool // else the vault
	}{
		{"fdatasync:error=EIO", true},
		{"fdatasync:error=EIO:when=1", true},
		{"fdatasync:error=ENOSPC", true},
		{"pwrite64:error=EIO", true},
		{"pwrite64:error=ENOSPC", true},
		{"pwrite64:error=EROFS", true},
		{"pwrite64:error=EDQUOT", true},
		{"pwrite64:retval=0", true},
		{"pwrite64:error=EINTR:when=1", true},
		{"fallocate:error=ENOSPC", true},
		{"fallocate:error=EOPNOTSUPP", true},
		{"pwrite64,ftruncate:error=EIO", true},
		{"fdatasync:error=EIO", false},
		{"fdatasync:error=EIO:when=1", false},
		{"fdatasync:error=EIO:when=2", false},
		{"pwrite64:error=EIO", false},
		{"pwrite64:error=EIO:when=2", false},
		{"pwrite64:error=ENOSPC:when=3", false},
		{"pwrite64:retval=0", false},
	} {
		name := "vault " + c.what
		if c.log {
			name = "log " + c.what
		}
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, s, newDisk(t, 32), daemontest.Options{})
			crowd := gather(w)
			path := place.VaultFile(w.Home)
			if c.log {
				path = w.segmentFile(1)
			}
			crowd.begin(4)
			i := inject(t, w.PID(), "inject="+c.what, path)
			for until := time.Now().Add(daemontest.Patience); i.hits() == 0; time.Sleep(5 * time.Millisecond) {
				if time.Now().After(until) {
					t.Fatal("the fault does not bite")
				}
			}
			time.Sleep(100 * time.Millisecond) // it bites again
			i.end()
			s.add(faults, i.hits())
			crowd.end()
			w.serves()
			crowd.begin(4)
			w.fall(true)
			crowd.end()
			w.Start()
			crowd.audit()
			crowd.close()
		})
	}
}

// serves waits until reading and writing work again.
func (w *world) serves() {
	w.t.Helper()
	w.restored(func() error {
		_, err := w.Operator().PutSecret(w.t.Context(), &operatorv1.PutSecretRequest{Name: "note", Kind: "text", Content: []byte(hello)})
		if got := w.access("crowd", "note"); err == nil && got != hello {
			return wire.Deny(wire.Reason(got))
		}
		return err
	})
}

// P21: while no entry can be made durable nothing is released, whatever the
// decision is, and the status says why; the same with a vault that cannot be
// written: what is in force is no longer trusted.
func TestNothingIsReleased(t *testing.T) {
	t.Parallel()
	need(t, "strace")
	s := keepScore(t, "what is answered while log or vault cannot be written")
	for _, c := range []struct{ what, file, change, read string }{
		{"fdatasync:error=EIO", "log", "AUDIT_FAILED", "AUDIT_FAILED"},
		{"pwrite64:error=ENOSPC", "log", "AUDIT_FAILED", "AUDIT_FAILED"},
		{"fdatasync:error=EIO", "vault", "INTEGRITY_FAILED", "VAULT_LOCKED"},
	} {
		t.Run(c.file+" "+c.what, func(t *testing.T) {
			w := newWorld(t, s, nil, daemontest.Options{})
			w.populate()
			run := w.Open("worker")
			path := map[string]string{"log": filepath.Join(place.AuditDir(w.Home)), "vault": place.VaultFile(w.Home)}[c.file]
			paths := []string{path}
			for n := range 20 { // abandoned segments have successors
				if c.file == "log" {
					paths = append(paths, w.segmentFile(uint32(n+1)), filepath.Join(path, fmt.Sprintf("%08d.tmp", n+1)))
				}
			}
			i := inject(t, w.PID(), "inject="+c.what, paths...)
			_, err := w.Operator().PutSecret(t.Context(), &operatorv1.PutSecretRequest{Name: "other", Kind: "text", Content: []byte("x")})
			equal(t, "a change", string(daemontest.Reason(err)), c.change)
			for range 3 {
				content, reason := run.Read("note")
				if content != "" {
					s.lost(t, "content was released while the %s fails", c.file)
				}
				t.Logf("reading: %s", reason)
			}
			status := w.Status()
			if status.GetAuditCause() == "" && status.GetVaultCause() == "" {
				t.Error("the status does not say why")
			}
			i.end()
			s.add(faults, i.hits())
			w.AddSubjectAgain("crowd")
			w.serves()
		})
	}
}

// AddSubjectAgain adds a reader of the note as soon as that is possible.
func (w *world) AddSubjectAgain(name string) {
	w.t.Helper()
	w.restored(func() error {
		_, err := w.Operator().AddSubject(w.t.Context(), &operatorv1.AddSubjectRequest{Name: name})
		if daemontest.Reason(err) == wire.InvalidArgument { // it is there
			err = nil
		}
		return err
	})
	w.restored(func() error {
		_, err := w.Operator().CreateGrants(w.t.Context(), &operatorv1.CreateGrantsRequest{Subject: name, Capabilities: []string{"read:note"}})
		return err
	})
}

// A disk that says that it has written, and has not: what was answered is lost,
// as with no broker could be helped, but it is noticed, and nothing wrong is
// served.
func TestLyingWrites(t *testing.T) {
	t.Parallel()
	need(t, "strace")
	s := keepScore(t, "a disk that drops what it was given")
	for _, file := range []string{"log", "vault"} {
		t.Run(file, func(t *testing.T) {
			w := newWorld(t, s, nil, daemontest.Options{Spoiled: true})
			w.populate()
			path, lie := w.segmentFile(1), "inject=pwrite64:retval=100:when=1"
			if file == "vault" {
				path, lie = place.VaultFile(w.Home), "inject=pwrite64:retval=4096"
			}
			i := inject(t, w.PID(), lie, path)
			for n := range 5 {
				_, _ = w.Operator().PutSecret(t.Context(), &operatorv1.PutSecretRequest{Name: fmt.Sprint("lost", n), Kind: "text", Content: []byte("x")})
			}
			i.end()
			if i.hits() == 0 {
				t.Fatal("the fault does not bite")
			}
			s.add(faults, i.hits())
			w.fall(false)
			code, _, said := daemontest.Exit(t, daemontest.Command(t, w.Home, "--home", w.Home, "--key-source", "file"))
			equal(t, "exit code of the next start: "+said, code, wire.ExitIntegrity)
		})
	}
}

// P22: the whole disk stands still. Readers are refused and not kept waiting,
// the status answers, and everything goes on when the disk does.
func TestFrozenDisk(t *testing.T) {
	t.Parallel()
	w := newWorld(t, keepScore(t, "a frozen file system under vault and log"), newDisk(t, 32), daemontest.Options{})
	c := gather(w)
	for range rounds(t, 2) {
		run := w.Open("crowd")
		c.begin(3)
		w.disk.freeze()
		w.add(faults, 1)
		content, reason := run.Read("note")
		equal(t, "while it stands still: "+content, reason, wire.AuditFailed)
		equal(t, "the log's state", w.Status().GetAuditState(), "failing")
		w.disk.thaw()
		c.end()
		w.serves()
		w.crash(false)
		c.audit()
	}
	c.close()
}

// P22: a commit of the vault stands still in front of the disk, while the log
// goes on. Readers get past it, or are refused; they are not kept waiting until
// it is through.
func TestStalledCommit(t *testing.T) {
	t.Parallel()
	need(t, "strace")
	s := keepScore(t, "a commit that stands still")
	w := newWorld(t, s, nil, daemontest.Options{})
	w.populate()
	run := w.Open("worker")
	i := inject(t, w.PID(), "inject=pwrite64:delay_enter=4000000", place.VaultFile(w.Home))
	changed := make(chan error, 1)
	operator := w.Operator()
	go func() {
		changed <- second(operator.PutSecret(t.Context(), &operatorv1.PutSecretRequest{Name: "other", Kind: "text", Content: []byte("x")}))
	}()
	refused := 0
	for waiting := true; waiting; {
		if _, reason := run.Read("note"); reason != wire.Allowed {
			refused++
		}
		select {
		case err := <-changed:
			must(t, err)
			waiting = false
		default:
		}
	}
	s.add(faults, bytes.Count(i.lines(), []byte("(DELAYED)")))
	i.end()
	if refused == 0 {
		t.Error("nobody was refused: readers were kept waiting, or nothing stood still")
	}
	equal(t, "afterwards", w.access("worker", "note"), hello)
}

// Short writes: the limit of file sizes is moved under the running daemon, so
// that a write ends in its middle.
func TestShortWrites(t *testing.T) {
	t.Parallel()
	s := keepScore(t, "short writes by RLIMIT_FSIZE")
	needPrograms(t)
	w := newWorld(t, s, nil, daemontest.Options{})
	c := gather(w)
	for round := range rounds(t, 12) {
		path := w.newestSegment()
		if round%3 == 2 {
			path = place.VaultFile(w.Home)
		}
		info, err := os.Stat(path)
		must(t, err)
		// In the log the next write ends after some bytes; in the vault it is the one
		// that makes it grow.
		limit := uint64(info.Size()) + uint64(round*37%400)
		c.begin(3)
		must(t, unix.Prlimit(w.PID(), unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: limit, Max: unix.RLIM_INFINITY}, nil))
		time.Sleep(60 * time.Millisecond)
		must(t, unix.Prlimit(w.PID(), unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}, nil))
		s.add(faults, 1)
		c.end()
		w.serves()
		if round%4 == 3 {
			w.crash(false)
		}
		c.audit()
	}
	if c.refused["AUDIT_FAILED"] == 0 {
		t.Error("no write ever failed: the limit does not bite")
	}
	c.close()
}

// newestSegment is the file of the open segment.
func (w *world) newestSegment() string {
	w.t.Helper()
	head, err := w.Operator().AuditHead(w.t.Context(), &operatorv1.AuditHeadRequest{})
	must(w.t, err)
	return w.segmentFile(head.GetSegment())
}
