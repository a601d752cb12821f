// Package wire holds what both ends of the two sockets must agree on beside the
// messages: the API number, the public reason codes, the one mapping from
// reason to gRPC status, and how an error crosses the socket.
//
// What gets lost: a Go error is not sent. Only the reason code, one public
// sentence, the id of a request to a person and, on the operator socket, cause, hint and
// an unknown name travel. Text of inner errors stays in the daemon.
package wire

import (
	"context"
	"errors"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// API numbers of the broker contract: API is spoken, MinAPI still served. Calls
// of tools are judged from 2 on.
const (
	API    = 2
	MinAPI = 1
)

// Domain is the ErrorInfo domain of every error on the two sockets.
const Domain = "subject-broker"

// HardMaxContent is the largest content that any configuration may allow, in
// bytes; MaxMessage leaves room for it and its framing in one gRPC message.
const (
	HardMaxContent    = 4 << 20
	DefaultMaxContent = 1 << 20
	MaxMessage        = HardMaxContent + 64<<10
)

// Reason is a public reason code. The list is closed and append-only.
type Reason string

// Public reason codes.
const (
	Allowed                 Reason = "ALLOWED"
	AccessDenied            Reason = "ACCESS_DENIED"
	InvalidArgument         Reason = "INVALID_ARGUMENT"
	ResourceChanged         Reason = "RESOURCE_CHANGED"
	ResourceTooLarge        Reason = "RESOURCE_TOO_LARGE"
	ResourceEncodingInvalid Reason = "RESOURCE_ENCODING_INVALID"
	ApprovalPending         Reason = "APPROVAL_PENDING"
	ApprovalDenied          Reason = "APPROVAL_DENIED"
	ApprovalExpired         Reason = "APPROVAL_EXPIRED"
	RateLimited             Reason = "RATE_LIMITED"
	PolicyBlocked           Reason = "POLICY_BLOCKED"
	RunEnded                Reason = "RUN_ENDED"
	AuditFailed             Reason = "AUDIT_FAILED"
	VaultLocked             Reason = "VAULT_LOCKED"
	IntegrityFailed         Reason = "INTEGRITY_FAILED"
	PolicyUnavailable       Reason = "POLICY_UNAVAILABLE"
	BrokerUnavailable       Reason = "BROKER_UNAVAILABLE"
	PlatformUnsupported     Reason = "PLATFORM_UNSUPPORTED"
	InternalError           Reason = "INTERNAL_ERROR"
	TenantOutOfScope        Reason = "TENANT_OUT_OF_SCOPE"
	ServerUnavailable       Reason = "SERVER_UNAVAILABLE"
)

// statuses is the one mapping from reason to gRPC status code, with the public
// sentence that goes with it. A denial is the same sentence whatever its cause.
var statuses = map[Reason]struct {
	code    codes.Code
	message string
}{
	AccessDenied:            {codes.PermissionDenied, "access denied"},
	InvalidArgument:         {codes.InvalidArgument, "the request is malformed"},
	ResourceChanged:         {codes.FailedPrecondition, "the resource changed since it was registered"},
	ResourceTooLarge:        {codes.OutOfRange, "the resource is larger than the content limit"},
	ResourceEncodingInvalid: {codes.FailedPrecondition, "the resource is not valid in its declared encoding"},
	ApprovalPending:         {codes.FailedPrecondition, "a person has not answered yet"},
	ApprovalDenied:          {codes.PermissionDenied, "a person must approve this, and none did"},
	ApprovalExpired:         {codes.PermissionDenied, "the request for approval ended unanswered"},
	RateLimited:             {codes.ResourceExhausted, "too many requests"},
	PolicyBlocked:           {codes.PermissionDenied, "blocked by policy"},
	RunEnded:                {codes.Unauthenticated, "the run has ended"},
	AuditFailed:             {codes.Unavailable, "the audit log cannot be written"},
	VaultLocked:             {codes.Unavailable, "the vault is locked"},
	IntegrityFailed:         {codes.DataLoss, "stored data failed its integrity check"},
	PolicyUnavailable:       {codes.Unavailable, "the policy cannot be read"},
	BrokerUnavailable:       {codes.Unavailable, "the broker cannot be reached"},
	PlatformUnsupported:     {codes.Unimplemented, "not supported on this platform"},
	InternalError:           {codes.Internal, "internal error"},
	TenantOutOfScope:        {codes.PermissionDenied, "a tenant outside the granted scope was named"},
	ServerUnavailable:       {codes.Unavailable, "the server of this tool could not be started or reached"},
}

// Error is the one typed error that crosses a socket.
type Error struct {
	Reason  Reason
	Message string // public sentence
	Cause   string // operator socket only
	Hint    string // operator socket only: a command that mends it

	// Auth says what is wrong with an agent key that was presented.
	Auth Auth

	// Approval is the id of the request to a person that ApprovalPending is about.
	Approval string

	// Argument is set with InvalidArgument, and with ResourceChanged, where an agent can
	// mend it: which one is no good, or not any more. Message says then what it has to
	// be, or what to do, and repeats nothing of it.
	Argument string

	// Tool, Requested and Allowed are set with TenantOutOfScope: the tool, the tenants
	// that were named and are not granted, and those of the caller's own that are, with
	// commas between them.
	Tool      string
	Requested string
	Allowed   string

	// Operator socket only: what was named and does not exist, UnknownResource,
	// UnknownSubject or UnknownTenant, and the name.
	Unknown string
	Name    string
}

// Words of Error.Unknown.
const (
	UnknownResource = "resource"
	UnknownSubject  = "subject"
	UnknownTenant   = "tenant"
)

// Auth says what is wrong with an agent key. The list is closed and public.
type Auth string

// What can be wrong with a key. A key whose subject was disabled or removed is
// revoked.
const (
	MissingToken   Auth = "missing_token"
	MalformedToken Auth = "malformed_token"
	UnknownKey     Auth = "unknown_key"
	RevokedKey     Auth = "revoked_key"
	ExpiredKey     Auth = "expired_key"
)

func (e *Error) Error() string { return e.Message }

// GRPCStatus makes grpc send e with its ErrorInfo.
func (e *Error) GRPCStatus() *status.Status {
	known, ok := statuses[e.Reason]
	if !ok {
		known.code = codes.FailedPrecondition
	}
	info := &errdetails.ErrorInfo{Domain: Domain, Reason: string(e.Reason)}
	for key, value := range map[string]string{
		"cause": e.Cause, "hint": e.Hint, "unknown": e.Unknown, "name": e.Name, "approval": e.Approval, "auth": string(e.Auth),
		"tool": e.Tool, "requested": e.Requested, "allowed": e.Allowed, "argument": e.Argument,
	} {
		if value == "" {
			continue
		}
		if info.Metadata == nil {
			info.Metadata = map[string]string{}
		}
		info.Metadata[key] = value
	}
	plain := status.New(known.code, e.Message)
	detailed, err := plain.WithDetails(info)
	if err != nil {
		return plain
	}
	return detailed
}

// Deny is the error of reason, in its public words and nothing else.
func Deny(reason Reason) *Error {
	known, ok := statuses[reason]
	if !ok {
		return &Error{Reason: InternalError, Message: statuses[InternalError].message}
	}
	return &Error{Reason: reason, Message: known.message}
}

// Pending is the error of a request that a person was asked for, in its public
// words. It begins with the id, so that whoever shows nothing else shows that; an
// empty id leaves it out.
func Pending(id string) *Error {
	e := Deny(ApprovalPending)
	if id != "" {
		e.Approval, e.Message = id, string(ApprovalPending)+" id="+id+": "+e.Message
	}
	return e
}

// Unauthenticated is the error of a key that is not good, in its public words.
func Unauthenticated(auth Auth) *Error {
	e := Deny(AccessDenied)
	e.Auth = auth
	return e
}

// Invalid is the error of a request with an argument that is no good: message says
// what it has to be, for agents, and repeats nothing of what it is.
func Invalid(argument, message string) *Error {
	return &Error{Reason: InvalidArgument, Argument: argument, Message: message}
}

// Overtaken is the error of a request with an argument that was good until somebody
// else did the like: message says what to do, for agents, and repeats nothing of it.
func Overtaken(argument, message string) *Error {
	return &Error{Reason: ResourceChanged, Argument: argument, Message: message}
}

// OutOfScope is the error of a request that names tenants beyond the granted scope:
// it says all that were named, and which are the caller's own. Names have no commas.
func OutOfScope(tool string, requested, allowed []string) *Error {
	e := Deny(TenantOutOfScope)
	e.Tool, e.Requested, e.Allowed = tool, strings.Join(requested, ","), strings.Join(allowed, ",")
	return e
}

// FromError reads the typed error out of what a client call returned. An error
// that carries no ErrorInfo of ours means that the daemon was not reached, or
// did not answer in time: BrokerUnavailable. It returns nil for nil.
func FromError(err error) *Error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	st, ok := status.FromError(err)
	if !ok {
		if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
			return Deny(BrokerUnavailable)
		}
		return &Error{Reason: BrokerUnavailable, Message: err.Error()}
	}
	for _, detail := range st.Details() {
		info, ok := detail.(*errdetails.ErrorInfo)
		if !ok || info.Domain != Domain {
			continue
		}
		return &Error{
			Reason: Reason(info.Reason), Message: st.Message(), Cause: info.Metadata["cause"], Hint: info.Metadata["hint"],
			Unknown: info.Metadata["unknown"], Name: info.Metadata["name"], Approval: info.Metadata["approval"], Auth: Auth(info.Metadata["auth"]),
			Tool: info.Metadata["tool"], Requested: info.Metadata["requested"], Allowed: info.Metadata["allowed"], Argument: info.Metadata["argument"],
		}
	}
	switch st.Code() {
	case codes.InvalidArgument, codes.OutOfRange:
		return Deny(InvalidArgument)
	case codes.ResourceExhausted:
		return Deny(ResourceTooLarge)
	case codes.Unimplemented, codes.Internal:
		return &Error{Reason: InternalError, Message: st.Message()}
	}
	return &Error{Reason: BrokerUnavailable, Message: st.Message()}
}

