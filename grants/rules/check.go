package rules

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"path"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"subjectbroker/grants"
)

const (
	maxToolName = 256 // bytes in the name of a tool: whatever can be granted can be named
	maxMethods  = 128 // methods in a list
	maxMatchers = 64  // arguments in one side of a rule
	maxChoices  = 256 // texts in one matcher
	maxKey      = 512 // bytes in the name of an argument, or a pointer
	maxCurrency = 16  // bytes in the word for a currency
)

// Problem is one thing that is wrong with a policy, or odd in it.
type Problem struct {
	Where string // key in a document, such as rules.security.granular_rules[0].allow_if.path
	Text  string
}

// Error says why a policy was refused.
type Error struct{ Problems []Problem } // at least one

// Error is the first problem.
func (e *Error) Error() string { return e.Problems[0].Where + ": " + e.Problems[0].Text }

// Validate returns a [*Error] that says what is wrong with a policy. It is wrong, too,
// when a part of it can never do anything.
func (p *Policy) Validate() error {
	if wrong, _ := p.Check(); len(wrong) > 0 {
		return &Error{wrong}
	}
	return nil
}

// Check returns what is wrong with a policy, and what is legal but likely not meant.
func (p *Policy) Check() (wrong, odd []Problem) {
	c := checker{policy: p}
	c.checkHead()
	if !c.checkLengths() { // what is too long is not read
		return c.wrong, c.odd
	}
	c.checkLimits()
	c.checkTools()
	for i := range p.Rules.Security.Granular {
		c.checkRule(i)
	}
	if p.Audit == Grouped {
		c.checkGrouped()
	}
	return c.wrong, c.odd
}

// checker gathers problems.
type checker struct {
	policy     *Policy
	wrong, odd []Problem
	first      map[string]int // the first rule of each id
	programs   int            // instructions of all patterns so far
}

func (c *checker) report(where, format string, args ...any) {
	c.wrong = append(c.wrong, Problem{where, fmt.Sprintf(format, args...)})
}

func (c *checker) warn(where, format string, args ...any) {
	c.odd = append(c.odd, Problem{where, fmt.Sprintf(format, args...)})
}

func (c *checker) need(where string, err error) {
	if err != nil {
		c.report(where, "%v", err)
	}
}

func (c *checker) checkHead() {
	p := c.policy
	c.need("subject", grants.CheckName(p.Subject))
	c.need("server", grants.CheckServer(p.Server))
	if p.Audit != Strict && p.Audit != Grouped {
		c.report("audit", "audit is strict or grouped")
	}
	if p.ApprovalWait < 0 || p.ApprovalWait > MaxApprovalWait || p.ApprovalWait%time.Millisecond != 0 {
		c.report("approvalWait", "approvalWait is from 0s to %s, in whole milliseconds", MaxApprovalWait)
	}
	if p.Owner != "" {
		c.need("owner", grants.CheckName(p.Owner))
	}
	for what, t := range map[string]time.Time{"observeUntil": p.ObserveUntil, "created": p.Created} {
		if y := t.UTC().Year(); y < 1 || y > 9999 {
			c.report(what, "the year must have four digits")
		}
	}
	if len(p.Methods) > maxMethods {
		c.report("methods", "at most %d methods", maxMethods)
	}
	for i, method := range p.Methods[:min(len(p.Methods), maxMethods)] {
		where := fmt.Sprintf("methods[%d]", i)
		switch {
		case !isMethod(method):
			c.report(where, "a method is 1 to 128 lower-case letters, digits or any of / _ - . $ and starts with a letter")
		case IsCall(method):
			c.report(where, "%s is a call of a tool, which the rules judge", method)
		case slices.Contains(p.Methods[:i], method):
			c.report(where, "%s is there twice", method)
		}
	}
	if !c.policy.Rules.OnViolation.valid() {
		c.report("rules.global.on_violation", "%v", errAction)
	}
}

var errAction = errors.New("an action is warn, block, kill or request_approval")

func (a Action) valid() bool {
	return a == Warn || a == Block || a == Kill || a == RequestApproval
}

// IsCall reports whether a method, trimmed and in lower case, is a call of a tool.
func IsCall(method string) bool { return method == "tools/call" || method == "call_tool" }

func isMethod(method string) bool {
	if len(method) == 0 || len(method) > 128 || method[0] < 'a' || method[0] > 'z' {
		return false
	}
	return strings.Trim(method, "abcdefghijklmnopqrstuvwxyz0123456789/_-.$") == ""
}

