package verify_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"subjectbroker/audit"
	"subjectbroker/audit/audittest"
	"subjectbroker/audit/verify"
)

var epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// daily is a log with a segment a day from epoch on, an entry an hour.
type daily struct {
	config audit.Config
	log    *audit.Log
	now    time.Time
}

func buildDaily(t testing.TB, days, entries int) *daily {
	t.Helper()
	d := &daily{config: audittest.Config(t), now: epoch}
	d.config.Now = func() time.Time { return d.now }
	d.log = audittest.Open(t, d.config)
	for day := range days {
		if day > 0 {
			d.now = epoch.AddDate(0, 0, day).Add(-time.Minute)
			if err := d.log.Rotate(); err != nil {
				t.Fatal(err)
			}
		}
		for hour := range entries {
			d.now = epoch.AddDate(0, 0, day).Add(time.Duration(hour) * time.Hour)
			appendBurst(t, d.log, 1)
		}
	}
	return d
}

func (d *daily) head() *verify.Head {
	head := d.log.Head()
	return &verify.Head{Genesis: head.Genesis, VaultID: head.VaultID, Seq: head.Seq, Hash: hex.EncodeToString(head.Hash[:])}
}

func (d *daily) prune(t testing.TB, numbers ...uint32) {
	t.Helper()
	var copies []audit.Copy
	for _, n := range numbers {
		content, err := os.ReadFile(filepath.Join(d.config.Dir, fmt.Sprintf("%08d.jsonl", n)))
		if err != nil {
			t.Fatal(err)
		}
		copies = append(copies, audit.Copy{Segment: n, SHA256: sha256.Sum256(content)})
	}
	if _, err := d.log.Prune(copies, false); err != nil {
		t.Fatal(err)
	}
}

// bundle writes a bundle and returns its path.
func (d *daily) bundle(t testing.TB, since, until time.Time) (string, verify.Report) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "bundle.tar")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	report, err := verify.WriteBundle(t.Context(), f, d.config.Dir, verify.BundleOptions{Since: since, Until: until, Head: d.head()})
	if err != nil {
		t.Fatal(err)
	}
	return path, report
}

func checkBundle(t testing.TB, path string, options verify.Options) verify.Report {
	t.Helper()
	report, err := verify.Bundle(t.Context(), path, options)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

// members reads a bundle as anybody with tar would.
func members(t testing.TB, path string) (names []string, content map[string][]byte) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	content = map[string][]byte{}
	for r := tar.NewReader(f); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return names, content
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, header.Name)
		if content[header.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}

