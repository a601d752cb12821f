package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Killed at any instant, hosting leaves the file as it was or rewritten whole; what a
// rewritten one has lost is behind the broker, with what it needs.
func TestHostingIsKilled(t *testing.T) {
	if testing.Short() {
		t.Skip("suite left out: programs: builds the three programs")
	}
	if err := realPrograms(); err != nil {
		t.Fatal(err)
	}
	m := newMover(t)
	m.daemon.AddSubject("coder")
	file := func(n int) (path, before string) {
		before = fmt.Sprintf("{\n  \"mcpServers\": {\n    \"s%d\": {\"command\": \"sh\", \"env\": {\"A_TOKEN\": \"%s-%d\"}}\n  }\n}\n", n, marker, n)
		return m.put(fmt.Sprintf("f%d/mcp.json", n), before), before
	}
	was, now := 0, 0
	look := func(n int, path, before string) {
		after, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if string(after) == before {
			was++
			return
		}
		now++
		if bytes.Contains(after, []byte(marker)) || !bytes.Contains(after, []byte(`"subject-broker"`)) {
			t.Errorf("%d: neither old nor new: %s", n, after)
		}
		name := fmt.Sprintf("s%d", n)
		if got := m.daemon.Content(name + ".A_TOKEN"); got != fmt.Sprintf("%s-%d", marker, n) {
			t.Errorf("%d: the secret is %q", n, got)
		}
		cmd, output := m.command(t.Context(), "server", "show", name)
		if err := cmd.Run(); err != nil || !strings.Contains(output.String(), "${secret:"+name+".A_TOKEN}") || !strings.Contains(output.String(), "coder") {
			t.Errorf("%d: it is not behind the broker: %v\n%s", n, err, output)
		}
	}
	args := func(n int) []string {
		return []string{"import", "mcp-config", filepath.Join(fmt.Sprintf("f%d", n), "mcp.json"), "--host", "--rewrite", "--subject", "coder"}
	}
	path, before := file(0)
	cmd, output := m.command(t.Context(), args(0)...)
	started := time.Now()
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	took := time.Since(started)
	if strings.Contains(output.String(), marker) {
		t.Errorf("it says a value:\n%s", output)
	}
	look(0, path, before)
	if now != 1 {
		t.Fatal("an import that was not killed did not rewrite")
	}
	const times = 5
	for n := 1; n <= times; n++ {
		path, before := file(n)
		ctx, cancel := context.WithTimeout(t.Context(), took*time.Duration(n)/times)
		cmd, _ := m.command(ctx, args(n)...) // killed by SIGKILL
		_ = cmd.Run()
		cancel()
		look(n, path, before)
		cmd, output := m.command(t.Context(), args(n)...)
		if err := cmd.Run(); err != nil {
			t.Fatalf("%v\n%s", err, output)
		}
		if after, err := os.ReadFile(path); err != nil || bytes.Contains(after, []byte(marker)) {
			t.Errorf("%d: not rewritten by a repetition: %v", n, err)
		}
		look(n, path, before)
	}
	t.Logf("the file was old %d times and new %d times", was, now)
	if was == 0 {
		t.Error("no import was killed before it rewrote its file")
	}
}
