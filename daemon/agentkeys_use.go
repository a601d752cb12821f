package daemon

import (
	"fmt"
	"maps"
	"sync"
	"time"

	"subjectbroker/audit"
	"subjectbroker/vault"
)

// keyUse is when agent keys were used last, to the minute. A request changes nothing
// in the vault for it: the writer of checkpoints persists it, and what is newer than
// the last checkpoint stands in the log.
type keyUse struct {
	mu   sync.Mutex
	last map[string]int64 // minutes since 1970, by the key's id
}

func (u *keyUse) note(id string, at time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.last == nil {
		u.last = map[string]int64{}
	}
	u.last[id] = max(u.last[id], at.Unix()/60)
}

// of is when a key was used last; zero: never.
func (u *keyUse) of(id string) time.Time {
	u.mu.Lock()
	defer u.mu.Unlock()
	if minutes := u.last[id]; minutes > 0 {
		return time.Unix(minutes*60, 0).UTC()
	}
	return time.Time{}
}

// learn takes in what was persisted, and what the log tells since.
func (u *keyUse) learn(known map[string]int64) {
	for id, minutes := range known {
		u.note(id, time.Unix(minutes*60, 0))
	}
}

// persist adds the last uses of keys that there are to what is stored with the
// meters, and forgets those of keys that there are not.
func (u *keyUse) persist(st *state, stored []byte) ([]byte, error) {
	st.mu.RLock()
	u.mu.Lock()
	maps.DeleteFunc(u.last, func(id string, _ int64) bool { _, is := st.keys.byID[id]; return !is })
	last := maps.Clone(u.last)
	u.mu.Unlock()
	st.mu.RUnlock()
	if len(last) == 0 {
		return stored, nil
	}
	row, err := decodeMeters(stored)
	if err != nil {
		return nil, err
	}
	row.V, row.Keys = 1, last
	return row.encode(), nil
}

// storedKeyUse reads it back.
func storedKeyUse(stored []byte) (map[string]int64, error) {
	row, err := decodeMeters(stored)
	if err != nil {
		return nil, fmt.Errorf("%w: when keys were used: %v", vault.ErrIntegrity, err)
	}
	return row.Keys, nil
}

// followKey takes one entry of the log's tail into account.
func (r *reconciliation) followKey(e audit.Entry) {
	if e.Kind == audit.Auth && e.Decision == decisionAllow && e.KeyID != "" {
		if r.keys == nil {
			r.keys = map[string]int64{}
		}
		r.keys[e.KeyID] = e.Timestamp.Unix() / 60
	}
}
