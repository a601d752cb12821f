//go:build !linux

package daemon

import "subjectbroker/daemon/peer"

// probeView refuses: there are no trees of their own here.
func (*Daemon) probeView(launchRow, peer.Namespaces, int32) error {
	return unsupported("pid namespaces on this platform")
}
