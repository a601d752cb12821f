package policy

import (
	"errors"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"subjectbroker/grants"
	"subjectbroker/grants/rules"
)

// Pair is a subject and a server: what makes two policies the same policy.
type Pair struct{ Subject, Server string }

// String returns "SUBJECT SERVER".
func (k Pair) String() string { return k.Subject + " " + k.Server }

// PairOf returns whose policy it is, and around which server.
func PairOf(p *rules.Policy) Pair { return Pair{p.Subject, p.Server} }

// newPolicy returns a policy of what is not said.
func newPolicy() rules.Policy {
	return rules.Policy{Audit: rules.Strict, ApprovalWait: rules.DefaultApprovalWait, Rules: rules.Rules{OnViolation: rules.Block}}
}

func (p *parser) readPolicy(body *yaml.Node) {
	const what = "a policy"
	before := len(p.problems)
	r := rulesReader{parser: p, lines: map[string]int{"": body.Line}}
	one := newPolicy()
	p.entries(body, what, func(key, value *yaml.Node) {
		r.lines[key.Value] = value.Line
		switch key.Value {
		case "subject":
			one.Subject, _ = p.word(value, "subject")
		case "server":
			one.Server, _ = p.word(value, "server")
		case "audit":
			word, _ := p.word(value, "audit")
			one.Audit = rules.Audit(word)
		case "approvalWait":
			one.ApprovalWait = parsed(p, value, "approvalWait", parseWait)
		case "shareApprovals":
			one.ShareApprovals = p.boolean(value, "shareApprovals")
		case "methods":
			one.Methods = r.texts(value, "methods", "methods")
		case "observeUntil":
			one.ObserveUntil = p.instant(value, "observeUntil")
		case "rules":
			r.readRules(value, "rules", &one.Rules)
		default:
			p.unknown(key, what)
		}
	})
	if len(p.problems) > before {
		return
	}
	switch {
	case one.Subject == "":
		p.report(body.Line, "a policy needs subject")
	case one.Server == "":
		p.report(body.Line, "a policy needs server")
	default:
		r.take(one)
	}
}

func parseWait(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil {
		return 0, errors.New("a span of time is 25s, 2m or the like")
	}
	return d, nil
}

// rulesReader reads one policy and remembers where its parts stand.
type rulesReader struct {
	*parser
	lines   map[string]int // by key, as in [rules.Problem]
	foreign bool           // it is a file of the predecessor's
}

// line returns where a part stands or, if it is not there, what it would be in.
func (r *rulesReader) line(where string) int {
	for {
		if line, known := r.lines[where]; known {
			return line
		}
		at := strings.LastIndexAny(where, ".[")
		if at < 0 {
			return r.lines[""]
		}
		where = where[:at]
	}
}

// take checks a policy and puts it into the document.
func (r *rulesReader) take(one rules.Policy) {
	wrong, odd := one.Check()
	for _, problem := range wrong {
		r.report(r.line(problem.Where), "%s: %s", lastKey(problem.Where), problem.Text)
	}
	for _, problem := range odd {
		r.warn(r.line(problem.Where), "%s: %s", lastKey(problem.Where), problem.Text)
	}
	key := PairOf(&one)
	here := place{APolicy, key.String(), ""}
	if first, twice := r.places[here]; twice {
		r.report(r.line(""), "the same subject and server as on line %d", first)
		return
	}
	one = one.Canonical()
	r.places[here] = r.line("")
	r.places[place{APolicy, key.String(), "observeUntil"}] = r.line("observeUntil")
	if r.document.Policies == nil {
		r.document.Policies = map[Pair]rules.Policy{}
	}
	r.document.Policies[key] = one
}

// lastKey is the last key in where, for people: what it is in, they see by the line.
func lastKey(where string) string {
	for _, side := range []string{".allow_if.", ".deny_if.", ".tool_costs."} {
		if _, key, found := strings.Cut(where, side); found {
			return key
		}
	}
	where = where[strings.LastIndexByte(where, '.')+1:]
	key, _, _ := strings.Cut(where, "[")
	return key
}

// closed reads a mapping that has no other keys than these.
func (r *rulesReader) closed(n *yaml.Node, what, at string, keys map[string]func(n *yaml.Node, at string)) {
	r.lines[at] = n.Line
	r.entries(n, what, func(key, value *yaml.Node) {
		read, known := keys[key.Value]
		if !known {
			r.unknown(key, what)
			return
		}
		inside := strings.TrimPrefix(at+"."+key.Value, ".")
		r.lines[inside] = key.Line
		read(value, inside)
	})
}

