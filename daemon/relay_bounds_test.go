package daemon_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"subjectbroker/daemon/daemontest"
	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	"subjectbroker/proto/wire"
)

// What a server offers comes whole where it is in pieces, also of one tool.
func TestOffersInPieces(t *testing.T) {
	d := daemontest.Start(t)
	r := relayOf(t, worker(t, d), "srv")
	var tools []*brokerv1.ServerTool
	for i := range 3 {
		name := fmt.Sprintf("t%d", i)
		tools = append(tools, &brokerv1.ServerTool{Name: name, Object: fmt.Appendf(nil, `{"description":%q,"name":%q}`, bytes.Repeat([]byte("x"), 1<<20-100), name)})
	}
	for _, piece := range wire.CutTools(tools, "use it") {
		try(t, r.send(&brokerv1.RelayRequest{Message: &brokerv1.RelayRequest_Listed{Listed: &brokerv1.RelayListed{
			Tools: piece.Tools, Instructions: piece.Instructions, More: piece.More,
		}}}))
	}
	equal(t, "a call after it", said(r.call("ok", "{}")), "forward")
	equal(t, "what the daemon knows", strings.Join(seen(t, d, "srv"), ", "), "new, t0 new, t1 new, t2 new") // the first are the instructions
}

// What a process does not say to the end counts for all of its streams together, and
// comes back when they are over.
func TestWhatIsHeldIsShared(t *testing.T) {
	d := daemontest.Start(t)
	run := worker(t, d)
	part := func() *brokerv1.RelayRequest {
		return &brokerv1.RelayRequest{Message: &brokerv1.RelayRequest_Listed{Listed: &brokerv1.RelayListed{
			Tools: []*brokerv1.ServerTool{{Name: "t", Object: bytes.Repeat([]byte("x"), 60<<10), More: true}}, More: true,
		}}}
	}
	var all []*relay
	limited := 0
	for range 20 { // each would hold most of a megabyte
		r := relayOf(t, run, "srv")
		for range 16 {
			if r.send(part()) != nil {
				break
			}
		}
		all = append(all, r)
	}
	deadline := time.After(daemontest.Patience)
	for limited == 0 {
		for _, r := range all {
			r.mu.Lock()
			if r.err != nil && daemontest.Reason(r.err) == wire.RateLimited {
				limited++
			}
			r.mu.Unlock()
		}
		select {
		case <-deadline:
			t.Fatal("all of it was taken")
		case <-time.After(10 * time.Millisecond):
		}
	}
	if limited > 5 {
		t.Errorf("%d of 20 streams were refused", limited)
	}
	for _, r := range all {
		r.cancel()
	}
	eventually(t, "there is room again", func() bool {
		r := relayOf(t, run, "srv")
		for _, piece := range wire.CutTools([]*brokerv1.ServerTool{{Name: "t", Object: fmt.Appendf(nil, `{"d":%q,"name":"t"}`, bytes.Repeat([]byte("x"), 900<<10))}}, "") {
			try(t, r.send(&brokerv1.RelayRequest{Message: &brokerv1.RelayRequest_Listed{Listed: &brokerv1.RelayListed{Tools: piece.Tools, More: piece.More}}}))
		}
		id := r.ask("ok", "{}")
		return said(r.verdict(id)) == "forward"
	})
}

// A process has so many calls under way and no more, over all of its connections.
func TestCallsOfAProcess(t *testing.T) {
	d := daemontest.Start(t)
	d.AddSubject("worker")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var runs []*daemontest.Run
	for range 8 {
		runs = append(runs, d.Open("worker"))
	}
	refused := make(chan error, 8*30)
	for _, run := range runs {
		for range 30 {
			stream, err := run.Relay(ctx) // says nothing
			must(t, err)
			go func() {
				_, err := stream.Recv()
				refused <- err
			}()
		}
	}
	limit := time.After(daemontest.Patience)
	for range 8*30 - 176 {
		select {
		case err := <-refused:
			equal(t, "what is beyond the limit", daemontest.Reason(err), wire.RateLimited)
		case <-limit:
			t.Fatal("more calls are under way than there may be")
		}
	}
	select {
	case err := <-refused:
		t.Errorf("one too many was refused: %v", err)
	default:
	}
	cancel()
	eventually(t, "there is room again", func() bool {
		_, err := runs[0].ListResources(t.Context(), &brokerv1.ListResourcesRequest{RunId: runs[0].ID})
		return err == nil
	})
}
