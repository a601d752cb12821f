package verify

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"
)

const (
	tarBlock   = 512
	maxSummary = 1 << 20
)

// Bundle verifies the bundle in file. As with [Dir], the report is good also
// when it holds a fault, and whatever in the file is not what [WriteBundle]
// writes is one; an error means that the file could not be read. Options.Head is
// not looked at.
//
// What lies outside the range of the bundle is not proven, but for the chain's
// ends: Report.Bundle says which segments that are.
func Bundle(ctx context.Context, file string, options Options) (Report, error) {
	options.Head = nil
	if err := options.complete(); err != nil {
		return Report{}, err
	}
	report, err := readBundle(ctx, file, options)
	if err != nil {
		return Report{}, fmt.Errorf("verifying %s: %w", file, err)
	}
	return report, nil
}

func readBundle(ctx context.Context, file string, options Options) (Report, error) {
	f, err := openRegular(file)
	if err != nil {
		return Report{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return Report{}, err
	}
	b := &bundle{file: f, length: info.Size()}
	fault, err := b.read()
	if fault != nil || err != nil {
		return Report{Fault: fault}, err
	}
	v := newVerifier(ctx, b, options)
	v.part, v.extents = true, &extents{period: period{b.head.Since, b.head.Until}}
	v.report.Bundle = &Span{Since: parseTime(b.head.Since), Until: parseTime(b.head.Until)}
	if err := v.verify(); err != nil {
		return Report{}, err
	}
	if v.report.Fault == nil {
		v.report.Fault = b.judge(v)
	}
	return v.report, nil
}

func parseTime(stamp string) time.Time {
	at, _ := time.Parse(timestampLayout, stamp) // zero when it is empty
	return at
}

// bundle is a bundle that is read.
type bundle struct {
	file    *os.File
	length  int64
	offset  int64
	head    *bundleHead
	summary []byte
	files   []segmentFile
	members map[string]*io.SectionReader
}

// read finds the members. Every byte outside of them must be what WriteBundle
// writes.
func (b *bundle) read() (*Fault, error) {
	b.members = map[string]*io.SectionReader{}
	for index := 0; ; index++ {
		block, err := b.block()
		if err != nil || block == nil {
			return notABundle("", "the file ends within it"), err
		}
		if bytes.Equal(block, make([]byte, tarBlock)) {
			return b.end(block)
		}
		header, err := tar.NewReader(bytes.NewReader(block)).Next()
		if err != nil {
			return notABundle("", "a header is malformed"), nil
		}
		if fault, err := b.member(index, header, block); fault != nil || err != nil {
			return fault, err
		}
	}
}

func notABundle(member, problem string) *Fault {
	return &Fault{File: member, Problem: "this is not what a bundle holds: " + problem}
}

// block reads the next block; nil at the end.
func (b *bundle) block() ([]byte, error) {
	if b.offset+tarBlock > b.length {
		return nil, nil
	}
	block := make([]byte, tarBlock)
	_, err := b.file.ReadAt(block, b.offset)
	b.offset += tarBlock
	return block, err
}

// end expects one more block of zeros, and nothing behind it.
func (b *bundle) end(zeros []byte) (*Fault, error) {
	second, err := b.block()
	switch {
	case err != nil:
		return nil, err
	case !bytes.Equal(second, zeros), b.offset != b.length:
		return notABundle("", "something stands behind its end"), nil
	case b.summary == nil, len(b.files) == 0:
		return notABundle("", "a member is missing"), nil
	}
	return nil, nil
}

// member takes in one member, whose content begins at b.offset.
func (b *bundle) member(index int, header *tar.Header, block []byte) (*Fault, error) {
	name, size := header.Name, header.Size
	padded := (size + tarBlock - 1) / tarBlock * tarBlock
	if size < 0 || size > b.length || padded > b.length-b.offset {
		return notABundle(name, "the file ends within it"), nil
	}
	content := io.NewSectionReader(b.file, b.offset, size)
	padding := make([]byte, padded-size)
	if _, err := b.file.ReadAt(padding, b.offset+size); err != nil {
		return nil, err
	}
	b.offset += padded
	if bytes.Count(padding, []byte{0}) != len(padding) {
		return notABundle(name, "something stands behind its end"), nil
	}
	switch {
	case index == 0:
		text, err := readText(content, maxLine)
		if err != nil {
			return nil, err
		}
		if b.head, err = parseBundleHead(text); err != nil || name != headMember {
			return notABundle(name, "the first member is a HEAD.json, and this is none"), nil
		}
	case index == 1:
		var err error
		if b.summary, err = readText(content, maxSummary); err != nil {
			return nil, err
		}
		if name != summaryMember {
			return notABundle(name, "the second member is SUMMARY.txt"), nil
		}
	default:
		file, ok := parseMember(name)
		if !ok || file.number != uint32(index-1) {
			return notABundle(name, "the other members are the segments, ascending"), nil
		}
		file.length = size
		b.files = append(b.files, file)
		b.members[name] = content
	}
	if !bytes.Equal(block, b.expectedHeader(name, size)) {
		return notABundle(name, "its header is not what it should be"), nil
	}
	return nil, nil
}

// readText reads a member that is not a segment, or a little more than the limit
// of one that is too long.
func readText(content io.Reader, limit int64) ([]byte, error) {
	return io.ReadAll(io.LimitReader(content, limit+1))
}

func (b *bundle) expectedHeader(name string, size int64) []byte {
	var out bytes.Buffer
	if tar.NewWriter(&out).WriteHeader(b.head.header(name, size)) != nil {
		return nil
	}
	return out.Bytes()
}

// parseMember takes the name of a segment's member apart.
func parseMember(name string) (segmentFile, bool) {
	base, found := strings.CutPrefix(name, auditMembers)
	number, suffix, ok := parseName(base)
	forms := map[string]form{"jsonl": whole, "stub": ends, "pruned": pruned}
	form, known := forms[suffix]
	return segmentFile{number: number, name: name, form: form}, found && ok && known
}

// judge holds what the bundle says of itself against what it holds.
func (b *bundle) judge(v *verifier) *Fault {
	head, err := newBundleHead(&v.report, v.extents)
	if err != nil || !bytes.Equal(head.encode(), b.head.encode()) {
		return &Fault{Seq: b.head.Seq, File: headMember, Problem: "the segments end in another entry than it says"}
	}
	chosen, err := v.extents.choose()
	if err != nil {
		return &Fault{File: headMember, Problem: err.Error()}
	}
	for _, x := range v.extents.list {
		switch {
		case x.form == ends && chosen[x.number]:
			return &Fault{Seq: x.firstSeq() + 1, Segment: x.number, File: x.name, Problem: "the segment is of the range of the bundle, and only its ends are here"}
		case x.form == whole && !chosen[x.number]:
			return &Fault{Seq: x.firstSeq(), Segment: x.number, File: x.name, Problem: "the segment is not of the range of the bundle, and is here whole"}
		case x.form == whole:
			v.report.Bundle.Whole = append(v.report.Bundle.Whole, x.number)
		}
	}
	if !bytes.Equal(b.summary, summary(b.head, v.extents, v.report.Origin)) {
		return &Fault{File: summaryMember, Problem: "it says something else than the segments"}
	}
	return nil
}

func (b *bundle) list() ([]segmentFile, error) { return slices.Clone(b.files), nil }

func (b *bundle) open(name string) (content, error) {
	member, ok := b.members[name]
	if !ok {
		return nil, fs.ErrNotExist
	}
	return memberContent{io.NewSectionReader(member, 0, member.Size())}, nil
}

type memberContent struct{ *io.SectionReader }

func (memberContent) Close() error           { return nil }
func (c memberContent) size() (int64, error) { return c.Size(), nil }
