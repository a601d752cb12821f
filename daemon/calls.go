package daemon

import (
	"context"

	"subjectbroker/proto/wire"
)

// toolCall is one message of a client to a server, as it is judged.
type toolCall struct {
	server string
	hosted bool   // the daemon has the server run and forwards
	method string // MCP method; empty: a call of a tool
	tool   string
	args   []byte // one JSON object, as it will be forwarded; nil: none were given
	// pin is what the server says now of the tool on a stream that is wrapped; nil:
	// what is trusted is all that is known.
	pin func(tool string) (pin string, listed bool)
	// waiting is called, at most once, when a person is asked; nil: nobody is told.
	waiting func(approvalID string)
}

// judged is what came of a call. Where it may not be forwarded, what is left of it
// is what the agent is told.
type judged struct {
	forward    bool
	code       int32 // JSON-RPC error code; 0: the answer is a tool result
	message    string
	next       string // the end of message
	policy     string // that decided
	action     string // block, kill, request_approval
	reason     wire.Reason
	approvalID string
	approved   bool // a person approved it: its answer is wanted
	seq        uint64
	answer     []byte // of the same call, which ran before; nil: none
	answerErr  bool   // that is an error object
	done       *forwarded
}

// forwarded is a call on its way, until settle.
type forwarded struct{}

// callAsk is what a call of a tool adds to an ask. The zero value refuses.
//
// release calls judge after the grants have allowed or gated, take under the log's
// mutex after everything else was rechecked, tell for the entry, and giveBack when
// the entry is certainly not in the log.
type callAsk struct{}

// judgeCall is the release path of calls of tools: it judges, waits for a person
// where one has to approve, and returns when the entry is durable, or in its place
// where the policy groups. The error, if any, is a *wire.Error and means that the
// stream cannot go on.
func (d *Daemon) judgeCall(ctx context.Context, r *run, c toolCall) (judged, error) {
	return judged{}, wire.Deny(wire.PolicyUnavailable)
}
