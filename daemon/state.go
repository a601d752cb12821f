package daemon

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"subjectbroker/grants"
	"subjectbroker/grants/rules"
	"subjectbroker/vault"
)

// state is what is in force now. It is a copy of the vault's rows, made at
// unlock and dropped at lock; a decision never touches the disk.
type state struct {
	open    bool // read from the vault; fixed
	marked  bool // the operator had locked the vault; fixed
	mu      sync.RWMutex
	set     *grants.Set
	catalog map[string]facts
	names   []string // of catalog, sorted
	uses    map[string]uint64
	ended   []endedGrant // newest last

	launches map[string]launchRow     // that have a row; see Daemon.launches for what has become of them
	servers  map[string]grants.Server // that were added
	pins     map[pinKey]pin           // what was trusted of servers
	policies map[policyKey]*rules.Compiled
	meters   *meters            // what policies have counted; it has a mutex of its own
	consents map[string]consent // answers of a person that stand
	keys     *agentKeys
	tenants  map[string]grants.Tenant

	knowledge *knowledge // has a mutex of its own
}

// facts is what a decision needs to know of a resource.
type facts struct {
	kind    string
	file    bool
	version uint32 // newest version; 0 for files and for resources without content
	size    uint64
	pinned  string // what a registered file was pinned to; empty for other resources
	created time.Time
	owner   *uint32 // whose it is; nil: every operator's
}

// content reports whether there is anything to read.
func (f facts) content() bool { return f.file || f.version > 0 }

// endedGrant is a grant that was revoked, kept for the operator to look at.
type endedGrant struct {
	grants.Grant
	Revoked  time.Time
	Personal *uint32 // whose the resource was that it names; nil: every operator's
}

// keptEnded is how many revoked grants are remembered.
const keptEnded = 1000

func newState() *state {
	return &state{set: grants.NewSet(), catalog: map[string]facts{}, uses: map[string]uint64{}, launches: map[string]launchRow{}, meters: newMeters(), servers: map[string]grants.Server{}, pins: map[pinKey]pin{}, policies: map[policyKey]*rules.Compiled{}, consents: map[string]consent{}, keys: newAgentKeys(), tenants: map[string]grants.Tenant{}, knowledge: newKnowledge()}
}

// used is the number of times a grant was used. The caller holds mu.
func (s *state) used(grantID string) uint64 { return s.uses[grantID] }

// charge reserves one use of a grant and returns its number, and whether it was
// the last. Only the log's appender calls it, so the numbers stand in the log in
// order.
func (s *state) charge(grantID string) (number uint64, last bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.uses[grantID]++
	g, ok := s.set.Grant(grantID)
	return s.uses[grantID], ok && s.uses[grantID] >= g.Uses
}

// refund gives back a use whose entry is certainly not in the log.
func (s *state) refund(grantID string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.uses[grantID] > 0 {
		s.uses[grantID]--
	}
}

// asker is who asks, as far as a decision depends on it.
type asker struct {
	subject string
	tier    grants.Tier
	anyone  bool            // it is in a launch that any process of the uid may have opened: see worth
	profile string          // empty: none
	ceiling *grants.Ceiling // of the run under the profile; nil although profile is set: there is none of that name
	key     string          // id of the agent key that its run was opened with; empty: with none
	host    bool            // a host asks for a tool of its own, not for ours
}

// tool is the built-in tool with which it does something; empty: none.
func (a asker) tool(action grants.Action) string {
	if action == grants.Read && !a.host {
		return grants.ToolRead
	}
	return ""
}

// request makes the question for the evaluator. The caller holds mu.
func (s *state) request(who asker, capability grants.Capability, at reading) grants.Request {
	q := grants.Request{
		Subject: who.subject, Capability: capability, Tier: s.worth(who), Profile: who.profile, Ceiling: who.ceiling,
		Tool: who.tool(capability.Action), Used: s.used,
	}
	q.Object = s.object(capability)
	if capability.Action == grants.Call { // for what its tool requires
		q.Resource = func(name string) grants.Object { return s.object(grants.Capability{Object: name}) }
	}
	at.judge(&q)
	return q
}

