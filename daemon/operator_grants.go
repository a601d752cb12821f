package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"subjectbroker/grants"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/vault"
)

// disclosedLife is how long a grant to disclose a secret lives when the
// operator named no limit.
const disclosedLife = time.Hour

// maxGrantsAtOnce bounds one CreateGrants.
const maxGrantsAtOnce = 1000

// CreateGrants grants capabilities to a subject, all or none.
func (o operator) CreateGrants(ctx context.Context, req *operatorv1.CreateGrantsRequest) (*operatorv1.CreateGrantsResponse, error) {
	d := o.d
	if err := errors.Join(checkName("subject", req.GetSubject()), checkNote(req.GetNote())); err != nil {
		return nil, err
	}
	if n := len(req.GetCapabilities()); n == 0 || n > maxGrantsAtOnce {
		return nil, refuse("name from 1 to %d capabilities", maxGrantsAtOnce)
	}
	response := &operatorv1.CreateGrantsResponse{}
	var made []grants.Grant
	err := d.mutate(ctx, func(st *state) (change, error) {
		made, response.Warnings = nil, nil
		if _, err := st.knownSubject(req.GetSubject()); err != nil {
			return change{}, err
		}
		for _, word := range req.GetCapabilities() {
			g, warning, err := d.newGrant(ctx, st, req, word)
			if err != nil {
				return change{}, err
			}
			if slices.ContainsFunc(made, func(other grants.Grant) bool { return other.Pattern == g.Pattern }) {
				return change{}, refuse("%s is named twice", g.Pattern)
			}
			made = append(made, g)
			if warning != "" {
				response.Warnings = append(response.Warnings, warning)
			}
		}
		n := st.needOfGrants(made...)
		if err := d.needAuth(ctx, st, n); err != nil {
			return change{}, err
		}
		response.Warnings = append(response.Warnings, d.lifted(n, st)...)
		return o.granting(ctx, made, true), nil
	})
	if err != nil {
		return nil, err
	}
	st, at := d.state(), d.clock.read()
	st.mu.RLock()
	defer st.mu.RUnlock()
	for _, g := range made {
		response.Grants = append(response.Grants, st.grantMessage(g, at))
	}
	return response, nil
}

// newGrant makes one grant of a request, refusing what contract §4 and §9
// refuse. A grant of the same subject, pattern and effect keeps its id.
func (d *Daemon) newGrant(ctx context.Context, st *state, req *operatorv1.CreateGrantsRequest, word string) (g grants.Grant, warning string, err error) {
	pattern, err := grants.ParsePattern(word)
	if err != nil {
		return g, "", refuse("capability: %v", err)
	}
	at, uid := d.clock.read(), callerOf(ctx).UID
	g = grants.Grant{
		ID: st.newGrantID(), Subject: req.GetSubject(), Pattern: pattern, Effect: grants.Allow,
		Uses: req.GetUses(), RequireApproval: req.GetRequireApproval(), Disclose: req.GetDisclose(), Note: req.GetNote(),
		Created: at.now.UTC().Truncate(time.Millisecond), GrantedBy: &uid,
	}
	if req.GetDeny() {
		g.Effect = grants.Deny
	}
	if old, ok := st.set.Find(g.Subject, g.Pattern, g.Effect); ok {
		g.ID = old.ID
	}
	if req.GetTier() != "" {
		if g.Tier, err = grants.ParseMinTier(req.GetTier()); err != nil {
			return g, "", refuse("tier: %v", err)
		}
	}
	if warning, err = d.limit(&g, st, req, at); err != nil {
		return g, "", err
	}
	if err := g.Validate(); err != nil {
		return g, "", refuse("%s: %v", pattern, err)
	}
	return g, warning, st.replaceable(uid, &g, at)
}

