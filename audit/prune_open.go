package audit

import (
	"bytes"
	"errors"
	"fmt"
	"io"
)

// finishPruning completes what a crash stopped: a segment that still stands
// beside what would be left of it. When no audit.pruned tells of it, step 2 was
// not reached, and what was made is taken back; but a .pruned is made only after
// that, and one that nothing tells of was put there by somebody else.
func (l *Log) finishPruning() error {
	for i, s := range l.list {
		if !s.pruning {
			continue
		}
		told, err := l.tellsOfPruning(s.number)
		if err != nil {
			return err
		}
		switch {
		case told:
			err = l.finishReduction(i)
		case s.doubled:
			err = fmt.Errorf("%w: segment %d is there twice, and no audit.pruned says why", ErrDamaged, s.number)
		default:
			err = l.folder.Remove(pruningName(s.number))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (l *Log) finishReduction(index int) error {
	r, err := l.examine(l.list, index)
	if err != nil {
		return err
	}
	number := r.segment.number
	l.config.Logger.Info("an interrupted pruning is finished", "segment", number)
	if l.holds(prunedName(number), r.stub) {
		return errors.Join(l.finished(r), l.folder.Remove(pruningName(number)))
	}
	if err := l.folder.Remove(prunedName(number)); err != nil {
		return err
	}
	var stub file
	if l.holds(pruningName(number), r.stub) {
		stub, err = l.folder.Open(pruningName(number))
	} else {
		stub, err = l.makeStub(r)
	}
	if err != nil {
		return err
	}
	defer stub.Close()
	return l.replace(r, stub)
}

// holds reports whether the file has exactly this content.
func (l *Log) holds(name string, content []byte) bool {
	f, err := l.folder.View(name)
	if err != nil {
		return false
	}
	defer f.Close()
	got := make([]byte, len(content)+1)
	n, err := f.ReadAt(got, 0)
	return errors.Is(err, io.EOF) && bytes.Equal(got[:n], content)
}

// tellsOfPruning reports whether a later segment has the audit.pruned of number.
// Of the open one none has: what stands beside it was put there.
func (l *Log) tellsOfPruning(number uint32) (bool, error) {
	if int(number) >= len(l.list) {
		return false, nil
	}
	kind, void := []byte(`"kind":"audit.pruned"`), fmt.Appendf(nil, `"void":{"segment":%d}`, number)
	told := false
	err := l.Read(l.list[number].first, func(_ uint64, line []byte) error {
		told = told || bytes.Contains(line, kind) && bytes.Contains(line, void)
		return nil
	})
	return told, err
}
