package verify

import (
	"bytes"
	"crypto/sha256"
	"errors"
)

// stub judges a segment of which there are only the ends: its first and its last
// line, both signed. What was between them cannot be checked. It may be gone
// because the segment was pruned; then an audit.pruned in a later segment tells.
func (w *walk) stub() error {
	lines := newLines(w.file, w.length)
	var l line
	raw, err := lines.next()
	if err != nil {
		return w.readFault(err)
	}
	first := w.seq
	if err := w.step(&l, raw, lines); err != nil {
		return err
	}
	w.offset = int64(len(raw))
	w.extend(&l)
	if w.offset < w.length {
		if err := w.last(&l, lines); err != nil {
			return err
		}
	}
	if err := w.endOfStub(&l); err != nil {
		return err
	}
	at := Pruned{w.number, first, l.seq}
	if w.form == pruned {
		w.report.Pruned = append(w.report.Pruned, at)
	} else {
		w.report.Bundle.Stubs = append(w.report.Bundle.Stubs, at)
	}
	w.report.Last = Point{l.seq, sum(l.raw)}
	w.done += w.length
	w.progress()
	return nil
}

// last judges the second and last line.
func (w *walk) last(l *line, lines *lineReader) error {
	raw, err := lines.next()
	if err != nil {
		return w.readFault(err)
	}
	if err := l.scan(raw); err != nil {
		return w.fault(w.seq, err.Error())
	}
	switch {
	case l.seq < w.seq, l.number(fSegment) != uint64(w.number), l.text(fVault) != w.report.VaultID, l.is("segment.opened"),
		l.seq == w.seq && l.prev != w.prev, !l.signed(), !valid(w.key, l):
		return w.fault(w.seq, "a segment of which only its ends are left ends in a signed entry of its own, and this is none")
	}
	if w.pool == nil {
		w.report.Signatures++
	}
	w.seq, w.prev = l.seq, sha256.Sum256(raw)
	if err := w.accept(l); err != nil {
		return err
	}
	w.offset += int64(len(raw))
	w.extend(l)
	if w.offset < w.length {
		return w.fault(w.seq, "a segment of which only its ends are left has two lines, and this is a third")
	}
	return nil
}

// endOfStub judges how the segment was closed.
func (w *walk) endOfStub(l *line) error {
	key := publicKey(l.field[fKeyID])
	switch closed := l.is("key.handover"); {
	case closed && (key == nil || w.void != nil), !closed && w.void == nil && !(w.newest && w.form == ends):
		return w.fault(w.seq, "a closed segment ends in a signed key.handover, and this is none")
	case closed:
		w.nextKey = key
	default:
		w.nextKey = w.key // abandoned: it goes on signing
	}
	if w.form == pruned && w.newest {
		return w.fault(w.seq, "the newest segment cannot have been pruned")
	}
	return nil
}

func (w *walk) readFault(err error) error {
	if errors.Is(err, errLine) {
		return w.fault(w.seq, err.Error())
	}
	return err
}

// isStubOf reports whether what stands beside the segment is its ends.
func (w *walk) isStubOf() (bool, error) {
	f, err := w.source.open(w.beside)
	if err != nil {
		if errors.Is(err, errIrregular) {
			return false, nil
		}
		return false, err
	}
	defer f.Close()
	want := bytes.Clone(w.first)
	if w.signed.seq > w.firstSeq {
		want = append(want, w.signed.raw...)
	}
	got := make([]byte, len(want)+1)
	n, _ := f.ReadAt(got, 0)
	return bytes.Equal(got[:n], want), nil
}
