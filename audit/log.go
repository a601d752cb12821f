package audit

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"
)

// Defaults and limits of Config.
const (
	DefaultSegmentSize = 64 << 20
	DefaultWaitLimit   = 2 * time.Second
	// maxReserve is what is set aside behind the open segment for the operator,
	// in bytes. One block less than 1 MiB, because it is rounded up.
	maxReserve = 1<<20 - blockSize
	// GroupDelay is for how long a grouped entry waits for others to be written with
	// it. Together with a commit it stays below the 50 ms within which such an entry
	// is durable.
	GroupDelay = 20 * time.Millisecond
	// maxGrouped is how much waits like that, in bytes.
	maxGrouped = 256 << 10
	blockSize  = 4096
	// retryEvery is the pause between attempts to mend a failed log.
	retryEvery  = time.Second
	vaultDigits = 32
)

// Config says where the log lives and what is known about it.
type Config struct {
	// Dir is the folder of segments, an absolute path; required. It must be
	// 0700 and ours.
	Dir string
	// KeyFile is the path of the sealed signing keys, outside Dir; required.
	KeyFile string
	// SealKey opens KeyFile: 32 bytes; required. Open keeps a copy.
	SealKey []byte
	// VaultID is 32 lower-case hex digits; required.
	VaultID string
	// SegmentSize is where a segment is closed, in bytes; a commit may go
	// beyond it. 0 means DefaultSegmentSize.
	SegmentSize int64
	// Known is the newest position that the vault remembers; zero means none. A
	// log that does not contain it is refused.
	Known Position
	// Expect is a position that was kept outside the home; nil means none. A log
	// that does not contain it is refused. Its Segment is not looked at. Inside a
	// pruned segment it cannot be compared, and is taken to have been there.
	Expect *Position
	// Fresh allows Open to begin a new log where there is none at all. It is
	// set only while the vault is being created, restored or recovered.
	Fresh bool
	// Origin is what the first entry of a new log says of an older one; nil when
	// there was none. It needs Fresh, and is not looked at when there is a log.
	Origin *Origin
	// Keep returns the oldest position that a later start will want to replay
	// from; Prune leaves its segment and all later ones alone. nil means that
	// the caller sees to that.
	Keep func() Position
	// Placed is told of each entry that was given its place, under the log's mutex:
	// it may neither wait nor change or keep the entry; nil means nobody is told. An
	// entry that then does not become durable is not taken back.
	Placed func(*Entry)
	// Now stamps entries; nil means time.Now.
	Now func() time.Time
	// Logger gets what happens to the files; nil discards it.
	Logger *slog.Logger
	// WaitLimit bounds Ticket.Wait and Close; 0 means DefaultWaitLimit.
	WaitLimit time.Duration
}

