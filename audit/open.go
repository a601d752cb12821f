package audit

import (
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Recovery says what Open found and mended.
type Recovery struct {
	Genesis  bool   // a new log was begun
	Segments int    // how many there are
	Entries  uint64 // seq of the newest entry that was found

	// A torn tail was cut off: bytes behind the last valid signature, which
	// nobody was ever answered about.
	TornSegment uint32
	TornOffset  int64
	TornBytes   int64 // 0: there was none

	// FinishedRotation is set when a crash had stopped a rotation half-way.
	FinishedRotation bool
}

// Open opens the log, or with Config.Fresh begins one. It checks every
// segment's ends, all entries since the segment of Config.Known, cuts off and
// sets aside a torn tail, and finishes an interrupted rotation and an
// interrupted Prune. A log that is whole and cannot be written just now is
// opened all the same: Health then says why, and it is tried again every second.
//
// Errors: ErrUnsafe, ErrDamaged, ErrRollback, or what the system said.
func Open(config Config) (*Log, *Recovery, error) {
	return open(config, osFolder(config.Dir))
}

func open(config Config, in folder) (*Log, *Recovery, error) {
	if err := config.complete(); err != nil {
		return nil, nil, err
	}
	l := &Log{
		config:   config,
		folder:   in,
		wake:     make(chan struct{}, 1),
		requests: make(chan request),
		stop:     make(chan struct{}),
		stopped:  make(chan struct{}),
		pending:  newBatch(0),
	}
	l.w.canKeep = true
	l.gather = time.AfterFunc(GroupDelay, l.gathered)
	l.gather.Stop() // there is nothing yet
	recovery, err := l.load()
	if err != nil {
		l.w.close()
		return nil, nil, fmt.Errorf("opening the audit log: %w", err)
	}
	l.config.SealKey = nil // the key file has its copy; this one is the caller's
	go l.run()
	return l, recovery, nil
}

func (l *Log) load() (*Recovery, error) {
	if err := l.makeFolder(); err != nil {
		return nil, err
	}
	if part, err := asidePart(l.config.Dir); err != nil {
		return nil, err
	} else if part != "" {
		return nil, fmt.Errorf("%w: setting it aside was interrupted, and %s holds a part of it", ErrDamaged, part)
	}
	list, temporary, err := listSegments(l.config.Dir)
	if err != nil {
		return nil, err
	}
	for _, name := range append(temporary, probeName) {
		// They are in nobody's way, and the file system may be read-only just now.
		_ = os.Remove(filepath.Join(l.config.Dir, name))
	}
	if len(list) == 0 {
		return l.begin()
	}
	return l.resume(list)
}

func (l *Log) makeFolder() error {
	err := checkFolder(l.config.Dir)
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if !l.config.Fresh {
		return fmt.Errorf("%w: %s is missing", ErrDamaged, l.config.Dir)
	}
	if err := os.Mkdir(l.config.Dir, 0o700); err != nil {
		return err
	}
	if err := syncFolder(filepath.Dir(l.config.Dir)); err != nil {
		return err
	}
	return checkFolder(l.config.Dir)
}

// begin writes the first key and the first entry.
func (l *Log) begin() (*Recovery, error) {
	if l.config.Known != (Position{}) {
		return nil, fmt.Errorf("%w: there is no segment in %s, and entry %d is known", ErrRollback, l.config.Dir, l.config.Known.Seq)
	}
	if want := l.config.Expect; want != nil {
		return nil, fmt.Errorf("%w: there is no segment in %s, and entry %d was noted elsewhere", ErrRollback, l.config.Dir, want.Seq)
	}
	if !l.config.Fresh {
		return nil, fmt.Errorf("%w: there is no segment in %s", ErrDamaged, l.config.Dir)
	}
	if err := l.folder.Probe(); err != nil {
		return nil, err
	}
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	if l.w.keys, err = createKeyFile(l.config.KeyFile, l.config.VaultID, l.config.SealKey, key); err != nil {
		return nil, fmt.Errorf("making the signing key: %w", err)
	}
	l.w.next = &prepared{number: 1, key: key}
	if err := l.openNext(); err != nil {
		return nil, err
	}
	l.w.sizeReserve(l.folder)
	_ = l.w.makeRoom(l.w.size, true) // tried again with the first batch
	l.next, l.segment = l.w.head.Seq+1, l.w.number
	return &Recovery{Genesis: true, Segments: 1, Entries: l.w.head.Seq}, nil
}

// resume goes on where the newest segment ends.
func (l *Log) resume(list []segment) (*Recovery, error) {
	found, err := l.survey(list)
	if err != nil {
		return nil, err
	}
	w := &l.w
	recovery := &Recovery{Segments: len(list), Entries: found.head.Seq}
	if w.keys, err = openKeyFile(l.config.KeyFile, l.config.VaultID, l.config.SealKey); err != nil {
		return nil, err
	}
	last := &list[len(list)-1]
	w.file, err = l.folder.Open(last.name())
	if errors.Is(err, unix.EROFS) {
		w.frozen = true
		w.file, err = l.folder.View(last.name())
	}
	if err != nil {
		return nil, err
	}
	w.number, w.size, w.head = last.number, last.end, found.head
	w.reserved = roundUp(last.end+found.torn) + w.file.Reserved()
	l.list, l.open = list, w.file
	l.genesis, l.durable, l.sig = found.genesis, found.head, found.sig

	signer := found.key
	if found.nextKey != nil { // the newest entry is a key.handover
		signer = found.nextKey
	}
	slot, ok := w.keys.find(signer)
	if !ok {
		return nil, fmt.Errorf("%w: %s does not hold the key of segment %d", ErrDamaged, l.config.KeyFile, last.number)
	}
	w.keySlot, w.key = slot, w.keys.slots[slot]

	if found.torn > 0 {
		recovery.TornSegment, recovery.TornOffset, recovery.TornBytes = last.number, last.end, found.torn
	}
	// A killed writer may have left its last batch in the page cache only.
	if err := w.file.Sync(); err != nil {
		return nil, fmt.Errorf("syncing segment %d: %w", last.number, err)
	}
	if l.owed, err = l.unrecorded(last.number, last.end); err != nil {
		return nil, err
	}
	if found.nextKey != nil {
		recovery.FinishedRotation = true
		w.next = &prepared{number: w.number + 1, key: w.key, slot: slot}
		w.key, w.keySlot = nil, 1-slot
	}
	if !w.frozen {
		if err := l.finishPruning(); errors.Is(err, ErrDamaged) {
			return nil, err
		} else if err != nil {
			l.config.Logger.Warn("an interrupted pruning is left for later", "cause", l.causeOf(err))
		}
	}
	l.rewind()
	l.finishLoad()
	return recovery, nil
}

// finishLoad does the writing part of resume. A disk that is full or read-only
// now must not keep the daemon from starting: the log then starts failed, and
// mends itself.
func (l *Log) finishLoad() {
	w := &l.w
	err := l.repair()
	if err == nil {
		err = l.recordOwed(nil)
	}
	if err != nil {
		_ = l.fail(nil, err)
		return
	}
	if spare := 1 - w.keySlot; w.keys.slots[spare] != nil {
		if err := w.keys.zero(spare); err != nil {
			l.config.Logger.Warn("a spare signing key could not be overwritten", "cause", l.causeOf(err))
		}
	}
}
