package verify

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"
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

// Dir verifies the log in the folder dir, also while it is written, rotated and
// pruned. The report is good also when it holds a fault; an error means that the
// log could not be read, or that the options are malformed. A folder that does
// not exist is fs.ErrNotExist.
func Dir(ctx context.Context, dir string, options Options) (Report, error) {
	if err := options.complete(); err != nil {
		return Report{}, err
	}
	v, err := verifyFolder(ctx, dir, options, nil)
	if err != nil {
		return Report{}, fmt.Errorf("verifying %s: %w", dir, err)
	}
	return v.report, nil
}

// verifyFolder makes passes over the log in dir until one is not overtaken: by
// pruning, where the entry that accounts for it may stand behind what was read,
// or by a rotation, where the next segment may have begun since the folder was
// listed.
func verifyFolder(ctx context.Context, dir string, options Options, of *extents) (*verifier, error) {
	const attempts = 10
	for attempt := 1; ; attempt++ {
		v := newVerifier(ctx, folder(dir), options)
		if of != nil {
			v.extents = &extents{period: of.period, last: of.last}
		}
		if err := v.verify(); err != nil {
			return nil, err
		}
		if v.report.Fault == nil || !v.unaccounted && !v.report.Rotating {
			return v, nil
		}
		if moved, err := v.moved(ctx); err != nil || !moved {
			return v, err
		}
		if attempt == attempts {
			return nil, errOvertaken
		}
	}
}

var errOvertaken = fmt.Errorf("%w: segments were pruned, or begun, faster than they could be read: try again", ErrPruning)

// How long a running log may take from the hand-over to the next segment, until
// it passes for one that was interrupted: rotationTakes where nothing but the
// files tells that it runs, daemonTakes where the daemon has just said so.
const (
	rotationTakes = 500 * time.Millisecond
	daemonTakes   = 3 * time.Second
)

