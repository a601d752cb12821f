package audit

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"
)

// closed opens a log of n closed segments and an open one.
func closed(t testing.TB, config Config, d *disk, n int) *Log {
	t.Helper()
	l := start(t, config, d)
	for range n {
		record(t, l, acquired())
		record(t, l, acquired())
		if err := l.Rotate(); err != nil {
			t.Fatal(err)
		}
	}
	record(t, l, acquired())
	return l
}

// copies is what an operator would show who has copied these segments.
func copies(t testing.TB, config Config, numbers ...uint32) []Copy {
	t.Helper()
	var list []Copy
	for _, number := range numbers {
		content, err := os.ReadFile(segmentPath(config, number))
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, Copy{Segment: number, SHA256: sha256.Sum256(content)})
	}
	return list
}

// files lists what is in the log's folder.
func files(t testing.TB, config Config) string {
	t.Helper()
	names, err := os.ReadDir(config.Dir)
	if err != nil {
		t.Fatal(err)
	}
	var words []string
	for _, name := range names {
		words = append(words, strings.TrimLeft(name.Name(), "0"))
	}
	return strings.Join(words, " ")
}

// Pruned segments keep their ends, the log tells of them, and everything goes
// on: reading, rotating, opening, verifying.
func TestPrune(t *testing.T) {
	config := testConfig(t)
	l := closed(t, config, nil, 3)
	want := copies(t, config, 1, 2)

	pruned, err := l.Prune(want, true)
	if err != nil || len(pruned) != 2 || files(t, config) != "1.jsonl 2.jsonl 3.jsonl 4.jsonl" {
		t.Fatalf("dry run: %+v, %v, %s", pruned, err, files(t, config))
	}
	if got := pruned[1]; got.Segment != 2 || got.First != 5 || got.Last != 8 || got.Bytes <= 0 {
		t.Errorf("%+v", got)
	}
	before, _ := l.Durable()
	done, err := l.Prune(want, false)
	if err != nil || fmt.Sprint(done) != fmt.Sprint(pruned) || files(t, config) != "1.pruned 2.pruned 3.jsonl 4.jsonl" {
		t.Fatalf("%+v, %v, %s", done, err, files(t, config))
	}
	var told []Entry
	if err := l.Replay(before, func(e Entry, _ Position) error { told = append(told, e); return nil }); err != nil {
		t.Fatal(err)
	}
	if kinds(told) != "audit.pruned audit.pruned" || told[1].ContentSHA256 != Hash(want[1].SHA256) || told[1].Count != 2 ||
		*told[1].Void != (Void{Segment: 2}) || *told[1].Bytes != pruned[1].Bytes {
		t.Errorf("%+v", told)
	}
	const story = "segment.opened key.handover segment.opened key.handover " +
		"segment.opened acquire acquire key.handover segment.opened acquire audit.pruned audit.pruned"
	if got := kinds(entries(t, l)); got != story {
		t.Error(got)
	}
	// From within what is gone, and from its end.
	for from, first := range map[uint64]uint64{2: 4, 4: 4, 6: 8, 8: 8, 9: 9} {
		if got := firstFrom(t, l, from); got != first {
			t.Errorf("from %d: entry %d", from, got)
		}
	}
	head := l.Head()
	stop(t, l)
	report := intact(t, config, head)
	if len(report.Pruned) != 2 || report.ExitCode() != 0 {
		t.Errorf("%+v", report)
	}
	config.Fresh, config.Known = false, Position{head.Segment, head.Seq, head.Hash}
	l = start(t, config, nil)
	if got := kinds(entries(t, l)); got != story {
		t.Error(got)
	}
	if _, err := l.Prune(copies(t, config, 3), false); err != nil {
		t.Error(err)
	}
	head = l.Head()
	stop(t, l)
	intact(t, config, head)
}

