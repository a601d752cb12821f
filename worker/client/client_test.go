package client_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"subjectbroker/proto/place"
	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	"subjectbroker/proto/wire"
	"subjectbroker/worker/client"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// house is a home whose lock names this process, with a listener of ours.
type house struct {
	client.Places
	listener *net.UnixListener
}

func newHouse(t *testing.T) *house {
	t.Helper()
	home, err := os.MkdirTemp("", "sb") // t.TempDir is too long for a socket's path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(home) })
	h := &house{Places: client.Places{Home: home, SocketDir: filepath.Join(home, "run")}}
	socket := place.BrokerSocket(h.SocketDir)
	must(t, os.MkdirAll(filepath.Dir(socket), 0o700))
	h.listener, err = net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	must(t, err)
	t.Cleanup(func() { h.listener.Close() })
	must(t, os.Chmod(socket, 0o600))
	h.lock(t, os.Getpid())
	return h
}

func (h *house) lock(t *testing.T, pid int) {
	t.Helper()
	must(t, os.WriteFile(place.LockFile(h.Home), []byte(strconv.Itoa(pid)+"\n"), 0o600))
}

func (h *house) socket() string { return place.BrokerSocket(h.SocketDir) }

func TestBrokerCalls(t *testing.T) {
	h := newHouse(t)
	server := grpc.NewServer()
	brokerv1.RegisterBrokerServiceServer(server, brokerv1.UnimplementedBrokerServiceServer{})
	go server.Serve(h.listener)
	defer server.Stop()

	conn, err := client.Broker(t.Context(), h.Places)
	must(t, err)
	defer conn.Close()
	_, err = brokerv1.NewBrokerServiceClient(conn).OpenRun(t.Context(), &brokerv1.OpenRunRequest{})
	if got := wire.FromError(err); got.Reason != wire.InternalError {
		t.Errorf("calling an unimplemented method: %v (%s)", got, got.Reason)
	}
}

// A broken connection is not replaced behind the caller's back.
func TestConnectionIsUsedOnce(t *testing.T) {
	h := newHouse(t)
	server := grpc.NewServer()
	go server.Serve(h.listener)
	conn, err := client.Broker(t.Context(), h.Places)
	must(t, err)
	defer conn.Close()
	broker := brokerv1.NewBrokerServiceClient(conn)
	_, _ = broker.OpenRun(t.Context(), &brokerv1.OpenRunRequest{})
	server.Stop()

	again := newListenerAt(t, h)
	accepted := make(chan struct{}, 1)
	go func() {
		if conn, err := again.Accept(); err == nil {
			accepted <- struct{}{}
			conn.Close()
		}
	}()
	for range 3 {
		if _, err := broker.OpenRun(t.Context(), &brokerv1.OpenRunRequest{}); wire.FromError(err).Reason != wire.BrokerUnavailable {
			t.Fatalf("call on a broken connection: %v", err)
		}
	}
	select {
	case <-accepted:
		t.Error("reconnected without being asked to")
	default:
	}
	again.Close()
}

func newListenerAt(t *testing.T, h *house) *net.UnixListener {
	t.Helper()
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: h.socket(), Net: "unix"})
	must(t, err)
	must(t, os.Chmod(h.socket(), 0o600))
	return listener
}

