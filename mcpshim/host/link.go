package host

import (
	"context"
	"time"
)

// link is the way to one server: its process's pipes, or HTTP. Its methods may be
// called from any goroutine; begin is called first, and once.
type link interface {
	// begin delivers what the server says to to, until it is gone.
	begin(to listener)
	// post sends one message, which it keeps, and does not wait.
	post(m outgoing)
	// settle waits until the latest message without an answer is there: what is
	// posted after it comes later.
	settle(ctx context.Context)
	// forget says that nobody waits for the answer to id any more.
	forget(id uint64)
	// agreed says which revision is spoken from now on.
	agreed(revision string)
	// refuses reports whether somebody is there who takes no message of ours, in
	// words that are none of MCP: he may take another.
	refuses() bool
	// gone is closed when nothing more will come.
	gone() <-chan struct{}
	// end ends the server, politely for a while where polite is set. It returns
	// when nothing of it is left, and may be called again.
	end(polite bool) ending
}

// outgoing is one message to a server.
type outgoing struct {
	id      uint64 // where it is not 0 an answer is awaited, and lost is told when it will not come
	body    []byte
	headers [][2]string // name and value, beside those of each message, where there are headers
}

// listener is told what comes over a link.
type listener interface {
	// take gets one message, which is good until take returns. Of one link take
	// may be called several times at once.
	take(message []byte)
	// cut gets what is left of a message that was too long.
	cut(long *longLine)
	// lost says that the answer to id will not come, and why, in words without
	// anything that the server said.
	lost(id uint64, why string)
	// awaited reports whether somebody still waits for the answer to id.
	awaited(id uint64) bool
	// say gets a line of the server's log, which is kept.
	say(line string)
}

// ending is how a server ended, as Ended says it.
type ending struct {
	why, detail string
	code        int
}

// Words of Ended.Why.
const (
	whyExited      = "exited"
	whyRefused     = "refused"
	whyUnreachable = "unreachable"
	whyProtocol    = "protocol"
	whyStopped     = "stopped"
)

// How long a server may take to end by itself: after its input was closed, and
// then after it was asked with SIGTERM.
const (
	closePatience = 2 * time.Second
	termPatience  = time.Second
)

// maxQueued is how much may wait for a server to read it, in bytes, beside one
// message.
const maxQueued = 32 << 20
