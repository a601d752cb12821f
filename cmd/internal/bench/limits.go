package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"

	"subjectbroker/proto/wire"
)

// The limits: what the machine takes for the parts that cannot be left out.

// appender appends lines of the size of an audit entry and waits for the disk,
// as anyone must who promises that an entry is durable.
type appender struct {
	file *os.File
	line []byte
}

func newAppender(dir string, size int) (*appender, error) {
	file, err := os.OpenFile(filepath.Join(dir, "limit.append"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	line := make([]byte, size)
	for i := range line {
		line[i] = 'x'
	}
	return &appender{file, line}, nil
}

func (a *appender) once() error {
	if _, err := a.file.Write(a.line); err != nil {
		return err
	}
	return syncData(a.file)
}

func (a *appender) close() { a.file.Close() }

// emptyServer is the hidden mode in which this program is a daemon that has a
// socket and our transport, and does nothing. It ends with its input.
func emptyServer(socket string, stdin io.Reader) error { return healthServer(socket, empty{}, stdin) }

func healthServer(socket string, health grpc_health_v1.HealthServer, stdin io.Reader) error {
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer(grpc.MaxRecvMsgSize(wire.MaxMessage), grpc.MaxSendMsgSize(wire.MaxMessage))
	grpc_health_v1.RegisterHealthServer(server, health)
	go func() {
		_, _ = io.Copy(io.Discard, stdin)
		server.Stop()
	}()
	return server.Serve(listener)
}

type empty struct {
	grpc_health_v1.UnimplementedHealthServer
}

func (empty) Check(context.Context, *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	return &grpc_health_v1.HealthCheckResponse{}, nil
}

// emptyClient is one connection to an emptyServer.
type emptyClient struct {
	conn   *grpc.ClientConn
	health grpc_health_v1.HealthClient
}

func dialEmpty(socket string) (*emptyClient, error) {
	conn, err := grpc.NewClient("passthrough:///empty",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		}),
		grpc.WithIdleTimeout(0), grpc.WithNoProxy(), grpc.WithDisableServiceConfig())
	if err != nil {
		return nil, err
	}
	return &emptyClient{conn, grpc_health_v1.NewHealthClient(conn)}, nil
}

func (c *emptyClient) call(ctx context.Context) error {
	_, err := c.health.Check(ctx, &grpc_health_v1.HealthCheckRequest{}, grpc.WaitForReady(true))
	return err
}

// echoServer is the hidden mode in which this program is a shim that does
// nothing: it gives every line back.
func echoServer(in io.Reader, out io.Writer) error {
	lines := bufio.NewReaderSize(in, 64<<10)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return nil // end of input
		}
		if _, err := out.Write(line); err != nil {
			return err
		}
	}
}

// process is a child on two pipes that answers a line with a line.
type process struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func start(ctx context.Context, name string, args ...string) (*process, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &process{cmd: cmd, in: in, out: bufio.NewReaderSize(out, 1<<20)}, nil
}

// ask writes one line and returns the next line that answers: notifications,
// which have no id, are passed over.
func (p *process) ask(line []byte, answers func([]byte) bool) ([]byte, error) {
	if _, err := p.in.Write(line); err != nil {
		return nil, fmt.Errorf("writing to %s: %w", p.cmd.Path, err)
	}
	for {
		got, err := p.out.ReadBytes('\n')
		if err != nil {
			return nil, fmt.Errorf("reading from %s: %w", p.cmd.Path, err)
		}
		if answers(got) {
			return got, nil
		}
	}
}

// stop ends the input and waits.
func (p *process) stop() {
	p.in.Close()
	kill := time.AfterFunc(5*time.Second, func() { _ = p.cmd.Process.Kill() })
	defer kill.Stop()
	_ = p.cmd.Wait()
}
