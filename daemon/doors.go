package daemon

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"

	"subjectbroker/daemon/peer"
	"subjectbroker/grants"
	"subjectbroker/proto/wire"
)

// door is one of the two sockets.
type door string

const (
	brokerDoor   door = "broker"
	operatorDoor door = "operator"
)

// doors says which uids may connect to which socket beside the daemon's own: at
// the broker's those that are a subject, at the operator's those that the
// configuration names. The kernel keeps the others off by the group of the
// socket (see sockets.go); this is what holds when that group says more than it
// should.
type doors struct {
	own       uint32
	operators []uint32 // beside own, rising

	mu     sync.Mutex
	opened map[door]audience // what each socket is open for

	following sync.Mutex // held while a socket is opened for others
}

func newDoors(operators []uint32) *doors {
	own := uint32(os.Geteuid())
	others := slices.DeleteFunc(slices.Clone(operators), func(uid uint32) bool { return uid == own })
	slices.Sort(others)
	return &doors{own: own, operators: slices.Compact(others), opened: map[door]audience{}}
}

// opens remembers what a socket is open for.
func (ds *doors) opens(at door, to audience) {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	ds.opened[at] = to
}

// listening reports whether there are sockets yet.
func (ds *doors) listening() bool {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	return len(ds.opened) > 0
}

// openFor is what a socket is open for.
func (ds *doors) openFor(at door) audience {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	return ds.opened[at]
}

// mayEnter says why the uid of a peer has no business at a socket; nil when it
// has. It looks at nothing else: the class of the peer is judged by its calls.
func (d *Daemon) mayEnter(at door, p *peer.Peer) error {
	if p.UID == d.doors.own {
		return nil
	}
	switch at {
	case operatorDoor:
		if d.isOperator(p.UID) {
			return nil
		}
	case brokerDoor:
		if _, is := d.subjectOf(p.UID); is {
			return nil
		}
		// Who is a subject is not known while the vault is locked. Whoever the
		// socket was opened for is told so, and can do nothing else.
		if !d.state().open && slices.Contains(d.doors.openFor(at).uids, p.UID) {
			return nil
		}
	}
	return fmt.Errorf("uid %d has no right on this socket", p.UID)
}

// isOperator reports whether a uid is an operator's: the daemon's own, or one
// that the configuration names.
func (d *Daemon) isOperator(uid uint32) bool {
	return uid == d.doors.own || slices.Contains(d.doors.operators, uid)
}

// subjectOf is the subject that a uid is and nothing else; false when it is none,
// and while the vault is locked.
func (d *Daemon) subjectOf(uid uint32) (name string, ok bool) {
	if d.isOperator(uid) { // the configuration's word counts
		return "", false
	}
	st := d.state()
	st.mu.RLock()
	defer st.mu.RUnlock()
	s, ok := st.set.SubjectOf(uid)
	return s.Name, ok
}

// subjectUIDs are the uids that are subjects, rising.
func (d *Daemon) subjectUIDs() []uint32 {
	st := d.state()
	st.mu.RLock()
	defer st.mu.RUnlock()
	return st.subjectUIDs()
}

// followChange opens the broker's socket for others when the uids that are subjects
// are not those of before any more.
func (d *Daemon) followChange(before []uint32) {
	if !slices.Equal(before, d.subjectUIDs()) {
		d.followSubjects()
	}
}

// subjectUIDs is the same for a caller that holds mu or changing.mu.
func (s *state) subjectUIDs() []uint32 {
	var uids []uint32
	for _, subject := range s.set.Subjects() {
		if subject.UID != nil {
			uids = append(uids, *subject.UID)
		}
	}
	slices.Sort(uids)
	return uids
}

// checkUIDs refuses subjects whose uids cannot be theirs: changed are subjects as
// they will be, by name; nil stands for one that goes. The caller holds
// changing.mu.
func (d *Daemon) checkUIDs(st *state, changed map[string]*grants.Subject) error {
	after := map[string]grants.Subject{}
	for _, s := range st.set.Subjects() {
		after[s.Name] = s
	}
	named := false
	for name, s := range changed {
		if s == nil {
			delete(after, name)
			continue
		}
		before := after[name].UID
		named = named || s.UID != nil && (before == nil || *before != *s.UID)
		after[name] = *s
	}
	if !named { // whatever there is was taken already
		return nil
	}
	set := grants.NewSet()
	var uids []uint32
	for _, name := range slices.Sorted(maps.Keys(after)) {
		if err := set.PutSubject(after[name]); err != nil {
			return refuse("subject %s: %v", name, err)
		}
		uid := after[name].UID
		switch {
		case uid == nil:
			continue
		case *uid == d.doors.own:
			return refuse("subject %s: uid %d is the daemon's own: run sbd under an account of its own first", name, *uid)
		case d.isOperator(*uid):
			return refuse("subject %s: uid %d is an operator's", name, *uid)
		}
		uids = append(uids, *uid)
	}
	slices.Sort(uids)
	if _, err := d.audienceFor(brokerDoor, uids); err != nil {
		return &wire.Error{Reason: wire.SocketUnsafe, Message: err.Error()}
	}
	if err := d.checkWayTo(brokerDoor); err != nil {
		return &wire.Error{Reason: wire.SocketUnsafe, Message: asFault(err).Err.Error()}
	}
	return nil
}
