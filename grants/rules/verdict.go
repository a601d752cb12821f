package rules

import "time"

// Names of the policies of the chain, as agents and the log see them.
const (
	DeniedToolsPolicy    = "DeniedToolsPolicy"
	AllowedToolsPolicy   = "AllowedToolsPolicy"
	GranularAccessPolicy = "GranularAccessPolicy"
	MaxToolCallsPolicy   = "MaxToolCallsPolicy"
	MaxRuntimePolicy     = "MaxRuntimePolicy"
	RateLimitPolicy      = "RateLimitPolicy"
	CircuitBreakerPolicy = "CircuitBreakerPolicy"
	BudgetPolicy         = "BudgetPolicy"
	ApprovalPolicy       = "ApprovalPolicy"
)

// Call is one call that is to be judged.
type Call struct {
	Tool string
	Args Args
	Now  time.Time // wall clock
}

// Outcome is what a verdict comes to.
type Outcome uint8

// Outcomes. The zero Outcome is not valid, and no call is forwarded on it.
const (
	Blocked Outcome = iota + 1
	Killed          // blocked, and the session with it
	Asked           // forwarded once a person has approved
	Forwarded
)

// Verdict is the answer of a policy.
type Verdict struct {
	Outcome Outcome
	Policy  string   // that decided; empty when nothing stood against the call
	Action  Action   // of that policy; empty likewise
	Warned  []string // policies that noted something without stopping the call, in order
	Rule    string   // id of the rule about arguments that decided; empty for none
	Detail  string   // in words, for the operator only
	Trace   []Step   // of Explain only
}

// Step is one step of a verdict, for the operator.
type Step struct {
	Policy string
	Result string // pass, warn, block, kill or ask
	Detail string
}

// End is how a forwarded call ended.
type End uint8

// Ends. The zero End is not valid and counts as nothing.
const (
	EndOK        End = iota + 1
	EndToolError     // a result that says isError
	EndError         // an error
	EndTransport     // no answer
	EndCancelled     // nobody waited for the answer; counts as nothing
)
