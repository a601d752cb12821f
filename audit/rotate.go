package audit

import (
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// A rotation is four steps, and a crash between any two is finished by Open:
//
//  1. the next key goes into the free slot of audit.key
//  2. key.handover, the last entry of the old segment, names it and is signed
//     with the old key
//  3. the next segment appears with segment.opened, signed with the next key
//  4. the old key is overwritten
//
// What may fail for want of descriptors or space is done before step 2, so that
// a rotation that cannot succeed is put off instead of stopping the log.
type prepared struct {
	number uint32
	key    ed25519.PrivateKey
	slot   int
	void   *Void // the old segment was abandoned, not handed over; its key goes on
	file   file  // still under its temporary name; nil: to be made
}

// errProbe marks a self-test that failed for another reason than want of space
// or descriptors: the disk cannot be trusted with the next entry either.
var errProbe = errors.New("the disk failed its self-test")

func isScarce(err error) bool { return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) }

func (p *prepared) keyID() string { return keyID(p.key.Public().(ed25519.PublicKey)) }

// Rotate closes the open segment and begins the next one.
func (l *Log) Rotate() error { return l.ask(l.rotateNow) }

// request is something for the committer to do.
type request struct {
	do     func() error
	answer chan error
}

// ask has the committer do something between two commits.
func (l *Log) ask(do func() error) error {
	answer := make(chan error, 1)
	select {
	case l.requests <- request{do, answer}:
	case <-l.stopped:
		return ErrClosed
	case <-time.After(l.config.WaitLimit):
		return ErrTimeout
	}
	select {
	case err := <-answer:
		return err
	case <-time.After(l.config.WaitLimit):
		return ErrTimeout
	}
}

func (l *Log) rotateNow() error {
	if err := l.failed(); err != nil {
		return err
	}
	next, err := l.prepare()
	if errors.Is(err, errProbe) {
		return l.fail(nil, err)
	}
	if err != nil {
		return fmt.Errorf("%w: %s", ErrFailed, l.causeOf(err))
	}
	return l.process(l.take(next), next)
}

func (l *Log) failed() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failure == nil {
		return nil
	}
	return l.failure.err
}

// prepareIfFull prepares a rotation when what is pending fills the segment. One
// that cannot be prepared is put off, and entries go on in the full segment.
func (l *Log) prepareIfFull() *prepared {
	l.mu.Lock()
	pending, failed := int64(len(l.pending.buf)), l.failure != nil
	l.mu.Unlock()
	now := time.Now()
	if failed || pending == 0 || l.w.size+pending < l.config.SegmentSize || now.Before(l.w.rotateAt) {
		return nil
	}
	next, err := l.prepare()
	if errors.Is(err, errProbe) {
		_ = l.fail(nil, err)
		return nil
	}
	warning := ""
	if err != nil {
		l.w.rotateAt = now.Add(retryEvery)
		warning = "the segment is full and the next one cannot be made: " + l.causeOf(err)
		l.config.Logger.Warn("audit segment cannot be rotated", "cause", l.causeOf(err))
	}
	l.mu.Lock()
	l.warning = warning
	l.mu.Unlock()
	return next
}

// prepare does step 1 and makes the file of the next segment.
func (l *Log) prepare() (*prepared, error) {
	w := &l.w
	if w.number == maxSegment {
		return nil, fmt.Errorf("segment %d is the last", w.number)
	}
	if err := l.folder.Probe(); err != nil {
		if !isSpace(err) && !isScarce(err) {
			err = fmt.Errorf("%w: %w", errProbe, err)
		}
		return nil, err
	}
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	next := &prepared{number: w.number + 1, key: key, slot: 1 - w.keySlot}
	if next.file, err = l.createSegment(next.number); err != nil {
		return nil, err
	}
	if err := w.keys.put(next.slot, key); err != nil {
		l.discard(next)
		return nil, err
	}
	return next, nil
}

// createSegment makes an empty segment under its temporary name, with room for
// its first entry.
func (l *Log) createSegment(number uint32) (file, error) {
	name := fileName(number, tempSuffix)
	if err := os.Remove(filepath.Join(l.config.Dir, name)); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	f, err := l.folder.Create(name)
	if err != nil {
		return nil, err
	}
	if l.w.canKeep {
		if err := f.Reserve(0, blockSize); isSpace(err) {
			f.Close()
			os.Remove(filepath.Join(l.config.Dir, name))
			return nil, err
		}
	}
	return f, nil
}

// discard gives up a prepared segment. Its key stays in the free slot until the
// next rotation overwrites it.
func (l *Log) discard(next *prepared) {
	if next == nil {
		return
	}
	clear(next.key)
	next.dropFile(l.config.Dir)
}

func (p *prepared) dropFile(dir string) {
	if p.file == nil {
		return
	}
	p.file.Close()
	p.file = nil
	os.Remove(filepath.Join(dir, fileName(p.number, tempSuffix)))
}

// openNext does steps 3 and 4.
func (l *Log) openNext() error {
	w, next := &l.w, l.w.next
	if next.file == nil {
		f, err := l.createSegment(next.number)
		if err != nil {
			return err
		}
		next.file = f
	}
	opened, err := l.writeOpened(next)
	if err != nil {
		// Whatever became of its content, a new file is made at the next attempt.
		next.dropFile(l.config.Dir)
		return err
	}
	if w.file != nil {
		if !w.abandoned {
			_ = w.file.Truncate(w.size) // gives the reserve back; the size stays
		}
		w.file.Close()
	}
	oldSlot := w.keySlot
	if w.key != nil && next.slot != oldSlot {
		clear(w.key)
	}
	w.file, w.number, w.size, w.head = next.file, next.number, int64(len(opened.buf)), opened.last()
	w.key, w.keySlot = next.key, next.slot
	w.reserved, w.dirty, w.abandoned, w.next = 0, false, false, nil
	_ = w.makeRoom(w.size, true) // tried again with the next batch

	l.mu.Lock()
	l.list = append(l.list, segment{number: w.number, first: w.head.Seq})
	l.open = w.file
	if w.number == 1 {
		l.genesis = w.head.Hash
	}
	l.publish(opened.last(), opened.sig)
	l.mu.Unlock()

	l.config.Logger.Info("audit segment opened", "segment", w.number, "seq", w.head.Seq)
	if w.keySlot != oldSlot {
		if err := w.keys.zero(oldSlot); err != nil {
			l.config.Logger.Warn("the old signing key could not be overwritten", "cause", l.causeOf(err))
		}
	}
	return nil
}

// writeOpened writes the first entry of next and gives the file its name.
func (l *Log) writeOpened(next *prepared) (*batch, error) {
	first := Entry{
		V: 1, Seq: l.w.head.Seq + 1, Timestamp: l.config.Now(), Vault: l.config.VaultID, Segment: next.number,
		Kind: SegmentOpened, KeyID: next.keyID(), Void: next.void,
	}
	if first.Seq == 1 {
		l.config.Origin.tell(&first)
	}
	b := newBatch(0)
	b.add(&first)
	b.seal(l.w.head.Hash, l.config.VaultID, next.key)
	if _, err := next.file.WriteAt(b.buf, 0); err != nil {
		return nil, fmt.Errorf("writing: %w", err)
	}
	if err := next.file.Sync(); err != nil {
		return nil, err
	}
	if err := l.folder.Publish(next.file, segmentName(next.number)); err != nil {
		return nil, err
	}
	return b, nil
}
