package main

import (
	"bytes"
	"context"
	"fmt"
	"path"
	"slices"
	"sync/atomic"

	"google.golang.org/grpc/stats"

	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// fakeAuth is how a fake operator is known: a passphrase that compares, and the
// connections that gave it.
type fakeAuth struct {
	passphrase []byte
	sessions   map[uint64]bool
	wait       uint64   // what the next try has to wait, in milliseconds
	needs      []string // methods that need a session while a passphrase is set
	uid        bool     // the caller is an operator of another uid
	tried      int
}

func newFakeAuth() *fakeAuth {
	return &fakeAuth{sessions: map[uint64]bool{}, needs: []string{"CreateGrants", "GetSecret", "DecideApproval"}}
}

// connections numbers the connections of a fake's server.
type connections struct{ last atomic.Uint64 }

type connectionKey struct{}

func (c *connections) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context {
	return context.WithValue(ctx, connectionKey{}, c.last.Add(1))
}
func (*connections) HandleConn(context.Context, stats.ConnStats)                     {}
func (*connections) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }
func (*connections) HandleRPC(context.Context, stats.RPCStats)                       {}

func connectionOf(ctx context.Context) uint64 {
	n, _ := ctx.Value(connectionKey{}).(uint64)
	return n
}

// judge refuses a method that needs a session, and has none.
func (f *fakeAuth) judge(ctx context.Context, method string) error {
	if len(f.passphrase) == 0 || f.uid || f.sessions[connectionOf(ctx)] || !slices.Contains(f.needs, path.Base(method)) {
		return nil
	}
	return &wire.Error{
		Reason: wire.AccessDenied, Message: "the operator's passphrase is needed for this", Cause: "OPERATOR_AUTH_REQUIRED",
		Hint: "sbctl operator unlock",
	}
}

func (f *fakeOperator) GetOperator(ctx context.Context, _ *operatorv1.GetOperatorRequest) (*operatorv1.GetOperatorResponse, error) {
	session := f.auth.sessions[connectionOf(ctx)]
	return &operatorv1.GetOperatorResponse{
		Passphrase: len(f.auth.passphrase) > 0, Session: session, Authenticated: session || f.auth.uid, Guard: true,
		Operators: []uint32{4_000_000_001}, Sessions: uint32(len(f.auth.sessions)), WaitMs: f.auth.wait,
	}, nil
}

func (f *fakeAuth) try(passphrase []byte) error {
	f.tried++
	if f.wait > 0 {
		return &wire.Error{Reason: wire.RateLimited, Message: "too many wrong passphrases: wait a minute"}
	}
	if !bytes.Equal(passphrase, f.passphrase) {
		return &wire.Error{Reason: wire.AccessDenied, Message: "access denied", Cause: "OPERATOR_AUTH_FAILED"}
	}
	return nil
}

func (f *fakeOperator) OpenSession(ctx context.Context, q *operatorv1.OpenSessionRequest) (*operatorv1.OpenSessionResponse, error) {
	if err := f.auth.try(q.GetPassphrase()); err != nil {
		return nil, err
	}
	f.auth.sessions[connectionOf(ctx)] = true
	return &operatorv1.OpenSessionResponse{SessionId: fmt.Sprintf("session%d", connectionOf(ctx)), Until: fakeNow}, nil
}

func (f *fakeOperator) CloseSession(ctx context.Context, _ *operatorv1.CloseSessionRequest) (*operatorv1.CloseSessionResponse, error) {
	delete(f.auth.sessions, connectionOf(ctx))
	return &operatorv1.CloseSessionResponse{}, nil
}

func (f *fakeOperator) SetOperatorPassphrase(ctx context.Context, q *operatorv1.SetOperatorPassphraseRequest) (*operatorv1.SetOperatorPassphraseResponse, error) {
	if len(f.auth.passphrase) > 0 && !f.auth.sessions[connectionOf(ctx)] {
		if err := f.auth.try(q.GetPresent()); err != nil {
			return nil, err
		}
	}
	f.auth.passphrase, f.auth.sessions = bytes.Clone(q.GetPassphrase()), map[uint64]bool{}
	return &operatorv1.SetOperatorPassphraseResponse{Passphrase: len(q.GetPassphrase()) > 0}, nil
}
