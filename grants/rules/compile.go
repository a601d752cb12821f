package rules

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"iter"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Resolver resolves the links in an absolute path, in the part of it that exists.
type Resolver func(path string) (string, error)

// Compiled is a [Policy] that judges. It is fixed and safe for concurrent use.
type Compiled struct {
	policy          Policy
	version, limits string
	resolve         Resolver

	denied, allowed, approval map[string]bool
	rules                     map[string][]*rule // by tool, in their order

	// named are the tools that the policy says something about, and folded the same by
	// their names in lower case: see like.
	named  map[string]bool
	folded map[string][]string
}

// rule is a [Rule] that judges.
type rule struct {
	id          string
	number      int // in the list, from 1
	action      Action
	allow, deny []argument // sorted
}

// argument is what a rule wants of one argument.
type argument struct {
	key   string
	steps []string
	matcher
}

// Compile makes a policy ready to judge. resolve may be nil: paths are cleaned then,
// but not resolved. The error is a [*Error].
func Compile(p Policy, resolve Resolver) (*Compiled, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	p = p.Canonical()
	c := &Compiled{
		policy: p, version: p.Version(), limits: p.LimitsVersion(), resolve: resolve,
		denied: setOf(p.Rules.Security.DeniedTools), allowed: setOf(p.Rules.Security.AllowedTools),
		approval: setOf(p.Rules.Security.RequireApproval), rules: map[string][]*rule{},
		named: map[string]bool{}, folded: map[string][]string{},
	}
	for i := range p.Rules.Security.Granular {
		r := &p.Rules.Security.Granular[i]
		c.rules[r.Tool] = append(c.rules[r.Tool], &rule{
			id: ruleID(r), number: i + 1, action: r.Action, allow: compileMatchers(r.AllowIf), deny: compileMatchers(r.DenyIf),
		})
	}
	c.name(slices.Values(p.Rules.Security.DeniedTools))
	c.name(slices.Values(p.Rules.Security.AllowedTools))
	c.name(slices.Values(p.Rules.Security.RequireApproval))
	c.name(maps.Keys(c.rules))
	if b := p.Rules.Limits.Budget; b != nil {
		c.name(maps.Keys(b.ToolCosts))
	}
	return c, nil
}

// name notes tools that the policy says something about.
func (c *Compiled) name(tools iter.Seq[string]) {
	for tool := range tools {
		if !c.named[tool] {
			c.named[tool] = true
			folded := strings.ToLower(tool)
			c.folded[folded] = append(c.folded[folded], tool)
		}
	}
}

// like returns the names under which the policy may say something about a tool: its
// own where the policy holds it, else those that differ in case alone, as some servers
// do not mind that.
func (c *Compiled) like(tool string) []string {
	if c.named[tool] {
		return []string{tool}
	}
	if names := c.folded[strings.ToLower(tool)]; len(names) > 0 {
		return names
	}
	return []string{tool}
}

// holds reports whether set holds a tool, in whatever case.
func (c *Compiled) holds(set map[string]bool, tool string) bool {
	return slices.ContainsFunc(c.like(tool), func(name string) bool { return set[name] })
}

// rulesOf are the rules about a tool, in their order.
func (c *Compiled) rulesOf(tool string) []*rule {
	names := c.like(tool)
	if len(names) == 1 {
		return c.rules[names[0]]
	}
	var all []*rule
	for _, name := range names {
		all = append(all, c.rules[name]...)
	}
	slices.SortFunc(all, func(a, b *rule) int { return a.number - b.number })
	return all
}

func setOf(list []string) map[string]bool {
	set := make(map[string]bool, len(list))
	for _, one := range list {
		set[one] = true
	}
	return set
}

func compileMatchers(all map[string]Matcher) []argument {
	var compiled []argument
	for _, key := range slices.Sorted(maps.Keys(all)) {
		steps, _ := splitKey(key)
		compiled = append(compiled, argument{key, steps, compileMatcher(all[key])})
	}
	return compiled
}

// compileMatcher compiles what was checked.
func compileMatcher(m Matcher) matcher {
	compiled := matcher{Matcher: m}
	if m.Regex != "" {
		compiled.regex = regexp.MustCompile(m.Regex)
	}
	return compiled
}

// ruleID names a rule by what it says, wherever it stands.
func ruleID(r *Rule) string {
	c := *r
	c.AllowIf, c.DenyIf = canonicalMatchers(r.AllowIf), canonicalMatchers(r.DenyIf)
	return version(c)
}

// Policy returns what was compiled. It must not be changed.
func (c *Compiled) Policy() *Policy { return &c.policy }

// Version returns [Policy.Version].
func (c *Compiled) Version() string { return c.version }

// LimitsVersion returns [Policy.LimitsVersion].
func (c *Compiled) LimitsVersion() string { return c.limits }

// Observes reports whether the rules only log at that time.
func (c *Compiled) Observes(now time.Time) bool { return now.Before(c.policy.ObserveUntil) }

// Runtime returns how long a session may take, and what happens then; 0: no limit.
func (c *Compiled) Runtime() (time.Duration, Action) {
	return c.policy.Rules.Limits.MaxRuntime, c.policy.Rules.OnViolation
}

// AllowsMethod reports whether the policy lets a method pass that is not known to be
// harmless. method is trimmed and in lower case.
func (c *Compiled) AllowsMethod(method string) bool {
	_, found := slices.BinarySearch(c.policy.Methods, method)
	return found
}

// Offers reports whether a tool may be called at all, as far as the lists of tools
// say: what is not offered is not listed. While the rules only log, all are.
func (c *Compiled) Offers(tool string) bool {
	return !c.policy.Rules.OnViolation.stops() || !c.holds(c.denied, tool) && (len(c.allowed) == 0 || c.allowed[tool])
}

// version is the first 16 hex digits of the SHA-256 of parts as JSON.
func version(parts ...any) string {
	canonical, err := json.Marshal(parts)
	if err != nil {
		panic(err) // a policy holds nothing that JSON cannot write
	}
	sum := sha256.Sum256(canonical)
	return hex.EncodeToString(sum[:8])
}
