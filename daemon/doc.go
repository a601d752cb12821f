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
//	daemon.go      start, serve, stop
//	home.go        the home and its lock            sockets.go   the two listeners
//	harden.go      environment, memory, cores       clock.go     wall clock, boot clock
//	state.go       what is in force, in memory      load.go      read from the vault, reconciled with the log
//	mutate.go      the one way to change it         release.go   the one way out
//	runs.go        runs bound to connections        budget.go    denials are rationed
//	hub.go         who is told of changes           serve.go     the interceptors, as one list
//	broker.go      the worker plane's service       operator*.go the operator's service
//
// # Order of locks
//
// unlocking, then changing.mu, then the vault's own, then the log's mutex, then
// runs.mu, then state.mu, then a run's counters; hub.mu, then a watcher's. A
// mutation waits for the log while it holds changing.mu and the vault's write
// transaction, so the log never waits for either. Nothing waits for the log
// while it holds runs.mu or state.mu.
package daemon
