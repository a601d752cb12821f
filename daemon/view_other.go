//go:build !linux

package daemon

import (
	"os"

	"subjectbroker/daemon/peer"
)

func ownPID() int32 { return int32(os.Getpid()) }

// probeView refuses: there are no trees of their own here.
func (*Daemon) probeView(launchRow, peer.Namespaces) error {
	return unsupported("pid namespaces on this platform")
}
