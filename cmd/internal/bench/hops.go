package main

import (
	"bufio"
	"context"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"subjectbroker/proto/quick"
)

// A call that somebody else judges makes six hops from process to process, where a
// direct one makes two: to the wrapper, to the judge and back, to the server and
// back, and to the client. Bare hops are what these cost by themselves: the same
// processes, pipes and socket, and nobody looks at what passes.

// hopsJudge is the hidden mode in which this program is a daemon that gives every
// line back. It ends with its input.
func hopsJudge(socket string, stdin io.Reader) error {
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(io.Discard, stdin)
		_ = listener.Close()
	}()
	for {
		conn, err := listener.Accept()
		if err != nil {
			return nil // end of input
		}
		go func() {
			defer conn.Close()
			quiet := quick.Conn(conn)
			_ = echoServer(quiet, quiet)
		}()
	}
}

// hopsWrapper is the hidden mode in which this program is a wrapper around the
// server that command starts: each line goes to the judge, comes back, and goes to
// the server, whose lines go to the client.
func hopsWrapper(ctx context.Context, socket string, command []string, in io.Reader, out io.Writer) error {
	if stdin, ok := in.(*os.File); ok {
		in = polled(stdin)
	}
	if stdout, ok := out.(*os.File); ok {
		out = polled(stdout)
	}
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	server := exec.CommandContext(ctx, command[0], command[1:]...)
	server.Stderr = os.Stderr
	to, err := server.StdinPipe()
	if err != nil {
		return err
	}
	from, err := server.StdoutPipe()
	if err != nil {
		return err
	}
	if err := server.Start(); err != nil {
		return err
	}
	go func() {
		defer to.Close()
		_ = passLines(quick.Reader(conn), quick.Writer(to))
	}()
	go func() {
		_ = passLines(quick.Reader(in), quick.Writer(conn))
		_ = conn.CloseWrite() // the judge ends, and so the server's input
	}()
	if err := passLines(quick.Reader(from), quick.Writer(out)); err != nil {
		return err
	}
	return server.Wait()
}

// polled is a pipe that the runtime's poller waits for, as sb-mcp has it.
func polled(file *os.File) *os.File {
	fd := int(file.Fd())
	if err := unix.SetNonblock(fd, true); err != nil {
		return file
	}
	return os.NewFile(uintptr(fd), file.Name())
}

// passLines writes each line as it comes, until there are no more.
func passLines(from io.Reader, to io.Writer) error {
	lines := bufio.NewReaderSize(from, 64<<10)
	for {
		line, err := lines.ReadSlice('\n')
		if err != nil {
			return nil // end of input
		}
		if _, err := to.Write(line); err != nil {
			return err
		}
	}
}

// startHops starts the judge of bare hops and returns its socket, and what ends it.
func (s *settings) startHops(ctx context.Context) (socket string, stop func(), err error) {
	socket = filepath.Join(s.dir, "hops.sock")
	judge, err := start(ctx, s.self, asHopsJudge, socket)
	if err != nil {
		return "", nil, err
	}
	for {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
		if err == nil {
			conn.Close()
			break
		}
		select {
		case <-ctx.Done():
			judge.stop()
			return "", nil, ctx.Err()
		case <-time.After(2 * time.Millisecond):
		}
	}
	return socket, judge.stop, nil
}
