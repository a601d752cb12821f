package worker_test

import (
	"context"
	"strings"
	"testing"

	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	"subjectbroker/worker"
	"subjectbroker/worker/workertest"
)

// What the answers of hosted servers hold together is bounded: one for which there
// is no room is none, until others were released.
func TestAnswersAreBounded(t *testing.T) {
	b := workertest.Start(t)
	b.Allow("worker")
	b.Trust()
	b.OnCall(func(_ context.Context, _ *brokerv1.RelayOpen, call *brokerv1.RelayCall, tell func(*brokerv1.RelayResponse)) *brokerv1.RelayVerdict {
		tell(&brokerv1.RelayResponse{Message: &brokerv1.RelayResponse_Verdict{Verdict: &brokerv1.RelayVerdict{Id: call.GetId(), Forward: true}}})
		chunk := []byte(strings.Repeat("x", 256<<10))
		for left := 60 << 20; left > 0; left -= len(chunk) {
			tell(&brokerv1.RelayResponse{Message: &brokerv1.RelayResponse_Answer{Answer: &brokerv1.RelayAnswer{
				Id: call.GetId(), Piece: chunk, More: left > len(chunk), End: brokerv1.RelayEnd_RELAY_END_OK,
			}}})
		}
		return nil
	})
	run, err := worker.Open(t.Context(), config(b, "worker"))
	if err != nil {
		t.Fatal(err)
	}
	defer run.Close()
	relay, err := run.Relay(t.Context(), worker.RelayConfig{Server: "hub", Mode: worker.Hosted})
	if err != nil {
		t.Fatal(err)
	}
	call := func(want worker.RelayEnd) func() {
		t.Helper()
		got, err := relay.Call(t.Context(), worker.RelayCall{Method: "tools/call", Tool: "large", Arguments: []byte("{}")})
		if err != nil || got.End != want || (len(got.Object) == 60<<20) != (want == worker.EndOK) {
			t.Fatalf("%v, %d bytes, %v, want %v", got.End, len(got.Object), err, want)
		}
		return got.Release
	}
	first := call(worker.EndOK)
	second := call(worker.EndOK)
	call(worker.EndTransport)()
	first()
	third := call(worker.EndOK)
	call(worker.EndTransport)()
	second()
	third()
	call(worker.EndOK)()
}
