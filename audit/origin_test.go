package audit

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"subjectbroker/audit/verify"
)

// The first entry of a log that begins anew says where the older one ended.
func TestOrigin(t *testing.T) {
	old := Position{Segment: 7, Seq: 4711, Hash: hashLine([]byte("line"))}
	for _, c := range []struct {
		name   string
		origin *Origin
	}{
		{"nothing before", nil},
		{"restored", &Origin{Cause: Restored, Seq: old.Seq, Hash: old.Hash}},
		{"set aside", &Origin{Cause: WasSetAside, Seq: old.Seq, Hash: old.Hash}},
		{"nothing known of it", &Origin{Cause: WasSetAside}},
	} {
		t.Run(c.name, func(t *testing.T) {
			config := testConfig(t)
			config.Origin = c.origin
			l := start(t, config, nil)
			if err := l.Rotate(); err != nil { // tells nothing again
				t.Fatal(err)
			}
			record(t, l, acquired())
			first := entries(t, l)[0]
			head := l.Head()
			stop(t, l)
			report := intact(t, config, head)
			if c.origin == nil {
				if first.Cause != "" || first.Count != 0 || first.ContentSHA256 != (Hash{}) || report.Origin != nil {
					t.Errorf("%+v, %+v", first, report.Origin)
				}
				return
			}
			want := verify.Origin{Cause: c.origin.Cause}
			if c.origin.Seq > 0 {
				want.Last = verify.Point{Seq: old.Seq, Hash: Hash(old.Hash).String()}
			}
			if first.Cause != c.origin.Cause || first.Count != c.origin.Seq || first.ContentSHA256 != c.origin.Hash || *report.Origin != want {
				t.Errorf("%+v, %+v", first, report.Origin)
			}
			// A start that finds the log looks no more at the origin.
			if l, _, err := Open(config); err != nil {
				t.Error(err)
			} else {
				stop(t, l)
			}
		})
	}
	for name, origin := range map[string]Origin{
		"no cause":      {Seq: 1, Hash: old.Hash},
		"another cause": {Cause: "FORGED"},
		"no hash":       {Cause: Restored, Seq: 1},
		"no seq":        {Cause: Restored, Hash: old.Hash},
	} {
		config := testConfig(t)
		config.Origin = &origin
		if _, _, err := Open(config); err == nil || !strings.Contains(err.Error(), "Origin") {
			t.Errorf("%s: %v", name, err)
		}
	}
	config := testConfig(t)
	config.Origin, config.Fresh = &Origin{Cause: Restored}, false
	if _, _, err := Open(config); err == nil || !strings.Contains(err.Error(), "Origin") {
		t.Errorf("without Fresh: %v", err)
	}
}

// A log must contain the head that was kept outside, wherever in it that is.
func TestExpect(t *testing.T) {
	config := testConfig(t)
	l := start(t, config, nil)
	all := []Position{record(t, l, acquired())}
	older := copyHome(t, config)
	for range 3 {
		if err := l.Rotate(); err != nil {
			t.Fatal(err)
		}
		all = append(all, record(t, l, acquired()), record(t, l, acquired()))
	}
	newest := all[len(all)-1]
	stop(t, l)
	foreign, other := written(t, 20)

	open := func(from Config, expect, known Position) error {
		t.Helper()
		config := copyHome(t, from)
		config.Fresh, config.Expect, config.Known = false, &expect, known
		l, _, err := Open(config)
		if err == nil {
			stop(t, l)
		}
		return err
	}
	for _, at := range all {
		for _, known := range []Position{{}, all[0], newest} {
			if err := open(config, at, known); err != nil {
				t.Errorf("entry %d, %d known: %v", at.Seq, known.Seq, err)
			}
			changed := at
			changed.Hash[9]++
			if err := open(config, changed, known); !errors.Is(err, ErrRollback) {
				t.Errorf("entry %d changed, %d known: %v", at.Seq, known.Seq, err)
			}
		}
		unnumbered := Position{Seq: at.Seq, Hash: at.Hash}
		if err := open(config, unnumbered, newest); err != nil {
			t.Errorf("entry %d without its segment: %v", at.Seq, err)
		}
	}
	if err := open(config, Position{Seq: newest.Seq + 1}, newest); !errors.Is(err, ErrRollback) {
		t.Errorf("beyond the end: %v", err)
	}
	if err := open(older, newest, Position{}); !errors.Is(err, ErrRollback) {
		t.Errorf("an older log: %v", err)
	}
	// An older pair: the vault remembers no more than the old log has.
	if err := open(older, newest, all[0]); !errors.Is(err, ErrRollback) {
		t.Errorf("an older pair: %v", err)
	}
	if err := open(older, all[0], all[0]); err != nil {
		t.Errorf("an older pair without a newer head: %v", err)
	}
	if err := open(foreign, newest, other); !errors.Is(err, ErrRollback) {
		t.Errorf("a foreign log: %v", err)
	}
	fresh := testConfig(t)
	fresh.Expect = &newest
	if _, _, err := Open(fresh); !errors.Is(err, ErrRollback) {
		t.Errorf("no log at all: %v", err)
	}
	if _, err := os.Stat(fresh.KeyFile); !os.IsNotExist(err) {
		t.Errorf("a key was made: %v", err)
	}
}

