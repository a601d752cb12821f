package launch

import (
	"context"
	"errors"
)

// Tree is a tree of processes whose first one waits or runs the command. Its
// methods may be called from any goroutine, but Go and Wait only once each.
type Tree struct{}

// Main recognises the first process of a tree by args (os.Args) and is then all
// that this process does: the caller exits with code. It must be the first
// thing in main, before flags are parsed or anything is opened.
func Main(args []string) (handled bool, code int) { return false, 0 }

// Check starts a tree as cfg would and ends it again. It returns an
// *Unsupported that names the first piece that is missing, an error that is
// ErrRefused when cfg must not be started anywhere, or nil.
func Check(ctx context.Context, cfg Config) error {
	return errors.New("not yet")
}

// Start makes the first process of a tree, which covers what must be covered
// and then waits. ctx bounds this step only. On an error there is nothing left.
// Errors: *Unsupported, ErrRefused, or what went wrong.
//
// From here until Wait returns, signals for this process are the tree's: INT,
// QUIT, HUP, TERM, USR1, USR2, TSTP and CONT are handed on.
func Start(ctx context.Context, cfg Config) (*Tree, error) {
	return nil, errors.New("not yet")
}

// Describe says what a tree started with cfg would see, in the order in which a
// person wants to read it. It starts nothing. Errors: *Unsupported, ErrRefused.
func Describe(cfg Config) ([]Rule, error) {
	return nil, errors.New("not yet")
}

// Inside reports whether this process is in a tree, by what the first process
// left there.
func Inside() (Marker, bool) { return Marker{}, false }

// PID of the first process, as this process sees it.
func (t *Tree) PID() int { return 0 }

// Go starts the command. An error says why it could not be started; os.ErrNotExist
// and os.ErrPermission are kept, as a shell's exit codes 127 and 126 need. The
// tree is still there then, and only Kill is left to do.
func (t *Tree) Go(cmd Command) error { return errors.New("not yet") }

// Wait relays the terminal until the command ends and returns its exit code, or
// 128 plus the number of the signal that ended it. The tree is gone when it
// returns. ErrEnded: its first process was killed.
func (t *Tree) Wait() (code int, err error) { return 1, errors.New("not yet") }

// Kill ends every process of the tree at once and waits until they are gone. It
// may be called more than once, before and after Wait.
func (t *Tree) Kill() {}
