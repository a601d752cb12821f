package verify_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"subjectbroker/audit"
	"subjectbroker/audit/audittest"
	"subjectbroker/audit/verify"
)

// built is a log of three segments on disk, closed.
type built struct {
	config audit.Config
	dir    string
	head   audit.Head
	// segments holds the lines of each file.
	segments [][][]byte
}

func build(t testing.TB) built {
	t.Helper()
	config := audittest.Config(t)
	l, _, err := audit.Open(config)
	if err != nil {
		t.Fatal(err)
	}
	for segment := range 3 {
		if segment > 0 {
			if err := l.Rotate(); err != nil {
				t.Fatal(err)
			}
		}
		for _, burst := range []int{1, 4, 1, 3} {
			appendBurst(t, l, burst)
		}
	}
	b := built{config: config, dir: config.Dir, head: l.Head()}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	b.load(t)
	return b
}

// appendBurst appends n entries so that they share a commit, or nearly so.
func appendBurst(t testing.TB, l *audit.Log, n int) {
	t.Helper()
	var last audit.Ticket
	for i := range n {
		ticket, err := l.Append(func(seq uint64, _ time.Time) (audit.Entry, error) { return sample(seq + uint64(i)), nil })
		if err != nil {
			t.Fatal(err)
		}
		last = ticket
	}
	if err := last.Wait(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// sample fills, over a few seqs, every field that an entry can have.
func sample(seq uint64) audit.Entry {
	hash := audit.Hash{1, 2, 3, byte(seq)}
	switch seq % 4 {
	case 0:
		return audit.Entry{Kind: audit.OpIntent, Generation: seq, Digest: hash, Action: "grant.create", GrantID: "abcdefgh",
			SubjectID: "worker", Capability: "read:design-doc", Peer: &audit.Peer{UID: 1000, PID: 4321}}
	case 1:
		return audit.Entry{Kind: audit.Call, LaunchID: "kmnpq", RunID: "abcdefghjk", SessionID: "s-1", SubjectID: "worker", Tier: "bound",
			Server: "github", Tool: "github/create_issue", ArgsDigest: hash, Pin: "sha256:00ff", Policy: "strict", ApprovalID: "zyx",
			ProfileID: "coder", Tenants: []string{"acme", "initech"}, Decision: "pending", ReasonCode: "APPROVAL_PENDING",
			Disclosed: "reachable", KeyID: "agent-key:1", ShimVersion: "1.2.3", Count: 7}
	case 2:
		return audit.Entry{Kind: audit.Acquire, RunID: "abcdefghjk", SubjectID: "worker", ResourceID: "readme", ContentSHA256: hash,
			Action: "read", Decision: "allow", ReasonCode: "ALLOWED", Bytes: new(int64(0)), Disclosed: "no"}
	default:
		return audit.Entry{Kind: audit.Acquire, RunID: "abcdefghjk", SubjectID: "worker", ResourceID: audit.Mask([]byte("k"), "a\nb"),
			Version: 3, Action: "read", Decision: "deny", ReasonCode: "ACCESS_DENIED", Cause: "NO_GRANT"}
	}
}

func (b *built) load(t testing.TB) {
	t.Helper()
	for n := 1; ; n++ {
		content, err := os.ReadFile(filepath.Join(b.dir, fmt.Sprintf("%08d.jsonl", n)))
		if os.IsNotExist(err) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		b.segments = append(b.segments, bytes.SplitAfter(content[:len(content):len(content)], []byte("\n")))
		last := len(b.segments) - 1
		b.segments[last] = b.segments[last][:len(b.segments[last])-1]
	}
}

// forge writes a copy of the log with other content.
func forge(t testing.TB, segments [][][]byte) string {
	t.Helper()
	dir := t.TempDir()
	for i, lines := range segments {
		if lines == nil {
			continue
		}
		name := filepath.Join(dir, fmt.Sprintf("%08d.jsonl", i+1))
		if err := os.WriteFile(name, bytes.Join(lines, nil), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// with returns the log with one segment replaced.
func (b *built) with(segment int, lines [][]byte) [][][]byte {
	forged := append([][][]byte(nil), b.segments...)
	forged[segment] = lines
	return forged
}

func check(t testing.TB, dir string, options verify.Options) verify.Report {
	t.Helper()
	report, err := verify.Dir(t.Context(), dir, options)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

func TestIntact(t *testing.T) {
	b := build(t)
	last := b.head
	point := &verify.Point{Seq: last.Seq, Hash: fmt.Sprintf("%x", last.Hash)}
	for _, c := range []struct {
		name    string
		options verify.Options
		exit    int
	}{
		{"alone", verify.Options{}, verify.ExitUnproven},
		{"all signatures", verify.Options{AllSignatures: true}, verify.ExitUnproven},
		{"genesis", verify.Options{Genesis: last.Genesis}, verify.ExitProven},
		{"expect", verify.Options{Expect: point}, verify.ExitProven},
		{"daemon", verify.Options{Head: &verify.Head{Genesis: last.Genesis, VaultID: last.VaultID, Seq: point.Seq, Hash: point.Hash}}, verify.ExitProven},
	} {
		t.Run(c.name, func(t *testing.T) {
			report := check(t, b.dir, c.options)
			if report.ExitCode() != c.exit || report.Last != *point || report.Entries != point.Seq || report.Segments != 3 {
				t.Errorf("exit %d: %+v", report.ExitCode(), report)
			}
		})
	}
}

// mutations returns what can be done to one line, with the seq or the field
// that each touches in its name.
func mutations(line []byte) map[string][]byte {
	out := map[string][]byte{}
	body := line[1 : len(line)-2]
	for i, field := range splitFields(body) {
		key := string(field[:bytes.IndexByte(field, ':')])
		changed := bytes.Clone(field)
		flip(changed)
		rest := bytes.Replace(line, field, changed, 1)
		out["change "+key] = rest
		without := bytes.Replace(line, append([]byte(","), field...), nil, 1)
		if i == 0 {
			without = bytes.Replace(line, append(field[:len(field):len(field)], ','), nil, 1)
		}
		out["remove "+key] = without
		out["repeat "+key] = bytes.Replace(line, field, append(append(bytes.Clone(field), ','), field...), 1)
		if bytes.HasSuffix(field, []byte(`"`)) {
			out["escape "+key] = bytes.Replace(line, field, append(field[:len(field)-1:len(field)-1], `\u0000"`...), 1)
			out["break "+key] = bytes.Replace(line, field, append(field[:len(field)-1:len(field)-1], "\n\""...), 1)
		}
	}
	out["blank"] = bytes.Replace(line, []byte(","), []byte(", "), 1)
	out["add"] = bytes.Replace(line, []byte(`,"prev"`), []byte(`,"content":"x","prev"`), 1)
	out["carriage return"] = bytes.Replace(line, []byte("\n"), []byte("\r\n"), 1)
	return out
}

// splitFields cuts at the commas of the outermost level.
func splitFields(body []byte) [][]byte {
	var fields [][]byte
	depth, from := 0, 0
	for i, c := range body {
		switch c {
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		case ',':
			if depth == 0 {
				fields = append(fields, body[from:i])
				from = i + 1
			}
		}
	}
	return append(fields, body[from:])
}

// flip changes one character of a value into another of its class.
func flip(field []byte) {
	for i := len(field) - 1; field[i] != ':' || i > len(field)-2; i-- {
		switch c := field[i]; {
		case c >= '0' && c <= '9':
			field[i] = '0' + (c-'0'+1)%10
			return
		case c >= 'a' && c <= 'z':
			field[i] = 'a' + (c-'a'+1)%6
			return
		case c >= 'A' && c <= 'Z':
			field[i] = 'A' + (c-'A'+1)%26
			return
		}
	}
}

// Every field of every entry, changed in every way we can think of, is found
// and located (P24).
func TestMutatedEntry(t *testing.T) {
	b := build(t)
	dir := forge(t, b.segments)
	seq, vouched, tried := uint64(0), uint64(0), 0
	for segment, lines := range b.segments {
		name := filepath.Join(dir, fmt.Sprintf("%08d.jsonl", segment+1))
		for i, line := range lines {
			seq++
			for what, mutated := range mutations(line) {
				if bytes.Equal(mutated, line) {
					t.Fatalf("entry %d: %s changed nothing", seq, what)
				}
				forged := append([][]byte(nil), lines...)
				forged[i] = mutated
				write(t, name, bytes.Join(forged, nil))
				tried++
				report := check(t, dir, verify.Options{AllSignatures: tried%2 == 0})
				switch {
				case report.ExitCode() != verify.ExitFault:
					t.Errorf("entry %d: %s: exit %d", seq, what, report.ExitCode())
				case what == `remove "sig"` && report.Fault.Seq == vouched+1: // its whole commit is unsigned now
				case report.Fault.Seq != seq:
					t.Errorf("entry %d: %s: found at %v", seq, what, report.Fault)
				}
			}
			if bytes.Contains(line, []byte(`"sig"`)) {
				vouched = seq
			}
		}
		write(t, name, bytes.Join(lines, nil))
	}
	t.Logf("%d mutations", tried)
}

// write replaces the content of a file, without the truncation to nothing that
// makes some file systems flush at every close.
func write(t testing.TB, name string, content []byte) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(content, 0); err != nil {
		t.Fatal(err)
	}
	if err := f.Truncate(int64(len(content))); err != nil {
		t.Fatal(err)
	}
}
