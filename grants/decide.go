package grants

import "time"

// Request is a question with everything that the answer depends on beside the
// [Set].
type Request struct {
	Subject    string
	Capability Capability
	Object     Object // of a read, use or memory capability; ignored for other actions
	Tier       Tier   // of the run

	// Profile is the name of the run's profile; empty: none. Ceiling is what the
	// run can reach at most; nil although Profile is set: there is no such profile.
	Profile string
	Ceiling *Ceiling

	// Tool is the built-in tool that acts; empty: none does, for a host asks for a
	// tool of its own. The ceiling has to list it, whichever tool requires the
	// capability.
	Tool string

	// Resource returns what is known of a resource that a tool requires. It is asked
	// for calls of declared tools only. Nil: there are none.
	Resource func(name string) Object

	Now         time.Time     // wall clock; zero: not known, as if ClockBehind
	BootID      string        // of the present boot; empty: not known
	SinceBoot   time.Duration // boot clock, suspend included
	ClockBehind bool          // the wall clock is behind where it once was: it cannot be trusted

	// Used returns how often a grant was charged so far, reservations included.
	// It is asked for limited grants only. Nil: they have no use left.
	Used func(grantID string) uint64
}

// Object is what is known of the resource that a capability names. Of a tenant that
// is only whether it exists.
type Object struct {
	Exists     bool
	Secret     bool // its kind is secret
	HasContent bool // false: declared, but nothing was put yet

	// Personal content is allowed only by grants of the operator whose it is.
	Personal bool
	OwnerUID uint32 // uid of that operator; ignored for others
}

// Decide answers r. It does not allocate and takes the same look-ups whether or
// not the object exists; their number depends on the object's length and on how
// many different lengths the subject's prefixes have, not on how many grants.
//
// In order: the subject must be known, enabled and run at its minimum tier; the
// ceiling of the run must cover what is asked for; no deny may match; a resource
// or tenant must exist; an allow must match and hold; the resource must have content; and
// if the charged grant or the profile wants approval, the outcome is pending. For a
// call, everything that the tool declares to require must be allowed likewise, which
// charges nothing; what the tool requires by a pattern costs a look at the subject's
// denials.
func Decide(set *Set, r *Request) Decision {
	return evaluate(set, r, nil)
}

// Explain is Decide with its trace, in the order of the steps taken.
func Explain(set *Set, r *Request) (Decision, []Step) {
	var t trace
	return evaluate(set, r, &t), t.steps
}

// evaluate is the one evaluator. t is nil unless somebody listens.
func evaluate(set *Set, r *Request, t *trace) Decision {
	h, known := set.holders[r.Subject]
	switch {
	case !known:
		t.add(CheckSubject, Fail, "no such subject", "")
		return denied(CauseUnknownSubject, "")
	case h.subject.Disabled:
		t.add(CheckSubject, Fail, "the subject is disabled", "")
		return denied(CauseSubjectDisabled, "")
	}
	t.add(CheckSubject, Pass, "the subject is enabled", "")
	if !r.Tier.Satisfies(h.subject.MinTier) {
		t.tier(Fail, r.Tier, h.subject.MinTier, "")
		return denied(CauseTierTooLow, "")
	}
	t.tier(Pass, r.Tier, h.subject.MinTier, "")

	within, cause := r.ceiling(t)
	if cause != "" {
		return denied(cause, "")
	}

	j := judge{request: r, action: r.Capability.Action, object: r.Object, trace: t, gated: within != nil && within.gated}
	if int(r.Capability.Action) < actionCount {
		h.actions[r.Capability.Action].match(r.Capability.Object, &j)
	}
	d := j.decide()
	if r.Capability.Action == Call {
		return set.judgeCall(h, r, d, t)
	}
	return d
}

// ceiling judges what the run can reach at most. It returns the requirement that
// covers what is asked for, nil without a profile.
func (r *Request) ceiling(t *trace) (*requirement, Cause) {
	c := r.Ceiling
	switch {
	case c == nil && r.Profile == "":
		return nil, ""
	case c == nil:
		t.add(CheckProfile, Fail, "no such profile", "")
		return nil, CauseUnknownProfile
	case c.subject != r.Subject:
		t.add(CheckProfile, Fail, "the profile is another subject's", "")
		return nil, CauseSubjectMismatch
	}
	if t != nil {
		t.add(CheckProfile, Pass, "the run is under profile "+c.profile, "")
	}
	if r.Tool != "" && !c.Lists(r.Tool) {
		if t != nil {
			t.add(CheckCeiling, Fail, "the profile does not list "+r.Tool+", with which this is done", "")
		}
		return nil, CauseToolNotListed
	}
	found, cause := c.find(Pattern{Action: r.Capability.Action, Object: r.Capability.Object})
	if cause == "" {
		t.ceiling(Pass, found, "")
	} else {
		t.outside(found, cause)
	}
	return found, cause
}

