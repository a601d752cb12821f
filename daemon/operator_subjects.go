package daemon

import (
	"context"
	"errors"

	"subjectbroker/audit"
	"subjectbroker/grants"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
	"subjectbroker/vault"
)

// AddSubject creates a subject.
func (o operator) AddSubject(ctx context.Context, req *operatorv1.AddSubjectRequest) (*operatorv1.AddSubjectResponse, error) {
	d, name := o.d, req.GetName()
	tier, err := parseMinTier(req.GetMinTier())
	if err != nil {
		return nil, err
	}
	if err := checkName("subject", name); err != nil {
		return nil, err
	}
	subject := grants.Subject{Name: name, MinTier: tier, UID: req.Uid, Created: d.clock.now().UTC()}
	err = d.mutate(ctx, func(st *state) (change, error) {
		if _, exists := st.set.Subject(name); exists {
			return change{}, refuse("subject %s exists already", name)
		}
		if err := d.checkUIDs(st, map[string]*grants.Subject{name: &subject}); err != nil {
			return change{}, err
		}
		c := o.subjectAddition(ctx, subject)
		c.after = func() { d.hub.listChanged(name) }
		return c, nil
	})
	if err != nil {
		return nil, err
	}
	return &operatorv1.AddSubjectResponse{Subject: o.subject(ctx, subject)}, nil
}

// subjectAddition creates a subject.
func (o operator) subjectAddition(ctx context.Context, subject grants.Subject) change {
	e := o.entry(ctx, kindSubjectAdd)
	e.SubjectID = subject.Name
	return change{
		effects: []*audit.Entry{e},
		write:   func(tx *vault.Tx) error { return putSubject(tx, subject) },
		permit:  func(st *state) { st.mustPutSubject(subject) },
	}
}

// parseMinTier parses a minimum tier that may be left out. Tiers above
// cooperative can be demanded before any run can have them: such a subject is
// simply not served by weaker ones.
func parseMinTier(word string) (grants.Tier, error) {
	if word == "" {
		return grants.Cooperative, nil
	}
	tier, err := grants.ParseMinTier(word)
	if err != nil {
		return 0, refuse("minimum tier: %v", err)
	}
	return tier, nil
}

func putSubject(tx *vault.Tx, s grants.Subject) error {
	row, err := grants.EncodeSubject(s)
	if err != nil {
		return err
	}
	return tx.Put(bucketSubjects, s.Name, row)
}

// mustPutSubject puts what was validated already. The caller holds mu.
func (s *state) mustPutSubject(subject grants.Subject) {
	if err := s.set.PutSubject(subject); err != nil {
		panic(err)
	}
}

// SetSubject changes a subject. Disabling and raising the minimum tier end the
// runs that are not entitled any more.
func (o operator) SetSubject(ctx context.Context, req *operatorv1.SetSubjectRequest) (*operatorv1.SetSubjectResponse, error) {
	d, name := o.d, req.GetName()
	if err := checkName("subject", name); err != nil {
		return nil, err
	}
	var tier grants.Tier
	if req.GetMinTier() != "" {
		var err error
		if tier, err = parseMinTier(req.GetMinTier()); err != nil {
			return nil, err
		}
	}
	var subject grants.Subject
	err := d.mutate(ctx, func(st *state) (change, error) {
		before, err := st.knownSubject(name)
		if err != nil {
			return change{}, err
		}
		subject = before
		if tier != 0 {
			subject.MinTier = tier
		}
		if req.Enabled != nil {
			subject.Disabled = !req.GetEnabled()
		}
		if subject == before {
			return change{}, nil
		}
		return o.subjectChange(ctx, before, subject), nil
	})
	ended, endErr := d.endIneligible(name)
	if err := errors.Join(err, endErr); err != nil {
		return nil, err
	}
	return &operatorv1.SetSubjectResponse{Subject: o.subject(ctx, subject), EndedRuns: ended}, nil
}

// subjectChange replaces one subject. What it takes away goes at the intent,
// what it adds comes when the change is applied.
func (o operator) subjectChange(ctx context.Context, before, after grants.Subject) change {
	d := o.d
	kind := kindSubjectSet
	switch {
	case after.Disabled && !before.Disabled:
		kind = kindSubjectDisable
	case before.Disabled && !after.Disabled:
		kind = kindSubjectEnable
	}
	e := o.entry(ctx, kind)
	e.SubjectID, e.Tier = after.Name, after.MinTier.String()
	stricter := before
	stricter.Disabled = before.Disabled || after.Disabled
	if !before.MinTier.Satisfies(after.MinTier) {
		stricter.MinTier = after.MinTier
	}
	if before.UID != nil && (after.UID == nil || *after.UID != *before.UID) {
		stricter.UID = nil // nobody's until the change is applied: another subject may get it by the same one
	}
	return change{
		effects:  []*audit.Entry{e},
		write:    func(tx *vault.Tx) error { return putSubject(tx, after) },
		restrict: func(st *state) { st.mustPutSubject(stricter) },
		permit:   func(st *state) { st.mustPutSubject(after) },
		after:    func() { d.hub.listChanged(after.Name) },
	}
}

