package verify

import (
	"archive/tar"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"time"
)

// A bundle is a tar file (ustar) of these members, in this order and with
// nothing else in it. Its bytes follow from the log and the range that was asked
// for, so that a reader finds any other byte.
//
//	HEAD.json               one line of JSON, see bundleHead
//	SUMMARY.txt             for people, see summary
//	audit/NNNNNNNN.jsonl    a whole segment; the newest one up to the head
//	audit/NNNNNNNN.stub     the first and the last line, both signed, of a segment that is not of the range
//	audit/NNNNNNNN.pruned   as it is in the log
//
// The segments are all of the log up to the head, ascending. Every member is a
// plain file of mode 0600, owner 0, and of the time of the head.
const (
	headMember    = "HEAD.json"
	summaryMember = "SUMMARY.txt"
	auditMembers  = "audit/"
	stubSuffix    = ".stub"
)

// bundleHead is HEAD.json: the newest entry of the bundle, and the range.
type bundleHead struct {
	Bundle    int    `json:"bundle"` // 1
	Genesis   string `json:"genesis"`
	Vault     string `json:"vault"`
	Segment   uint32 `json:"segment"`
	Seq       uint64 `json:"seq"`
	Hash      string `json:"hash"`
	Sig       string `json:"sig"`
	Timestamp string `json:"timestamp"`
	Since     string `json:"since,omitempty"`
	Until     string `json:"until,omitempty"`
}

// newBundleHead describes the end of what was verified.
func newBundleHead(report *Report, e *extents) (*bundleHead, error) {
	x := &e.list[len(e.list)-1]
	var l line
	if err := l.scan(x.last); err != nil || l.seq != x.seq {
		return nil, fmt.Errorf("entry %d is not signed and cannot be a head", x.seq)
	}
	return &bundleHead{
		Bundle: 1, Genesis: report.Genesis, Vault: report.VaultID, Segment: x.number, Seq: x.seq, Hash: sum(x.last),
		Sig: l.text(fSig), Timestamp: l.text(fTimestamp), Since: e.period.since, Until: e.period.until,
	}, nil
}

func (h *bundleHead) encode() []byte {
	text, _ := json.Marshal(h) // texts and numbers only
	return append(text, '\n')
}

// header is that of a member.
func (h *bundleHead) header(name string, size int64) *tar.Header {
	at, _ := time.Parse(timestampLayout, h.Timestamp)
	return &tar.Header{
		Format: tar.FormatUSTAR, Typeflag: tar.TypeReg, Name: name, Size: size, Mode: 0o600, ModTime: at.Truncate(time.Second),
	}
}

// BundleOptions says what goes into a bundle.
type BundleOptions struct {
	// Since and Until bound the range, both included: all segments from the first
	// to the last one that is of it go in whole. Zero means from the first, up to
	// the newest.
	Since, Until time.Time
	// Head is what the running daemon says of its log, which may go on being
	// written meanwhile; nil means that the files are at rest. The bundle ends
	// there.
	Head *Head
	// Progress is called now and then with bytes read and bytes in all, first
	// while verifying, then anew while writing; nil is allowed.
	Progress func(done, total int64)
}

// Errors of WriteBundle.
var (
	// ErrNothing means that no entry lies within the range that was asked for.
	ErrNothing = errors.New("no entry lies in this range")
	// ErrPruning means that a segment was pruned meanwhile: try again.
	ErrPruning = errors.New("the log was pruned meanwhile")
)

// WriteBundle verifies the log in dir and writes a bundle of it to w: one file
// that a stranger can verify with the genesis fingerprint alone. A fault in the
// log is returned as a *Fault, before anything is written; a range without
// entries is ErrNothing, and ErrPruning asks to try again.
//
// The report is that of the log, with Bundle filled in. What is copied is read a
// second time: to be sure of the result, verify it with [Bundle].
func WriteBundle(ctx context.Context, w io.Writer, dir string, options BundleOptions) (Report, error) {
	report, err := writeBundle(ctx, w, dir, options)
	if err != nil {
		return Report{}, fmt.Errorf("bundling %s: %w", dir, err)
	}
	return report, nil
}

