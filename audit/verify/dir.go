package verify

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Options says what to hold the log against, and how thoroughly to look.
type Options struct {
	// Genesis is the fingerprint of the first entry that was noted when the log
	// began: 64 hex digits. It proves whose log it is, not that it is complete.
	Genesis string
	// Expect is an entry that was noted earlier; nil means none.
	Expect *Point
	// Head is what the running daemon says of its log; nil means that there are
	// only files. With it, a commit that is being written is no fault.
	Head *Head
	// AllSignatures checks every signature. Otherwise only those are checked
	// that vouch for a whole segment, which proves the same, but cannot always
	// tell as exactly where a fault is.
	AllSignatures bool
	// Progress is called now and then with bytes read and bytes in all; nil is
	// allowed.
	Progress func(done, total int64)
}

// Head is the newest durable entry, as the daemon tells it.
type Head struct {
	Genesis string // lower-case hex
	VaultID string // lower-case hex
	Seq     uint64
	Hash    string // lower-case hex
}

func (o *Options) complete() error {
	o.Genesis = strings.ToLower(o.Genesis)
	if o.Genesis != "" && !isHex(64)([]byte(o.Genesis)) {
		return errors.New("a genesis fingerprint has 64 hex digits")
	}
	if o.Expect != nil {
		want := Point{Seq: o.Expect.Seq, Hash: strings.ToLower(o.Expect.Hash)}
		if want.Seq == 0 || !isHex(64)([]byte(want.Hash)) {
			return errors.New("an expected entry is SEQ:HASH, with 64 hex digits")
		}
		o.Expect = &want
	}
	return nil
}

// Dir verifies the log in the folder dir. The report is good also when it holds
// a fault; an error means that the log could not be read, or that the options
// are malformed. A folder that does not exist is fs.ErrNotExist.
func Dir(ctx context.Context, dir string, options Options) (Report, error) {
	if err := options.complete(); err != nil {
		return Report{}, err
	}
	v := &verifier{ctx: ctx, dir: dir, options: options, seq: 1, accounted: map[uint32]bool{}}
	if options.AllSignatures {
		v.pool = newPool()
	}
	err := v.run()
	if v.pool != nil {
		v.report.Fault = v.pool.wait(v.report.Fault)
	}
	if err != nil {
		return Report{}, fmt.Errorf("verifying %s: %w", dir, err)
	}
	return v.report, nil
}

// verifier is one pass over a log.
type verifier struct {
	ctx     context.Context //nolint:containedctx // lives as long as the call of Dir
	dir     string
	options Options
	report  Report
	pool    *pool // nil unless every signature is checked

	seq     uint64            // of the entry that must come next
	prev    [32]byte          // what its prev must be
	nextKey ed25519.PublicKey // the key that must open the next segment; nil for the first

	accounted map[uint32]bool // segments that an audit.pruned names
	expected  bool            // options.Expect was reached
	reached   bool            // options.Head was reached
	done      int64
	told      int64
	total     int64
}

// segmentFile is one file of the log.
type segmentFile struct {
	number uint32
	name   string
	size   int64
	pruned bool
}

func (v *verifier) run() error {
	files, err := v.list()
	if err != nil {
		return err
	}
	if len(files) == 0 {
		v.report.Fault = &Fault{Seq: 1, Segment: 1, Problem: "the log is empty"}
		return nil
	}
	err = v.files(files)
	if err == nil {
		err = v.conclude()
	}
	if fault, ok := errors.AsType[*Fault](err); ok {
		v.report.Fault = fault
		return nil
	}
	return err
}

