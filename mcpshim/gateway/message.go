package gateway

import (
	"bytes"
	"strconv"

	"subjectbroker/mcpshim/canon"
	"subjectbroker/mcpshim/strict"
)

// object writes the members of an object again, in their order.
func object(members []strict.Member) []byte {
	out := []byte{'{'}
	for i, one := range members {
		if i > 0 {
			out = append(out, ',')
		}
		out = canon.Quote(out, one.Key)
		out = append(out, ':')
		out = append(out, one.Raw...)
	}
	return append(out, '}')
}

// note writes a notification.
func note(method string, params []byte) []byte {
	out := canon.Quote([]byte(noteHead), method)
	out = append(out, `,"params":`...)
	return append(append(out, params...), '}')
}

// written writes a request for the shim: id is ours, and so is the token by which
// it tells progress. It stands on one line.
func written(method string, id, params []byte) []byte {
	var out []byte
	if id == nil {
		out = canon.Quote([]byte(noteHead), method)
	} else {
		out = append(append([]byte(answerHead), id...), `,"method":`...)
		out = canon.Quote(out, method)
	}
	if len(params) > 0 {
		out = append(out, `,"params":`...)
		out = strict.Compact(out, params)
	}
	return append(out, "}\n"...)
}

// meta is what a request says of itself beside its arguments.
type meta struct {
	members []strict.Member // of params
	at      int             // of _meta in members; -1: there is none
	own     []strict.Member // of _meta
}

// metaOf reads it. ok is false for what is not as it has to be.
func metaOf(params []byte) (m meta, ok bool) {
	m.at = -1
	if len(params) == 0 || params[0] != '{' {
		return m, true
	}
	var err error
	if m.members, err = strict.ParseObject(params); err != nil {
		return m, false
	}
	for i, one := range m.members {
		if one.Key != "_meta" {
			continue
		}
		if m.own, err = strict.ParseObject(one.Raw); err != nil {
			return m, false
		}
		m.at = i
	}
	return m, true
}

// get is a member of _meta, as it was written; nil when there is none.
func (m meta) get(key string) []byte {
	for _, one := range m.own {
		if one.Key == key {
			return one.Raw
		}
	}
	return nil
}

// text is a member of _meta that is a string; empty when it is none.
func (m meta) text(key string) string {
	raw := m.get(key)
	if len(raw) == 0 || raw[0] != '"' {
		return ""
	}
	return strict.Unquote(raw)
}

// param is a member of params that is a string.
func (m meta) param(key string) (string, bool) {
	for _, one := range m.members {
		if one.Key == key && len(one.Raw) > 0 && one.Raw[0] == '"' {
			return strict.Unquote(one.Raw), true
		}
	}
	return "", false
}

// with is params with another progress token.
func (m meta) with(token []byte) []byte {
	own := make([]strict.Member, len(m.own))
	copy(own, m.own)
	for i := range own {
		if own[i].Key == progressToken {
			own[i].Raw = token
		}
	}
	members := make([]strict.Member, len(m.members))
	copy(members, m.members)
	members[m.at].Raw = object(own)
	return object(members)
}

// errorAnswer is a JSON-RPC error; id nil: null.
func errorAnswer(id []byte, code int, text string, data []byte) []byte {
	if id == nil {
		id = []byte("null")
	}
	out := append(append([]byte(answerHead), id...), `,"error":{"code":`...)
	out = strconv.AppendInt(out, int64(code), 10)
	out = append(out, `,"message":`...)
	out = canon.Quote(out, text)
	if data != nil {
		out = append(append(out, `,"data":`...), data...)
	}
	return append(out, "}}"...)
}

// codeOf is the code of an answer that is a JSON-RPC error; 0 when it is none. Our
// own shims write it in one way, an answer of a server's in any.
func codeOf(answer []byte) int {
	rest, ok := bytes.CutPrefix(answer, []byte(answerHead))
	if !ok || len(answer) > 64<<10 {
		return 0
	}
	if at := bytes.Index(rest, []byte(`"error":`)); at < 0 {
		return 0
	}
	members, err := strict.ParseObject(answer)
	if err != nil {
		return 0
	}
	for _, one := range members {
		if one.Key != "error" {
			continue
		}
		inside, err := strict.ParseObject(one.Raw)
		if err != nil {
			return 0
		}
		for _, member := range inside {
			if member.Key == "code" {
				code, _ := strconv.Atoi(string(member.Raw)) // 0 for what is no number
				return code
			}
		}
	}
	return 0
}
