package verify

import (
	"crypto/sha256"
	"errors"
	"fmt"
)

// brokenChain says which of two neighbours is bad when the prev of the later is
// not the hash of the earlier: the one that no signature vouches for.
func (w *walk) brokenChain(l *line, lines *lineReader) error {
	here := w.fault(w.seq, "its prev is not the hash of the entry before")
	if w.key == nil || w.signed.seq == w.seq-1 && w.validSigned() {
		return here
	}
	before := w.fault(w.seq-1, "it was changed: the next entry has another hash of it")
	seq := l.seq
	for {
		if l.signed() {
			if valid(w.key, l) {
				return before
			}
			return here
		}
		hash := sha256.Sum256(l.raw)
		raw, err := lines.next()
		if err != nil || l.scan(raw) != nil || l.seq != seq+1 || l.prev != hash {
			return here
		}
		seq++
	}
}

// earliest looks whether there is a fault before the one that was stumbled
// over: entries may have been changed and chained anew, which only their
// signatures tell. An invalid signature at the fault itself is no news; one
// before it, from which the chain went on, means that no entry since the valid
// one before that is vouched for.
func (w *walk) earliest(err error) error {
	fault, ok := errors.AsType[*Fault](err)
	if !ok || w.key == nil || w.signed.raw == nil || w.validSigned() {
		return err
	}
	lines := newLines(w.file, w.offset)
	vouched := uint64(0)
	var l line
	for {
		raw, err := lines.next()
		if err != nil || l.scan(raw) != nil || l.seq >= fault.Seq {
			return fault
		}
		if !l.signed() {
			continue
		}
		w.report.Signatures++
		if !valid(w.key, &l) {
			return w.unvouched(vouched, l.seq)
		}
		vouched = l.seq
	}
}

// unvouched is the fault of a chain that goes on from an invalid signature.
func (w *walk) unvouched(vouched, invalid uint64) *Fault {
	if vouched+1 == invalid {
		return w.fault(invalid, "its signature is not valid")
	}
	return w.fault(vouched+1, fmt.Sprintf("no valid signature vouches for the entries up to %d", invalid))
}
