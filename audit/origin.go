package audit

import (
	"errors"
	"fmt"
)

// Origin says why a log begins where an older one of the same vault ended. It
// stands in the very first entry, so that the genesis vouches for it:
//
//	cause          RESTORED or SET_ASIDE
//	count          seq of the newest entry that is known of the older log; left out when none is
//	contentSha256  SHA-256 of that entry's line with its newline
type Origin struct {
	Cause string
	Seq   uint64
	Hash  [32]byte
}

// Causes of an Origin.
const (
	Restored    = "RESTORED"  // the vault came from a backup, and its log stays readable elsewhere
	WasSetAside = "SET_ASIDE" // the older log was lost, damaged or refused: see SetAside
)

func (o *Origin) check() error {
	switch {
	case o.Cause != Restored && o.Cause != WasSetAside:
		return errors.New("audit.Config.Origin.Cause must be RESTORED or SET_ASIDE")
	case (o.Seq == 0) != (o.Hash == [32]byte{}):
		return errors.New("audit.Config.Origin needs both, seq and hash, or neither")
	}
	return nil
}

// tell puts o, which may be nil, into the first entry of the log.
func (o *Origin) tell(e *Entry) {
	if o != nil {
		e.Cause, e.Count, e.ContentSHA256 = o.Cause, o.Seq, o.Hash
	}
}

// expect refuses a log that ends before the entry that is kept outside of it.
func (l *Log) expect(found *found) error {
	want := l.config.Expect
	if want == nil || found.head.Seq >= want.Seq {
		return nil
	}
	return fmt.Errorf("%w: it ends at entry %d, and entry %d was noted elsewhere", ErrRollback, found.head.Seq, want.Seq)
}
