package verify

import (
	"fmt"
	"strings"
	"time"
)

// Exit codes of `sbctl audit verify`, as the contract has them.
const (
	ExitProven   = 0 // consistent, and equal to an anchor
	ExitUnproven = 1 // consistent, but nothing says whose log it is
	ExitFault    = 5 // somebody or something changed it
)

// Report is what was found.
type Report struct {
	VaultID  string
	Genesis  string // SHA-256 of the first line, lower-case hex
	Segments int    // files that were read
	Entries  uint64 // entries that were read and are good
	Applied  uint64 // highest generation of the vault that an op.applied tells of; 0: none
	Last     Point  // newest entry that is vouched for

	Signatures uint64 // how many were checked
	Pruned     []Pruned
	Voided     []Voided
	InFlight   int64 // bytes behind Last that the running daemon was still writing

	// What a crash leaves in a log at rest, and the next start mends. It is a
	// Fault all the same, because files alone cannot tell it from a cut.
	Torn     int64 // bytes of an unfinished commit behind Last, which the next start sets aside
	Rotating bool  // the newest segment was handed over to one that was not made yet

	Origin *Origin // what the log says of an older one; nil: it began with nothing before it
	Bundle *Span   // what a bundle is of; nil: this is no bundle

	Anchors []string // what the log was held against, and equals: daemon, genesis, expect
	Notes   []string // what a reader should know although it is no fault
	Fault   *Fault   // nil: none
}

// Unfinished reports whether the fault is nothing but what a crash leaves.
func (r *Report) Unfinished() bool { return r.Torn > 0 || r.Rotating }

// Origin is the end of an older log of the same vault, in whose place this one
// was begun.
type Origin struct {
	Cause string // RESTORED or SET_ASIDE
	Last  Point  // newest entry that was known of it; zero: none was
}

// String says it in one line.
func (o *Origin) String() string {
	if o.Last.Seq == 0 {
		return fmt.Sprintf("begun anew (%s); of the log before it nothing was known", o.Cause)
	}
	return fmt.Sprintf("begun anew (%s), where entry %d of the log before it ended: %s", o.Cause, o.Last.Seq, o.Last.Hash)
}

// Span is the range that a bundle was made for.
type Span struct {
	Since, Until time.Time // zero: from the first, up to the newest
	Whole        []uint32  // segments that are in it whole
	Stubs        []Pruned  // segments of which only the ends are in it
}

// Point is an entry by its seq and the SHA-256 of its line in hex.
type Point struct {
	Seq  uint64
	Hash string
}

// Pruned is a closed segment of which only the first and last entry are left.
type Pruned struct {
	Segment     uint32
	First, Last uint64 // seqs that it held
}

// Voided is the end of an abandoned segment. It does not count, and was not read.
type Voided struct {
	Segment uint32
	Offset  int64
	Bytes   int64 // how much stands there
}

// Fault is the first place where the log is not what was written.
type Fault struct {
	Seq     uint64 // the first entry that is bad or missing; 0 when it is no entry that is bad, but a bundle
	Segment uint32
	File    string // name within the folder or bundle; empty when it is the file that is missing
	Problem string
}

func (f *Fault) Error() string {
	where := f.File
	if where == "" && f.Segment > 0 {
		where = fmt.Sprintf("segment %d", f.Segment)
	}
	switch {
	case f.Seq > 0:
		return fmt.Sprintf("entry %d (%s): %s", f.Seq, where, f.Problem)
	case where == "":
		return f.Problem
	}
	return where + ": " + f.Problem
}

// ExitCode returns ExitProven, ExitUnproven or ExitFault.
func (r *Report) ExitCode() int {
	switch {
	case r.Fault != nil:
		return ExitFault
	case len(r.Anchors) == 0:
		return ExitUnproven
	}
	return ExitProven
}

// String says the result in one line.
func (r *Report) String() string {
	if r.Fault != nil {
		return "not intact: " + r.Fault.Error()
	}
	entries, segments := "entries", "segments"
	if r.Entries == 1 {
		entries = "entry"
	}
	if r.Segments == 1 {
		segments = "segment"
	}
	extent := fmt.Sprintf("%d %s in %d %s, up to entry %d", r.Entries, entries, r.Segments, segments, r.Last.Seq)
	if len(r.Anchors) == 0 {
		return "self-consistent, origin unproven: " + extent
	}
	return "intact: " + extent + ", held against " + strings.Join(r.Anchors, " and ")
}
