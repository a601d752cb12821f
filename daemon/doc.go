// Package daemon connects the parts of sbd: it guards the two sockets, binds
// runs to connections, and owns the one path on which content leaves the
// trusted plane.
//
// # What it protects
//
// Content and policy, from every process that is not the daemon. A subject is
// decided once per connection and never by a request. Whatever is released or
// refused has a durable audit entry first; what cannot be recorded is answered
// AUDIT_FAILED, whatever the decision was.
//
// # How it is laid out
//
//	daemon.go      start, serve, stop               config.go    config.yaml
//	home.go        the home and its lock            sockets.go   the two listeners
//	harden.go      environment, memory, cores       clock.go     wall clock, boot clock
//	state.go       what is in force, in memory      load.go      read from the vault, reconciled with the log
//	unlock.go      keys in, keys out                tend.go      what nobody asks for
//	mutate.go      the one way to change it         release.go   the one way out
//	identify.go    who asks, before anything else   budget.go    denials are rationed
//	runs.go        runs bound to connections        hub.go       who is told of changes
//	serve.go       the interceptors, as one list    gate.go      connections, and calls to their end
//	accounts.go    every call has its entry         wipe.go      buffers that held content
//	unread.go      answers nobody takes yet         pace.go      clients that do not read
//	broker.go      the worker plane's service       operator*.go the operator's service
//	apply.go       documents                        head.go      the head outside the home
//	agentkeys*.go  keys, and runs that they open    tenants*.go  tenants, and the scope of a request
//	knowledge*.go  the memory: see package memory   hosts*.go    servers that the broker runs
//	relay*.go      their tools                      approvals*.go  persons who are asked
//
// With no daemon running, the same code serves sbd's other commands:
//
//	offline.go     what they share                  examine.go   what is found, changing nothing
//	check.go       verifying, with the proof        diagnose.go  what a recovery will do
//	restore.go     a home from a backup             recover.go   accepting what a start refuses
//	forget.go      the stored slot keys go
//
// # Order of locks
//
// unlocking, then changing.mu, then the vault's own, then the log's mutex, then
// runs.mu, then state.mu, then a run's counters; hub.mu, then a watcher's. A
// mutation waits for the log while it holds changing.mu and the vault's write
// transaction, so the log never waits for either. Nothing waits for the log
// while it holds runs.mu or state.mu. The memory's knowledge.mu is never taken
// under state.mu; what a change under that means for the index is noted under
// knowledge.notes, which is held for a moment only.
package daemon
