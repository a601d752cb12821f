package main

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// measureScale has one broker with few resources and one with many.
func measureScale(ctx context.Context, s *settings) ([]figure, error) {
	const few = 100
	many := s.pick(100_000, 10_000)
	small, err := s.brokerWith(ctx, "few", few)
	if err != nil {
		return nil, err
	}
	defer small.stop()
	large, err := s.brokerWith(ctx, "many", many)
	if err != nil {
		return nil, err
	}
	defer large.stop()

	// A start is the process itself and one keyed hash of every row.
	var starts, floors samples
	for range s.pick(5, 2) {
		large.stop()
		took, err := large.start(ctx)
		if err != nil {
			return nil, err
		}
		starts = append(starts, took)
		if err := timed(&floors, func() error { return s.startFloor(ctx, large, many) }); err != nil {
			return nil, err
		}
	}

	one, err := small.open(ctx)
	if err != nil {
		return nil, err
	}
	defer one.close()
	other, err := large.open(ctx)
	if err != nil {
		return nil, err
	}
	defer other.close()
	var fewAcquires, manyAcquires samples
	for range s.pick(1000, 200) {
		if err := timed(&fewAcquires, func() error { return one.acquire(ctx, "small") }); err != nil {
			return nil, err
		}
		if err := timed(&manyAcquires, func() error { return other.acquire(ctx, "small") }); err != nil {
			return nil, err
		}
	}
	return []figure{{
		name:  fmt.Sprintf("acquire with %d resources, p50", many),
		got:   ms(manyAcquires.p50()),
		limit: fmt.Sprintf("with %d resources %s", few, ms(fewAcquires.p50())),
		ratio: float64(manyAcquires.p50()) / float64(fewAcquires.p50()), bound: 1.2,
	}, {
		name:  fmt.Sprintf("start with %d resources, p50", many),
		got:   ms(starts.p50()),
		limit: "700 ms", ratio: starts.p50().Seconds() / 0.7, bound: 1,
	}, {
		name:  "the same",
		got:   ms(starts.p50()),
		limit: "a process, reading the file, a keyed hash a row " + ms(floors.p50()),
		ratio: float64(starts.p50()) / float64(floors.p50()),
	}}, nil
}

// brokerWith starts a broker with a subject, a small document and so many
// resources more.
func (s *settings) brokerWith(ctx context.Context, name string, resources int) (*broker, error) {
	b, err := newBroker(s.bin, s.dir, name)
	if err != nil {
		return nil, err
	}
	if _, err := b.start(ctx); err != nil {
		return nil, err
	}
	err = b.sbctl(ctx, nil, "subject", "add", subject)
	if err == nil {
		err = b.put(ctx, "small", text(1<<10))
	}
	if err == nil && resources > 0 {
		err = b.declare(ctx, resources)
	}
	if err != nil {
		b.stop()
		return nil, err
	}
	return b, nil
}

// startFloor does what no start can do without.
func (s *settings) startFloor(ctx context.Context, b *broker, rows int) error {
	if err := exec.CommandContext(ctx, filepath.Join(s.bin, "sbd"), "--version").Run(); err != nil {
		return err
	}
	file, err := os.ReadFile(filepath.Join(b.home, "vault.db"))
	if err != nil {
		return err
	}
	mac := hmac.New(sha256.New, make([]byte, 32))
	size := len(file) / max(rows, 1)
	for i := range rows {
		mac.Reset()
		value := sha256.Sum256(file[i*size : (i+1)*size])
		mac.Write(value[:])
		mac.Sum(nil)
	}
	return nil
}

// measureStart has the shim's cold start and what the programs keep in memory.
func measureStart(ctx context.Context, s *settings) ([]figure, error) {
	b, err := s.brokerWith(ctx, "start", 1000)
	if err != nil {
		return nil, err
	}
	defer b.stop()
	built := filepath.Join(s.dir, "built")
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", built, "./cmd/internal/bench/minimal")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("building the minimal server: %w: %s", err, out)
	}
	// As they are once they are installed: what a linker has just written lies about in
	// the page cache in small pieces, and a large program starts the slower for it.
	least, err := s.installed(built, "minimal")
	if err != nil {
		return nil, err
	}
	shimProgram, err := s.installed(filepath.Join(s.bin, "sb-mcp"), "sb-mcp")
	if err != nil {
		return nil, err
	}
	var ours, theirs samples
	for range s.pick(40, 8) {
		if err := cold(ctx, &theirs, least); err != nil {
			return nil, err
		}
		if err := cold(ctx, &ours, shimProgram, "--subject", subject, "--home", b.home); err != nil {
			return nil, err
		}
	}

	shim, err := s.shim(ctx, b)
	if err != nil {
		return nil, err
	}
	defer shim.stop()
	for i := range 20 {
		if err := read(shim, 10+i, "small"); err != nil {
			return nil, err
		}
	}
	shimSize, err := resident(shim.cmd.Process.Pid)
	if err != nil {
		return nil, err
	}
	daemonSize, err := resident(b.daemon.Process.Pid)
	if err != nil {
		return nil, err
	}
	return []figure{{
		name:  "sb-mcp: start to initialize answer, p50",
		got:   ms(ours.p50()),
		limit: "a minimal server on the same SDK " + ms(theirs.p50()),
		ratio: float64(ours.p50()) / float64(theirs.p50()), bound: 2,
	}, {
		name:  "sb-mcp: memory after 20 reads",
		got:   fmt.Sprintf("%.1f MiB", shimSize),
		limit: "20 MiB", ratio: shimSize / 20, bound: 1,
	}, {
		name:  "sbd: memory with 1000 resources",
		got:   fmt.Sprintf("%.1f MiB", daemonSize),
		limit: "40 MiB", ratio: daemonSize / 40, bound: 1,
	}}, nil
}

// installed is a copy of a program.
func (s *settings) installed(program, name string) (string, error) {
	content, err := os.ReadFile(program)
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp(s.dir, "installed-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, name)
	return path, os.WriteFile(path, content, 0o700) //nolint:gosec // it is run
}

// cold starts a server and waits until it has answered initialize.
func cold(ctx context.Context, to *samples, name string, args ...string) error {
	begin := time.Now()
	server, err := start(ctx, name, args...)
	if err != nil {
		return err
	}
	defer server.stop()
	if err := initialize(server); err != nil {
		return err
	}
	*to = append(*to, time.Since(begin))
	return nil
}
