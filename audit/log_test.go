package audit

import (
	"crypto/rand"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"subjectbroker/audit/verify"
)

const testVault = "00112233445566778899aabbccddeeff"

func testConfig(t testing.TB) Config {
	t.Helper()
	home := t.TempDir()
	if err := os.Chmod(home, 0o700); err != nil {
		t.Fatal(err)
	}
	seal := make([]byte, 32)
	_, _ = rand.Read(seal)
	return Config{
		Dir: filepath.Join(home, "audit"), KeyFile: filepath.Join(home, "audit.key"),
		SealKey: seal, VaultID: testVault, Fresh: true,
		WaitLimit: time.Minute, // a machine where much is tested at once has slow disks
	}
}

// start opens the log of config on d; nil means the real folder.
func start(t testing.TB, config Config, d *disk) *Log {
	t.Helper()
	in := folder(osFolder(config.Dir))
	if d != nil {
		d.osFolder = osFolder(config.Dir)
		in = d
	}
	l, _, err := open(config, in)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func stop(t testing.TB, l *Log) {
	t.Helper()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// intact has the independent verifier look at the log on the disk.
func intact(t testing.TB, config Config, head Head) verify.Report {
	t.Helper()
	report, err := verify.Dir(t.Context(), config.Dir, verify.Options{
		Head:          &verify.Head{Genesis: head.Genesis, VaultID: head.VaultID, Seq: head.Seq, Hash: Hash(head.Hash).String()},
		AllSignatures: true,
	})
	if err != nil {
		t.Error(err)
	} else if report.Fault != nil {
		t.Error(report.Fault)
	}
	return report
}

// leftOut skips, loudly: testreport names what was left out.
func leftOut(t testing.TB, name, why string) {
	t.Helper()
	t.Skipf("suite left out: %s: %s", name, why)
}

// acquired is a common entry, as small as the daemon writes it.
func acquired() Entry {
	return Entry{
		Kind: Acquire, RunID: "abcdefghjk", SubjectID: "worker", Tier: "cooperative", ResourceID: "design-doc",
		Version: 1, Action: "read", GrantID: "abcdefghjk", Decision: "allow", ReasonCode: "ALLOWED", Bytes: new(int64(1024)),
	}
}

func record(t testing.TB, l *Log, e Entry) Position {
	t.Helper()
	at, err := l.Record(t.Context(), e)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// entries reads the whole log back.
func entries(t testing.TB, l *Log) []Entry {
	t.Helper()
	var all []Entry
	if err := l.Replay(Position{}, func(e Entry, _ Position) error {
		all = append(all, e)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

// kinds is the story of a log in one line.
func kinds(list []Entry) string {
	var words []string
	for _, e := range list {
		words = append(words, string(e.Kind))
	}
	return strings.Join(words, " ")
}

func TestAppendReopenRotate(t *testing.T) {
	config := testConfig(t)
	l, recovery, err := Open(config)
	if err != nil {
		t.Fatal(err)
	}
	if *recovery != (Recovery{Genesis: true, Segments: 1, Entries: 1}) {
		t.Errorf("%+v", *recovery)
	}
	genesis := l.Head().Genesis
	record(t, l, acquired())
	if err := l.Rotate(); err != nil {
		t.Fatal(err)
	}
	at := record(t, l, acquired())
	if durable, _ := l.Durable(); durable != at || at.Segment != 2 || at.Seq != 5 {
		t.Errorf("durable %+v, recorded %+v", durable, at)
	}
	stop(t, l)

	config.Fresh, config.Known = false, at
	l, recovery, err = Open(config)
	if err != nil {
		t.Fatal(err)
	}
	defer stop(t, l)
	if *recovery != (Recovery{Segments: 2, Entries: 5}) {
		t.Errorf("%+v", *recovery)
	}
	if head := l.Head(); head.Genesis != genesis || head.Seq != at.Seq || head.Hash != at.Hash || head.Segment != 2 || head.Signature == "" {
		t.Errorf("%+v", head)
	}
	record(t, l, acquired())
	const want = "segment.opened acquire key.handover segment.opened acquire acquire"
	if got := kinds(entries(t, l)); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// The segment is closed by size while many append, and the chain holds.
func TestRotateBySize(t *testing.T) {
	config := testConfig(t)
	config.SegmentSize = 3000
	l := start(t, config, nil)
	defer stop(t, l)
	for range 30 {
		record(t, l, acquired())
	}
	if err := l.Rotate(); err != nil { // whatever the last entry set off is done after this
		t.Fatal(err)
	}
	all := entries(t, l)
	if last := all[len(all)-1]; last.Segment < 4 || last.Seq != uint64(len(all)) {
		t.Errorf("segment %d, seq %d of %d", last.Segment, last.Seq, len(all))
	}
	list, _ := filepath.Glob(filepath.Join(config.Dir, "*"))
	for _, name := range list {
		info, err := os.Lstat(name)
		if err != nil || info.Mode() != 0o600 || !strings.HasSuffix(name, segmentSuffix) {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}
}

func TestLineLength(t *testing.T) {
	config := testConfig(t)
	l := start(t, config, nil)
	defer stop(t, l)
	e := acquired()
	for range 5 {
		record(t, l, e)
	}
	err := l.Read(2, func(_ uint64, line []byte) error {
		if len(line) > 510 || !strings.Contains(string(line), `"sig"`) {
			t.Errorf("%d bytes: %s", len(line), line)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestEntryIsChecked(t *testing.T) {
	l := start(t, testConfig(t), nil)
	defer stop(t, l)
	for name, spoil := range map[string]func(*Entry){
		"newline in a name": func(e *Entry) { e.ResourceID = "a\nb" },
		"quote":             func(e *Entry) { e.SubjectID = `a"b` },
		"escape":            func(e *Entry) { e.Server = "a\x1b[31m" },
		"bidi":              func(e *Entry) { e.Tool = "a\u202eb" },
		"zero width":        func(e *Entry) { e.ShimVersion = "1\u200b" },
		"NUL":               func(e *Entry) { e.ProfileID = "a\x00" },
		"invalid UTF-8":     func(e *Entry) { e.Capability = "read:\xff" },
		"blank":             func(e *Entry) { e.Capability = "read: x" },
		"long name":         func(e *Entry) { e.ResourceID = strings.Repeat("a", 129) },
		"no kind":           func(e *Entry) { e.Kind = "" },
		"unknown kind":      func(e *Entry) { e.Kind = "content" },
		"unknown family":    func(e *Entry) { e.Kind = "content.read" },
		"unknown decision":  func(e *Entry) { e.Decision = "maybe" },
		"unknown tier":      func(e *Entry) { e.Tier = "root" },
		"prose as a cause":  func(e *Entry) { e.Cause = "no such file" },
		"prose as a reason": func(e *Entry) { e.ReasonCode = "denied" },
		"disclosed":         func(e *Entry) { e.Disclosed = "perhaps" },
		"tenant":            func(e *Entry) { e.Tenants = []string{"a", "b c"} },
		"tenants":           func(e *Entry) { e.Tenants = make([]string, 65) },
		"bytes":             func(e *Entry) { e.Bytes = new(int64(-1)) },
		"false mask":        func(e *Entry) { e.ResourceID = "~3~0123456789abcdeX" },
	} {
		e := acquired()
		spoil(&e)
		if _, err := l.Record(t.Context(), e); err == nil || !strings.Contains(err.Error(), ErrInvalid.Error()) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// None of them used up a seq, and what a stranger said enters masked.
	e := acquired()
	e.ResourceID = Mask([]byte("key"), "a\nb")
	e.Capability = "read:" + e.ResourceID
	if at := record(t, l, e); at.Seq != 2 {
		t.Errorf("seq %d", at.Seq)
	}
}

func TestBuildErrorUsesNoSeq(t *testing.T) {
	l := start(t, testConfig(t), nil)
	defer stop(t, l)
	_, err := l.Append(func(seq uint64, _ time.Time) (Entry, error) { return acquired(), os.ErrDeadlineExceeded })
	if err != os.ErrDeadlineExceeded {
		t.Error(err)
	}
	if at := record(t, l, acquired()); at.Seq != 2 {
		t.Errorf("seq %d", at.Seq)
	}
}

func TestReplayAfter(t *testing.T) {
	config := testConfig(t)
	config.SegmentSize = 5000
	l := start(t, config, nil)
	defer stop(t, l)
	var at []Position
	for range 40 {
		at = append(at, record(t, l, acquired()))
	}
	if err := l.Rotate(); err != nil { // whatever the last entry set off is done after this
		t.Fatal(err)
	}
	newest, _ := l.Durable()
	for _, from := range at {
		next := from.Seq
		if err := l.Replay(from, func(e Entry, p Position) error {
			next++
			if e.Seq != next || p.Seq != next {
				t.Fatalf("entry %d at %d, want %d", e.Seq, p.Seq, next)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if next != newest.Seq {
			t.Errorf("replayed up to %d, want %d", next, newest.Seq)
		}
	}
	wrong := at[7]
	wrong.Hash[0]++
	if err := l.Replay(wrong, func(Entry, Position) error { return nil }); err == nil {
		t.Error("a position with another hash was found")
	}
	if err := l.Replay(Position{Seq: 1000}, func(Entry, Position) error { return nil }); err == nil {
		t.Error("a position beyond the end was found")
	}
}

func TestDurableTells(t *testing.T) {
	l := start(t, testConfig(t), nil)
	defer stop(t, l)
	before, changed := l.Durable()
	select {
	case <-changed:
		t.Error("changed without an entry")
	default:
	}
	record(t, l, acquired())
	<-changed
	if after, _ := l.Durable(); after.Seq != before.Seq+1 {
		t.Errorf("%+v", after)
	}
}

func TestClosed(t *testing.T) {
	l := start(t, testConfig(t), nil)
	ticket, err := l.Append(func(uint64, time.Time) (Entry, error) { return acquired(), nil })
	if err != nil {
		t.Fatal(err)
	}
	stop(t, l)
	if err := ticket.Wait(t.Context()); err != nil {
		t.Errorf("what was pending: %v", err)
	}
	if _, err := l.Record(t.Context(), acquired()); err != ErrClosed {
		t.Error(err)
	}
	if err := l.Rotate(); err != ErrClosed {
		t.Error(err)
	}
	if ok, cause := l.Health(); ok || cause == "" {
		t.Error(ok, cause)
	}
	stop(t, l)
}

func TestConfigIsChecked(t *testing.T) {
	for name, spoil := range map[string]func(*Config){
		"Dir":         func(c *Config) { c.Dir = "audit" },
		"KeyFile":     func(c *Config) { c.KeyFile = "" },
		"SealKey":     func(c *Config) { c.SealKey = c.SealKey[:16] },
		"VaultID":     func(c *Config) { c.VaultID = strings.ToUpper(c.VaultID) },
		"SegmentSize": func(c *Config) { c.SegmentSize = -1 },
	} {
		config := testConfig(t)
		spoil(&config)
		if _, _, err := Open(config); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
