package daemon

import (
	"context"
	"fmt"

	"subjectbroker/audit"
	"subjectbroker/grants"
	"subjectbroker/proto/wire"
	"subjectbroker/vault"
)

// Buckets of the rows of profiles and of tools, by name.
const (
	bucketProfiles = "profiles"
	bucketTools    = "tools"
)

// profileFor returns the profile under which a run of subject opens now, and the
// ceiling of that run, which no later change moves. Without a name there is
// neither. The cause is empty when the run may open: to a subject, another one's
// profile does not exist.
func (d *Daemon) profileFor(subject, name string) (grants.Profile, *grants.Ceiling, string) {
	st := d.state()
	st.mu.RLock()
	defer st.mu.RUnlock()
	return st.profileFor(subject, name)
}

// profileFor is the same for a caller that holds mu.
func (s *state) profileFor(subject, name string) (grants.Profile, *grants.Ceiling, string) {
	if name == "" {
		return grants.Profile{}, nil, ""
	}
	p, ok := s.set.Profile(name)
	if !ok || p.Subject != subject {
		return grants.Profile{}, nil, string(grants.CauseUnknownProfile)
	}
	ceiling, _ := s.set.Ceiling(name)
	return p, ceiling, ""
}

// stands reports whether the profile that a run is under is there still. One of
// the same name that was made later is another. No profile always stands.
func (s *state) stands(p grants.Profile) bool {
	if p.Name == "" {
		return true
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	now, ok := s.set.Profile(p.Name)
	return ok && now.Subject == p.Subject && now.Created.Equal(p.Created)
}

// refuseTool records that a run asked for what its profile has no tool for.
func (d *Daemon) refuseTool(ctx context.Context, r *run, action, tool string) error {
	e := r.entry(audit.Authz)
	e.Action, e.Tool = action, tool
	e.Decision, e.ReasonCode, e.Cause = decisionDeny, string(wire.AccessDenied), string(grants.CauseToolNotListed)
	if err := d.recordDenial(ctx, r.peer, e); err != nil {
		return err
	}
	r.count("", false, nil)
	return wire.Deny(wire.AccessDenied)
}

// loadTools reads the tools; profiles list them.
func (s *state) loadTools(tx *vault.Tx) error {
	return tx.Each(bucketTools, func(name string, row []byte) error {
		t, err := grants.DecodeTool(row)
		if err != nil || t.Name != name {
			return fmt.Errorf("%w: tool row %s: %v", vault.ErrIntegrity, name, err)
		}
		return s.set.PutTool(t)
	})
}

// loadProfiles reads the profiles, after the subjects whose they are.
func (s *state) loadProfiles(tx *vault.Tx) error {
	return tx.Each(bucketProfiles, func(name string, row []byte) error {
		p, err := grants.DecodeProfile(row)
		if err != nil || p.Name != name {
			return fmt.Errorf("%w: profile row %s: %v", vault.ErrIntegrity, name, err)
		}
		return s.set.PutProfile(p)
	})
}

// toolChange adds or replaces a tool. Runs that are open keep their ceiling.
func (o operator) toolChange(ctx context.Context, t grants.Tool) change {
	e := o.entry(ctx, kindToolPut)
	e.Tool = t.Name
	return change{
		effects: []*audit.Entry{e},
		write: func(tx *vault.Tx) error {
			row, err := grants.EncodeTool(t)
			if err != nil {
				return err
			}
			return tx.Put(bucketTools, t.Name, row)
		},
		permit: func(st *state) { must(st.set.PutTool(t)) },
	}
}

// toolRemoval removes a tool, which no profile lists any more.
func (o operator) toolRemoval(ctx context.Context, t grants.Tool) change {
	e := o.entry(ctx, kindToolRemove)
	e.Tool = t.Name
	return change{
		effects:  []*audit.Entry{e},
		write:    func(tx *vault.Tx) error { return tx.Delete(bucketTools, t.Name) },
		restrict: func(st *state) { st.set.RemoveTool(t.Name) },
	}
}

// profileChange adds or replaces a profile. Runs that are open under it keep
// their ceiling.
func (o operator) profileChange(ctx context.Context, p grants.Profile) change {
	e := o.entry(ctx, kindProfilePut)
	e.SubjectID, e.ProfileID = p.Subject, p.Name
	return change{
		effects: []*audit.Entry{e},
		write: func(tx *vault.Tx) error {
			row, err := grants.EncodeProfile(p)
			if err != nil {
				return err
			}
			return tx.Put(bucketProfiles, p.Name, row)
		},
		permit: func(st *state) { must(st.set.PutProfile(p)) },
	}
}

// profileRemoval removes a profile. From the intent on its runs are over.
func (o operator) profileRemoval(ctx context.Context, p grants.Profile) change {
	e := o.entry(ctx, kindProfileRemove)
	e.SubjectID, e.ProfileID = p.Subject, p.Name
	return change{
		effects:  []*audit.Entry{e},
		write:    func(tx *vault.Tx) error { return tx.Delete(bucketProfiles, p.Name) },
		restrict: func(st *state) { st.set.RemoveProfile(p.Name) },
	}
}

// endProfile ends the runs under a profile that is not there any more.
func (d *Daemon) endProfile(name string) error {
	return d.endRuns(wire.RunEnded, causeProfileRemoved, func(r *run) bool { return r.profile.Name == name && !d.state().stands(r.profile) })
}

// causeProfileRemoved ends the runs of a profile that was removed.
const causeProfileRemoved = "PROFILE_REMOVED"

// must is for what was judged already.
func must(err error) {
	if err != nil {
		panic(err)
	}
}
