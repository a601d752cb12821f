package daemon

import (
	"context"
	"errors"

	hostv1 "subjectbroker/proto/subjectbroker/host/v1"
)

// hosts are the processes of hosted servers: sb-mcp host, one for each server and
// subject that somebody uses. They outlive no run that uses them, no lock of the
// vault and no daemon.
type hosts struct {
	d *Daemon
}

// hostKey names one process.
type hostKey struct{ subject, server string }

// hostCall is a call that was judged, on its way to a server.
type hostCall struct {
	run        *run   // under which it is made: whose right to use the server's secrets counts
	tool       string // exact bytes
	pin        string // hash that the tool was judged by
	args, meta []byte // JSON objects; meta may be empty. call does not keep them
	progress   bool   // it is wanted
	// answer takes the pieces of the answer in order, the last with more false. Its
	// error ends the call; it is not called after call has returned.
	answer func(piece []byte, more bool, end hostv1.End) error
	// onProgress takes the parameters of notifications; nil: they are dropped. It is
	// not called after call has returned, nor while answer runs.
	onProgress func(params []byte)
}

// Errors of hosts, in words for the operator.
var (
	// errHostRefused: the run may not use the server now: a secret is missing or
	// not granted, or it was killed by policy. The agent gets the plain denial.
	errHostRefused = errors.New("the server may not be used")
	// errHostGone: the server could not be reached, or died before it answered.
	errHostGone = errors.New("the server cannot be reached")
	// errHostChanged: the tool is not what was trusted any more. The agent gets the
	// plain denial.
	errHostChanged = errors.New("the tool is not what was trusted")
)

func newHosts(d *Daemon) *hosts { return &hosts{d: d} }

// ready sees to it that the server runs for the run's subject, and that it offers
// tool as it was pinned; with an empty tool, only that it runs. It belongs before
// the entry of a call, where content is opened: what it refuses (errHostRefused,
// errHostChanged, errHostGone) was not forwarded. It waits for a start as long as
// ctx lets it, at most 30 s.
func (h *hosts) ready(ctx context.Context, r *run, server, tool string) error {
	return errHostGone
}

// call forwards one call, after its entry is durable, and passes on the answer. It
// starts the server when it does not run any more. It returns nil after the last
// piece was taken; an answer of END_TRANSPORT, without a piece, when the server
// died meanwhile. When ctx ends the server is told that nobody waits, and call
// returns ctx's error at once. The other errors, which mean that the server never
// saw the call, are those of ready.
func (h *hosts) call(ctx context.Context, k hostKey, c hostCall) error {
	return errHostGone
}

// offerOf returns what the process of k offers, or else what the server was last
// seen to offer; nil when nobody knows.
func (h *hosts) offerOf(k hostKey) *offer { return nil }

// killByPolicy stops the process of k, which nothing starts again until
// RestartServer. policy is the policy's name, for the entry.
func (h *hosts) killByPolicy(k hostKey, policy string) {}

// killed reports whether policy stopped the process of k.
func (h *hosts) killed(k hostKey) bool { return false }
