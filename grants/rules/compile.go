package rules

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"time"
)

var (
	errMeter = errors.New("not what was written of a meter")
	errTODO  = errors.New("not compiled")
)

// Resolver resolves the links in an absolute path, in the part of it that exists.
type Resolver func(path string) (string, error)

// Compiled is a [Policy] that judges. It is fixed and safe for concurrent use.
type Compiled struct {
	policy          Policy
	version, limits string
	resolve         Resolver
}

// Compile makes a policy ready to judge. resolve may be nil: paths are cleaned then,
// but not resolved. The error of what [Policy.Validate] refuses is a [*Error].
func Compile(p Policy, resolve Resolver) (*Compiled, error) { return nil, errTODO }

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
func (c *Compiled) AllowsMethod(method string) bool { return false }

// Offers reports whether a tool may be called at all, as far as the lists of tools
// say: what is not offered is not listed.
func (c *Compiled) Offers(tool string) bool { return false }

// Judge judges a call. It changes nothing and never returns an invalid verdict.
func (c *Compiled) Judge(m *Meter, call Call) Verdict {
	return Verdict{Outcome: Blocked, Action: Block}
}

// Explain is Judge with its trace.
func (c *Compiled) Explain(m *Meter, call Call) Verdict { return c.Judge(m, call) }

// Cost returns what a call of tool costs, in millionths of the budget's unit; 0
// without a budget.
func (c *Compiled) Cost(tool string) uint64 { return 0 }

// Take counts a call that is being forwarded, also when a person approved it.
func (c *Compiled) Take(m *Meter, call Call) Cost { return Cost{} }

// Retake is Take of a call that the log tells of: it was forwarded then, and cost
// that much.
func (c *Compiled) Retake(m *Meter, tool string, at time.Time, micros uint64) Cost { return Cost{} }

// Undo gives back what Take took for a call that was not forwarded after all.
func (c *Compiled) Undo(m *Meter, cost Cost) {}

// Settle notes how a forwarded call ended.
func (c *Compiled) Settle(m *Meter, tool string, end End, now time.Time) {}

func version(parts ...any) string {
	canonical, err := json.Marshal(parts)
	if err != nil {
		panic(err) // a policy holds nothing that JSON cannot write
	}
	sum := sha256.Sum256(canonical)
	return hex.EncodeToString(sum[:8])
}
