package verify_test

import (
	"bytes"
	"crypto/ed25519"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/crypto/nacl/secretbox"

	"subjectbroker/audit"
	"subjectbroker/audit/audittest"
	"subjectbroker/audit/verify"
)

// todaysKey is what a thief of the running daemon's memory has: the private key
// of the open segment.
func todaysKey(t *testing.T, config audit.Config) ed25519.PrivateKey {
	t.Helper()
	content, err := os.ReadFile(config.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []int{4096, 8192} {
		slot := content[at : at+24+secretbox.Overhead+32+ed25519.SeedSize]
		if plain, ok := secretbox.Open(nil, slot[24:], (*[24]byte)(slot), (*[32]byte)(config.SealKey)); ok {
			return ed25519.NewKeyFromSeed(plain[32:])
		}
	}
	t.Fatal("no key in the file")
	return nil
}

func pointOf(head audit.Head) *verify.Point {
	return &verify.Point{Seq: head.Seq, Hash: hex.EncodeToString(head.Hash[:])}
}

// The thief of today's key can rewrite the open segment, which an entry noted
// elsewhere tells, and no other.
func TestThiefOfTodaysKey(t *testing.T) {
	b := build(t)
	key := todaysKey(t, b.config)
	first, middle, last := b.segments[0], b.segments[1], b.segments[2]
	began := b.head.Seq - uint64(len(last)) + 1 // seq of the open segment's first entry
	expect := pointOf(b.head)
	daemon := &verify.Head{Genesis: b.head.Genesis, VaultID: b.head.VaultID, Seq: expect.Seq, Hash: expect.Hash}
	edited := func(lines [][]byte, from int) [][]byte {
		out := slices.Clone(lines)
		for i := from; i < len(out); i++ {
			out[i] = bytes.ReplaceAll(out[i], []byte(`"worker"`), []byte(`"walker"`))
		}
		return out
	}
	// The first line stays: the key is the right one.
	rewritten := append([][]byte{last[0]}, resign(last[0], edited(last[1:], 0), key, audittest.VaultID, 3)...)
	shorter := append(slices.Clone(last[:2]), resign(last[1], renumber(edited(last[4:], 0), began+2), key, audittest.VaultID, 3)...)

	for _, c := range []struct {
		name     string
		segments [][][]byte
		options  verify.Options
		exit     int
		seq      uint64
	}{
		// What a key cannot protect is not promised.
		{"open segment rewritten, genesis alone", b.with(2, rewritten), verify.Options{Genesis: b.head.Genesis}, verify.ExitProven, 0},
		{"open segment rewritten", b.with(2, rewritten), verify.Options{Expect: expect}, verify.ExitFault, expect.Seq},
		{"open segment rewritten under the daemon", b.with(2, rewritten), verify.Options{Head: daemon}, verify.ExitFault, expect.Seq},
		{"truncated and continued", b.with(2, shorter), verify.Options{Expect: expect}, verify.ExitFault, began + uint64(len(shorter))},
		{"closed segment signed with it", b.with(1, resign(first[len(first)-1], edited(middle, 0), key, audittest.VaultID, 2)),
			verify.Options{}, verify.ExitFault, uint64(len(first)) + 1},
		{"closed segment signed with it, its key named", b.with(1, resignAs(first[len(first)-1], middle, edited(middle, 1), key, 2)),
			verify.Options{}, verify.ExitFault, uint64(len(first)) + 2},
		{"an origin in it", b.with(2, resign(middle[len(middle)-1], originIn(last, "SET_ASIDE"), key, audittest.VaultID, 3)),
			verify.Options{Genesis: b.head.Genesis}, verify.ExitFault, began},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := forge(t, c.segments)
			for _, all := range []bool{false, true} {
				c.options.AllSignatures = all
				report := check(t, dir, c.options)
				if report.ExitCode() != c.exit || report.Fault != nil && report.Fault.Seq != c.seq {
					t.Errorf("exit %d, want %d at entry %d: %v", report.ExitCode(), c.exit, c.seq, &report)
				}
			}
		})
	}
}

// renumber gives lines other seqs.
func renumber(lines [][]byte, from uint64) [][]byte {
	out := slices.Clone(lines)
	for i := range out {
		out[i] = seqField.ReplaceAll(out[i], fmt.Appendf(nil, `"seq":%d`, from+uint64(i)))
	}
	return out
}

// resignAs is resign, but the first and the last line stay as they were.
func resignAs(before []byte, original, lines [][]byte, key ed25519.PrivateKey, segment uint32) [][]byte {
	out := resign(original[0], lines[1:len(lines)-1], key, audittest.VaultID, segment)
	return slices.Concat([][]byte{original[0]}, out, [][]byte{original[len(original)-1]})
}

