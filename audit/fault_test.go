package audit

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// wait lets the committer's next attempt to mend the log pass.
func wait() { time.Sleep(retryEvery + time.Millisecond) }

// refused expects that no entry can be written, and why.
func refused(t *testing.T, l *Log, cause string) {
	t.Helper()
	if _, err := l.Record(t.Context(), acquired()); !errors.Is(err, ErrFailed) {
		t.Errorf("recorded with %v, want ErrFailed", err)
	}
	if ok, got := l.Health(); ok || !strings.Contains(got, cause) {
		t.Errorf("health %v, %q, want %q", ok, got, cause)
	}
}

// healthy expects that the log has mended itself, and that no reader sees
// anything but whole signed lines.
func healthy(t *testing.T, l *Log, config Config, story string) {
	t.Helper()
	if _, err := l.Record(t.Context(), acquired()); err != nil {
		t.Error(err)
	}
	if ok, cause := l.Health(); !ok {
		t.Errorf("health: %s", cause)
	}
	if got := kinds(entries(t, l)); got != story {
		t.Errorf("the log is\n  %s, want\n  %s", got, story)
	}
	head := l.Head()
	stop(t, l)
	intact(t, config, head)
	config.Fresh, config.Known = false, Position{head.Segment, head.Seq, head.Hash}
	again, recovery, err := Open(config)
	if err != nil {
		t.Fatal(err)
	}
	defer stop(t, again)
	if recovery.TornBytes != 0 || again.Head() != head {
		t.Errorf("opened again: %+v, head %+v", recovery, again.Head())
	}
}

// What the disk refuses before the sync is cut back, told in words, and over
// when its cause is.
func TestWriteFails(t *testing.T) {
	for _, c := range []struct {
		name  string
		fault func(string) error
		short int
		cause string
	}{
		{"no space", on(unix.ENOSPC, "reserve"), 0, "no space on "},
		{"no space, noticed by the write", on(unix.ENOSPC, "write"), 0, "no space on "},
		{"short write", on(unix.ENOSPC, "write"), 100, "no space on "},
		{"short write of whole lines", on(unix.EIO, "write"), 1 << 20, "input/output error on "},
		{"quota", on(unix.EDQUOT, "write"), 7, "quota"},
		{"read-only", on(unix.EROFS, "write", "reserve", "truncate"), 0, "read-only file system at "},
		{"file size limit", on(unix.EFBIG, "write"), 50, "file size limit"},
		{"torn, and cannot be cut back", on(unix.EIO, "write", "truncate"), 60, "input/output error"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := &disk{short: c.short}
				config := testConfig(t)
				l := start(t, config, d)
				// Beyond the first block and what is set aside with it.
				for range 12 {
					record(t, l, acquired())
				}
				d.fail(c.fault)
				for range 9 {
					if _, err := l.Record(t.Context(), acquired()); err != nil {
						break // a block may have had room
					}
				}
				refused(t, l, c.cause)
				wait()
				refused(t, l, c.cause)
				d.fail(nil)
				wait()
				ok := 0
				for _, e := range entries(t, l) {
					if e.Kind == Acquire {
						ok++
					}
					if e.Kind == Recovered && (e.Count < 2 || e.Cause != "WRITE_FAILED") {
						t.Errorf("recovered with %+v", e)
					}
				}
				healthy(t, l, config, "segment.opened"+strings.Repeat(" acquire", ok)+" recovered acquire")
			})
		})
	}
}

// A stop right after a short write leaves no torn line behind, though nothing
// could be written again before.
func TestStopAfterShortWrite(t *testing.T) {
	d := &disk{short: 50}
	config := testConfig(t)
	l := start(t, config, d)
	record(t, l, acquired())
	d.fail(on(unix.EFBIG, "write"))
	refused(t, l, "file size limit")
	head := l.Head()
	stop(t, l)
	intact(t, config, head)
}

