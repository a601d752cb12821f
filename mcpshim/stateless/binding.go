package stateless

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"subjectbroker/mcpshim/canon"
)

// Limits on arguments in headers.
const (
	MaxHeaderValue = 8 << 10 // the longest argument that is said again in one, in bytes
	maxBindings    = 32      // how many of one tool stand there at most
)

// Binding is an argument of a tool that stands in a header too, for who stands
// between and reads no messages.
type Binding struct {
	path   []string // to the argument
	header string   // what follows HeaderParameters
}

// Bindings reads which arguments a tool wants to see in headers: properties of the
// input schema in its object, as it is listed, with x-mcp-header.
func Bindings(object []byte) []Binding {
	type property struct {
		Header     json.RawMessage            `json:"x-mcp-header"`
		Properties map[string]json.RawMessage `json:"properties"`
	}
	var tool struct {
		Schema json.RawMessage `json:"inputSchema"`
	}
	if !strings.Contains(string(object), "x-mcp-header") || json.Unmarshal(object, &tool) != nil {
		return nil
	}
	var found []Binding
	var walk func(raw json.RawMessage, path []string)
	walk = func(raw json.RawMessage, path []string) {
		var p property
		if json.Unmarshal(raw, &p) != nil || len(found) == maxBindings {
			return
		}
		header := ""
		if len(path) > 0 && json.Unmarshal(p.Header, &header) == nil && token(header) {
			found = append(found, Binding{slices.Clone(path), header})
		}
		for name, below := range p.Properties {
			walk(below, append(path, name))
		}
	}
	walk(tool.Schema, nil)
	return found
}

// token reports whether a name can be that of a header.
func token(name string) bool {
	return name != "" && len(name) <= 64 && !strings.ContainsFunc(name, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune("!#$%&'*+-.^_`|~", c)
	})
}

// Header is the name of the header.
func (b Binding) Header() string { return HeaderParameters + b.header }

// Value is the argument as the header has it; false: it has none there.
func (b Binding) Value(arguments []byte) (string, bool) {
	raw := b.find(arguments)
	if raw == nil || len(raw) > MaxHeaderValue {
		return "", false
	}
	if said, ok := text(raw); ok {
		return HeaderText(said), true
	}
	switch word := string(raw); word {
	case "true", "false":
		return word, true
	default:
		whole, err := strconv.ParseFloat(word, 64)
		if err != nil || whole != float64(int64(whole)) || whole < -(1<<53-1) || whole > 1<<53-1 {
			return "", false
		}
		return strconv.FormatInt(int64(whole), 10), true
	}
}

// Agrees reports whether values, of all headers of that name, say what the argument
// says. What has no value need not be said, and a number may be written in another
// way.
func (b Binding) Agrees(arguments []byte, values []string) bool {
	_, needed := b.Value(arguments)
	if len(values) == 0 {
		return !needed
	}
	raw := b.find(arguments)
	said, readable := Text(values[0])
	if len(values) > 1 || !readable || raw == nil {
		return false
	}
	if want, ok := text(raw); ok {
		return said == want
	}
	if said == string(raw) {
		return said != "null"
	}
	got, err := strconv.ParseFloat(said, 64)
	want, wrong := strconv.ParseFloat(string(raw), 64)
	return err == nil && wrong == nil && got == want
}

// find is the argument as it was written; nil when there is none.
func (b Binding) find(arguments []byte) []byte {
	raw := arguments
	for _, name := range b.path {
		members, err := canon.Members(raw)
		if err != nil {
			return nil
		}
		at := slices.IndexFunc(members, func(m canon.Member) bool { return m.Key == name })
		if at < 0 {
			return nil
		}
		raw = members[at].Raw
	}
	return raw
}

func text(raw []byte) (said string, ok bool) {
	if len(raw) == 0 || raw[0] != '"' || json.Unmarshal(raw, &said) != nil {
		return "", false
	}
	return said, true
}