// What tells of a pruned segment may be pruned in its turn: what tells of a later
// one then stands for both.
func TestPruneWhatTells(t *testing.T) {
	config := testConfig(t)
	l := closed(t, config, nil, 1)
	for n := uint32(1); n < 6; n++ {
		if err := l.Rotate(); err != nil {
			t.Fatal(err)
		}
		if _, err := l.Prune(copies(t, config, n), false); err != nil {
			t.Fatal(err)
		}
	}
	if got := files(t, config); got != "1.pruned 2.pruned 3.pruned 4.pruned 5.pruned 6.jsonl 7.jsonl" {
		t.Fatal(got)
	}
	head := l.Head()
	stop(t, l)
	if report := intact(t, config, head); len(report.Pruned) != 5 || len(report.Notes) != 1 {
		t.Errorf("%+v", report)
	}
}

func firstFrom(t testing.TB, l *Log, from uint64) (seq uint64) {
	t.Helper()
	stop := errors.New("stop")
	err := l.Read(from, func(first uint64, _ []byte) error {
		seq = first
		return stop
	})
	if !errors.Is(err, stop) {
		t.Fatal(err)
	}
	return seq
}

func TestPruneIsRefused(t *testing.T) {
	config := testConfig(t)
	l := closed(t, config, nil, 4)
	defer stop(t, l)
	keep := Position{Segment: 4}
	l.config.Keep = func() Position { return keep }
	differs := copies(t, config, 1, 2)
	differs[1].SHA256[3]++
	for name, list := range map[string][]Copy{
		"nothing":            nil,
		"open":               copies(t, config, 1, 2, 3, 4, 5),
		"needed at a start":  copies(t, config, 1, 2, 3, 4),
		"beyond the end":     {{Segment: 6}},
		"number 0":           {{}},
		"not the oldest":     copies(t, config, 2),
		"a gap":              copies(t, config, 1, 3),
		"twice":              copies(t, config, 1, 1),
		"falling":            copies(t, config, 2, 1),
		"another copy":       differs,
		"copy of another":    {{Segment: 1, SHA256: copies(t, config, 2)[0].SHA256}},
		"copy that is empty": {{Segment: 1, SHA256: sha256.Sum256(nil)}},
	} {
		if pruned, err := l.Prune(list, false); !errors.Is(err, ErrNotPrunable) || len(pruned) != 0 {
			t.Errorf("%s: %+v, %v", name, pruned, err)
		}
	}
	// A segment that does not verify stays, though the copy has the same damage.
	content, err := os.ReadFile(segmentPath(config, 2))
	if err != nil {
		t.Fatal(err)
	}
	for at := 0; at < len(content); at += 97 {
		content[at] ^= 1
		if err := os.WriteFile(segmentPath(config, 2), content, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := l.Prune(copies(t, config, 1, 2), false); !errors.Is(err, ErrDamaged) {
			t.Errorf("damaged at %d: %v", at, err)
		}
		content[at] ^= 1
	}
	if err := os.WriteFile(segmentPath(config, 2), content, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := files(t, config); got != "1.jsonl 2.jsonl 3.jsonl 4.jsonl 5.jsonl" {
		t.Error(got)
	}
	for _, e := range entries(t, l) {
		if e.Kind == AuditPruned {
			t.Error("a refused prune is told of")
		}
	}
	// The control: the same, undamaged and in order.
	if _, err := l.Prune(copies(t, config, 1, 2, 3), false); err != nil {
		t.Error(err)
	}
}

// A crash at any step leaves a log that opens, verifies, and has either the
// whole segment or its ends and the entry that says so.
func TestCrashWhilePruning(t *testing.T) {
	var snapshots []Config
	var steps []string
	d := &disk{}
	config := testConfig(t)
	l := closed(t, config, d, 2)
	want := copies(t, config, 1, 2)
	at, _ := l.Durable()
	d.fail(func(op string) error {
		if op != "view" {
			snapshots, steps = append(snapshots, copyHome(t, config)), append(steps, op)
		}
		return nil
	})
	if _, err := l.Prune(want, false); err != nil {
		t.Fatal(err)
	}
	d.fail(nil)
	stop(t, l)
	if len(steps) < 2*8 {
		t.Fatalf("steps: %v", steps)
	}
	finished := 0
	for i, snapshot := range snapshots {
		t.Run(fmt.Sprint(i, " before ", steps[i]), func(t *testing.T) {
			told := unmended(t, snapshot)
			snapshot.Fresh, snapshot.Known = false, at
			before := files(t, snapshot)
			_, all := reopen(t, snapshot)
			after := files(t, snapshot)
			if strings.Contains(after, "pruning") || strings.Contains(after, "tmp") {
				t.Errorf("left behind: %s", after)
			}
			count := strings.Count(kinds(all), "audit.pruned")
			if got := strings.Count(after, ".pruned"); got != count || got != told {
				t.Errorf("%s, then %s: %d segments are pruned, %d were told of", before, after, got, count)
			}
			if before != after {
				finished++
			}
		})
	}
	if finished < 4 {
		t.Errorf("only %d of %d crashes left something to mend", finished, len(snapshots))
	}
}

// unmended verifies a crashed log as it is, and counts its audit.pruned.
func unmended(t *testing.T, config Config) (told int) {
	t.Helper()
	l := &Log{config: config, folder: osFolder(config.Dir)}
	list, _, err := listSegments(config.Dir)
	if err != nil {
		t.Fatal(err)
	}
	found, err := l.survey(list)
	if err != nil {
		t.Fatal(err)
	}
	l.list = list
	for _, e := range entries(t, l) {
		if e.Kind == AuditPruned {
			told++
		}
	}
	intact(t, config, Head{Genesis: found.genesis.String(), VaultID: config.VaultID, Seq: found.head.Seq, Hash: found.head.Hash})
	return told
}

// When pruning fails half-way the log goes on with what there is.
func TestPruneFails(t *testing.T) {
	for _, op := range []string{"create", "write", "sync", "publish", "remove"} {
		t.Run(op, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := &disk{}
				config := testConfig(t)
				l := closed(t, config, d, 2)
				d.fail(once(unix.EIO, op))
				if _, err := l.Prune(copies(t, config, 1, 2), false); err == nil {
					t.Error("pruned")
				}
				d.fail(nil)
				wait()
				record(t, l, acquired())
				head := l.Head()
				stop(t, l)
				intact(t, config, head)
				config.Fresh, config.Known = false, Position{head.Segment, head.Seq, head.Hash}
				l = start(t, config, d)
				var left []uint32
				for n := uint32(1); n <= 2; n++ {
					if _, err := os.Stat(segmentPath(config, n)); err == nil {
						left = append(left, n)
					}
				}
				if _, err := l.Prune(copies(t, config, left...), false); err != nil {
					t.Errorf("%v: %v", left, err)
				}
				head = l.Head()
				stop(t, l)
				intact(t, config, head)
			})
		})
	}
}

