package daemon

import (
	"cmp"
	"context"
	"slices"
	"time"

	"subjectbroker/audit"
	"subjectbroker/grants"
	"subjectbroker/proto/agentkey"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
	"subjectbroker/vault"
)

// Limits of agent keys.
const (
	maxAgentKeys  = 200_000
	maxKeyLife    = 10 * 366 * 24 * time.Hour
	maxKeyOverlap = 30 * 24 * time.Hour
	keptKeys      = 1000 // that are revoked or expired; of older ones nothing is known
)

// MintAgentKey makes a key for a subject and shows it, once.
func (o operator) MintAgentKey(ctx context.Context, req *operatorv1.MintAgentKeyRequest) (*operatorv1.MintAgentKeyResponse, error) {
	d := o.d
	if err := checkName("subject", req.GetSubject()); err != nil {
		return nil, err
	}
	if req.GetName() != "" {
		if err := checkName("name", req.GetName()); err != nil {
			return nil, err
		}
	}
	if err := grants.CheckKeyTenants(req.GetTenants()); err != nil {
		return nil, refuse("%v", err)
	}
	if req.GetTtlSeconds() > uint64(maxKeyLife/time.Second) {
		return nil, refuse("a key lives for at most %d days", maxKeyLife/(24*time.Hour))
	}
	key := agentkey.New()
	made := grants.AgentKey{
		Hash: agentkey.Hash(key), Name: req.GetName(), Subject: req.GetSubject(),
		Tenants: slices.Sorted(slices.Values(req.GetTenants())),
	}
	err := d.mutate(ctx, func(st *state) (change, error) {
		at := d.clock.read()
		subject, err := st.mintable(req.GetSubject())
		if err != nil {
			return change{}, err
		}
		for _, name := range made.Tenants {
			if _, err := st.knownTenant(name); err != nil {
				return change{}, err
			}
		}
		if err := st.keyNameFree(made.Name, at); err != nil {
			return change{}, err
		}
		made.ID, made.SubjectCreated, made.Created = st.newKeyID(), subject.Created, at.now.UTC().Truncate(time.Millisecond)
		at.endKey(&made, time.Duration(req.GetTtlSeconds())*time.Second)
		return joined(o.keyMint(ctx, made), o.keyPruning(st, at)), nil
	})
	if err != nil {
		key.Wipe()
		return nil, err
	}
	return &operatorv1.MintAgentKeyResponse{Key: d.keyMessage(made.ID), Token: key}, nil
}

// mintable is a subject for which a key can be minted. The caller holds changing.mu.
func (s *state) mintable(name string) (grants.Subject, error) {
	subject, err := s.knownSubject(name)
	switch {
	case err != nil:
		return subject, err
	case !grants.Keyed.Satisfies(subject.MinTier):
		return subject, refuse("%s asks for the tier %s, and whoever has a key is %s: no key can be minted for it", name, subject.MinTier, grants.Keyed)
	}
	return subject, nil
}

// keyNameFree refuses a second good key of one name. The caller holds changing.mu.
func (s *state) keyNameFree(name string, at reading) error {
	if name == "" {
		return nil
	}
	for _, k := range s.keys.byID {
		if k.Name == name && k.To == "" && s.judgeKey(&k, at) == (badKey{}) {
			return refuse("key %s is named %s already", k.ID, name)
		}
	}
	return nil
}

// newKeyID returns an id that no key has.
func (s *state) newKeyID() string {
	for {
		id := grants.NewID()
		if _, taken := s.keys.byID[id]; !taken {
			return id
		}
	}
}

// endKey lets a key end after ttl, on both clocks; 0: not by the clock.
func (r reading) endKey(k *grants.AgentKey, ttl time.Duration) {
	k.Expires, k.BootID, k.BootExpires = time.Time{}, "", 0
	if ttl > 0 {
		r.endKeyAt(k, r.now.Add(ttl))
	}
}

func (r reading) endKeyAt(k *grants.AgentKey, end time.Time) {
	k.Expires, k.BootID, k.BootExpires = end.UTC().Truncate(time.Millisecond), "", 0
	if since := r.since + k.Expires.Sub(r.now); r.bootID != "" && since > 0 {
		k.BootID, k.BootExpires = r.bootID, since
	}
}

// keyMint puts a new key in force.
func (o operator) keyMint(ctx context.Context, k grants.AgentKey) change {
	return change{
		effects: []*audit.Entry{o.keyEntry(ctx, kindAgentKeyMint, &k)},
		write:   func(tx *vault.Tx) error { return putAgentKey(tx, k) },
		permit:  func(st *state) { st.keys.put(k) },
	}
}

