package rules

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"regexp"
	"slices"
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
	}
	for i := range p.Rules.Security.Granular {
		r := &p.Rules.Security.Granular[i]
		c.rules[r.Tool] = append(c.rules[r.Tool], &rule{
			id: ruleID(r), number: i + 1, action: r.Action, allow: compileMatchers(r.AllowIf), deny: compileMatchers(r.DenyIf),
		})
	}
	return c, nil
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
	return !c.policy.Rules.OnViolation.stops() || !c.denied[tool] && (len(c.allowed) == 0 || c.allowed[tool])
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