// texts reads a list of texts.
func (r *rulesReader) texts(n *yaml.Node, what, at string) (list []string) {
	r.items(n, what, func(item *yaml.Node) {
		text, _ := r.word(item, "an item of "+what)
		r.lines[fmt.Sprintf("%s[%d]", at, len(list))] = item.Line
		list = append(list, text)
	})
	return list
}

// readRules reads the part that both formats have in common.
func (r *rulesReader) readRules(n *yaml.Node, what string, into *rules.Rules) {
	keys := map[string]func(*yaml.Node, string){
		"global": func(n *yaml.Node, at string) {
			global := map[string]func(*yaml.Node, string){
				"on_violation": func(n *yaml.Node, _ string) { into.OnViolation = r.action(n, "on_violation") },
			}
			if r.foreign {
				global["max_retries"] = r.readRetries
			}
			r.closed(n, "global", at, global)
		},
		"limits":   func(n *yaml.Node, at string) { r.readLimits(n, at, &into.Limits) },
		"security": func(n *yaml.Node, at string) { r.readSecurity(n, at, &into.Security) },
	}
	r.closed(n, what, "rules", keys)
}

func (r *rulesReader) action(n *yaml.Node, what string) rules.Action {
	word, _ := r.word(n, what)
	if r.foreign && word == "sandbox" {
		r.warn(n.Line, "%s sandbox means block here: nothing runs the call in a sandbox of its own", what)
		return rules.Block
	}
	return rules.Action(word)
}

func (r *rulesReader) readLimits(n *yaml.Node, at string, into *rules.Limits) {
	r.closed(n, "limits", at, map[string]func(*yaml.Node, string){
		"max_tool_calls": func(n *yaml.Node, _ string) {
			v, ok := digits(n)
			if !ok {
				r.wrongTypeOr(n, "max_tool_calls", "a whole number from 0 in plain digits", "!!int")
			}
			into.MaxToolCalls = &v
		},
		"max_runtime_seconds": func(n *yaml.Node, _ string) { into.MaxRuntime = r.seconds(n, "max_runtime_seconds") },
		"rate_limit": func(n *yaml.Node, at string) {
			into.Rate = &rules.Rate{Window: rules.DefaultWindow}
			r.closed(n, "rate_limit", at, map[string]func(*yaml.Node, string){
				"calls_per_window": func(n *yaml.Node, _ string) { into.Rate.Calls = r.count(n, "calls_per_window") },
				"window_seconds":   func(n *yaml.Node, _ string) { into.Rate.Window = r.seconds(n, "window_seconds") },
			})
			r.needs(n, at, "calls_per_window", "rate_limit")
		},
		"budget": func(n *yaml.Node, at string) {
			into.Budget = &rules.Budget{Currency: rules.DefaultCurrency, Warn: rules.DefaultWarn, PerCall: rules.DefaultCost}
			r.readBudget(n, at, into.Budget)
		},
		"circuit_breaker": func(n *yaml.Node, at string) {
			into.Breaker = &rules.Breaker{Failures: rules.DefaultFailures, Reset: rules.DefaultReset, Counts: rules.CountTransport}
			keys := map[string]func(*yaml.Node, string){
				"failure_threshold":     func(n *yaml.Node, _ string) { into.Breaker.Failures = r.count(n, "failure_threshold") },
				"reset_timeout_seconds": func(n *yaml.Node, _ string) { into.Breaker.Reset = r.seconds(n, "reset_timeout_seconds") },
				"counts": func(n *yaml.Node, _ string) {
					word, _ := r.word(n, "counts")
					into.Breaker.Counts = rules.Counts(word)
				},
			}
			if r.foreign {
				into.Breaker.Counts = rules.CountErrors
				delete(keys, "counts")
			}
			r.closed(n, "circuit_breaker", at, keys)
		},
	})
}

// needs reports a mapping without a key that has no default.
func (r *rulesReader) needs(n *yaml.Node, at, key, what string) {
	if _, said := r.lines[at+"."+key]; !said && n.Kind == yaml.MappingNode {
		r.report(n.Line, "%s needs %s", what, key)
	}
}

func (r *rulesReader) readBudget(n *yaml.Node, at string, into *rules.Budget) {
	keys := map[string]func(*yaml.Node, string){
		"max_cost":       func(n *yaml.Node, _ string) { into.Max = r.millionths(n, "max_cost") },
		"currency":       func(n *yaml.Node, _ string) { into.Currency, _ = r.word(n, "currency") },
		"warn_threshold": func(n *yaml.Node, _ string) { into.Warn = r.millionths(n, "warn_threshold") },
		"cost_per_call":  func(n *yaml.Node, _ string) { into.PerCall = r.millionths(n, "cost_per_call") },
		"tool_costs": func(n *yaml.Node, at string) {
			r.entries(n, "tool_costs", func(key, value *yaml.Node) {
				if into.ToolCosts == nil {
					into.ToolCosts = map[string]uint64{}
				}
				r.lines[at+"."+key.Value] = key.Line
				into.ToolCosts[key.Value] = r.millionths(value, "what a call costs")
			})
		},
	}
	if r.foreign {
		delete(keys, "cost_per_call")
		delete(keys, "tool_costs")
	}
	r.closed(n, "budget", at, keys)
	r.needs(n, at, "max_cost", "budget")
}