// limit sets when a grant ends, and refuses to disclose a secret unasked.
func (d *Daemon) limit(g *grants.Grant, st *state, req *operatorv1.CreateGrantsRequest, at reading) (warning string, err error) {
	exact := !g.Pattern.Prefix && g.Pattern.Action.NamesResource()
	f, err := st.known(*g.GrantedBy, g.Pattern.Object)
	if exact && err != nil {
		return "", err
	}
	if g.Pattern.Action.NamesTenant() {
		if g.RequireApproval {
			return "", refuse("%s: nobody is asked about single entries of a memory, so it cannot ask for approval", g.Pattern)
		}
		if req.GetUses() > 0 {
			return "", refuse("%s: uses of a memory are not counted", g.Pattern)
		}
		if !g.Pattern.Prefix {
			if _, err := st.knownTenant(g.Pattern.Object); err != nil {
				return "", err
			}
		}
	}
	secret := exact && g.Pattern.Action == grants.Read && g.Effect == grants.Allow && f.kind == vault.KindSecret
	if secret && !g.Disclose {
		e := refuse("%s is of kind secret: the agent would see its value and may keep it", g.Pattern.Object)
		e.Hint = "sbctl grant " + g.Subject + " " + g.Pattern.String() + " --disclose"
		return "", e
	}
	until, ttl := fromMillis(req.GetUntil()), time.Duration(req.GetTtlMs())*time.Millisecond
	switch {
	case req.GetTtlMs() < 0 || req.GetUntil() < 0 || ttl/time.Millisecond != time.Duration(req.GetTtlMs()):
		return "", refuse("a grant cannot end in the past")
	case ttl > 0 && !until.IsZero():
		return "", refuse("give a time to live or an end, not both")
	case ttl > 0:
		until = at.now.Add(ttl)
	case !until.IsZero() && !until.After(at.now):
		return "", refuse("a grant cannot end in the past: %s", until.Format(time.RFC3339))
	case until.IsZero() && secret && g.Uses == 0 && !req.GetNoLimit():
		until = at.now.Add(disclosedLife)
		warning = fmt.Sprintf("%s discloses a secret and ends at %s; --ttl none grants it without an end", g.Pattern, until.UTC().Format(time.RFC3339))
	}
	if until.IsZero() {
		return warning, nil
	}
	g.Until = until.UTC().Truncate(time.Millisecond)
	at.bound(g)
	return warning, nil
}

// bound gives a timed grant its end on the boot clock as well.
func (r reading) bound(g *grants.Grant) {
	g.BootID, g.BootUntil = "", 0
	if !g.Until.IsZero() && r.bootID != "" {
		g.BootID, g.BootUntil = r.bootID, r.since+g.Until.Sub(r.now)
	}
}

// newGrantID returns an id that no grant has, ended ones included.
func (s *state) newGrantID() string {
	for {
		id := grants.NewID()
		_, taken := s.set.Grant(id)
		if !taken && !slices.ContainsFunc(s.ended, func(e endedGrant) bool { return e.ID == id }) {
			return id
		}
	}
}

// granting puts grants in force. A replaced grant is out of force from the
// intent until its replacement is applied; with anew it counts its uses from
// the start.
func (o operator) granting(ctx context.Context, made []grants.Grant, anew bool) change {
	d := o.d
	c := change{
		write: func(tx *vault.Tx) error {
			for _, g := range made {
				if err := putGrant(tx, g); err != nil {
					return err
				}
			}
			return nil
		},
		restrict: func(st *state) {
			for _, g := range made {
				if g.Effect != grants.Deny {
					st.set.RemoveGrant(g.ID)
				} else if _, exists := st.set.Subject(g.Subject); exists { // else it comes with the same change
					st.mustPutGrant(g)
				}
			}
		},
		permit: func(st *state) {
			for _, g := range made {
				if anew {
					delete(st.uses, g.ID)
				}
				st.mustPutGrant(g)
			}
		},
	}
	var subjects []string
	for _, g := range made {
		kind := kindGrantCreate
		switch {
		case g.Effect == grants.Deny:
			kind = kindGrantDeny
		case !anew:
			kind = kindGrantReplace
		}
		e := o.entry(ctx, kind)
		e.SubjectID, e.Capability, e.GrantID = g.Subject, g.Pattern.String(), g.ID
		c.effects = append(c.effects, e)
		subjects = append(subjects, g.Subject)
	}
	c.after = func() { d.hub.listChanged(subjects...) }
	return c
}

