package audit

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"subjectbroker/audit/verify"
)

var update = flag.Bool("update", false, "write testdata anew: that is a change of the format")

// vector is what golden.json says about the log beside it.
type vector struct {
	VaultID string `json:"vaultId"`
	SealKey string `json:"sealKey"` // opens audit.key
	Genesis string `json:"genesis"`
	Segment uint32 `json:"segment"`
	Seq     uint64 `json:"seq"`
	Hash    string `json:"hash"`
	Kinds   string `json:"kinds"`
}

const (
	goldenDir = "testdata/golden" // every field, a hand-over, an abandoned segment
	prunedDir = "testdata/pruned" // begun anew, and pruned: a segment that was handed over and an abandoned one
)

// The golden logs must be read, verified and continued by every later version.
func TestGolden(t *testing.T) {
	if *update {
		writeGolden(t)
		writePruned(t)
	}
	report := golden(t, goldenDir)
	if report.Entries != report.Last.Seq || len(report.Voided) != 1 {
		t.Errorf("%+v", report)
	}
	report = golden(t, prunedDir)
	if len(report.Pruned) != 2 || report.Origin == nil || report.Origin.Last.Seq != 4711 {
		t.Errorf("%+v", report)
	}
}

// golden verifies, reads and continues one of them.
func golden(t *testing.T, dir string) verify.Report {
	t.Helper()
	config, want := vectors(t, dir)
	report := intact(t, config, Head{Genesis: want.Genesis, VaultID: want.VaultID, Seq: want.Seq, Hash: parseHash(t, want.Hash)})
	if report.ExitCode() != 0 {
		t.Errorf("%+v", report)
	}
	l := start(t, config, nil)
	defer stop(t, l)
	all := entries(t, l)
	if got := kinds(all); got != want.Kinds {
		t.Errorf("%s, want %s", got, want.Kinds)
	}
	if head := l.Head(); head.Genesis != want.Genesis || head.Seq != want.Seq || Hash(head.Hash).String() != want.Hash {
		t.Errorf("%+v", head)
	}
	record(t, l, acquired())
	if err := l.Rotate(); err != nil {
		t.Error(err)
	}
	return report
}

// vectors returns a copy of a golden log, ready to be opened.
func vectors(t testing.TB, dir string) (Config, vector) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "golden.json"))
	if err != nil {
		t.Fatal(err)
	}
	var v vector
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	seal, err := hex.DecodeString(v.SealKey)
	if err != nil {
		t.Fatal(err)
	}
	config := Config{Dir: filepath.Join(dir, "audit"), SealKey: seal, VaultID: v.VaultID}
	config = copyHome(t, config)
	config.Known = Position{Segment: v.Segment, Seq: v.Seq, Hash: parseHash(t, v.Hash)}
	return config, v
}

func parseHash(t testing.TB, text string) Hash {
	t.Helper()
	var h Hash
	if err := h.UnmarshalText([]byte(text)); err != nil {
		t.Fatal(err)
	}
	return h
}

// writeGolden makes a log with an entry of every field, commits of one and of
// many entries, a hand-over, and an abandoned segment.
func writeGolden(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // whose clock always begins at the same time
		d := &disk{}
		config := testConfig(t)
		l := start(t, config, d)
		all := []Entry{
			{Kind: "run.open", RunID: "abcdefghjk", SubjectID: "worker", Tier: "cooperative", Peer: &Peer{UID: 1000, PID: 4321}, ShimVersion: "0.1.0"},
			acquired(),
			{Kind: Acquire, RunID: "abcdefghjk", SubjectID: "worker", ResourceID: "readme", ContentSHA256: Hash{1, 2, 3}, Action: "read",
				Decision: "allow", ReasonCode: "ALLOWED", Disclosed: "yes", Bytes: new(int64(0))},
			{Kind: Acquire, RunID: "abcdefghjk", SubjectID: "worker", ResourceID: Mask([]byte("key"), "two\nlines"), Action: "read",
				Decision: "deny", ReasonCode: "INVALID_ARGUMENT", Cause: "MALFORMED_NAME"},
			{Kind: OpIntent, Generation: 7, Digest: Hash{4, 5, 6}, Action: "grant.create", SubjectID: "worker", Capability: "read:docs.*", GrantID: "mnpqrstvwx"},
			{Kind: "grant.create", SubjectID: "worker", Capability: "read:docs.*", GrantID: "mnpqrstvwx"},
			{Kind: OpApplied, Generation: 7, Digest: Hash{4, 5, 6}},
			{Kind: Call, LaunchID: "kmnpq", RunID: "abcdefghjk", SessionID: "s-1", SubjectID: "worker", Tier: "bound", ProfileID: "coder",
				KeyID: "agent-key:1", Tenants: []string{"acme", "initech"}, Capability: "call:github/create_issue", Server: "github",
				Tool: "create_issue", ArgsDigest: Hash{7, 8, 9}, Pin: "sha256:00ff", Policy: "strict", ApprovalID: "zyxwv",
				Decision: "pending", ReasonCode: "APPROVAL_PENDING", Disclosed: "reachable"},
			{Kind: Suppressed, Decision: "deny", ReasonCode: "RATE_LIMITED", Count: 250, Peer: &Peer{UID: 1000, PID: 4321}},
		}
		burst := func(list []Entry) {
			var last Ticket
			for _, e := range list {
				ticket, err := l.Append(func(uint64, time.Time) (Entry, error) { return e, nil })
				if err != nil {
					t.Fatal(err)
				}
				last = ticket
			}
			if err := last.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		record(t, l, all[0])
		burst(all[1:])
		if err := l.Rotate(); err != nil {
			t.Fatal(err)
		}
		burst(all[:4])
		d.fail(once(unix.EIO, "sync"))
		if _, err := l.Record(t.Context(), acquired()); !errors.Is(err, ErrFailed) {
			t.Fatal(err)
		}
		wait()
		burst(all[2:6])
		save(t, l, goldenDir)
	})
}