// A stranger verifies a bundle with the fingerprint alone, and finds in it the
// segments of the range, whole, and the ends of the others.
func TestBundle(t *testing.T) {
	d := buildDaily(t, 5, 6)
	genesis := d.log.Head().Genesis
	day := func(n int) time.Time { return epoch.AddDate(0, 0, n) }
	for _, c := range []struct {
		name         string
		since, until time.Time
		members      string
		entries      int
	}{
		{"everything", time.Time{}, time.Time{}, "1.jsonl 2.jsonl 3.jsonl 4.jsonl 5.jsonl", 5*6 + 9},
		{"one day", day(2), day(2).Add(23 * time.Hour), "1.stub 2.stub 3.jsonl 4.stub 5.stub", 6},
		{"an hour", day(1).Add(time.Hour), day(1).Add(time.Hour), "1.stub 2.jsonl 3.stub 4.stub 5.stub", 1},
		{"from a day on", day(3), time.Time{}, "1.stub 2.stub 3.stub 4.jsonl 5.jsonl", 2*6 + 2},
		{"up to a day", time.Time{}, day(1), "1.jsonl 2.jsonl 3.stub 4.stub 5.stub", 1 + 6 + 2 + 1},
		{"across a rotation", day(1).Add(5 * time.Hour), day(2), "1.stub 2.jsonl 3.jsonl 4.stub 5.stub", 4},
	} {
		t.Run(c.name, func(t *testing.T) {
			path, written := d.bundle(t, c.since, c.until)
			report := checkBundle(t, path, verify.Options{Genesis: genesis, AllSignatures: true})
			if report.ExitCode() != verify.ExitProven || report.Last != written.Last {
				t.Fatalf("exit %d: %v, written: %+v", report.ExitCode(), &report, written)
			}
			if got, want := fmt.Sprintf("%+v", *report.Bundle), fmt.Sprintf("%+v", *written.Bundle); got != want {
				t.Errorf("read %s, written %s", got, want)
			}
			names, content := members(t, path)
			var segments []string
			for _, name := range names[2:] {
				segments = append(segments, strings.TrimLeft(strings.TrimPrefix(name, "audit/"), "0"))
			}
			if got := strings.Join(segments, " "); names[0] != "HEAD.json" || names[1] != "SUMMARY.txt" || got != c.members {
				t.Errorf("%v, want %s", names, c.members)
			}
			if text := string(content["SUMMARY.txt"]); !strings.Contains(text, fmt.Sprintf("\n%d entries are of this time.\n", c.entries)) ||
				!strings.Contains(text, genesis) {
				t.Error(text)
			}
			if report := checkBundle(t, path, verify.Options{}); report.ExitCode() != verify.ExitUnproven {
				t.Errorf("without an anchor: exit %d", report.ExitCode())
			}
			if report := checkBundle(t, path, verify.Options{Genesis: strings.Repeat("0", 64)}); report.ExitCode() != verify.ExitFault {
				t.Errorf("of another log: exit %d", report.ExitCode())
			}
			if again, _ := d.bundle(t, c.since, c.until); !bytes.Equal(read(t, again), read(t, path)) {
				t.Error("the same bundle has other bytes")
			}
		})
	}
	for _, c := range [][2]time.Time{{day(5), day(6)}, {day(-2), day(-1)}, {day(2), day(1)}, {day(1).Add(7 * time.Hour), day(1).Add(8 * time.Hour)}} {
		_, err := verify.WriteBundle(t.Context(), io.Discard, d.config.Dir, verify.BundleOptions{Since: c[0], Until: c[1], Head: d.head()})
		if !errors.Is(err, verify.ErrNothing) {
			t.Errorf("%v: %v", c, err)
		}
	}
}

