package audit

import "errors"

// Copy says that the operator holds a copy of a segment elsewhere.
type Copy struct {
	Segment uint32
	SHA256  [32]byte // of the whole file
}

// Pruned is a segment that is reduced to its first and its last line.
type Pruned struct {
	Segment     uint32
	First, Last uint64 // seqs that it held
	Bytes       int64  // how much is freed
}

// Prune reduces closed segments to their signed first and last lines.
func (l *Log) Prune(copies []Copy, dryRun bool) ([]Pruned, error) {
	return nil, errors.New("pruning: not made yet")
}
