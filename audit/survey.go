package audit

import (
	"bufio"
	"bytes"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"slices"
)

// found is what survey learns of an existing log.
type found struct {
	genesis Hash
	head    Position          // newest entry that counts
	sig     string            // its signature
	key     ed25519.PublicKey // of the newest segment
	nextKey ed25519.PublicKey // named by the newest entry, when that is a key.handover
	torn    int64             // bytes behind the newest entry that counts
	stub    []byte            // first and last line of the newest segment
}

// survey checks the log before anything is written: every segment's ends, and
// every entry since the segment of Config.Known. It fills in first and end of
// the list.
func (l *Log) survey(list []segment) (*found, error) {
	f := &found{}
	known := l.config.Known
	if known.Segment > uint32(len(list)) {
		return nil, fmt.Errorf("%w: segment %d is known and not there", ErrRollback, known.Segment)
	}
	for i := range list {
		s := &list[i]
		full := s.number >= known.Segment
		var next *Entry
		if i+1 < len(list) {
			e, _, err := l.firstEntry(list[i+1])
			if err != nil {
				return nil, err
			}
			next = &e
		}
		if err := l.surveySegment(f, s, next, full); err != nil {
			return nil, err
		}
	}
	return f, l.expect(f)
}

// firstEntry reads and checks the segment.opened of s.
func (l *Log) firstEntry(s segment) (Entry, []byte, error) {
	file, err := l.folder.View(s.name())
	if err != nil {
		return Entry{}, nil, err
	}
	defer file.Close()
	line, err := bufio.NewReaderSize(io.NewSectionReader(file, 0, maxLine), maxLine).ReadBytes('\n')
	if err != nil {
		return Entry{}, nil, fmt.Errorf("%w: segment %d has no first line", ErrDamaged, s.number)
	}
	e, err := decodeLine(line)
	if err != nil {
		return Entry{}, nil, fmt.Errorf("segment %d: %w", s.number, err)
	}
	c, _ := cutLine(line)
	key := parseKeyID(e.KeyID)
	switch {
	case e.Kind != SegmentOpened, e.Segment != s.number, e.Vault != l.config.VaultID, key == nil, c.sig == nil,
		!verifySignature(key, e.Vault, e.Segment, e.Seq, c.body, c.sig):
		return Entry{}, nil, fmt.Errorf("%w: segment %d does not begin with a signed segment.opened of this vault", ErrDamaged, s.number)
	}
	return e, line, nil
}

