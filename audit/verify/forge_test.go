package verify_test

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"subjectbroker/audit"
	"subjectbroker/audit/audittest"
	"subjectbroker/audit/verify"
)

var (
	prevField = regexp.MustCompile(`"prev":"[0-9a-f]{64}"`)
	sigField  = regexp.MustCompile(`,"sig":"[^"]{88}"`)
	seqField  = regexp.MustCompile(`"seq":(\d+)`)
	keyField  = regexp.MustCompile(`ed25519:[A-Za-z0-9+/]{43}=`)
)

// rechain gives lines the prev that the chain demands, from index on, as
// somebody without the key can.
func rechain(lines [][]byte, from int) [][]byte {
	out := slices.Clone(lines)
	for i := from; i < len(out); i++ {
		if i > 0 {
			hash := sha256.Sum256(out[i-1])
			out[i] = prevField.ReplaceAll(out[i], []byte(`"prev":"`+hex.EncodeToString(hash[:])+`"`))
		}
	}
	return out
}

// resign chains and signs the lines with a key of the forger's, as somebody who
// rewrites everything can.
//
// A line that is to stay as it is, because it only gives the next its prev,
// comes as before.
func resign(before []byte, lines [][]byte, key ed25519.PrivateKey, vault string, segment uint32) [][]byte {
	id := "ed25519:" + base64.StdEncoding.EncodeToString(key.Public().(ed25519.PublicKey))
	out := append([][]byte{before}, lines...)
	for i := 1; i < len(out); i++ {
		line := out[i]
		if bytes.Contains(line, []byte("segment.opened")) || bytes.Contains(line, []byte("key.handover")) {
			line = keyField.ReplaceAll(line, []byte(id))
		}
		out[i] = line
		if before != nil || i > 1 {
			line = rechain(out[:i+1], i)[i]
		}
		if at := sigField.FindIndex(line); at != nil {
			seq := uint64(0)
			fmt.Sscan(string(seqField.FindSubmatch(line)[1]), &seq)
			sum := sha256.Sum256(line[:at[0]])
			m := binary.BigEndian.AppendUint32(nil, 5)
			for _, f := range [][]byte{
				[]byte("sb/audit/sig/v1"), []byte(vault), binary.BigEndian.AppendUint32(nil, segment),
				binary.BigEndian.AppendUint64(nil, seq), sum[:],
			} {
				m = append(binary.BigEndian.AppendUint32(m, uint32(len(f))), f...)
			}
			sig := base64.StdEncoding.EncodeToString(ed25519.Sign(key, m))
			line = append(line[:at[0]:at[0]], `,"sig":"`+sig+"\"}\n"...)
		}
		out[i] = line
	}
	return out[1:]
}