// judge hears the grants that match, most specific first, and then decides.
type judge struct {
	request *Request // what is known of the run and of time
	action  Action   // that is judged…
	object  Object   // …and what is known of its object
	trace   *trace
	gated   bool   // a person approves what the run's tools do
	deny    *Grant // the first deny that stands
	allow   *Grant // the first allow that holds: the one that is charged
	near    *Grant // the first allow that does not hold…
	miss    Cause  // …and why
}

// hear takes in one slot. Two allows of a subject never share a pattern
// ([Set.PutGrant]), so exact before prefix and longer before shorter puts them
// into one order, and the first that holds is always the same.
func (j *judge) hear(s slot) {
	if s.deny != nil {
		j.hearDeny(s.deny)
	}
	if s.allow != nil {
		j.hearAllow(s.allow)
	}
}

func (j *judge) hearDeny(g *Grant) {
	if g.ended(j.request) {
		j.trace.grant(Skip, g, "the deny has expired")
		return
	}
	j.trace.grant(Match, g, "denies")
	if j.deny == nil {
		j.deny = g
	}
}

func (j *judge) hearAllow(g *Grant) {
	if j.secret() && g.Pattern.Prefix {
		j.trace.grant(Skip, g, "a pattern with '*' never matches kind secret")
		return
	}
	if miss := j.holds(g); miss != "" {
		if j.near == nil {
			j.near, j.miss = g, miss
		}
		return
	}
	if j.allow != nil {
		j.trace.grant(Skip, g, "holds, but another one is charged")
		return
	}
	j.trace.grant(Match, g, "holds")
	j.allow = g
}

// holds returns the first condition of an allow that is not met, empty when all
// are.
func (j *judge) holds(g *Grant) Cause {
	r := j.request
	switch {
	case j.personal() && (g.GrantedBy == nil || *g.GrantedBy != j.object.OwnerUID):
		j.trace.grant(Fail, g, "the resource is personal, and another operator granted this")
		return CausePersonal
	case g.ended(r):
		j.trace.expired(g, r)
		return CauseGrantExpired
	case g.exhausted(r):
		j.trace.exhausted(g)
		return CauseGrantExhausted
	case !r.Tier.Satisfies(g.Tier):
		j.trace.tier(Fail, r.Tier, g.Tier, g.ID)
		return CauseTierTooLow
	case j.secret() && j.action == Read && !g.Disclose:
		j.trace.grant(Fail, g, "reading kind secret needs a grant that discloses")
		return CauseDisclosureNotGranted
	}
	return ""
}

func (j *judge) decide() Decision {
	resource := j.action.NamesResource()
	switch {
	case j.deny != nil:
		return denied(CauseExplicitDeny, j.deny.ID)
	case resource && !j.object.Exists:
		j.trace.add(CheckResource, Fail, "no such resource", "")
		return denied(CauseUnknownResource, "")
	case j.action.NamesTenant() && !j.object.Exists:
		j.trace.add(CheckTenant, Fail, "no such tenant", "")
		return denied(CauseUnknownTenant, "")
	case j.allow == nil:
		return j.unmet()
	case resource && !j.object.HasContent:
		j.trace.add(CheckResource, Fail, "nothing was put there yet", "")
		return denied(CauseNoContent, j.allow.ID)
	}
	if resource {
		j.trace.add(CheckResource, Pass, "the resource exists and has content", "")
	}
	return j.allowed()
}

// unmet is the decision when no allow holds.
func (j *judge) unmet() Decision {
	if j.near != nil {
		return denied(j.miss, j.near.ID)
	}
	j.trace.add(CheckGrant, Fail, "no grant matches", "")
	return denied(CauseNoGrant, "")
}

// allowed is the decision when an allow holds and nothing stands against it.
func (j *judge) allowed() Decision {
	d := Decision{
		Outcome: Allowed, Reason: ReasonAllowed, GrantID: j.allow.ID,
		Disclosed: j.secret() && j.action == Read,
		Limited:   j.allow.Uses != 0,
	}
	switch {
	case j.allow.RequireApproval:
		j.trace.add(CheckApproval, Fail, "a person must approve", j.allow.ID)
	case j.gated:
		j.trace.add(CheckApproval, Fail, "a person must approve what this tool does", j.allow.ID)
	default:
		return d
	}
	d.Outcome, d.Reason = Pending, ReasonApprovalPending
	return d
}

// secret reports whether the object is content of kind secret.
func (j *judge) secret() bool { return j.object.Secret && j.action.NamesResource() }

// personal reports whether the object is content of one operator.
func (j *judge) personal() bool { return j.object.Personal && j.action.NamesResource() }
