package daemon

import (
	"errors"
	"time"
)

// Pauses after wrong passphrases: 1 s after the first, twice as long after each
// further one.
const (
	firstPause = time.Second
	lastPause  = time.Minute
)

// attempts are the wrong passphrases since the last right one. They are kept in
// the vault, so that a restart of the daemon forgives nothing.
type attempts struct {
	V      int           `json:"v"`
	Wrong  int           `json:"wrong"`
	At     int64         `json:"at"`               // the newest one, Unix milliseconds
	BootID string        `json:"bootId,omitempty"` // empty where there is no boot clock
	BootAt time.Duration `json:"bootAt,omitempty"` // the same on the boot clock
}

func decodeAttempts(raw []byte) (attempts, error) {
	var a attempts
	if err := decodeRow(raw, &a); err != nil {
		return attempts{}, err
	}
	if a.V != 1 || a.Wrong < 1 || (a.BootID == "") != (a.BootAt == 0) || a.BootAt < 0 {
		return attempts{}, errors.New("its numbers are none that are written")
	}
	return a, nil
}

// another counts one more.
func (a attempts) another(at reading) attempts {
	return attempts{V: 1, Wrong: a.Wrong + 1, At: at.now.UnixMilli(), BootID: at.bootID, BootAt: at.since}
}

// pause is how long the next try has to wait after the newest wrong one.
func (a attempts) pause() time.Duration {
	if a.Wrong <= 0 {
		return 0
	}
	pause := firstPause
	for i := 1; i < a.Wrong && pause < lastPause; i++ {
		pause *= 2
	}
	return min(pause, lastPause)
}

// wait is what is left of it: by the boot clock as long as that has not started
// anew, because anybody may be able to set the other one. A wall clock that was
// set back makes it no longer than the pause.
func (a attempts) wait(at reading) time.Duration {
	pause := a.pause()
	left := pause - at.now.Sub(time.UnixMilli(a.At))
	if a.BootID != "" && a.BootID == at.bootID {
		left = pause - (at.since - a.BootAt)
	}
	return min(max(left, 0), pause)
}