func (c *Config) complete() error {
	switch {
	case !filepath.IsAbs(c.Dir):
		return errors.New("audit.Config.Dir must be an absolute path")
	case !filepath.IsAbs(c.KeyFile):
		return errors.New("audit.Config.KeyFile must be an absolute path")
	case len(c.SealKey) != 32:
		return errors.New("audit.Config.SealKey must be 32 bytes")
	case !isMadeOf(c.VaultID, vaultDigits, func(c byte) bool { return isDigit(c) || 'a' <= c && c <= 'f' }) || len(c.VaultID) != vaultDigits:
		return errors.New("audit.Config.VaultID must be 32 lower-case hex digits")
	case c.SegmentSize < 0:
		return errors.New("audit.Config.SegmentSize must not be negative")
	case c.Origin != nil && !c.Fresh:
		return errors.New("audit.Config.Origin needs Fresh")
	}
	if c.Origin != nil {
		if err := c.Origin.check(); err != nil {
			return err
		}
	}
	if c.SegmentSize == 0 {
		c.SegmentSize = DefaultSegmentSize
	}
	if c.WaitLimit == 0 {
		c.WaitLimit = DefaultWaitLimit
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return nil
}

// Log is an open audit log. All methods are safe for concurrent use.
//
// Appenders hold mu for the time of one encoding; one goroutine, the committer,
// takes what has been appended, seals, writes and syncs it, and then lets the
// waiting tickets go.
type Log struct {
	config Config
	folder folder

	wake     chan struct{} // to the committer: something is pending
	requests chan request
	stop     chan struct{}
	stopped  chan struct{} // closed when the committer has ended

	mu        sync.Mutex
	pending   *batch
	next      uint64 // seq of the next entry
	segment   uint32 // segment of the next entry
	owed      []Entry
	refused   uint64 // entries turned away since the log failed
	failure   *failure
	gather    *time.Timer // ends the wait of grouped entries
	gathering bool        // it runs

	busy    time.Time // when the running commit began; zero when idle
	closed  bool
	warning string // words for Health while the log works
	genesis Hash
	durable Position
	sig     string // newest signature
	notify  chan struct{}
	open    file // the open segment, for Inspect
	list    []segment

	pruning sync.Mutex // held by Prune

	w writer
}

// writer is the committer's own state; nobody else touches it after Open.
type writer struct {
	file     file
	number   uint32
	size     int64 // durable bytes
	reserved int64 // blocks are set aside up to here
	reserve  int64 // of them, beyond the end, for the operator; 0 when the file system cannot
	canKeep  bool  // the file system can set blocks aside
	head     Position
	key      ed25519.PrivateKey
	keys     *keyFile
	keySlot  int

	frozen    bool      // file is open for reading only: the file system was read-only at the start
	tight     error     // the last commit went into the reserve, because of this
	dirty     bool      // bytes of a failed commit may stand behind size
	abandoned bool      // an fdatasync of file failed: only the next segment can go on
	next      *prepared // handed over to this segment, which is not open yet
	rotateAt  time.Time // a postponed rotation is tried again from here on
}

// failure is why nothing can be written.
type failure struct {
	err     error  // ErrFailed with the cause
	cause   string // words for people
	space   bool   // only space is missing: the operator still has the reserve
	retryAt time.Time
}

// Durable returns the newest durable position and a channel that is closed when
// there is a newer one.
func (l *Log) Durable() (Position, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.notify == nil {
		l.notify = make(chan struct{})
	}
	return l.durable, l.notify
}

// Head returns the newest durable entry with its signature.
func (l *Log) Head() Head {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.head()
}

// head is Head for callers that hold mu.
func (l *Log) head() Head {
	return Head{
		Genesis: l.genesis.String(), VaultID: l.config.VaultID,
		Segment: l.durable.Segment, Seq: l.durable.Seq, Hash: l.durable.Hash, Signature: l.sig,
	}
}

// Health reports whether entries can be written, and if not, why, in words for
// people. A cause with ok true is a warning.
func (l *Log) Health() (ok bool, cause string) {
	l.mu.Lock()
	failure, busy, closed, warning, open := l.failure, l.busy, l.closed, l.warning, l.open
	l.mu.Unlock()
	switch {
	case closed:
		return false, "the log is closed"
	case failure != nil:
		return false, failure.cause
	case !busy.IsZero() && time.Since(busy) > l.config.WaitLimit:
		return false, fmt.Sprintf("the disk of %s has not answered for %s", l.config.Dir, time.Since(busy).Round(time.Second))
	}
	if _, err := open.Inspect(); err != nil {
		return false, l.causeOf(err)
	}
	return true, warning
}

// Close commits what is pending and closes the log. It waits at most
// Config.WaitLimit for the disk.
func (l *Log) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	l.closed = true
	l.mu.Unlock()
	close(l.stop)
	timer := time.NewTimer(l.config.WaitLimit)
	defer timer.Stop()
	select {
	case <-l.stopped:
		return nil
	case <-timer.C:
		return fmt.Errorf("closing the audit log: %w", ErrTimeout)
	}
}
