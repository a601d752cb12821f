package audit

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// errSync marks an fdatasync that failed. What the page cache shows of the file
// afterwards may not be what the disk has, so the file is not touched again.
var errSync = errors.New("the disk did not take the log")

// close wipes the keys. Called by the committer when it ends, or by a failed
// Open.
func (w *writer) close() {
	clear(w.key)
	if w.next != nil {
		clear(w.next.key)
		if w.next.file != nil {
			w.next.file.Close()
		}
	}
	if w.keys != nil {
		w.keys.close()
	}
	if w.file != nil {
		w.file.Close()
	}
}

// run is the committer.
func (l *Log) run() {
	defer close(l.stopped)
	defer l.w.close()
	defer l.gather.Stop()
	retry := time.NewTimer(0)
	defer retry.Stop()
	for {
		retry.Stop()
		if at, failed := l.retryAt(); failed {
			retry.Reset(time.Until(at))
		}
		select {
		case <-l.wake:
			l.commitPending(false)
		case <-retry.C:
			l.mend()
		case r := <-l.requests:
			r.answer <- r.do()
		case <-l.stop:
			l.commitPending(true)
			return
		}
	}
}

// commitPending commits until nothing is pending that is due; with rest, whatever
// is pending.
func (l *Log) commitPending(rest bool) {
	for {
		if !rest && !l.isDue() {
			return
		}
		next := l.prepareIfFull()
		b := l.take(next)
		if b == nil {
			return
		}
		_ = l.process(b, next) // the tickets and Health have it
	}
}

func (l *Log) isDue() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pending.due
}

// take hands what is pending to the committer. With next, the batch ends in the
// hand-over to it, and the seq of its segment.opened is set aside.
func (l *Log) take(next *prepared) *batch {
	l.mu.Lock()
	defer l.mu.Unlock()
	if next != nil {
		l.enqueue(&Entry{Kind: KeyHandover, KeyID: next.keyID()}, l.config.Now(), operators)
		l.segment++
		l.next++
	}
	if l.pending.empty() {
		return nil
	}
	b := l.pending
	l.pending = newBatch(len(b.buf))
	l.busy = time.Now()
	return b
}

// process commits b, tells its tickets, and opens the next segment if b ends in
// a hand-over.
func (l *Log) process(b *batch, next *prepared) error {
	defer l.idle()
	if err := l.commit(b); err != nil {
		l.discard(next)
		return l.fail(b, err)
	}
	l.w.next = next
	l.settle(b)
	if next == nil {
		return nil
	}
	if err := l.openNext(); err != nil {
		return l.fail(nil, err)
	}
	return nil
}

// idle ends the time in which the disk is expected to answer.
func (l *Log) idle() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.busy = time.Time{}
}

// commit seals b and brings it to the disk.
func (l *Log) commit(b *batch) error {
	w := &l.w
	// Before: nothing is ever written to a file that lost its place.
	if err := w.inspect(w.size); err != nil {
		return err
	}
	b.seal(w.head.Hash, l.config.VaultID, w.key)
	end := w.size + int64(len(b.buf))
	if err := w.makeRoom(end, b.operator); err != nil {
		return err
	}
	w.dirty = true
	if _, err := w.file.WriteAt(b.buf, w.size); err != nil {
		// At once, not with the next attempt: a stop may come first.
		return errors.Join(fmt.Errorf("writing: %w", err), w.cutBack())
	}
	if err := w.sync(); err != nil {
		return err
	}
	// After: what was just written must be what a reader of the path will see.
	if err := w.inspect(end); err != nil {
		return err
	}
	w.dirty, w.size, w.head = false, end, b.last()
	return nil
}

func (w *writer) sync() error {
	if err := w.file.Sync(); err != nil {
		w.abandoned = true
		return fmt.Errorf("%w: %w", errSync, err)
	}
	return nil
}

// inspect checks that the path still names the open file, and that nobody else
// has written to it.
func (w *writer) inspect(size int64) error {
	now, err := w.file.Inspect()
	switch {
	case err != nil:
		return err
	case now < size:
		return swapped("file was truncated")
	case now > size:
		return swapped("file was written by somebody else")
	}
	return nil
}

// makeRoom sets blocks aside up to end plus the operator's reserve, before
// anything is written: a full disk then costs no torn line. Only a batch with an
// entry of the operator's may go into the reserve.
func (w *writer) makeRoom(end int64, operator bool) error {
	w.tight = nil
	need := roundUp(end + w.reserve)
	if !w.canKeep || need <= w.reserved {
		return nil
	}
	err := w.file.Reserve(w.reserved, need-w.reserved)
	switch {
	case err == nil:
		w.reserved = need
	case errors.Is(err, errors.ErrUnsupported):
		w.canKeep, w.reserve = false, 0
	case operator && isSpace(err) && end <= w.reserved:
		w.tight = err
	default:
		return err
	}
	return nil
}