// An abandoned segment, also one that holds nothing but its first entry, is
// pruned like any other.
func TestPruneAbandoned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &disk{}
		config := testConfig(t)
		l := start(t, config, d)
		for i := range 3 {
			if i != 1 {
				record(t, l, acquired())
				record(t, l, acquired())
			} else if l.Head().Segment != 2 {
				t.Fatal("segment 1 was not abandoned")
			}
			d.fail(once(unix.EIO, "sync"))
			if _, err := l.Record(t.Context(), acquired()); err == nil {
				t.Fatal("recorded")
			}
			synctest.Wait()
		}
		if got := l.Head().Segment; got != 4 {
			t.Fatalf("segment %d is open", got)
		}
		record(t, l, acquired())
		// Of one the copy is up to where it ends, as in a bundle; of the others it
		// has what stands behind, too.
		if err := appendTo(segmentPath(config, 1), "whatever stands behind"); err != nil {
			t.Fatal(err)
		}
		list := copies(t, config, 1, 2, 3)
		content, err := os.ReadFile(segmentPath(config, 1))
		if err != nil {
			t.Fatal(err)
		}
		list[0].SHA256 = sha256.Sum256(content[:l.list[0].end])
		for _, short := range []int64{l.list[0].end - 1, l.list[0].end + 1} {
			wrong := []Copy{{Segment: 1, SHA256: sha256.Sum256(content[:short])}}
			if _, err := l.Prune(wrong, false); !errors.Is(err, ErrNotPrunable) {
				t.Errorf("a copy of %d bytes: %v", short, err)
			}
		}
		if _, err := l.Prune(list, false); err != nil {
			t.Fatal(err)
		}
		head := l.Head()
		story := kinds(entries(t, l))
		stop(t, l)
		if report := intact(t, config, head); len(report.Pruned) != 3 {
			t.Errorf("%+v", report)
		}
		config.Fresh = false
		l = start(t, config, nil)
		if got := kinds(entries(t, l)); got != story {
			t.Errorf("%s, want %s", got, story)
		}
		stop(t, l)
	})
}