// While the disk is full the operator goes on in the reserve, and strangers do
// not.
func TestOperatorReserve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &disk{}
		config := testConfig(t)
		l := start(t, config, d)
		if l.w.reserve < 64<<10 || l.w.reserve > maxReserve {
			leftOut(t, "operator reserve", "no file system here can set blocks aside, or it is full")
		}
		d.fail(on(unix.ENOSPC, "reserve"))
		for range 9 {
			_, _ = l.Record(t.Context(), acquired())
		}
		refused(t, l, "no space on ")
		for range 50 {
			if _, err := l.RecordOperator(t.Context(), Entry{Kind: "grant.revoke", GrantID: "abc"}); err != nil {
				t.Fatal(err)
			}
		}
		refused(t, l, "no space on ")
		var err error
		for range 10_000 {
			if _, err = l.RecordOperator(t.Context(), Entry{Kind: "grant.revoke", GrantID: "abc"}); err != nil {
				break
			}
		}
		if !errors.Is(err, ErrFailed) {
			t.Errorf("the reserve has no end: %v", err)
		}
		d.fail(nil)
		wait()
		record(t, l, acquired())
		stop(t, l)
	})
}

// Strangers' entries that ride with the operator's do not use the reserve up.
func TestStrangersInReserve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &disk{}
		l := start(t, testConfig(t), d)
		if l.w.reserve < 64<<10 {
			leftOut(t, "operator reserve", "no file system here can set blocks aside, or it is full")
		}
		for l.w.reserved-l.w.size > l.w.reserve { // up to where the reserve begins
			record(t, l, acquired())
		}
		d.fail(on(unix.ENOSPC, "reserve"))
		strangers, operators := 0, 0
		for range 100 {
			one, err := l.Append(func(uint64, time.Time) (Entry, error) { return acquired(), nil })
			if err == nil {
				defer func() { _ = one.Wait(t.Context()) }()
			}
			two, failed := l.AppendOperator(func(uint64, time.Time) (Entry, error) { return Entry{Kind: "grant.revoke", GrantID: "abc"}, nil })
			if failed == nil && two.Wait(t.Context()) == nil {
				operators++
			}
			if err == nil && one.Wait(t.Context()) == nil {
				strangers++
			}
		}
		if operators < 98 || strangers > 2 {
			t.Errorf("%d entries of the operator's and %d of strangers", operators, strangers)
		}
		d.fail(nil)
		wait()
		record(t, l, acquired())
		stop(t, l)
	})
}

// A disk that fails its self-test at a rotation is not trusted with the next
// entry; one that only lacks space or descriptors puts the rotation off.
func TestSelfTest(t *testing.T) {
	for _, c := range []struct {
		name  string
		err   error
		fails bool
		cause string
	}{
		{"input/output error", unix.EIO, true, "input/output error on "},
		{"read-only", unix.EROFS, true, "read-only file system at "},
		{"other content", errors.New("the disk gives back something else than was written"), true, "something else"},
		{"no space", unix.ENOSPC, false, ""},
		{"no descriptors", unix.EMFILE, false, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := &disk{}
				config := testConfig(t)
				l := start(t, config, d)
				record(t, l, acquired())
				d.fail(on(c.err, "probe"))
				if err := l.Rotate(); !errors.Is(err, ErrFailed) {
					t.Errorf("rotated with %v", err)
				}
				if c.fails {
					refused(t, l, c.cause)
					wait()
					refused(t, l, c.cause)
				} else {
					record(t, l, acquired())
				}
				d.fail(nil)
				wait()
				record(t, l, acquired())
				if err := l.Rotate(); err != nil {
					t.Error(err)
				}
				head := l.Head()
				stop(t, l)
				intact(t, config, head)

				// At the start it is the same.
				config.Fresh, config.Known = false, Position{head.Segment, head.Seq, head.Hash}
				d.fail(on(c.err, "probe"))
				l = start(t, config, d)
				if ok, cause := l.Health(); ok || !strings.Contains(cause, c.cause) {
					t.Errorf("started: %v, %q", ok, cause)
				}
				d.fail(nil)
				wait()
				record(t, l, acquired())
				stop(t, l)
			})
		})
	}
	d := &disk{}
	d.fail(on(unix.EIO, "probe"))
	config := testConfig(t)
	d.osFolder = osFolder(config.Dir)
	if _, _, err := open(config, d); !errors.Is(err, unix.EIO) {
		t.Errorf("a first start: %v", err)
	}
	if _, err := os.Stat(config.KeyFile); !os.IsNotExist(err) {
		t.Errorf("a key was made: %v", err)
	}
}

