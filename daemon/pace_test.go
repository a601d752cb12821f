package daemon

import (
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"subjectbroker/daemon/peer"
)

// A client that does not read is not listened to, until it does.
func TestWhoDoesNotReadIsNotHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, conn := net.Pipe()
		c := &paced{Conn: conn, epoch: time.Now()}
		defer c.Close()
		go c.Write(make([]byte, 100))
		synctest.Wait()
		if got := c.waiting(); got >= readPause {
			t.Errorf("it waits for %v already", got)
		}
		time.Sleep(2 * readPause)
		heard := make(chan error, 1)
		go func() {
			_, err := c.Read(make([]byte, 1))
			heard <- err
		}()
		go client.Write([]byte("more"))
		time.Sleep(writeLimit)
		select {
		case <-heard:
			t.Error("it was listened to and has not read")
		default:
		}
		if got := c.waiting(); got <= writeLimit {
			t.Errorf("after %v it waits for %v", writeLimit, got)
		}
		if _, err := client.Read(make([]byte, 100)); err != nil {
			t.Fatal(err)
		}
		if err := <-heard; err != nil {
			t.Errorf("it has read and is heard with %v", err)
		}
		if got := c.waiting(); got != 0 {
			t.Errorf("nothing is written, and it waits for %v", got)
		}
		_ = client.Close()
	})
}

// Processes that take all connections they can leave room for the next.
func TestConnectionsAreShared(t *testing.T) {
	g := newGate(newDaemon(Config{Home: t.TempDir()}, fileConfig{}), brokerDoor)
	connect := func(pid int32) (n int) {
		for g.admit(&peer.Peer{UID: uint32(os.Geteuid()), PID: pid}) == nil {
			n++
		}
		return n
	}
	if got := connect(1); got != maxConnectionsPerPeer {
		t.Errorf("one process has %d connections", got)
	}
	for pid := range int32(20) {
		if got := connect(pid + 2); got == 0 {
			t.Errorf("process %d has no connection", pid+2)
		}
	}
	if g.total > maxConnections {
		t.Errorf("there are %d connections", g.total)
	}
	if g.admit(&peer.Peer{UID: uint32(os.Geteuid()) + 1}) == nil {
		t.Error("a foreign uid was admitted")
	}
}
