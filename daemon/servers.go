package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"subjectbroker/audit"
	"subjectbroker/grants"
	"subjectbroker/grants/rules"
	"subjectbroker/proto/wire"
	"subjectbroker/vault"
)

// bucketServers holds one row for each server that was added, by name.
const bucketServers = "servers"

// server returns a server that was added. It takes mu.
func (s *state) server(name string) (grants.Server, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	server, ok := s.servers[name]
	return server, ok
}

// isHosted reports whether the daemon runs the server of that name. It takes mu.
func (s *state) isHosted(name string) bool {
	server, ok := s.server(name)
	return ok && server.Hosted
}

// given reports whether there is a resource that a server may be given: what is
// personal goes only to what its own operator has said how to run. The caller holds mu.
func (s *state) given(server *grants.Server, name string) bool {
	by := uint32(os.Geteuid())
	if server.By != nil {
		by = *server.By
	}
	f, ok := s.catalog[name]
	return ok && !hiddenFrom(by, f.owner)
}

// observed reports whether the rules around a server only log at a time. It takes mu.
func (s *state) observed(name string, at time.Time) bool {
	server, ok := s.server(name)
	return ok && at.Before(server.ObserveUntil)
}

// observes reports whether the rules of a policy only log at a time. It takes mu.
func (s *state) observes(policy *rules.Compiled, at time.Time) bool {
	return policy.Observes(at) || s.observed(policy.Policy().Server, at)
}

// loadServers reads the servers and what was trusted of them.
func (s *state) loadServers(tx *vault.Tx) error {
	if err := tx.Each(bucketServers, func(name string, row []byte) error {
		server, err := grants.DecodeServer(row)
		if err != nil || server.Name != name {
			return fmt.Errorf("%w: server row %s: %v", vault.ErrIntegrity, name, err)
		}
		s.servers[name] = server
		return nil
	}); err != nil {
		return err
	}
	return tx.Each(bucketPins, func(name string, row []byte) error {
		p, err := decodePin(name, row)
		if err != nil {
			return fmt.Errorf("%w: pin row: %v", vault.ErrIntegrity, err)
		}
		s.pins[p.key()] = p
		return nil
	})
}

// serverChange adds a server, of which nothing is trusted yet, or replaces one of
// the same name, whose pins stay: they are of what it offers. Processes of the one before are ended, and the next
// call starts the new one.
func (o operator) serverChange(ctx context.Context, st *state, server grants.Server) change {
	d := o.d
	kind, another := kindServerAdd, false
	var wrapped change // what was trusted of one that agents wrapped
	if before, exists := st.servers[server.Name]; exists {
		kind, server.Created = kindServerSet, before.Created
		another = !same(before, server)
	} else {
		wrapped = joined(o.pinsRemoval(ctx, st.pinned(server.Name)), o.serverAnswers(ctx, st, server.Name))
	}
	uid := callerOf(ctx).UID
	server.By = &uid
	e := o.entry(ctx, kind)
	e.Server = server.Name
	return joined(wrapped, change{
		effects: []*audit.Entry{e},
		write: func(tx *vault.Tx) error {
			row, err := grants.EncodeServer(server)
			if err != nil {
				return err
			}
			return tx.Put(bucketServers, server.Name, row)
		},
		restrict: func(st *state) {
			if another { // nothing is run the old way any more
				delete(st.servers, server.Name)
			}
		},
		permit: func(st *state) {
			st.servers[server.Name] = server
			if kind == kindServerAdd { // what agents said of one that they wrapped
				d.offers.forget(server.Name)
				d.hosts.logs.forget(server.Name)
			}
		},
		after: func() { d.hub.listChanged() },
	})
}

// serverRemoval removes a server with what was trusted of it: a later one of its
// name inherits nothing. What else names it, its grants and policies, goes with
// changes of its own: see serverGrants.
func (o operator) serverRemoval(ctx context.Context, st *state, name string) change {
	d := o.d
	forgotten := joined(o.pinsRemoval(ctx, st.pinned(name)), o.serverAnswers(ctx, st, name))
	_, added := st.servers[name]
	e := o.entry(ctx, kindServerRemove)
	e.Server = name
	return change{
		effects: append([]*audit.Entry{e}, forgotten.effects...),
		write: func(tx *vault.Tx) error {
			if err := forgotten.write(tx); err != nil || !added {
				return err
			}
			return tx.Delete(bucketServers, name)
		},
		restrict: func(st *state) {
			forgotten.restrict(st)
			delete(st.servers, name)
			d.offers.forget(name)
		},
		permit: forgotten.permit,
		after:  func() { d.hub.listChanged() },
	}
}