// keyNarrowing replaces what is known of a key by something stricter, from the
// intent on.
func (o operator) keyNarrowing(ctx context.Context, kind audit.Kind, k grants.AgentKey) change {
	return change{
		effects:  []*audit.Entry{o.keyEntry(ctx, kind, &k)},
		write:    func(tx *vault.Tx) error { return putAgentKey(tx, k) },
		restrict: func(st *state) { st.keys.put(k) },
	}
}

// keysRevocation revokes what is left of a subject's keys: whoever presents one later
// is told so, and a later subject of the same name has none of them.
func (o operator) keysRevocation(ctx context.Context, st *state, subject string) change {
	var parts []change
	now := o.d.clock.read().now.UTC().Truncate(time.Millisecond)
	for _, k := range st.keys.all() {
		if k.Subject == subject && k.Revoked.IsZero() {
			k.Revoked = now
			parts = append(parts, o.keyNarrowing(ctx, kindAgentKeyRevoke, k))
		}
	}
	return joined(parts...)
}

// keyPruning forgets the oldest keys that have ended, beyond those that are kept.
// Whoever presents one of them is told that it is unknown. The caller holds
// changing.mu.
func (o operator) keyPruning(st *state, at reading) change {
	if !st.keys.look() {
		return change{}
	}
	over := func(k *grants.AgentKey) bool {
		why := st.judgeKey(k, at)
		return why.auth == wire.ExpiredKey || why.auth == wire.RevokedKey && why.cause != string(grants.CauseSubjectDisabled) && why.cause != string(grants.CauseTierTooLow)
	}
	leads := func(k grants.AgentKey) bool { // to one that is still good, and is revoked by way of it
		for older, ok := st.keys.byID[k.From]; ok; older, ok = st.keys.byID[older.From] {
			if !over(&older) {
				return true
			}
		}
		return false
	}
	var ended []grants.AgentKey
	for _, k := range st.keys.byID {
		if over(&k) && !leads(k) {
			ended = append(ended, k)
		}
	}
	if len(ended) < keptKeys {
		return change{}
	}
	slices.SortFunc(ended, func(a, b grants.AgentKey) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID))
	})
	ended = ended[:len(ended)-keptKeys+1]
	return change{
		write: func(tx *vault.Tx) error {
			for _, k := range ended {
				if err := tx.Delete(bucketAgentKeys, k.ID); err != nil {
					return err
				}
			}
			return nil
		},
		restrict: func(st *state) {
			for _, k := range ended {
				st.keys.drop(k.ID)
			}
		},
	}
}

func (o operator) keyEntry(ctx context.Context, kind audit.Kind, k *grants.AgentKey) *audit.Entry {
	e := o.entry(ctx, kind)
	e.SubjectID, e.KeyID, e.Tenants = k.Subject, k.ID, k.Tenants
	return e
}

// ListAgentKeys lists keys.
func (o operator) ListAgentKeys(_ context.Context, req *operatorv1.ListAgentKeysRequest) (*operatorv1.ListAgentKeysResponse, error) {
	d := o.d
	if err := d.needUnlocked(); err != nil {
		return nil, err
	}
	st, at := d.state(), d.clock.read()
	runs := d.runs.byKey()
	st.mu.RLock()
	defer st.mu.RUnlock()
	all := st.keys.all()
	if req.GetKey() != "" {
		k, err := st.knownKey(req.GetKey(), at)
		if err != nil {
			return nil, err
		}
		all = []grants.AgentKey{k}
	}
	if name := req.GetSubject(); name != "" {
		of := func(k grants.AgentKey) bool { return k.Subject == name }
		if _, err := st.knownSubject(name); err != nil && !slices.ContainsFunc(all, of) {
			return nil, err
		}
		all = slices.DeleteFunc(all, func(k grants.AgentKey) bool { return !of(k) })
	}
	slices.SortStableFunc(all, func(a, b grants.AgentKey) int { return b.Created.Compare(a.Created) })
	response := &operatorv1.ListAgentKeysResponse{}
	for _, k := range all {
		m := st.keyMessage(&k, at)
		if ended := m.State == keyExpired || m.State == keyRevoked; ended && !req.GetAll() && req.GetKey() == "" {
			continue
		}
		m.LastUsed, m.Runs = millis(d.keyUse.of(k.ID)), runs[k.ID]
		response.Keys = append(response.Keys, m)
	}
	return response, nil
}