func (c *checker) checkLimits() {
	const at = "rules.limits."
	l := &c.policy.Rules.Limits
	if l.MaxRuntime != 0 {
		c.span(at+"max_runtime_seconds", l.MaxRuntime)
	}
	if l.MaxToolCalls != nil && *l.MaxToolCalls > math.MaxInt64 {
		c.report(at+"max_tool_calls", "the number is too large")
	}
	if r := l.Rate; r != nil {
		if r.Calls < 1 || r.Calls > MaxPerCall {
			c.report(at+"rate_limit.calls_per_window", "calls_per_window is from 1 to %d", MaxPerCall)
		}
		c.span(at+"rate_limit.window_seconds", r.Window)
	}
	if b := l.Breaker; b != nil {
		if b.Failures < 1 || b.Failures > math.MaxInt32 {
			c.report(at+"circuit_breaker.failure_threshold", "failure_threshold is from 1 to %d", math.MaxInt32)
		}
		c.span(at+"circuit_breaker.reset_timeout_seconds", b.Reset)
		if b.Counts != CountTransport && b.Counts != CountErrors {
			c.report(at+"circuit_breaker.counts", "counts is transport or errors")
		}
	}
	if l.Budget != nil {
		c.checkBudget(at+"budget", l.Budget)
	}
}

func (c *checker) span(where string, d time.Duration) {
	if d < time.Millisecond || d > MaxSpan || d%time.Millisecond != 0 {
		c.report(where, "this is from 0.001 to %d seconds", int64(MaxSpan/time.Second))
	}
}

func (c *checker) checkBudget(at string, b *Budget) {
	if b.Max < 1 || b.Max > MaxMicros {
		c.report(at+".max_cost", "max_cost is from 0.000001 to %d", MaxMicros/1_000_000)
	}
	if b.Warn > 1_000_000 {
		c.report(at+".warn_threshold", "warn_threshold is from 0 to 1")
	}
	if b.Currency == "" || len(b.Currency) > maxCurrency || !utf8.ValidString(b.Currency) || strings.ContainsFunc(b.Currency, func(r rune) bool { return !unicode.IsPrint(r) }) {
		c.report(at+".currency", "currency is a word of 1 to %d bytes", maxCurrency)
	}
	if b.PerCall > MaxMicros {
		c.report(at+".cost_per_call", "cost_per_call is from 0 to %d", MaxMicros/1_000_000)
	}
	dearest := b.PerCall
	for _, tool := range slices.Sorted(maps.Keys(b.ToolCosts)) {
		where := at + ".tool_costs." + tool
		c.need(where, checkToolName(tool))
		c.callable(where, tool)
		if b.ToolCosts[tool] > MaxMicros {
			c.report(where, "what a call costs is from 0 to %d", MaxMicros/1_000_000)
		}
		dearest = max(dearest, b.ToolCosts[tool])
	}
	switch {
	case dearest == 0:
		c.report(at, "no call costs anything: the budget can never be used up")
	case b.PerCall > b.Max:
		c.warn(at, "a call costs more than the whole budget: no call is ever forwarded")
	}
}

func checkToolName(tool string) error {
	ok := len(tool) > 0 && len(tool) <= maxToolName && utf8.ValidString(tool)
	if !ok || strings.ContainsFunc(tool, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return fmt.Errorf("the name of a tool is 1 to %d bytes of UTF-8 text on one line", maxToolName)
	}
	return nil
}

// checkLengths reports lists that are too long, and whether none is.
func (c *checker) checkLengths() bool {
	before := len(c.wrong)
	s := &c.policy.Rules.Security
	if b := c.policy.Rules.Limits.Budget; b != nil && len(b.ToolCosts) > MaxTools {
		c.report("rules.limits.budget.tool_costs", "at most %d tools", MaxTools)
	}
	for _, list := range []struct {
		name  string
		tools []string
	}{{"denied_tools", s.DeniedTools}, {"allowed_tools", s.AllowedTools}, {"require_approval", s.RequireApproval}} {
		if len(list.tools) > MaxTools {
			c.report("rules.security."+list.name, "at most %d tools", MaxTools)
		}
	}
	if len(s.Granular) > MaxTools {
		c.report("rules.security.granular_rules", "at most %d rules", MaxTools)
	}
	return len(c.wrong) == before
}

