package main

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

// day is the n-th day of a log.
func day(n int) time.Time { return time.Date(2026, 1, n, 0, 0, 0, 0, time.UTC) }

// Of what the bundle holds, only closed segments that are still whole go, from
// the oldest on and without a gap.
func TestChoose(t *testing.T) {
	two := uint(2)
	for _, test := range []struct {
		name   string
		copies []uint32
		oldest uint32 // that is whole in the log
		open   uint32
		cmd    auditPruneCmd
		before time.Time
		want   []uint32
	}{
		{"all that is closed", []uint32{1, 2, 3}, 1, 4, auditPruneCmd{}, time.Time{}, []uint32{1, 2, 3}},
		{"not the open one", []uint32{1, 2, 3}, 1, 3, auditPruneCmd{}, time.Time{}, []uint32{1, 2}},
		{"not what is pruned", []uint32{1, 2, 3}, 3, 5, auditPruneCmd{}, time.Time{}, []uint32{3}},
		{"up to a gap", []uint32{1, 2, 4}, 1, 9, auditPruneCmd{}, time.Time{}, []uint32{1, 2}},
		{"all but two", []uint32{1, 2, 3, 4}, 1, 5, auditPruneCmd{Keep: &two}, time.Time{}, []uint32{1, 2}},
		{"fewer than two", []uint32{1, 2}, 1, 3, auditPruneCmd{Keep: &two}, time.Time{}, nil},
		{"what ends before", []uint32{1, 2, 3}, 1, 4, auditPruneCmd{}, day(3), []uint32{1, 2}},
		{"nothing ends before", []uint32{1, 2, 3}, 1, 4, auditPruneCmd{}, day(1), nil},
		{"an empty bundle", nil, 1, 4, auditPruneCmd{}, time.Time{}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			for n := uint32(1); n <= test.open; n++ {
				name := fmt.Sprintf("%08d.jsonl", n)
				if n < test.oldest {
					name = fmt.Sprintf("%08d.pruned", n)
				}
				if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			var copies []segmentCopy
			for _, n := range test.copies {
				copies = append(copies, segmentCopy{segment: n, last: day(int(n))})
			}
			var got []uint32
			for _, chosen := range test.cmd.choose(copies, &operatorv1.AuditHeadResponse{Dir: dir, Segment: test.open}, test.before) {
				got = append(got, chosen.segment)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// A segment that was open when the bundle was made is no copy of what it became.
func TestReadCopies(t *testing.T) {
	line := func(n int) string {
		return fmt.Sprintf(`{"v":1,"seq":%d,"timestamp":"%s","kind":"list"}`+"\n", n, day(n).Format(time.RFC3339))
	}
	bundle := filepath.Join(t.TempDir(), "b.tar")
	file, err := os.Create(bundle)
	if err != nil {
		t.Fatal(err)
	}
	archive := tar.NewWriter(file)
	first := line(1) + line(2)
	for _, member := range [][2]string{
		{"HEAD.json", `{"segment":3}`}, {"audit/00000001.jsonl", first}, {"audit/00000002.jsonl", line(3) + `{"half`},
		{"audit/00000003.jsonl", line(4)}, {"SUMMARY.txt", "words"}, {"audit/00000000.stub", "x"},
	} {
		if err := archive.WriteHeader(&tar.Header{Name: member[0], Mode: 0o600, Size: int64(len(member[1]))}); err != nil {
			t.Fatal(err)
		}
		if _, err := archive.Write([]byte(member[1])); err != nil {
			t.Fatal(err)
		}
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	copies, err := readCopies(bundle)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte(first))
	if len(copies) != 2 || copies[0].sha256 != hex.EncodeToString(sum[:]) || !copies[0].last.Equal(day(2)) || !copies[1].last.Equal(day(3)) {
		t.Errorf("copies %+v", copies)
	}
}

// --expect takes an entry, or a file whose last line is a head.
func TestExpectation(t *testing.T) {
	hash := strings.Repeat("ab", 32)
	write := func(text string) string {
		name := filepath.Join(t.TempDir(), "head")
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	head := func(seq int) string {
		return fmt.Sprintf(`{"genesis":"gg","vault":"v","segment":1,"seq":%d,"hash":"%s","sig":"s","timestamp":"t"}`, seq, hash)
	}
	for _, test := range []struct {
		name, text, genesis string
		seq                 uint64 // 0: refused
	}{
		{"an entry", "7:" + hash, "", 7},
		{"a head", write(head(7) + "\n"), "gg", 7},
		{"a head without a line end", write(head(7)), "gg", 7},
		{"the last of several", write(head(7) + "\n" + head(9) + "\n\n"), "gg", 9},
		{"over several lines", write(strings.ReplaceAll(head(7), ",", ",\n  ")), "gg", 7},
		{"a long file", write(strings.Repeat(head(7)+"\n", 1000) + head(9) + "\n"), "gg", 9},
		{"an empty file", write(""), "", 0},
		{"no head", write(`{"a":1}`), "", 0},
		{"half a head", write(head(7)[:40]), "", 0},
		{"no file", filepath.Join(t.TempDir(), "none"), "", 0},
		{"a directory", t.TempDir(), "", 0},
		{"a FIFO, which nobody writes to", fifo, "", 0},
		{"a number too large", "99999999999999999999:" + hash, "", 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			point, genesis, err := expectation("", test.text)
			if (err == nil) != (test.seq > 0) || point.Seq != test.seq || genesis != test.genesis {
				t.Errorf("%d, %q, %v; want %d, %q", point.Seq, genesis, err, test.seq, test.genesis)
			}
			if err == nil && point.Hash != hash {
				t.Errorf("hash %s", point.Hash)
			}
		})
	}
}