// While the operator goes on in the reserve, what is pending survives the
// attempts to mend the log.
func TestMendingKeepsPending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &disk{}
		l := start(t, testConfig(t), d)
		if l.w.reserve < 64<<10 {
			leftOut(t, "operator reserve", "no file system here can set blocks aside, or it is full")
		}
		d.fail(on(unix.ENOSPC, "reserve"))
		for range 9 {
			_, _ = l.Record(t.Context(), acquired())
		}
		// The attempt finds an entry that the committer has not taken yet.
		pending := make(chan Ticket, 3)
		d.fail(func(op string) error {
			if op == "reserve" && len(pending) < cap(pending) {
				ticket, err := l.AppendOperator(func(uint64, time.Time) (Entry, error) { return Entry{Kind: "grant.revoke", GrantID: "abc"}, nil })
				if err != nil {
					t.Error(err)
				}
				pending <- ticket
			}
			return on(unix.ENOSPC, "reserve")(op)
		})
		wait()
		wait()
		d.fail(nil)
		if len(pending) == 0 {
			t.Error("nothing was tried")
		}
		for range len(pending) {
			ticket := <-pending
			if err := ticket.Wait(t.Context()); err != nil {
				t.Error(err)
			}
		}
		wait()
		record(t, l, acquired())
		stop(t, l)
	})
}

// A file whose sync failed is abandoned at its last durable byte.
func TestSyncFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &disk{}
		config := testConfig(t)
		l := start(t, config, d)
		before := record(t, l, acquired())
		d.fail(once(unix.EIO, "sync"))
		if _, err := l.Record(t.Context(), acquired()); !errors.Is(err, ErrFailed) {
			t.Errorf("recorded with %v", err)
		}
		synctest.Wait() // the next segment is tried at once
		all := entries(t, l)
		if opened := all[2]; opened.Segment != 2 || opened.Seq != before.Seq+1 || opened.Prev != Hash(before.Hash) ||
			opened.Void == nil || opened.Void.Segment != 1 || opened.Void.Offset == 0 || opened.KeyID != all[0].KeyID {
			t.Errorf("%+v", opened)
		}
		healthy(t, l, config, "segment.opened acquire segment.opened recovered acquire")
	})
}

func TestSyncKeepsFailing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &disk{}
		config := testConfig(t)
		l := start(t, config, d)
		record(t, l, acquired())
		d.fail(on(unix.EIO, "sync"))
		refused(t, l, "input/output error on ")
		for range 3 {
			wait()
			refused(t, l, "input/output error on ")
		}
		d.fail(nil)
		wait()
		healthy(t, l, config, "segment.opened acquire segment.opened recovered acquire")
	})
}

// A disk that does not answer holds nobody for long, and what becomes durable
// too late is accounted for.
func TestStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &disk{}
		config := testConfig(t)
		config.WaitLimit = 0
		l := start(t, config, d)
		thaw := make(chan struct{})
		d.fail(func(op string) error {
			if op == "sync" {
				<-thaw
			}
			return nil
		})
		ask := func(release bool) (Ticket, time.Duration, error) {
			began := time.Now()
			ticket, err := l.Append(func(uint64, time.Time) (Entry, error) { return acquired(), nil })
			if err != nil {
				return ticket, time.Since(began), err
			}
			ticket.Release = release
			err = ticket.Wait(t.Context())
			return ticket, time.Since(began), err
		}
		allowed, took, err := ask(true)
		if !errors.Is(err, ErrTimeout) || took != DefaultWaitLimit {
			t.Errorf("%v after %v", err, took)
		}
		time.Sleep(time.Millisecond)
		if _, took, err := ask(false); !errors.Is(err, ErrTimeout) || took != 0 {
			t.Errorf("later: %v after %v", err, took)
		}
		if ok, cause := l.Health(); ok || !strings.Contains(cause, "has not answered for") {
			t.Errorf("health %v, %q", ok, cause)
		}
		close(thaw)
		d.fail(nil)
		synctest.Wait()
		all := entries(t, l)
		withheld := all[len(all)-1]
		if withheld.Kind != ReleaseWithheld || withheld.Void == nil || withheld.Void.Seq != allowed.Seq() || withheld.RunID != "abcdefghjk" {
			t.Errorf("%+v", withheld)
		}
		healthy(t, l, config, "segment.opened acquire release.withheld acquire")
	})
}

