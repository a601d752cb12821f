//go:build !linux

package daemon

import (
	"errors"
	"net"

	"subjectbroker/daemon/peer"
)

// hostConn is our end of the pair of sockets.
type hostConn = net.Conn

// startHost fails: nothing here ends what a server leaves behind.
func startHost(string, *strays) (*hostChild, error) {
	return nil, errors.New("servers are hosted on Linux only")
}

// strays are none: there are no hosts that could leave any.
type strays struct{ adopt bool }

func (*strays) adopts() bool { return false }

func (*strays) end() {}

func isStray([]peer.Process) bool { return false }
