// Package regfile reads registered files: files outside the vault that the operator named once and that are handed out only
// while they still are what was named.
//
// It protects from a path that leads elsewhere later (symbolic links, replaced directories, hard links, devices and pipes
// in place of a file) and, with the mode "content", from any change of the file. It does not protect from whoever may write
// to the file in the mode "path", nor from a file system that lies about inode numbers.
//
// A path is walked one component at a time, each opened relative to the one before and never followed when it is a link.
// That is what openat2 with RESOLVE_NO_SYMLINKS does in one call; the walk is needed anyway to know every directory, and it
// is the same on every platform.
package regfile

import "errors"

// What a pin holds fast.
const (
	Content = "content" // any change is ErrChanged
	Path    = "path"    // content and times may change; owner, directories and device may not
)

var (
	// ErrMissing says that nothing is at the path.
	ErrMissing = errors.New("registered file is missing")
	// ErrChanged says that something the pin holds fast is different, or changed while it was being read.
	ErrChanged = errors.New("registered file was changed")
	// ErrUnsafe says that the path is not absolute and clean, leads through a link, or ends at something that is not a regular
	// file with a single link.
	ErrUnsafe = errors.New("registered file is unsafe")
	// ErrTooLarge says that the file is over the limit; it was not read.
	ErrTooLarge = errors.New("registered file is too large")
)

// Pin is a file as it was when it was registered.
type Pin struct {
	Path   string // absolute and clean
	Mode   string // Content or Path
	Dev    uint64
	Ino    uint64
	Size   uint64
	MTime  int64 // nanoseconds since 1970
	CTime  int64 // nanoseconds since 1970
	UID    uint32
	SHA256 [32]byte
	Dirs   []DirPin // from the root down to the file's directory
}

// DirPin is one directory on the way.
type DirPin struct {
	Dev uint64
	Ino uint64
	UID uint32
}

// Status is what Check found.
type Status struct {
	Err error // nil: as registered; else one of this package's errors
	Now Pin   // the file as it is, without its hash; zero if it cannot be reached
}
