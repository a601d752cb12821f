// Package grants says who may do what, and why not.
//
// It protects what a subject was not given from that subject. Nothing is
// allowed until a grant allows it; any matching deny wins over every allow; of
// several allows exactly one is charged, always the same one. A denial does the
// same lookups whether or not the thing that was asked for exists.
//
// A run under a [Profile] has a [Ceiling], which is fixed when the run opens and
// only takes away: inside it the subject's grants are judged live.
//
// It is pure. There is no I/O, no clock and no counter in here: the time, the
// tier of the run and the number of past uses come in with each [Request], and
// a [Decision] comes out. [Explain] is the same evaluator as [Decide] with
// somebody listening, so that the two cannot disagree.
//
// What it does not do: it does not know who is asking (the daemon binds a run
// to its subject), does not reserve uses (the daemon counts them under the
// log's mutex), and does not hide its findings: [Decision.Cause] and the trace
// are for the operator and never for the subject.
//
// Names, capabilities and patterns are exact bytes. Nothing is folded, trimmed
// or normalised.
package grants