// Histories that hang together in themselves but are not the one that was
// written.
func TestForgedHistory(t *testing.T) {
	b, foreign := build(t), build(t)
	genesis := b.head.Genesis
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	expect := &verify.Point{Seq: b.head.Seq, Hash: fmt.Sprintf("%x", b.head.Hash)}
	first, middle, last := b.segments[0], b.segments[1], b.segments[2]
	// seqOf is the seq of a line by segment and index.
	seqOf := func(segment, index int) uint64 {
		n := uint64(index + 1)
		for _, lines := range b.segments[:segment] {
			n += uint64(len(lines))
		}
		return n
	}
	resigned := func() [][][]byte {
		var out [][][]byte
		var before []byte
		for i, lines := range b.segments {
			part := resign(before, lines, key, audittest.VaultID, uint32(i+1))
			out = append(out, part)
			before = part[len(part)-1]
		}
		return out
	}
	edit := func(lines [][]byte, index int) [][]byte {
		out := slices.Clone(lines)
		out[index] = bytes.Replace(out[index], []byte(`"worker"`), []byte(`"walker"`), 1)
		return out
	}
	signedAt := func(lines [][]byte, from int) int {
		for i := from; i < len(lines); i++ {
			if sigField.Match(lines[i]) {
				return i
			}
		}
		t.Fatal("no signed line")
		return 0
	}

	for _, c := range []struct {
		name     string
		segments [][][]byte
		options  verify.Options
		seq      uint64
	}{
		{name: "empty log", segments: nil, seq: 1},
		{name: "empty file", segments: [][][]byte{{}}, seq: 1},
		{name: "empty newest file", segments: append(slices.Clone(b.segments), [][]byte{}), seq: seqOf(2, len(last)) + 1 - 1},
		{name: "first entry dropped", segments: b.with(0, first[1:]), seq: 1},
		{name: "entry dropped", segments: b.with(1, slices.Delete(slices.Clone(middle), 3, 4)), seq: seqOf(1, 3)},
		{name: "entry repeated", segments: b.with(1, slices.Insert(slices.Clone(middle), 3, middle[2])), seq: seqOf(1, 3)},
		{name: "entries swapped", segments: b.with(1, swap(middle, 3, 4)), seq: seqOf(1, 3)},
		{name: "hand-over dropped", segments: b.with(1, middle[:len(middle)-1]), seq: seqOf(1, len(middle)-1)},
		{name: "entry behind the hand-over", segments: b.with(0, append(slices.Clone(first), foreign.segments[1][1])), seq: seqOf(1, 0)},
		{name: "first segment dropped", segments: b.with(0, nil), seq: 1},
		{name: "middle segment dropped", segments: b.with(1, nil), seq: seqOf(1, 0)},
		{name: "last segment dropped", segments: b.segments[:2], seq: seqOf(2, 0)},
		{name: "segments swapped", segments: [][][]byte{first, last, middle}, seq: seqOf(1, 0)},
		{name: "foreign segment", segments: b.with(1, foreign.segments[1]), seq: seqOf(1, 0)},
		{name: "foreign entry", segments: b.with(2, replace(last, 2, foreign.segments[2][2])), seq: seqOf(2, 2)},
		{name: "foreign tail", segments: b.with(2, append(slices.Clone(last[:3]), foreign.segments[2][3:]...)), seq: seqOf(2, 3)},
		{name: "tail dropped", segments: b.with(2, last[:signedAt(last, 3)+1]), options: verify.Options{Expect: expect}, seq: seqOf(2, signedAt(last, 3)+1)},
		{name: "signatures stripped", segments: b.with(2, strip(last)), seq: seqOf(2, 0)},
		{name: "signatures stripped but the first", segments: b.with(2, rechain(append(slices.Clone(last[:1]), strip(last[1:])...), 1)), seq: seqOf(2, 1)},
		{name: "edited and chained anew", segments: b.with(1, rechain(edit(middle, 1), 1)), seq: seqOf(1, 1)},
		{name: "signed with another key", segments: b.with(2, resign(middle[len(middle)-1], last, key, audittest.VaultID, 3)), seq: seqOf(2, 0)},
		{name: "everything signed anew", segments: resigned(), options: verify.Options{Genesis: genesis}, seq: 1},
		{name: "everything signed anew, expected", segments: resigned(), options: verify.Options{Expect: expect}, seq: expect.Seq},
		{name: "foreign log", segments: foreign.segments, options: verify.Options{Genesis: genesis}, seq: 1},
		{name: "foreign log for the daemon's", segments: foreign.segments,
			options: verify.Options{Head: &verify.Head{Genesis: genesis, VaultID: b.head.VaultID, Seq: expect.Seq, Hash: expect.Hash}}, seq: 1},
		{name: "older than the daemon's", segments: b.segments,
			options: verify.Options{Head: &verify.Head{Genesis: genesis, VaultID: b.head.VaultID, Seq: expect.Seq + 1, Hash: expect.Hash}}, seq: expect.Seq + 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := forge(t, c.segments)
			for _, all := range []bool{false, true} {
				options := c.options
				options.AllSignatures = all
				report := check(t, dir, options)
				if report.ExitCode() != verify.ExitFault {
					t.Fatalf("exit %d: %v", report.ExitCode(), &report)
				}
				if report.Fault.Seq != c.seq {
					t.Errorf("found at %d, want %d: %v", report.Fault.Seq, c.seq, report.Fault)
				}
			}
		})
	}
	// Without an anchor a log that was signed anew is only self-consistent.
	if report := check(t, forge(t, resigned()), verify.Options{AllSignatures: true}); report.ExitCode() != verify.ExitUnproven {
		t.Errorf("exit %d: %v", report.ExitCode(), &report)
	}
}

