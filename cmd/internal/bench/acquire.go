package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// entrySize is about one audit entry of an acquire with its signature, in bytes.
const entrySize = 570

// measureAcquire has one client: over the socket and through the shim.
func measureAcquire(ctx context.Context, s *settings) ([]figure, error) {
	b, err := s.brokerWith(ctx, "acquire", 0)
	if err != nil {
		return nil, err
	}
	defer b.stop()
	small, large := text(1<<10), text(1<<20)
	if err := b.put(ctx, "large", large); err != nil {
		return nil, err
	}

	session, err := b.open(ctx)
	if err != nil {
		return nil, err
	}
	defer session.close()
	empty, stopEmpty, err := s.empty(ctx)
	if err != nil {
		return nil, err
	}
	defer stopEmpty()
	disk, err := newAppender(b.home, entrySize)
	if err != nil {
		return nil, err
	}
	defer disk.close()
	shim, err := s.shim(ctx, b)
	if err != nil {
		return nil, err
	}
	defer shim.stop()
	pipe, err := start(ctx, s.self, asEcho)
	if err != nil {
		return nil, err
	}
	defer pipe.stop()

	// In turns, so that each sees the same machine.
	var syncs, empties, acquires, shims, pipes samples
	echoed := readCall(1, "small", small)
	for i := range s.pick(2000, 200) {
		if err := timed(&syncs, disk.once); err != nil {
			return nil, err
		}
		if err := timed(&empties, func() error { return empty.call(ctx) }); err != nil {
			return nil, err
		}
		if err := timed(&acquires, func() error { return session.acquire(ctx, "small") }); err != nil {
			return nil, err
		}
		if err := timed(&pipes, func() error { _, err := pipe.ask(echoed, anything); return err }); err != nil {
			return nil, err
		}
		if err := timed(&shims, func() error { return read(shim, 1000+i, "small") }); err != nil {
			return nil, err
		}
	}

	floor := syncs.p50() + empties.p50()
	figures := []figure{{
		name:  "acquire 1 KiB, one client, p50",
		got:   ms(acquires.p50()),
		limit: fmt.Sprintf("fdatasync %s + empty call %s", ms(syncs.p50()), ms(empties.p50())),
		ratio: float64(acquires.p50()) / float64(floor), bound: 1.8,
	}, {
		name:  "the same through the stdio shim, p50",
		got:   ms(shims.p50()),
		limit: fmt.Sprintf("acquire %s + pipe %s + 0.15 ms", ms(acquires.p50()), ms(pipes.p50())),
		ratio: float64(shims.p50()) / float64(acquires.p50()+pipes.p50()+150*time.Microsecond), bound: 1,
	}}

	var big, codec samples
	for i := range s.pick(60, 10) {
		if err := timed(&codec, func() error { return encodeDecode(large) }); err != nil {
			return figures, err
		}
		if err := timed(&big, func() error { return read(shim, 100000+i, "large") }); err != nil {
			return figures, err
		}
	}
	return append(figures, figure{
		name:  "1 MiB document through the stdio shim, p50",
		got:   ms(big.p50()),
		limit: "its JSON encoding plus decoding " + ms(codec.p50()),
		ratio: float64(big.p50()) / float64(codec.p50()), bound: 4,
	}), nil
}

// measureCrowd has 64 clients at once.
func measureCrowd(ctx context.Context, s *settings) ([]figure, error) {
	const crowd = 64
	b, err := s.brokerWith(ctx, "crowd", 0)
	if err != nil {
		return nil, err
	}
	defer b.stop()
	socket, stopEmpty, err := s.startEmpty(ctx)
	if err != nil {
		return nil, err
	}
	defer stopEmpty()
	disk, err := newAppender(b.home, entrySize)
	if err != nil {
		return nil, err
	}
	defer disk.close()

	var acquire, empty []func(context.Context) error
	for range crowd {
		session, err := b.open(ctx)
		if err != nil {
			return nil, err
		}
		defer session.close()
		acquire = append(acquire, func(ctx context.Context) error { return session.acquire(ctx, "small") })
		idle, err := dialEmpty(socket)
		if err != nil {
			return nil, err
		}
		defer idle.conn.Close()
		empty = append(empty, idle.call)
	}

	var syncs, empties, acquires samples
	var emptyRate, acquireRate, oneRate float64
	var size, entries int64
	rounds := s.pick(5, 2)
	span := time.Duration(s.pick(2000, 400)) * time.Millisecond
	for range rounds {
		for range 50 {
			if err := timed(&syncs, disk.once); err != nil {
				return nil, err
			}
		}
		rate, err := flood(ctx, empty, span, &empties)
		if err != nil {
			return nil, err
		}
		emptyRate += rate / float64(rounds)
		before, err := b.logSize()
		if err != nil {
			return nil, err
		}
		count := len(acquires)
		if rate, err = flood(ctx, acquire, span, &acquires); err != nil {
			return nil, err
		}
		acquireRate += rate / float64(rounds)
		after, err := b.logSize()
		if err != nil {
			return nil, err
		}
		size += after - before
		entries += int64(len(acquires) - count)
		var one samples
		if rate, err = flood(ctx, acquire[:1], span, &one); err != nil {
			return nil, err
		}
		oneRate += rate / float64(rounds)
	}
	floor := empties.p99() + syncs.p99()
	return []figure{{
		name:  "acquires a second, 64 clients",
		got:   fmt.Sprintf("%.0f", acquireRate),
		limit: fmt.Sprintf("empty calls a second, 64 clients: %.0f", emptyRate),
		ratio: acquireRate / emptyRate, bound: 0.4, atLeast: true,
	}, {
		name:  "acquires a second, 64 clients",
		got:   fmt.Sprintf("%.0f", acquireRate),
		limit: fmt.Sprintf("one client: %.0f", oneRate),
		ratio: acquireRate / oneRate, bound: 4, atLeast: true,
	}, {
		name:  "acquire, 64 clients, p99",
		got:   ms(acquires.p99()),
		limit: fmt.Sprintf("empty call at 64 %s + fdatasync %s, p99", ms(empties.p99()), ms(syncs.p99())),
		ratio: float64(acquires.p99()) / float64(floor), bound: 2,
	}, {
		name:  "bytes of log per acquire",
		got:   fmt.Sprintf("%.0f", float64(size)/float64(entries)),
		limit: "500 bytes",
		ratio: float64(size) / float64(entries) / 500, bound: 1,
	}}, nil
}

