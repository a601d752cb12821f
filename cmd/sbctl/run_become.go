package main

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
)

// become makes this process the command: there is nothing left to do for us.
// It returns only when that could not be done.
func become(doing string, argv []string) error {
	path, err := exec.LookPath(argv[0])
	if err != nil && !errors.Is(err, exec.ErrDot) {
		return notStarted(doing, err)
	}
	return notStarted(doing, syscall.Exec(path, argv, os.Environ()))
}
