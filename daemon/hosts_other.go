//go:build !linux

package daemon

import (
	"errors"
	"net"
)

// hostConn is our end of the pair of sockets.
type hostConn = net.Conn

// startHost fails: nothing here ends what a server leaves behind.
func startHost(string) (*hostChild, error) {
	return nil, errors.New("servers are hosted on Linux only")
}
