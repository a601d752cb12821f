package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"subjectbroker/worker/workertest"
)

// The client's pipe does not block while we write it, and is as before afterwards;
// one that standard error goes to as well is left alone, because whoever writes
// there would lose what does not fit.
func TestOutputIsWrittenWithoutBlocking(t *testing.T) {
	for _, tc := range []struct {
		name   string
		shared bool
	}{{"a pipe of its own", false}, {"shared with standard error", true}} {
		t.Run(tc.name, func(t *testing.T) {
			b := workertest.Start(t)
			b.Allow("worker")
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			defer w.Close()
			_ = w.Fd() // from here on it blocks, as pipes do that clients hand out
			raw, err := w.SyscallConn()
			if err != nil {
				t.Fatal(err)
			}
			blocks := func() bool {
				t.Helper()
				flags, err := 0, error(nil)
				if failed := raw.Control(func(fd uintptr) { flags, err = unix.FcntlInt(fd, unix.F_GETFL, 0) }); failed != nil || err != nil {
					t.Fatal(failed, err)
				}
				return flags&unix.O_NONBLOCK == 0
			}
			if !blocks() {
				t.Fatal("it does not block before")
			}
			command := exec.CommandContext(t.Context(), "sb-mcp", "--subject", "worker", "--home", b.Home, "--socket", b.SocketDir)
			command.Stdout = w
			if tc.shared {
				command.Stderr = w
			}
			in, err := command.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := command.Start(); err != nil {
				t.Fatal(err)
			}
			fmt.Fprintln(in, `{"jsonrpc":"2.0","id":1,"method":"ping"}`)
			answer := make([]byte, 4096)
			n, err := r.Read(answer)
			if err != nil || !strings.Contains(string(answer[:n]), `"id":1`) {
				t.Fatalf("answer %q, %v", answer[:n], err)
			}
			if blocks() != tc.shared {
				t.Errorf("while it runs it blocks: %v", !tc.shared)
			}
			in.Close()
			if err := command.Wait(); err != nil {
				t.Error(err)
			}
			if !blocks() {
				t.Error("it does not block afterwards")
			}
			w.Close()
			_, _ = io.Copy(io.Discard, r)
		})
	}
}
