//go:build !linux

package main

import "os/exec"

// dieWithUs does nothing: no other platform has it.
func dieWithUs(*exec.Cmd) {}
