package audit

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// mend tries to bring a failed log back, and when it can be written again,
// records what was owed and how many entries were refused meanwhile.
func (l *Log) mend() {
	l.mu.Lock()
	failure := l.failure
	l.mu.Unlock()
	if failure == nil {
		return
	}
	if err := l.repair(); err != nil {
		l.postpone(err)
		return
	}
	l.mu.Lock()
	over := Entry{Kind: Recovered, Cause: "WRITE_FAILED", Count: l.refused}
	l.mu.Unlock()
	if l.recordOwed(&over) != nil {
		return
	}
	l.mu.Lock()
	l.failure = nil
	l.refused -= over.Count
	l.mu.Unlock()
	l.config.Logger.Info("audit log can be written again", "refused", over.Count)
}

// recordOwed commits what the log owes about itself, and last, which may be nil.
func (l *Log) recordOwed(last *Entry) error {
	l.mu.Lock()
	owed := l.owed
	if last != nil {
		owed = append(owed[:len(owed):len(owed)], *last)
	}
	for i := range owed {
		l.enqueue(&owed[i], l.config.Now(), operators)
	}
	l.mu.Unlock()
	b := l.take(nil)
	if b == nil {
		return nil
	}
	if err := l.process(b, nil); err != nil {
		return err
	}
	l.mu.Lock()
	l.owed = nil
	l.mu.Unlock()
	return nil
}

// postpone notes that the log could not be mended. While only space is missing
// the operator's entries go on, also those that are pending.
func (l *Log) postpone(err error) {
	l.mu.Lock()
	same := l.failure.space && isSpace(err) && l.w.next == nil
	if same {
		l.failure.retryAt = time.Now().Add(retryEvery)
	}
	l.mu.Unlock()
	if !same {
		_ = l.fail(nil, err)
	}
}

// repair undoes what a failure or a crash left behind, until the log could be
// written.
func (l *Log) repair() error {
	w := &l.w
	if err := l.thaw(); err != nil {
		return err
	}
	if !w.abandoned {
		if err := l.trim(); err != nil {
			return err
		}
	} else if w.next == nil {
		l.replaceAbandoned()
	}
	if w.next != nil {
		if err := l.openNext(); err != nil {
			return err
		}
	}
	w.sizeReserve(l.folder)
	// As if for a stranger's entry: the reserve being there is no reason to go on.
	if err := w.makeRoom(w.size+blockSize, false); err != nil {
		return err
	}
	return l.folder.Probe()
}

// thaw opens for writing what could only be read when the log was opened.
func (l *Log) thaw() error {
	w := &l.w
	if !w.frozen {
		return nil
	}
	f, err := l.folder.Open(segmentName(w.number))
	if err != nil {
		return err
	}
	if _, err := w.file.Inspect(); err != nil { // another file than was read
		f.Close()
		return err
	}
	w.file.Close()
	w.file, w.frozen = f, false
	l.mu.Lock()
	l.open = f
	l.mu.Unlock()
	return nil
}

// trim drops what stands behind the durable part of the open segment: our own
// bytes of a commit that failed; a tail that a crash left; or what somebody else
// wrote. All but our own are kept for whoever wants to know.
func (l *Log) trim() error {
	w := &l.w
	size, err := w.file.Inspect()
	switch {
	case err != nil:
		return err
	case size < w.size:
		return swapped("file was truncated")
	case size > w.size && !w.dirty:
		entry, err := l.setAside(w.file, w.number, w.size, size)
		if err != nil {
			return err
		}
		w.dirty = true // safe now: not to be set aside a second time
		l.mu.Lock()
		l.owed = append(l.owed, entry)
		l.mu.Unlock()
	}
	if size > w.size {
		if err := w.cutBack(); err != nil {
			return err
		}
	}
	w.dirty = false
	return nil
}

// replaceAbandoned prepares a segment that continues after the durable part of
// the one whose fdatasync failed. The same key goes on signing: no hand-over to
// another could be made durable.
func (l *Log) replaceAbandoned() {
	w := &l.w
	w.next = &prepared{
		number: w.number + 1, key: w.key, slot: w.keySlot,
		void: &Void{Segment: w.number, Offset: w.size},
	}
	l.mu.Lock()
	l.rewind()
	l.mu.Unlock()
}

// cutBack drops everything behind the durable part.
func (w *writer) cutBack() error {
	if err := w.file.Truncate(w.size); err != nil {
		return fmt.Errorf("cutting the log back: %w", err)
	}
	w.reserved = w.size / blockSize * blockSize // blocks behind the end went with it
	if err := w.sync(); err != nil {
		return err
	}
	w.dirty = false
	return nil
}

// setAside copies the bytes from..to of a segment into a file beside it, and
// returns the entry that tells of it.
func (l *Log) setAside(from io.ReaderAt, number uint32, start, end int64) (Entry, error) {
	names, err := setAsideNames(l.config.Dir, number, start)
	if err != nil {
		return Entry{}, err
	}
	path := filepath.Join(l.config.Dir, names[len(names)-1])
	// The name appears with the whole content or not at all.
	temporary := path + tempSuffix
	sum, err := copySynced(temporary, io.NewSectionReader(from, start, end-start))
	if err == nil {
		err = os.Rename(temporary, path)
	}
	if err == nil {
		err = syncFolder(l.config.Dir)
	}
	if err != nil {
		return Entry{}, errors.Join(fmt.Errorf("setting aside %d bytes: %w", end-start, err), os.Remove(temporary))
	}
	l.config.Logger.Warn("bytes of the audit log were set aside", "file", path, "bytes", end-start)
	return setAsideEntry(number, start, end-start, sum), nil
}

func copySynced(path string, content io.Reader) (Hash, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return Hash{}, err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(io.MultiWriter(f, sum), content); err != nil {
		return Hash{}, err
	}
	return Hash(sum.Sum(nil)), f.Sync()
}

func setAsideEntry(number uint32, offset, length int64, sum Hash) Entry {
	return Entry{
		Kind: Recovered, Cause: "TAIL_SET_ASIDE", ContentSHA256: sum, Bytes: &length,
		Void: &Void{Segment: number, Offset: offset},
	}
}

// unrecorded returns entries for files that were set aside at the very end of a
// segment: had their recovered entry become durable, the end would be elsewhere.
func (l *Log) unrecorded(number uint32, end int64) ([]Entry, error) {
	names, err := setAsideNames(l.config.Dir, number, end)
	if err != nil {
		return nil, err
	}
	var entries []Entry
	for _, name := range names[:len(names)-1] {
		sum, size, err := sumFile(filepath.Join(l.config.Dir, name))
		if err != nil {
			return nil, err
		}
		entries = append(entries, setAsideEntry(number, end, size, sum))
	}
	return entries, nil
}

// sumFile does not hold the file in memory: whoever wrote it chose its size.
func sumFile(path string) (sum Hash, size int64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return Hash{}, 0, err
	}
	defer f.Close()
	hash := sha256.New()
	size, err = io.Copy(hash, f)
	return Hash(hash.Sum(nil)), size, err
}
