package grants

// judgeCall judges what a call needs beside its grant. d is what the grants say of
// the call itself.
//
// Every capability that the tool declares to require must be allowed now, too: what
// the tool would do with it is done for the subject. And a person approves when the
// tool has a gate, or the profile says so, or one of those grants does. A tool that
// is not declared requires nothing and has no gate.
func (s *Set) judgeCall(h *holder, r *Request, d Decision, t *trace) Decision {
	if d.Outcome == Denied {
		return d
	}
	tool := s.tools[r.Capability.Object]
	asks := r.Ceiling.asks(r.Capability.Object, &tool)
	switch {
	case tool.Gate:
		t.add(CheckApproval, Fail, "a person must approve: the tool has a gate", "")
		asks = true
	case asks:
		t.add(CheckApproval, Fail, "a person must approve: the profile and the tool say so", "")
	}
	for _, q := range tool.Requires {
		need := h.require(r, q, t)
		if need.Outcome == Denied {
			return need
		}
		asks = asks || need.Outcome == Pending
	}
	if asks {
		d.Outcome, d.Reason = Pending, ReasonApprovalPending
	}
	return d
}

// asks reports whether a person approves calls of a tool, for the profile of the run
// or the tool itself. What was so when the run opened stays so. Without a profile
// nobody has said so.
func (c *Ceiling) asks(name string, now *Tool) bool {
	if c == nil {
		return false
	}
	if c.approval == ApprovalAlways || c.approval == ApprovalAuto && now.Approval {
		return true
	}
	for i := range c.within[Call] {
		if own := &c.within[Call][i]; own.call && own.gated && own.tool == name {
			return true
		}
	}
	return false
}

// require decides whether what a tool requires is allowed to the run that calls it.
// For a pattern, all of what it names must be.
func (h *holder) require(r *Request, q Pattern, t *trace) Decision {
	if t != nil {
		t.add(CheckRequires, Pass, "the tool requires "+q.String(), "")
	}
	if int(q.Action) >= actionCount {
		return denied(CauseNoGrant, "")
	}
	gated := false
	if r.Ceiling != nil {
		found, cause := r.Ceiling.find(q)
		if cause != "" {
			t.outside(found, cause)
			return denied(cause, "")
		}
		t.ceiling(Pass, found, "")
		gated = found.gated
	}
	j := judge{request: r, action: q.Action, trace: t, gated: gated}
	if q.Prefix {
		h.actions[q.Action].matchAll(q, &j)
		switch {
		case j.deny != nil:
			return denied(CauseExplicitDeny, j.deny.ID)
		case j.allow == nil:
			return j.unmet()
		}
		return j.allowed()
	}
	if q.Action.NamesResource() && r.Resource != nil {
		j.object = r.Resource(q.Object)
	}
	j.object.Exists = j.object.Exists || q.Action.NamesTenant() // what a tool means by a tenant is its own
	h.actions[q.Action].match(q.Object, &j)
	return j.decide()
}

// matchAll shows the judge every allow that covers the pattern q, as match does, and
// every deny that takes something of it away.
func (ix *index) matchAll(q Pattern, j *judge) {
	for _, l := range ix.lengths {
		if l.n > len(q.Object) || l.n > 0 && !endsAtSeparator(q.Object[:l.n]) {
			continue
		}
		if s, ok := ix.prefix[q.Object[:l.n]]; ok {
			j.hear(s)
		}
	}
	var first *Grant // of those that stand: the order of a map is none
	ix.each(func(g *Grant) {
		below := g.Effect == Deny && q.Covers(g.Pattern) && g.Pattern != q
		if below && !g.ended(j.request) && (first == nil || g.ID < first.ID) {
			first = g
		}
	})
	if first != nil {
		j.hearDeny(first)
	}
}