func read(t testing.TB, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// There is no byte in a bundle that could be changed unseen, nor can it be cut
// or added to.
func TestTamperedBundle(t *testing.T) {
	d := buildDaily(t, 4, 2)
	d.prune(t, 1)
	genesis := d.log.Head().Genesis
	path, _ := d.bundle(t, epoch.AddDate(0, 0, 2), epoch.AddDate(0, 0, 3))
	whole := read(t, path)
	if report := checkBundle(t, path, verify.Options{Genesis: genesis}); report.ExitCode() != verify.ExitProven {
		t.Fatal(&report)
	}
	dir := t.TempDir()
	expectFault := func(what string, content []byte) {
		t.Helper()
		name := filepath.Join(dir, "bundle")
		write(t, name, content)
		if report := checkBundle(t, name, verify.Options{Genesis: genesis}); report.ExitCode() != verify.ExitFault {
			t.Errorf("%s: exit %d", what, report.ExitCode())
		}
	}
	for at := range whole {
		if at%17 != 0 && at%512 > 160 { // every byte of a header that means something, and a sample of the rest
			continue
		}
		changed := bytes.Clone(whole)
		changed[at] ^= 1 << (at % 8)
		expectFault(fmt.Sprintf("byte %d", at), changed)
	}
	for cut := 0; cut < len(whole); cut += 256 {
		expectFault(fmt.Sprintf("cut at %d", cut), whole[:cut])
	}
	expectFault("longer by a byte", append(bytes.Clone(whole), 0))
	expectFault("longer by a block", append(bytes.Clone(whole), make([]byte, 512)...))
	expectFault("a member of the largest size there is", sized(whole, "\x80\x00\x00\x00\x7f\xff\xff\xff\xff\xff\xff\xff"))
	expectFault("something else", []byte("hello"))
	expectFault("a segment", read(t, filepath.Join(d.config.Dir, "00000002.jsonl")))
}

// sized is a bundle whose first header claims another size.
func sized(whole []byte, size string) []byte {
	changed := bytes.Clone(whole)
	copy(changed[124:136], size)
	copy(changed[148:156], "        ")
	sum := 0
	for _, b := range changed[:512] {
		sum += int(b)
	}
	copy(changed[148:156], fmt.Sprintf("%06o\x00 ", sum))
	return changed
}

// pack makes a bundle of other members, with headers like those of a real one.
func pack(t testing.TB, original string, names []string, content map[string][]byte) string {
	t.Helper()
	f, err := os.Open(original)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	header, err := tar.NewReader(f).Next()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, name := range names {
		header.Name, header.Size = name, int64(len(content[name]))
		if err := w.WriteHeader(header); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(content[name]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "packed.tar")
	write(t, path, out.Bytes())
	return path
}

// Bundles that hang together as files, but not with the log.
func TestForgedBundle(t *testing.T) {
	d := buildDaily(t, 4, 3)
	d.prune(t, 1)
	foreign := buildDaily(t, 4, 3)
	foreign.prune(t, 1)
	genesis := d.log.Head().Genesis
	since, until := epoch.AddDate(0, 0, 2), epoch.AddDate(0, 0, 2).Add(20*time.Hour)
	path, _ := d.bundle(t, since, until)
	foreignPath, _ := foreign.bundle(t, since, until)
	names, content := members(t, path)
	_, foreignContent := members(t, foreignPath)
	if got := strings.Join(names[2:], " "); got != "audit/00000001.pruned audit/00000002.stub audit/00000003.jsonl audit/00000004.stub" {
		t.Fatal(got)
	}
	if packed := pack(t, path, names, content); !bytes.Equal(read(t, packed), read(t, path)) {
		t.Fatal("packing what was unpacked makes another file")
	}
	three := bytes.SplitAfter(content[names[4]], []byte("\n"))
	three = three[:len(three)-1]
	two, err := os.ReadFile(filepath.Join(d.config.Dir, "00000002.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	rename := func(from, to string) []string {
		list := slices.Clone(names)
		list[slices.Index(list, from)] = to
		return list
	}
	with := func(pairs ...any) map[string][]byte {
		out := map[string][]byte{}
		for name, text := range content {
			out[name] = text
		}
		for i := 0; i < len(pairs); i += 2 {
			out[pairs[i].(string)] = pairs[i+1].([]byte)
		}
		return out
	}
	edit := func(member, old, changed string) map[string][]byte {
		text := bytes.ReplaceAll(content[member], []byte(old), []byte(changed))
		if bytes.Equal(text, content[member]) {
			t.Fatalf("%s has no %s", member, old)
		}
		return with(member, text)
	}
	wider := func(member string) []byte {
		return bytes.ReplaceAll(content[member], []byte(since.Format("2006-01-02T15:04:05.000Z")), []byte("2026-03-02T12:00:00.000Z"))
	}
	ends := func(lines [][]byte) []byte { return slices.Concat(lines[0], lines[len(lines)-1]) }
	for name, c := range map[string]struct {
		names   []string
		content map[string][]byte
	}{
		"entry edited":            {names, edit(names[4], `"worker"`, `"walker"`)},
		"entry dropped":           {names, with(names[4], bytes.Join(slices.Delete(slices.Clone(three), 2, 3), nil))},
		"segment cut":             {names, with(names[4], bytes.Join(three[:2], nil))},
		"segment emptied":         {names, with(names[4], []byte{})},
		"segment of another log":  {names, with(names[4], foreignContent[names[4]])},
		"stub of another log":     {names, with(names[3], foreignContent[names[3]])},
		"pruned of another log":   {names, with(names[2], foreignContent[names[2]])},
		"head of another log":     {names, with(names[0], foreignContent[names[0]])},
		"summary of another log":  {names, with(names[1], foreignContent[names[1]])},
		"all of another log":      {names, foreignContent},
		"a whole one for a stub":  {rename(names[3], "audit/00000002.stub"), with("audit/00000002.stub", two)},
		"one more whole":          {rename(names[3], "audit/00000002.jsonl"), with("audit/00000002.jsonl", two)},
		"a stub for the range":    {rename(names[4], "audit/00000003.stub"), with("audit/00000003.stub", ends(three))},
		"the range passed as old": {rename(names[4], "audit/00000003.pruned"), with("audit/00000003.pruned", ends(three))},
		"range made wider":        {names, with(names[0], wider(names[0]), names[1], wider(names[1]))},
		"range without entries":   {names, edit("HEAD.json", "2026-03-03", "2026-02-03")},
		"older head":              {names[:5], content},
		"head of another version": {names, edit("HEAD.json", `"bundle":1`, `"bundle":2`)},
		"head of another genesis": {names, edit("HEAD.json", genesis, strings.Repeat("1", 64))},
		"head with a blank":       {names, edit("HEAD.json", `{"bundle"`, `{ "bundle"`)},
		"head with another field": {names, edit("HEAD.json", `{"bundle"`, `{"note":"x","bundle"`)},
		"head of another case":    {names, edit("HEAD.json", `"seq"`, `"SEQ"`)},
		"summary says more":       {names, with("SUMMARY.txt", append([]byte("all is well\n"), content["SUMMARY.txt"]...))},
		"summary counts less":     {names, edit("SUMMARY.txt", " entries are", " entry is")},
		"no summary":              {slices.Delete(slices.Clone(names), 1, 2), content},
		"no head":                 {names[1:], content},
		"no segments":             {names[:2], content},
		"member twice":            {append(slices.Clone(names), names[5]), content},
		"member more":             {append(slices.Clone(names), "audit/notes.txt"), with("audit/notes.txt", []byte("x"))},
		"member elsewhere":        {rename(names[5], "../00000004.stub"), with("../00000004.stub", content[names[5]])},
		"members in other order":  {[]string{names[0], names[1], names[3], names[2], names[4], names[5]}, content},
		"segment left out":        {slices.Delete(slices.Clone(names), 3, 4), content},
	} {
		t.Run(name, func(t *testing.T) {
			packed := pack(t, path, c.names, c.content)
			report := checkBundle(t, packed, verify.Options{Genesis: genesis})
			if report.ExitCode() != verify.ExitFault {
				t.Errorf("exit %d: %v", report.ExitCode(), &report)
			}
			// Nor when the summary fits.
			text := verify.SummaryOf(t.Context(), packed)
			if text == nil || strings.HasPrefix(name, "summary ") {
				return
			}
			fitting := map[string][]byte{}
			for member, content := range c.content {
				fitting[member] = content
			}
			fitting["SUMMARY.txt"] = text
			packed = pack(t, path, c.names, fitting)
			report = checkBundle(t, packed, verify.Options{Genesis: genesis})
			if report.ExitCode() != verify.ExitFault {
				t.Errorf("with a fitting summary: exit %d: %v", report.ExitCode(), &report)
			}
		})
	}
}

// What was pruned is told, and only what an entry in the bundle accounts for.
func TestBundleOfPruned(t *testing.T) {
	d := buildDaily(t, 4, 3)
	d.prune(t, 1, 2) // told of in segment 4
	genesis := d.log.Head().Genesis
	day := func(n int) time.Time { return epoch.AddDate(0, 0, n) }
	names := func(path string) string {
		list, _ := members(t, path)
		return strings.Join(list[2:], " ")
	}
	path, _ := d.bundle(t, day(1), day(1).Add(10*time.Hour))
	if got := names(path); got != "audit/00000001.pruned audit/00000002.pruned audit/00000003.stub audit/00000004.jsonl" {
		t.Error(got)
	}
	report := checkBundle(t, path, verify.Options{Genesis: genesis})
	if report.ExitCode() != verify.ExitProven || len(report.Pruned) != 2 || len(report.Notes) != 1 {
		t.Errorf("exit %d: %+v", report.ExitCode(), report)
	}
	// Without the account it is a fault.
	list, content := members(t, path)
	four := bytes.SplitAfter(content[list[5]], []byte("\n"))
	content["audit/00000004.stub"] = slices.Concat(four[0], four[len(four)-2])
	report = checkBundle(t, pack(t, path, append(list[:5:5], "audit/00000004.stub"), content), verify.Options{Genesis: genesis})
	if report.ExitCode() != verify.ExitFault || report.Fault.Segment != 2 {
		t.Errorf("exit %d: %v", report.ExitCode(), &report)
	}
	// What the bundle is not about needs none.
	path, _ = d.bundle(t, day(2), day(2).Add(10*time.Hour))
	if got := names(path); got != "audit/00000001.pruned audit/00000002.pruned audit/00000003.jsonl audit/00000004.stub" {
		t.Error(got)
	}
	report = checkBundle(t, path, verify.Options{Genesis: genesis})
	if report.ExitCode() != verify.ExitProven || len(report.Pruned) != 2 || len(report.Notes) != 1 {
		t.Errorf("exit %d: %+v", report.ExitCode(), report)
	}
}

// A bundle of a faulty log is not made.
func TestBundleOfFaulty(t *testing.T) {
	b := build(t)
	lines := slices.Clone(b.segments[1])
	lines[2] = bytes.Replace(lines[2], []byte(`"kind"`), []byte(`"KIND"`), 1)
	dir := forge(t, b.with(1, lines))
	var out bytes.Buffer
	_, err := verify.WriteBundle(t.Context(), &out, dir, verify.BundleOptions{})
	if fault, ok := errors.AsType[*verify.Fault](err); !ok || fault.Segment != 2 || out.Len() != 0 {
		t.Errorf("%v, %d bytes", err, out.Len())
	}
	if _, err := verify.WriteBundle(t.Context(), &out, filepath.Join(dir, "none"), verify.BundleOptions{}); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	if _, err := verify.Bundle(t.Context(), filepath.Join(dir, "none"), verify.Options{}); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

// Whatever bytes there are, a reader does not panic, and takes nothing for a
// bundle but what is one.
func FuzzBundle(f *testing.F) {
	_, genesis, _ := goldenLog(f, "pruned")
	whole := read(f, filepath.Join("testdata", "whole.tar"))
	f.Add(whole)
	f.Add(whole[:1024])
	f.Add(read(f, filepath.Join("testdata", "range.tar")))
	f.Add(make([]byte, 1024))
	path := filepath.Join(f.TempDir(), "bundle")
	f.Fuzz(func(t *testing.T, content []byte) {
		write(t, path, content)
		if report := checkBundle(t, path, verify.Options{Genesis: genesis}); report.ExitCode() != verify.ExitFault && !bytes.Equal(content, whole) {
			t.Errorf("exit %d: %+v", report.ExitCode(), report)
		}
	})
}

// A clock that is set back between entries leaves no gap to hide one in.
func TestBundleWithClockSetBack(t *testing.T) {
	d := buildDaily(t, 1, 3)
	later := epoch.AddDate(0, 0, 9)
	for _, at := range []time.Time{later, epoch.Add(time.Minute), later} { // three segments, the second of an earlier time
		d.now = at
		if err := d.log.Rotate(); err != nil {
			t.Fatal(err)
		}
		appendBurst(t, d.log, 1)
	}
	for hour := range 9 * 24 {
		since := epoch.Add(time.Duration(hour) * time.Hour)
		var out bytes.Buffer
		_, err := verify.WriteBundle(t.Context(), &out, d.config.Dir, verify.BundleOptions{Since: since, Until: since.Add(30 * time.Minute), Head: d.head()})
		if errors.Is(err, verify.ErrNothing) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), "bundle.tar")
		write(t, path, out.Bytes())
		if report := checkBundle(t, path, verify.Options{Genesis: d.log.Head().Genesis}); report.ExitCode() != verify.ExitProven {
			t.Errorf("hour %d: %v", hour, &report)
		}
	}
}
