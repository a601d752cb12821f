package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// What a launch may cost at its start, beyond the command itself.
const (
	boundLimit     = 100 * time.Millisecond
	sandboxedLimit = 150 * time.Millisecond
)

// measureLaunch has commands started by sbctl run, and a client inside.
func measureLaunch(ctx context.Context, s *settings) ([]figure, error) {
	b, err := s.brokerWith(ctx, "launch", 0)
	if err != nil {
		return nil, err
	}
	defer b.stop()

	workspace := filepath.Join(s.dir, "workspace")
	if err := os.Mkdir(workspace, 0o700); err != nil {
		return nil, err
	}

	// In turns, so that each sees the same machine.
	var alone, bound, sandboxed samples
	for range s.pick(60, 10) {
		if err := timed(&alone, exec.CommandContext(ctx, "true").Run); err != nil {
			return nil, err
		}
		if err := timed(&bound, func() error { return b.launched(ctx, "--", "true") }); err != nil {
			return nil, err
		}
		if err := timed(&sandboxed, func() error { return b.launched(ctx, "--sandbox", "--workspace", workspace, "--", "true") }); err != nil {
			return nil, err
		}
	}
	figures := []figure{
		overhead("a launch, beyond its command, p50", bound.p50(), alone.p50(), boundLimit),
		overhead("the same with --sandbox, p50", sandboxed.p50(), alone.p50(), sandboxedLimit),
	}
	inside, outside, err := s.acquireInside(ctx, b)
	if err != nil {
		return figures, err
	}
	return append(figures, figure{
		name:  "acquire 1 KiB inside a launch, p50",
		got:   ms(inside.p50()),
		limit: "the same outside " + ms(outside.p50()),
		ratio: float64(inside.p50()) / float64(outside.p50()), bound: 1.1,
	}), nil
}

// overhead is what a launch took longer than the command, beside its limit.
func overhead(name string, launched, alone, limit time.Duration) figure {
	return figure{
		name:  name,
		got:   fmt.Sprintf("%s (%s − true %s)", ms(launched-alone), ms(launched), ms(alone)),
		limit: ms(limit),
		ratio: float64(launched-alone) / float64(limit), bound: 1,
	}
}

// launch is sbctl run with more arguments.
func (b *broker) launch(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(b.bin, "sbctl"), append([]string{"run", "--home", b.home, "--subject", subject}, args...)...)
	cmd.Env = environment()
	return cmd
}

// launched runs a launch to its end.
func (b *broker) launched(ctx context.Context, args ...string) error {
	var said bytes.Buffer
	cmd := b.launch(ctx, args...)
	cmd.Stderr = &said
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("sbctl run: %w: %s", err, bytes.TrimSpace(said.Bytes()))
	}
	return nil
}

// acquireInside measures the same client, which is this program, in a launch
// and outside of one, in turns.
func (s *settings) acquireInside(ctx context.Context, b *broker) (inside, outside samples, err error) {
	client := []string{s.self, asClient, b.home}
	sbctl := b.launch(ctx, append([]string{"--"}, client...)...)
	launched, err := start(ctx, sbctl.Path, sbctl.Args[1:]...)
	if err != nil {
		return nil, nil, err
	}
	defer launched.stop()
	plain, err := start(ctx, client[0], client[1:]...)
	if err != nil {
		return nil, nil, err
	}
	defer plain.stop()
	for range s.pick(2000, 200) {
		for _, turn := range []struct {
			process *process
			to      *samples
		}{{launched, &inside}, {plain, &outside}} {
			answer, err := turn.process.ask([]byte("small\n"), anything)
			if err != nil {
				return nil, nil, err
			}
			took, err := strconv.ParseInt(strings.TrimSpace(string(answer)), 10, 64)
			if err != nil {
				return nil, nil, err
			}
			*turn.to = append(*turn.to, time.Duration(took))
		}
	}
	return inside, outside, nil
}

// clientServer is the hidden mode in which this program is a client of the
// broker of home: it acquires what each line of its input names, and answers
// with how long that took, in nanoseconds.
func clientServer(ctx context.Context, home string, in io.Reader, out io.Writer) error {
	b := &broker{home: home}
	session, err := b.open(ctx)
	if err != nil {
		return err
	}
	defer session.close()
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		begin := time.Now()
		if err := session.acquire(ctx, lines.Text()); err != nil {
			return err
		}
		if _, err := fmt.Fprintln(out, time.Since(begin).Nanoseconds()); err != nil {
			return err
		}
	}
	return lines.Err()
}