func writeBundle(ctx context.Context, w io.Writer, dir string, options BundleOptions) (Report, error) {
	if !options.Since.IsZero() && !options.Until.IsZero() && options.Until.Before(options.Since) {
		return Report{}, fmt.Errorf("%w: it ends before it begins", ErrNothing)
	}
	of := &extents{period: newPeriod(options.Since, options.Until)}
	if options.Head != nil {
		of.last = options.Head.Seq
	}
	v, err := verifyFolder(ctx, dir, Options{Head: options.Head, Progress: options.Progress}, of)
	if err != nil {
		return Report{}, err
	}
	if v.report.Fault != nil {
		return Report{}, v.report.Fault
	}
	chosen, err := v.extents.choose()
	if err != nil {
		return Report{}, err
	}
	v.report.Bundle = &Span{Since: options.Since, Until: options.Until}
	for i := range v.extents.list {
		x := &v.extents.list[i]
		switch {
		case chosen[x.number]:
			v.report.Bundle.Whole = append(v.report.Bundle.Whole, x.number)
		case x.form == whole:
			x.form = ends
			v.report.Bundle.Stubs = append(v.report.Bundle.Stubs, Pruned{x.number, x.firstSeq(), x.seq})
		}
	}
	head, err := newBundleHead(&v.report, v.extents)
	if err != nil {
		return Report{}, err
	}
	b := bundleWriter{verifier: v, tar: tar.NewWriter(w), head: head}
	return v.report, b.write()
}

func (x *extent) firstSeq() uint64 {
	var l line
	_ = l.scan(x.first) // it was scanned before
	return l.seq
}

// ends returns the first and the last line, once when they are the same.
func (x *extent) ends() []byte {
	if int64(len(x.first)) == x.end {
		return x.first
	}
	return slices.Concat(x.first, x.last)
}

type bundleWriter struct {
	*verifier
	tar  *tar.Writer
	head *bundleHead
}

func (b *bundleWriter) write() error {
	b.done, b.told, b.total = 0, 0, 0
	for _, x := range b.extents.list {
		if x.form == whole {
			b.total += x.end
		}
	}
	if err := b.text(headMember, b.head.encode()); err != nil {
		return err
	}
	if err := b.text(summaryMember, summary(b.head, b.extents, b.report.Origin)); err != nil {
		return err
	}
	for _, x := range b.extents.list {
		if err := b.segment(&x); err != nil {
			return err
		}
	}
	return b.tar.Close()
}

func (b *bundleWriter) text(name string, content []byte) error {
	if err := b.tar.WriteHeader(b.head.header(name, int64(len(content)))); err != nil {
		return err
	}
	_, err := b.tar.Write(content)
	return err
}

func (b *bundleWriter) segment(x *extent) error {
	switch x.form {
	case ends:
		return b.text(fmt.Sprintf("%s%08d%s", auditMembers, x.number, stubSuffix), x.ends())
	case pruned:
		return b.text(auditMembers+x.name, x.ends())
	default:
		return b.whole(x)
	}
}

func (b *bundleWriter) whole(x *extent) error {
	f, err := b.source.open(x.name)
	if errors.Is(err, fs.ErrNotExist) {
		return ErrPruning
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if err := b.tar.WriteHeader(b.head.header(auditMembers+x.name, x.end)); err != nil {
		return err
	}
	for offset := int64(0); offset < x.end; {
		if err := b.ctx.Err(); err != nil {
			return err
		}
		n := min(x.end-offset, 1<<20)
		if _, err := io.Copy(b.tar, io.NewSectionReader(f, offset, n)); err != nil {
			return err
		}
		offset += n
		b.done += n
		b.progress()
	}
	return nil
}

// parseBundleHead reads HEAD.json in its one form.
func parseBundleHead(text []byte) (*bundleHead, error) {
	var h bundleHead
	if err := json.Unmarshal(text, &h); err != nil {
		return nil, err
	}
	stamp := func(s string) bool { return isTimestamp([]byte(s)) }
	switch raw, err := hex.DecodeString(h.Hash); {
	case h.Bundle != 1:
		return nil, errors.New("it is of another version")
	case string(h.encode()) != string(text), err != nil, len(raw) != 32, !stamp(h.Timestamp),
		h.Since != "" && !stamp(h.Since), h.Until != "" && !stamp(h.Until):
		return nil, errMalformed
	}
	return &h, nil
}
