package daemon

import (
	"subjectbroker/daemon/peer"
)

// classify says what can be said of a peer before it has said anything. It is
// fixed for the connection; what has changed since is found out by attest.
//
//	launch        in the tree of a launch that was proven
//	mapped        under a uid that is neither ours nor an operator's
//	plain         in our pid namespace
//	unattributed  in another one: anything may be true of it
func (d *Daemon) classify(p *peer.Peer) {
	switch {
	case !d.isOperator(p.UID): // the kernel keeps such a one apart wherever it lives
		p.Class = peer.Mapped
	case !p.Foreign:
		p.Class = peer.Plain
	default:
		p.Class = peer.Unattributed
		if l, ok := d.launches.of(p); ok {
			p.Join(l.id, l.key())
		}
	}
}