func putGrant(tx *vault.Tx, g grants.Grant) error {
	row, err := grants.EncodeGrant(g)
	if err != nil {
		return err
	}
	return tx.Put(bucketGrants, g.ID, row)
}

// mustPutGrant puts what was validated already. The caller holds mu.
func (s *state) mustPutGrant(g grants.Grant) {
	if err := s.set.PutGrant(g); err != nil {
		panic(err)
	}
}

// revocation takes grants of st out of force. Its effects may be empty.
func (o operator) revocation(ctx context.Context, st *state, gone []grants.Grant) change {
	d := o.d
	now := d.clock.now().UTC().Truncate(time.Millisecond)
	ended := make([]endedGrant, 0, len(gone))
	for _, g := range gone {
		e := endedGrant{Grant: g, Revoked: now}
		if !g.Pattern.Prefix && g.Pattern.Action.NamesResource() {
			e.Personal = st.catalog[g.Pattern.Object].owner
		}
		ended = append(ended, e)
	}
	c := change{
		write: func(tx *vault.Tx) error {
			for _, e := range ended {
				row, err := encodeEnded(e)
				if err != nil {
					return err
				}
				if err := tx.Delete(bucketGrants, e.ID); err != nil {
					return err
				}
				if err := tx.Put(bucketRevoked, e.ID, row); err != nil {
					return err
				}
			}
			return nil
		},
		restrict: func(st *state) {
			for _, e := range ended {
				st.end(e)
			}
		},
	}
	var subjects []string
	for _, g := range gone {
		e := o.entry(ctx, kindGrantRevoke)
		e.SubjectID, e.Capability, e.GrantID = g.Subject, g.Pattern.String(), g.ID
		c.effects = append(c.effects, e)
		subjects = append(subjects, g.Subject)
	}
	c.after = func() {
		if len(subjects) > 0 {
			d.hub.listChanged(subjects...)
		}
	}
	return c
}

func grantIDs(all []grants.Grant) []string {
	var ids []string
	for _, g := range all {
		ids = append(ids, g.ID)
	}
	return ids
}

// RevokeGrants revokes in one of three ways.
func (o operator) RevokeGrants(ctx context.Context, req *operatorv1.RevokeGrantsRequest) (*operatorv1.RevokeGrantsResponse, error) {
	d := o.d
	var gone []grants.Grant
	err := d.mutate(ctx, func(st *state) (change, error) {
		var err error
		if gone, err = st.toRevoke(callerOf(ctx).UID, req); err != nil {
			return change{}, err
		}
		if err := d.needAuth(ctx, st, st.needOfRevoking(gone, req.GetAll())); err != nil {
			return change{}, err
		}
		return o.revocation(ctx, st, gone), nil
	})
	if err != nil {
		return nil, err
	}
	response := &operatorv1.RevokeGrantsResponse{}
	at := d.clock.read()
	st := d.state()
	st.mu.RLock()
	defer st.mu.RUnlock()
	for _, g := range st.seen(callerOf(ctx).UID, gone) {
		m := st.grantMessage(g, at)
		m.State = stateRevoked
		response.Grants = append(response.Grants, m)
	}
	return response, nil
}

const stateRevoked = "revoked"

