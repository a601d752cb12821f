package verify_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"subjectbroker/audit"
	"subjectbroker/audit/audittest"
	"subjectbroker/audit/verify"
)

var update = flag.Bool("update", false, "write testdata anew: that is a change of the format of bundles")

// goldenLog returns a golden log and where it begins and ends.
func goldenLog(t testing.TB, name string) (dir, genesis string, last verify.Point) {
	t.Helper()
	golden := filepath.Join("../testdata", name)
	text, err := os.ReadFile(filepath.Join(golden, "golden.json"))
	if err != nil {
		t.Fatal(err)
	}
	var v struct {
		Genesis, Hash string
		Seq           uint64
	}
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(golden, "audit"), v.Genesis, verify.Point{Seq: v.Seq, Hash: v.Hash}
}

func TestGolden(t *testing.T) {
	dir, genesis, last := goldenLog(t, "golden")
	report := check(t, dir, verify.Options{Genesis: genesis, Expect: &last, AllSignatures: true})
	if report.ExitCode() != verify.ExitProven || report.Last != last || report.Genesis != genesis {
		t.Errorf("%+v", report)
	}
	if len(report.Voided) != 1 || report.Voided[0].Segment != 2 || report.Voided[0].Bytes == 0 {
		t.Errorf("voided: %+v", report.Voided)
	}
}

// Bundles of the golden logs are byte for byte what they were.
func TestGoldenBundles(t *testing.T) {
	for _, c := range []struct {
		log, file string
		options   verify.BundleOptions
		members   string
	}{
		{"golden", "range.tar", verify.BundleOptions{Since: time.Date(2000, 1, 1, 0, 0, 1, 0, time.UTC), Until: time.Date(2000, 1, 2, 0, 0, 0, 0, time.UTC)},
			"HEAD.json SUMMARY.txt audit/00000001.stub audit/00000002.stub audit/00000003.jsonl"},
		{"pruned", "whole.tar", verify.BundleOptions{},
			"HEAD.json SUMMARY.txt audit/00000001.pruned audit/00000002.pruned audit/00000003.jsonl audit/00000004.jsonl"},
	} {
		t.Run(c.file, func(t *testing.T) {
			dir, genesis, last := goldenLog(t, c.log)
			var made bytes.Buffer
			if _, err := verify.WriteBundle(t.Context(), &made, dir, c.options); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join("testdata", c.file)
			if *update {
				if err := errors.Join(os.MkdirAll("testdata", 0o755), os.WriteFile(path, made.Bytes(), 0o644)); err != nil {
					t.Fatal(err)
				}
			}
			if !bytes.Equal(read(t, path), made.Bytes()) {
				t.Errorf("%s has other bytes", path)
			}
			report := checkBundle(t, path, verify.Options{Genesis: genesis, Expect: &last, AllSignatures: true})
			if report.ExitCode() != verify.ExitProven || report.Last != last {
				t.Errorf("exit %d: %v", report.ExitCode(), &report)
			}
			if names, _ := members(t, path); strings.Join(names, " ") != c.members {
				t.Errorf("%v", names)
			}
		})
	}
}

