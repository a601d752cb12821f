//go:build !linux

package main

import "errors"

// newDesktop says that there is none: no other platform has these notifications.
func newDesktop(bool, *app) (teller, error) {
	return nil, errors.New("desktop notifications are there on Linux only: use --webhook")
}
