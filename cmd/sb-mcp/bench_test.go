package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"subjectbroker/daemon/daemontest"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

// BenchmarkCall is one call of a tool of the stub after the other: directly, and
// wrapped, with and without waiting for the log.
func BenchmarkCall(b *testing.B) {
	for _, way := range []string{"direct", "grouped", "strict"} {
		b.Run(way, func(b *testing.B) {
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
			server := []string{filepath.Join(dir, "stubserver"), filepath.Join(dir, "log")}
			if err := os.WriteFile(server[1], nil, 0o600); err != nil {
				b.Fatal(err)
			}
			command := exec.Command(server[0], server[1:]...)
			if way != "direct" {
				d := daemontest.Start(b)
				d.AddSubject("worker0")
				d.Grant("worker0", "call:stub/*")
				document := fmt.Sprintf(`{"version":1,"policies":[{"subject":"worker0","server":"stub","audit":%q,"rules":{"security":{"denied_tools":["evil"]}}}]}`, way)
				if _, err := d.Operator().Apply(b.Context(), &operatorv1.ApplyRequest{Document: []byte(document)}); err != nil {
					b.Fatal(err)
				}
				command = exec.Command(filepath.Join(dir, "sb-mcp"), append([]string{"wrap", "--subject", "worker0", "--server", "stub", "--home", d.Home, "--"}, server...)...)
			}
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
			defer func() {
				in.Close()
				_ = command.Wait()
			}()
			answers := bufio.NewReader(out)
			ask := func(id int) {
				if _, err := io.WriteString(in, callOf(id, "ok", `{"path":"/var/data/a"}`)+"\n"); err != nil {
					b.Fatal(err)
				}
				if _, err := answers.ReadString('\n'); err != nil {
					b.Fatal(err)
				}
			}
			ask(0)
			for id := 1; b.Loop(); id++ {
				ask(id)
			}
		})
	}
}
