package policy

import (
	"math"
	"strconv"
	"time"

	"go.yaml.in/yaml/v4"

	"subjectbroker/grants"
)

// plain reports whether the tree below n uses only what a document may use:
// mappings, lists and scalars that mean what they look like.
func (p *parser) plain(n *yaml.Node) bool {
	switch {
	case n.Kind == yaml.AliasNode:
		p.report(n.Line, "aliases are not allowed")
		return false
	case n.Anchor != "":
		p.report(n.Line, "anchors are not allowed")
		return false
	case n.Tag == "!!merge":
		p.report(n.Line, "merge keys are not allowed")
		return false
	case n.Style&yaml.TaggedStyle != 0 || !isImplicitTag(n):
		p.report(n.Line, "tags are not allowed")
		return false
	}
	ok := true
	for _, child := range n.Content {
		ok = p.plain(child) && ok
	}
	return ok
}

func isImplicitTag(n *yaml.Node) bool {
	if n.Kind == yaml.MappingNode {
		return n.Tag == "!!map"
	}
	if n.Kind == yaml.SequenceNode {
		return n.Tag == "!!seq"
	}
	switch n.Tag {
	case "!!str", "!!int", "!!float", "!!bool", "!!null", "!!timestamp":
		return true
	}
	return false
}

// typeNames are the words in messages about a value of the wrong type.
var typeNames = map[string]string{
	"!!map": "a mapping", "!!seq": "a list", "!!str": "text", "!!int": "a number", "!!float": "a number",
	"!!bool": "true or false", "!!null": "nothing", "!!timestamp": "a time",
}

func (p *parser) wrongType(n *yaml.Node, what, want string) {
	p.report(n.Line, "%s must be %s, not %s", what, want, typeNames[n.Tag])
}

// entries calls visit for each entry of a mapping, and reports what is no
// mapping, keys that are no text, and keys that come twice.
func (p *parser) entries(n *yaml.Node, what string, visit func(key, value *yaml.Node)) {
	if n.Kind != yaml.MappingNode {
		p.wrongType(n, what, "a mapping")
		return
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Kind != yaml.ScalarNode || key.Tag != "!!str" {
			p.report(key.Line, "a key in %s must be text, not %s: put it in quotes", what, typeNames[key.Tag])
			continue
		}
		if line, twice := seen[key.Value]; twice {
			p.report(key.Line, "%q is in %s already, on line %d", key.Value, what, line)
			continue
		}
		seen[key.Value] = key.Line
		visit(key, value)
	}
}

// items calls visit for each item of a list.
func (p *parser) items(n *yaml.Node, what string, visit func(*yaml.Node)) {
	if n.Kind != yaml.SequenceNode {
		p.wrongType(n, what, "a list")
		return
	}
	for _, item := range n.Content {
		visit(item)
	}
}

// unknown reports a key that does not belong where it stands.
func (p *parser) unknown(key *yaml.Node, what string) {
	p.report(key.Line, "unknown key %q in %s", key.Value, what)
}

// text reads a string, and is false after reporting that there is none.
func (p *parser) text(n *yaml.Node, what string) (string, bool) {
	if n.Tag != "!!str" {
		p.wrongType(n, what, "text")
		return "", false
	}
	return n.Value, true
}

// word reads a string that is not empty: an empty one would count as left out.
func (p *parser) word(n *yaml.Node, what string) (string, bool) {
	s, ok := p.text(n, what)
	if ok && s == "" {
		p.report(n.Line, "%s must not be empty; leave it out instead", what)
		return "", false
	}
	return s, ok
}

// parsed reads a string that parse understands.
func parsed[T any](p *parser, n *yaml.Node, what string, parse func(string) (T, error)) (v T) {
	s, ok := p.word(n, what)
	if !ok {
		return v
	}
	v, err := parse(s)
	if err != nil {
		p.report(n.Line, "%s: %v", what, err)
	}
	return v
}

func (p *parser) boolean(n *yaml.Node, what string) bool {
	if n.Tag != "!!bool" || n.Value != "true" && n.Value != "false" {
		p.wrongTypeOr(n, what, "true or false", "!!bool")
		return false
	}
	return n.Value == "true"
}

// count reads a whole number from 1, written in decimal digits.
func (p *parser) count(n *yaml.Node, what string) uint64 {
	v, ok := digits(n)
	if !ok || v == 0 {
		p.wrongTypeOr(n, what, "a whole number from 1 in plain digits", "!!int")
		return 0
	}
	return v
}

// digits reads a whole number from 0, written in decimal digits as we write it.
func digits(n *yaml.Node) (uint64, bool) {
	v, err := strconv.ParseUint(n.Value, 10, 64)
	return v, n.Tag == "!!int" && err == nil && strconv.FormatUint(v, 10) == n.Value
}

// uid reads a uid that a subject may have.
func (p *parser) uid(n *yaml.Node) *uint32 {
	v, ok := digits(n)
	if !ok || v > math.MaxUint32 {
		p.wrongTypeOr(n, "uid", "a whole number of at most 32 bits in plain digits", "!!int")
		return nil
	}
	uid := uint32(v)
	if err := grants.CheckUID(uid); err != nil {
		p.report(n.Line, "%v", err)
	}
	return &uid
}

// wrongTypeOr reports a value of the right type in a spelling that is not taken,
// such as True or 0x3, without calling it a value of another type.
func (p *parser) wrongTypeOr(n *yaml.Node, what, want, right string) {
	if n.Tag == right {
		p.report(n.Line, "%s must be written as %s", what, want)
		return
	}
	p.wrongType(n, what, want)
}

// instant reads a time of RFC 3339, in quotes or not.
func (p *parser) instant(n *yaml.Node, what string) time.Time {
	if n.Tag != "!!str" && n.Tag != "!!timestamp" {
		p.wrongType(n, what, "a time of RFC 3339")
		return time.Time{}
	}
	t, err := parseRFC3339(n.Value)
	if err != nil {
		p.report(n.Line, "%s: %v", what, err)
	}
	return t
}