// endIneligible ends the runs of a subject that could not be opened now.
func (d *Daemon) endIneligible(name string) (uint32, error) {
	var ended uint32
	err := d.endRuns(wire.RunEnded, "SUBJECT_CHANGED", func(r *run) bool {
		if r.subject != name || d.entitled(r) {
			return false
		}
		ended++
		return true
	})
	return ended, err
}

// ListSubjects lists subjects.
func (o operator) ListSubjects(ctx context.Context, _ *operatorv1.ListSubjectsRequest) (*operatorv1.ListSubjectsResponse, error) {
	if err := o.d.needUnlocked(); err != nil {
		return nil, err
	}
	st := o.d.state()
	st.mu.RLock()
	subjects := st.set.Subjects()
	st.mu.RUnlock()
	response := &operatorv1.ListSubjectsResponse{}
	for _, s := range subjects {
		response.Subjects = append(response.Subjects, o.subject(ctx, s))
	}
	return response, nil
}

// subject is a subject with what it holds now.
func (o operator) subject(ctx context.Context, s grants.Subject) *operatorv1.Subject {
	st, at := o.d.state(), o.d.clock.read()
	st.mu.RLock()
	active := uint32(0)
	for _, g := range st.seen(callerOf(ctx).UID, st.set.GrantsOf(s.Name)) {
		if st.grantState(g, at) == grants.Active {
			active++
		}
	}
	st.mu.RUnlock()
	tier := s.MinTier
	if tier == 0 {
		tier = grants.Cooperative
	}
	return &operatorv1.Subject{
		Name: s.Name, Enabled: !s.Disabled, MinTier: tier.String(), Created: millis(s.Created), Owner: s.Owner,
		Grants: active, Runs: o.d.runs.bySubject()[s.Name], Uid: s.UID,
	}
}

// RemoveSubject removes a subject with its grants and its runs.
func (o operator) RemoveSubject(ctx context.Context, req *operatorv1.RemoveSubjectRequest) (*operatorv1.RemoveSubjectResponse, error) {
	d, name := o.d, req.GetName()
	if err := checkName("subject", name); err != nil {
		return nil, err
	}
	response := &operatorv1.RemoveSubjectResponse{}
	err := d.mutate(ctx, func(st *state) (change, error) {
		if _, err := st.knownSubject(name); err != nil {
			return change{}, err
		}
		gone := st.set.GrantsOf(name)
		response.RevokedGrantIds = grantIDs(st.seen(callerOf(ctx).UID, gone))
		policies, _ := o.policyRemovals(ctx, st, func(k policyKey) bool { return k.subject == name })
		c := joined(o.subjectRemoval(ctx, st, name, gone, st.set.ProfilesOf(name)), policies)
		c.after = func() { d.hub.listChanged(name) }
		return c, nil
	})
	// A removal stands from its intent on, also when the log could not take its
	// end: the runs go either way.
	ended, endErr := d.endIneligible(name)
	if err := errors.Join(err, endErr); err != nil {
		return nil, err
	}
	response.EndedRuns = ended
	return response, nil
}

// subjectRemoval removes a subject with its grants and profiles, which must be
// named: as many as it has.
func (o operator) subjectRemoval(ctx context.Context, st *state, name string, gone []grants.Grant, profiles []grants.Profile) change {
	e := o.entry(ctx, kindSubjectRemove)
	e.SubjectID = name
	revoke := o.revocation(ctx, st, gone)
	effects := append([]*audit.Entry{e}, revoke.effects...)
	for _, p := range profiles {
		effects = append(effects, o.profileRemoval(ctx, p).effects...)
	}
	keys := o.keysRevocation(ctx, st, name)
	effects = append(effects, keys.effects...)
	return change{
		effects: effects,
		write: func(tx *vault.Tx) error {
			if err := errors.Join(revoke.write(tx), keys.write(tx)); err != nil {
				return err
			}
			for _, p := range profiles {
				if err := tx.Delete(bucketProfiles, p.Name); err != nil {
					return err
				}
			}
			return tx.Delete(bucketSubjects, name)
		},
		restrict: func(st *state) { revoke.restrict(st); keys.restrict(st); st.set.RemoveSubject(name) },
	}
}
