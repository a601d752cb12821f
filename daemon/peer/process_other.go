//go:build !linux

package peer

import "context"

func lookup(int32) (Process, error) { return Process{}, ErrPlatform }

func kin(int32) (parent, session int32, err error) { return 0, 0, ErrPlatform }

func ancestry(int32, func(Process) bool) ([]Process, error) { return nil, ErrPlatform }

// Held is a process that no later one passes for. There is none here.
type Held struct{ Process }

// Hold fails with ErrPlatform.
func Hold(int32) (Held, error) { return Held{}, ErrPlatform }

// Alive is false.
func (Held) Alive() bool { return false }

// Wait is true: there is nothing to wait for.
func (Held) Wait(context.Context) bool { return true }

// Kill fails with ErrPlatform.
func (Held) Kill() error { return ErrPlatform }

// Close does nothing.
func (*Held) Close() {}
