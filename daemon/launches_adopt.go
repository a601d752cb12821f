package daemon

import (
	"errors"

	"subjectbroker/daemon/peer"
)

// adopt takes over the launches of st that this daemon does not know: those that
// an earlier one opened, and those that ended while the vault was locked. It
// runs before anything of st is in force, so no peer is judged before them.
// Followed they are from tend on.
func (d *Daemon) adopt(st *state) {
	boot := d.clock.read().bootID
	for id, row := range st.launches {
		if _, open := d.launches.get(id); open {
			continue
		}
		l, past := d.launches.past(id)
		if !past {
			l = prove(row, boot)
			d.launches.add(l)
			d.logger.Info("a launch was open when sbd stopped", "launch", id, "state", l.state())
		}
		if !l.unproven || l.alive() { // else there is nothing by which its end could be told
			d.launches.adopt(l)
		}
	}
}

// followAdopted follows what was adopted.
func (d *Daemon) followAdopted() {
	for _, l := range d.launches.takeAdopted() {
		d.follow(l)
	}
}

// prove compares a row with the process that has its pid now. The same boot, pid,
// start time and namespaces prove that it is the same one, for a namespace lives
// as long as its first process. When nothing agrees the tree is certainly gone:
// the launch then has no process to wait for. Anything between is unproven, and
// its tree is nobody. So is one whose pid counts in another pid namespace than
// ours: what has that number here says nothing of it.
func prove(row launchRow, boot string) *launch {
	if boot == "" || boot != row.bootID {
		return newLaunch(row, peer.Held{})
	}
	if row.seenFrom != (peer.Namespace{}) {
		if here, err := peer.NamespacesOf(ownPID()); err != nil || here.PID != row.seenFrom {
			l := newLaunch(row, peer.Held{})
			l.unproven = true
			return l
		}
	}
	held, err := peer.Hold(row.pid)
	if errors.Is(err, peer.ErrEnded) {
		return newLaunch(row, peer.Held{})
	}
	if err != nil {
		l := newLaunch(row, peer.Held{})
		l.unproven = true
		return l
	}
	ns, err := peer.NamespacesOf(row.pid)
	sameStart := held.Start == row.start && held.UID == row.uid
	sameNS := err == nil && ns.PID == row.pidNS && ns.User == row.userNS
	switch {
	case !held.Alive() || !sameStart && (err != nil || ns.PID != row.pidNS):
		held.Close()
		return newLaunch(row, peer.Held{})
	case sameStart && sameNS:
		return newLaunch(row, held)
	}
	l := newLaunch(row, held)
	l.unproven = true
	return l
}