func (v *verifier) list() ([]segmentFile, error) {
	names, err := os.ReadDir(v.dir)
	if err != nil {
		return nil, err
	}
	var files []segmentFile
	for _, entry := range names {
		base, suffix, _ := strings.Cut(entry.Name(), ".")
		number, err := strconv.ParseUint(base, 10, 32)
		if err != nil || len(base) != 8 || suffix != "jsonl" && suffix != "pruned" {
			continue
		}
		info, err := entry.Info()
		if err != nil {
			return nil, err
		}
		files = append(files, segmentFile{uint32(number), entry.Name(), info.Size(), suffix == "pruned"})
		v.total += info.Size()
	}
	slices.SortStableFunc(files, func(a, b segmentFile) int { return int(a.number) - int(b.number) })
	return files, nil
}

func (v *verifier) files(files []segmentFile) error {
	for i, file := range files {
		if file.number != uint32(i)+1 {
			return &Fault{Seq: v.seq, Segment: uint32(i) + 1, Problem: "the segment is missing, or there twice"}
		}
		var next *segmentFile
		if i+1 < len(files) {
			next = &files[i+1]
		}
		if err := v.file(file, next); err != nil {
			return err
		}
		v.report.Segments++
	}
	return nil
}

func (v *verifier) file(file segmentFile, next *segmentFile) error {
	f, err := openRegular(filepath.Join(v.dir, file.name))
	if errors.Is(err, errIrregular) {
		return &Fault{Seq: v.seq, Segment: file.number, File: file.name, Problem: "this is no regular file"}
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if file.pruned {
		return v.stub(f, file)
	}
	w := &walk{verifier: v, file: f, segmentFile: file, newest: next == nil}
	if next != nil {
		// The void is believed only as far as the next segment's own signature
		// and chain, which are checked when its turn comes.
		if w.void, err = v.peekVoid(*next); err != nil {
			return err
		}
	}
	err = w.run()
	if fault, ok := errors.AsType[*Fault](err); ok && v.reached && w.newest {
		return w.inFlight(fault)
	}
	return err
}

// peekVoid reads what the first line of a segment says about the one before.
func (v *verifier) peekVoid(next segmentFile) (*Voided, error) {
	f, err := openRegular(filepath.Join(v.dir, next.name))
	if err != nil {
		if errors.Is(err, errIrregular) || errors.Is(err, fs.ErrNotExist) {
			return nil, nil // a fault, when its turn comes
		}
		return nil, err
	}
	defer f.Close()
	var l line
	raw, err := newLines(f, min(next.size, maxLine)).next()
	if err != nil || l.scan(raw) != nil || !l.is("segment.opened") || l.void.offset == 0 || l.void.segment != next.number-1 {
		return nil, nil
	}
	return &Voided{Segment: l.void.segment, Offset: l.void.offset}, nil
}

// conclude holds the whole against the anchors.
func (v *verifier) conclude() error {
	for _, pruned := range v.report.Pruned {
		if !v.accounted[pruned.Segment] {
			return &Fault{Seq: pruned.First + 1, Segment: pruned.Segment,
				Problem: fmt.Sprintf("entries up to %d are gone, and no audit.pruned accounts for them", pruned.Last-1)}
		}
	}
	if head := v.options.Head; head != nil {
		if !v.reached {
			return v.ends(head.Seq, "the daemon's newest")
		}
		v.report.Anchors = append(v.report.Anchors, "daemon")
	}
	if v.options.Genesis != "" {
		v.report.Anchors = append(v.report.Anchors, "genesis")
	}
	switch want := v.options.Expect; {
	case want == nil:
	case v.expected:
		v.report.Anchors = append(v.report.Anchors, "expect")
	case want.Seq < v.seq:
		v.report.Notes = append(v.report.Notes, fmt.Sprintf("entry %d was pruned and cannot be compared", want.Seq))
	default:
		return v.ends(want.Seq, "the expected")
	}
	return nil
}

func (v *verifier) ends(wanted uint64, whose string) error {
	return &Fault{Seq: v.seq, Segment: uint32(v.report.Segments),
		Problem: fmt.Sprintf("the log ends here, and %s entry is %d", whose, wanted)}
}

var errIrregular = errors.New("not a regular file")
