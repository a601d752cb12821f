//go:build !linux

package launch

import (
	"context"
	"syscall"
)

// unsupported is the answer to everything on this platform.
func unsupported() error {
	return &Unsupported{Piece: "launches, which need Linux namespaces"}
}

// Tree cannot exist on this platform.
type Tree struct{}

// Main has nothing to recognise here.
func Main([]string) (handled bool, code int) { return false, 0 }

// Check says that there are no launches here.
func Check(context.Context, Config) error { return unsupported() }

// Start says that there are no launches here.
func Start(context.Context, Config) (*Tree, error) { return nil, unsupported() }

// Describe says that there are no launches here.
func Describe(Config) ([]Rule, error) { return nil, unsupported() }

// Inside is false: there are no launches here.
func Inside() (Marker, bool) { return Marker{}, false }

// PID is 0.
func (*Tree) PID() int { return 0 }

// Go says that there are no launches here.
func (*Tree) Go(Command) error { return unsupported() }

// Wait says that there are no launches here.
func (*Tree) Wait() (code int, err error) { return 1, unsupported() }

// Died is 0.
func (*Tree) Died() syscall.Signal { return 0 }

// Signal does nothing.
func (*Tree) Signal(syscall.Signal) {}

// DieOf does nothing.
func (*Tree) DieOf(syscall.Signal) {}

// Kill does nothing.
func (*Tree) Kill() {}