func swap(lines [][]byte, i, j int) [][]byte {
	out := slices.Clone(lines)
	out[i], out[j] = out[j], out[i]
	return out
}

func replace(lines [][]byte, i int, line []byte) [][]byte {
	out := slices.Clone(lines)
	out[i] = line
	return out
}

func strip(lines [][]byte) [][]byte {
	out := slices.Clone(lines)
	for i := range out {
		out[i] = sigField.ReplaceAll(out[i], nil)
	}
	return rechain(out, 1)
}

// A log that is cut anywhere is whole only where a signature ends it, and then
// an entry that was noted earlier tells.
func TestTruncated(t *testing.T) {
	b := build(t)
	content := bytes.Join(b.segments[2], nil)
	dir := forge(t, b.segments)
	name := filepath.Join(dir, "00000003.jsonl")
	expect := &verify.Point{Seq: b.head.Seq, Hash: fmt.Sprintf("%x", b.head.Hash)}
	late := len(content) - len(bytes.Join(b.segments[2][len(b.segments[2])-2:], nil))
	for cut := range content {
		// Everywhere in the last two lines, or nearly so, and around every line break.
		if (cut < late || cut%3 > 0) && !bytes.Contains(content[max(0, cut-2):cut+1], []byte("\n")) {
			continue
		}
		write(t, name, content[:cut])
		report := check(t, dir, verify.Options{})
		whole := cut > 0 && bytes.HasSuffix(content[:cut], []byte("\n")) && strings.Contains(lastLine(content[:cut]), `"sig"`)
		if want := map[bool]int{true: verify.ExitUnproven, false: verify.ExitFault}[whole]; report.ExitCode() != want {
			t.Errorf("cut at %d: exit %d, want %d", cut, report.ExitCode(), want)
		}
		if whole {
			if report := check(t, dir, verify.Options{Expect: expect}); report.ExitCode() != verify.ExitFault {
				t.Errorf("cut at %d: exit %d against the expected entry", cut, report.ExitCode())
			}
		}
	}
}

func lastLine(content []byte) string {
	trimmed := strings.TrimSuffix(string(content), "\n")
	return trimmed[strings.LastIndexByte(trimmed, '\n')+1:]
}

func TestIrregularFiles(t *testing.T) {
	b := build(t)
	for name, make := range map[string]func(path string) error{
		"fifo":    func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"symlink": func(path string) error { return os.Symlink(filepath.Join(b.dir, "00000003.jsonl"), path) },
		"folder":  func(path string) error { return os.Mkdir(path, 0o700) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := forge(t, b.segments[:2])
			if err := make(filepath.Join(dir, "00000003.jsonl")); err != nil {
				t.Fatal(err)
			}
			if report := check(t, dir, verify.Options{}); report.ExitCode() != verify.ExitFault {
				t.Errorf("exit %d: %v", report.ExitCode(), &report)
			}
		})
	}
}

