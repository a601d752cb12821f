package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"time"

	bolt "go.etcd.io/bbolt"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"

	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/worker/client"
)

// measureMemory has a memory of many entries in many tenants, and one tenant that is
// small beside one that is large.
func measureMemory(ctx context.Context, s *settings) ([]figure, error) {
	entries, tenants := s.pick(100_000, 5_000), s.pick(50, 10)
	b, err := s.brokerWith(ctx, "memory", 0)
	if err != nil {
		return nil, err
	}
	defer b.stop()
	conn, err := b.operator(ctx)
	if err != nil {
		return nil, err
	}
	operator := operatorv1.NewOperatorServiceClient(conn)
	names := []string{"small"}
	for i := range tenants - 1 {
		names = append(names, fmt.Sprintf("tenant-%02d", i))
	}
	for _, name := range names {
		if _, err := operator.AddTenant(ctx, &operatorv1.AddTenantRequest{Name: name}); err != nil {
			return nil, err
		}
	}
	for _, right := range []string{"memory.read:*", "memory.write:*"} {
		if err := b.sbctl(ctx, nil, "grant", subject, right); err != nil {
			return nil, err
		}
	}
	if err := b.learned(ctx, operator); err != nil {
		return nil, err
	}
	base, err := ownMemory(b.daemon.Process.Pid)
	if err != nil {
		return nil, err
	}
	textSize, err := fillMemory(ctx, operator, names, entries)
	conn.Close()
	if err != nil {
		return nil, err
	}

	b.stop()
	begin := time.Now()
	if _, err := b.start(ctx); err != nil {
		return nil, err
	}
	if conn, err = b.operator(ctx); err != nil {
		return nil, err
	}
	defer conn.Close()
	if err := b.learned(ctx, operatorv1.NewOperatorServiceClient(conn)); err != nil {
		return nil, err
	}
	ready := time.Since(begin)
	held, err := settledMemory(ctx, b.daemon.Process.Pid)
	if err != nil {
		return nil, err
	}
	figures := []figure{{
		name: fmt.Sprintf("ready after a start, %d entries", entries), got: ms(ready),
		limit: "20 s", ratio: ready.Seconds() / 20, bound: 1,
	}, {
		// What sbd takes more than without any entry, of its own; the pages of the vault's
		// file, which the system takes back when it wants to, are not in it.
		name: "memory of sbd after that, an entry", got: fmt.Sprintf("%.0f bytes", (held-base)*(1<<20)/float64(entries)),
		limit: fmt.Sprintf("1 KiB; its text, which is not kept, has %.0f bytes", textSize/float64(entries)), ratio: (held - base) * (1 << 20) / float64(entries) / 1024, bound: s.whole(1),
	}}
	more, err := searches(ctx, s, b)
	if err != nil {
		return figures, err
	}
	last, err := s.captures(ctx, b, entries)
	return append(append(figures, more...), last...), err
}