// A client that goes away before its answer gets the same account.
func TestCancelledRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &disk{}
		l := start(t, testConfig(t), d)
		defer stop(t, l)
		thaw := make(chan struct{})
		d.fail(func(op string) error {
			if op == "sync" {
				<-thaw
			}
			return nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		ticket, err := l.Append(func(uint64, time.Time) (Entry, error) { return acquired(), nil })
		if err != nil {
			t.Fatal(err)
		}
		ticket.Release = true
		cancel()
		if err := ticket.Wait(ctx); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		close(thaw)
		synctest.Wait()
		if got := kinds(entries(t, l)); got != "segment.opened acquire release.withheld" {
			t.Error(got)
		}
	})
}

func TestCloseDoesNotHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &disk{}
		l := start(t, testConfig(t), d)
		thaw := make(chan struct{})
		d.fail(func(op string) error {
			if op == "sync" {
				<-thaw
			}
			return nil
		})
		if _, err := l.Append(func(uint64, time.Time) (Entry, error) { return acquired(), nil }); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if err := l.Close(); !errors.Is(err, ErrTimeout) {
			t.Error(err)
		}
		close(thaw)
		<-l.stopped
	})
}

// Whatever happens to the file's place is noticed before the next release, and
// is over when the file is back (P25).
func TestSwappedFile(t *testing.T) {
	path := func(c Config) string { return filepath.Join(c.Dir, segmentName(1)) }
	aside := func(c Config) string { return filepath.Join(c.Dir, "aside") }
	for _, c := range []struct {
		name  string
		do    func(c Config) error
		undo  func(c Config) error
		cause string
		story string
	}{
		{
			name:  "removed",
			do:    func(c Config) error { return os.Remove(path(c)) },
			cause: "log file was removed or renamed",
		},
		{
			name:  "renamed",
			do:    func(c Config) error { return os.Rename(path(c), aside(c)) },
			undo:  func(c Config) error { return os.Rename(aside(c), path(c)) },
			cause: "log file was removed or renamed",
		},
		{
			name:  "folder renamed",
			do:    func(c Config) error { return os.Rename(c.Dir, c.Dir+".old") },
			undo:  func(c Config) error { return os.Rename(c.Dir+".old", c.Dir) },
			cause: "log file was removed or renamed",
		},
		{
			name: "replaced by a copy",
			do: func(c Config) error {
				content, err := os.ReadFile(path(c))
				return errors.Join(err, os.Rename(path(c), aside(c)), os.WriteFile(path(c), content, 0o600))
			},
			undo:  func(c Config) error { return os.Rename(aside(c), path(c)) },
			cause: "log file was replaced",
		},
		{
			name: "replaced by a link to itself",
			do: func(c Config) error {
				return errors.Join(os.Rename(path(c), aside(c)), os.Symlink("aside", path(c)))
			},
			undo:  func(c Config) error { return os.Rename(aside(c), path(c)) },
			cause: "log file was replaced",
		},
		{
			name:  "linked",
			do:    func(c Config) error { return os.Link(path(c), aside(c)) },
			undo:  func(c Config) error { return os.Remove(aside(c)) },
			cause: "log file has another link",
		},
		{
			name:  "made unwritable",
			do:    func(c Config) error { return os.Chmod(path(c), 0o400) },
			undo:  func(c Config) error { return os.Chmod(path(c), 0o600) },
			cause: "mode of the file is 0400, not 0600",
		},
		{
			name:  "made readable by others",
			do:    func(c Config) error { return os.Chmod(path(c), 0o644) },
			undo:  func(c Config) error { return os.Chmod(path(c), 0o600) },
			cause: "mode of the file is 0644, not 0600",
		},
		{
			name:  "truncated",
			do:    func(c Config) error { return os.Truncate(path(c), 500) },
			cause: "log file was truncated",
		},
		{
			name:  "written by somebody else",
			do:    func(c Config) error { return appendTo(path(c), "{}\n") },
			undo:  func(Config) error { return nil },
			cause: "log file was written by somebody else",
			story: "segment.opened acquire recovered recovered acquire",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				config := testConfig(t)
				l := start(t, config, nil)
				record(t, l, acquired())
				if err := c.do(config); err != nil {
					t.Fatal(err)
				}
				refused(t, l, c.cause)
				if c.undo == nil {
					wait()
					refused(t, l, c.cause)
					stop(t, l)
					return
				}
				if err := c.undo(config); err != nil {
					t.Fatal(err)
				}
				wait()
				if c.story == "" {
					c.story = "segment.opened acquire recovered acquire"
				}
				healthy(t, l, config, c.story)
			})
		})
	}
}

