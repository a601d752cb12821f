package mcpshim

import (
	"bytes"
	"errors"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// maxID is the longest id of a call, in bytes as it was written. It is kept
// until the call is answered.
const maxID = 4096

// message is one line from the client that can be handled.
type message struct {
	id     []byte // as it was written; nil in a notification
	method string
	params []byte // an object, or nil
	answer bool   // a response: we ask nothing, so it answers nothing
}

// rejection is the JSON-RPC error for a line that cannot be handled.
type rejection struct {
	id   []byte // as it was written; nil where it is unknown
	code int
	text string
}

// parseMessage reads one line. Exactly one of the results is not nil.
func parseMessage(line []byte) (*message, *rejection) {
	if !utf8.Valid(line) {
		return nil, &rejection{code: jsonrpc.CodeParseError, text: "parse error: not UTF-8"}
	}
	members, fault := parseObject(line)
	if errors.Is(fault, errSyntax) {
		if fault = checkValue(line); fault == nil || errors.Is(fault, errDuplicate) || errors.Is(fault, errCrowded) {
			return nil, notObject(line)
		}
	}
	switch {
	case errors.Is(fault, errSyntax):
		return nil, &rejection{code: jsonrpc.CodeParseError, text: "parse error: " + fault.Error()}
	case errors.Is(fault, errDepth):
		return nil, invalid(nil, fault.Error())
	}
	return shape(members, fault)
}

// notObject rejects JSON that is something else than an object.
func notObject(line []byte) *rejection {
	if bytes.HasPrefix(bytes.TrimLeft(line, " \t\r"), []byte("[")) {
		return invalid(nil, "batches are not supported")
	}
	return invalid(nil, "not an object")
}

func invalid(id []byte, text string) *rejection {
	return &rejection{id: id, code: jsonrpc.CodeInvalidRequest, text: "invalid request: " + text}
}

// shape checks the members of a message; fault is what was wrong with its keys.
func shape(members []member, fault error) (*message, *rejection) {
	fields := map[string][]byte{}
	for _, m := range members {
		if _, twice := fields[m.key]; twice && m.key == "id" {
			return nil, invalid(nil, errDuplicate.Error()) // whose answer would it be?
		}
		fields[m.key] = m.raw
	}
	id, named := fields["id"]
	if named && !validID(id) {
		return nil, invalid(nil, "the id is neither a string nor a number")
	}
	_, result := fields["result"]
	_, failure := fields["error"]
	method, asks := fields["method"]
	params := fields["params"]
	switch {
	case fault != nil:
		return nil, invalid(id, fault.Error())
	case string(fields["jsonrpc"]) != `"2.0"`:
		return nil, invalid(id, "not JSON-RPC 2.0")
	case !asks && named && result != failure:
		return &message{answer: true}, nil
	case !asks:
		return nil, invalid(id, "no method")
	case result || failure:
		return nil, invalid(id, "neither a request nor a response")
	case method[0] != '"':
		return nil, invalid(id, "the method is not a string")
	case len(params) > 0 && params[0] != '{' && string(params) != "null":
		return nil, &rejection{id: id, code: jsonrpc.CodeInvalidParams, text: "invalid params: not an object"}
	}
	return &message{id: id, method: unquote(method), params: params}, nil
}

// validID says whether raw can be the id of a call: JSON-RPC also knows null,
// MCP does not.
func validID(raw []byte) bool {
	return len(raw) <= maxID && (raw[0] == '"' || raw[0] == '-' || isDigit(raw[0]))
}
