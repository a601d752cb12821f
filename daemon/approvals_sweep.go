package daemon

import (
	"maps"
	"slices"
	"strings"
	"time"

	"subjectbroker/audit"
	"subjectbroker/proto/wire"
)

// tendApprovals ends cards and standing answers when their time or what they are
// about is over. Nothing rests on how soon it does so: whoever uses an answer looks
// for themselves.
func (d *Daemon) tendApprovals() {
	tick := time.NewTicker(sweepCards)
	defer tick.Stop()
	for {
		select {
		case <-d.life.Done():
			return
		case <-tick.C:
		case <-d.approvals.wakes:
		}
		d.sweep()
		if !d.locked() {
			d.endConsents()
			d.missConsents()
		}
	}
}

// sweep ends cards that are over, with an entry each.
func (d *Daemon) sweep() {
	a := d.approvals
	at := d.clock.read()
	a.mu.Lock()
	all := slices.Collect(maps.Values(a.cards))
	a.mu.Unlock()
	for _, c := range all {
		a.mu.Lock()
		state := c.state
		a.mu.Unlock()
		if state == cardMaking {
			continue
		}
		cause := ""
		if state == cardPending || state == cardApproved {
			cause = d.standing(c)
		}
		d.endCard(c, func() (cardState, string) {
			switch {
			case c.state == cardSettled:
				if c.expires.passed(at) || c.over() {
					a.forget(c)
				}
			case c.state == cardRunning && c.expires.passed(at) && c.over(): // nobody will tell how that ended
				return cardSettled, ""
			case c.state != cardPending && c.state != cardApproved:
			case cause != "":
				return cardVoid, cause
			case c.expires.passed(at) && c.state == cardApproved:
				return cardExpired, causeUnused
			case c.expires.passed(at):
				return cardExpired, causeUnanswered
			}
			return c.state, ""
		})
	}
}

// missConsents says on their cards that answers stand no more that went with something
// else, as with a server.
func (d *Daemon) missConsents() {
	ids := d.approvals.standing()
	if len(ids) == 0 {
		return
	}
	gone := map[string]string{}
	st := d.state()
	st.mu.RLock()
	for _, id := range ids {
		if _, stands := st.consents[id]; !stands {
			gone[id] = causeVoid
		}
	}
	open := st.open
	st.mu.RUnlock()
	if open {
		d.approvals.conclude(gone)
	}
}

// endCard moves a card to where judge says, which is called with approvals.mu, and
// tells the log.
func (d *Daemon) endCard(c *card, judge func() (cardState, string)) {
	a := d.approvals
	a.mu.Lock()
	to, cause := judge()
	if to == c.state {
		a.mu.Unlock()
		return
	}
	c.cause = cause
	a.set(c, to)
	a.mu.Unlock()
	if to == cardSettled {
		return
	}
	e := c.entry(kindApprovalVoid)
	e.Decision, e.ReasonCode, e.Cause = decisionDeny, string(wire.ApprovalDenied), cause
	if to == cardExpired {
		e.Kind, e.ReasonCode = kindApprovalExpire, string(wire.ApprovalExpired)
	}
	if log := d.log(); log != nil {
		// Nobody waits for it. A start looks for cards whose end is not in the log.
		_, _ = log.Append(func(uint64, time.Time) (audit.Entry, error) { return e, nil })
	}
}

// voidCards ends every card: nothing that was asked or approved before is done
// after.
func (d *Daemon) voidCards(cause string) {
	a := d.approvals
	a.mu.Lock()
	all := slices.Collect(maps.Values(a.cards))
	a.mu.Unlock()
	for _, c := range all {
		d.endCard(c, func() (cardState, string) {
			if c.state == cardSettled {
				a.forget(c)
			}
			if c.state >= cardRunning { // whoever uses it looks for themselves
				return c.state, ""
			}
			return cardVoid, cause
		})
	}
}

// endOrphanCards ends in the log the requests that waited, or were approved and not
// used, when the last daemon died: see endOrphans.
func (d *Daemon) endOrphanCards(log *audit.Log) error {
	orphans, err := findOrphanCards(log)
	if err != nil {
		return err
	}
	var entries []audit.Entry
	for _, e := range orphans {
		e = audit.Entry{
			Kind: kindApprovalVoid, LaunchID: e.LaunchID, RunID: e.RunID, SubjectID: e.SubjectID, Tier: e.Tier, ProfileID: e.ProfileID,
			Server: e.Server, Tool: e.Tool, ResourceID: e.ResourceID, Action: e.Action, Capability: e.Capability, ArgsDigest: e.ArgsDigest,
			Pin: e.Pin, Policy: e.Policy, GrantID: e.GrantID, ApprovalID: e.ApprovalID,
			Decision: decisionDeny, ReasonCode: string(wire.ApprovalDenied), Cause: causeDaemonDied,
		}
		entries = append(entries, e)
	}
	if len(entries) == 0 {
		return nil
	}
	if err := d.recordAll(entries); err != nil {
		d.logger.Warn("the log could not take the end of the approvals of the last sbd", "approvals", len(entries), "error", err)
	}
	return nil
}

// findOrphanCards returns the entries of requests without an end since the last
// start, oldest first.
func findOrphanCards(log *audit.Log) ([]audit.Entry, error) {
	orphans, _, err := sinceStart(log, "approval", func(open map[string]audit.Entry, e audit.Entry) {
		switch {
		case e.Kind == kindApprovalRequest:
			open[e.ApprovalID] = e
		case e.Kind == kindApprovalApprove && e.Cause == strings.ToUpper(scopeOnce): // it goes on until it is used
		case e.Kind == kindApprovalApprove, e.Kind == kindApprovalRun, e.Kind == kindApprovalDeny, e.Kind == kindApprovalExpire, e.Kind == kindApprovalVoid:
			delete(open, e.ApprovalID)
		}
	})
	return orphans, err
}
