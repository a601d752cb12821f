package backup

import "errors"

// What can be wrong with a backup. Errors of reading, writing and of the caller's functions come through as they are.
var (
	// ErrNotBackup: the file begins like something else, or is empty.
	ErrNotBackup = errors.New("not a backup")
	// ErrVersion: written by a newer version of this program.
	ErrVersion = errors.New("version of the backup is not supported")
	// ErrDamaged: the file was cut, extended or changed.
	ErrDamaged = errors.New("backup is damaged")
	// ErrInvalid: what is to be written has no place in a backup, or is not as long as was said.
	ErrInvalid = errors.New("cannot be backed up")
)
