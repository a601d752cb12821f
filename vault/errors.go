package vault

import (
	"errors"
	"fmt"
)

// What can be wrong with the file itself.
var (
	// ErrMissing: there is no vault where one must be: the file is gone or empty while a key or a log shows that it existed.
	ErrMissing = errors.New("vault is missing")
	// ErrDamaged: the file is not a readable database, or lacks one of the rows every vault has.
	ErrDamaged = errors.New("vault is damaged")
	// ErrIntegrity: a row does not open, does not match its pin, or the rows do not add up to what the vault last wrote.
	ErrIntegrity = errors.New("integrity check failed")
	// ErrRollback: within this process's life the file went back to an older generation.
	ErrRollback = errors.New("vault went back to an older generation")
	// ErrSchema: written by a newer version of this program.
	ErrSchema = errors.New("schema is not supported")
	// ErrReplaced: the path no longer names the file that is open.
	ErrReplaced = errors.New("vault file was replaced")
	// ErrInUse: another process has the file open.
	ErrInUse = errors.New("vault is in use by another process")
	// ErrExists: Create found a vault.
	ErrExists = errors.New("vault exists already")
)

// What can be wrong with the key. Key sources return these.
var (
	// ErrWrongKey: a key was found, and it is not the one this vault was made with.
	ErrWrongKey = errors.New("wrong key")
	// ErrKeyUnavailable: the source answered, and has no key for this vault.
	ErrKeyUnavailable = errors.New("key is not available")
	// ErrKeyNotAnswering: the source is locked, silent or not running; asking again later may help.
	ErrKeyNotAnswering = errors.New("key source is not answering")
	// ErrKeyFileUnsafe: the key file breaks one of its rules; the text says which.
	ErrKeyFileUnsafe = errors.New("key file is unsafe")
	// ErrKeyExists: the source holds a different key under this vault's name and was not overwritten.
	ErrKeyExists = errors.New("another key is stored there already")
	// ErrKeySource: the vault was made with another kind of key source than the configured one.
	ErrKeySource = errors.New("vault uses another key source")
)

// What a change of slots can answer.
var (
	// ErrNoSlot: there is no slot of that kind.
	ErrNoSlot = errors.New("no key slot")
	// ErrSlotExists: there is a slot of that kind already.
	ErrSlotExists = errors.New("key slot exists already")
	// ErrLastSlot: without it nothing would open the vault.
	ErrLastSlot = errors.New("the last key slot cannot be removed")
)

// What a call can answer while the vault is in good order.
var (
	// ErrLocked: the keys are not in memory.
	ErrLocked = errors.New("vault is locked")
	// ErrStalled: a commit stands still in front of the disk, and readers cannot get past it; asking again later may help.
	ErrStalled = errors.New("vault waits for its disk")
	// ErrFailed: an earlier commit failed, so that memory and file may disagree; Reopen first.
	ErrFailed = errors.New("vault stopped after a failed write")
	// ErrClosed: Close was called.
	ErrClosed = errors.New("vault is closed")
	// ErrReadOnly: the vault was opened read-only, or the transaction is a View.
	ErrReadOnly = errors.New("vault is read-only")
	// ErrBusy: a mutation is pending and the call does not wait.
	ErrBusy = errors.New("vault is busy")
	// ErrNotRecorded: the mutation is committed, but its journal could not say so durably.
	ErrNotRecorded = errors.New("committed, but not recorded as applied")
	// ErrTxDone: a Tx was used after its function returned.
	ErrTxDone = errors.New("transaction is over")
	// ErrNotFound: there is no such row.
	ErrNotFound = errors.New("not found")
	// ErrNoContent: the resource exists, the asked version of its content does not.
	ErrNoContent = errors.New("no content")
	// ErrTooLarge: content over the limit, found before it was written or opened.
	ErrTooLarge = errors.New("content is too large")
	// ErrKindChanged: a resource never changes its type, nor its kind once it has content.
	ErrKindChanged = errors.New("kind cannot be changed")
	// ErrInvalid: a name, kind or value that cannot be stored.
	ErrInvalid = errors.New("invalid argument")
)

// and adds to an error what went wrong on the way out, in one line; errors.Join would make two.
func and(err, more error) error {
	switch {
	case more == nil:
		return err
	case err == nil:
		return more
	}
	return fmt.Errorf("%w; %w", err, more)
}
