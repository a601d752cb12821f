package audit

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// copyHome copies everything, as a crash would leave it.
func copyHome(t testing.TB, config Config) Config {
	t.Helper()
	home := t.TempDir()
	if err := errors.Join(os.Chmod(home, 0o700), os.CopyFS(home, os.DirFS(filepath.Dir(config.Dir)))); err != nil {
		t.Fatal(err)
	}
	config.Dir, config.KeyFile = filepath.Join(home, "audit"), filepath.Join(home, "audit.key")
	// CopyFS makes folders wider than we accept.
	if err := os.Chmod(config.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, pattern := range []string{config.KeyFile, filepath.Join(config.Dir, "*")} {
		names, _ := filepath.Glob(pattern)
		for _, name := range names {
			if err := os.Chmod(name, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	return config
}

// written makes a log of a few entries and returns its configuration for Open,
// and where it ended.
func written(t testing.TB, n int) (Config, Position) {
	t.Helper()
	config := testConfig(t)
	l := start(t, config, nil)
	var at Position
	for range n {
		at = record(t, l, acquired())
	}
	stop(t, l)
	config.Fresh = false
	return config, at
}

func segmentPath(config Config, number uint32) string {
	return filepath.Join(config.Dir, segmentName(number))
}

// reopen opens, adds an entry, and returns what was found and the whole log.
func reopen(t testing.TB, config Config) (*Recovery, []Entry) {
	t.Helper()
	l, recovery, err := Open(config)
	if err != nil {
		t.Fatal(err)
	}
	record(t, l, acquired())
	all := entries(t, l)
	stop(t, l)
	intact(t, config, l.Head())
	// What was mended stays mended.
	config.Known = l.durable
	l, again, err := Open(config)
	if err != nil {
		t.Fatal(err)
	}
	stop(t, l)
	if again.TornBytes != 0 || again.FinishedRotation {
		t.Errorf("mended twice: %+v", again)
	}
	return recovery, all
}

// A commit that a crash tore, anywhere, is set aside; what was answered stays.
func TestTornTail(t *testing.T) {
	config, _ := written(t, 2)
	whole, err := os.ReadFile(segmentPath(config, 1))
	if err != nil {
		t.Fatal(err)
	}
	answered := bytes.LastIndexByte(whole[:len(whole)-1], '\n') + 1
	tail := whole[answered:]
	for cut := 1; cut < len(tail); cut += 7 {
		torn := copyHome(t, config)
		if err := os.Truncate(segmentPath(torn, 1), int64(answered+cut)); err != nil {
			t.Fatal(err)
		}
		recovery, all := reopen(t, torn)
		if recovery.TornSegment != 1 || recovery.TornOffset != int64(answered) || recovery.TornBytes != int64(cut) {
			t.Errorf("cut at %d: %+v", cut, recovery)
		}
		if got := kinds(all); got != "segment.opened acquire recovered acquire" {
			t.Errorf("cut at %d: %s", cut, got)
		}
		told := all[2]
		aside, err := os.ReadFile(filepath.Join(torn.Dir, fmt.Sprintf("00000001.torn-%d", answered)))
		if err != nil || !bytes.Equal(aside, tail[:cut]) || told.ContentSHA256 != hashLine(aside) || *told.Bytes != int64(cut) ||
			*told.Void != (Void{Segment: 1, Offset: int64(answered)}) {
			t.Errorf("cut at %d: %v, %+v", cut, err, told)
		}
	}
}

func TestTornByGarbage(t *testing.T) {
	for name, garbage := range map[string]string{
		"zeros":            strings.Repeat("\x00", 5000),
		"half a line":      `{"v":1,"seq":4,"timestamp":`,
		"an old line":      "{}\n{}\n{}\n",
		"a very long line": strings.Repeat("x", 3*maxLine) + "\n",
	} {
		t.Run(name, func(t *testing.T) {
			config, at := written(t, 2)
			config.Known = at
			if err := appendTo(segmentPath(config, 1), garbage); err != nil {
				t.Fatal(err)
			}
			recovery, all := reopen(t, config)
			if recovery.TornBytes != int64(len(garbage)) || kinds(all) != "segment.opened acquire acquire recovered acquire" {
				t.Errorf("%+v, %s", recovery, kinds(all))
			}
		})
	}
}

// Bytes were set aside, but the crash came before the entry that tells of it.
func TestSetAsideIsRecordedLater(t *testing.T) {
	config, _ := written(t, 2)
	info, err := os.Stat(segmentPath(config, 1))
	if err != nil {
		t.Fatal(err)
	}
	for i, content := range []string{"torn", "torn again"} {
		name := fmt.Sprintf("00000001.torn-%d", info.Size())
		if i > 0 {
			name += ".1"
		}
		if err := os.WriteFile(filepath.Join(config.Dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	_, all := reopen(t, config)
	if got := kinds(all); got != "segment.opened acquire acquire recovered recovered acquire" || *all[4].Bytes != int64(len("torn again")) {
		t.Errorf("%s", got)
	}
}

// Damage in front of answered entries is never mistaken for a torn tail.
func TestDamagedInside(t *testing.T) {
	config, _ := written(t, 6)
	whole, err := os.ReadFile(segmentPath(config, 1))
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.SplitAfter(whole, []byte("\n"))
	inside := len(bytes.Join(lines[:5], nil)) // two answered entries follow
	for at := 0; at < inside; at += 11 {
		broken := bytes.Clone(whole)
		broken[at] ^= 1
		if err := os.WriteFile(segmentPath(config, 1), broken, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, _, err := Open(config); !errors.Is(err, ErrDamaged) {
			t.Errorf("flipped byte %d: %v", at, err)
		}
	}
	if names, _ := filepath.Glob(filepath.Join(config.Dir, "*")); len(names) != 1 {
		t.Errorf("something was written: %v", names)
	}
}

func TestKnownPosition(t *testing.T) {
	config := testConfig(t)
	l := start(t, config, nil)
	record(t, l, acquired())
	older := copyHome(t, config)
	middle := record(t, l, acquired())
	if err := l.Rotate(); err != nil {
		t.Fatal(err)
	}
	newest := record(t, l, acquired())
	stop(t, l)
	config.Fresh, older.Fresh = false, false

	other := middle
	other.Hash[5]++
	for _, c := range []struct {
		name   string
		config Config
		known  Position
		want   error
	}{
		{"newest", config, newest, nil},
		{"earlier", config, middle, nil},
		{"nothing", config, Position{}, nil},
		{"another entry", config, other, ErrRollback},
		{"beyond the end", config, Position{Segment: 2, Seq: newest.Seq + 1}, ErrRollback},
		{"older log", older, middle, ErrRollback},
		{"older log, newer segment", older, newest, ErrRollback},
	} {
		t.Run(c.name, func(t *testing.T) {
			config := copyHome(t, c.config)
			config.Known = c.known
			l, _, err := Open(config)
			if !errors.Is(err, c.want) {
				t.Errorf("%v, want %v", err, c.want)
			}
			if err == nil {
				stop(t, l)
			}
		})
	}
}

func TestMissingLog(t *testing.T) {
	config := testConfig(t)
	config.Fresh = false
	if _, _, err := Open(config); !errors.Is(err, ErrDamaged) {
		t.Errorf("no folder: %v", err)
	}
	if err := os.Mkdir(config.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Open(config); !errors.Is(err, ErrDamaged) {
		t.Errorf("empty folder: %v", err)
	}
	config.Known = Position{Segment: 1, Seq: 1}
	if _, _, err := Open(config); !errors.Is(err, ErrRollback) {
		t.Errorf("empty folder, known entry: %v", err)
	}
	if _, err := os.Stat(config.KeyFile); !os.IsNotExist(err) {
		t.Errorf("a key was made: %v", err)
	}
	// A fresh one may find an empty folder, and what a first start left behind.
	config.Known, config.Fresh = Position{}, true
	if err := os.WriteFile(config.KeyFile, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	stop(t, start(t, config, nil))
}

// Segments are there, all of them, and belong together.
func TestSegmentsBelongTogether(t *testing.T) {
	config := testConfig(t)
	l := start(t, config, nil)
	for range 2 {
		record(t, l, acquired())
		if err := l.Rotate(); err != nil {
			t.Fatal(err)
		}
	}
	at := record(t, l, acquired())
	stop(t, l)
	config.Fresh, config.Known = false, at
	foreign, _ := written(t, 2)

	for name, spoil := range map[string]func(Config) error{
		"first removed":    func(c Config) error { return os.Remove(segmentPath(c, 1)) },
		"middle removed":   func(c Config) error { return os.Remove(segmentPath(c, 2)) },
		"closed truncated": func(c Config) error { return os.Truncate(segmentPath(c, 1), 600) },
		"closed emptied":   func(c Config) error { return os.Truncate(segmentPath(c, 2), 0) },
		"newest emptied":   func(c Config) error { return os.Truncate(segmentPath(c, 3), 0) },
		"added":            func(c Config) error { return os.WriteFile(segmentPath(c, 4), nil, 0o600) },
		"foreign": func(c Config) error {
			content, err := os.ReadFile(segmentPath(foreign, 1))
			return errors.Join(err, os.WriteFile(segmentPath(c, 1), content, 0o600))
		},
		"something else": func(c Config) error { return os.WriteFile(segmentPath(c, 3), []byte("hello\n"), 0o600) },
		"key missing":    func(c Config) error { return os.Remove(c.KeyFile) },
		"key emptied":    func(c Config) error { return os.Truncate(c.KeyFile, 0) },
		"key of another log": func(c Config) error {
			content, err := os.ReadFile(foreign.KeyFile)
			return errors.Join(err, os.WriteFile(c.KeyFile, content, 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			config := copyHome(t, config)
			if err := spoil(config); err != nil {
				t.Fatal(err)
			}
			if _, _, err := Open(config); !errors.Is(err, ErrDamaged) {
				t.Errorf("%v", err)
			}
		})
	}
	t.Run("other seal key", func(t *testing.T) {
		config := copyHome(t, config)
		config.SealKey = make([]byte, 32)
		_, _ = rand.Read(config.SealKey)
		if _, _, err := Open(config); !errors.Is(err, ErrDamaged) {
			t.Errorf("%v", err)
		}
	})
	t.Run("other vault", func(t *testing.T) {
		config := copyHome(t, config)
		config.VaultID = strings.Repeat("f", 32)
		if _, _, err := Open(config); !errors.Is(err, ErrDamaged) {
			t.Errorf("%v", err)
		}
	})
}

// What is not a plain private file of ours is refused at once, without hanging
// and without mending it.
func TestUnsafe(t *testing.T) {
	config, _ := written(t, 2)
	log, key := func(c Config) string { return segmentPath(c, 1) }, func(c Config) string { return c.KeyFile }
	replace := func(path func(Config) string, make func(old, path string) error) func(Config) error {
		return func(c Config) error {
			old := filepath.Join(filepath.Dir(c.Dir), "old")
			return errors.Join(os.Rename(path(c), old), make(old, path(c)))
		}
	}
	fifo := func(_, path string) error { return syscall.Mkfifo(path, 0o600) }
	folder := func(_, path string) error { return os.Mkdir(path, 0o700) }
	for name, spoil := range map[string]func(Config) error{
		"log is a FIFO":           replace(log, fifo),
		"log is a symlink":        replace(log, os.Symlink),
		"log is a folder":         replace(log, folder),
		"log has a second link":   replace(log, os.Link),
		"log is readable":         func(c Config) error { return os.Chmod(log(c), 0o640) },
		"log is read-only":        func(c Config) error { return os.Chmod(log(c), 0o400) },
		"key is a FIFO":           replace(key, fifo),
		"key is a symlink":        replace(key, os.Symlink),
		"key has a second link":   replace(key, os.Link),
		"key is readable":         func(c Config) error { return os.Chmod(key(c), 0o644) },
		"folder is loose":         func(c Config) error { return os.Chmod(c.Dir, 0o750) },
		"folder is for all":       func(c Config) error { return os.Chmod(c.Dir, 0o777) },
		"folder is a symlink":     replace(func(c Config) string { return c.Dir }, os.Symlink),
		"folder is a file":        replace(func(c Config) string { return c.Dir }, func(_, path string) error { return os.WriteFile(path, nil, 0o600) }),
		"log belongs to another":  asRoot(func(c Config) error { return os.Chown(log(c), 65534, -1) }),
		"folder belongs to other": asRoot(func(c Config) error { return os.Chown(c.Dir, 65534, -1) }),
	} {
		t.Run(name, func(t *testing.T) {
			config := copyHome(t, config)
			if err := spoil(config); errors.Is(err, errNotRoot) {
				leftOut(t, "foreign owner", "needs root to give files away")
			} else if err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			if _, _, err := Open(config); !errors.Is(err, ErrUnsafe) {
				// Without root, a file we cannot even open is refused by the system.
				if os.Geteuid() == 0 || !errors.Is(err, os.ErrPermission) {
					t.Errorf("%v", err)
				}
			}
			if took := time.Since(began); took > time.Minute {
				t.Errorf("after %v", took)
			}
		})
	}
}

var errNotRoot = errors.New("not root")

func asRoot(do func(Config) error) func(Config) error {
	return func(c Config) error {
		if os.Geteuid() != 0 {
			return errNotRoot
		}
		return do(c)
	}
}

// A crash at any step of a rotation, or of the very first start, leaves a log
// that opens and goes on.
func TestCrashWhileRotating(t *testing.T) {
	var snapshots []Config
	var steps []string
	d := &disk{}
	config := testConfig(t)
	snap := func(op string) error {
		snapshots, steps = append(snapshots, copyHome(t, config)), append(steps, op)
		return nil
	}
	l := start(t, config, d)
	at := record(t, l, acquired())
	d.fail(snap)
	if err := l.Rotate(); err != nil {
		t.Fatal(err)
	}
	d.fail(nil)
	snapshots, steps = append(snapshots, copyHome(t, config)), append(steps, "done")
	stop(t, l)
	if len(steps) < 7 {
		t.Fatalf("steps: %v", steps)
	}
	for i, snapshot := range snapshots {
		t.Run(fmt.Sprint(i, " before ", steps[i]), func(t *testing.T) {
			snapshot.Fresh, snapshot.Known = false, at
			recovery, all := reopen(t, snapshot)
			if got := kinds(all); got != "segment.opened acquire acquire" && got != "segment.opened acquire key.handover segment.opened acquire" {
				t.Errorf("%+v: %s", recovery, got)
			}
			k, err := openKeyFile(snapshot.KeyFile, snapshot.VaultID, snapshot.SealKey)
			if err != nil {
				t.Fatal(err)
			}
			defer k.close()
			if k.slots[0] != nil && k.slots[1] != nil {
				t.Error("the old key is still there")
			}
		})
	}
}

func TestCrashWhileBeginning(t *testing.T) {
	d := &disk{}
	config := testConfig(t)
	var snapshots []Config
	d.fail(func(string) error {
		snapshots = append(snapshots, copyHome(t, config))
		return nil
	})
	l := start(t, config, d)
	stop(t, l)
	for _, snapshot := range snapshots {
		if _, all := reopen(t, snapshot); kinds(all) != "segment.opened acquire" {
			t.Error(kinds(all))
		}
	}
}

// Of an abandoned segment nothing counts behind the void, whatever stands there.
func TestCrashBehindVoid(t *testing.T) {
	d := &disk{}
	config := testConfig(t)
	l := start(t, config, d)
	record(t, l, acquired())
	d.fail(once(syscall.EIO, "sync"))
	if _, err := l.Record(t.Context(), acquired()); err == nil {
		t.Fatal("recorded")
	}
	for l.failed() != nil { // the committer is mending
		time.Sleep(time.Millisecond)
	}
	at := record(t, l, acquired())
	stop(t, l)
	config.Fresh, config.Known = false, at
	for name, behind := range map[string]func() error{
		"as it was": func() error { return nil },
		"longer":    func() error { return appendTo(segmentPath(config, 1), "garbage") },
		"shorter":   func() error { return os.Truncate(segmentPath(config, 1), endOf(t, config, 2)) },
	} {
		if err := behind(); err != nil {
			t.Fatal(err)
		}
		l, _, err := Open(config)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := kinds(entries(t, l)); got != "segment.opened acquire segment.opened recovered acquire" {
			t.Errorf("%s: %s", name, got)
		}
		stop(t, l)
	}
	// Within the part that counts, it is damage.
	if err := os.Truncate(segmentPath(config, 1), endOf(t, config, 2)-1); err != nil {
		t.Fatal(err)
	}
	config.Known = Position{}
	if _, _, err := Open(config); !errors.Is(err, ErrDamaged) {
		t.Error(err)
	}
}

// endOf is the offset behind the first n lines of segment 1.
func endOf(t testing.TB, config Config, n int) int64 {
	t.Helper()
	content, err := os.ReadFile(segmentPath(config, 1))
	if err != nil {
		t.Fatal(err)
	}
	return int64(len(bytes.Join(bytes.SplitAfter(content, []byte("\n"))[:n], nil)))
}
