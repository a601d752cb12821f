package mcpshim

import (
	"encoding/json"
	"errors"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"subjectbroker/proto/wire"
)

// publicError is what the client is told of err. Errors that were made for the
// client pass; the text of any other may hold what it was given, names of types
// or worse, so only its code counts.
func publicError(err error) *jsonrpc.Error {
	if made, ok := err.(*jsonrpc.Error); ok { //nolint:errorlint // wrapped ones carry text that was not made for the client
		if made.Data != nil && !json.Valid(made.Data) { // the SDK quotes a URI as Go does, which can be no JSON and then ends the session
			return &jsonrpc.Error{Code: made.Code, Message: made.Message}
		}
		return made
	}
	code := int64(jsonrpc.CodeInvalidRequest)
	if inner, ok := errors.AsType[*jsonrpc.Error](err); ok && inner.Code != 0 {
		code = inner.Code
	}
	text, known := map[int64]string{
		jsonrpc.CodeParseError:     "parse error",
		jsonrpc.CodeInvalidRequest: "invalid request",
		jsonrpc.CodeMethodNotFound: "method not found",
		jsonrpc.CodeInvalidParams:  "invalid params",
	}[code]
	if !known {
		code, text = jsonrpc.CodeInternalError, "internal error"
	}
	return &jsonrpc.Error{Code: code, Message: text}
}

// askAPerson is the one next step: an agent runs what it reads.
const askAPerson = "Do not retry through another connection; ask the person who runs this agent."

// sentences say what a reason means to an agent.
var sentences = map[wire.Reason]string{
	wire.AccessDenied:            "This connection may not have that.",
	wire.InvalidArgument:         "The request is malformed.",
	wire.ResourceChanged:         "The resource changed since a person last approved it.",
	wire.ResourceTooLarge:        "The resource is too large to hand out.",
	wire.ResourceEncodingInvalid: "The resource is not what it was declared to be.",
	wire.ApprovalPending:         "A person has not answered yet.",
	wire.ApprovalDenied:          "A person must approve this, and none did.",
	wire.ApprovalExpired:         "A person must approve this, and none did in time.",
	wire.RateLimited:             "Too many requests, or too many that were refused; wait before asking again.",
	wire.PolicyBlocked:           "A policy blocks this.",
	wire.RunEnded:                "The session with the broker has ended; another is being opened.",
	wire.AuditFailed:             "The broker cannot write its log, so it hands out nothing.",
	wire.VaultLocked:             "The broker is locked.",
	wire.IntegrityFailed:         "What is stored failed its integrity check.",
	wire.PolicyUnavailable:       "The broker cannot read its policy.",
	wire.BrokerUnavailable:       "The broker cannot be reached.",
	wire.PlatformUnsupported:     "The broker does not support this connection; it may need this agent to be restarted.",
	wire.TenantOutOfScope:        "The request names something outside this connection's scope.",
	wire.ServerUnavailable:       "The server of this tool could not be started or reached.",
}

// public maps what the worker plane reports to a reason that is in the public
// list; trouble with the socket is the operator's business.
func public(err error) wire.Reason {
	reason := wire.FromError(err).Reason
	if _, known := sentences[reason]; known {
		return reason
	}
	if reason == wire.SocketUnsafe || reason == wire.ConfigInvalid {
		return wire.BrokerUnavailable
	}
	return wire.InternalError
}

// refusedWith is what err is to an agent: a public reason, and what the daemon says that
// was made for agents.
func refusedWith(err error) *wire.Error {
	typed := wire.FromError(err)
	return &wire.Error{
		Reason: public(err), Message: typed.Message, Argument: typed.Argument,
		Tool: typed.Tool, Requested: typed.Requested, Allowed: typed.Allowed,
	}
}

// protocolError is a refusal where MCP has no result to put it in.
func protocolError(reason wire.Reason) *jsonrpc.Error {
	code := int64(jsonrpc.CodeInternalError)
	switch reason {
	case wire.AccessDenied, wire.InvalidArgument:
		code = jsonrpc.CodeInvalidParams // what MCP says for a resource that is not there
	}
	sentence, known := sentences[reason]
	if !known {
		reason, sentence = wire.InternalError, "Something went wrong inside the broker."
	}
	return &jsonrpc.Error{Code: code, Message: string(reason) + ": " + sentence + " " + askAPerson}
}

// codeWaits is the code of an error that says that a person has to answer first.
const codeWaits = -32001

// waitsFor is the id of the request to a person that an error is about; empty: it is
// about none.
func waitsFor(err error) string {
	if err == nil {
		return ""
	}
	if e := wire.FromError(err); e.Reason == wire.ApprovalPending {
		return e.Approval
	}
	return ""
}

// waitingError says that a person has to answer a request first. The same request
// made again meets the answer.
func waitingError(id string) *jsonrpc.Error {
	return &jsonrpc.Error{
		Code:    codeWaits,
		Message: string(wire.ApprovalPending) + " id=" + id + ": " + sentences[wire.ApprovalPending] + " Ask the person who runs this agent to answer it, then make the same request again.",
	}
}

// decision is the word that goes with a reason in a tool's result.
func decision(reason wire.Reason) string {
	switch reason {
	case wire.Allowed:
		return "allow"
	case wire.ApprovalPending:
		return "pending"
	case wire.AccessDenied, wire.InvalidArgument, wire.ApprovalDenied, wire.ApprovalExpired, wire.RateLimited, wire.PolicyBlocked,
		wire.RunEnded, wire.VaultLocked, wire.TenantOutOfScope:
		return "deny"
	}
	return "error"
}

// Refusal is what an agent is told of a call that nobody judged, for an error of the
// worker plane: its public reason, and the words that the daemon has for it too.
func Refusal(err error) (reason wire.Reason, sentence string) {
	refused := wire.Deny(public(err))
	if refused.Reason == wire.ResourceTooLarge {
		return refused.Reason, "the arguments are too large."
	}
	return refused.Reason, refused.Message + "."
}