func (r *rulesReader) readSecurity(n *yaml.Node, at string, into *rules.Security) {
	list := func(what string, list *[]string) func(*yaml.Node, string) {
		return func(n *yaml.Node, at string) { *list = r.texts(n, what, at) }
	}
	r.closed(n, "security", at, map[string]func(*yaml.Node, string){
		"denied_tools": list("denied_tools", &into.DeniedTools),
		"allowed_tools": func(n *yaml.Node, at string) {
			into.AllowedTools = r.texts(n, "allowed_tools", at)
			switch {
			case len(into.AllowedTools) > 0 || n.Kind != yaml.SequenceNode:
			case r.foreign:
				r.warn(n.Line, "an empty allowed_tools allows every tool, as it did where the file comes from")
			default:
				r.report(n.Line, "an empty allowed_tools may mean every tool or none: leave it out, or take the grant away")
			}
		},
		"require_approval": list("require_approval", &into.RequireApproval),
		"granular_rules": func(n *yaml.Node, at string) {
			r.items(n, "granular_rules", func(item *yaml.Node) {
				r.readRule(item, fmt.Sprintf("%s[%d]", at, len(into.Granular)), &into.Granular)
			})
		},
	})
}

func (r *rulesReader) readRule(n *yaml.Node, at string, into *[]rules.Rule) {
	one := rules.Rule{Action: rules.Block}
	side := func(what string, to *map[string]rules.Matcher) func(*yaml.Node, string) {
		return func(n *yaml.Node, at string) {
			*to = map[string]rules.Matcher{}
			r.closed(n, what, at, map[string]func(*yaml.Node, string){
				"arguments": func(n *yaml.Node, _ string) { r.readMatchers(n, at, *to) },
			})
			if len(*to) == 0 && n.Kind == yaml.MappingNode {
				r.report(n.Line, "%s needs arguments", what)
			}
		}
	}
	r.closed(n, "a rule", at, map[string]func(*yaml.Node, string){
		"tool":     func(n *yaml.Node, _ string) { one.Tool, _ = r.word(n, "tool") },
		"allow_if": side("allow_if", &one.AllowIf),
		"deny_if":  side("deny_if", &one.DenyIf),
		"action":   func(n *yaml.Node, _ string) { one.Action = r.action(n, "action") },
	})
	r.needs(n, at, "tool", "a rule")
	*into = append(*into, one)
}

func (r *rulesReader) readMatchers(n *yaml.Node, at string, into map[string]rules.Matcher) {
	r.entries(n, "arguments", func(key, value *yaml.Node) {
		name := key.Value
		if r.foreign && strings.HasPrefix(name, "/") { // there it is a name as any other
			name = "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
		}
		r.lines[at+"."+name] = value.Line
		into[name] = r.readMatcher(value)
	})
}

func (r *rulesReader) readMatcher(n *yaml.Node) (m rules.Matcher) {
	if n.Kind != yaml.MappingNode || r.foreign {
		m.Regex, _ = r.word(n, "a pattern")
		return m
	}
	const what = "a matcher"
	choice := func(to *[]string) func(*yaml.Node) {
		return func(n *yaml.Node) {
			if n.Kind != yaml.SequenceNode {
				text, _ := r.word(n, what)
				*to = []string{text}
				return
			}
			*to = []string{}
			r.items(n, what, func(item *yaml.Node) { *to = append(*to, r.scalar(item, what)) })
		}
	}
	keys := map[string]func(*yaml.Node){
		"regex": func(n *yaml.Node) { m.Regex, _ = r.word(n, "a pattern") },
		"exact": func(n *yaml.Node) { text := r.scalar(n, "exact"); m.Exact = &text },
		"oneOf": func(n *yaml.Node) {
			m.OneOf = []string{}
			r.items(n, "oneOf", func(item *yaml.Node) { m.OneOf = append(m.OneOf, r.scalar(item, "an item of oneOf")) })
		},
		"prefix": choice(&m.Prefix),
		"path":   choice(&m.Path),
		"host":   choice(&m.Host),
	}
	r.entries(n, what, func(key, value *yaml.Node) {
		read, known := keys[key.Value]
		if !known {
			r.unknown(key, what)
			return
		}
		read(value)
	})
	for i, text := range m.Path {
		if len(text) > 1 {
			m.Path[i] = strings.TrimSuffix(text, "/") // a folder is often written so
		}
	}
	return m
}

