package workertest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"

	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	"subjectbroker/proto/wire"
)

// Judge decides about one call on a relay, in a goroutine of its own. It may say
// something through tell before it returns its verdict, whose number is filled in,
// and after it returned; what is said first, also nil, which is not sent, lets the
// calls behind it be judged. A verdict of nil means that there is none. ctx ends when
// the call is cancelled.
type Judge func(ctx context.Context, open *brokerv1.RelayOpen, call *brokerv1.RelayCall, tell func(*brokerv1.RelayResponse)) *brokerv1.RelayVerdict

// relaying is the fake's side of relays.
type relaying struct {
	judge   Judge
	tools   []*brokerv1.ServerTool // of a server that is trusted
	trusted bool

	instructions map[string]string // by server
	refusal      *wire.Error
	streams      []relayStream
	heard        []string
	listed       []*brokerv1.RelayListed
	servers      []string
	silent       bool // OpenRun does not say which servers there are
	apart        bool // what has ended is a message of its own
	messages     int
}

// relayStream is one open relay.
type relayStream struct {
	server string
	send   func(*brokerv1.RelayResponse)
}

// OnCall sets who judges the calls of relays; nil allows every call.
func (b *Broker) OnCall(judge Judge) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.relaying.judge = judge
}

// Trust has relays say that their server is trusted and that tools may be called,
// those that are open too.
func (b *Broker) Trust(tools ...*brokerv1.ServerTool) {
	b.mu.Lock()
	b.relaying.trusted, b.relaying.tools = true, tools
	streams := slices.Clone(b.relaying.streams)
	b.mu.Unlock()
	for _, one := range streams {
		one.send(b.offer(one.server))
	}
}

// Instruct has relays say, with the tools that may be called, what their servers say
// of themselves, by server. It is about relays that are opened later.
func (b *Broker) Instruct(instructions map[string]string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.relaying.instructions = instructions
}

// offer is the list of tools that may be called.
func (b *Broker) offer(server string) *brokerv1.RelayResponse {
	b.mu.Lock()
	defer b.mu.Unlock()
	return &brokerv1.RelayResponse{Message: &brokerv1.RelayResponse_Tools{Tools: &brokerv1.RelayTools{
		Tools: b.relaying.tools, Instructions: b.relaying.instructions[server],
	}}}
}

// Named are tools without objects.
func Named(names ...string) (tools []*brokerv1.ServerTool) {
	for _, name := range names {
		tools = append(tools, &brokerv1.ServerTool{Name: name})
	}
	return tools
}

// Kill ends the sessions of all relays.
func (b *Broker) Kill(message, policy string) {
	b.mu.Lock()
	streams := slices.Clone(b.relaying.streams)
	b.mu.Unlock()
	for _, one := range streams {
		one.send(&brokerv1.RelayResponse{Message: &brokerv1.RelayResponse_Kill{Kill: &brokerv1.RelayKill{Message: message, Policy: policy}}})
	}
}

// RefuseRelays makes relays end with reason when they open; the empty reason ends
// that.
func (b *Broker) RefuseRelays(reason wire.Reason) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.relaying.refusal = nil
	if reason != "" {
		b.relaying.refusal = wire.Deny(reason)
	}
}

// Relayed lists what relays said so far: "open SERVER", "call METHOD TOOL
// ARGUMENTS", "cancel SAID", "outcome END ANSWER", with " delivered" where it was,
// "listed NAME…".
func (b *Broker) Relayed() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.relaying.heard)
}

// Listed are the lists of tools that relays reported so far.
func (b *Broker) Listed() []*brokerv1.RelayListed {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.relaying.listed)
}

// SetServers sets what ListServers answers, and tells the runs.
func (b *Broker) SetServers(names ...string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.relaying.servers = names
	for _, r := range b.runs {
		r.changes <- &brokerv1.WatchResponse{Event: &brokerv1.WatchResponse_ServersChanged{ServersChanged: &brokerv1.ServersChanged{}}}
	}
}

// SaysNothingAtStart makes OpenRun leave out which servers there are, as older daemons
// do.
func (b *Broker) SaysNothingAtStart() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.relaying.silent = true
}

// HearsApart makes relays take what has ended as messages of its own alone, as older
// daemons do.
func (b *Broker) HearsApart() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.relaying.apart = true
}

// RelayMessages is how many messages relays were told so far, after the first of each.
func (b *Broker) RelayMessages() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.relaying.messages
}

func (b *Broker) note(format string, values ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.relaying.heard = append(b.relaying.heard, fmt.Sprintf(format, values...))
}

func (s service) ListServers(_ context.Context, req *brokerv1.ListServersRequest) (*brokerv1.ListServersResponse, error) {
	if _, err := s.under(req.GetRunId(), "servers", ""); err != nil {
		return nil, err
	}
	defer s.b.mu.Unlock()
	return &brokerv1.ListServersResponse{Servers: s.b.relaying.servers}, nil
}

