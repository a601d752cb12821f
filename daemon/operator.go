package daemon

import (
	"context"
	"errors"
	"fmt"
	"time"

	"subjectbroker/audit"
	"subjectbroker/grants"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
	"subjectbroker/vault"
)

// operator is the operator's service: each method checks its input, plans a
// change or reads what is in force, and leaves the rest to mutate.go.
type operator struct {
	operatorv1.UnimplementedOperatorServiceServer
	d *Daemon
}

// refuse is an error about the operator's own input, in words for the operator.
func refuse(format string, args ...any) *wire.Error {
	return &wire.Error{Reason: wire.InvalidArgument, Message: fmt.Sprintf(format, args...)}
}

// entry is the part of an entry that every act of the operator has.
func (o operator) entry(ctx context.Context, kind audit.Kind) *audit.Entry {
	return &audit.Entry{
		Kind: kind, SessionID: o.d.sessions.of(callerOf(ctx), o.d.clock), Peer: peerEntry(callerOf(ctx)), Decision: decisionAllow, ReasonCode: string(wire.Allowed),
	}
}

// shown is what can be repeated of a name or id that was asked for: a malformed
// one may hold what a terminal acts on.
func shown(name string) string {
	if grants.CheckName(name) != nil {
		return "that"
	}
	return name
}

func millis(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

func fromMillis(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}

// checkName refuses a malformed name in words.
func checkName(what, name string) error {
	if err := grants.CheckName(name); err != nil {
		return refuse("%s: %v", what, err)
	}
	return nil
}

func checkNote(note string) error {
	if err := grants.CheckNote(note); err != nil {
		return refuse("note: %v", err)
	}
	return nil
}

// knownSubject returns a subject that must exist.
func (s *state) knownSubject(name string) (grants.Subject, error) {
	subject, ok := s.set.Subject(name)
	if !ok {
		return grants.Subject{}, unknown(wire.UnknownSubject, name)
	}
	return subject, nil
}

// unknown refuses a name of nothing. What can be repeated of it goes along, for
// the client to find the name that was meant.
func unknown(what, name string) *wire.Error {
	refusal := refuse("no %s is named %s", what, shown(name))
	refusal.Unknown = what
	if grants.CheckName(name) == nil {
		refusal.Name = name
	}
	return refusal
}

// storeWords turns the vault's refusals of the operator's input into words.
func storeWords(name string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, vault.ErrNotFound):
		return unknown(wire.UnknownResource, name)
	case errors.Is(err, vault.ErrNoContent):
		return refuse("%s has no such content", name)
	case errors.Is(err, vault.ErrKindChanged):
		return refuse("%s exists with another kind or type, and a resource keeps its own", name)
	case errors.Is(err, vault.ErrTooLarge):
		return &wire.Error{Reason: wire.ResourceTooLarge, Message: fmt.Sprintf("%s is larger than the content limit", name)}
	case errors.Is(err, vault.ErrInvalid):
		return refuse("%s: %v", name, err)
	}
	return err
}
