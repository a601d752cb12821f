package clients

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// overHTTP is how each agent takes its file of examples/http.
var overHTTP = map[string]struct {
	file  string
	place func(t *testing.T, h *house, example string) // puts it where the agent looks
	flags func(path string) []string
}{
	"claude": {"mcp.json", func(*testing.T, *house, string) {}, func(path string) []string { return []string{"--strict-mcp-config", "--mcp-config", path} }},
	"codex": {"codex.toml", func(t *testing.T, h *house, example string) {
		kept, err := os.ReadFile(filepath.Join(h.home, ".codex/config.toml"))
		if err != nil {
			t.Fatal(err)
		}
		h.write(t, ".codex/config.toml", string(kept)+"\n"+example)
	}, nil},
	"gemini":   {"gemini.json", func(t *testing.T, h *house, example string) { h.write(t, "project/.gemini/settings.json", example) }, nil},
	"opencode": {"opencode.json", func(t *testing.T, h *house, example string) { h.write(t, "project/opencode.json", example) }, nil},
}

// offered are the broker's tools that the model was offered.
func (m *model) offered() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.tools)
}

// TestAgentsOverHTTP: the agents, with the configurations of examples/http as they
// are, reach the gateway at its usual place with the key in their environment, and
// read; with a revoked key they get nothing.
func TestAgentsOverHTTP(t *testing.T) {
	h := newHouse(t)
	h.gateway(t, "--listen", "127.0.0.1:7070") // nobody else is in this network namespace
	key, revoked := h.key(t, "worker"), h.key(t, "worker", "--name", "revoked")
	h.must(t, "sbctl", "agent-key", "revoke", "revoked", "--yes")
	for _, c := range clients() {
		t.Run(c.name, func(t *testing.T) {
			way := overHTTP[c.name]
			path, err := filepath.Abs(filepath.Join("../../examples/http", way.file))
			if err != nil {
				t.Fatal(err)
			}
			example, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			m := startModel(t)
			if c.prepare != nil {
				c.prepare(t, h, m)
			}
			way.place(t, h, string(example))
			command, ask := c.program(h), slices.Clone(c.ask)
			if way.flags != nil {
				ask = append(way.flags(path), ask...)
			}
			env := func(key string) []string { return h.env(append(c.env(m), "SB_AGENT_KEY="+key)...) }
			out, err := h.run(t, limit, env(key), command[0], append(command[1:], ask...)...)
			m.check(t)
			if err != nil || !strings.Contains(out, greeting) || t.Failed() {
				t.Errorf("asked for the greeting, it said (%v):\n%s", err, out)
			}

			m.forget()
			out, _ = h.run(t, limit, env(revoked), command[0], append(command[1:], ask...)...) // some mind, some do not
			if offered := m.offered(); len(offered) != 0 || strings.Contains(out, greeting) {
				t.Errorf("with a revoked key the model was offered %q, and it said:\n%s", offered, out)
			}
			if err := os.RemoveAll(filepath.Join(h.project, ".gemini")); err != nil {
				t.Fatal(err)
			}
			if err := os.RemoveAll(filepath.Join(h.project, "opencode.json")); err != nil {
				t.Fatal(err)
			}
		})
	}
	t.Run("cursor.json", func(t *testing.T) {
		raw, err := os.ReadFile("../../examples/http/cursor.json")
		if err != nil {
			t.Fatal(err)
		}
		var config struct {
			Servers map[string]struct {
				URL     string
				Headers map[string]string
			} `json:"mcpServers"`
		}
		if err := json.Unmarshal(raw, &config); err != nil {
			t.Fatal(err)
		}
		server := config.Servers["subject-broker"]
		bearer, _ := strings.CutPrefix(strings.ReplaceAll(server.Headers["Authorization"], "${env:SB_AGENT_KEY}", key), "Bearer ")
		s := h.script(t, "sessions", server.URL, bearer)
		s.do(t, "connect", nil)
		if got := encode(s.do(t, "read", object{"uri": "sb://resource/greeting"})); !strings.Contains(got, greeting) {
			t.Error(got)
		}
	})
}
