package daemon

import (
	"subjectbroker/daemon/peer"
)

// classify says what can be said of a peer before it has said anything. It is
// fixed for the connection; what has changed since is found out by attest.
//
//	hosted        under a process that runs a server: it has no right here
//	launch        in the tree of a launch that was proven
//	mapped        under a uid that is neither ours nor an operator's
//	plain         in our pid namespace
//	unattributed  in another one: anything may be true of it
func (d *Daemon) classify(p *peer.Peer) {
	hosted, maybe := d.hosts.holds(p.PID)
	switch {
	case hosted:
		p.Class = peer.Hosted
	case !d.isOperator(p.UID): // the kernel keeps such a one apart wherever it lives
		p.Class = peer.Mapped
	case !p.Foreign && !maybe:
		p.Class = peer.Plain
	default:
		p.Class = peer.Unattributed
		if l, ok := d.launches.of(p); ok {
			p.Join(l.id, l.key())
		}
	}
}

// causeInHost: a server, or something that it started, asked for a run.
const causeInHost = "HOSTED"