// moved reports whether the folder holds other segments than were listed. After
// a hand-over it waits for the next one.
func (v *verifier) moved(ctx context.Context) (bool, error) {
	patience := rotationTakes
	switch {
	case !v.report.Rotating:
		patience = 0
	case v.options.Head != nil:
		patience = daemonTakes
	}
	for until := time.Now().Add(patience); ; pause(ctx, rotationTakes/20) {
		now, err := v.source.list()
		if err != nil || !slices.Equal(now, v.listed) {
			return err == nil, err
		}
		if !time.Now().Before(until) || ctx.Err() != nil {
			return false, nil
		}
	}
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// verifier is one pass over a log.
type verifier struct {
	ctx     context.Context //nolint:containedctx // lives as long as one call
	source  source
	options Options
	report  Report
	pool    *pool    // nil unless every signature is checked
	extents *extents // nil unless a bundle is read or written
	part    bool     // a bundle is read: the log may go on after its end

	seq     uint64            // of the entry that must come next
	prev    [32]byte          // what its prev must be
	nextKey ed25519.PublicKey // the key that must open the next segment; nil for the first

	listed   []segmentFile
	accounts []account // what every audit.pruned says
	doubled  []Pruned  // whole segments beside what would be left of them

	expected    bool // options.Expect was reached
	reached     bool // options.Head was reached
	unaccounted bool // the fault is a pruned segment that nothing accounts for

	done, told, total int64 // bytes, for options.Progress
}

func newVerifier(ctx context.Context, source source, options Options) *verifier {
	return &verifier{ctx: ctx, source: source, options: options, seq: 1}
}

// verify fills in the report. The error is one of reading.
func (v *verifier) verify() error {
	if v.options.AllSignatures {
		v.pool = newPool()
	}
	err := v.run()
	if v.pool != nil {
		found := v.report.Fault
		if v.report.Fault = v.pool.wait(found); v.report.Fault != found {
			v.report.Torn, v.report.Rotating = 0, false
		}
	}
	return err
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

// list lists the segments. A folder that changes while it is read may show
// neither of two names of which there always is one: then it is read again.
func (v *verifier) list() (files []segmentFile, err error) {
	const attempts = 3
	for range attempts {
		if files, err = v.source.list(); err != nil {
			return nil, err
		}
		if n := len(files); n == 0 || files[n-1].number == uint32(n) {
			break
		}
	}
	v.listed = files
	for _, file := range files {
		v.total += file.length
	}
	return files, nil
}

func (v *verifier) files(files []segmentFile) error {
	for i, file := range files {
		if file.number != uint32(i)+1 {
			return &Fault{Seq: v.seq, Segment: uint32(i) + 1, Problem: "the segment is missing"}
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
	f, err := v.open(&file)
	switch {
	case errors.Is(err, errIrregular):
		return &Fault{Seq: v.seq, Segment: file.number, File: file.name, Problem: "this is no regular file"}
	case errors.Is(err, fs.ErrNotExist):
		return &Fault{Seq: v.seq, Segment: file.number, Problem: "the segment is missing"}
	case err != nil:
		return err
	}
	defer f.Close()
	w := &walk{verifier: v, file: f, segmentFile: file, newest: next == nil}
	if next != nil {
		// The void is believed only as far as the next segment's own signature
		// and chain, which are checked when its turn comes.
		if w.void, err = v.peekVoid(*next); err != nil {
			return err
		}
	}
	if file.form != whole {
		return w.stub()
	}
	err = w.run()
	if fault, ok := errors.AsType[*Fault](err); ok && w.newest && !w.part {
		return w.unfinished(fault)
	}
	return err
}

// open opens a segment, or, when it was pruned since it was listed, what is left
// of it.
func (v *verifier) open(file *segmentFile) (content, error) {
	f, err := v.source.open(file.name)
	if !errors.Is(err, fs.ErrNotExist) || file.form != whole {
		return f, err
	}
	left := fmt.Sprintf("%08d.pruned", file.number)
	if f, err = v.source.open(left); err != nil {
		return nil, err
	}
	file.name, file.form, file.beside = left, pruned, ""
	file.length, err = f.size()
	return f, err
}

// peekVoid reads what the first line of a segment says about the one before.
func (v *verifier) peekVoid(next segmentFile) (*Voided, error) {
	f, err := v.open(&next)
	if err != nil {
		if errors.Is(err, errIrregular) || errors.Is(err, fs.ErrNotExist) {
			return nil, nil // a fault, when its turn comes
		}
		return nil, err
	}
	defer f.Close()
	var l line
	raw, err := newLines(f, min(next.length, maxLine)).next()
	if err != nil || l.scan(raw) != nil || !l.is("segment.opened") || l.void.offset == 0 || l.void.segment != next.number-1 {
		return nil, nil
	}
	return &Voided{Segment: l.void.segment, Offset: l.void.offset}, nil
}

// conclude holds the whole against the anchors.
func (v *verifier) conclude() error {
	if err := v.settlePruned(); err != nil {
		return err
	}
	switch head := v.options.Head; {
	case head == nil:
	case v.reached:
		v.report.Anchors = append(v.report.Anchors, "daemon")
	case v.prunedAway(head.Seq): // rotated and pruned since the daemon was asked
		v.report.Notes = append(v.report.Notes, fmt.Sprintf("entry %d, which was the daemon's newest, was pruned meanwhile and cannot be compared", head.Seq))
	default:
		return v.ends(head.Seq, "the daemon's newest")
	}
	if v.options.Genesis != "" {
		v.report.Anchors = append(v.report.Anchors, "genesis")
	}
	switch want := v.options.Expect; {
	case want == nil:
	case v.expected:
		v.report.Anchors = append(v.report.Anchors, "expect")
	case want.Seq < v.seq:
		v.report.Notes = append(v.report.Notes, fmt.Sprintf("entry %d is not here any more and cannot be compared", want.Seq))
	default:
		return v.ends(want.Seq, "the expected")
	}
	return nil
}

// prunedAway reports whether an entry stood between the two lines that are left
// of a pruned segment.
func (v *verifier) prunedAway(seq uint64) bool {
	return slices.ContainsFunc(v.report.Pruned, func(p Pruned) bool { return p.First < seq && seq < p.Last })
}

func (v *verifier) ends(wanted uint64, whose string) error {
	return &Fault{Seq: v.seq, Segment: uint32(v.report.Segments),
		Problem: fmt.Sprintf("the log ends here, and %s entry is %d", whose, wanted)}
}
