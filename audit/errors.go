package audit

import "errors"

// Errors of Open.
var (
	// ErrUnsafe means that the folder, a segment or the key file is not a plain,
	// own, private thing: a link, a FIFO, a foreign owner, a loose mode.
	ErrUnsafe = errors.New("audit log is not safe to use")
	// ErrDamaged means that the log contradicts itself, or that its key does not
	// fit it.
	ErrDamaged = errors.New("audit log is damaged")
	// ErrRollback means that the log ends before, or differs from, the position
	// that Config.Known says it once had.
	ErrRollback = errors.New("audit log is older than what is known of it")
)

// Errors of a running log.
var (
	// ErrFailed means that the entry is not, and will not be, in the log.
	ErrFailed = errors.New("audit log cannot be written")
	// ErrTimeout means that the entry was not durable in time. It may still
	// become so.
	ErrTimeout = errors.New("audit log does not answer")
	// ErrClosed is returned after Close.
	ErrClosed = errors.New("audit log is closed")
	// ErrInvalid means that a field of an entry holds what it must not hold.
	ErrInvalid = errors.New("invalid audit entry")
	// ErrNotPrunable means that Prune was asked for what it must not do.
	ErrNotPrunable = errors.New("audit segment cannot be pruned")
	// ErrNotFound means that no durable entry stands at a position.
	ErrNotFound = errors.New("no such audit entry")
)
