package rules

import (
	"slices"
	"time"
)

// Audit says how durable the entry of a forwarded call is before it is forwarded.
type Audit string

// Audits. The empty Audit is not valid.
const (
	Strict  Audit = "strict"  // as durable as that of an acquire
	Grouped Audit = "grouped" // in order, and durable within 50 ms
)

// Action is what is done about a violation. The list is closed.
type Action string

// Actions. The empty Action is none.
const (
	Warn            Action = "warn"             // the call is forwarded, and the violation noted
	Block           Action = "block"            // the call is refused
	Kill            Action = "kill"             // the call is refused, and every later one of the session
	RequestApproval Action = "request_approval" // a person is asked
)

// Defaults and limits of the fields of a [Policy].
const (
	DefaultApprovalWait = 25 * time.Second
	MaxApprovalWait     = 5 * time.Minute
	DefaultCost         = 10_000 // of a call, in millionths: 0.01
	DefaultCurrency     = "USD"
	DefaultWarn         = 800_000 // of a budget, in millionths: 0.8
	DefaultWindow       = time.Minute
	DefaultFailures     = 5
	DefaultReset        = time.Minute

	MaxTools   = 1024                  // names in each list of a policy, and rules
	MaxPerCall = 10_000                // calls in the window of a rate limit
	MaxSpan    = 366 * 24 * time.Hour  // runtime, windows and time-outs
	MaxMicros  = 1_000_000_000_000_000 // a thousand million units
)

// Policy is the rules around one server for one subject.
type Policy struct {
	Subject      string        `json:"subject"`
	Server       string        `json:"server"`
	Audit        Audit         `json:"audit"`
	ApprovalWait time.Duration `json:"approvalWait"` // how long a call waits for a person, 0 to [MaxApprovalWait]
	// ShareApprovals: identical calls that wait for a person at the same time share one
	// request.
	ShareApprovals bool `json:"shareApprovals,omitempty"`

	Methods      []string  `json:"methods,omitempty"`     // beyond those known to be harmless that pass, sorted
	ObserveUntil time.Time `json:"observeUntil,omitzero"` // until then the rules only log; zero: they are in force
	Rules        Rules     `json:"rules"`
	Created      time.Time `json:"created,omitzero"`
	Owner        string    `json:"owner,omitempty"` // owner of the document that declared it; empty: no document did
}

// Rules is what judges.
type Rules struct {
	OnViolation Action   `json:"onViolation"` // of the lists of tools and of the limits
	Limits      Limits   `json:"limits"`
	Security    Security `json:"security"`
}

// Limits are what is counted. Nil fields limit nothing.
type Limits struct {
	MaxToolCalls *uint64       `json:"maxToolCalls,omitempty"` // forwarded in one session; 0: none
	MaxRuntime   time.Duration `json:"maxRuntime,omitempty"`   // of a session, whole milliseconds; 0: no limit
	Rate         *Rate         `json:"rate,omitempty"`
	Budget       *Budget       `json:"budget,omitempty"`
	Breaker      *Breaker      `json:"breaker,omitempty"`
}

// Rate limits calls in every window of time.
type Rate struct {
	Calls  uint64        `json:"calls"`  // 1 to [MaxPerCall]
	Window time.Duration `json:"window"` // whole milliseconds
}

// Budget limits what calls cost, over all sessions. Amounts are millionths of the
// currency's unit.
type Budget struct {
	Max       uint64            `json:"max"`
	Currency  string            `json:"currency"` // a word for people
	Warn      uint64            `json:"warn"`     // part of Max from which on it is noted, in millionths
	PerCall   uint64            `json:"perCall"`
	ToolCosts map[string]uint64 `json:"toolCosts,omitempty"` // where a tool costs something else
}

// Counts says which ends of a call a circuit breaker counts as failures.
type Counts string

// Counts.
const (
	CountTransport Counts = "transport" // the server did not answer
	CountErrors    Counts = "errors"    // that, answers that are errors, and results that say isError
)

// Breaker stops calls of a tool that keeps failing. There is one for each tool:
// after Failures in a row it opens, after Reset one call may probe.
type Breaker struct {
	Failures uint64        `json:"failures"`
	Reset    time.Duration `json:"reset"` // whole milliseconds
	Counts   Counts        `json:"counts"`
}

// Security is what may be called, and with what.
type Security struct {
	DeniedTools     []string `json:"deniedTools,omitempty"`
	AllowedTools    []string `json:"allowedTools,omitempty"` // empty: every tool
	RequireApproval []string `json:"requireApproval,omitempty"`
	Granular        []Rule   `json:"granular,omitempty"` // in the order in which they are judged
}

// Rule is about the arguments of one tool. It is violated when all of DenyIf match,
// or when not all of AllowIf do.
type Rule struct {
	Tool    string             `json:"tool"`
	AllowIf map[string]Matcher `json:"allowIf,omitempty"` // by name of an argument, or JSON pointer
	DenyIf  map[string]Matcher `json:"denyIf,omitempty"`
	Action  Action             `json:"action"`
}

// Matcher matches one argument. Exactly one field is set. What is no string is
// matched as its JSON text, except by Path and Host, which judge only strings.
type Matcher struct {
	Regex  string   `json:"regex,omitempty"`  // RE2, anywhere in the value
	Exact  *string  `json:"exact,omitempty"`  // the whole value
	OneOf  []string `json:"oneOf,omitempty"`  // one of these is the whole value
	Prefix []string `json:"prefix,omitempty"` // the value begins with one of these
	Path   []string `json:"path,omitempty"`   // the value is one of these files or folders, or below it
	Host   []string `json:"host,omitempty"`   // the value is a URL of one of these hosts; "*.example.com" for those below it
}

// Canonical returns p in the one form in which it is stored, compared and judged:
// lists sorted that have no order, and no time zones.
func (p *Policy) Canonical() Policy {
	c := *p
	c.Methods = sorted(p.Methods)
	c.ObserveUntil, c.Created = p.ObserveUntil.UTC(), p.Created.UTC()
	s := &c.Rules.Security
	s.DeniedTools, s.AllowedTools, s.RequireApproval = sorted(s.DeniedTools), sorted(s.AllowedTools), sorted(s.RequireApproval)
	s.Granular = slices.Clone(s.Granular)
	for i := range s.Granular {
		r := &s.Granular[i]
		r.AllowIf, r.DenyIf = canonicalMatchers(r.AllowIf), canonicalMatchers(r.DenyIf)
	}
	return c
}

func canonicalMatchers(all map[string]Matcher) map[string]Matcher {
	var c map[string]Matcher
	for key, m := range all {
		if c == nil {
			c = make(map[string]Matcher, len(all))
		}
		m.OneOf, m.Prefix, m.Path, m.Host = sorted(m.OneOf), sorted(m.Prefix), sorted(m.Path), sorted(m.Host)
		c[key] = m
	}
	return c
}

// sorted returns a sorted copy; an empty list is no list.
func sorted(list []string) []string { return slices.Sorted(slices.Values(list)) }

// Version is the first 16 hex digits of the SHA-256 of what judges: the rules and
// the methods.
func (p *Policy) Version() string {
	c := p.Canonical()
	return version(c.Methods, c.Rules)
}

// LimitsVersion is the same of the limits alone. Meters of another one say nothing.
func (p *Policy) LimitsVersion() string { return version(p.Rules.Limits) }