// surveySegment checks one segment and, when there is one, its link to next.
func (l *Log) surveySegment(f *found, s *segment, next *Entry, full bool) error {
	first, line, err := l.firstEntry(*s)
	if err != nil {
		return err
	}
	s.first = first.Seq
	f.key, f.nextKey = parseKeyID(first.KeyID), nil
	if s.number == 1 {
		if first.Seq != 1 || first.Prev != (Hash{}) {
			return fmt.Errorf("%w: segment 1 does not begin with entry 1", ErrDamaged)
		}
		f.genesis = hashLine(line)
	} else if first.Seq != f.head.Seq+1 || first.Prev != f.head.Hash {
		return fmt.Errorf("%w: segment %d does not continue segment %d", ErrDamaged, s.number, s.number-1)
	}

	file, err := l.folder.View(s.name())
	if err != nil {
		return err
	}
	defer file.Close()
	size, err := file.Inspect()
	if err != nil {
		return fmt.Errorf("%w: segment %d: %w", ErrUnsafe, s.number, err)
	}
	s.end = size
	abandoned := next != nil && next.Void != nil
	if abandoned {
		if next.Void.Segment != s.number || next.Void.Offset > size && !s.pruned || next.KeyID != first.KeyID {
			return fmt.Errorf("%w: segment %d voids what is not there", ErrDamaged, next.Segment)
		}
		if !s.pruned {
			s.end = next.Void.Offset
		}
	}
	if want := l.config.Expect; want != nil && first.Seq <= want.Seq && (next == nil || want.Seq < next.Seq) {
		full = true
	}
	walk := walker{log: l, segment: s.number, key: f.key, known: l.config.Known, expect: l.config.Expect}
	switch {
	case s.pruned && next == nil:
		err = walk.damaged("is the newest, and pruned")
	case s.pruned:
		err = walk.stub(file, s.end, first, line)
	case !full:
		err = walk.lastLine(file, s.end)
	default:
		err = walk.all(file, s.end, first)
	}
	if err != nil {
		return err
	}
	if err := walk.settle(file, s, next == nil); err != nil {
		return err
	}
	newest, _ := cutLine(walk.signed.line)
	f.head, f.sig, f.torn = walk.signed.at, string(newest.sig), walk.torn
	f.stub = line
	if f.head.Seq > first.Seq {
		f.stub = slices.Concat(line, walk.signed.line)
	}
	if abandoned {
		return nil
	}
	last, err := decodeLine(walk.signed.line)
	if err != nil {
		return fmt.Errorf("segment %d: %w", s.number, err)
	}
	switch {
	case last.Kind == KeyHandover && (next == nil || next.KeyID == last.KeyID):
		if f.nextKey = parseKeyID(last.KeyID); f.nextKey == nil {
			return fmt.Errorf("%w: segment %d hands over to no key", ErrDamaged, s.number)
		}
	case next != nil:
		return fmt.Errorf("%w: segment %d was not handed over to segment %d", ErrDamaged, s.number, next.Segment)
	}
	return nil
}

// walker follows the chain through one segment.
type walker struct {
	log     *Log
	segment uint32
	key     ed25519.PublicKey
	known   Position
	expect  *Position

	signed, before signedLine // the last two signed lines that are in the chain
	broken         error      // why the chain ends before the segment does
	torn           int64      // bytes behind signed
}

// signedLine is a line that has a signature, which was not checked yet.
type signedLine struct {
	at   Position
	line []byte
	end  int64
}

// all follows the chain from the first line on.
func (w *walker) all(file io.ReaderAt, end int64, first Entry) error {
	lines := bufio.NewReaderSize(io.NewSectionReader(file, 0, end), 256<<10)
	prev, seq, offset := first.Prev, first.Seq, int64(0)
	for offset < end {
		line, err := lines.ReadSlice('\n')
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, bufio.ErrBufferFull) {
			return err
		}
		c, ok := cutLine(line)
		if !ok || len(line) > maxLine || c.seq != seq || c.prev != prev {
			w.broken = fmt.Errorf("%w: entry %d of segment %d does not follow the one before", ErrDamaged, seq, w.segment)
			return nil
		}
		offset += int64(len(line))
		prev = hashLine(line)
		if seq == w.known.Seq && prev != Hash(w.known.Hash) {
			return fmt.Errorf("%w: entry %d is not the one that is known", ErrRollback, seq)
		}
		if w.expect != nil && seq == w.expect.Seq && prev != Hash(w.expect.Hash) {
			return fmt.Errorf("%w: entry %d is not the one that was noted elsewhere", ErrRollback, seq)
		}
		if c.sig != nil {
			w.before, w.signed = w.signed, signedLine{
				at: Position{Segment: w.segment, Seq: seq, Hash: prev}, line: append(w.before.line[:0], line...), end: offset,
			}
		}
		seq++
	}
	return nil
}

// lastLine takes only the last line of a segment that was surveyed in full when
// it was open.
func (w *walker) lastLine(file io.ReaderAt, end int64) error {
	tail := make([]byte, min(end, 2*maxLine))
	if _, err := file.ReadAt(tail, end-int64(len(tail))); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	line := tail[bytes.LastIndexByte(tail[:max(0, len(tail)-1)], '\n')+1:]
	c, ok := cutLine(line)
	if !ok || c.sig == nil {
		return fmt.Errorf("%w: segment %d does not end in a signed entry", ErrDamaged, w.segment)
	}
	w.signed = signedLine{
		at: Position{Segment: w.segment, Seq: c.seq, Hash: hashLine(line)}, line: line, end: end,
	}
	return nil
}

