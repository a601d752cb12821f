package verify

import (
	"crypto/sha256"
	"errors"
	"os"
)

// stub judges what pruning leaves of a closed segment: its first and its last
// line, both signed. What was between them can no longer be checked; that it
// was removed by the daemon is told by an audit.pruned in a later segment.
func (v *verifier) stub(f *os.File, file segmentFile) error {
	w := &walk{verifier: v, file: f, segmentFile: file}
	lines := newLines(f, file.size)
	var l line
	raw, err := lines.next()
	if err != nil {
		return w.stubFault(err)
	}
	first := v.seq
	if err := w.step(&l, raw, lines); err != nil {
		return err
	}
	if raw, err = lines.next(); err != nil {
		return w.stubFault(err)
	}
	if err := l.scan(raw); err != nil {
		return w.fault(v.seq, err.Error())
	}
	key := publicKey(l.field[fKeyID])
	switch {
	case l.seq < v.seq, !l.is("key.handover"), key == nil, l.number(fSegment) != uint64(file.number), !l.signed(), !valid(w.key, &l):
		return w.fault(v.seq, "a pruned segment ends in its signed key.handover, and this is none")
	}
	v.report.Pruned = append(v.report.Pruned, Pruned{file.number, first, l.seq})
	v.seq, v.prev = l.seq, sha256.Sum256(raw)
	if err := w.accept(&l); err != nil {
		return err
	}
	v.report.Signatures++
	v.report.Last = Point{l.seq, sum(raw)}
	v.nextKey = key
	v.done += file.size
	if _, err := lines.next(); !errors.Is(err, errLine) {
		return w.fault(v.seq, "a pruned segment has two lines, and this is a third")
	}
	return nil
}

func (w *walk) stubFault(err error) error {
	if errors.Is(err, errLine) {
		return w.fault(w.seq, err.Error())
	}
	return err
}
