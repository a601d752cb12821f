package strict

import (
	"bytes"
	"errors"
	"unicode/utf8"
)

// Codes of JSON-RPC.
const (
	CodeParse          = -32700
	CodeInvalidRequest = -32600
	CodeInvalidParams  = -32602
)

// MaxID is the longest id of a call, in bytes as it was written. It is kept
// until the call is answered.
const MaxID = 4096

// Message is one line that can be handled.
type Message struct {
	ID     []byte // as it was written; nil in a notification
	Method string
	Params []byte // as they were written: an object, null, or nil
	Answer bool   // a response, with an id and nothing else set

	// Members are all members of the line, in order, those above included.
	Members []Member
}

// Rejection is the JSON-RPC error for a line that cannot be handled.
type Rejection struct {
	ID   []byte // as it was written; nil where it is unknown
	Code int
	Text string
}

// ParseMessage reads one line, without its newline. Exactly one of the results is
// not nil.
func ParseMessage(line []byte) (*Message, *Rejection) {
	if !utf8.Valid(line) {
		return nil, &Rejection{Code: CodeParse, Text: "parse error: not UTF-8"}
	}
	members, fault := ParseObject(line)
	if errors.Is(fault, ErrSyntax) {
		if fault = CheckValue(line); fault == nil || errors.Is(fault, ErrDuplicate) || errors.Is(fault, ErrCrowded) {
			return nil, notObject(line)
		}
	}
	switch {
	case errors.Is(fault, ErrSyntax):
		return nil, &Rejection{Code: CodeParse, Text: "parse error: " + fault.Error()}
	case errors.Is(fault, ErrDepth):
		return nil, Invalid(nil, fault.Error())
	}
	return shape(members, fault)
}

// notObject rejects JSON that is something else than an object.
func notObject(line []byte) *Rejection {
	if bytes.HasPrefix(bytes.TrimLeft(line, " \t\r"), []byte("[")) {
		return Invalid(nil, "batches are not supported")
	}
	return Invalid(nil, "not an object")
}

// Invalid is a rejection with CodeInvalidRequest; id is nil where it is unknown.
func Invalid(id []byte, text string) *Rejection {
	return &Rejection{ID: id, Code: CodeInvalidRequest, Text: "invalid request: " + text}
}

// shape checks the members of a message; fault is what was wrong with its keys.
func shape(members []Member, fault error) (*Message, *Rejection) {
	fields := map[string][]byte{}
	for _, m := range members {
		if _, twice := fields[m.Key]; twice && m.Key == "id" {
			return nil, Invalid(nil, ErrDuplicate.Error()) // whose answer would it be?
		}
		fields[m.Key] = m.Raw
	}
	id, named := fields["id"]
	if named && !ValidID(id) {
		return nil, Invalid(nil, "the id is neither a string nor a number")
	}
	_, result := fields["result"]
	_, failure := fields["error"]
	method, asks := fields["method"]
	params := fields["params"]
	switch {
	case fault != nil:
		return nil, Invalid(id, fault.Error())
	case string(fields["jsonrpc"]) != `"2.0"`:
		return nil, Invalid(id, "not JSON-RPC 2.0")
	case !asks && named && result != failure:
		return &Message{ID: id, Answer: true, Members: members}, nil
	case !asks:
		return nil, Invalid(id, "no method")
	case result || failure:
		return nil, Invalid(id, "neither a request nor a response")
	case method[0] != '"':
		return nil, Invalid(id, "the method is not a string")
	case len(params) > 0 && params[0] != '{' && string(params) != "null":
		return nil, &Rejection{ID: id, Code: CodeInvalidParams, Text: "invalid params: not an object"}
	}
	return &Message{ID: id, Method: Unquote(method), Params: params, Members: members}, nil
}

// ValidID says whether raw can be the id of a call: JSON-RPC also knows null,
// MCP does not.
func ValidID(raw []byte) bool {
	return len(raw) <= MaxID && (raw[0] == '"' || raw[0] == '-' || isDigit(raw[0]))
}