// stub reads what pruning left of a segment: its first line, and, unless that
// is the same, its last.
func (w *walker) stub(file io.ReaderAt, end int64, first Entry, line []byte) error {
	w.signed = signedLine{
		at: Position{Segment: w.segment, Seq: first.Seq, Hash: hashLine(line)}, line: line, end: int64(len(line)),
	}
	if end > int64(len(line)) {
		if err := w.lastLine(file, end); err != nil {
			return err
		}
		if w.signed.at.Seq <= first.Seq || end != int64(len(line)+len(w.signed.line)) {
			return w.damaged("is pruned, and is not its first and its last line")
		}
	}
	known := w.known
	for _, at := range []Position{{Segment: w.segment, Seq: first.Seq, Hash: hashLine(line)}, w.signed.at} {
		if known.Seq == at.Seq && known.Hash != at.Hash {
			return fmt.Errorf("%w: entry %d is not the one that is known", ErrRollback, at.Seq)
		}
		if w.expect != nil && w.expect.Seq == at.Seq && w.expect.Hash != at.Hash {
			return fmt.Errorf("%w: entry %d is not the one that was noted elsewhere", ErrRollback, at.Seq)
		}
	}
	// What the next start needs is never pruned.
	if first.Seq < known.Seq && known.Seq < w.signed.at.Seq {
		return fmt.Errorf("%w: entry %d is known, and its segment was pruned since: what knows it is older than the log", ErrRollback, known.Seq)
	}
	return nil
}

// settle decides where the segment ends: at the last valid signature. Behind it
// may stand what a crash left of one commit, and only in the newest segment;
// anything else there is damage.
func (w *walker) settle(file io.ReaderAt, s *segment, newest bool) error {
	if w.signed.line == nil {
		return w.damaged("has no signed entry")
	}
	if !w.valid(w.signed.line) {
		if w.before.line == nil || !w.valid(w.before.line) {
			return w.damaged("has no valid signature where one must be")
		}
		w.signed = w.before
	}
	w.torn = s.end - w.signed.end
	if w.torn > 0 {
		if !newest {
			return w.damaged("goes on after its last valid signature")
		}
		// A commit is written only after the one before was durable: two ends of
		// commits behind the break prove that the first was answered.
		later, err := countCommits(io.NewSectionReader(file, w.signed.end, w.torn))
		if err != nil {
			return err
		}
		if later > 1 {
			if w.broken != nil {
				return w.broken
			}
			return w.damaged("is damaged before its end")
		}
	}
	if w.known.Segment == s.number && w.signed.at.Seq < w.known.Seq {
		return fmt.Errorf("%w: it ends at entry %d, and entry %d is known", ErrRollback, w.signed.at.Seq, w.known.Seq)
	}
	s.end = w.signed.end
	return nil
}

func (w *walker) damaged(how string) error {
	return fmt.Errorf("%w: segment %d %s", ErrDamaged, w.segment, how)
}

func (w *walker) valid(line []byte) bool {
	c, ok := cutLine(line)
	return ok && c.sig != nil && verifySignature(w.key, w.log.config.VaultID, w.segment, c.seq, c.body, c.sig)
}

// countCommits counts, up to two, the ends of commits in a tail of which nothing
// else is known. Only signatures look like one: `"sig":"` and `=="}` stand nowhere
// else in a line, and one flipped bit does not hide both.
func countCommits(tail io.Reader) (int, error) {
	lines := bufio.NewReaderSize(tail, 64<<10)
	begun, ended := 0, 0
	for max(begun, ended) < 2 {
		line, err := lines.ReadSlice('\n')
		begun += bytes.Count(line, []byte(sigKey[1:]))
		ended += bytes.Count(line, []byte("==\"}"))
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return 0, err
		}
	}
	return max(begun, ended), nil
}
