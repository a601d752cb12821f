//go:build !linux && !darwin

package client

import (
	"net"

	"subjectbroker/proto/wire"
)

// peerOf fails closed: this platform cannot say who is at the other end.
func peerOf(*net.UnixConn) (peer, error) {
	return peer{}, wire.Deny(wire.PlatformUnsupported)
}

func activated(int) bool { return false }
