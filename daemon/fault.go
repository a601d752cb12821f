package daemon

import (
	"errors"
	"fmt"
	"syscall"

	"subjectbroker/audit"
	"subjectbroker/proto/wire"
	"subjectbroker/vault"
)

// Fault is why the daemon cannot start or cannot go on: a code of contract §7
// and one line for the operator.
type Fault struct {
	Code wire.Reason
	Err  error
	Hint string // a command that mends it; may be empty
}

func (f *Fault) Error() string { return fmt.Sprintf("%s: %v", f.Code, f.Err) }
func (f *Fault) Unwrap() error { return f.Err }

func fault(code wire.Reason, format string, args ...any) *Fault {
	return &Fault{Code: code, Err: fmt.Errorf(format, args...)}
}

// codes maps the sentinels of vault and audit to start-up codes. The first that
// matches holds, so the narrower ones stand first.
var codes = []struct {
	sentinel error
	code     wire.Reason
}{
	{vault.ErrKeyFileUnsafe, wire.KeyFileUnsafe},
	{vault.ErrWrongKey, wire.WrongKey},
	{vault.ErrKeyNotAnswering, wire.KeyUnavailable},
	{vault.ErrKeyUnavailable, wire.KeyUnavailable},
	{vault.ErrMissing, wire.VaultMissing},
	{vault.ErrSchema, wire.SchemaUnsupported},
	{vault.ErrLocked, wire.VaultLocked},
	{vault.ErrInUse, wire.AlreadyRunning},
	{vault.ErrIntegrity, wire.IntegrityFailed},
	{vault.ErrReplaced, wire.VaultDamaged},
	{vault.ErrDamaged, wire.VaultDamaged},
	{vault.ErrRollback, wire.RollbackDetected},
	{vault.ErrFailed, wire.VaultDamaged},
	{audit.ErrUnsafe, wire.AuditUnsafe},
	{audit.ErrRollback, wire.RollbackDetected},
	{audit.ErrNotFound, wire.AuditDamaged},
	{audit.ErrDamaged, wire.AuditDamaged},
	{audit.ErrFailed, wire.AuditFailed},
	{audit.ErrTimeout, wire.AuditFailed},
}

// asFault gives an error, which is not nil, its start-up code; what has none is
// INTERNAL_ERROR.
func asFault(err error) *Fault {
	if f, ok := errors.AsType[*Fault](err); ok {
		return f
	}
	for _, c := range codes {
		if errors.Is(err, c.sentinel) {
			return &Fault{Code: c.code, Err: err}
		}
	}
	return &Fault{Code: wire.InternalError, Err: err}
}

// refusal turns an error inside a request into the one that crosses the socket.
// What is not known is an internal error; its text stays in the daemon.
func refusal(err error) *wire.Error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*wire.Error](err); ok {
		return e
	}
	switch {
	case errors.Is(err, vault.ErrLocked):
		return wire.Deny(wire.VaultLocked)
	case errors.Is(err, vault.ErrIntegrity), errors.Is(err, vault.ErrDamaged), errors.Is(err, vault.ErrFailed):
		return wire.Deny(wire.IntegrityFailed)
	case errors.Is(err, vault.ErrTooLarge):
		return wire.Deny(wire.ResourceTooLarge)
	case errors.Is(err, audit.ErrFailed), errors.Is(err, audit.ErrTimeout):
		return wire.Deny(wire.AuditFailed)
	}
	return wire.Deny(wire.InternalError)
}

// diskWords says to the operator what the system said about a disk; other errors
// stay as they are.
func diskWords(doing string, err error) error {
	errno, ok := errors.AsType[syscall.Errno](err)
	if _, typed := errors.AsType[*wire.Error](err); typed || !ok {
		return err
	}
	reason := refusal(err).Reason
	if errno == syscall.ENOSPC || errno == syscall.EDQUOT { // nothing is wrong with what is stored
		reason = wire.InternalError
	}
	return &wire.Error{Reason: reason, Message: fmt.Sprintf("%s: %v", doing, errno), Hint: "sbctl status"}
}