// RotateAgentKey makes a key that takes the place of another one, which stays good
// for a while.
func (o operator) RotateAgentKey(ctx context.Context, req *operatorv1.RotateAgentKeyRequest) (*operatorv1.RotateAgentKeyResponse, error) {
	d := o.d
	if req.GetOverlapSeconds() > uint64(maxKeyOverlap/time.Second) {
		return nil, refuse("a key stays good for at most %d days after it was rotated", maxKeyOverlap/(24*time.Hour))
	}
	overlap := time.Duration(req.GetOverlapSeconds()) * time.Second
	key := agentkey.New()
	var made, old grants.AgentKey
	err := d.mutate(ctx, func(st *state) (change, error) {
		at := d.clock.read()
		var err error
		if old, err = st.knownKey(req.GetKey(), at); err != nil {
			return change{}, err
		}
		switch why := st.judgeKey(&old, at); {
		case why.auth != "" && why.cause != string(grants.CauseSubjectDisabled):
			return change{}, refuse("key %s is not good any more: mint another one", old.ID)
		case old.To != "":
			return change{}, refuse("key %s was rotated into %s already", old.ID, old.To)
		}
		made = grants.AgentKey{
			ID: st.newKeyID(), Hash: agentkey.Hash(key), Name: old.Name, Subject: old.Subject, SubjectCreated: old.SubjectCreated,
			Tenants: old.Tenants, Created: at.now.UTC().Truncate(time.Millisecond), From: old.ID,
		}
		if !old.Expires.IsZero() { // as long as the old one was good for
			at.endKey(&made, old.Expires.Sub(old.Created))
		}
		old.To = made.ID
		if end := at.now.Add(overlap); old.Expires.IsZero() || end.Before(old.Expires) {
			at.endKeyAt(&old, end)
		}
		return joined(o.keyNarrowing(ctx, kindAgentKeyRotate, old), o.keyMint(ctx, made), o.keyPruning(st, at)), nil
	})
	_, endErr := d.endKeyRuns(old.ID, causeKeyExpired)
	if err == nil {
		err = endErr
	}
	if err != nil {
		key.Wipe()
		return nil, err
	}
	return &operatorv1.RotateAgentKeyResponse{Key: d.keyMessage(made.ID), Old: d.keyMessage(old.ID), Token: key}, nil
}

// RevokeAgentKey ends a key and the runs that were opened with it, and those that it
// was rotated from, where they are still good: who names it means all of them, as they
// have one name.
func (o operator) RevokeAgentKey(ctx context.Context, req *operatorv1.RevokeAgentKeyRequest) (*operatorv1.RevokeAgentKeyResponse, error) {
	d := o.d
	var k grants.AgentKey
	var ids []string
	err := d.mutate(ctx, func(st *state) (change, error) {
		at := d.clock.read()
		var err error
		if k, err = st.knownKey(req.GetKey(), at); err != nil {
			return change{}, err
		}
		var parts []change
		for one, ok := k, true; ok; one, ok = st.keys.byID[one.From] {
			ids = append(ids, one.ID)
			if one.Revoked.IsZero() && (one.ID == k.ID || st.judgeKey(&one, at).auth != wire.ExpiredKey) {
				one.Revoked = at.now.UTC().Truncate(time.Millisecond)
				parts = append(parts, o.keyNarrowing(ctx, kindAgentKeyRevoke, one))
			}
		}
		return joined(parts...), nil
	})
	// A revocation stands from its intent on, also when the log could not take its
	// end: the runs go either way.
	var ended uint32
	for _, id := range ids {
		n, endErr := d.endKeyRuns(id, causeKeyRevoked)
		ended += n
		if err == nil {
			err = endErr
		}
	}
	if err != nil {
		return nil, err
	}
	return &operatorv1.RevokeAgentKeyResponse{Key: d.keyMessage(k.ID), Runs: ended}, nil
}

// States of keys, as the operator reads them.
const (
	keyActive   = "active"
	keyOverlap  = "overlap" // rotated, and good until it expires
	keyExpired  = "expired"
	keyRevoked  = "revoked"
	keyDisabled = "disabled"
)

// keyMessage is a key as the operator sees it.
func (d *Daemon) keyMessage(id string) *operatorv1.AgentKey {
	st, at, runs := d.state(), d.clock.read(), d.runs.byKey()
	st.mu.RLock()
	defer st.mu.RUnlock()
	k, ok := st.keys.byID[id]
	if !ok {
		return nil
	}
	m := st.keyMessage(&k, at)
	m.LastUsed, m.Runs = millis(d.keyUse.of(id)), runs[id]
	return m
}

// keyMessage is the same without what the state does not know. The caller holds mu.
func (s *state) keyMessage(k *grants.AgentKey, at reading) *operatorv1.AgentKey {
	m := &operatorv1.AgentKey{
		KeyId: k.ID, Name: k.Name, Subject: k.Subject, Tenants: k.Tenants, State: keyActive, Created: millis(k.Created),
		Expires: millis(k.Expires), Revoked: millis(k.Revoked), RotatedFrom: k.From, RotatedTo: k.To,
	}
	switch why := s.judgeKey(k, at); {
	case why.auth == wire.ExpiredKey:
		m.State = keyExpired
	case why.cause == string(grants.CauseSubjectDisabled), why.cause == string(grants.CauseTierTooLow):
		m.State = keyDisabled
	case why.auth != "":
		m.State = keyRevoked
	case k.To != "":
		m.State = keyOverlap
	}
	return m
}