// Relay is the fake's relay: it puts pieces together and lets Judge decide.
func (s service) Relay(stream grpc.BidiStreamingServer[brokerv1.RelayRequest, brokerv1.RelayResponse]) error {
	b := s.b
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	open := first.GetOpen()
	if _, err := s.under(open.GetRunId(), "relay", open.GetServer()); err != nil {
		return err
	}
	r, refusal, trusted, apart := b.runs[open.GetRunId()], b.relaying.refusal, b.relaying.trusted, b.relaying.apart
	b.mu.Unlock()
	if refusal != nil {
		return refusal
	}
	b.note("open %s", open.GetServer())
	var sending sync.Mutex
	send := func(message *brokerv1.RelayResponse) {
		sending.Lock()
		defer sending.Unlock()
		_ = stream.Send(message)
	}
	send(&brokerv1.RelayResponse{Message: &brokerv1.RelayResponse_Opened{Opened: &brokerv1.RelayOpened{Trusted: trusted, Ended: !apart}}})
	if trusted {
		send(b.offer(open.GetServer()))
	}
	b.mu.Lock()
	b.relaying.streams = append(b.relaying.streams, relayStream{open.GetServer(), send})
	place := len(b.relaying.streams) - 1
	b.mu.Unlock()
	defer func() { // nothing is sent on a stream that has ended
		sending.Lock()
		defer sending.Unlock()
		b.mu.Lock()
		defer b.mu.Unlock()
		b.relaying.streams[place].send = func(*brokerv1.RelayResponse) {}
	}()
	ended := make(chan error, 1)
	go func() { ended <- b.hearRelay(stream, open, send) }()
	select {
	case err := <-ended:
		return err
	case <-r.over:
		return wire.Deny(wire.BrokerUnavailable)
	}
}

// hearRelay reads a relay to its end.
func (b *Broker) hearRelay(stream grpc.BidiStreamingServer[brokerv1.RelayRequest, brokerv1.RelayResponse], open *brokerv1.RelayOpen, send func(*brokerv1.RelayResponse)) error {
	cancels := map[uint64]context.CancelFunc{}
	var parts *brokerv1.RelayCall
	var ending *brokerv1.RelayOutcome
	var listing wire.JoinedTools
	var judging sync.WaitGroup
	defer judging.Wait()
	for {
		message, err := stream.Recv()
		if err != nil {
			return nil //nolint:nilerr // the client has ended it
		}
		b.mu.Lock()
		b.relaying.messages++
		apart := b.relaying.apart
		b.mu.Unlock()
		if n := len(message.GetEnded()); n > 0 && (apart || ending != nil) || n > wire.MaxEnded {
			return wire.Deny(wire.InvalidArgument)
		}
		for _, one := range message.GetEnded() {
			b.noteOutcome(one)
		}
		switch said := message.GetMessage().(type) {
		case *brokerv1.RelayRequest_Call:
			if parts == nil {
				parts = said.Call
			} else {
				parts.Arguments = append(parts.Arguments, said.Call.GetArguments()...)
				parts.Meta = append(parts.Meta, said.Call.GetMeta()...)
			}
			if said.Call.GetMore() {
				continue
			}
			call := parts
			parts = nil
			b.note("call %s %s %s", call.GetMethod(), call.GetTool(), call.GetArguments())
			ctx, cancel := context.WithCancel(stream.Context())
			cancels[call.GetId()] = cancel
			b.mu.Lock()
			judge := b.relaying.judge
			b.mu.Unlock()
			// Like the daemon: in order, but for what waits.
			passed := make(chan struct{})
			pass := sync.OnceFunc(func() { close(passed) })
			judging.Go(func() {
				defer pass()
				decide(ctx, judge, open, call, func(message *brokerv1.RelayResponse) {
					if message != nil {
						send(message)
					}
					pass()
				})
			})
			select {
			case <-passed:
			case <-time.After(slowJudge):
			}
		case *brokerv1.RelayRequest_Cancel:
			b.note("%s", strings.TrimSpace("cancel "+string(said.Cancel.GetSaid())))
			if cancel := cancels[said.Cancel.GetId()]; cancel != nil {
				cancel()
			}
		case *brokerv1.RelayRequest_Outcome:
			if ending == nil {
				ending = said.Outcome
			} else {
				ending.Answer = append(ending.Answer, said.Outcome.GetAnswer()...)
			}
			if said.Outcome.GetMore() {
				continue
			}
			b.noteOutcome(ending)
			ending = nil
		case *brokerv1.RelayRequest_Listed:
			if err := listing.Add(wire.ToolPiece{Tools: said.Listed.GetTools(), Instructions: said.Listed.GetInstructions(), More: said.Listed.GetMore()}, 8<<20); err != nil {
				return err
			}
			if said.Listed.GetMore() {
				continue
			}
			said.Listed = &brokerv1.RelayListed{Tools: listing.Tools, Instructions: listing.Instructions}
			listing = wire.JoinedTools{}
			names := ""
			for _, tool := range said.Listed.GetTools() {
				names += " " + tool.GetName()
			}
			b.note("listed%s", names)
			b.mu.Lock()
			b.relaying.listed = append(b.relaying.listed, said.Listed)
			trusted := b.relaying.trusted
			b.mu.Unlock()
			if trusted {
				send(b.offer(open.GetServer()))
			}
		}
	}
}

func (b *Broker) noteOutcome(o *brokerv1.RelayOutcome) {
	delivered := ""
	if o.GetDelivered() {
		delivered = " delivered"
	}
	b.note("outcome %s %s%s", o.GetEnd().String()[len("RELAY_END_"):], o.GetAnswer(), delivered)
}

// slowJudge is how long a Judge may think, without a word, before the calls after it
// are judged. It is long: a judge that has only just no processor is not overtaken.
const slowJudge = 10 * time.Second

func decide(ctx context.Context, judge Judge, open *brokerv1.RelayOpen, call *brokerv1.RelayCall, send func(*brokerv1.RelayResponse)) {
	verdict := &brokerv1.RelayVerdict{Forward: true, ReasonCode: string(wire.Allowed)}
	if judge != nil {
		verdict = judge(ctx, open, call, send)
	}
	if verdict == nil {
		return
	}
	verdict.Id = call.GetId()
	send(&brokerv1.RelayResponse{Message: &brokerv1.RelayResponse_Verdict{Verdict: verdict}})
}