// flood calls each of clients again and again for a span of time and returns
// the calls a second.
func flood(ctx context.Context, clients []func(context.Context) error, span time.Duration, all *samples) (float64, error) {
	var (
		wait  sync.WaitGroup
		mu    sync.Mutex
		first error
		total int
	)
	begin := time.Now()
	for _, call := range clients {
		wait.Go(func() {
			var mine samples
			var err error
			for err == nil && time.Since(begin) < span {
				err = timed(&mine, func() error { return call(ctx) })
			}
			mu.Lock()
			defer mu.Unlock()
			if err != nil && first == nil {
				first = err
			}
			*all = append(*all, mine...)
			total += len(mine)
		})
	}
	wait.Wait()
	return perSecond(total, time.Since(begin)), first
}

// timed adds how long one call took.
func timed(to *samples, call func() error) error {
	begin := time.Now()
	err := call()
	*to = append(*to, time.Since(begin))
	return err
}

// startEmpty starts the empty server and returns its socket.
func (s *settings) startEmpty(ctx context.Context) (socket string, stop func(), err error) {
	socket = filepath.Join(s.dir, fmt.Sprintf("empty.%d", time.Now().UnixNano()))
	server, err := start(ctx, s.self, asEmptyServer, socket)
	if err != nil {
		return "", nil, err
	}
	return socket, server.stop, nil
}

func (s *settings) empty(ctx context.Context) (*emptyClient, func(), error) {
	socket, stop, err := s.startEmpty(ctx)
	if err != nil {
		return nil, nil, err
	}
	client, err := dialEmpty(socket)
	if err != nil {
		stop()
		return nil, nil, err
	}
	return client, func() { client.conn.Close(); stop() }, nil
}

// shim starts sb-mcp on the broker and shakes hands.
func (s *settings) shim(ctx context.Context, b *broker) (*process, error) {
	shim, err := start(ctx, filepath.Join(s.bin, "sb-mcp"), "--subject", subject, "--home", b.home)
	if err != nil {
		return nil, err
	}
	if err := initialize(shim); err != nil {
		shim.stop()
		return nil, err
	}
	return shim, nil
}

// initialize is what a client says first.
func initialize(p *process) error {
	const hello = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}}` + "\n"
	answer, err := p.ask([]byte(hello), answersID(1))
	if err != nil {
		return err
	}
	if !bytes.Contains(answer, []byte(`"protocolVersion"`)) {
		return fmt.Errorf("initialize was answered with %s", answer)
	}
	_, err = p.in.Write([]byte(`{"jsonrpc":"2.0","method":"notifications/initialized"}` + "\n"))
	return err
}

// read calls read_resource and insists on an allow.
func read(p *process, id int, name string) error {
	answer, err := p.ask(readCall(id, name, nil), answersID(id))
	if err != nil {
		return err
	}
	if !bytes.Contains(answer[:min(len(answer), 4<<10)], []byte("allow")) && !bytes.Contains(answer, []byte(`"ALLOWED"`)) {
		return fmt.Errorf("read_resource was answered with %.300s", answer)
	}
	return nil
}

// readCall is a line that calls read_resource. With padding it is a line of the
// size of the answer, for the pipe that is measured beside it.
func readCall(id int, name string, padding []byte) []byte {
	oneLine := bytes.ReplaceAll(padding, []byte("\n"), []byte(" "))
	return fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"read_resource","arguments":{"resourceId":%q}}}%s`+"\n", id, name, oneLine)
}

// answersID tells the answer to a request from notifications and log lines.
func answersID(id int) func([]byte) bool {
	want := fmt.Appendf(nil, `"id":%d`, id)
	return func(line []byte) bool {
		at := bytes.Index(line, want)
		return at >= 0 && at+len(want) < len(line) && (line[at+len(want)] == ',' || line[at+len(want)] == '}')
	}
}

func anything([]byte) bool { return true }

// encodeDecode is what any JSON protocol must do with a document.
func encodeDecode(document []byte) error {
	encoded, err := json.Marshal(string(document))
	if err != nil {
		return err
	}
	var decoded string
	return json.Unmarshal(encoded, &decoded)
}

// text is n bytes of prose with line ends, quotes and letters outside ASCII, as
// documents have them.
func text(n int) []byte {
	const line = "The quick brown fox jumps over the “lazy” dog; größer, naïve, 東京.\t\"quoted\"\n"
	whole := strings.Repeat(line, n/len(line)+1)
	for n > 0 && whole[n]&0xC0 == 0x80 { // not within a letter
		n--
	}
	return []byte(whole[:n])
}