// Somebody who can write to the folder cannot pass a stub off for a pruned
// segment, nor have a segment removed by putting one beside it.
func TestForgedStub(t *testing.T) {
	config := testConfig(t)
	l := closed(t, config, nil, 3)
	if _, err := l.Prune(copies(t, config, 1), false); err != nil {
		t.Fatal(err)
	}
	at := record(t, l, acquired())
	stop(t, l)
	config.Fresh, config.Known = false, at
	lines := func(c Config, name string) []string {
		content, err := os.ReadFile(filepath.Join(c.Dir, name))
		if err != nil {
			t.Fatal(err)
		}
		list := strings.SplitAfter(string(content), "\n")
		return list[:len(list)-1]
	}
	put := func(c Config, name string, lines ...string) error {
		return os.WriteFile(filepath.Join(c.Dir, name), []byte(strings.Join(lines, "")), 0o600)
	}
	one := lines(config, "00000001.pruned")
	two := lines(config, "00000002.jsonl")
	for name, spoil := range map[string]func(Config) error{
		"empty":              func(c Config) error { return put(c, "00000001.pruned") },
		"only the first":     func(c Config) error { return put(c, "00000001.pruned", one[0]) },
		"only the last":      func(c Config) error { return put(c, "00000001.pruned", one[1]) },
		"twice the first":    func(c Config) error { return put(c, "00000001.pruned", one[0], one[0]) },
		"three lines":        func(c Config) error { return put(c, "00000001.pruned", one[0], one[1], one[1]) },
		"three other lines":  func(c Config) error { return put(c, "00000001.pruned", one[0], two[1], one[1]) },
		"the last of others": func(c Config) error { return put(c, "00000001.pruned", one[0], two[3]) },
		"bytes between":      func(c Config) error { return put(c, "00000001.pruned", one[0], "x", one[1]) },
		"bytes behind":       func(c Config) error { return put(c, "00000001.pruned", one[0], one[1], "x") },
		"removed":            func(c Config) error { return os.Remove(filepath.Join(c.Dir, "00000001.pruned")) },
		"beside a segment":   func(c Config) error { return put(c, "00000002.pruned", two[0], two[3]) },
		"in place of newest": func(c Config) error {
			content := lines(c, "00000004.jsonl")
			return errors.Join(os.Remove(segmentPath(c, 4)), put(c, "00000004.pruned", content[0], content[len(content)-1]))
		},
	} {
		t.Run(name, func(t *testing.T) {
			config := copyHome(t, config)
			if err := spoil(config); err != nil {
				t.Fatal(err)
			}
			before := files(t, config)
			if _, _, err := Open(config); !errors.Is(err, ErrDamaged) {
				t.Errorf("%v", err)
			}
			if after := files(t, config); after != before {
				t.Errorf("%s became %s", before, after)
			}
		})
	}
	t.Run("known entry pruned", func(t *testing.T) {
		config := copyHome(t, config)
		config.Known = Position{Segment: 1, Seq: 2}
		if _, _, err := Open(config); !errors.Is(err, ErrRollback) {
			t.Errorf("%v", err)
		}
	})
	t.Run("copy put back", func(t *testing.T) {
		// A pruned segment that comes back is what it was; a start removes it again.
		config := testConfig(t)
		l := closed(t, config, nil, 2)
		content, _ := os.ReadFile(segmentPath(config, 1))
		if _, err := l.Prune(copies(t, config, 1), false); err != nil {
			t.Fatal(err)
		}
		stop(t, l)
		if err := os.WriteFile(segmentPath(config, 1), content, 0o600); err != nil {
			t.Fatal(err)
		}
		config.Fresh = false
		stop(t, start(t, config, nil))
		if got := files(t, config); got != "1.pruned 2.jsonl 3.jsonl" {
			t.Error(got)
		}
	})
}

