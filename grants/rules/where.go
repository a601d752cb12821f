package rules

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Where says which other calls of a tool an answer of a person holds for. An argument
// that it names may be whatever its matcher matches, as in allow_if, and stays of the
// kind that it was: a string a string, a list a list. Everything else has to be what
// it was: see [Where.Rest]. It is fixed and safe for concurrent use.
type Where struct {
	matchers  map[string]Matcher
	arguments []argument // sorted by key
}

var errWhere = errors.New("the rule is one JSON object: the name of an argument, or a JSON pointer, and a pattern or one of regex, exact, oneOf, prefix, path and host")

// ParseWhere parses one JSON object from the names of arguments, or JSON pointers, to
// matchers as documents write them. It refuses what a document would refuse, and a
// rule that names one place twice, or a part of what it names. The error does not
// repeat values.
func ParseWhere(data []byte) (*Where, error) {
	args, err := ParseArgs(data)
	if err != nil || len(args.root.names) == 0 {
		return nil, errWhere
	}
	w := &Where{matchers: map[string]Matcher{}}
	for i, key := range args.root.names {
		m, err := args.root.items[i].matcher()
		if err != nil {
			return nil, fmt.Errorf("%q: %w", key, err)
		}
		w.matchers[key] = m
	}
	w.matchers = canonicalMatchers(w.matchers)
	c := checker{}
	if c.checkMatchers("where", w.matchers); len(c.wrong) > 0 {
		return nil, fmt.Errorf("%s: %s", strings.TrimPrefix(c.wrong[0].Where, "where."), c.wrong[0].Text)
	}
	w.arguments = compileMatchers(w.matchers)
	for i, a := range w.arguments {
		for _, b := range w.arguments[:i] {
			if n := min(len(a.steps), len(b.steps)); slices.Equal(a.steps[:n], b.steps[:n]) {
				return nil, fmt.Errorf("%q and %q name the same argument, or one is a part of the other", b.key, a.key)
			}
		}
	}
	return w, nil
}

// matcher reads a matcher as documents write it.
func (v *value) matcher() (m Matcher, err error) {
	if v.kind == '"' {
		m.Regex = v.text
		if m.Regex == "" {
			err = errWhere
		}
		return m, err
	}
	if v.kind != '{' || len(v.names) != 1 {
		return m, errWhere
	}
	texts, list := v.items[0].texts()
	switch kind := v.names[0]; {
	case texts == nil:
		return m, errWhere
	case kind == "regex" && !list && v.items[0].kind == '"' && texts[0] != "":
		m.Regex = texts[0]
	case kind == "exact" && !list:
		m.Exact = &texts[0]
	case kind == "oneOf" && list:
		m.OneOf = texts
	case kind == "prefix":
		m.Prefix = texts
	case kind == "path":
		for i, text := range texts {
			if len(text) > 1 {
				texts[i] = strings.TrimSuffix(text, "/") // a folder is often written so
			}
		}
		m.Path = texts
	case kind == "host":
		m.Host = texts
	default:
		return m, errWhere
	}
	return m, nil
}

// texts reads one text, number or word, or a list of them; nil: it is neither.
func (v *value) texts() (texts []string, list bool) {
	switch {
	case v.kind == '"', v.kind == '0', v.kind == 't' && v.text != "null":
		return []string{v.text}, false
	case v.kind != '[':
		return nil, false
	}
	texts = []string{}
	for i := range v.items {
		one, nested := v.items[i].texts()
		if nested || one == nil {
			return nil, true
		}
		texts = append(texts, one[0])
	}
	return texts, true
}

// Canonical is the rule in one form, which [ParseWhere] reads: the same rule gives the
// same bytes.
func (w *Where) Canonical() []byte {
	raw, err := json.Marshal(w.matchers)
	if err != nil {
		panic(err) // it holds nothing that JSON cannot write
	}
	return raw
}

// String says in words what the named arguments may be.
func (w *Where) String() string {
	words := make([]string, 0, len(w.arguments))
	for _, a := range w.arguments {
		words = append(words, wordOf(a.key)+" "+a.String())
	}
	return strings.Join(words, ", ")
}

// wordOf is the name of an argument, in quotes where it is no plain word.
func wordOf(key string) string {
	plain := func(r rune) bool {
		return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("_-./~", r)
	}
	if key != "" && strings.IndexFunc(key, func(r rune) bool { return !plain(r) }) < 0 {
		return key
	}
	return fmt.Sprintf("%q", key)
}

// String says in words what m matches.
func (m Matcher) String() string {
	list := func(texts []string) string {
		quoted := make([]string, 0, len(texts))
		for _, text := range texts {
			quoted = append(quoted, fmt.Sprintf("%q", text))
		}
		return strings.Join(quoted, " or ")
	}
	switch {
	case m.Exact != nil:
		return "is " + list([]string{*m.Exact})
	case m.OneOf != nil:
		return "is " + list(m.OneOf)
	case m.Prefix != nil:
		return "begins with " + list(m.Prefix)
	case m.Path != nil:
		return "is in " + list(m.Path)
	case m.Host != nil:
		return "is a URL of " + list(m.Host)
	}
	return "matches " + list([]string{m.Regex})
}

// Stands says why the rule does not hold for arguments; empty: it does. resolve may be
// nil, as for [Compile]. The words hold names of arguments as the rule writes them,
// and no values.
func (w *Where) Stands(args Args, resolve Resolver) string {
	for _, a := range w.arguments {
		switch v := args.at(a.steps); {
		case v == nil:
			return wordOf(a.key) + " is not there"
		case !a.finds(v, false, resolve):
			return wordOf(a.key) + " is not what the rule says, or it cannot be told"
		case len(args.like(a.steps)) > 0:
			return wordOf(a.key) + " is there in another case, too"
		}
	}
	return ""
}

// Rest is what is left of arguments without the values that the rule names, which
// leave their places and their kinds: two calls that differ in anything else have
// another rest. Not ok: one that it names is not there.
func (w *Where) Rest(args Args) (rest []byte, ok bool) {
	left := make(map[*value]bool, len(w.arguments))
	for _, a := range w.arguments {
		v := args.at(a.steps)
		if v == nil {
			return nil, false
		}
		left[v] = true
	}
	return args.root.without(nil, left), true
}

// without is append but for the values in left. In their places stands a byte that is
// in no JSON text, and their kind.
func (v *value) without(b []byte, left map[*value]bool) []byte {
	switch {
	case left[v]:
		return append(b, 0, v.kind)
	case v.kind == '{':
		b = append(b, '{')
		for i := range v.items {
			b = append(appendString(b, v.names[i]), ':')
			b = append(v.items[i].without(b, left), ',')
		}
		return append(b, '}')
	case v.kind == '[':
		b = append(b, '[')
		for i := range v.items {
			b = append(v.items[i].without(b, left), ',')
		}
		return append(b, ']')
	}
	return v.append(b)
}
