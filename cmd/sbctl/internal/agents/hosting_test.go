package agents_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"subjectbroker/cmd/sbctl/internal/agents"
)

func servers(t *testing.T, name, text string) *agents.Servers {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := agents.OpenFile(path, true)
	if err != nil {
		t.Fatal(err)
	}
	found, err := agents.ReadServers(file)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestReadServers(t *testing.T) {
	for name, test := range map[string]struct {
		file, text string
		want       string // NAME command|url why, one line each
	}{
		"claude": {".claude.json", `{"mcpServers": {
			"a": {"type": "stdio", "command": "x", "args": ["1", "2"], "env": {"K": "v"}},
			"b": {"type": "http", "url": "https://h", "headers": {"H": "v"}},
			"c": {"type": "sse", "url": "https://h"},
			"d": {"command": "x", "envFile": ".env"},
			"e": {"command": "x", "env": {"N": 1}},
			"f": {"url": "https://h", "oauth": {}},
			"g": {}, "h": {"command": "x", "odd": 1}},
			"projects": {"/p": {"mcpServers": {"i": {"command": "./x"}}}}}`,
			"a x 1 2 K=v\nb https://h H=v\nc https://h !it speaks SSE, and the broker Streamable HTTP\nd x !envFile is something that this agent does for it\n" +
				"e x !N is no text\nf https://h !oauth is something that this agent does for it\ng !it has neither a command nor an address\nh x -odd\ni ./x @/p"},
		"shim":     {"mcp.json", `{"mcpServers": {"sb": {"command": "/o/sb-mcp", "args": ["--subject", "s"]}, "w": {"command": "/o/sb-mcp", "args": ["wrap", "--subject", "s", "--", "x"]}}}`, "sb /o/sb-mcp --subject s *s\nw /o/sb-mcp wrap --subject s -- x !sb-mcp starts it already"},
		"opencode": {"opencode.jsonc", `{"mcp": {"a": {"type": "local", "command": ["x", "1"], "environment": {"K": "v"}, "enabled": false}, /* c */ "b": {"type": "remote", "url": "https://h"},}}`, "a x 1 K=v off\nb https://h"},
		"vscode":   {"mcp.json", `{"servers": {"a": {"command": "x"}}, "inputs": []}`, "a x"},
		"codex":    {"config.toml", "[mcp_servers.a]\ncommand = 'x'\nargs = ['1']\n[mcp_servers.a.env]\nK = 'v'\n[mcp_servers.b]\nurl = 'https://h'\nbearer_token_env_var = 'T'\n", "a x 1 K=v\nb https://h !bearer_token_env_var is something that this agent does for it"},
	} {
		var got []string
		for _, s := range servers(t, test.file, test.text).List {
			words := append([]string{s.Name}, s.Command...)
			if s.URL != "" {
				words = append(words, s.URL)
			}
			for _, table := range []map[string]string{s.Env, s.Headers} {
				for key, value := range table {
					words = append(words, key+"="+value)
				}
			}
			if s.Project != "" {
				words = append(words, "@"+s.Project)
			}
			if s.Off {
				words = append(words, "off")
			}
			if s.Shim() {
				words = append(words, "*"+s.Subject)
			}
			for _, dropped := range s.Dropped {
				words = append(words, "-"+dropped)
			}
			if s.Why != "" {
				words = append(words, "!"+s.Why)
			}
			got = append(got, strings.Join(words, " "))
		}
		if s := strings.Join(got, "\n"); s != test.want {
			t.Errorf("%s:\n%s\nwant\n%s", name, s, test.want)
		}
	}
}

// What replaces servers leaves every other byte alone, and puts the shim where none
// is.
func TestReplaceServers(t *testing.T) {
	cfg := agents.Config{Subject: "s", Shim: "/o/sb-mcp"}
	for name, test := range map[string]struct {
		file, text string
		gone       []int
		want       string // "": refused
	}{
		"one of two": {"x.json", "{\n  \"mcpServers\": {\n    \"a\": {\"command\": \"x\"},\n    \"b\": {\"command\": \"y\"} // b\n  }\n}\n", []int{0},
			"{\n  \"mcpServers\": {\n    \"b\": {\"command\": \"y\"}, // b\n    \"subject-broker\": {\n      \"command\": \"/o/sb-mcp\",\n      \"args\": [\"--subject\", \"s\"]\n    }\n  }\n}\n"},
		"the shim is there": {"x.json", `{"mcpServers": {"sb": {"command": "/z/sb-mcp", "args": ["--subject=s"]}, "a": {"command": "x"}}}`, []int{1},
			`{"mcpServers": {"sb": {"command": "/z/sb-mcp", "args": ["--subject=s"]}}}`},
		"only a wrapped one is there": {"x.json", `{"mcpServers": {"w": {"command": "sb-mcp", "args": ["wrap", "--subject=s", "--", "x"]}, "a": {"command": "x"}}}`, []int{1},
			`{"mcpServers": {"w": {"command": "sb-mcp", "args": ["wrap", "--subject=s", "--", "x"]}, "subject-broker":{"command":"/o/sb-mcp","args":["--subject","s"]}}}`},
		"another subject": {"x.json", `{"mcpServers": {"sb": {"command": "/z/sb-mcp", "args": ["--subject=t"]}, "a": {"command": "x"}}}`, []int{1}, ""},
		"of a project, the shim above": {".claude.json", `{"mcpServers": {"sb": {"command": "sb-mcp", "args": ["--subject=s"]}}, "projects": {"/p": {"mcpServers": {"a": {"command": "x"}, "b": {"command": "y"}}}}}`, []int{1},
			`{"mcpServers": {"sb": {"command": "sb-mcp", "args": ["--subject=s"]}}, "projects": {"/p": {"mcpServers": {"b": {"command": "y"}}}}}`},
		"a name that is taken": {"x.json", `{"mcpServers": {"subject-broker": {"command": "x"}, "subject-broker-s": {"command": "x"}, "a": {"command": "x"}}}`, []int{2}, ""},
		"a table":              {"config.toml", "a = 1 # one\n\n[mcp_servers.a]\ncommand = 'x'\n", []int{0}, "a = 1 # one\n\n[mcp_servers.subject-broker]\ncommand = \"/o/sb-mcp\"\nargs = [\"--subject\", \"s\"]\n"},
		"an inline table":      {"config.toml", "[mcp_servers]\na = {command = 'x'}\n", []int{0}, ""},
	} {
		found := servers(t, test.file, test.text)
		after, err := found.Replace(test.gone, cfg)
		switch {
		case test.want == "" && err == nil:
			t.Errorf("%s: not refused:\n%s", name, after)
		case test.want != "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case string(after) != test.want:
			t.Errorf("%s:\n%s\nwant\n%s", name, after, test.want)
		}
	}
}

func TestReferences(t *testing.T) {
	for text, want := range map[string]struct {
		from     bool
		resource string
	}{
		"plain": {false, ""}, "${X}": {true, ""}, "$X": {true, ""}, "a${X}b": {true, ""}, "{env:X}": {true, ""},
		"sb://a.b": {false, "a.b"}, "Bearer sb://a": {false, "a"}, "sb://a b": {false, ""}, "Bearer ${X}": {true, ""},
	} {
		_, resource, ok := agents.Reference(text)
		if agents.From(text) != want.from || ok != (want.resource != "") || ok && resource != want.resource {
			t.Errorf("%q: from %v, reference %q %v", text, agents.From(text), resource, ok)
		}
	}
}
