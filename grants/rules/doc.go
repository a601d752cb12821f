// Package rules judges one call of a tool by the policy that is around one MCP
// server for one subject: lists of tools, rules about arguments, limits, a
// circuit breaker, a budget, and where a person is asked.
//
// It protects what a server can do from the agent that may call it. A grant says
// that a subject may call a tool at all; a policy takes away from that, and never
// adds. No policy means no limits.
//
// It is pure: time and resolved paths come in with the question, what was counted
// stands in a [Meter] that belongs to the caller, and a [Verdict] comes out. Judging
// changes nothing: [Compiled.Take] counts when the call is forwarded and
// [Compiled.Settle] when it ended. A caller that holds one lock around Judge and
// Take never forwards more than the policy allows.
//
// The chain, in this order: tools that are denied, tools that are allowed, rules
// about arguments, number of calls, runtime, rate, circuit breaker, budget,
// approval. What blocks ends it; what asks for a person does not, so that a call
// which is blocked anyway never becomes a question.
//
// What it does not do: it does not know which process a server is, and it reads no
// documents (package policy does).
package rules
