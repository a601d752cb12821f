package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"

	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	"subjectbroker/proto/wire"
	"subjectbroker/worker/client"
)

// subject is who asks in every figure.
const subject = "bench"

// broker is a real sbd in a home of its own, driven with a real sbctl.
type broker struct {
	bin    string // directory of the three programs
	home   string
	daemon *exec.Cmd
	ended  chan struct{}
}

// newBroker makes a home below dir; start starts a daemon in it.
func newBroker(bin, dir, name string) (*broker, error) {
	home := filepath.Join(dir, name)
	if err := os.Mkdir(home, 0o700); err != nil {
		return nil, err
	}
	// This program is shim, agent and operator in one.
	return &broker{bin: bin, home: home}, os.WriteFile(filepath.Join(home, "config.yaml"), []byte("operatorGuard: false\nmemory: {capturesPerMinute: 1000000}\n"), 0o600)
}

// start returns how long it took until the daemon served.
func (b *broker) start(ctx context.Context) (time.Duration, error) {
	var stderr bytes.Buffer
	b.daemon = exec.CommandContext(ctx, filepath.Join(b.bin, "sbd"), "--home", b.home, "--key-source", "file")
	b.daemon.Env = environment()
	b.daemon.Stderr = &stderr
	begin := time.Now()
	if err := b.daemon.Start(); err != nil {
		return 0, err
	}
	b.ended = make(chan struct{})
	go func() {
		defer close(b.ended)
		_ = b.daemon.Wait()
	}()
	for {
		conn, err := client.Broker(ctx, client.Places{Home: b.home, SocketDir: filepath.Join(b.home, "run")})
		if err == nil {
			conn.Close()
			return time.Since(begin), nil
		}
		select {
		case <-b.ended:
			return 0, fmt.Errorf("sbd ended: %s", strings.TrimSpace(stderr.String()))
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(2 * time.Millisecond):
		}
	}
}

func (b *broker) stop() {
	if b.daemon == nil || b.daemon.Process == nil {
		return
	}
	_ = b.daemon.Process.Signal(os.Interrupt)
	select {
	case <-b.ended:
	case <-time.After(10 * time.Second):
		_ = b.daemon.Process.Kill()
		<-b.ended
	}
}

// environment is what the programs are started with: no variable of ours that
// would lead them elsewhere.
func environment() []string {
	var clean []string
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "SB_") {
			clean = append(clean, variable)
		}
	}
	return clean
}

// sbctl runs one verb with stdin.
func (b *broker) sbctl(ctx context.Context, stdin []byte, args ...string) error {
	cmd := exec.CommandContext(ctx, filepath.Join(b.bin, "sbctl"), append(args, "--home", b.home)...)
	cmd.Env = environment()
	cmd.Stdin = bytes.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("sbctl %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}

// put stores text content and lets the subject read it.
func (b *broker) put(ctx context.Context, name string, content []byte) error {
	if err := b.sbctl(ctx, content, "secret", "put", name, "-", "--kind", "text"); err != nil {
		return err
	}
	return b.sbctl(ctx, nil, "grant", subject, name)
}

// declare adds n resources without content in one document.
func (b *broker) declare(ctx context.Context, n int) error {
	document := bytes.NewBufferString("version: 1\nresources:\n")
	for i := range n {
		fmt.Fprintf(document, "  r.%06d: {kind: text}\n", i)
	}
	file := filepath.Join(b.home, "..", filepath.Base(b.home)+".yaml")
	if err := os.WriteFile(file, document.Bytes(), 0o600); err != nil {
		return err
	}
	return b.sbctl(ctx, nil, "apply", "-f", file)
}

// session is one connection with one run on it.
type session struct {
	conn   *grpc.ClientConn
	client brokerv1.BrokerServiceClient
	run    string
}

func (b *broker) open(ctx context.Context) (*session, error) {
	conn, err := client.Broker(ctx, client.Places{Home: b.home, SocketDir: filepath.Join(b.home, "run")})
	if err != nil {
		return nil, err
	}
	broker := brokerv1.NewBrokerServiceClient(conn)
	opened, err := broker.OpenRun(ctx, &brokerv1.OpenRunRequest{
		Api: wire.API, ShimVersion: "bench",
		Claim: &brokerv1.OpenRunRequest_Subject{Subject: &brokerv1.SubjectClaim{Subject: subject}},
	})
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("opening a run: %w", err)
	}
	return &session{conn, broker, opened.GetRunId()}, nil
}

func (s *session) acquire(ctx context.Context, name string) error {
	_, err := s.client.Acquire(ctx, &brokerv1.AcquireRequest{RunId: s.run, ResourceId: name})
	return err
}

func (s *session) close() { s.conn.Close() }

// logSize is the number of bytes in the log's segments.
func (b *broker) logSize() (int64, error) {
	segments, err := filepath.Glob(filepath.Join(b.home, "audit", "*.jsonl"))
	if err != nil {
		return 0, err
	}
	var total int64
	for _, segment := range segments {
		info, err := os.Stat(segment)
		if err != nil {
			return 0, err
		}
		total += info.Size()
	}
	return total, nil
}

// resident is the memory of a process that is in RAM, in MiB.
func resident(pid int) (float64, error) { return fromStatus(pid, "VmRSS:") }

// ownMemory is what of that is not of a file, in MiB.
func ownMemory(pid int) (float64, error) { return fromStatus(pid, "RssAnon:") }

func fromStatus(pid int, field string) (float64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if value, found := strings.CutPrefix(line, field); found {
			kib, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(value), " kB"))
			return float64(kib) / 1024, err
		}
	}
	return 0, errors.New("no " + field)
}
