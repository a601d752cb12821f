package peer_test

import (
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"subjectbroker/daemon/peer"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && roles[os.Args[1]] != nil {
		os.Exit(roles[os.Args[1]](os.Args[2]))
	}
	if len(os.Args) == 3 && os.Args[1] == "leave" {
		if _, err := net.Dial("unix", os.Args[2]); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	if len(os.Args) == 3 && os.Args[1] == "connect" { // TestAlive starts this program again
		conn, err := net.Dial("unix", os.Args[2])
		if err != nil {
			os.Exit(1)
		}
		_, _ = io.Copy(io.Discard, os.Stdin) // until it may go
		_ = conn.Close()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// listen makes a socket whose connections are admitted by admit.
func listen(t *testing.T, admit func(*peer.Peer) error, leave func(*peer.Peer)) (net.Listener, string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "sb")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "socket")
	inner, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	l := peer.Listener{Listener: inner, Admit: admit, Leave: leave}
	t.Cleanup(func() { l.Close() })
	return l, path
}

// accept returns the peer of the next connection, as grpc would get it.
func accept(t *testing.T, l net.Listener) (net.Conn, *peer.Peer) {
	t.Helper()
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	same, info, err := peer.Credentials{}.ServerHandshake(conn)
	if err != nil || same != conn {
		t.Fatalf("handshake: %v", err)
	}
	return conn, info.(*peer.Peer)
}

func TestFacts(t *testing.T) {
	l, path := listen(t, func(*peer.Peer) error { return nil }, func(*peer.Peer) {})
	var before *peer.Peer
	for range 2 {
		client, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		conn, p := accept(t, l)
		defer conn.Close()
		if int(p.UID) != os.Geteuid() || int(p.PID) != os.Getpid() || p.Class != peer.Plain || !p.Alive() {
			t.Errorf("this process is seen as %+v", p.Key())
		}
		if !strings.Contains(p.Command(), "peer.test") {
			t.Errorf("its command is %q", p.Command())
		}
		if before != nil && (before.Key() != p.Key() || before.Conn == p.Conn) {
			t.Errorf("two connections of one process: %v %d, %v %d", before.Key(), before.Conn, p.Key(), p.Conn)
		}
		before = p
	}
	before.Close()
	before.Close()
	if before.Alive() {
		t.Error("a closed peer is alive")
	}
}

// A peer is dead when its process is, whatever happens to its pid.
func TestAlive(t *testing.T) {
	l, path := listen(t, func(*peer.Peer) error { return nil }, func(*peer.Peer) {})
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command(self, "connect", path)
	stdin, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	conn, p := accept(t, l)
	defer conn.Close()
	if int(p.PID) != child.Process.Pid || !p.Alive() {
		t.Errorf("the child %d is seen as %+v, alive %v", child.Process.Pid, p.Key(), p.Alive())
	}
	_ = stdin.Close()
	if err := child.Wait(); err != nil {
		t.Fatal(err)
	}
	if p.Alive() {
		t.Error("it is dead and passes for alive")
	}
	if p.Command() != "" {
		t.Errorf("the command of the dead is %q", p.Command())
	}
}

// Who is refused is gone before a byte was read, and never leaves; who was
// admitted leaves once, also when it never spoke.
func TestAdmission(t *testing.T) {
	var admitted, left atomic.Int32
	l, path := listen(t, func(*peer.Peer) error {
		if admitted.Add(1) == 1 {
			return errors.New("not the first")
		}
		return nil
	}, func(*peer.Peer) { left.Add(1) })
	var clients []net.Conn
	for range 2 {
		client, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		clients = append(clients, client)
	}
	conn, _ := accept(t, l) // the second
	if _, err := clients[0].Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the refused one reads %v, want the end", err)
	}
	_ = conn.Close()
	_ = conn.Close()
	if left.Load() != 1 {
		t.Errorf("%d have left, want 1", left.Load())
	}
}

func TestForeignConnections(t *testing.T) {
	one, two := net.Pipe()
	defer one.Close()
	defer two.Close()
	if _, _, err := (peer.Credentials{}).ServerHandshake(one); err == nil {
		t.Error("a connection of another listener was taken")
	}
	if _, _, err := (peer.Credentials{}).ClientHandshake(t.Context(), "", one); err == nil {
		t.Error("the client's side was taken")
	}
}
