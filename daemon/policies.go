package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"subjectbroker/audit"
	"subjectbroker/grants/policy"
	"subjectbroker/grants/rules"
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
			compiled, err = rules.Compile(p, resolvePath)
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
	compiled, err := rules.Compile(p, resolvePath)
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
		permit: func(st *state) {
			delete(st.policies, keyOfPolicy(&p))
			st.meters.reset(p.Subject, p.Server)
		},
	}
}

// policyReset sets what a policy has counted to nothing.
func (o operator) policyReset(ctx context.Context, compiled *rules.Compiled) change {
	p := compiled.Policy()
	e := o.entry(ctx, kindPolicyReset)
	e.SubjectID, e.Server, e.Policy = p.Subject, p.Server, compiled.Version()
	return change{
		effects: []*audit.Entry{e},
		write:   func(*vault.Tx) error { return nil }, // the log and the counters are all that knows of it
		permit:  func(st *state) { st.meters.reset(p.Subject, p.Server) },
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
// more through needs as much as a grant. The caller holds mu or changing.mu.
func (s *state) needOfPolicies(c policy.Change) need {
	if c.What == policy.APolicy && c.Verb != policy.Remove && !s.widensPolicy(&c.Policy) {
		return nothing
	}
	return whenRaised
}

// maxLinks is how many links to nothing a path may lead over.
const maxLinks = 40

// resolvePath resolves the links of an absolute path as far as it exists; what does
// not exist is left as it is, and a link to what does not exist is followed: it is
// where something would be made. What cannot be looked into is an error.
func resolvePath(path string) (string, error) {
	if isOwn(path) {
		return "", errOwn
	}
	rest, links := "", 0
	for {
		resolved, err := filepath.EvalSymlinks(path)
		if err == nil {
			return filepath.Join(resolved, rest), nil
		}
		parent, last := filepath.Split(strings.TrimRight(path, "/"))
		if last == "" || !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		target, err := os.Readlink(parent + last)
		switch links++; {
		case err == nil && links > maxLinks:
			return "", errLinks
		case err == nil && filepath.IsAbs(target):
			path = target
		case err == nil:
			path = parent + target // not cleaned: what it goes up from may be a link
		default:
			path, rest = parent, filepath.Join(last, rest)
		}
	}
}

// isOwn reports whether a path leads to or over what is something else to each
// process that opens it, as /proc/self/cwd is: here it says nothing about the server.
func isOwn(path string) bool {
	left, at, links := strings.Split(path, "/"), "/", 0
	for len(left) > 0 {
		name := left[0]
		left = left[1:]
		if name == "" || name == "." {
			continue
		}
		if name == ".." {
			at = filepath.Dir(at)
			continue
		}
		at = filepath.Join(at, name)
		if at == "/proc" || at == "/dev/fd" {
			return true
		}
		target, err := os.Readlink(at)
		if err != nil {
			continue // it is no link
		}
		if links++; links > maxLinks {
			return true
		}
		left = append(strings.Split(target, "/"), left...)
		at = filepath.Dir(at)
		if filepath.IsAbs(target) {
			at = "/"
		}
	}
	return false
}

var errOwn = errors.New("the path means something else to each process")

var errLinks = errors.New("the path leads over too many links")
