package worker_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	"subjectbroker/proto/wire"
	"subjectbroker/worker"
	"subjectbroker/worker/workertest"
)

// relay opens a run and a relay for a server called files.
func relay(t *testing.T, b *workertest.Broker, config worker.RelayConfig) *worker.Relay {
	t.Helper()
	b.Allow("worker")
	run := open(t, b)
	config.Server = "files"
	opened, err := run.Relay(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	return opened
}

func open(t *testing.T, b *workertest.Broker) *worker.Run {
	t.Helper()
	run, err := worker.Open(t.Context(), config(b, "worker"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(run.Close)
	return run
}

func call(tool, arguments string) worker.RelayCall {
	return worker.RelayCall{Method: "tools/call", Tool: tool, Arguments: []byte(arguments)}
}

func TestRelayJudges(t *testing.T) {
	b := workertest.Start(t)
	b.OnCall(func(_ context.Context, _ *brokerv1.RelayOpen, c *brokerv1.RelayCall, _ func(*brokerv1.RelayResponse)) *brokerv1.RelayVerdict {
		if c.GetTool() == "read" {
			return &brokerv1.RelayVerdict{Forward: true, Approved: true, ReasonCode: "ALLOWED"}
		}
		return &brokerv1.RelayVerdict{
			Code: -32001, Message: "wait", Next: "ask", Policy: "ApprovalPolicy", Action: "request_approval", ReasonCode: "APPROVAL_PENDING",
			ApprovalId: "abc", Replay: []byte("{}"), ReplayError: true,
		}
	})
	r := relay(t, b, worker.RelayConfig{Mode: worker.Wrapped})
	got, err := r.Judge(t.Context(), call("read", `{"a":1}`))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(worker.RelayVerdict{ID: 1, Forward: true, Approved: true, Reason: wire.Allowed}, got); diff != "" {
		t.Error(diff)
	}
	if err := r.Outcome(t.Context(), worker.RelayOutcome{ID: got.ID, End: worker.EndToolError, Answer: []byte("{}"), Delivered: true}); err != nil {
		t.Fatal(err)
	}
	kept := strings.Repeat("x", 1<<20)
	for _, size := range []int{len(kept), len(kept) + 1, 2 << 20} { // what is larger is not kept, and breaks nothing
		if err := r.Outcome(t.Context(), worker.RelayOutcome{ID: got.ID, End: worker.EndOK, Answer: bytes.Repeat([]byte("x"), size)}); err != nil {
			t.Fatal(err)
		}
	}
	got, err = r.Judge(t.Context(), call("write", `{}`))
	if err != nil {
		t.Fatal(err)
	}
	want := worker.RelayVerdict{
		ID: 2, Code: -32001, Message: "wait", Next: "ask", Policy: "ApprovalPolicy", Action: "request_approval", Reason: wire.ApprovalPending,
		ApprovalID: "abc", Replay: []byte("{}"), ReplayError: true,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	r.Finish(t.Context())
	said := []string{
		"open files", `call tools/call read {"a":1}`, "outcome TOOL_ERROR {} delivered", "outcome OK " + kept, "outcome OK ", "outcome OK ", `call tools/call write {}`,
	}
	if diff := cmp.Diff(said, b.Relayed()); diff != "" {
		t.Error(diff)
	}
}

// A call that waits holds up no other, and is told that a person is asked.
func TestRelayConcurrent(t *testing.T) {
	b := workertest.Start(t)
	free := make(chan struct{})
	b.OnCall(func(_ context.Context, _ *brokerv1.RelayOpen, c *brokerv1.RelayCall, tell func(*brokerv1.RelayResponse)) *brokerv1.RelayVerdict {
		if c.GetTool() == "slow" {
			tell(&brokerv1.RelayResponse{Message: &brokerv1.RelayResponse_Waiting{Waiting: &brokerv1.RelayWaiting{Id: c.GetId(), ApprovalId: "card"}}})
			<-free
		}
		return &brokerv1.RelayVerdict{Forward: true, Message: c.GetTool()}
	})
	r := relay(t, b, worker.RelayConfig{Mode: worker.Wrapped})
	told := make(chan string, 1)
	slow := call("slow", "{}")
	slow.Waiting = func(id string) { told <- id }
	pending, err := r.Begin(t.Context(), slow)
	if err != nil {
		t.Fatal(err)
	}
	if id := <-told; id != "card" {
		t.Errorf("told of %q", id)
	}
	<-pending.Asked()
	var all sync.WaitGroup
	for i := range 200 {
		all.Go(func() {
			name := fmt.Sprint("t", i)
			if v, err := r.Judge(t.Context(), call(name, "{}")); err != nil || v.Message != name {
				t.Errorf("%s: %+v, %v", name, v, err)
			}
		})
	}
	all.Wait()
	close(free)
	if v, err := pending.Verdict(t.Context()); err != nil || v.Message != "slow" {
		t.Errorf("slow: %+v, %v", v, err)
	}
}

// Arguments arrive whole, however many pieces and calls there are.
func TestRelayPieces(t *testing.T) {
	b := workertest.Start(t)
	b.OnCall(func(_ context.Context, _ *brokerv1.RelayOpen, c *brokerv1.RelayCall, _ func(*brokerv1.RelayResponse)) *brokerv1.RelayVerdict {
		return &brokerv1.RelayVerdict{Forward: true, Message: fmt.Sprint(len(c.GetArguments()), c.GetArguments()[0], bytes.Count(c.GetArguments(), c.GetArguments()[:1]))}
	})
	r := relay(t, b, worker.RelayConfig{Mode: worker.Wrapped})
	var all sync.WaitGroup
	for i, size := range []int{1, 256 << 10, 256<<10 + 1, 1 << 20, 10 << 20, 10 << 20, 3, 5 << 20} {
		all.Go(func() {
			letter := byte('a' + i)
			v, err := r.Judge(t.Context(), worker.RelayCall{Method: "tools/call", Tool: "t", Arguments: bytes.Repeat([]byte{letter}, size)})
			if want := fmt.Sprint(size, letter, size); err != nil || v.Message != want {
				t.Errorf("%d bytes: got %q, %v, want %q", size, v.Message, err, want)
			}
		})
	}
	all.Wait()
	if _, err := r.Judge(t.Context(), worker.RelayCall{Method: "tools/call", Arguments: make([]byte, 10<<20+1)}); wire.FromError(err).Reason != wire.ResourceTooLarge {
		t.Errorf("too long: %v", err)
	}
}

// Who gives up is believed, also when the call is allowed at that moment.
func TestRelayCancel(t *testing.T) {
	for name, allowed := range map[string]bool{"waiting": false, "just allowed": true} {
		t.Run(name, func(t *testing.T) {
			b := workertest.Start(t)
			b.OnCall(func(ctx context.Context, _ *brokerv1.RelayOpen, _ *brokerv1.RelayCall, tell func(*brokerv1.RelayResponse)) *brokerv1.RelayVerdict {
				tell(nil)
				<-ctx.Done()
				if allowed {
					return &brokerv1.RelayVerdict{Forward: true}
				}
				return nil
			})
			r := relay(t, b, worker.RelayConfig{Mode: worker.Wrapped})
			ctx, cancel := context.WithCancel(t.Context())
			pending, err := r.Begin(ctx, call("t", "{}"))
			if err != nil {
				t.Fatal(err)
			}
			cancel()
			if _, err := pending.Verdict(ctx); err == nil {
				t.Error("there is a verdict")
			}
			want := []string{"open files", "call tools/call t {}", "cancel"}
			if allowed {
				want = append(want, "outcome CANCELLED ")
			}
			workertest.Eventually(t, strings.Join(want, ", "), func() bool { return slices.Equal(b.Relayed(), want) })
		})
	}
}

// Calls of a hosted server return what it answered, however long, and progress.
func TestRelayHosted(t *testing.T) {
	b := workertest.Start(t)
	long := bytes.Repeat([]byte("x"), 600<<10)
	b.OnCall(func(ctx context.Context, _ *brokerv1.RelayOpen, c *brokerv1.RelayCall, tell func(*brokerv1.RelayResponse)) *brokerv1.RelayVerdict {
		answer := func(end brokerv1.RelayEnd, pieces ...[]byte) {
			for i, piece := range pieces {
				tell(&brokerv1.RelayResponse{Message: &brokerv1.RelayResponse_Answer{Answer: &brokerv1.RelayAnswer{Id: c.GetId(), Piece: piece, More: i < len(pieces)-1, End: end}}})
			}
		}
		verdict := &brokerv1.RelayVerdict{Id: c.GetId(), Forward: true}
		tell(&brokerv1.RelayResponse{Message: &brokerv1.RelayResponse_Verdict{Verdict: verdict}})
		switch c.GetTool() {
		case "long":
			tell(&brokerv1.RelayResponse{Message: &brokerv1.RelayResponse_Progress{Progress: &brokerv1.RelayProgress{Id: c.GetId(), Params: []byte(`{"progress":1}`)}}})
			answer(brokerv1.RelayEnd_RELAY_END_OK, long[:256<<10], long[256<<10:512<<10], long[512<<10:])
		case "failing":
			answer(brokerv1.RelayEnd_RELAY_END_ERROR, c.GetMeta())
		case "dead":
			answer(brokerv1.RelayEnd_RELAY_END_TRANSPORT, nil)
		case "endless":
			<-ctx.Done()
		}
		return nil
	})
	r := relay(t, b, worker.RelayConfig{Mode: worker.Hosted})
	var progress []string
	asked := call("long", "{}")
	asked.Progressed = func(params []byte) { progress = append(progress, string(params)) }
	got, err := r.Call(t.Context(), asked)
	if err != nil || got.End != worker.EndOK || !bytes.Equal(got.Object, long) || !got.Verdict.Forward {
		t.Errorf("long: %d bytes, %v, %v", len(got.Object), got.End, err)
	}
	if !slices.Equal(progress, []string{`{"progress":1}`}) {
		t.Errorf("progress: %q", progress)
	}
	asked = call("failing", "{}")
	asked.Meta = []byte(`{"code":1}`)
	if got, err = r.Call(t.Context(), asked); err != nil || got.End != worker.EndError || string(got.Object) != `{"code":1}` {
		t.Errorf("failing: %+v, %v", got, err)
	}
	if got, err = r.Call(t.Context(), call("dead", "{}")); err != nil || got.End != worker.EndTransport || got.Object != nil {
		t.Errorf("dead: %+v, %v", got, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := r.Call(ctx, call("endless", "{}"))
		ended <- err
	}()
	workertest.Eventually(t, "the call", func() bool { return slices.Contains(b.Relayed(), "call tools/call endless {}") })
	cancel()
	if err := <-ended; err == nil {
		t.Error("endless: no error")
	}
	workertest.Eventually(t, "the cancellation", func() bool { return slices.Contains(b.Relayed(), "cancel") })
}

// What ends a relay is what its calls and Err say.
func TestRelayEnds(t *testing.T) {
	for _, tc := range []struct {
		name string
		end  func(*workertest.Broker, *worker.Relay)
		want wire.Reason
	}{
		{"the daemon stops", func(b *workertest.Broker, _ *worker.Relay) { b.Stop() }, wire.BrokerUnavailable},
		{"closed", func(_ *workertest.Broker, r *worker.Relay) { r.Close() }, wire.BrokerUnavailable},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := workertest.Start(t)
			began := make(chan struct{})
			b.OnCall(func(ctx context.Context, _ *brokerv1.RelayOpen, _ *brokerv1.RelayCall, _ func(*brokerv1.RelayResponse)) *brokerv1.RelayVerdict {
				close(began)
				<-ctx.Done()
				return nil
			})
			r := relay(t, b, worker.RelayConfig{Mode: worker.Wrapped})
			if r.Err() != nil {
				t.Errorf("before: %v", r.Err())
			}
			pending, err := r.Begin(t.Context(), call("t", "{}"))
			if err != nil {
				t.Fatal(err)
			}
			<-began
			tc.end(b, r)
			if _, err := pending.Verdict(t.Context()); wire.FromError(err).Reason != tc.want {
				t.Errorf("the call: %v", err)
			}
			<-r.Over()
			if wire.FromError(r.Err()).Reason != tc.want {
				t.Errorf("Err: %v", r.Err())
			}
			if _, err := r.Judge(t.Context(), call("t", "{}")); wire.FromError(err).Reason != tc.want {
				t.Errorf("a later call: %v", err)
			}
		})
	}
}

func TestRelayRefused(t *testing.T) {
	b := workertest.Start(t)
	b.Allow("worker")
	b.RefuseRelays(wire.AccessDenied)
	run := open(t, b)
	if _, err := run.Relay(t.Context(), worker.RelayConfig{Server: "files", Mode: worker.Wrapped}); wire.FromError(err).Reason != wire.AccessDenied {
		t.Errorf("refused: %v", err)
	}
	for _, config := range []worker.RelayConfig{{Mode: worker.Wrapped}, {Server: "files"}, {Server: "files", Mode: 7}} {
		if _, err := run.Relay(t.Context(), config); wire.FromError(err).Reason != wire.InvalidArgument {
			t.Errorf("%+v: %v", config, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	b.RefuseRelays("")
	if _, err := run.Relay(ctx, worker.RelayConfig{Server: "files", Mode: worker.Wrapped}); err == nil {
		t.Error("opened for nobody")
	}
}

// A daemon that was not restarted since the update serves runs, and says plainly
// that it judges no calls.
// What has ended is said beside the next call, where the daemon takes it so, and before
// it.
func TestOutcomesBesideTheNextCall(t *testing.T) {
	for _, older := range []bool{false, true} {
		b := workertest.Start(t)
		if older {
			b.HearsApart()
		}
		r := relay(t, b, worker.RelayConfig{Mode: worker.Wrapped})
		judge := func() uint64 {
			t.Helper()
			verdict, err := r.Judge(t.Context(), call("a", `{}`))
			if err != nil {
				t.Fatal(err)
			}
			return verdict.ID
		}
		id, joined := judge(), 0
		want := []string{"open files", "call tools/call a {}"}
		for range 50 { // where that takes long, the end is said by itself
			before := b.RelayMessages()
			if err := r.Outcome(t.Context(), worker.RelayOutcome{ID: id, End: worker.EndOK, Delivered: true}); err != nil {
				t.Fatal(err)
			}
			id = judge()
			want = append(want, "outcome OK  delivered", "call tools/call a {}")
			if b.RelayMessages() == before+1 {
				joined++
			}
		}
		if diff := cmp.Diff(want, b.Relayed()); diff != "" {
			t.Errorf("told (-want +got):\n%s", diff)
		}
		if (joined > 0) == older {
			t.Errorf("of an older daemon: %v; said together: %d times", older, joined)
		}
	}
}

func TestRelayOlderDaemon(t *testing.T) {
	b := workertest.Start(t)
	b.Allow("worker")
	b.SpeakAPI(1)
	run := open(t, b)
	if run.API != 1 {
		t.Fatalf("API %d", run.API)
	}
	_, err := run.Relay(t.Context(), worker.RelayConfig{Server: "files", Mode: worker.Wrapped})
	if typed := wire.FromError(err); typed == nil || typed.Reason != wire.PlatformUnsupported || !strings.Contains(typed.Message, "it must be restarted") {
		t.Errorf("%v", err)
	}
	if servers, _, err := run.Servers(t.Context()); err != nil || servers != nil {
		t.Errorf("servers: %v, %v", servers, err)
	}
}

func TestRelayTools(t *testing.T) {
	b := workertest.Start(t)
	told := make(chan worker.RelayTools, 10)
	killed := make(chan worker.RelayKill, 1)
	r := relay(t, b, worker.RelayConfig{
		Mode: worker.Wrapped, Tools: func(tools worker.RelayTools) { told <- tools }, Killed: func(k worker.RelayKill) { killed <- k },
	})
	if got, err := r.Offered(t.Context()); err != nil || r.Trusted() || got.Trusted {
		t.Errorf("not trusted: %+v, %v", got, err)
	}
	tools := []worker.ServerTool{
		{Name: "a", Object: []byte(`{"name":"a"}`)}, {Name: "big", Object: make([]byte, 1<<20+1)},
		{Name: "twice", Object: []byte("1")}, {Name: "twice", Object: []byte("2")}, {Object: []byte("{}")},
	}
	answer, err := r.Listed(t.Context(), tools, "be kind")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := answer(t.Context()); err != nil || got.Trusted {
		t.Errorf("listed, not trusted: %+v, %v", got, err)
	}
	workertest.Eventually(t, "the list", func() bool { return len(b.Listed()) == 1 })
	if listed := b.Listed()[0]; len(listed.GetTools()) != 1 || listed.GetTools()[0].GetName() != "a" || listed.GetInstructions() != "be kind" {
		t.Errorf("listed: %v", listed)
	}
	b.Trust(workertest.Named("a", "b")...)
	want := worker.RelayTools{Trusted: true, Tools: []worker.ServerTool{{Name: "a"}, {Name: "b"}}}
	if diff := cmp.Diff(want, <-told); diff != "" {
		t.Error(diff)
	}
	if got, err := r.Offered(t.Context()); err != nil || !r.Trusted() || !cmp.Equal(got, want) {
		t.Errorf("trusted: %+v, %v", got, err)
	}
	if answer, err = r.Listed(t.Context(), nil, strings.Repeat("x", 65<<10)); err != nil {
		t.Fatal(err)
	}
	if got, err := answer(t.Context()); err != nil || !cmp.Equal(got, want) {
		t.Errorf("listed: %+v, %v", got, err)
	}
	if listed := b.Listed()[1]; listed.GetInstructions() != "" {
		t.Errorf("instructions of %d bytes", len(listed.GetInstructions()))
	}
	b.Kill("over", "MaxRuntimePolicy")
	if got := <-killed; got != (worker.RelayKill{Message: "over", Policy: "MaxRuntimePolicy"}) {
		t.Errorf("killed: %+v", got)
	}
	// One that opens now waits for the first word.
	again, err := open(t, b).Relay(t.Context(), worker.RelayConfig{Server: "files", Mode: worker.Hosted})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := again.Offered(t.Context()); err != nil || !cmp.Equal(got, want) {
		t.Errorf("from the start: %+v, %v", got, err)
	}
}

// A keeper opens one relay, and another after a restart of the daemon.
func TestKeeperRelay(t *testing.T) {
	b := workertest.Start(t)
	b.Allow("worker")
	keeper, err := worker.NewKeeper(config(b, "worker"), nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	kept := make(chan struct{})
	go func() {
		defer close(kept)
		keeper.Keep(ctx)
	}()
	t.Cleanup(func() { stop(); <-kept })
	wanted := worker.RelayConfig{Server: "files", Mode: worker.Wrapped}
	first, err := keeper.Relay(t.Context(), wanted)
	if err != nil {
		t.Fatal(err)
	}
	if same, err := keeper.Relay(t.Context(), wanted); err != nil || same != first {
		t.Errorf("another one: %v", err)
	}
	if other, err := keeper.Relay(t.Context(), worker.RelayConfig{Server: "files", Mode: worker.Hosted}); err != nil || other == first {
		t.Errorf("the same for another mode: %v", err)
	}
	b.Stop()
	<-first.Over()
	if _, err := keeper.Relay(t.Context(), wanted); wire.FromError(err).Reason != wire.BrokerUnavailable {
		t.Errorf("without a daemon: %v", err)
	}
	b.Start()
	workertest.Eventually(t, "another relay", func() bool {
		second, err := keeper.Relay(t.Context(), wanted)
		return err == nil && second != first
	})
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := keeper.Relay(gone, worker.RelayConfig{Server: "other", Mode: worker.Wrapped}); err == nil || errors.Is(err, context.Canceled) {
		t.Errorf("for nobody: %v", err)
	}
}

// A call is begun at once where that waits for nobody. Otherwise the daemon hears
// nothing of it, and it can be begun as every other.
func TestTryBegin(t *testing.T) {
	b := workertest.Start(t)
	b.OnCall(func(ctx context.Context, _ *brokerv1.RelayOpen, c *brokerv1.RelayCall, tell func(*brokerv1.RelayResponse)) *brokerv1.RelayVerdict {
		if c.GetTool() == "slow" {
			tell(nil)
			<-ctx.Done()
			return nil
		}
		return &brokerv1.RelayVerdict{Forward: true}
	})
	r := relay(t, b, worker.RelayConfig{Mode: worker.Wrapped})
	try := func(c worker.RelayCall) (*worker.RelayPending, bool) {
		t.Helper()
		p, ok, err := r.TryBegin(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		return p, ok
	}
	p, ok := try(call("a", `{"n":1}`))
	if !ok {
		t.Fatal("nobody waits, and it is not begun")
	}
	if v, err := p.Verdict(t.Context()); err != nil || !v.Forward {
		t.Errorf("%+v, %v", v, err)
	}
	if _, ok := try(call("large", `{"s":"`+strings.Repeat("x", 8<<10)+`"}`)); ok {
		t.Error("a large call is begun")
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for n := 0; ; n++ {
		if _, ok, err := r.TryBegin(ctx, call("slow", "{}")); err != nil {
			t.Fatal(err)
		} else if !ok {
			break
		}
		if n == 100 {
			t.Fatal("however many wait, one more is begun")
		}
	}
	if v, err := r.Judge(t.Context(), call("b", "{}")); err != nil || !v.Forward {
		t.Errorf("begun as every other: %+v, %v", v, err)
	}
	for _, said := range b.Relayed() {
		if strings.Contains(said, "large") {
			t.Errorf("the daemon heard %.40s", said)
		}
	}
}

// Whoever has Decided hears, once and in the order of the calls, that the verdict
// does not wait, and what it is; also of a call whose client gives up.
func TestDecided(t *testing.T) {
	const calls = 100
	b := workertest.Start(t)
	b.OnCall(func(ctx context.Context, _ *brokerv1.RelayOpen, c *brokerv1.RelayCall, tell func(*brokerv1.RelayResponse)) *brokerv1.RelayVerdict {
		if c.GetTool() == "gated" {
			tell(&brokerv1.RelayResponse{Message: &brokerv1.RelayResponse_Waiting{Waiting: &brokerv1.RelayWaiting{Id: c.GetId(), ApprovalId: "card"}}})
			<-ctx.Done()
			return nil
		}
		return &brokerv1.RelayVerdict{Forward: c.GetTool() != "no"}
	})
	r := relay(t, b, worker.RelayConfig{Mode: worker.Wrapped})
	type word struct {
		call     int
		forwards bool
	}
	heard := make(chan word, calls+2)
	begin := func(ctx context.Context, number int, tool string) *worker.RelayPending {
		t.Helper()
		c := call(tool, "{}")
		c.Decided = func(p *worker.RelayPending) { heard <- word{number, p.Forwards()} }
		p, ok, err := r.TryBegin(ctx, c)
		if !ok && err == nil {
			p, err = r.Begin(ctx, c)
		}
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	ctx, giveUp := context.WithCancel(t.Context())
	gated := begin(ctx, -1, "gated")
	<-gated.Asked()
	for i := range calls {
		tool := "yes"
		if i%10 == 9 {
			tool = "no"
		}
		p := begin(t.Context(), i, tool)
		if got, want := <-heard, (word{i, tool == "yes"}); got != want {
			t.Fatalf("heard %+v, want %+v", got, want)
		}
		if v, err := p.Verdict(t.Context()); err != nil || v.Forward != (tool == "yes") {
			t.Errorf("call %d: %+v, %v", i, v, err)
		}
	}
	giveUp()
	if got := <-heard; got != (word{-1, false}) {
		t.Errorf("heard %+v of the one that was given up", got)
	}
	if _, err := gated.Verdict(ctx); err == nil {
		t.Error("there is a verdict")
	}
}