// object looks the object up; the evaluator ignores it where the action is not
// about resources.
func (s *state) object(capability grants.Capability) grants.Object {
	if capability.Action.NamesTenant() {
		_, ok := s.tenants[capability.Object]
		return grants.Object{Exists: ok}
	}
	f, ok := s.catalog[capability.Object]
	o := grants.Object{Exists: ok, Secret: f.kind == vault.KindSecret, HasContent: f.content()}
	if f.owner != nil {
		o.Personal, o.OwnerUID = true, *f.owner
	}
	return o
}

// decide judges one request under a read lock.
func (s *state) decide(who asker, capability grants.Capability, at reading) grants.Decision {
	s.mu.RLock()
	defer s.mu.RUnlock()
	q := s.request(who, capability, at)
	return grants.Decide(s.set, &q)
}

// readable lists what may be read now, sorted, gated resources included.
func (s *state) readable(who asker, at reading) []string {
	var names []string
	s.eachReadable(who, at, nil, func(name string, _ facts) { names = append(names, name) })
	return names
}

// eachReadable calls fn with those of names, or of all resources when names is
// nil, that may be read now. fn must not use the state.
func (s *state) eachReadable(who asker, at reading, names []string, fn func(string, facts)) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if names == nil {
		names = s.names
	}
	q := s.request(who, grants.Capability{Action: grants.Read}, at)
	for _, name := range names {
		q.Capability.Object = name
		q.Object = s.object(q.Capability)
		if grants.Decide(s.set, &q).Outcome != grants.Denied {
			fn(name, s.catalog[name])
		}
	}
}

// same reports whether name still is the resource that was created then: a later
// one of the same name inherits nothing.
func (s *state) same(name string, created time.Time) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	f, ok := s.catalog[name]
	return ok && f.created.Equal(created)
}

// nextChange is the earliest time after at when a grant of subject ends by the
// clock; zero when none does.
func (s *state) nextChange(subject string, at time.Time) time.Time {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var next time.Time
	for _, g := range s.set.GrantsOf(subject) {
		if g.Until.After(at) && (next.IsZero() || g.Until.Before(next)) {
			next = g.Until
		}
	}
	return next
}

// put records a resource. The caller holds mu for writing.
func (s *state) put(record vault.Record) {
	if _, known := s.catalog[record.Name]; !known {
		i, _ := slices.BinarySearch(s.names, record.Name)
		s.names = slices.Insert(s.names, i, record.Name)
	}
	s.catalog[record.Name] = factsOf(record)
}

// drop forgets a resource. The caller holds mu for writing.
func (s *state) drop(name string) {
	delete(s.catalog, name)
	if i, found := slices.BinarySearch(s.names, name); found {
		s.names = slices.Delete(s.names, i, i+1)
	}
}

func factsOf(record vault.Record) facts {
	f := facts{kind: record.Kind, file: record.File != nil, created: record.Created, owner: ownerOf(record)}
	if record.File != nil {
		f.kind, f.size, f.pinned = vault.KindFile, record.File.Size, fmt.Sprintf("%s %x", record.File.Mode, record.File.SHA256)
	}
	if n := len(record.Versions); n > 0 {
		f.version, f.size = record.Versions[n-1].N, record.Versions[n-1].Size
	}
	return f
}

// end moves a grant to the ended ones. The caller holds mu for writing.
func (s *state) end(e endedGrant) {
	s.set.RemoveGrant(e.ID)
	s.ended = append(s.ended, e)
	if extra := len(s.ended) - keptEnded; extra > 0 {
		s.ended = slices.Delete(s.ended, 0, extra)
	}
}
