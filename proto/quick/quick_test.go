package quick

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"
)

// streamOf is a stream, which only Linux has.
func streamOf(t *testing.T, source Source) *Stream {
	t.Helper()
	s := New(source)
	if s == nil {
		if runtime.GOOS != "linux" {
			t.Skip("there are no streams on this system")
		}
		t.Fatal("a pipe of ours has no stream")
	}
	return s
}

func pipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.Close()
		w.Close()
	})
	return r, w
}

// What is written is read, however much it is, and then the end.
func TestPipe(t *testing.T) {
	r, w := pipe(t)
	in, out := streamOf(t, r), streamOf(t, w)
	sent := make([]byte, 3*maxAtOnce+17)
	_, _ = rand.Read(sent)
	failed := make(chan error, 1)
	go func() {
		n, err := out.Write(sent)
		if err == nil && n != len(sent) {
			err = io.ErrShortWrite
		}
		w.Close()
		failed <- err
	}()
	got, err := io.ReadAll(in)
	if err != nil || !bytes.Equal(got, sent) {
		t.Errorf("%d bytes, %v; want %d", len(got), err, len(sent))
	}
	if err := <-failed; err != nil {
		t.Error(err)
	}
}

// A line is written at once as a whole or not at all, and whoever waits writes it
// when there is room.
func TestTryWrite(t *testing.T) {
	r, w := pipe(t)
	out := streamOf(t, w)
	line := bytes.Repeat([]byte("x"), Whole)
	count := 0
	for out.TryWrite(line) {
		count++
	}
	if count == 0 {
		t.Fatal("an empty pipe has no room")
	}
	if out.TryWrite(make([]byte, Whole+1)) {
		t.Error("more than fits at once was written")
	}
	written := make(chan error, 1)
	go func() {
		_, err := out.Write(line)
		written <- err
		w.Close()
	}()
	got, err := io.ReadAll(r)
	if err != nil || len(got) != (count+1)*len(line) {
		t.Errorf("%d bytes, %v; want %d", len(got), err, (count+1)*len(line))
	}
	if err := <-written; err != nil {
		t.Error(err)
	}
}

// Nobody reads any more: writing says so, as it does of a file.
func TestBrokenPipe(t *testing.T) {
	r, w := pipe(t)
	out := streamOf(t, w)
	r.Close()
	if out.TryWrite([]byte("x")) {
		t.Error("it was written")
	}
	if _, err := out.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("got %v", err)
	}
}

// Closing ends a read that waits, and a deadline does.
func TestConnEnds(t *testing.T) {
	listener, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	for _, tc := range []struct {
		name string
		end  func(net.Conn)
		want error
	}{
		{"closed", func(c net.Conn) { c.Close() }, net.ErrClosed},
		{"deadline", func(c net.Conn) { _ = c.SetReadDeadline(time.Unix(1, 0)) }, os.ErrDeadlineExceeded},
	} {
		dialed, err := net.Dial("unix", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer dialed.Close()
		conn := Conn(dialed)
		if _, ok := conn.(*connection); !ok && runtime.GOOS == "linux" {
			t.Fatal("a connection has no stream")
		}
		read := make(chan error, 1)
		go func() {
			_, err := conn.Read(make([]byte, 1))
			read <- err
		}()
		tc.end(conn)
		if err := <-read; !errors.Is(err, tc.want) {
			t.Errorf("%s: got %v", tc.name, err)
		}
	}
}

// A descriptor that blocks is left alone: reading it would hold up everything.
func TestBlocking(t *testing.T) {
	r, _ := pipe(t)
	_ = r.Fd() // from here on it blocks
	if New(r) != nil || Reader(r) != io.Reader(r) {
		t.Error("it has a stream")
	}
}