// Exit codes of all three programs.
const (
	ExitDone        = 0
	ExitFailed      = 1
	ExitUsage       = 2
	ExitDenied      = 3
	ExitUnavailable = 4
	ExitIntegrity   = 5
	ExitBusy        = 6
)

// exits maps reasons and start-up codes to exit codes; what is absent is ExitFailed.
var exits = map[Reason]int{
	Allowed:           ExitDone,
	AccessDenied:      ExitDenied,
	ApprovalPending:   ExitDenied,
	ApprovalDenied:    ExitDenied,
	ApprovalExpired:   ExitDenied,
	PolicyBlocked:     ExitDenied,
	RateLimited:       ExitDenied,
	TenantOutOfScope:  ExitDenied,
	InvalidArgument:   ExitUsage,
	ResourceTooLarge:  ExitUsage,
	RunEnded:          ExitFailed,
	VaultLocked:       ExitUnavailable,
	BrokerUnavailable: ExitUnavailable,
	ServerUnavailable: ExitUnavailable,
	IntegrityFailed:   ExitIntegrity,

	KeyUnavailable:    ExitUnavailable,
	WrongKey:          ExitUnavailable,
	KeyFileUnsafe:     ExitUnavailable,
	VaultMissing:      ExitIntegrity,
	VaultDamaged:      ExitIntegrity,
	RollbackDetected:  ExitIntegrity,
	AuditDamaged:      ExitIntegrity,
	SchemaUnsupported: ExitIntegrity,
	AlreadyRunning:    ExitBusy,
	ConfigInvalid:     ExitUsage,
	HomeUnsafe:        ExitUsage,
	SocketUnsafe:      ExitUsage,
	AuditUnsafe:       ExitUsage,
}

// Start-up and storage codes, printed as `sbd: CODE: one line`.
const (
	KeyUnavailable    Reason = "KEY_UNAVAILABLE"
	WrongKey          Reason = "WRONG_KEY"
	KeyFileUnsafe     Reason = "KEY_FILE_UNSAFE"
	VaultMissing      Reason = "VAULT_MISSING"
	VaultDamaged      Reason = "VAULT_DAMAGED"
	RollbackDetected  Reason = "ROLLBACK_DETECTED"
	AuditUnsafe       Reason = "AUDIT_UNSAFE"
	AuditDamaged      Reason = "AUDIT_DAMAGED"
	HomeUnsafe        Reason = "HOME_UNSAFE"
	SocketUnsafe      Reason = "SOCKET_UNSAFE"
	AlreadyRunning    Reason = "ALREADY_RUNNING"
	SchemaUnsupported Reason = "SCHEMA_UNSUPPORTED"
	ConfigInvalid     Reason = "CONFIG_INVALID"
	ClockRollback     Reason = "CLOCK_ROLLBACK"
)

// Exit is the exit code that goes with a reason or start-up code.
func Exit(reason Reason) int {
	if code, ok := exits[reason]; ok {
		return code
	}
	return ExitFailed
}
