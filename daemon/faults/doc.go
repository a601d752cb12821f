// Package faults breaks the machine under a running SubjectBroker and looks at
// what is left. It holds tests only.
//
// # What it is about
//
// The release build of sbd runs as a process of its own, is asked over its real
// sockets, and is killed, cut from its disk, refused by its disk, frozen,
// starved, changed under its feet and lied to. What counts is what the clients
// wrote down themselves: an answer that was given stands afterwards, a change
// that was not answered stands whole or not at all, nothing was released
// without its entry in the log, and nothing that was changed on the disk is
// served as if it were whole. What the daemon says of itself proves nothing.
//
// # How it is laid out
//
//	score.go      counts of what was tried, and of what was lost
//	world.go      a daemon on a disk of its own, and its end and return
//	disk.go       an ext4 in a file: cut, frozen, full, read-only
//	strace.go     faults at system calls of a running process
//	stepper.go    a kill before the n-th call that changes the disk
//	verbs.go      every RPC that changes something, as a table; toolverbs.go has those about tools
//	crowd.go      clients that read and write at once, and remember
//	toolserver.go an MCP server that writes down what it did, and agents that call it
//
// (all of them _test.go), and one file for each kind of fault beside them.
//
// Each kind has a control, which shows that the fault bites: the same run with
// what protects from it taken away has to lose, or the injector has to report
// that it struck.
//
// # How to run it
//
//	make faults            eight to nine minutes; needs root, strace, mkfs.ext4, fsfreeze, dbus-daemon, gnome-keyring-daemon
//	make soak SOAK=30m     the scenarios that draw moments at random, for so long
//
// A scenario that cannot run here is left out by name, as everywhere in this
// project (see daemontest.LeaveOut). Each prints one line that begins with
// "figure: "; the last one sums up. A new RPC of the operator's service that is
// neither in the tables of verbs nor said to change nothing fails TestVerbsAreAll.
//
// # What it does not do
//
// A file system that is shut down loses what was not synced, but its device
// neither reorders nor tears what was handed to it: nothing here simulates a
// disk that lies about its own cache. The machine's clock is never set.
package faults
