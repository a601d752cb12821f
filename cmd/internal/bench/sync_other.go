//go:build !linux

package main

import "os"

// syncData waits until what was written is on the disk.
func syncData(file *os.File) error { return file.Sync() }
