package policy

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"time"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"

	"subjectbroker/grants"
)

// MaxSize is the largest document in bytes.
const MaxSize = 4 << 20

// Env is what a document is read against.
type Env struct {
	// Now decides which until is past; zero: none is.
	Now time.Time
	// Current is the state whose resources, subjects, tenants and tools a grant or profile
	// may name beside those of the document. Nil: only those of the document.
	Current *Document
	// Elsewhere takes what is named for being declared elsewhere, so that a part of a
	// state can be tried by itself. Never for what is applied.
	Elsewhere bool
}

// Parse reads one document. A refused one is a [*Error].
func Parse(data []byte, env Env) (*Document, error) {
	document, _, err := parse(data, env, false)
	return document, err
}

// ParseNoting is Parse, and returns what is legal in the policies but likely not
// meant, by line.
func ParseNoting(data []byte, env Env) (*Document, []Problem, error) {
	return parse(data, env, false)
}

// Lint reads one document as [Parse] does and returns what is legal but likely
// not meant: grants that can never do anything, secrets disclosed without a limit or
// written in clear, and rules that see text where a file is meant.
func Lint(data []byte, env Env) (warnings []Problem, err error) {
	_, warnings, err = parse(data, env, true)
	return warnings, err
}

// parser gathers problems while it walks the nodes of one document.
type parser struct {
	env      Env
	document *Document
	lines    []int         // of Document.Grants, for what can be judged only at the end
	places   map[place]int // likewise of what has a name
	problems []Problem
	warnings []Problem
}

// place is where a thing with a name stands, or an item of its list.
type place struct{ what, name, item string }

func newParser(env Env) *parser {
	return &parser{env: env, places: map[place]int{}, document: &Document{
		Resources: map[string]Resource{},
		Subjects:  map[string]Subject{},
		Profiles:  map[string]grants.Profile{},
		Tools:     map[string]grants.Tool{},
	}}
}

func parse(data []byte, env Env, lint bool) (*Document, []Problem, error) {
	p := newParser(env)
	if root := p.load(data); root != nil && p.plain(root) {
		p.readDocument(root)
	}
	if len(p.problems) == 0 {
		p.checkUIDs()
		p.checkProfiles()
		p.checkServers()
		p.checkPolicies()
		p.checkGrants()
	}
	if len(p.problems) > 0 {
		return nil, nil, &Error{byLine(p.problems)}
	}
	if lint { // the daemon must not wait for what only people read
		p.lint()
	}
	grants.SortGrants(p.document.Grants)
	return p.document, byLine(p.warnings), nil
}

func byLine(problems []Problem) []Problem {
	slices.SortStableFunc(problems, func(a, b Problem) int { return a.Line - b.Line })
	return problems
}

// load returns the root of the one document in data, nil after a problem.
func (p *parser) load(data []byte) *yaml.Node {
	switch {
	case len(data) > MaxSize:
		p.report(0, "the document is larger than %d bytes", MaxSize)
		return nil
	case !utf8.Valid(data):
		p.report(invalidLine(data), "not valid UTF-8")
		return nil
	}
	loader, err := yaml.NewLoader(bytes.NewReader(data))
	if err != nil {
		p.report(0, "%v", err)
		return nil
	}
	var first, second yaml.Node
	switch err := loader.Load(&first); {
	case errors.Is(err, io.EOF):
		p.report(0, "the document is empty")
		return nil
	case err != nil:
		p.syntax(err)
		return nil
	}
	switch err := loader.Load(&second); {
	case err == nil:
		p.report(second.Line, "a second document begins here; one is allowed")
		return nil
	case !errors.Is(err, io.EOF):
		p.syntax(err)
		return nil
	}
	return first.Content[0]
}

// syntax reports an error of the YAML library in our form, by its place.
func (p *parser) syntax(err error) {
	if e, ok := errors.AsType[*yaml.LoadError](err); ok {
		p.report(e.Mark.Line, "not valid YAML: %s", e.Message)
		return
	}
	p.report(0, "not valid YAML: %v", err)
}

// report notes a problem. Beyond maxProblems one more would help nobody.
func (p *parser) report(line int, format string, args ...any) {
	if len(p.problems) < maxProblems {
		p.problems = append(p.problems, problem(line, format, args...))
	}
}

func (p *parser) warn(line int, format string, args ...any) {
	if len(p.warnings) < maxProblems {
		p.warnings = append(p.warnings, problem(line, format, args...))
	}
}

// invalidLine returns the line of the first byte that is not UTF-8.
func invalidLine(data []byte) int {
	line := 1
	for len(data) > 0 {
		r, size := utf8.DecodeRune(data)
		if r == utf8.RuneError && size == 1 {
			break
		}
		if r == '\n' {
			line++
		}
		data = data[size:]
	}
	return line
}