// originIn puts an origin into the first line.
func originIn(lines [][]byte, cause string) [][]byte {
	out := slices.Clone(lines)
	out[0] = bytes.Replace(out[0], []byte(`,"prev"`), []byte(`,"cause":"`+cause+`","prev"`), 1)
	return out
}

// Where a log begins is part of the genesis.
func TestForgedOrigin(t *testing.T) {
	config := audittest.Config(t)
	config.Origin = &audit.Origin{Cause: audit.Restored, Seq: 4711, Hash: [32]byte{1, 2, 3}}
	l, _, err := audit.Open(config)
	if err != nil {
		t.Fatal(err)
	}
	appendBurst(t, l, 2)
	b := built{config: config, dir: config.Dir, head: l.Head()}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	b.load(t)
	key := todaysKey(t, config)
	report := check(t, b.dir, verify.Options{Genesis: b.head.Genesis})
	if o := report.Origin; report.ExitCode() != verify.ExitProven || o == nil || o.Cause != "RESTORED" || o.Last.Seq != 4711 {
		t.Fatalf("exit %d: %+v", report.ExitCode(), report)
	}
	lines := b.segments[0]
	change := func(old, changed string) [][]byte {
		out := slices.Clone(lines)
		if out[0] = bytes.Replace(out[0], []byte(old), []byte(changed), 1); bytes.Equal(out[0], lines[0]) {
			t.Fatalf("there is no %s", old)
		}
		return out
	}
	for name, forged := range map[string][][]byte{
		"another seq":   change(`"count":4711`, `"count":4712`),
		"another cause": change(`RESTORED`, `SET_ASIDE`),
		"another hash":  change(`"contentSha256":"0102`, `"contentSha256":"0103`),
		"no seq":        change(`,"count":4711`, ``),
		"no cause":      change(`,"cause":"RESTORED"`, ``),
		"its own cause": change(`RESTORED`, `FORGIVEN`),
	} {
		report := check(t, forge(t, [][][]byte{forged}), verify.Options{})
		if report.ExitCode() != verify.ExitFault || report.Fault.Seq != 1 {
			t.Errorf("%s: exit %d: %v", name, report.ExitCode(), &report)
		}
		report = check(t, forge(t, [][][]byte{resign(nil, forged, key, audittest.VaultID, 1)}), verify.Options{Genesis: b.head.Genesis})
		if report.ExitCode() != verify.ExitFault || report.Fault.Seq != 1 {
			t.Errorf("%s, signed: exit %d: %v", name, report.ExitCode(), &report)
		}
		whole := name == "another seq" || name == "another cause" || name == "another hash"
		report = check(t, forge(t, [][][]byte{resign(nil, forged, key, audittest.VaultID, 1)}), verify.Options{})
		if want := map[bool]int{true: verify.ExitUnproven, false: verify.ExitFault}[whole]; report.ExitCode() != want {
			t.Errorf("%s, signed and without an anchor: exit %d: %v", name, report.ExitCode(), &report)
		}
	}
}

// A log that is cut at a signature, and that the daemon itself then goes on
// with, is told by whatever knows a later entry.
func TestCutAndContinued(t *testing.T) {
	b := build(t)
	last := b.segments[2]
	at := len(last) - 2
	for !sigField.Match(last[at]) {
		at--
	}
	write(t, filepath.Join(b.dir, "00000003.jsonl"), bytes.Join(last[:at+1], nil))
	config := b.config
	config.Fresh = false
	expect := audit.Position{Segment: 3, Seq: b.head.Seq, Hash: b.head.Hash}
	for name, change := range map[string]func(*audit.Config){
		"the vault":    func(c *audit.Config) { c.Known = expect },
		"a head noted": func(c *audit.Config) { c.Expect = &expect },
	} {
		config := config
		change(&config)
		if _, _, err := audit.Open(config); !errors.Is(err, audit.ErrRollback) {
			t.Errorf("%s: %v", name, err)
		}
	}
	l, _, err := audit.Open(config)
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		appendBurst(t, l, 2)
	}
	head := l.Head()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if head.Seq <= expect.Seq {
		t.Fatalf("it ends at %d", head.Seq)
	}
	if report := check(t, b.dir, verify.Options{Genesis: b.head.Genesis}); report.ExitCode() != verify.ExitProven {
		t.Errorf("the genesis alone: exit %d", report.ExitCode())
	}
	if report := check(t, b.dir, verify.Options{Expect: pointOf(b.head)}); report.ExitCode() != verify.ExitFault || report.Fault.Seq != b.head.Seq {
		t.Errorf("exit %d: %v", report.ExitCode(), &report)
	}
	config.Expect = &expect
	if _, _, err := audit.Open(config); !errors.Is(err, audit.ErrRollback) {
		t.Error(err)
	}
}