func (c *checker) checkTools() {
	const at = "rules.security."
	s := &c.policy.Rules.Security
	for _, list := range []struct {
		name  string
		tools []string
	}{{"denied_tools", s.DeniedTools}, {"allowed_tools", s.AllowedTools}, {"require_approval", s.RequireApproval}} {
		for i, tool := range list.tools {
			where := fmt.Sprintf("%s%s[%d]", at, list.name, i)
			c.need(where, checkToolName(tool))
			switch {
			case slices.Contains(list.tools[:i], tool):
				c.report(where, "%q is there twice", tool)
			case list.name == "require_approval":
				c.callable(where, tool)
			case list.name == "allowed_tools" && slices.Contains(s.DeniedTools, tool):
				c.warn(where, "%q is denied as well, and that wins", tool)
			}
		}
	}
}

// callable reports a tool about which something is said although it can never be
// called.
func (c *checker) callable(where, tool string) {
	s := &c.policy.Rules.Security
	switch {
	case !c.policy.Rules.OnViolation.stops():
	case slices.Contains(s.DeniedTools, tool):
		c.report(where, "this can never matter: denied_tools holds %q", tool)
	case len(s.AllowedTools) > 0 && !slices.Contains(s.AllowedTools, tool):
		c.report(where, "this can never matter: allowed_tools leaves %q out", tool)
	}
}

// stops reports whether a violation is the end of a call.
func (a Action) stops() bool { return a == Block || a == Kill }

func (c *checker) checkRule(i int) {
	all := c.policy.Rules.Security.Granular
	r := &all[i]
	at := ruleWhere(i)
	c.need(at+".tool", checkToolName(r.Tool))
	c.callable(at+".tool", r.Tool)
	if !r.Action.valid() {
		c.report(at+".action", "%v", errAction)
	}
	if len(r.AllowIf) == 0 && len(r.DenyIf) == 0 {
		c.report(at, "a rule needs allow_if or deny_if, with arguments")
	}
	before := len(c.wrong)
	c.checkMatchers(at+".allow_if", r.AllowIf)
	c.checkMatchers(at+".deny_if", r.DenyIf)
	if len(c.wrong) > before || c.programs > maxPrograms {
		return
	}
	if key, never := contradiction(r.DenyIf); never {
		c.report(matcherWhere(at+".deny_if", key), "the rule can never match: nothing is all of this at once")
	}
	if key, never := contradiction(r.AllowIf); never {
		c.report(matcherWhere(at+".allow_if", key), "no call could ever pass: nothing is all of this at once")
	}
	id := ruleID(r)
	if j, ok := c.first[id]; ok {
		c.report(at, "the rule is there already, as the %s", ordinal(j))
		return
	}
	if c.first == nil {
		c.first = map[string]int{}
	}
	c.first[id] = i
}

func ruleWhere(i int) string { return fmt.Sprintf("rules.security.granular_rules[%d]", i) }

func matcherWhere(at, key string) string { return at + "." + key }

func ordinal(i int) string { return fmt.Sprintf("%d. of the list", i+1) }

func (c *checker) checkMatchers(at string, all map[string]Matcher) {
	if len(all) > maxMatchers {
		c.report(at, "at most %d arguments", maxMatchers)
	}
	keys := slices.Sorted(maps.Keys(all))
	for _, key := range keys[:min(len(keys), maxMatchers)] {
		where := matcherWhere(at, key)
		if _, ok := splitKey(key); !ok || len(key) > maxKey || !utf8.ValidString(key) {
			c.report(where, "the name of an argument is 1 to %d bytes; one that starts with / is a JSON pointer, in which ~0 stands for ~ and ~1 for /", maxKey)
		}
		m := all[key]
		if m.Regex != "" && c.programs > maxPrograms {
			continue // it was reported
		}
		size, err := m.check()
		if err != nil {
			c.report(where, "%v", err)
			continue
		}
		if c.programs += size; c.programs > maxPrograms {
			c.report(where, "the patterns of a policy are too large together, from this one on")
		}
		if m.Regex != "" && isPathLike(key) {
			c.warn(where, "a regex sees text, and /data/../etc/passwd begins with /data/: path is the matcher for files")
		}
		if slices.ContainsFunc(m.Prefix, func(prefix string) bool { return strings.Contains(prefix, "/") }) {
			c.warn(where, "a prefix sees text, and /data/../etc/passwd begins with /data/: path is the matcher for files, host the one for URLs")
		}
	}
}

