package daemon

import (
	"crypto/subtle"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"subjectbroker/grants"
	"subjectbroker/proto/agentkey"
	"subjectbroker/proto/wire"
	"subjectbroker/vault"
)

// bucketAgentKeys holds one row for each agent key, by id: its hash, never the key.
const bucketAgentKeys = "agentkeys"

// agentKeys are the keys that were minted, by id and by hash, so that one is found
// at once however many there are. The state's mu guards them.
type agentKeys struct {
	byID   map[string]grants.AgentKey
	byHash map[grants.KeyHash]string
	puts   int // keys that were put since the last look for ended ones
}

func newAgentKeys() *agentKeys {
	return &agentKeys{byID: map[string]grants.AgentKey{}, byHash: map[grants.KeyHash]string{}}
}

func (ks *agentKeys) put(k grants.AgentKey) {
	ks.drop(k.ID)
	ks.byID[k.ID], ks.byHash[k.Hash] = k, k.ID
	ks.puts++
}

// lookEvery is of how many keys one more lets ended ones be looked for, so that
// minting costs the same however many there are.
const lookEvery = 1024

// look reports whether it is time to look for ended keys, and takes it that this is
// done. The caller holds changing.mu.
func (ks *agentKeys) look() bool {
	if ks.puts*lookEvery < len(ks.byID) {
		return false
	}
	ks.puts = 0
	return true
}

func (ks *agentKeys) drop(id string) {
	if k, ok := ks.byID[id]; ok {
		delete(ks.byHash, k.Hash)
		delete(ks.byID, id)
	}
}

// all are the keys in order of their ids.
func (ks *agentKeys) all() []grants.AgentKey {
	all := make([]grants.AgentKey, 0, len(ks.byID))
	for _, id := range slices.Sorted(maps.Keys(ks.byID)) {
		all = append(all, ks.byID[id])
	}
	return all
}

// find is the key with that hash. A hash that was guessed in part tells nothing by
// how long that takes: what is compared are hashes of 256 random bits, and in
// constant time.
func (ks *agentKeys) find(hash grants.KeyHash) (grants.AgentKey, bool) {
	k, ok := ks.byID[ks.byHash[hash]]
	if subtle.ConstantTimeCompare(k.Hash[:], hash[:]) != 1 {
		return grants.AgentKey{}, false
	}
	return k, ok
}

// reach are the tenants of a key; none: it has no memory.
func (ks *agentKeys) reach(id string) map[string]bool {
	reach := map[string]bool{}
	for _, name := range ks.byID[id].Tenants {
		reach[name] = true
	}
	return reach
}

// loadAgentKeys reads the keys.
func (s *state) loadAgentKeys(tx *vault.Tx) error {
	return tx.Each(bucketAgentKeys, func(id string, row []byte) error {
		k, err := grants.DecodeAgentKey(row)
		if err != nil || k.ID != id {
			return fmt.Errorf("%w: agent key row %s: %v", vault.ErrIntegrity, id, err)
		}
		if _, twice := s.keys.byHash[k.Hash]; twice {
			return fmt.Errorf("%w: agent key row %s: another key has its hash", vault.ErrIntegrity, id)
		}
		s.keys.put(k)
		return nil
	})
}

func putAgentKey(tx *vault.Tx, k grants.AgentKey) error {
	row, err := grants.EncodeAgentKey(k)
	if err != nil {
		return err
	}
	return tx.Put(bucketAgentKeys, k.ID, row)
}

// badKey says why a key is not good: auth is what whoever presents it is told, and
// cause what the log says. Both are empty when it is good.
type badKey struct {
	auth  wire.Auth
	cause string
}

// Causes of what is wrong with a key by itself.
const (
	causeMissingToken   = "MISSING_TOKEN"
	causeMalformedToken = "MALFORMED_TOKEN"
	causeUnknownKey     = "UNKNOWN_KEY"
	causeRevokedKey     = "REVOKED_KEY"
	causeExpiredKey     = "EXPIRED_KEY"
)

func bad(auth wire.Auth) badKey {
	return badKey{auth, map[wire.Auth]string{
		wire.MissingToken: causeMissingToken, wire.MalformedToken: causeMalformedToken, wire.UnknownKey: causeUnknownKey,
		wire.RevokedKey: causeRevokedKey, wire.ExpiredKey: causeExpiredKey,
	}[auth]}
}

// judgeKey says whether a key is good now. A subject that was disabled or removed
// has no good keys, and one of the same name that was added later is another one.
// The caller holds mu or changing.mu.
func (s *state) judgeKey(k *grants.AgentKey, at reading) badKey {
	q := grants.Request{}
	at.judge(&q)
	subject, exists := s.set.Subject(k.Subject)
	switch {
	case !k.Revoked.IsZero():
		return bad(wire.RevokedKey)
	case !exists || !subject.Created.Equal(k.SubjectCreated):
		return badKey{wire.RevokedKey, string(grants.CauseUnknownSubject)}
	case subject.Disabled:
		return badKey{wire.RevokedKey, string(grants.CauseSubjectDisabled)}
	case k.Expired(&q):
		return bad(wire.ExpiredKey)
	case !grants.Keyed.Satisfies(subject.MinTier):
		return badKey{wire.RevokedKey, string(grants.CauseTierTooLow)}
	}
	return badKey{}
}

// presented judges a key as it was presented. k.ID is empty when nobody knows it. It
// takes mu.
func (s *state) presented(key []byte, at reading) (k grants.AgentKey, why badKey) {
	switch {
	case len(key) == 0:
		return k, bad(wire.MissingToken)
	case agentkey.Check(key) != nil:
		return k, bad(wire.MalformedToken)
	}
	hash := grants.KeyHash(agentkey.Hash(key))
	s.mu.RLock()
	defer s.mu.RUnlock()
	k, known := s.keys.find(hash)
	if !known {
		return grants.AgentKey{}, bad(wire.UnknownKey)
	}
	return k, s.judgeKey(&k, at)
}

// keyStands reports whether the key that a run was opened with is good now. It takes
// mu.
func (s *state) keyStands(id string, at reading) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	k, ok := s.keys.byID[id]
	return ok && s.judgeKey(&k, at) == badKey{}
}

// keyEnd is when a key ends by the clock; zero: it does not. It takes mu.
func (s *state) keyEnd(id string) time.Time {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.keys.byID[id].Expires
}

// knownKey finds the one key that is meant by its id, a prefix of it that no other
// has, or its name: of several of that name the one that is good and was not rotated
// into another. The caller holds changing.mu or mu.
func (s *state) knownKey(word string, at reading) (grants.AgentKey, error) {
	if k, ok := s.keys.byID[word]; ok {
		return k, nil
	}
	var named, current, prefixed []grants.AgentKey
	for _, k := range s.keys.all() {
		if k.Name != "" && k.Name == word {
			named = append(named, k)
			if k.To == "" && s.judgeKey(&k, at) == (badKey{}) {
				current = append(current, k)
			}
		}
		if word != "" && strings.HasPrefix(k.ID, word) {
			prefixed = append(prefixed, k)
		}
	}
	for _, found := range [][]grants.AgentKey{current, named, prefixed} {
		switch len(found) {
		case 0:
		case 1:
			return found[0], nil
		default:
			return grants.AgentKey{}, refuse("%d keys are meant by %s: name one by its id", len(found), shown(word))
		}
	}
	return grants.AgentKey{}, refuse("no agent key is named %s, or has an id that starts so", shown(word))
}