// Readers and writers go on while segments are pruned under them.
func TestPruneWhileRunning(t *testing.T) {
	config := testConfig(t)
	l := closed(t, config, nil, 6)
	var over atomic.Bool
	var group sync.WaitGroup
	for range 2 {
		group.Go(func() {
			for !over.Load() {
				last := uint64(0)
				err := l.Replay(Position{}, func(_ Entry, at Position) error {
					if at.Seq <= last {
						return fmt.Errorf("entry %d after %d", at.Seq, last)
					}
					last = at.Seq
					return nil
				})
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	group.Go(func() {
		for !over.Load() {
			if _, err := l.Record(t.Context(), acquired()); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for n := uint32(1); n <= 6; n++ {
		if _, err := l.Prune(copies(t, config, n), false); err != nil {
			t.Error(err)
		}
	}
	over.Store(true)
	group.Wait()
	head := l.Head()
	stop(t, l)
	intact(t, config, head)
}

// A file that goes away while it is being opened is not there, as one that went before.
func TestViewOfWhatIsBeingRemoved(t *testing.T) {
	dir := osFolder(t.TempDir())
	var over atomic.Bool
	var group sync.WaitGroup
	group.Go(func() {
		defer over.Store(true)
		for range 1000 {
			f, err := dir.Create("segment")
			if err != nil {
				t.Error(err)
				return
			}
			f.Close()
			if err := os.Remove(filepath.Join(string(dir), "segment")); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for range 2 {
		group.Go(func() {
			for !over.Load() {
				if f, err := dir.View("segment"); err == nil {
					f.Close()
				} else if !errors.Is(err, fs.ErrNotExist) {
					t.Error(err)
					return
				}
			}
		})
	}
	group.Wait()
}

// What somebody put beside the open segment is no pruning that was interrupted.
func TestPlantedBesideTheOpenSegment(t *testing.T) {
	for suffix, want := range map[string]error{"pruning": nil, "pruned": ErrDamaged} {
		t.Run(suffix, func(t *testing.T) {
			config := testConfig(t)
			l := start(t, config, nil)
			record(t, l, acquired())
			stop(t, l)
			content, err := os.ReadFile(segmentPath(config, 1))
			if err != nil {
				t.Fatal(err)
			}
			planted := filepath.Join(config.Dir, "00000001."+suffix)
			if err := os.WriteFile(planted, content, 0o600); err != nil {
				t.Fatal(err)
			}
			config.Fresh = false
			l, _, err = Open(config)
			if !errors.Is(err, want) {
				t.Fatalf("opened with %v, want %v", err, want)
			}
			if err == nil {
				stop(t, l)
				if got := files(t, config); got != "1.jsonl" {
					t.Errorf("left: %s", got)
				}
			}
		})
	}
}
