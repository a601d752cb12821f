package launch

import (
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// groundMade is when a ground that was made to be covered was changed last, until
// somebody makes something in it: by that it is told from the programs' own.
var groundMade = time.Unix(1_000_000_000, 123_456_789)

// heldGrounds are the grounds that were made for a tree, or for another one before it,
// and that nobody has used since. As long as they are held nobody takes them away: a
// cover is gone with what it covers, in every tree.
type heldGrounds []heldGround

type heldGround struct {
	path string
	lock *os.File // shared by all trees that cover it
}

// holdGrounds makes the grounds that are not there and holds them. What it cannot make
// is left to the first process, which says why.
func holdGrounds(around surroundings) (held heldGrounds) {
	for _, g := range grounds(around) {
		if info, err := os.Stat(filepath.Dir(g.path)); err != nil || !info.IsDir() {
			continue
		}
		for range 10 { // somebody may take it away meanwhile
			lock, again := holdGround(g)
			if lock != nil {
				held = append(held, heldGround{g.path, lock})
			}
			if !again {
				break
			}
		}
	}
	return held
}

// holdGround makes one ground, or takes the one that another tree has made. It returns
// nil where it is a program's own.
func holdGround(g ground) (lock *os.File, again bool) {
	made := os.Mkdir(g.path, 0o700) == nil
	if made && g.shared && os.Chmod(g.path, 0o777|fs.ModeSticky) != nil { // everyone's, as X makes it
		return nil, false
	}
	dir, err := os.OpenFile(g.path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, os.IsNotExist(err)
	}
	held := false
	defer func() {
		if !held {
			dir.Close()
		}
	}()
	if unix.Flock(int(dir.Fd()), unix.LOCK_SH|unix.LOCK_NB) != nil {
		return nil, true // it is just being taken away
	}
	if made && os.Chtimes(g.path, time.Time{}, groundMade) != nil || !unused(dir) {
		return nil, false
	}
	if there, err := os.Lstat(g.path); err != nil || !sameFile(dir, there) {
		return nil, true
	}
	held = true
	return dir, false
}

// unused reports whether nothing was made in a ground since it was made for a tree.
func unused(dir *os.File) bool {
	info, err := dir.Stat()
	return err == nil && info.ModTime().Equal(groundMade)
}

func sameFile(dir *os.File, there os.FileInfo) bool {
	info, err := dir.Stat()
	return err == nil && os.SameFile(info, there)
}

// release lets go of the grounds when the tree is gone, and removes those that nobody
// has used and no other tree covers.
func (held heldGrounds) release() {
	for _, g := range held {
		there, err := os.Lstat(g.path)
		if err == nil && unix.Flock(int(g.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil && unused(g.lock) && sameFile(g.lock, there) {
			_ = unix.Rmdir(g.path) // something may be in it after all
		}
		g.lock.Close()
	}
}
