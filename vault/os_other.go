//go:build !linux

package vault

import "os"

// renameNew gives a new file its name and refuses to replace another: ErrExists.
func renameNew(from, to string) error { return renameChecked(from, to) }

// exchange renames one file over the other, which then has no name any more.
func exchange(from, to string) error { return os.Rename(from, to) }

// writesInPlace says no: of no file system here it is known.
func writesInPlace(*os.File) bool { return false }

// dropCache does nothing: there is no portable way to make the kernel read a file again.
func dropCache(string) {}