// The reader in examples, which is written from the documentation in another
// language, agrees.
func TestSecondReader(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("suite left out: second reader: needs python3")
	}
	dir, genesis, last := goldenLog(t, "golden")
	run := func(dir string, args ...string) int {
		t.Helper()
		out, err := exec.Command(python, append(append([]string{"../../examples/verify_log.py"}, args...), dir)...).CombinedOutput()
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			return exit.ExitCode()
		}
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return 0
	}
	expect := fmt.Sprintf("%d:%s", last.Seq, last.Hash)
	if got := run(dir, "--all-signatures", "--genesis", genesis, "--expect", expect); got != verify.ExitProven {
		t.Errorf("golden log: exit %d", got)
	}
	if got := run(dir); got != verify.ExitUnproven {
		t.Errorf("without an anchor: exit %d", got)
	}

	pruned, genesis, last := goldenLog(t, "pruned")
	expect = fmt.Sprintf("%d:%s", last.Seq, last.Hash)
	if got := run(pruned, "--genesis", genesis, "--expect", expect); got != verify.ExitProven {
		t.Errorf("pruned log: exit %d", got)
	}
	unaccounted := forge(t, nil)
	if err := os.CopyFS(unaccounted, os.DirFS(pruned)); err != nil {
		t.Fatal(err)
	}
	three := bytes.SplitAfter(read(t, filepath.Join(pruned, "00000003.jsonl")), []byte("\n"))
	write(t, filepath.Join(unaccounted, "00000003.pruned"), append(bytes.Clone(three[0]), three[len(three)-2]...))
	if err := os.Remove(filepath.Join(unaccounted, "00000003.jsonl")); err != nil {
		t.Fatal(err)
	}
	if got, ours := run(unaccounted), check(t, unaccounted, verify.Options{}); got != verify.ExitFault || ours.ExitCode() != verify.ExitFault {
		t.Errorf("a segment passed off as pruned: exit %d, ours %d", got, ours.ExitCode())
	}

	b := built{dir: dir}
	b.load(t)
	first := b.segments[0]
	for name, segments := range map[string][][][]byte{
		"edited":         b.with(0, replace(first, 3, bytes.Replace(first[3], []byte("worker"), []byte("walker"), 1))),
		"newest missing": b.segments[:1],
		"chained anew":   b.with(0, rechain(replace(first, 3, bytes.Replace(first[3], []byte("worker"), []byte("walker"), 1)), 3)),
	} {
		if got := run(forge(t, segments)); got != verify.ExitFault {
			t.Errorf("%s: exit %d", name, got)
		}
	}
}

// BenchmarkVerify follows chain and fields of 100 000 entries, with one
// signature per segment end, and with every signature.
func BenchmarkVerify(b *testing.B) {
	dir, entries := large(b, 100_000)
	for name, all := range map[string]bool{"chain": false, "all-signatures": true} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				report, err := verify.Dir(b.Context(), dir, verify.Options{AllSignatures: all})
				if err != nil || report.Fault != nil || report.Entries < entries {
					b.Fatalf("%v, %+v", err, report)
				}
			}
			b.ReportMetric(float64(entries)*float64(b.N)/b.Elapsed().Seconds(), "entries/s")
		})
	}
}

// BenchmarkVerifyMillion is the same for 1 000 000 entries, with progress.
func BenchmarkVerifyMillion(b *testing.B) {
	dir, entries := large(b, 1_000_000)
	for b.Loop() {
		told, last, total := 0, int64(0), int64(0)
		report, err := verify.Dir(b.Context(), dir, verify.Options{Progress: func(done, of int64) { told, last, total = told+1, done, of }})
		if err != nil || report.Fault != nil || report.Entries < entries || told < 100 || last != total {
			b.Fatalf("%v, told %d times, %d of %d: %+v", err, told, last, total, report)
		}
	}
	b.ReportMetric(float64(entries)*float64(b.N)/b.Elapsed().Seconds(), "entries/s")
}

// large makes a log of acquires in several segments. Commits are as large as
// the disk makes them.
func large(b *testing.B, entries uint64) (string, uint64) {
	b.Helper()
	config := audittest.Config(b)
	config.SegmentSize = 16 << 20
	l, _, err := audit.Open(config)
	if err != nil {
		b.Fatal(err)
	}
	e := audit.Entry{Kind: audit.Acquire, RunID: "abcdefghjk", SubjectID: "worker", Tier: "cooperative", ResourceID: "design-doc",
		Version: 1, Action: "read", GrantID: "abcdefghjk", Decision: "allow", ReasonCode: "ALLOWED", Bytes: new(int64(1024))}
	for range entries / 1000 {
		var last audit.Ticket
		for range 1000 {
			if last, err = l.Append(func(uint64, time.Time) (audit.Entry, error) { return e, nil }); err != nil {
				b.Fatal(err)
			}
		}
		if err := last.Wait(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		b.Fatal(err)
	}
	return config.Dir, entries
}
