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
)

var update = flag.Bool("update", false, "write testdata/golden anew: that is a change of the format")

// vector is what testdata/golden/golden.json says about the log beside it.
type vector struct {
	VaultID string `json:"vaultId"`
	SealKey string `json:"sealKey"` // opens audit.key
	Genesis string `json:"genesis"`
	Seq     uint64 `json:"seq"`
	Hash    string `json:"hash"`
	Kinds   string `json:"kinds"`
}

const goldenDir = "testdata/golden"

// The golden log must be read, verified and continued by every later version.
func TestGolden(t *testing.T) {
	if *update {
		writeGolden(t)
	}
	config, want := golden(t)
	report := intact(t, config, Head{Genesis: want.Genesis, VaultID: want.VaultID, Seq: want.Seq, Hash: parseHash(t, want.Hash)})
	if report.ExitCode() != 0 || report.Entries != want.Seq || len(report.Voided) != 1 {
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
}

// golden returns a copy of the golden log, ready to be opened.
func golden(t testing.TB) (Config, vector) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(goldenDir, "golden.json"))
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
	config := Config{Dir: filepath.Join(goldenDir, "audit"), SealKey: seal, VaultID: v.VaultID}
	config = copyHome(t, config)
	config.Known = Position{Segment: 3, Seq: v.Seq, Hash: parseHash(t, v.Hash)}
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
		head := l.Head()
		v := vector{
			VaultID: head.VaultID, SealKey: hex.EncodeToString(config.SealKey), Genesis: head.Genesis,
			Seq: head.Seq, Hash: Hash(head.Hash).String(), Kinds: kinds(entries(t, l)),
		}
		stop(t, l)
		text, err := json.MarshalIndent(v, "", "  ")
		if err := errors.Join(err, os.RemoveAll(goldenDir), os.MkdirAll(goldenDir, 0o755),
			os.CopyFS(goldenDir, os.DirFS(filepath.Dir(config.Dir))),
			os.WriteFile(filepath.Join(goldenDir, "golden.json"), append(text, '\n'), 0o644)); err != nil {
			t.Fatal(err)
		}
	})
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
			// Two signed lines of this very segment mean that the end was lost.
			if errors.Is(err, ErrDamaged) && strings.Count(string(tail), `"sig":"`) > 1 {
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
