package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"subjectbroker/daemon/daemontest"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

// BenchmarkCall is calls of a tool of the stub, directly and wrapped, with and
// without waiting for the log: one client that makes one call after the other, and
// eight at once, each with a server of its own.
func BenchmarkCall(b *testing.B) {
	for _, clients := range []int{1, 8} {
		for _, way := range []string{"direct", "grouped", "strict"} {
			b.Run(fmt.Sprintf("%s/%d", way, clients), func(b *testing.B) { benchmarkCalls(b, way, clients) })
		}
	}
}

func benchmarkCalls(b *testing.B, way string, clients int) {
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	dir := b.TempDir()
	for _, name := range []string{"sb-mcp", "stubserver"} {
		if err := os.Symlink(self, filepath.Join(dir, name)); err != nil {
			b.Fatal(err)
		}
	}
	log := filepath.Join(dir, "log")
	if err := os.WriteFile(log, nil, 0o600); err != nil {
		b.Fatal(err)
	}
	args := []string{filepath.Join(dir, "stubserver"), log}
	if way != "direct" {
		d := daemontest.Start(b)
		d.AddSubject("worker0")
		d.Grant("worker0", "call:stub/*")
		document := fmt.Sprintf(`{"version":1,"policies":[{"subject":"worker0","server":"stub","audit":%q,"rules":{"security":{"denied_tools":["evil"]}}}]}`, way)
		if _, err := d.Operator().Apply(b.Context(), &operatorv1.ApplyRequest{Document: []byte(document)}); err != nil {
			b.Fatal(err)
		}
		args = append([]string{filepath.Join(dir, "sb-mcp"), "wrap", "--subject", "worker0", "--server", "stub", "--home", d.Home, "--"}, args...)
	}
	var asks []func() error
	for range clients {
		asks = append(asks, benchmarkClient(b, args))
	}
	b.ResetTimer()
	var all sync.WaitGroup
	for i, ask := range asks {
		all.Go(func() {
			for range (b.N + clients - 1 - i) / clients {
				if err := ask(); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
}

// benchmarkClient starts a program and returns what makes one call of it.
func benchmarkClient(b *testing.B, args []string) func() error {
	command := exec.Command(args[0], args[1:]...)
	in, err := command.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := command.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := command.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		in.Close()
		_ = command.Wait()
	})
	answers, id := bufio.NewReader(out), 0
	ask := func() error {
		id++
		if _, err := io.WriteString(in, callOf(id, "ok", `{"path":"/var/data/a"}`)+"\n"); err != nil {
			return err
		}
		_, err := answers.ReadString('\n')
		return err
	}
	if err := ask(); err != nil { // whatever only happens once
		b.Fatal(err)
	}
	return ask
}