func TestRefusals(t *testing.T) {
	for _, tc := range []struct {
		name  string
		spoil func(t *testing.T, h *house)
		want  wire.Reason
		says  string
	}{
		{"nobody listens", func(t *testing.T, h *house) {
			h.listener.SetUnlinkOnClose(false)
			h.listener.Close()
		}, wire.BrokerUnavailable, "nobody listens"},
		{"no socket", func(t *testing.T, h *house) { must(t, os.Remove(h.socket())) }, wire.BrokerUnavailable, "nobody listens"},
		{"no home", func(t *testing.T, h *house) { must(t, os.RemoveAll(h.Home)) }, wire.BrokerUnavailable, "nobody listens"},
		{"regular file", func(t *testing.T, h *house) {
			must(t, os.Remove(h.socket()))
			must(t, os.WriteFile(h.socket(), nil, 0o600))
		}, wire.SocketUnsafe, "is not a socket"},
		{"symlink to a good socket", func(t *testing.T, h *house) {
			must(t, os.Rename(h.socket(), h.socket()+".real"))
			must(t, os.Symlink(h.socket()+".real", h.socket()))
		}, wire.SocketUnsafe, "is not a socket"},
		{"directory is a symlink", func(t *testing.T, h *house) {
			dir := filepath.Dir(h.socket())
			must(t, os.Rename(dir, dir+".real"))
			must(t, os.Symlink(dir+".real", dir))
		}, wire.SocketUnsafe, "is not a directory"},
		{"loose socket", func(t *testing.T, h *house) { must(t, os.Chmod(h.socket(), 0o666)) }, wire.SocketUnsafe, "has mode 0666"},
		{"loose directory", func(t *testing.T, h *house) { must(t, os.Chmod(filepath.Dir(h.socket()), 0o755)) }, wire.SocketUnsafe, "has mode 0755"},
		{"world-writable above", func(t *testing.T, h *house) { must(t, os.Chmod(h.SocketDir, 0o777)) }, wire.SocketUnsafe, "writable by everybody"},
		{"foreign socket", func(t *testing.T, h *house) {
			if os.Getuid() != 0 {
				t.Skip("suite left out: foreign owner: needs root to give files away")
			}
			must(t, os.Chown(h.socket(), 12345, -1))
		}, wire.SocketUnsafe, "uid 12345"},
		{"foreign directory", func(t *testing.T, h *house) {
			if os.Getuid() != 0 {
				t.Skip("suite left out: foreign owner: needs root to give files away")
			}
			must(t, os.Chown(filepath.Dir(h.socket()), 12345, -1))
		}, wire.SocketUnsafe, "uid 12345"},
		{"another process holds the lock", func(t *testing.T, h *house) { h.lock(t, os.Getppid()) }, wire.SocketUnsafe, "holds the lock"},
		{"no lock in the sockets' own home", func(t *testing.T, h *house) { must(t, os.Remove(place.LockFile(h.Home))) }, wire.SocketUnsafe, "no daemon holds"},
		{"empty lock", func(t *testing.T, h *house) { must(t, os.Truncate(place.LockFile(h.Home), 0)) }, wire.SocketUnsafe, "no daemon holds"},
		{"lock is a FIFO", func(t *testing.T, h *house) {
			must(t, os.Remove(place.LockFile(h.Home)))
			must(t, syscall.Mkfifo(place.LockFile(h.Home), 0o600))
		}, wire.SocketUnsafe, "no daemon holds"},
		{"path too long", func(t *testing.T, h *house) { h.SocketDir += strings.Repeat("x", 100) }, wire.ConfigInvalid, "107"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := newHouse(t)
			tc.spoil(t, h)
			received := make(chan int, 1)
			go listenOnce(h.listener, received)
			conn, err := client.Broker(t.Context(), h.Places)
			if err == nil {
				conn.Close()
				t.Fatal("connected")
			}
			typed, ok := errors.AsType[*wire.Error](err)
			if !ok || typed.Reason != tc.want || !strings.Contains(typed.Message, tc.says) {
				t.Errorf("got %v, want %s saying %q", err, tc.want, tc.says)
			}
			h.listener.Close()
			if n := <-received; n > 0 {
				t.Errorf("%d bytes were sent to somebody else", n)
			}
		})
	}
}

// listenOnce counts the bytes that the first client sends.
func listenOnce(listener *net.UnixListener, received chan<- int) {
	conn, err := listener.Accept()
	if err != nil {
		received <- 0
		return
	}
	defer conn.Close()
	_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
	n, _ := conn.Read(make([]byte, 1))
	received <- n
}

func TestSocketsNamedWithoutHome(t *testing.T) {
	h := newHouse(t)
	h.lock(t, os.Getppid()) // another daemon's, of a home that nobody named
	h.HomeUnknown = true
	conn, err := client.Broker(t.Context(), h.Places)
	must(t, err)
	conn.Close()
}

func TestCancelled(t *testing.T) {
	h := newHouse(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := client.Broker(ctx, h.Places); wire.FromError(err).Reason != wire.BrokerUnavailable {
		t.Errorf("got %v", err)
	}
}

// However early it ends, no connection is left open behind it.
func TestNoConnectionIsLeft(t *testing.T) {
	h := newHouse(t)
	var open sync.WaitGroup
	accepting := make(chan struct{})
	go func() {
		defer close(accepting)
		for {
			conn, err := h.listener.Accept()
			if err != nil {
				return
			}
			open.Go(func() {
				_, _ = io.Copy(io.Discard, conn)
				conn.Close()
			})
		}
	}()
	for i := range 200 {
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			time.Sleep(time.Duration(i) * time.Microsecond)
			cancel()
		}()
		if conn, err := client.Broker(ctx, h.Places); err == nil {
			conn.Close()
		}
		cancel()
	}
	h.listener.Close()
	<-accepting
	open.Wait()
}

func TestResolvePlaces(t *testing.T) {
	for _, tc := range []struct {
		name, homeFlag, socketFlag, homeEnv, socketEnv string
		want                                           client.Places
	}{
		{"nothing named", "", "", "", "", client.Places{Home: "/h/.local/state/subject-broker", SocketDir: "/h/.local/state/subject-broker/run"}},
		{"home by flag", "/a", "", "/b", "", client.Places{Home: "/a", SocketDir: "/a/run"}},
		{"home by variable", "", "", "/b", "", client.Places{Home: "/b", SocketDir: "/b/run"}},
		{"sockets alone", "", "/s", "", "", client.Places{Home: "/h/.local/state/subject-broker", SocketDir: "/s", HomeUnknown: true}},
		{"sockets by variable", "", "", "", "/s", client.Places{Home: "/h/.local/state/subject-broker", SocketDir: "/s", HomeUnknown: true}},
		{"both", "/a", "/s", "", "", client.Places{Home: "/a", SocketDir: "/s"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Setenv("HOME", "/h")
			t.Setenv("SB_HOME", tc.homeEnv)
			t.Setenv("SB_SOCKET", tc.socketEnv)
			got, err := client.ResolvePlaces(tc.homeFlag, tc.socketFlag)
			must(t, err)
			if got != tc.want {
				t.Errorf("got %+v, want %+v", got, tc.want)
			}
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
