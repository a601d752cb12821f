package daemon_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"subjectbroker/daemon/daemontest"
	"subjectbroker/proto/place"
	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	"subjectbroker/proto/wire"
)

// deaf is a run on a connection whose client stops reading when it is told to.
type deaf struct {
	*daemontest.Run
	ears  chan struct{} // closed: it reads again
	shut  atomic.Bool
	leave func()

	written atomic.Int64 // bytes that the daemon's side took
}

type deafConn struct {
	net.Conn
	of *deaf
}

func (c deafConn) Read(p []byte) (int, error) {
	if c.of.shut.Load() {
		<-c.of.ears
	}
	n, err := c.Conn.Read(p)
	if c.of.shut.Load() { // what arrived meanwhile was not read yet
		<-c.of.ears
	}
	return n, err
}

func (c deafConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.of.written.Add(int64(n))
	return n, err
}

func openDeaf(t *testing.T, d *daemontest.Daemon, subject string) *deaf {
	t.Helper()
	one := &deaf{ears: make(chan struct{})}
	conn, err := grpc.NewClient("passthrough:///deaf", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithInitialWindowSize(64<<10), grpc.WithInitialConnWindowSize(1<<20), // and no more than that
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			inner, err := (&net.Dialer{}).DialContext(ctx, "unix", place.BrokerSocket(d.SocketDir))
			return deafConn{inner, one}, err
		}))
	must(t, err)
	one.Run = d.OpenOn(conn, subject)
	one.leave = sync.OnceFunc(func() { close(one.ears); conn.Close() })
	t.Cleanup(one.leave)
	return one
}

// P64: what clients ask for and do not read stays within bounds, costs nobody
// else anything, and is free again when they have gone.
func TestUnreadAnswersAreBounded(t *testing.T) {
	const size = 1 << 20
	d := daemontest.Launch(t, daemontest.Options{})
	d.Put("large", strings.Repeat("x", size))
	d.Put("small", "hello")
	d.AddSubject("worker")
	d.Grant("worker", "read:*")
	before := memory(t, d.PID())

	const clients, each = 20, 16
	var asking sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	defer asking.Wait()
	defer stop()
	hard := make([]*deaf, clients)
	for i := range hard {
		hard[i] = openDeaf(t, d, "worker")
	}
	reader := d.Open("worker")
	for _, one := range hard {
		for range each {
			asking.Go(func() { ask(ctx, one.Run, "large") })
		}
	}
	// Those that are not released are refused at once, and counted. The reader
	// had a content while they asked, so there may be room for one more.
	for i, until := 0, time.Now().Add(daemontest.Patience); reader.Refused("large") != wire.RateLimited; i++ {
		if time.Now().After(until) {
			t.Fatal("there still is room")
		}
		asking.Go(func() { ask(ctx, hard[i%clients].Run, "large") })
	}
	released := 0
	for last, until := -1, time.Now().Add(daemontest.Patience); last != released || released < 20; { // until nothing moves
		if time.Now().After(until) {
			t.Fatalf("%d contents are released, and there is no room for more", released)
		}
		last, released = released, 0
		time.Sleep(300 * time.Millisecond)
		for _, e := range d.Entries("acquire") {
			if e.RunID != reader.ID {
				released++
			}
		}
	}
	if released > 40 {
		t.Errorf("%d of %d contents were released to those who do not read", released, clients*each)
	}
	equal(t, "another process", another(t, d, "worker", "large"), strings.Repeat("x", size))
	equal(t, "the operator", d.Content("small"), "hello")
	if grown := memory(t, d.PID()) - before; grown > clients*each*size/2 {
		t.Errorf("it grew by %d MiB", grown>>20)
	} else {
		t.Logf("%d contents were released, and it grew by %d MiB", released, grown>>20)
	}

	stop()
	for _, one := range hard {
		one.leave()
	}
	for until := time.Now().Add(daemontest.Patience); reader.Refused("large") != wire.Allowed; {
		if time.Now().After(until) {
			t.Fatal("they have gone, and there is no room")
		}
	}
	d.Stop()
	var counted uint64
	for _, e := range d.Entries("suppressed") {
		equal(t, "the reason", e.ReasonCode, "RATE_LIMITED")
		counted += e.Count
	}
	if counted < clients*each-40 {
		t.Errorf("%d refusals are accounted for", counted)
	}
}

