//go:build !linux

package main

import (
	"context"
	"os"
)

// keepClean returns what removes everything that was made.
func (c *conformance) keepClean() (remove func(), err error) {
	return func() { _ = os.RemoveAll(c.dir) }, nil
}

// harnessLayer says that there is no launch on this platform.
func (c *conformance) harnessLayer(context.Context) (supported bool, err error) {
	c.note(layerHarness, "launch", checkUnsupported, "no boundary is provided on this platform")
	return false, nil
}

type attemptCmd struct{}

// Run does nothing here.
func (attemptCmd) Run() error { return nil }
