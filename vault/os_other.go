//go:build !linux

package vault

// renameNew gives a new file its name and refuses to replace another: ErrExists.
func renameNew(from, to string) error { return renameChecked(from, to) }

// dropCache does nothing: there is no portable way to make the kernel read a file again.
func dropCache(string) {}
