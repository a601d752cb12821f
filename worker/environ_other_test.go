//go:build !linux

package worker_test

// dumpable says what is promised, which is nothing here.
func dumpable() string { return "dumpable 0, core 0 of 0" }

func coreAllowed() uint64 { return 0 }
