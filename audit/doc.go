// Package audit remembers every decision in an order nobody can change unseen.
//
// It protects the record of what was asked, answered and changed from everyone
// who can write to the log's folder but does not hold the signing key: entries
// cannot be edited, dropped, repeated, moved or added without package
// audit/verify saying so. It also protects the people in the record from the
// record itself: every field of an [Entry] is a closed word, a checked name, a
// number or a hash, so that content has no way in.
//
// An entry that [Ticket.Wait] has accepted is on the disk. Several requests
// share one fdatasync: those that arrive while one is running go with the next.
// When the disk refuses, stalls or is swapped under us, nothing is accepted,
// the cause is told in words by [Log.Health], and the log mends itself when the
// cause has gone.
//
// Old segments leave in one way only: [Log.Prune] reduces them to their signed
// first and last lines, when the operator holds a copy, and says so in the log.
// A log that cannot be used any more is moved aside by [SetAside], never
// removed, and the one in its place begins with where it ended ([Origin]).
//
// What it does not do: it cannot stop the holder of today's signing key, or
// root, from rewriting the open segment, nor notice that log and vault were
// both put back to the same older moment. A copy of the head kept elsewhere
// does (see audit/verify). It does not judge, it does not know what an entry
// means, and it never reads the vault.
//
// The format is drawn in docs/audit-format.md and beside the code that writes
// it: encode.go (line), sign.go (signature), segment.go (files), prune.go,
// aside.go, origin.go, keyfile.go.
package audit