// isPathLike reports whether an argument of that name is likely the name of a file.
func isPathLike(key string) bool {
	key = strings.ToLower(key[strings.LastIndexByte(key, '/')+1:])
	for _, word := range []string{"path", "file", "dir", "folder", "cwd", "root"} {
		if strings.Contains(key, word) {
			return true
		}
	}
	return false
}

// check returns what is wrong with a matcher, and how many instructions its pattern
// becomes.
func (m *Matcher) check() (size int, err error) {
	set := 0
	for _, is := range []bool{m.Regex != "", m.Exact != nil, m.OneOf != nil, m.Prefix != nil, m.Path != nil, m.Host != nil} {
		if is {
			set++
		}
	}
	if set != 1 {
		return 0, errors.New("a matcher is a pattern, or one of regex, exact, oneOf, prefix, path and host")
	}
	if m.Regex != "" {
		return checkPattern(m.Regex)
	}
	texts := slices.Concat(m.OneOf, m.Prefix, m.Path, m.Host)
	if m.Exact != nil {
		texts = append(texts, *m.Exact)
	}
	if len(texts) == 0 || len(texts) > maxChoices {
		return 0, fmt.Errorf("a matcher takes from 1 to %d texts", maxChoices)
	}
	for i, text := range texts {
		switch {
		case isLong(text) || !utf8.ValidString(text):
			return 0, fmt.Errorf("the rule can never match: a value of more than %d characters is not looked at", maxValue)
		case slices.Contains(texts[:i], text):
			return 0, errors.New("a text is there twice")
		case m.Prefix != nil && text == "":
			return 0, errors.New("an empty prefix is one of everything")
		case m.Path != nil:
			if path.Clean(text) != text || strings.HasPrefix(text, "..") && !strings.HasPrefix(text, "...") || strings.HasPrefix(text, "~") || strings.ContainsRune(text, 0) {
				return 0, errors.New("a path is absolute, or relative without .. and ~, and clean")
			}
		case m.Host != nil:
			host, ok := canonicalHost(strings.TrimPrefix(text, "*."))
			if !ok || host != strings.TrimPrefix(text, "*.") {
				return 0, errors.New("a host is the name of one in lower case or an address, without a scheme or a port; *.example.com is every one below example.com")
			}
		}
	}
	return 0, nil
}

// contradiction returns an argument that can never be what a rule wants of it: the
// texts that one matcher leaves are none of what the others find.
func contradiction(all map[string]Matcher) (key string, never bool) {
	groups := map[string][]string{} // keys by the place that they name
	for _, key := range slices.Sorted(maps.Keys(all)) {
		steps, _ := splitKey(key)
		place := strings.Join(steps, "\x00")
		groups[place] = append(groups[place], key)
	}
	for _, place := range slices.Sorted(maps.Keys(groups)) {
		keys := groups[place]
		compiled := make([]matcher, 0, len(keys))
		for _, key := range keys {
			compiled = append(compiled, compileMatcher(all[key]))
		}
		possible := func(text string) bool { return matchAll(compiled, text) }
		for _, key := range keys {
			m := all[key]
			texts := m.OneOf
			if m.Exact != nil {
				texts = []string{*m.Exact}
			}
			if len(texts) > 0 && !slices.ContainsFunc(texts, possible) {
				return key, true
			}
		}
	}
	return "", false
}

// matchAll reports whether all may find text, which is a string or the JSON text of
// something else.
func matchAll(all []matcher, text string) bool {
	kinds := []byte{'"'}
	if _, isNumber := canonicalNumber(text); isNumber {
		kinds = append(kinds, '0')
	}
	return slices.ContainsFunc(kinds, func(kind byte) bool {
		return !slices.ContainsFunc(all, func(m matcher) bool {
			return m.Path == nil && m.Host == nil && !m.finds(&value{kind: kind, text: text}, true, nil)
		})
	})
}

// checkGrouped refuses what must not be less durable than an acquire.
func (c *checker) checkGrouped() {
	const why = "a person is asked here, and then the entry must be durable: audit must be strict"
	r := &c.policy.Rules
	if r.OnViolation == RequestApproval {
		c.report("rules.global.on_violation", why)
	}
	if len(r.Security.RequireApproval) > 0 {
		c.report("rules.security.require_approval", why)
	}
	for i := range r.Security.Granular {
		if r.Security.Granular[i].Action == RequestApproval {
			c.report(ruleWhere(i)+".action", why)
		}
	}
}