// Nothing is written to a file that lost its name while an entry was on its way.
func TestUnlinkedFileIsNotWritten(t *testing.T) {
	config := testConfig(t)
	l := start(t, config, nil)
	defer stop(t, l)
	record(t, l, acquired())
	held, err := os.Open(filepath.Join(config.Dir, segmentName(1)))
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	before, _ := held.Stat()
	if err := os.Remove(held.Name()); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Record(t.Context(), acquired()); !errors.Is(err, ErrFailed) {
		t.Error(err)
	}
	if after, _ := held.Stat(); after.Size() != before.Size() {
		t.Errorf("%d bytes were written", after.Size()-before.Size())
	}
}

func appendTo(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// A rotation that cannot be prepared is put off; one that fails half-way is
// finished when it can be.
func TestRotationFails(t *testing.T) {
	for _, c := range []struct {
		name    string
		fault   func(string) error
		refused bool
		story   string
	}{
		{"no descriptors", on(unix.EMFILE, "create"), false, "segment.opened acquire acquire key.handover segment.opened acquire"},
		{"no name", on(unix.EIO, "publish"), true, "segment.opened acquire key.handover segment.opened recovered acquire"},
		{"sync of the hand-over", once(unix.EIO, "sync"), true, "segment.opened acquire segment.opened recovered acquire"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := &disk{}
				config := testConfig(t)
				l := start(t, config, d)
				record(t, l, acquired())
				d.fail(c.fault)
				if err := l.Rotate(); !errors.Is(err, ErrFailed) {
					t.Errorf("rotated with %v", err)
				}
				if !c.refused {
					record(t, l, acquired())
					d.fail(nil)
					if err := l.Rotate(); err != nil {
						t.Error(err)
					}
				} else {
					d.fail(nil)
					wait()
				}
				healthy(t, l, config, c.story)
			})
		})
	}
}

// A full segment whose successor cannot be made goes on, with a warning.
func TestFullSegmentGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &disk{}
		config := testConfig(t)
		config.SegmentSize = 1000
		l := start(t, config, d)
		defer stop(t, l)
		d.fail(on(unix.EMFILE, "create"))
		for range 5 {
			record(t, l, acquired())
		}
		if ok, cause := l.Health(); !ok || !strings.Contains(cause, "no free file descriptors") {
			t.Error(ok, cause)
		}
		if at, _ := l.Durable(); at.Segment != 1 {
			t.Errorf("%+v", at)
		}
		d.fail(nil)
		wait()
		record(t, l, acquired())
		record(t, l, acquired())
		if at, _ := l.Durable(); at.Segment < 2 {
			t.Errorf("%+v", at)
		}
		if ok, cause := l.Health(); !ok || cause != "" {
			t.Error(ok, cause)
		}
	})
}