// toRevoke finds the grants that a request of an operator means. What is taken
// from a subject as a whole holds what does not exist for that operator, too.
func (s *state) toRevoke(uid uint32, req *operatorv1.RevokeGrantsRequest) ([]grants.Grant, error) {
	byID := req.GetGrantId() != ""
	switch {
	case byID && (req.GetSubject() != "" || req.GetCapability() != "" || req.GetAll()):
		return nil, refuse("name a grant, or a subject with a capability, or a subject and all")
	case byID:
		g, err := s.grantByPrefix(uid, req.GetGrantId())
		if err != nil {
			return nil, err
		}
		return []grants.Grant{g}, nil
	case req.GetSubject() == "" || req.GetAll() == (req.GetCapability() != ""):
		return nil, refuse("name a grant, or a subject with a capability, or a subject and all")
	}
	if _, err := s.knownSubject(req.GetSubject()); err != nil {
		return nil, err
	}
	if req.GetAll() {
		return s.set.GrantsOf(req.GetSubject()), nil
	}
	pattern, err := grants.ParsePattern(req.GetCapability())
	if err != nil {
		return nil, refuse("capability: %v", err)
	}
	var found []grants.Grant
	for _, effect := range []grants.Effect{grants.Allow, grants.Deny} {
		if g, ok := s.set.Find(req.GetSubject(), pattern, effect); ok && !s.namesHidden(uid, pattern) {
			found = append(found, g)
		}
	}
	if len(found) == 0 {
		return nil, refuse("%s has no grant %s", req.GetSubject(), pattern)
	}
	return found, nil
}

// grantByPrefix finds the one grant whose id starts with prefix.
func (s *state) grantByPrefix(uid uint32, prefix string) (grants.Grant, error) {
	if g, ok := s.set.Grant(prefix); ok && !s.namesHidden(uid, g.Pattern) {
		return g, nil
	}
	var found []grants.Grant
	for _, g := range s.seen(uid, s.set.All()) {
		if strings.HasPrefix(g.ID, prefix) {
			found = append(found, g)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return grants.Grant{}, refuse("no grant has an id that starts with %s", shown(prefix))
	}
	return grants.Grant{}, refuse("%d grants have an id that starts with %s", len(found), shown(prefix))
}

// ListGrants lists grants.
func (o operator) ListGrants(ctx context.Context, req *operatorv1.ListGrantsRequest) (*operatorv1.ListGrantsResponse, error) {
	d := o.d
	if err := d.needUnlocked(); err != nil {
		return nil, err
	}
	st, at := d.state(), d.clock.read()
	st.mu.RLock()
	defer st.mu.RUnlock()
	uid := callerOf(ctx).UID
	all := st.set.All()
	ended := slices.DeleteFunc(slices.Clone(st.ended), func(e endedGrant) bool { return hiddenFrom(uid, e.Personal) })
	if name := req.GetSubject(); name != "" {
		if _, err := st.knownSubject(name); err != nil && !slices.ContainsFunc(ended, func(e endedGrant) bool { return e.Subject == name }) {
			return nil, err
		}
		all = st.set.GrantsOf(name)
	}
	response := &operatorv1.ListGrantsResponse{}
	for _, g := range st.seen(uid, all) {
		if m := st.grantMessage(g, at); req.GetAll() || m.State == grants.Active.String() {
			response.Grants = append(response.Grants, m)
		}
	}
	if req.GetAll() {
		for _, e := range ended {
			if req.GetSubject() == "" || e.Subject == req.GetSubject() {
				m := st.grantMessage(e.Grant, at)
				m.State = stateRevoked
				response.Grants = append(response.Grants, m)
			}
		}
	}
	return response, nil
}

// grantState judges a grant by clocks and counter. The caller holds mu.
func (s *state) grantState(g grants.Grant, at reading) grants.State {
	q := grants.Request{Used: s.used}
	at.judge(&q)
	return g.State(&q)
}

// grantMessage is a grant as the operator sees it. The caller holds mu.
func (s *state) grantMessage(g grants.Grant, at reading) *operatorv1.Grant {
	return &operatorv1.Grant{
		GrantId: g.ID, Subject: g.Subject, Capability: g.Pattern.String(), Effect: g.Effect.String(), Until: millis(g.Until),
		Uses: g.Uses, Used: s.used(g.ID), Tier: g.Tier.String(), RequireApproval: g.RequireApproval, Note: g.Note,
		Created: millis(g.Created), State: s.grantState(g, at).String(), Owner: g.Owner, Disclose: g.Disclose,
		GrantedBy: g.GrantedBy,
	}
}
