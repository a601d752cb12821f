package audit

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"
)

// Pruning a segment is four steps, and a crash between any two is finished, or
// taken back, by Open:
//
//  1. what will be left of it, its first and its last line, is made as NNNNNNNN.pruning
//  2. audit.pruned, durable in the open segment, names it
//  3. NNNNNNNN.pruning becomes NNNNNNNN.pruned
//  4. NNNNNNNN.jsonl is removed
//
// As long as the .jsonl is there it is the segment, whatever stands beside it.

// Copy says that the operator holds a copy of a segment elsewhere.
type Copy struct {
	Segment uint32
	SHA256  [32]byte // of the file, or of the part of it that counts, as a bundle has it
}

// Pruned is a segment that is reduced to its first and its last line.
type Pruned struct {
	Segment     uint32
	First, Last uint64 // seqs of the entries that it held
	Bytes       int64  // how much is freed
}

// Prune reduces segments to their signed first and last lines. They must be
// closed, rise without a gap from the oldest one that is not pruned, lie before
// Config.Keep, be what the copies are, byte for byte, and verify; all of them are
// judged before anything is changed, and with dryRun nothing is. An audit.pruned
// entry tells of each; who asked for it is for the caller to record.
//
// It returns what was, or would be, pruned. Errors: ErrNotPrunable when a copy
// is refused, ErrDamaged when a segment does not verify, those of Record.
func (l *Log) Prune(copies []Copy, dryRun bool) ([]Pruned, error) {
	l.pruning.Lock()
	defer l.pruning.Unlock()
	reductions, err := l.judge(copies)
	if err != nil {
		return nil, fmt.Errorf("pruning: %w", err)
	}
	var pruned []Pruned
	for _, r := range reductions {
		if !dryRun {
			if err := l.reduce(r); err != nil {
				return pruned, fmt.Errorf("pruning segment %d: %w", r.segment.number, err)
			}
		}
		pruned = append(pruned, Pruned{Segment: r.segment.number, First: r.segment.first, Last: r.last.Seq, Bytes: r.frees})
	}
	return pruned, nil
}

// reduction is a segment that may be pruned.
type reduction struct {
	segment segment
	last    Position
	stub    []byte // its first and last line
	gone    uint64 // how many entries are not in it
	counts  Hash   // of what counts: of an abandoned segment, up to its end
	whole   Hash   // of the whole file
	sum     Hash   // that the operator's copy has
	frees   int64  // bytes
}

// judge decides whether the copies allow to prune their segments.
func (l *Log) judge(copies []Copy) ([]reduction, error) {
	l.mu.Lock()
	list := slices.Clone(l.list)
	l.mu.Unlock()
	oldest := slices.IndexFunc(list, func(s segment) bool { return !s.pruned })
	keep := list[len(list)-1].number
	if l.config.Keep != nil {
		keep = min(keep, l.config.Keep().Segment)
	}
	if len(copies) == 0 {
		return nil, fmt.Errorf("%w: no segment is named", ErrNotPrunable)
	}
	var reductions []reduction
	for i, c := range copies {
		index := oldest + i
		switch {
		case index >= len(list), c.Segment != list[index].number:
			return nil, fmt.Errorf("%w: segment %d is not the oldest that is left", ErrNotPrunable, c.Segment)
		case index == len(list)-1:
			return nil, fmt.Errorf("%w: segment %d is still open", ErrNotPrunable, c.Segment)
		case c.Segment >= keep:
			return nil, fmt.Errorf("%w: segment %d is still needed at the next start", ErrNotPrunable, c.Segment)
		}
		r, err := l.examine(list, index)
		if err != nil {
			return nil, err
		}
		if r.sum = c.SHA256; r.sum != r.counts && r.sum != r.whole {
			return nil, fmt.Errorf("%w: the copy of segment %d is not the same as the segment", ErrNotPrunable, c.Segment)
		}
		reductions = append(reductions, r)
	}
	return reductions, nil
}

// examine verifies a closed segment, with its links to its neighbours.
func (l *Log) examine(list []segment, index int) (reduction, error) {
	s := list[index]
	next, _, err := l.firstEntry(list[index+1])
	if err != nil {
		return reduction{}, err
	}
	before := &found{}
	if index > 0 {
		if before.head, err = l.lastOf(list[index-1]); err != nil {
			return reduction{}, err
		}
	}
	if err := l.surveySegment(before, &s, &next, true); err != nil {
		return reduction{}, err
	}
	r := reduction{segment: s, last: before.head, stub: before.stub}
	if r.last.Seq > s.first {
		r.gone = r.last.Seq - s.first - 1
	}
	file, err := l.folder.View(s.name())
	if err != nil {
		return reduction{}, err
	}
	defer file.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, io.NewSectionReader(file, 0, s.end)); err != nil {
		return reduction{}, err
	}
	r.counts = Hash(sum.Sum(nil))
	behind, err := io.Copy(sum, io.NewSectionReader(file, s.end, 1<<62))
	if err != nil {
		return reduction{}, err
	}
	r.whole, r.frees = Hash(sum.Sum(nil)), s.end+behind-int64(len(r.stub))
	return r, nil
}

// lastOf returns the newest entry of a closed segment, unchecked.
func (l *Log) lastOf(s segment) (Position, error) {
	file, err := l.folder.View(s.name())
	if err != nil {
		return Position{}, err
	}
	defer file.Close()
	w := walker{log: l, segment: s.number}
	if err := w.lastLine(file, s.end); err != nil {
		return Position{}, err
	}
	return w.signed.at, nil
}

// reduce prunes one segment.
func (l *Log) reduce(r reduction) error {
	stub, err := l.makeStub(r)
	if isSpace(err) {
		if err := l.ask(l.lendReserve); err != nil {
			return err
		}
		stub, err = l.makeStub(r)
	}
	if err != nil {
		return err
	}
	defer stub.Close()
	at, err := l.RecordOperator(context.Background(), Entry{
		Kind: AuditPruned, ContentSHA256: r.sum, Bytes: &r.frees, Count: r.gone, Void: &Void{Segment: r.segment.number},
	})
	if err != nil {
		if errors.Is(err, ErrTimeout) { // it may become durable: Open sees to it
			return err
		}
		return errors.Join(err, l.folder.Remove(pruningName(r.segment.number)))
	}
	l.config.Logger.Info("audit segment pruned", "segment", r.segment.number, "seq", at.Seq)
	return l.replace(r, stub)
}

// makeStub does step 1.
func (l *Log) makeStub(r reduction) (file, error) {
	name := pruningName(r.segment.number)
	if err := l.folder.Remove(name); err != nil {
		return nil, err
	}
	if err := l.folder.Remove(name + tempSuffix); err != nil {
		return nil, err
	}
	f, err := l.folder.Create(name + tempSuffix)
	if err != nil {
		return nil, err
	}
	if _, err = f.WriteAt(r.stub, 0); err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = l.folder.Publish(f, name)
	}
	if err != nil {
		f.Close()
		return nil, errors.Join(err, l.folder.Remove(name+tempSuffix))
	}
	return f, nil
}

// replace does steps 3 and 4.
func (l *Log) replace(r reduction, stub file) error {
	if err := l.folder.Publish(stub, prunedName(r.segment.number)); err != nil {
		return err
	}
	return l.finished(r)
}

// finished does step 4.
func (l *Log) finished(r reduction) error {
	if err := l.folder.Remove(segmentName(r.segment.number)); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.IndexFunc(l.list, func(s segment) bool { return s.number == r.segment.number })
	l.list[i].pruned, l.list[i].pruning, l.list[i].end = true, false, int64(len(r.stub))
	return nil
}