// A commit that the daemon is writing is no fault; one that nobody signs is.
func TestInFlight(t *testing.T) {
	b := build(t)
	last := b.segments[2]
	// The daemon's head is the last signed entry but one; the file goes on with
	// a part of the last commit.
	at := len(last) - 2
	for !sigField.Match(last[at]) {
		at--
	}
	sum := sha256.Sum256(last[at])
	seq := b.head.Seq - uint64(len(last)-1-at)
	head := &verify.Head{Genesis: b.head.Genesis, VaultID: b.head.VaultID, Seq: seq, Hash: hex.EncodeToString(sum[:])}
	whole := bytes.Join(last, nil)
	name := func(dir string) string { return filepath.Join(dir, "00000003.jsonl") }

	for _, c := range []struct {
		name string
		tail []byte
		then []byte // what the file becomes soon after
		exit int
	}{
		{"torn, then whole", whole[:len(whole)-20], whole, verify.ExitProven},
		{"torn, then cut back", whole[:len(whole)-20], bytes.Join(last[:at+1], nil), verify.ExitProven},
		{"torn for ever", whole[:len(whole)-20], whole[:len(whole)-20], verify.ExitFault},
		{"forged", append(bytes.Join(last[:at+1], nil), strip(last)[at+1]...), nil, verify.ExitFault},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := forge(t, b.segments)
			write(t, name(dir), c.tail)
			synctest.Test(t, func(t *testing.T) {
				if c.then != nil {
					go func() {
						time.Sleep(30 * time.Millisecond)
						if err := os.WriteFile(name(dir), c.then, 0o600); err != nil {
							t.Error(err)
						}
					}()
				}
				report, err := verify.Dir(t.Context(), dir, verify.Options{Head: head})
				if err != nil || report.ExitCode() != c.exit {
					t.Errorf("exit %d, %v: %v", report.ExitCode(), err, &report)
				}
				if c.exit == verify.ExitProven && (report.Last.Seq < seq || report.Entries != report.Last.Seq) {
					t.Errorf("%+v", report)
				}
			})
		})
	}
}

// What pruning leaves is accepted when an entry accounts for it.
func TestPruned(t *testing.T) {
	config := audittest.Config(t)
	l := audittest.Open(t, config)
	appendBurst(t, l, 5)
	for range 2 {
		if err := l.Rotate(); err != nil {
			t.Fatal(err)
		}
		appendBurst(t, l, 3)
	}
	b := built{dir: config.Dir, head: l.Head()}
	b.load(t)
	stub := bytes.Join([][]byte{b.segments[0][0], b.segments[0][len(b.segments[0])-1]}, nil)
	prune := func(segments [][][]byte) string {
		dir := forge(t, segments)
		if err := os.Remove(filepath.Join(dir, "00000001.jsonl")); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, "00000001.pruned"), stub)
		return dir
	}

	report := check(t, prune(b.segments), verify.Options{Genesis: b.head.Genesis})
	if report.ExitCode() != verify.ExitFault || report.Fault.Seq != 2 {
		t.Errorf("unaccounted: exit %d, %v", report.ExitCode(), report.Fault)
	}

	if _, err := l.Record(t.Context(), audit.Entry{Kind: audit.AuditPruned, Count: 5, Void: &audit.Void{Segment: 1}}); err != nil {
		t.Fatal(err)
	}
	b = built{dir: config.Dir, head: l.Head()}
	b.load(t)
	report = check(t, prune(b.segments), verify.Options{Genesis: b.head.Genesis})
	want := verify.Pruned{Segment: 1, First: 1, Last: uint64(len(b.segments[0]))}
	if report.ExitCode() != verify.ExitProven || len(report.Pruned) != 1 || report.Pruned[0] != want {
		t.Errorf("exit %d, %+v", report.ExitCode(), report)
	}

	stub = append(stub, b.segments[0][1]...)
	if report := check(t, prune(b.segments), verify.Options{}); report.ExitCode() != verify.ExitFault {
		t.Errorf("with a third line: exit %d", report.ExitCode())
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for _, options := range []verify.Options{
		{Genesis: "abc"},
		{Expect: &verify.Point{Seq: 1}},
		{Expect: &verify.Point{Hash: strings.Repeat("0", 64)}},
	} {
		if _, err := verify.Dir(t.Context(), t.TempDir(), options); err == nil {
			t.Errorf("%+v was accepted", options)
		}
	}
	if _, err := verify.Dir(t.Context(), filepath.Join(t.TempDir(), "none"), verify.Options{}); !os.IsNotExist(err) && err == nil {
		t.Errorf("a folder that is not there: %v", err)
	}
}