// lendReserve frees most of the reserve, for what will free more than that.
func (l *Log) lendReserve() error {
	const kept = 16 * blockSize
	w := &l.w
	if w.dirty || w.abandoned || w.frozen || !w.canKeep {
		return nil
	}
	if err := w.inspect(w.size); err != nil {
		return err
	}
	if err := w.file.Truncate(w.size); err != nil { // the size stays
		return err
	}
	w.reserved = w.size / blockSize * blockSize
	if err := w.file.Reserve(w.reserved, kept); err != nil {
		return err
	}
	w.reserved += kept
	return nil
}

// sizeReserve lets the reserve grow to a quarter of what is free.
func (w *writer) sizeReserve(in folder) {
	free, err := in.Free()
	if err != nil || !w.canKeep {
		return
	}
	w.reserve = max(w.reserve, min(maxReserve, max(free/4, w.file.Reserved())/blockSize*blockSize))
}

func roundUp(n int64) int64 { return (n + blockSize - 1) / blockSize * blockSize }

// settle lets the tickets of a durable batch go, and owes a release.withheld to
// those that did not wait.
func (l *Log) settle(b *batch) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b.settled = true
	l.publish(b.last(), b.sig)
	if l.w.tight != nil && l.failure == nil {
		// Strangers' entries may have been in the same batch, and may be in the
		// one that is pending; from here on there are none.
		l.setFailure(l.w.tight, time.Now().Add(retryEvery))
	}
	for i := range b.late {
		l.enqueue(&b.late[i], l.config.Now(), operators)
	}
	close(b.done)
}

// publish makes the committer's position everybody's. Called with mu held.
func (l *Log) publish(at Position, sig string) {
	l.durable, l.sig = at, sig
	l.list[len(l.list)-1].end = l.w.size
	if l.notify != nil {
		close(l.notify)
		l.notify = nil
	}
}

// fail refuses b, which may be nil, and all that is pending; their seqs will be
// given to others. It returns the error that the tickets got.
func (l *Log) fail(b *batch, err error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	again := time.Now().Add(retryEvery)
	if errors.Is(err, errSync) && l.failure == nil {
		again = time.Now() // the next segment may well work
	}
	l.setFailure(err, again)
	for _, lost := range []*batch{b, l.pending} {
		if lost == nil || lost.empty() {
			continue
		}
		l.refused += uint64(len(lost.ends))
		lost.settled, lost.err = true, l.failure.err
		close(lost.done)
	}
	l.pending = newBatch(0)
	l.rewind()
	return l.failure.err
}

// setFailure makes err the reason why nothing can be written. Called with mu held.
func (l *Log) setFailure(err error, again time.Time) {
	cause := l.causeOf(err)
	if l.failure == nil || l.failure.cause != cause {
		l.config.Logger.Error("audit log cannot be written", "cause", cause)
	}
	l.failure = &failure{
		err:     fmt.Errorf("%w: %s", ErrFailed, cause),
		cause:   cause,
		space:   isSpace(err) && l.w.next == nil,
		retryAt: again,
	}
}

// rewind gives the next entry the place after the newest durable one. Called
// with mu held.
func (l *Log) rewind() {
	l.next, l.segment = l.w.head.Seq+1, l.w.number
	if l.w.next != nil { // its segment.opened comes first
		l.next, l.segment = l.next+1, l.w.next.number
	}
}

func (l *Log) retryAt() (time.Time, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failure == nil {
		return time.Time{}, false
	}
	return l.failure.retryAt, true
}

func isSpace(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// causeOf says in words for people why the log cannot be written.
func (l *Log) causeOf(err error) string {
	if how, ok := errors.AsType[swapped](err); ok {
		return "log " + string(how)
	}
	for _, known := range [...]struct {
		errno error
		words string
	}{
		{unix.ENOSPC, "no space on %s"},
		{unix.EDQUOT, "disk quota used up on %s"},
		{unix.EROFS, "read-only file system at %s"},
		{unix.EFBIG, "file size limit reached in %s"},
		{unix.EMFILE, "no free file descriptors for %s"},
		{unix.ENFILE, "no free file descriptors for %s"},
		{unix.EIO, "input/output error on %s"},
		{unix.EACCES, "permission denied on %s"},
		{unix.EPERM, "operation not permitted on %s"},
	} {
		if errors.Is(err, known.errno) {
			return fmt.Sprintf(known.words, l.config.Dir)
		}
	}
	return err.Error()
}