// scalar reads a text, or a number, true or false as it is written.
func (r *rulesReader) scalar(n *yaml.Node, what string) string {
	switch n.Tag {
	case "!!str", "!!int", "!!float":
		return n.Value
	case "!!bool":
		if n.Value == "true" || n.Value == "false" {
			return n.Value
		}
	}
	r.wrongType(n, what, "text, a number, true or false")
	return ""
}

var million = big.NewRat(1_000_000, 1)

// millionths reads a number from 0 with at most six digits after the point.
func (r *rulesReader) millionths(n *yaml.Node, what string) uint64 {
	v, ok := scaled(n, million)
	if !ok {
		r.wrongNumber(n, what, "a number from 0 with at most six digits after the point")
	}
	return v
}

// seconds reads a number of seconds with at most three digits after the point.
func (r *rulesReader) seconds(n *yaml.Node, what string) time.Duration {
	v, ok := scaled(n, big.NewRat(1000, 1))
	if !ok || v == 0 || v > uint64(rules.MaxSpan/time.Millisecond) {
		r.wrongNumber(n, what, fmt.Sprintf("a number of seconds from 0.001 to %d", int64(rules.MaxSpan/time.Second)))
		return time.Second
	}
	return time.Duration(v) * time.Millisecond
}

// wrongNumber reports a number that is not taken, or something else.
func (r *rulesReader) wrongNumber(n *yaml.Node, what, want string) {
	right := "!!int"
	if n.Tag == "!!float" {
		right = n.Tag
	}
	r.wrongTypeOr(n, what, want, right)
}

// scaled reads a number, as JSON writes it, times factor, which must be whole.
func scaled(n *yaml.Node, factor *big.Rat) (uint64, bool) {
	const longest = 24 // characters; more are no amount that anybody means
	if n.Tag != "!!int" && n.Tag != "!!float" || len(n.Value) > longest || strings.Trim(n.Value, "0123456789.") != "" {
		return 0, false
	}
	v, ok := new(big.Rat).SetString(n.Value)
	if !ok || !v.Mul(v, factor).IsInt() || !v.Num().IsUint64() {
		return 0, false
	}
	return v.Num().Uint64(), true
}

// checkPolicies judges the policies against what they name, and those that are to be
// less durable against what the server is given.
func (p *parser) checkPolicies() {
	for _, key := range sortedKeys(p.document.Policies) {
		one := p.document.Policies[key]
		line := p.places[place{APolicy, key.String(), ""}]
		if !p.knowsSubject(one.Subject) {
			p.report(line, "no subject %q; declare it under subjects", one.Subject)
		}
		if !one.ObserveUntil.IsZero() && !p.env.Now.IsZero() && !p.env.Now.Before(one.ObserveUntil) {
			p.report(p.places[place{APolicy, key.String(), "observeUntil"}], "observeUntil is past")
		}
		p.checkGrouped(&one, line)
	}
	if p.env.Current == nil {
		return
	}
	for _, key := range sortedKeys(p.env.Current.Policies) {
		if _, replaced := p.document.Policies[key]; !replaced {
			one := p.env.Current.Policies[key]
			p.checkGrouped(&one, p.places[place{AServer, one.Server, ""}])
		}
	}
}

// checkGrouped refuses a grouped log around what hands out secrets or asks a person.
func (p *parser) checkGrouped(one *rules.Policy, line int) {
	if one.Audit != rules.Grouped {
		return
	}
	if s, known := p.server(one.Server); known && len(s.Secrets()) > 0 {
		p.report(line, "policy of %s around %s: audit must be strict, for the server is given secrets", one.Subject, one.Server)
	}
	tools := maps.Clone(p.document.Tools)
	if p.env.Current != nil {
		for name, t := range p.env.Current.Tools {
			if _, replaced := tools[name]; !replaced {
				tools[name] = t
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(tools)) {
		t := tools[name]
		uses := slices.ContainsFunc(t.Requires, func(q grants.Pattern) bool { return q.Action == grants.Use })
		if strings.HasPrefix(name, one.Server+"/") && (t.Gate || t.Approval || uses) {
			p.report(line, "policy of %s around %s: audit must be strict, for %s uses a secret or asks a person", one.Subject, one.Server, name)
		}
	}
}

func sortedKeys[V any](all map[Pair]V) []Pair {
	return slices.SortedFunc(maps.Keys(all), func(a, b Pair) int {
		if n := strings.Compare(a.Subject, b.Subject); n != 0 {
			return n
		}
		return strings.Compare(a.Server, b.Server)
	})
}
