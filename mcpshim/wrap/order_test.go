package wrap

import (
	"context"
	"fmt"
	"strings"
	"testing"

	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	"subjectbroker/proto/wire"
	"subjectbroker/worker/workertest"
)

// Calls that a client sends without waiting come to the daemon, and those that are
// allowed to the server, in the order in which they were sent; one that waits for a
// person holds up none.
func TestPipelinedCallsKeepTheirOrder(t *testing.T) {
	const calls, gated = 200, 50
	b := broker(t)
	b.OnCall(func(ctx context.Context, _ *brokerv1.RelayOpen, c *brokerv1.RelayCall, tell func(*brokerv1.RelayResponse)) *brokerv1.RelayVerdict {
		if c.GetTool() != "gated" {
			return &brokerv1.RelayVerdict{Forward: true, ReasonCode: string(wire.Allowed)}
		}
		tell(&brokerv1.RelayResponse{Message: &brokerv1.RelayResponse_Waiting{Waiting: &brokerv1.RelayWaiting{Id: c.GetId(), ApprovalId: "a"}}})
		<-ctx.Done()
		return nil
	})
	k := wrapStub(t, b)
	var want []string
	for i := range calls {
		name := "a"
		if i == gated {
			name = "gated"
		}
		k.send(tool(fmt.Sprint(i), name))
		if i != gated {
			want = append(want, fmt.Sprint(i))
		}
	}
	for range want {
		k.next()
	}
	k.send(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d}}`, gated))
	var at int
	for _, line := range k.seen() {
		_, rest, found := strings.Cut(line, `"id":`)
		if !found {
			continue
		}
		id, _, _ := strings.Cut(rest, ",")
		if at >= len(want) || id != want[at] {
			t.Fatalf("the server's call %d is %s", at, id)
		}
		at++
	}
	if at != len(want) {
		t.Errorf("%d calls came, of %d", at, len(want))
	}
	k.close()
}

// A server that does not read holds up what goes to it, in its order, and nothing
// else: the daemon's word that the session is over is heard.
func TestServerDoesNotRead(t *testing.T) {
	const calls = 90
	b := broker(t)
	k := wrapStub(t, b)
	k.ask(tool("0", "busy"))
	word := strings.Repeat("x", 2<<10) // more than a pipe holds, together
	for i := range calls {
		k.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"a","arguments":{"word":"%s"}}}`, i+1, word))
	}
	workertest.Eventually(t, "more calls than the server takes", func() bool { return len(b.Relayed()) > 1+1+32 })
	b.Kill("killed", "DeniedToolsPolicy")
	rest, code := k.rest()
	if code != 1 {
		t.Errorf("code %d", code)
	}
	if n := strings.Count(rest, `"code":-32000,"message":"killed"`); n != calls {
		t.Errorf("%d calls were answered with the end, of %d", n, calls)
	}
}