// writePruned makes a log that says where an older one ended, and of whose
// segments two were pruned.
func writePruned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &disk{}
		config := testConfig(t)
		config.Origin = &Origin{Cause: WasSetAside, Seq: 4711, Hash: Hash{1, 2, 3}}
		l := closed(t, config, d, 1)
		d.fail(once(unix.EIO, "sync"))
		if _, err := l.Record(t.Context(), acquired()); !errors.Is(err, ErrFailed) {
			t.Fatal(err)
		}
		wait()
		record(t, l, acquired())
		if err := l.Rotate(); err != nil {
			t.Fatal(err)
		}
		if _, err := l.Prune(copies(t, config, 1, 2), false); err != nil {
			t.Fatal(err)
		}
		record(t, l, acquired())
		save(t, l, prunedDir)
	})
}

// save closes l and keeps it in dir, with what golden.json says of it.
func save(t *testing.T, l *Log, dir string) {
	t.Helper()
	k, err := openKeyFile(l.config.KeyFile, l.config.VaultID, l.w.keys.seal[:])
	if err != nil {
		t.Fatal(err)
	}
	head := l.Head()
	v := vector{
		VaultID: head.VaultID, SealKey: hex.EncodeToString(k.seal[:]), Genesis: head.Genesis,
		Segment: head.Segment, Seq: head.Seq, Hash: Hash(head.Hash).String(), Kinds: kinds(entries(t, l)),
	}
	k.close()
	stop(t, l)
	text, err := json.MarshalIndent(v, "", "  ")
	if err := errors.Join(err, os.RemoveAll(dir), os.MkdirAll(dir, 0o755), os.CopyFS(dir, os.DirFS(filepath.Dir(l.config.Dir))),
		os.WriteFile(filepath.Join(dir, "golden.json"), append(text, '\n'), 0o644)); err != nil {
		t.Fatal(err)
	}
}

// Whatever decodes encodes to the same bytes.
func FuzzDecodeLine(f *testing.F) {
	names, err := filepath.Glob(filepath.Join(goldenDir, "audit", "*"+segmentSuffix))
	if err != nil || len(names) == 0 {
		f.Fatal("no golden log")
	}
	for _, name := range names {
		content, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		for line := range strings.Lines(string(content)) {
			f.Add([]byte(line))
		}
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		e, err := decodeLine(line)
		if err != nil {
			return
		}
		if again := appendLine(nil, &e); string(again) != string(line) {
			t.Errorf("%q\nencodes to\n%q", line, again)
		}
		c, ok := cutLine(line)
		if !ok || c.seq != e.Seq || c.prev != e.Prev || string(c.sig) != e.Sig {
			t.Errorf("cut into %+v, decoded to %+v", c, e)
		}
	})
}

// Whatever stands behind the answered entries, opening neither fails nor loses
// one of them.
func FuzzTornTail(f *testing.F) {
	config, at := written(f, 3)
	config.Known = at
	whole, err := os.ReadFile(segmentPath(config, 1))
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte("{}"))
	f.Add(whole[:100])
	f.Add(whole)
	f.Add(make([]byte, 4096))
	f.Fuzz(func(t *testing.T, tail []byte) {
		config := copyHome(t, config)
		if err := appendTo(segmentPath(config, 1), string(tail)); err != nil {
			t.Fatal(err)
		}
		l, recovery, err := Open(config)
		if err != nil {
			// Two ends of commits mean that one was lost.
			if errors.Is(err, ErrDamaged) && max(strings.Count(string(tail), `"sig":"`), strings.Count(string(tail), `=="}`)) > 1 {
				return
			}
			t.Fatal(err)
		}
		defer stop(t, l)
		if recovery.TornBytes != int64(len(tail)) {
			t.Errorf("%+v for %d bytes", recovery, len(tail))
		}
		if got := kinds(entries(t, l)); !strings.HasPrefix(got, "segment.opened acquire acquire acquire") {
			t.Error(got)
		}
	})
}
