package mcpshim

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"subjectbroker/mcpshim/strict"
	"subjectbroker/proto/wire"
	"subjectbroker/worker"
	"subjectbroker/worker/workertest"
)

// Every id comes back as it was written.
func TestIDsAreByteExact(t *testing.T) {
	b := workertest.Start(t)
	b.Allow("worker")
	c := start(t, b, "worker")
	c.greet()
	ping := func(t interface{ Fatalf(string, ...any) }, id string) {
		c.send(`{"jsonrpc":"2.0","id":` + id + `,"method":"ping"}`)
		if got, want := c.next(), `{"jsonrpc":"2.0","id":`+id+`,"result":{}}`; got != want {
			t.Fatalf("got %s, want %s", got, want)
		}
	}
	for _, id := range []string{
		`0`, `-0`, `1`, `1.0`, `1.5`, `1e3`, `1E+3`, `-7`, `9007199254740993`, `18446744073709551616`, `1e999`, `0.1000000000000000055511151231257827`,
		`""`, `"1"`, `"\u0031"`, `"\ud800"`, `"\/"`, `"é"`, `"\u00e9"`, `"</script>"`, `"\u2028"`, `"` + "\u2028" + `"`, `"a\\\"b"`, `"` + strings.Repeat("x", 4000) + `"`,
	} {
		ping(t, id)
	}
	rapid.Check(t, func(t *rapid.T) {
		id := rapid.OneOf(
			rapid.StringMatching(`-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?`),
			rapid.Map(rapid.String(), func(s string) string {
				quoted, _ := json.Marshal(s)
				return string(quoted)
			}),
		).Draw(t, "id")
		ping(t, id)
	})
}

// An id that is in flight cannot be used again; an equal one of another
// spelling can.
func TestDuplicateIDInFlight(t *testing.T) {
	b := workertest.Start(t)
	b.Put("plan", "text", []byte("x"))
	b.Allow("worker", "plan")
	hold := make(chan struct{})
	entered := make(chan struct{}, 10)
	b.OnAcquire(func(context.Context, string, string) error {
		entered <- struct{}{}
		<-hold
		return nil
	})
	c := start(t, b, "worker")
	c.greet()
	read := func(id string) string {
		return `{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{"name":"read_resource","arguments":{"resourceId":"plan"}}}`
	}
	c.send(read("7"))
	<-entered
	if got := c.ask(read("7")); got != `{"jsonrpc":"2.0","id":7,"error":{"code":-32600,"message":"invalid request: the id is in use"}}` {
		t.Errorf("the same id: %s", got)
	}
	c.send(read("7.0"))
	<-entered
	close(hold)
	got := []string{c.nextAnswer(), c.nextAnswer()}
	for _, want := range []string{`"id":7,"result"`, `"id":7.0,"result"`} {
		if !strings.Contains(got[0]+got[1], want) {
			t.Errorf("no answer with %s in %s", want, got)
		}
	}
	if got := c.ask(read("7")); !strings.Contains(got, `"id":7,"result"`) {
		t.Errorf("the id again, later: %s", got)
	}
}

// A cancelled call is the one that the client meant.
func TestCancel(t *testing.T) {
	b := workertest.Start(t)
	b.Put("plan", "text", []byte("x"))
	b.Allow("worker", "plan")
	cancelled, entered := make(chan struct{}), make(chan struct{})
	b.OnAcquire(func(ctx context.Context, _, _ string) error {
		close(entered)
		<-ctx.Done()
		close(cancelled)
		return ctx.Err()
	})
	c := start(t, b, "worker")
	c.greet()
	const id = `9007199254740993`
	c.send(`{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{"name":"read_resource","arguments":{"resourceId":"plan"}}}`)
	<-entered
	c.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":` + id + `,"reason":"no longer wanted"}}`)
	<-cancelled
	if got := c.nextAnswer(); !strings.HasPrefix(got, `{"jsonrpc":"2.0","id":`+id+`,`) {
		t.Errorf("got %s", got)
	}
}

// Calls that are in flight when the input ends are all answered.
func TestEndOfInput(t *testing.T) {
	b := workertest.Start(t)
	b.Put("plan", "text", []byte("the plan"))
	b.Allow("worker", "plan")
	c := start(t, b, "worker")
	c.greet()
	const calls = 100
	var lines strings.Builder
	for i := range calls {
		fmt.Fprintf(&lines, `{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"read_resource","arguments":{"resourceId":"plan"}}}`+"\n", i)
	}
	lines.WriteString(`{"jsonrpc":"2.0","id":"last","method":"ping"}`) // without a newline
	io.WriteString(c.in, lines.String())
	c.in.Close()
	seen := map[string]bool{}
	for line := range c.lines {
		var got struct {
			ID     json.RawMessage
			Result *result
		}
		if err := json.Unmarshal([]byte(line), &got); err != nil || got.Result == nil || got.Result.IsError {
			t.Errorf("%v: %s", err, line)
		}
		if seen[string(got.ID)] {
			t.Errorf("a second answer to %s", got.ID)
		}
		seen[string(got.ID)] = true
	}
	if len(seen) != calls+1 {
		t.Errorf("%d answers to %d calls", len(seen), calls+1)
	}
	if err := <-c.done; err != nil {
		t.Errorf("Serve: %v", err)
	}
	if n := b.Runs(); n != 0 {
		t.Errorf("%d runs are left", n)
	}
}

