package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"subjectbroker/audit"
	"subjectbroker/grants/policy"
	"subjectbroker/grants/rules"
	"subjectbroker/proto/links"
	"subjectbroker/vault"
)

// bucketPolicies holds one row for each policy, named SUBJECT/SERVER.
const bucketPolicies = "policies"

// policyKey says whose calls a policy judges, and of which server.
type policyKey struct{ subject, server string }

// row is the name of the policy's row. Neither part can hold a slash.
func (k policyKey) row() string { return k.subject + "/" + k.server }

func keyOfPolicy(p *rules.Policy) policyKey { return policyKey{p.Subject, p.Server} }

// policyOf returns the policy around a server for a subject; nil: there is none,
// and nothing is limited. It takes mu.
func (s *state) policyOf(subject, server string) *rules.Compiled {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.policyLocked(subject, server)
}

// policyLocked is policyOf for callers that hold mu or changing.mu.
func (s *state) policyLocked(subject, server string) *rules.Compiled {
	return s.policies[policyKey{subject, server}]
}

// loadPolicies reads the policies.
func (s *state) loadPolicies(tx *vault.Tx) error {
	return tx.Each(bucketPolicies, func(name string, row []byte) error {
		p, err := rules.Decode(row)
		if err == nil && keyOfPolicy(&p).row() != name {
			err = errors.New("it is another one's")
		}
		var compiled *rules.Compiled
		if err == nil {
			compiled, err = rules.Compile(p, links.Resolve)
		}
		if err != nil {
			return fmt.Errorf("%w: policy row %s: %v", vault.ErrIntegrity, name, err)
		}
		s.policies[keyOfPolicy(&p)] = compiled
		return nil
	})
}

// policyChange adds or replaces a policy. One that lets nothing through that was not
// let through before is in force from the intent on, any other when it is applied.
func (o operator) policyChange(ctx context.Context, st *state, p rules.Policy) (change, error) {
	compiled, err := rules.Compile(p, links.Resolve)
	if err != nil {
		return change{}, refuse("policy of %s around %s: %v", p.Subject, p.Server, err)
	}
	e := o.entry(ctx, kindPolicySet)
	e.SubjectID, e.Server, e.Policy = p.Subject, p.Server, compiled.Version()
	c := change{
		effects: []*audit.Entry{e},
		write: func(tx *vault.Tx) error {
			row, err := rules.Encode(p)
			if err != nil {
				return err
			}
			return tx.Put(bucketPolicies, keyOfPolicy(&p).row(), row)
		},
	}
	put := func(st *state) { st.policies[keyOfPolicy(&p)] = compiled }
	if st.widensPolicy(&p) {
		c.permit = put
	} else {
		c.restrict = put
	}
	return c, nil
}

// widensPolicy reports whether a policy may let through what is not let through now.
// The caller holds mu or changing.mu.
func (s *state) widensPolicy(p *rules.Policy) bool {
	var now *rules.Policy
	if compiled := s.policyLocked(p.Subject, p.Server); compiled != nil {
		now = compiled.Policy()
	}
	return p.Widens(now)
}

// policyRemovals removes the policies that match says. What they have counted goes
// with them: a later one of the same subject and server begins with nothing. The
// caller holds changing.mu.
func (o operator) policyRemovals(ctx context.Context, st *state, match func(policyKey) bool) (c change, count int) {
	var parts []change
	for _, p := range st.sortedPolicies() {
		if match(keyOfPolicy(&p)) {
			parts = append(parts, o.policyRemoval(ctx, p))
		}
	}
	return joined(parts...), len(parts)
}

// policyRemoval removes one policy. It was a limit, and so it goes last.
func (o operator) policyRemoval(ctx context.Context, p rules.Policy) change {
	e := o.entry(ctx, kindPolicyRemove)
	e.SubjectID, e.Server = p.Subject, p.Server
	return change{
		effects: []*audit.Entry{e},
		write:   func(tx *vault.Tx) error { return tx.Delete(bucketPolicies, keyOfPolicy(&p).row()) },
		permit:  func(st *state) { delete(st.policies, keyOfPolicy(&p)) },
	}
}

// policyReset sets what a policy has counted to nothing.
func (o operator) policyReset(ctx context.Context, compiled *rules.Compiled) change {
	p := compiled.Policy()
	e := o.entry(ctx, kindPolicyReset)
	e.SubjectID, e.Server, e.Policy = p.Subject, p.Server, compiled.Version()
	return change{
		effects: []*audit.Entry{e},
		write:   func(*vault.Tx) error { return nil }, // the log and the counters are all that knows of it: see meters.heard
	}
}

// sortedPolicies returns the policies by subject and server. The caller holds mu or
// changing.mu.
func (s *state) sortedPolicies() []rules.Policy {
	all := make([]rules.Policy, 0, len(s.policies))
	for _, compiled := range s.policies {
		all = append(all, *compiled.Policy())
	}
	slices.SortFunc(all, func(a, b rules.Policy) int {
		return strings.Compare(keyOfPolicy(&a).row(), keyOfPolicy(&b).row())
	})
	return all
}

// needOfPolicies is what a change of a document around servers needs: what may let
// more through needs as much as a grant, and where a person is asked, as much as an
// answer. The caller holds mu or changing.mu.
func (s *state) needOfPolicies(c policy.Change) need {
	switch {
	case c.What == policy.AServer && c.Verb == policy.Remove:
		return s.needAround(c.Name)
	case c.What == policy.AServer:
		return s.needOfServer(&c.Server)
	case c.Verb != policy.Remove && !s.widensPolicy(&c.Policy):
		return nothing
	case s.policyAsksOf(c.Policy.Subject, c.Policy.Server):
		return whenAsked
	}
	return whenRaised
}