// What is expected inside a pruned segment cannot be compared; its ends can.
func TestExpectPruned(t *testing.T) {
	config := testConfig(t)
	l := start(t, config, nil)
	inside := record(t, l, acquired())
	if err := l.Rotate(); err != nil {
		t.Fatal(err)
	}
	at, _ := l.Durable()
	if _, err := l.Prune(copies(t, config, 1), false); err != nil {
		t.Fatal(err)
	}
	var ends []Position
	err := l.Replay(Position{}, func(_ Entry, p Position) error { ends = append(ends, p); return nil })
	if err != nil {
		t.Fatal(err)
	}
	stop(t, l)
	config.Fresh, config.Known = false, at
	for _, want := range append(ends[:2:2], inside) {
		config.Expect = &want
		l := start(t, config, nil)
		stop(t, l)
		if want == inside {
			continue
		}
		want.Hash[0]++
		if _, _, err := Open(config); !errors.Is(err, ErrRollback) {
			t.Errorf("entry %d changed: %v", want.Seq, err)
		}
	}
}

var asideAt = time.Date(2026, 3, 1, 12, 30, 45, 0, time.UTC)

// A log that is set aside stays readable, and a new one begins in its place.
func TestSetAside(t *testing.T) {
	config := testConfig(t)
	if path, err := SetAside(config.Dir, asideAt); path != "" || err != nil {
		t.Errorf("no folder: %q, %v", path, err)
	}
	l := closed(t, config, nil, 2)
	if _, err := l.Prune(copies(t, config, 1), false); err != nil {
		t.Fatal(err)
	}
	old := l.Head()
	stop(t, l)
	if err := errors.Join(
		os.WriteFile(filepath.Join(config.Dir, "00000003.torn-17"), []byte("torn"), 0o600),
		os.WriteFile(filepath.Join(config.Dir, "notes.txt"), []byte("mine"), 0o600),
	); err != nil {
		t.Fatal(err)
	}
	path, err := SetAside(config.Dir, asideAt)
	if err != nil || path != filepath.Join(config.Dir, "aside-20260301T123045Z") {
		t.Fatalf("%q, %v", path, err)
	}
	if got := files(t, config); got != "aside-20260301T123045Z notes.txt" {
		t.Error(got)
	}
	aside := config
	aside.Dir = path
	if got := files(t, aside); got != "1.pruned 2.jsonl 3.jsonl 3.torn-17" {
		t.Error(got)
	}
	intact(t, aside, old)
	if path, err := SetAside(config.Dir, asideAt); path != "" || err != nil {
		t.Errorf("nothing left: %q, %v", path, err)
	}

	held, err := os.OpenFile(config.KeyFile, os.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	config.Origin = &Origin{Cause: WasSetAside, Seq: old.Seq, Hash: old.Hash}
	l = start(t, config, nil)
	slots := make([]byte, 2*keySlotSize)
	if _, err := held.ReadAt(slots, keySlotSize); err != nil || bytes.Count(slots, []byte{0}) != len(slots) {
		t.Errorf("the key of the log that was set aside is still there: %v", err)
	}
	record(t, l, acquired())
	head := l.Head()
	stop(t, l)
	if head.Genesis == old.Genesis {
		t.Error("the genesis is the old one")
	}
	intact(t, config, head)
	// The second log of the same second gets a name of its own.
	if path, err := SetAside(config.Dir, asideAt); err != nil || filepath.Base(path) != "aside-20260301T123046Z" {
		t.Errorf("%q, %v", path, err)
	}
}

// Whatever was moved when it was interrupted, no start takes the rest for a log,
// and the next attempt moves the rest.
func TestSetAsideIsResumed(t *testing.T) {
	whole := testConfig(t)
	l := closed(t, whole, nil, 3)
	old := l.Head()
	stop(t, l)
	whole.Fresh = false
	names, err := logFiles(whole.Dir)
	if err != nil || len(names) != 4 {
		t.Fatal(names, err)
	}
	for moved := range len(names) + 1 {
		config := copyHome(t, whole)
		part := filepath.Join(config.Dir, "aside-20260301T120000Z.part")
		if err := os.Mkdir(part, 0o700); err != nil {
			t.Fatal(err)
		}
		for _, name := range names[:moved] {
			if err := os.Rename(filepath.Join(config.Dir, name), filepath.Join(part, name)); err != nil {
				t.Fatal(err)
			}
		}
		for _, fresh := range []bool{false, true} {
			config.Fresh = fresh
			if _, _, err := Open(config); !errors.Is(err, ErrDamaged) {
				t.Errorf("%d moved, fresh %v: %v", moved, fresh, err)
			}
		}
		path, err := SetAside(config.Dir, asideAt)
		if err != nil || path != strings.TrimSuffix(part, partSuffix) {
			t.Fatalf("%d moved: %q, %v", moved, path, err)
		}
		config.Dir = path
		intact(t, config, old)
	}
}

func TestSetAsideIsCareful(t *testing.T) {
	config, _ := written(t, 1)
	if err := os.Chmod(config.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := SetAside(config.Dir, asideAt); !errors.Is(err, ErrUnsafe) {
		t.Errorf("a loose folder: %v", err)
	}
}

// What passes for an interrupted move must be a folder of the log's own: through
// a link the log would leave.
func TestSetAsideFollowsNoLink(t *testing.T) {
	config := testConfig(t)
	l := closed(t, config, nil, 1)
	stop(t, l)
	outside := t.TempDir()
	if err := os.Symlink(outside, filepath.Join(config.Dir, "aside-20260301T120000Z.part")); err != nil {
		t.Fatal(err)
	}
	if path, err := SetAside(config.Dir, asideAt); !errors.Is(err, ErrUnsafe) {
		t.Errorf("%q, %v", path, err)
	}
	if moved, err := os.ReadDir(outside); len(moved) > 0 || err != nil {
		t.Errorf("moved: %v, %v", moved, err)
	}
	if got := files(t, config); got != "1.jsonl 2.jsonl aside-20260301T120000Z.part" {
		t.Error(got)
	}
}
