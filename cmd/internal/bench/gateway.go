package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

const (
	gatewaySessions = 200 // open at once
	gatewayKeys     = 50  // of which the sessions are: one key has fewer sessions, and a rate
	fewKeys         = 10
	gatewayCallers  = 8 // who open sessions one after the other
)

// measureGateway has MCP over HTTP: many sessions, what a call costs more than on the
// socket, keys of which there are many, and what is left of sessions that were closed.
func measureGateway(ctx context.Context, s *settings) ([]figure, error) {
	figures, err := s.gatewayCalls(ctx)
	if err != nil {
		return figures, err
	}
	for _, measure := range []func(context.Context) ([]figure, error){s.gatewayRevocation, s.gatewayManyKeys, s.gatewayLeftovers} {
		more, err := measure(ctx)
		figures = append(figures, more...)
		if err != nil {
			return figures, err
		}
	}
	return figures, nil
}

// gatewayRevocation has streams of sessions that end with their key: revoked, of a
// subject that is disabled, or over by the clock. The request after that is refused.
func (s *settings) gatewayRevocation(ctx context.Context) ([]figure, error) {
	const limit, life = 100 * time.Millisecond, 2 * time.Second
	b, err := s.brokerWith(ctx, "revocation", 0)
	if err != nil {
		return nil, err
	}
	defer b.stop()
	conn, err := b.operator(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	operator := operatorv1.NewOperatorServiceClient(conn)
	g, err := s.gateway(ctx, b)
	if err != nil {
		return nil, err
	}
	defer g.stop()
	var figures []figure
	for _, way := range []struct {
		name string
		ttl  time.Duration
		end  func(id string) error
	}{
		{"a key is revoked", 0, func(id string) error {
			_, err := operator.RevokeAgentKey(ctx, &operatorv1.RevokeAgentKeyRequest{Key: id})
			return err
		}},
		{"its subject is disabled", 0, func(string) error { return b.setEnabled(ctx, operator, false) }},
		{"a key expires", life, nil},
	} {
		var took, until samples
		late := 0
		for range s.pick(30, 5) {
			if err := b.setEnabled(ctx, operator, true); err != nil {
				return figures, err
			}
			minted, err := operator.MintAgentKey(ctx, &operatorv1.MintAgentKeyRequest{Subject: subject, TtlSeconds: uint64(way.ttl / time.Second)})
			if err != nil {
				return figures, err
			}
			agent := g.agent(string(minted.GetToken()))
			if err := agent.open(ctx); err != nil {
				return figures, err
			}
			stream, err := agent.stream(ctx)
			if err != nil {
				return figures, err
			}
			begin := time.UnixMilli(minted.GetKey().GetExpires())
			if way.end != nil {
				begin = time.Now()
				if err := way.end(minted.GetKey().GetKeyId()); err != nil {
					return figures, err
				}
				until = append(until, time.Since(begin))
				if agent.ping(ctx) == nil {
					late++
				}
			}
			_, err = io.Copy(io.Discard, stream)
			stream.Close()
			if err != nil {
				return figures, err
			}
			took = append(took, time.Since(begin))
			if way.end == nil && agent.ping(ctx) == nil {
				late++
			}
		}
		beside, bound := limit.String(), 1.0
		if way.end == nil {
			bound = 0 // nobody has said so just now
		} else {
			beside += "; the operator's call itself took " + ms(until.p50())
		}
		figures = append(figures, figure{
			name: "until a stream ends after " + way.name + ", p99", got: fmt.Sprintf("%s, p50 %s", ms(took.p99()), ms(took.p50())), limit: beside,
			ratio: float64(took.p99()) / float64(limit), bound: bound,
		}, figure{
			name: "requests that were answered after that", got: fmt.Sprint(late), limit: fmt.Sprintf("none of %d", len(took)), ratio: float64(late), bound: 0.5,
		})
	}
	return figures, nil
}

func (b *broker) setEnabled(ctx context.Context, operator operatorv1.OperatorServiceClient, enabled bool) error {
	_, err := operator.SetSubject(ctx, &operatorv1.SetSubjectRequest{Name: subject, Enabled: &enabled})
	return err
}

// gatewayCalls has sessions that are open at once. While they are, one of them is
// compared with the socket; then all call together.
func (s *settings) gatewayCalls(ctx context.Context) ([]figure, error) {
	b, g, keys, err := s.gatewayWith(ctx, "gateway")
	if err != nil {
		return nil, err
	}
	defer b.stop()
	defer g.stop()
	var agents []*remote
	var failed atomic.Int64
	var opening sync.WaitGroup
	for i := range gatewaySessions {
		agent := g.agent(keys[i%len(keys)])
		agents = append(agents, agent)
		opening.Go(func() {
			if agent.open(ctx) != nil {
				failed.Add(1)
			}
		})
	}
	opening.Wait()
	if failed.Load() > 0 {
		return nil, fmt.Errorf("%d of %d sessions could not be opened", failed.Load(), gatewaySessions)
	}

	session, err := b.open(ctx)
	if err != nil {
		return nil, err
	}
	defer session.close()
	disk, err := newAppender(b.home, entrySize)
	if err != nil {
		return nil, err
	}
	defer disk.close()
	floor, stopFloor, err := s.emptyHTTP(ctx)
	if err != nil {
		return nil, err
	}
	defer stopFloor()
	var syncs, empties, acquires, calls, alone samples
	for i := range s.pick(2000, 200) {
		agent := agents[i%len(agents)]
		for _, turn := range []struct {
			to   *samples
			call func() error
		}{
			{&syncs, disk.once},
			{&empties, func() error { return floor.call(ctx) }},
			{&acquires, func() error { return session.acquire(ctx, "small") }},
			{&calls, func() error { return agent.read(ctx, "small") }},
			{&alone, func() error { return agent.readAlone(ctx, "small") }},
		} {
			if err := timed(turn.to, turn.call); err != nil {
				return nil, err
			}
		}
	}
	added := func(name string, of samples) figure {
		more := of.p50() - acquires.p50()
		return figure{
			name: name, got: ms(more),
			limit: fmt.Sprintf("1 ms; on the socket %s, an empty call over HTTP %s, fdatasync %s", ms(acquires.p50()), ms(empties.p50()), ms(syncs.p50())),
			ratio: more.Seconds() / 0.001, bound: 1,
		}
	}
	figures := []figure{
		added(fmt.Sprintf("added to a read in one of %d sessions, p50", gatewaySessions), calls),
		added("added to a read without a session, p50", alone),
	}

	var all samples
	var errs atomic.Int64
	var first atomic.Pointer[error]
	var callers []func(context.Context) error
	for _, agent := range agents {
		callers = append(callers, func(ctx context.Context) error {
			if err := agent.read(ctx, "small"); err != nil {
				errs.Add(1)
				first.CompareAndSwap(nil, &err)
			}
			return nil
		})
	}
	rate, err := flood(ctx, callers, time.Duration(s.pick(10_000, 1000))*time.Millisecond, &all)
	if err != nil {
		return figures, err
	}
	if err := first.Load(); err != nil {
		figures = append(figures, figure{name: "the first error", got: (*err).Error(), absent: true})
	}
	return append(figures, figure{
		name: fmt.Sprintf("errors, %d sessions at once", gatewaySessions), got: fmt.Sprint(errs.Load()),
		limit: fmt.Sprintf("none of %d calls, %.0f a second, p50 %s, p99 %s", len(all), rate, ms(all.p50()), ms(all.p99())),
		ratio: float64(errs.Load()), bound: 0.5,
	}), nil
}

// gatewayManyKeys has a request that is judged and does nothing else, of a daemon with
// few keys and one with many. Their homes are in memory where there is such a disk:
// it minted the keys sooner, and waiting for a real one would hide a difference.
func (s *settings) gatewayManyKeys(ctx context.Context) ([]figure, error) {
	many := s.pick(100_000, 1_000)
	if _, err := os.Stat("/dev/shm"); err == nil {
		inMemory := *s
		if inMemory.dir, err = os.MkdirTemp("/dev/shm", "sb-bench-"); err != nil {
			return nil, err
		}
		defer os.RemoveAll(inMemory.dir)
		s = &inMemory
	}
	type side struct {
		keys   int
		agents []*remote // one key alone has a rate
		took   samples
	}
	few, lots := &side{keys: fewKeys}, &side{keys: many}
	var minted time.Duration
	for _, one := range []*side{few, lots} {
		b, err := s.brokerWith(ctx, fmt.Sprintf("keys-%d", one.keys), 0)
		if err != nil {
			return nil, err
		}
		defer b.stop()
		begin := time.Now()
		keys, err := b.mint(ctx, one.keys)
		if err != nil {
			return nil, err
		}
		minted = time.Since(begin)
		g, err := s.gateway(ctx, b)
		if err != nil {
			return nil, err
		}
		defer g.stop()
		for i := range fewKeys {
			agent := g.agent(keys[i*len(keys)/fewKeys])
			if err := agent.open(ctx); err != nil {
				return nil, err
			}
			one.agents = append(one.agents, agent)
		}
	}
	for i := range s.pick(4000, 600) {
		for _, one := range []*side{few, lots} {
			if err := timed(&one.took, func() error { return one.agents[i%fewKeys].ping(ctx) }); err != nil {
				return nil, err
			}
		}
	}
	return []figure{{
		name: fmt.Sprintf("a request that is judged, %d keys, p50", many), got: ms(lots.took.p50()),
		limit: fmt.Sprintf("with %d keys %s", fewKeys, ms(few.took.p50())),
		ratio: float64(lots.took.p50()) / float64(few.took.p50()), bound: 1.2,
	}, {
		name: fmt.Sprintf("minting %d keys, each", many), got: ms(minted / time.Duration(many)),
		limit: "a request that is judged " + ms(lots.took.p50()), ratio: float64(minted/time.Duration(many)) / float64(lots.took.p50()),
	}}, nil
}

// gatewayLeftovers opens sessions, uses and closes them. What is left afterwards is
// compared with what was left of few.
func (s *settings) gatewayLeftovers(ctx context.Context) ([]figure, error) {
	few, many := gatewaySessions, s.pick(10_000, 600)
	before, err := s.worn(ctx, "worn-few", few)
	if err != nil {
		return nil, err
	}
	after, err := s.worn(ctx, "worn-many", many)
	if err != nil {
		return nil, err
	}
	var figures []figure
	compare := func(what, unit string, few, many, bound float64) {
		figures = append(figures, figure{
			name: fmt.Sprintf("%s after %d sessions", what, after.sessions), got: fmt.Sprintf("%.4g%s", many, unit),
			limit: fmt.Sprintf("after %d: %.4g%s", before.sessions, few, unit), ratio: many / few, bound: bound,
		})
	}
	compare("gateway: memory", " MiB", before.gateway.memory, after.gateway.memory, 1.3)
	compare("gateway: goroutines", "", before.gateway.goroutines, after.gateway.goroutines, 1.2)
	compare("gateway: descriptors", "", before.gateway.files, after.gateway.files, 1.2)
	compare("sbd: memory", " MiB", before.daemon.memory, after.daemon.memory, 1.3)
	compare("sbd: goroutines", "", before.daemon.goroutines, after.daemon.goroutines, 1.2)
	compare("sbd: descriptors", "", before.daemon.files, after.daemon.files, 1.2)
	return figures, nil
}

// wear is what a process holds.
type wear struct{ memory, goroutines, files float64 }

type worn struct {
	sessions        int
	gateway, daemon wear
}

// worn has a new broker and gateway serve so many sessions, one after the other by
// each of several callers, and says what they hold when all are closed.
func (s *settings) worn(ctx context.Context, name string, sessions int) (*worn, error) {
	b, g, keys, err := s.gatewayWith(ctx, name)
	if err != nil {
		return nil, err
	}
	defer b.stop()
	defer g.stop()
	var next atomic.Int64
	var callers sync.WaitGroup
	errs := make(chan error, gatewayCallers)
	for range gatewayCallers {
		callers.Go(func() {
			for i := int(next.Add(1)); i <= sessions; i = int(next.Add(1)) {
				agent := g.agent(keys[i%len(keys)])
				err := agent.open(ctx)
				if err == nil {
					err = agent.read(ctx, "small")
				}
				if err == nil {
					err = agent.close(ctx)
				}
				if err != nil {
					errs <- err
					return
				}
			}
		})
	}
	callers.Wait()
	close(errs)
	if err := <-errs; err != nil {
		return nil, err
	}
	g.http.CloseIdleConnections()
	done := &worn{sessions: sessions}
	select { // what ends does so by itself, and a collector that has nothing to do runs every two minutes
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(time.Duration(s.pick(5000, 1000)) * time.Millisecond):
	}
	if done.gateway, err = g.wear(); err != nil {
		return nil, err
	}
	done.daemon, err = b.wear()
	return done, err
}

// wear ends the daemon and says what it held.
func (b *broker) wear() (wear, error) {
	w, err := held(b.daemon.Process.Pid)
	if err != nil {
		return w, err
	}
	_ = b.daemon.Process.Signal(syscall.SIGQUIT)
	<-b.ended
	w.goroutines = goroutines(b.daemon.Stderr.(*bytes.Buffer).Bytes())
	return w, nil
}

// held is what a process holds, but for goroutines.
func held(pid int) (w wear, err error) {
	if w.memory, err = resident(pid); err != nil {
		return w, err
	}
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	w.files = float64(len(files))
	return w, err
}

// goroutines counts those that a program lists that is ended by SIGQUIT.
func goroutines(trace []byte) float64 {
	var n float64
	for line := range bytes.Lines(trace) {
		if bytes.HasPrefix(line, []byte("goroutine ")) && !bytes.HasPrefix(line, []byte("goroutine 0 ")) {
			n++
		}
	}
	return n
}

// mint mints n keys for the subject.
func (b *broker) mint(ctx context.Context, n int) ([]string, error) {
	conn, err := b.operator(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	operator := operatorv1.NewOperatorServiceClient(conn)
	keys := make([]string, n)
	for i := range keys {
		minted, err := operator.MintAgentKey(ctx, &operatorv1.MintAgentKeyRequest{Subject: subject})
		if err != nil {
			return nil, err
		}
		keys[i] = string(minted.GetToken())
	}
	return keys, nil
}
