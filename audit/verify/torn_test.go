package verify_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"path/filepath"
	"slices"
	"testing"

	"subjectbroker/audit/verify"
)

// What a killed writer leaves is a fault, because files alone cannot tell it
// from a cut; and the report says that it is nothing worse.
func TestTorn(t *testing.T) {
	b := build(t)
	last := b.segments[2]
	at := len(last) - 2 // the newest signed line before the last commit
	for !sigField.Match(last[at]) {
		at--
	}
	seq := b.head.Seq - uint64(len(last)-1-at)
	sum := sha256.Sum256(last[at])
	point := verify.Point{Seq: seq, Hash: hex.EncodeToString(sum[:])}
	newest := verify.Point{Seq: b.head.Seq, Hash: hex.EncodeToString(b.head.Hash[:])}
	whole := bytes.Join(last, nil)
	answered := len(bytes.Join(last[:at+1], nil))
	damaged := bytes.Clone(whole)
	damaged[answered-20] ^= 1 // in the signature of the last commit but one

	for _, c := range []struct {
		name    string
		content []byte
		expect  *verify.Point
		torn    int
	}{
		{"cut in the last commit", whole[:len(whole)-20], nil, len(whole) - 20 - answered},
		{"one byte of it", whole[:answered+1], nil, 1},
		{"all but its newline", whole[:len(whole)-1], nil, len(whole) - 1 - answered},
		{"zeros behind it", append(bytes.Clone(whole), make([]byte, 300)...), nil, 300},
		{"unsigned lines", append(bytes.Join(last[:at+1], nil), strip(last)[at+1]...), nil, len(strip(last)[at+1])},
		{"not beyond what is expected", whole[:len(whole)-20], &point, len(whole) - 20 - answered},
		{"whole", whole, nil, 0},
		{"beyond what is expected", whole[:len(whole)-20], &newest, 0},
		{"damage before the last commit", damaged, nil, 0},
		{"nothing", nil, nil, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := forge(t, b.segments)
			write(t, filepath.Join(dir, "00000003.jsonl"), c.content)
			for _, all := range []bool{false, true} {
				report := check(t, dir, verify.Options{Expect: c.expect, AllSignatures: all})
				if report.Torn != int64(c.torn) || report.Unfinished() != (c.torn > 0) {
					t.Errorf("%d bytes are torn, want %d: %v", report.Torn, c.torn, &report)
				}
				if c.torn == 0 {
					continue
				}
				if report.ExitCode() != verify.ExitFault {
					t.Errorf("exit %d", report.ExitCode())
				}
				if want := point; c.name != "zeros behind it" && report.Last != want {
					t.Errorf("the last that is vouched for is %v, want %v", report.Last, want)
				}
			}
		})
	}
	t.Run("damage elsewhere", func(t *testing.T) {
		lines := slices.Clone(b.segments[1])
		lines[2] = bytes.Replace(lines[2], []byte(`"kind"`), []byte(`"KIND"`), 1)
		dir := forge(t, b.with(1, lines))
		write(t, filepath.Join(dir, "00000003.jsonl"), whole[:len(whole)-20])
		if report := check(t, dir, verify.Options{}); report.Unfinished() || report.Fault.Segment != 2 {
			t.Errorf("%+v", report)
		}
	})
	t.Run("a rotation", func(t *testing.T) {
		dir := forge(t, b.segments[:2])
		report := check(t, dir, verify.Options{})
		if report.ExitCode() != verify.ExitFault || !report.Rotating || report.Torn > 0 {
			t.Errorf("%+v", report)
		}
		if report = check(t, dir, verify.Options{Expect: &newest}); report.ExitCode() != verify.ExitFault || report.Rotating {
			t.Errorf("expected beyond: %+v", report)
		}
	})
}