// settledMemory is the least that a process takes within some seconds: what it needed
// for a moment only is given back by then.
func settledMemory(ctx context.Context, pid int) (least float64, err error) {
	for i := range 30 {
		now, err := ownMemory(pid)
		if err != nil {
			return 0, err
		}
		if least = min(least, now); i == 0 {
			least = now
		}
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
	return least, nil
}

// whole is a bound that says nothing of the small sizes of a quick run.
func (s *settings) whole(bound float64) float64 {
	if s.quick {
		return 0
	}
	return bound
}

// operator connects as the operator. A daemon that has just begun to serve agents may
// not listen for operators yet.
func (b *broker) operator(ctx context.Context) (*grpc.ClientConn, error) {
	for {
		conn, err := client.Operator(ctx, client.Places{Home: b.home, SocketDir: filepath.Join(b.home, "run")})
		if err == nil {
			return conn, nil
		}
		select {
		case <-b.ended:
			return nil, err
		case <-ctx.Done():
			return nil, err
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// learned waits until the memory was read.
func (b *broker) learned(ctx context.Context, operator operatorv1.OperatorServiceClient) error {
	for {
		listed, err := operator.ListTenants(ctx, &operatorv1.ListTenantsRequest{})
		if err != nil || listed.GetToIndex() == 0 {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// dice are numbers that look like chance and are the same in every run (splitmix64).
type dice struct{ state uint64 }

// roll returns a number from 0 on, below 1.
func (d *dice) roll() float64 {
	d.state += 0x9e3779b97f4a7c15
	x := d.state
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return float64((x^x>>31)>>11) / (1 << 53)
}

// prose is text of words of which few are common and many rare.
func prose(dice *dice, words int) []byte {
	var out bytes.Buffer
	for range words {
		x := dice.roll()
		fmt.Fprintf(&out, "word%d ", int(x*x*x*20_000))
	}
	return out.Bytes()
}

// fillMemory imports entries, ten of them into the first tenant, and returns the bytes of
// their texts.
func fillMemory(ctx context.Context, operator operatorv1.OperatorServiceClient, tenants []string, entries int) (size float64, err error) {
	stream, err := operator.ImportKnowledge(ctx)
	if err != nil {
		return 0, err
	}
	random := &dice{1}
	var lines bytes.Buffer
	send := func() error {
		err := stream.Send(&operatorv1.ImportKnowledgeRequest{Lines: lines.Bytes()})
		if err == nil {
			_, err = stream.Recv()
		}
		lines.Reset()
		return err
	}
	for i := range entries {
		tenant := tenants[0]
		if i >= 10 {
			tenant = tenants[1+i%(len(tenants)-1)]
		}
		text := prose(random, 140)
		size += float64(len(text))
		fmt.Fprintf(&lines, `{"tenant":%q,"kind":"note","title":"entry %d","text":%q}`+"\n", tenant, i, text)
		if lines.Len() > 900<<10 {
			if err := send(); err != nil {
				return size, err
			}
		}
	}
	return size, errors.Join(send(), stream.CloseSend())
}

// searches has 8 clients that search, beside empty calls, and one that searches a small
// tenant beside a large one.
func searches(ctx context.Context, s *settings, b *broker) ([]figure, error) {
	const clients = 8
	socket, stop, err := s.startEmpty(ctx)
	if err != nil {
		return nil, err
	}
	defer stop()
	var search, empty []func(context.Context) error
	var one *session
	for i := range clients {
		session, err := b.open(ctx)
		if err != nil {
			return nil, err
		}
		defer session.close()
		one = session
		random := &dice{100 + uint64(i)}
		search = append(search, func(ctx context.Context) error { return session.search(ctx, string(prose(random, 2))) })
		idle, err := dialEmpty(socket)
		if err != nil {
			return nil, err
		}
		defer idle.conn.Close()
		empty = append(empty, idle.call)
	}
	span := time.Duration(s.pick(5000, 1000)) * time.Millisecond
	var empties, found samples
	for range 2 {
		if _, err := flood(ctx, empty, span/4, &empties); err != nil {
			return nil, err
		}
		if _, err := flood(ctx, search, span, &found); err != nil {
			return nil, err
		}
	}
	var small, smallAgain samples
	for range s.pick(1000, 200) {
		if err := timed(&small, func() error { return one.search(ctx, "entry", "small") }); err != nil {
			return nil, err
		}
		if err := timed(&smallAgain, func() error { return one.search(ctx, "entry", "small", "tenant-00") }); err != nil {
			return nil, err
		}
	}
	beside := "%s; an empty call, 8 clients: %s"
	return []figure{{
		name: "search, 8 clients, p50", got: ms(found.p50()), limit: fmt.Sprintf(beside, "5 ms", ms(empties.p50())),
		ratio: found.p50().Seconds() / 0.005, bound: 1,
	}, {
		name: "search, 8 clients, p99", got: ms(found.p99()), limit: fmt.Sprintf(beside, "30 ms", ms(empties.p99())),
		ratio: found.p99().Seconds() / 0.030, bound: 1,
	}, {
		name: "search of 10 entries, p50", got: ms(small.p50()), limit: "of those and of a large tenant " + ms(smallAgain.p50()),
		ratio: float64(small.p50()) / float64(smallAgain.p50()), bound: 1,
	}}, nil
}

func (s *session) search(ctx context.Context, query string, tenants ...string) error {
	_, err := s.client.SearchKnowledge(ctx, &brokerv1.SearchKnowledgeRequest{RunId: s.run, Query: query, Tenants: tenants})
	return err
}

// captures has one client that captures, beside what the disk takes for it in the
// same run: two appends, each waited for, and one commit of bbolt, which puts one row
// of that size into a file that has as many. The same in a server that does nothing
// else is what is left of the limit for a broker.
func (s *settings) captures(ctx context.Context, b *broker, entries int) ([]figure, error) {
	session, err := b.open(ctx)
	if err != nil {
		return nil, err
	}
	defer session.close()
	disk, err := newDisk(b.home, entries)
	if err != nil {
		return nil, err
	}
	defer disk.close()
	socket, dir := filepath.Join(s.dir, "disk.sock"), filepath.Join(b.home, "disk")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	server, err := start(ctx, s.self, asDisk, socket, dir, strconv.Itoa(entries))
	if err != nil {
		return nil, err
	}
	defer server.stop()
	bare, err := dialEmpty(socket)
	if err != nil {
		return nil, err
	}
	defer bare.conn.Close()
	if err := bare.call(ctx); err != nil { // it is filled by then
		return nil, err
	}
	random := &dice{50}
	var syncs, commits, bares, captured samples
	for i := range s.pick(1000, 100) {
		for _, one := range []struct {
			to   *samples
			call func() error
		}{{&syncs, disk.append.once}, {&commits, disk.rows.once}, {&syncs, disk.append.once}, {&bares, func() error { return bare.call(ctx) }}} {
			if err := timed(one.to, one.call); err != nil {
				return nil, err
			}
		}
		title, text := fmt.Sprintf("captured %d", i), string(prose(random, 140))
		if err := timed(&captured, func() error {
			_, err := session.client.CaptureKnowledge(ctx, &brokerv1.CaptureKnowledgeRequest{RunId: session.run, Tenant: "tenant-00", Kind: "note", Title: title, Text: text})
			return err
		}); err != nil {
			return nil, err
		}
	}
	floor := 2*syncs.p50() + commits.p50()
	return []figure{{
		name: "capture, p50", got: ms(captured.p50()), limit: fmt.Sprintf("2 appends with fdatasync of %s and one commit of bbolt %s", ms(syncs.p50()), ms(commits.p50())),
		ratio: float64(captured.p50()) / float64(floor), bound: 1.5,
	}, {
		name: "those three in a server that does no more", got: ms(bares.p50()), limit: "the same without the server",
		ratio: float64(bares.p50()) / float64(floor),
	}}, nil
}

// disk is what a capture cannot do without: entries that are appended, and rows that
// are committed.
type disk struct {
	grpc_health_v1.UnimplementedHealthServer
	append *appender
	rows   *committer
}

func newDisk(dir string, rows int) (*disk, error) {
	lines, err := newAppender(dir, entrySize)
	if err != nil {
		return nil, err
	}
	committer, err := newCommitter(filepath.Join(dir, "limit.db"), rows)
	return &disk{append: lines, rows: committer}, err
}

func (d *disk) close() {
	d.append.close()
	d.rows.close()
}

func (d *disk) Check(context.Context, *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	return &grpc_health_v1.HealthCheckResponse{}, errors.Join(d.append.once(), d.rows.once(), d.append.once())
}

// diskServer is the hidden mode in which this program is a daemon that waits for the
// disk as one that captures must, and does nothing else.
func diskServer(socket, dir, rows string, stdin io.Reader) error {
	n, err := strconv.Atoi(rows)
	if err != nil {
		return err
	}
	d, err := newDisk(dir, n)
	if err != nil {
		return err
	}
	defer d.close()
	return healthServer(socket, d, stdin)
}

// committer puts rows into a file of bbolt as the vault does, one with each commit.
type committer struct {
	db     *bolt.DB
	random *dice
}

// storedEntry is about how large the row of an entry of fillMemory is in the vault, in
// bytes.
const storedEntry = 2 << 10

func newCommitter(path string, rows int) (*committer, error) {
	db, err := bolt.Open(path, 0o600, &bolt.Options{FreelistType: bolt.FreelistMapType, InitialMmapSize: 1 << 30, NoStatistics: true})
	if err != nil {
		return nil, err
	}
	db.AllocSize = 64 << 10
	c := &committer{db, &dice{9}}
	const atOnce = 10_000
	for done := 0; done < rows; done += atOnce { // in order, which leaves no free pages that each commit would list
		names := make([]float64, 0, atOnce)
		for i := done; i < min(done+atOnce, rows); i++ {
			names = append(names, float64(i)/float64(rows))
		}
		if err := c.put(names...); err != nil {
			c.close()
			return nil, err
		}
	}
	return c, nil
}

func (c *committer) once() error { return c.put(c.random.roll()) }

// put puts rows whose names are numbers from 0 on, below 1.
func (c *committer) put(names ...float64) error {
	return c.db.Update(func(tx *bolt.Tx) error {
		bucket, err := tx.CreateBucketIfNotExists([]byte("rows"))
		for _, name := range names {
			if err == nil {
				err = bucket.Put(fmt.Appendf(nil, "%016x", uint64(name*(1<<53))), make([]byte, storedEntry))
			}
		}
		return err
	})
}

func (c *committer) close() {
	_ = c.db.Close()
	_ = os.Remove(c.db.Path())
}
