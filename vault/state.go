package vault

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// Labels of the state row. The second has one field more, before the uses; it is written only when there is
// something in it, so that a vault without is one that builds of before it open.
const (
	stateLabel     = "sb/state/v1"
	stateLabelMore = "sb/state/v2"
)

// Checkpoint is a position in the audit log. The zero value means that there is no log yet.
type Checkpoint struct {
	Segment uint32
	Seq     uint64
	Hash    [32]byte // SHA-256 of the entry's whole line
}

// State is what the vault remembers about itself and about the log.
type State struct {
	Generation uint64   // number of mutations so far
	Count      uint64   // number of rows that Digest covers
	Digest     [32]byte // what the log publishes of this generation
	// Checkpoint is the newest position of the log the vault knows of: a log that does not reach it was cut.
	Checkpoint Checkpoint
	// UsesAt is the position at which Uses is exact; uses after it are counted from the log. It may be older than
	// Checkpoint, because a mutation moves Checkpoint but knows nothing of uses.
	UsesAt Checkpoint
	Uses   map[string]uint64 // by grant ID
	// Meters is what the caller counts beside, exact at UsesAt like Uses; the vault does not look into it.
	Meters []byte `json:",omitempty"`
	// HighWater is the latest wall-clock time seen; zero if none was.
	HighWater time.Time
	BootID    string // boot during which HighWater was written
}

// Marks is what WriteCheckpoint stores. It replaces the previous marks as a whole.
type Marks struct {
	Checkpoint Checkpoint
	Uses       map[string]uint64 // exact as of Checkpoint
	Meters     []byte            // likewise; empty: none
	HighWater  time.Time
	BootID     string
}

// stateRow is the plaintext of the state row.
type stateRow struct {
	generation uint64
	count      uint64
	acc        acc
	checkpoint Checkpoint
	usesAt     Checkpoint
	highWater  time.Time
	bootID     string
	meters     []byte // nil: none
	uses       map[string]uint64
}

func (s *stateRow) setMarks(m Marks) {
	s.checkpoint, s.usesAt, s.uses = m.Checkpoint, m.Checkpoint, maps.Clone(m.Uses)
	s.meters = nil
	if len(m.Meters) > 0 {
		s.meters = slices.Clone(m.Meters)
	}
	s.highWater, s.bootID = m.HighWater, m.BootID
}

func (s *stateRow) encode() []byte {
	sum := s.acc.bytes()
	label, fields := stateLabel, 8+len(s.uses)
	if len(s.meters) > 0 {
		label, fields = stateLabelMore, fields+1
	}
	b := newLP(make([]byte, 0, 256+40*len(s.uses)+len(s.meters)), fields).text(label)
	b = b.u64(s.generation).u64(s.count).bytes(sum[:])
	b = b.position(s.checkpoint).position(s.usesAt).time(s.highWater).text(s.bootID)
	if label == stateLabelMore {
		b = b.bytes(s.meters)
	}
	for _, id := range slices.Sorted(maps.Keys(s.uses)) {
		var mark int
		b, mark = b.nest(2)
		b = b.text(id).u64(s.uses[id]).endNest(mark)
	}
	return b
}

func decodeState(p []byte) (*stateRow, error) {
	r := readLP(p)
	label := r.text()
	if label != stateLabel && label != stateLabelMore {
		return nil, errEncoding
	}
	s := &stateRow{generation: r.u64(), count: r.u64(), acc: accFrom(r.hash())}
	s.checkpoint, s.usesAt = r.position(), r.position()
	s.highWater, s.bootID = r.time(), r.text()
	if label == stateLabelMore {
		if s.meters = slices.Clone(r.bytes()); len(s.meters) == 0 {
			return nil, errEncoding
		}
	}
	s.uses = make(map[string]uint64, min(r.left, 1<<16))
	last := ""
	for r.more() {
		n := r.nested()
		id, uses := n.text(), n.u64()
		if n.done() != nil || id <= last {
			return nil, errEncoding
		}
		last = id
		s.uses[id] = uses
	}
	if err := r.done(); err != nil {
		return nil, err
	}
	return s, nil
}

func (b lp) position(c Checkpoint) lp {
	b, mark := b.nest(3)
	return b.u32(c.Segment).u64(c.Seq).bytes(c.Hash[:]).endNest(mark)
}

func (r *lpReader) position() Checkpoint {
	n := r.nested()
	c := Checkpoint{Segment: n.u32(), Seq: n.u64(), Hash: n.hash()}
	if n.done() != nil {
		r.bad = true
	}
	return c
}

// public turns the row into what callers see.
func (s *stateRow) public(digest [32]byte) State {
	return State{
		Generation: s.generation,
		Count:      s.count,
		Digest:     digest,
		Checkpoint: s.checkpoint,
		UsesAt:     s.usesAt,
		Uses:       maps.Clone(s.uses),
		Meters:     slices.Clone(s.meters),
		HighWater:  s.highWater,
		BootID:     s.bootID,
	}
}

// openState reads and opens the state row of one transaction.
func (k *keyset) openState(s *scratch, tx rowTx) (*stateRow, error) {
	stored, err := tx.get(bucketState, rowState)
	if err != nil {
		return nil, err
	}
	if stored == nil {
		return nil, fmt.Errorf("%w: no state row", ErrDamaged)
	}
	plain, err := k.open(s, nil, bucketState, rowState, stored)
	if err != nil {
		return nil, err
	}
	row, err := decodeState(plain)
	if err != nil {
		return nil, fmt.Errorf("state row: %w: %w", ErrIntegrity, err)
	}
	return row, nil
}

func (k *keyset) writeState(s *scratch, tx rowTx, row *stateRow) error {
	stored, err := k.seal(s, bucketState, rowState, k.newest, row.encode())
	if err != nil {
		return err
	}
	return tx.put(bucketState, rowState, stored)
}