// ask asks for a resource and takes nothing of the answer but what fits into
// the window of its stream, until ctx ends.
func ask(ctx context.Context, run *daemontest.Run, name string) {
	stream, err := run.Conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, brokerv1.BrokerService_Acquire_FullMethodName)
	if err != nil || stream.SendMsg(acquire(run, name)) != nil || stream.CloseSend() != nil {
		return
	}
	<-ctx.Done()
}

// P64: who asks and asks, cancels it and does not read, is not listened to any
// more, and what was made of it is little.
func TestCancelledAnswersAreBounded(t *testing.T) {
	d := daemontest.Launch(t, daemontest.Options{})
	d.Put("small", strings.Repeat("x", 500))
	d.AddSubject("worker")
	d.Grant("worker", "read:*")
	for _, tc := range []struct {
		name string
		*deaf
		hears bool
	}{{"it reads", openDeaf(t, d, "worker"), true}, {"it does not", openDeaf(t, d, "worker"), false}} {
		one := tc.deaf
		one.shut.Store(!tc.hears)
		ctx, stop := context.WithCancel(t.Context())
		var asking sync.WaitGroup
		for range 32 {
			asking.Go(func() {
				for ctx.Err() == nil {
					short, cancel := context.WithTimeout(ctx, 5*time.Millisecond)
					_, _ = one.Acquire(short, acquire(one.Run, "small"))
					cancel()
				}
			})
		}
		// Who is not listened to writes nothing for many rounds on end.
		still := 0
		for round := 0; round < 20 && still < 6; round++ {
			before := one.written.Load()
			time.Sleep(500 * time.Millisecond)
			if still++; one.written.Load() != before {
				still = 0
			}
		}
		if heard := still < 6; heard != tc.hears {
			t.Errorf("%s: it wrote nothing in %d rounds on end", tc.name, still)
		}
		equal(t, tc.name+": another client", another(t, d, "worker", "small"), strings.Repeat("x", 500))
		stop()
		asking.Wait()
		one.leave()
	}
}

// P64: processes that hold every connection they get keep neither the operator
// nor another worker out.
func TestHoardersKeepNobodyOut(t *testing.T) {
	d := daemontest.Launch(t, daemontest.Options{})
	d.Put("readme", "hello")
	d.AddSubject("worker")
	d.Grant("worker", "read:readme")
	self, err := os.Executable()
	must(t, err)
	for range 4 {
		cmd := exec.Command(self, "hoard", d.SocketDir)
		out, err := cmd.StdoutPipe()
		must(t, err)
		in, err := cmd.StdinPipe()
		must(t, err)
		must(t, cmd.Start())
		defer cmd.Wait()
		defer in.Close()
		said, err := io.ReadAll(io.LimitReader(out, 5))
		must(t, err)
		equal(t, "a hoarder", string(said), "full\n")
	}
	equal(t, "another worker", another(t, d, "worker", "readme"), "hello")
	code, _, said := daemontest.Exit(t, exec.Command(self, "status", d.Home))
	equal(t, "another operator: "+said, code, wire.ExitDone)
}

// hoard opens connections on both sockets until none is given, and keeps them
// until its input ends: see TestMain.
func hoard(dir string) int {
	for _, socket := range []string{place.BrokerSocket(dir), place.OperatorSocket(dir)} {
		for range 300 {
			conn, err := net.Dial("unix", socket)
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
				return 1
			}
			// One that asks for nothing, but shakes hands, stays.
			_, _ = conn.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"))
			_ = conn.SetReadDeadline(time.Now().Add(time.Second))
			if _, err := conn.Read(make([]byte, 1)); err != nil {
				_ = conn.Close() // not admitted
				break
			}
			defer conn.Close()
		}
	}
	fmt.Println("full")
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

// memory is what of a process is in memory, in bytes.
func memory(t *testing.T, pid int) int {
	t.Helper()
	status, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	must(t, err)
	for line := range strings.Lines(string(status)) {
		if value, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.Atoi(strings.Fields(value)[0])
			must(t, err)
			return kib << 10
		}
	}
	t.Fatal("the kernel does not say how much")
	return 0
}