// A stop answers what is in flight, takes nothing more, and does not wait for
// an input that stays open.
func TestStop(t *testing.T) {
	b := workertest.Start(t)
	b.Put("plan", "text", []byte("the plan"))
	b.Allow("worker", "plan")
	hold := make(chan struct{})
	entered := make(chan struct{})
	b.OnAcquire(func(context.Context, string, string) error {
		close(entered)
		<-hold
		return nil
	})
	c := start(t, b, "worker")
	c.greet()
	c.send(`{"jsonrpc":"2.0","id":"slow","method":"tools/call","params":{"name":"read_resource","arguments":{"resourceId":"plan"}}}`)
	<-entered
	c.cancel()
	close(hold)
	if got := c.nextAnswer(); !strings.Contains(got, "the plan") {
		t.Errorf("got %s", got)
	}
	if err := <-c.done; err != nil {
		t.Errorf("Serve: %v", err)
	}
}

// A daemon that does not answer cannot keep us from stopping; the call is
// refused.
func TestStopWhileTheDaemonHangs(t *testing.T) {
	b := workertest.Start(t)
	b.Put("plan", "text", []byte("the plan"))
	b.Allow("worker", "plan")
	entered := make(chan struct{})
	b.OnAcquire(func(ctx context.Context, _, _ string) error {
		close(entered)
		<-ctx.Done()
		return ctx.Err()
	})
	c := start(t, b, "worker")
	c.greet()
	c.send(`{"jsonrpc":"2.0","id":"slow","method":"tools/call","params":{"name":"read_resource","arguments":{"resourceId":"plan"}}}`)
	<-entered
	c.cancel()
	if got := c.nextAnswer(); !strings.Contains(got, `\"reasonCode\":\"BROKER_UNAVAILABLE\"`) {
		t.Errorf("got %s", got)
	}
	<-c.done
}

// Neither can a client that does not read.
func TestStopWhileTheClientHangs(t *testing.T) {
	b := workertest.Start(t)
	b.Put("plan", "text", bytes.Repeat([]byte("x"), 1<<20))
	b.Allow("worker", "plan")
	inReader, inWriter := io.Pipe()
	outReader, outWriter := io.Pipe()
	defer inWriter.Close()
	defer outReader.Close()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- Serve(ctx, Config{Worker: worker.Config{Places: b.Places, Subject: "worker"}, In: inReader, Out: outWriter})
	}()
	io.WriteString(inWriter, initialize+"\n")
	cancel()
	<-done
}

// More calls than are taken in at once are all answered.
func TestFlood(t *testing.T) {
	b := workertest.Start(t)
	b.Put("plan", "text", []byte("x"))
	b.Allow("worker", "plan")
	var now, most atomic.Int32
	b.OnAcquire(func(context.Context, string, string) error {
		defer now.Add(-1)
		most.Store(max(most.Load(), now.Add(1)))
		return nil
	})
	c := start(t, b, "worker")
	c.greet()
	const calls = 1000
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range calls {
			c.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"read_resource","arguments":{"resourceId":"plan"}}}`, i))
		}
	})
	for range calls {
		if got := c.nextAnswer(); !strings.Contains(got, `"isError"`) && !strings.Contains(got, `ALLOWED`) {
			t.Fatalf("got %s", got)
		}
	}
	wg.Wait()
	if most.Load() > maxContents {
		t.Errorf("%d documents at once, the limit is %d", most.Load(), maxContents)
	}
}

// boom is a call that panics.
type boom struct{}

func (boom) handle(context.Context, scope) (answer, error) { panic(errors.New("marker")) }
func (boom) refused(*wire.Error) any                       { return nil }

// A handler that panics costs one call, and its panic's value is not told.
func TestPanic(t *testing.T) {
	b := workertest.Start(t)
	b.Allow("worker")
	told := make(chan string, 10)
	config := Config{
		Worker: worker.Config{Places: b.Places, Subject: "worker"}, In: strings.NewReader(""), Out: io.Discard,
		Trouble: func(reason wire.Reason, text string) { told <- string(reason) + ": " + text },
	}
	c := startConfig(t, config, func(s *shim) {
		t := tool{name: "boom", input: noInput, output: noInput, parse: func([]strict.Member, string) (ask, *wire.Error) { return boom{}, nil }}
		s.server.AddTool(t.describe("worker"), s.envelope(t))
	})
	c.greet()
	if got := c.ask(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"boom"}}`); got != `{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"internal error"}}` {
		t.Errorf("got %s", got)
	}
	if got := c.ask(`{"jsonrpc":"2.0","id":2,"method":"ping"}`); got != `{"jsonrpc":"2.0","id":2,"result":{}}` {
		t.Errorf("got %s", got)
	}
	got := <-told
	if want := "INTERNAL_ERROR: a handler panicked with *errors.errorString in subjectbroker/mcpshim.boom.handle:"; !strings.HasPrefix(got, want) {
		t.Errorf("trouble: %q", got)
	}
}

// FuzzMessage: a line is either a message or a rejection, never a panic, and
// what passes is what any reader of JSON would see.
func FuzzMessage(f *testing.F) {
	for _, tc := range hostile {
		if len(tc.line) < 1000 {
			f.Add([]byte(tc.line))
		}
	}
	f.Add([]byte(initialize))
	f.Fuzz(func(t *testing.T, line []byte) {
		m, bad := strict.ParseMessage(line)
		if (m == nil) == (bad == nil) {
			t.Fatalf("%q is both or neither", line)
		}
		if bad != nil || m.Answer {
			return
		}
		var plain struct {
			ID     json.RawMessage
			Method string
			Params json.RawMessage
		}
		if err := json.Unmarshal(line, &plain); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		var again map[string]json.RawMessage
		_ = json.Unmarshal(line, &again)
		if !bytes.Equal(again["id"], m.ID) || !bytes.Equal(again["params"], m.Params) {
			t.Fatalf("%q: got id %q, params %q", line, m.ID, m.Params)
		}
		var method string
		if _ = json.Unmarshal(again["method"], &method); method != m.Method {
			t.Fatalf("%q: method %q", line, m.Method)
		}
	})
}