// serverAnswers takes the standing approvals of calls to a server out of force.
func (o operator) serverAnswers(ctx context.Context, st *state, name string) change {
	return o.answersRemoval(ctx, st, causeServerGone, func(k cardKey) bool { return k.server == name })
}

// answersRemoval takes the standing approvals that match says out of force.
func (o operator) answersRemoval(ctx context.Context, st *state, cause string, match func(cardKey) bool) change {
	var gone []consent
	for _, c := range st.consents {
		if match(c.key) {
			gone = append(gone, c)
		}
	}
	slices.SortFunc(gone, func(a, b consent) int { return strings.Compare(a.id, b.id) })
	var effects []*audit.Entry
	for _, c := range gone {
		e := c.entry(*o.entry(ctx, kindApprovalVoid))
		e.Decision, e.ReasonCode, e.Cause = decisionDeny, string(wire.ApprovalDenied), cause
		effects = append(effects, e)
	}
	return withdrawal(gone, effects)
}

// serverGrants returns the grants that name a server: call:NAME/ and what follows.
// Those of wider patterns are of other servers as well. The caller holds mu or
// changing.mu.
func (s *state) serverGrants(name string) []grants.Grant {
	var found []grants.Grant
	for _, g := range s.set.All() {
		if g.Pattern.Action == grants.Call && strings.HasPrefix(g.Pattern.Object, name+"/") {
			found = append(found, g)
		}
	}
	return found
}

// callers returns the subjects that hold a grant to call tools of a server now,
// sorted. The caller holds mu or changing.mu.
func (s *state) callers(name string, at reading) []string {
	all := grants.Pattern{Action: grants.Call, Object: name + "/", Prefix: true}
	subjects := map[string]bool{}
	for _, g := range s.set.All() {
		if g.Effect == grants.Allow && g.Pattern.Overlaps(all) && s.grantState(g, at) == grants.Active {
			subjects[g.Subject] = true
		}
	}
	return slices.Sorted(maps.Keys(subjects))
}

// joined is one change of several. Nothing but the order of its parts is new.
func joined(parts ...change) change {
	all := change{}
	for _, c := range parts {
		all.effects = append(all.effects, c.effects...)
	}
	all.write = func(tx *vault.Tx) error {
		for _, c := range parts {
			if c.write == nil {
				continue
			}
			if err := c.write(tx); err != nil {
				return err
			}
		}
		return nil
	}
	all.restrict = func(st *state) {
		for _, c := range parts {
			if c.restrict != nil {
				c.restrict(st)
			}
		}
	}
	all.permit = func(st *state) {
		for _, c := range parts {
			if c.permit != nil {
				c.permit(st)
			}
		}
	}
	all.after = func() {
		for _, c := range parts {
			if c.after != nil {
				c.after()
			}
		}
	}
	return all
}

// pinRow is the stored form of a pin.
type pinRow struct {
	V       int    `json:"v"`
	Object  []byte `json:"object"`  // what was trusted, base64
	Trusted int64  `json:"trusted"` // Unix milliseconds
}

const pinRowVersion = 1

func encodePin(p pin) ([]byte, error) {
	return json.Marshal(pinRow{pinRowVersion, p.Object, p.Trusted.UnixMilli()})
}

// decodePin reads a row of encodePin under its name.
func decodePin(name string, raw []byte) (pin, error) {
	var row pinRow
	if err := json.Unmarshal(raw, &row); err != nil {
		return pin{}, err
	}
	server, tool, found := strings.Cut(name, "/")
	if err := grants.CheckServer(server); err != nil || !found || row.V != pinRowVersion {
		return pin{}, errors.Join(errors.New("it is no pin"), err)
	}
	return pin{Server: server, Tool: tool, Object: row.Object, Trusted: fromMillis(row.Trusted)}, nil
}
