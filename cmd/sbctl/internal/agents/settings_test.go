package agents_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"subjectbroker/cmd/sbctl/internal/agents"
)

// Tokens of shapes that are known; none was ever issued.
const (
	ghToken  = "ghp_0123456789abcdefghijABCDEFGHIJ012345"
	sbxToken = "xoxb-1234567890-abcdefghij"
)

// settings reads text as the file called name, and gives what it holds as
// "line server table key: token, why" with a "!" before tokens.
func settings(t *testing.T, name, text string) (*agents.Settings, []string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o640); err != nil {
		t.Fatal(err)
	}
	file, err := agents.OpenFile(path, true)
	if err != nil {
		t.Fatal(err)
	}
	s, err := agents.ReadSettings(file)
	if err != nil {
		t.Fatal(err)
	}
	lines := []string{}
	for _, e := range s.Settings {
		mark := ""
		if e.Token {
			mark = "!"
		}
		lines = append(lines, fmt.Sprintf("%s%d %s%s: %s", mark, e.Line, e.Project, e.Place(), e.Why))
	}
	for _, e := range s.Strays {
		lines = append(lines, fmt.Sprintf("?%d %s%s %s: %s", e.Line, e.Project, e.Server, e.Place, e.Why))
	}
	return s, lines
}

// configurations are what agents have, with what is found in them and what is
// left of them. T1 and T2 stand for tokens.
var configurations = []struct {
	name, file, before string
	found              []string
	after              string
}{
	{
		"Claude Code, with a server of one project", ".claude.json",
		`{
  "numStartups": 3,
  "oauthAccount": {"accessToken": "T1"},
  "mcpServers": {
    "github": {
      "type": "stdio", "command": "npx", "args": ["-y", "server-github"],
      "env": {"GITHUB_TOKEN": "T1", "LOG_LEVEL": "debug", "OTHER_TOKEN": "${OTHER}"}
    },
    "web": {"type": "http", "url": "https://x/mcp", "headers": {"Authorization": "Bearer T2", "Accept": "text/plain"}}
  },
  "projects": {"/src/a": {"mcpServers": {"db": {"command": "db", "env": {"DATABASE_URL": "postgres://u:hunter22@h/db"}}}}}
}
`,
		[]string{
			"!7 github env GITHUB_TOKEN: looks like a GitHub token", "7 github env LOG_LEVEL: not taken for a token",
			"7 github env OTHER_TOKEN: names where the value comes from",
			"!9 web headers Authorization: looks like a Slack token", "9 web headers Accept: not taken for a token",
			"!11 /src/adb env DATABASE_URL: an address with a password",
		},
		`{
  "numStartups": 3,
  "oauthAccount": {"accessToken": "T1"},
  "mcpServers": {
    "github": {
      "type": "stdio", "command": "npx", "args": ["-y", "server-github"],
      "env": {"GITHUB_TOKEN": "sb://r0", "LOG_LEVEL": "debug", "OTHER_TOKEN": "${OTHER}"}
    },
    "web": {"type": "http", "url": "https://x/mcp", "headers": {"Authorization": "Bearer sb://r3", "Accept": "text/plain"}}
  },
  "projects": {"/src/a": {"mcpServers": {"db": {"command": "db", "env": {"DATABASE_URL": "sb://r5"}}}}}
}
`,
	},
	{
		"Gemini CLI, with comments", "settings.json",
		"{\r\n\t// servers\r\n\t\"mcpServers\": {\r\n\t\t\"a\": { \"env\": { /* mine */ \"API_KEY\": \"s3cret-\\u00e9\\/x\" } } // end\r\n\t}\r\n}",
		[]string{"!4 a env API_KEY: its name"},
		"{\r\n\t// servers\r\n\t\"mcpServers\": {\r\n\t\t\"a\": { \"env\": { /* mine */ \"API_KEY\": \"sb://r0\" } } // end\r\n\t}\r\n}",
	},
	{
		"opencode, with trailing commas", "opencode.jsonc",
		"{\n  \"mcp\": {\n    \"a\": {\"type\": \"local\", \"command\": [\"x\", \"--token=T1\"], \"environment\": {\"PASSWORD\": \"hunter22\",},},\n    \"b\": {\"type\": \"remote\", \"url\": \"https://x/?api_key=0123456789abc\", \"headers\": {\"X-Api-Key\": \"k-1\"}},\n  },\n}\n",
		[]string{
			"!3 a environment PASSWORD: its name", "!4 b headers X-Api-Key: its name",
			"?3 a command: looks like a GitHub token", "?4 b url: has a token in it",
		},
		"{\n  \"mcp\": {\n    \"a\": {\"type\": \"local\", \"command\": [\"x\", \"--token=T1\"], \"environment\": {\"PASSWORD\": \"sb://r0\",},},\n    \"b\": {\"type\": \"remote\", \"url\": \"https://x/?api_key=0123456789abc\", \"headers\": {\"X-Api-Key\": \"sb://r1\"}},\n  },\n}\n",
	},
	{
		"opencode's newer form", "opencode.json",
		`{"mcp": {"servers": {"a": {"environment": {"TOKEN": "T1"}}}}}`,
		[]string{"!1 a environment TOKEN: looks like a GitHub token"},
		`{"mcp": {"servers": {"a": {"environment": {"TOKEN": "sb://r0"}}}}}`,
	},
	{
		"opencode, with a server called servers", "opencode.json",
		`{"mcp": {"servers": {"type": "local", "command": ["x"], "environment": {"TOKEN": "T1"}}}}`,
		[]string{"!1 servers environment TOKEN: looks like a GitHub token"},
		`{"mcp": {"servers": {"type": "local", "command": ["x"], "environment": {"TOKEN": "sb://r0"}}}}`,
	},
	{
		"Codex", "config.toml",
		"model = \"x\" # best\n[mcp_servers.gh]\ncommand = \"gh\"\nbearer_token = \"hunter22\"\nenv = { TOKEN = 'T1', HOST = \"h\" }\n\n[mcp_servers.web.http_headers]\n\"X-Key\" = \"\"\"hunter\n22\"\"\" # mine\n[mcp_servers.web.env_http_headers]\nAuthorization = \"MY_TOKEN\"\n[other]\ntoken = \"T1\"\n",
		[]string{
			"!5 gh env TOKEN: looks like a GitHub token", "5 gh env HOST: not taken for a token", "!8 web http_headers X-Key: its name",
			"?4 gh bearer_token: its name",
		},
		"model = \"x\" # best\n[mcp_servers.gh]\ncommand = \"gh\"\nbearer_token = \"hunter22\"\nenv = { TOKEN = \"sb://r0\", HOST = \"h\" }\n\n[mcp_servers.web.http_headers]\n\"X-Key\" = \"sb://r2\" # mine\n[mcp_servers.web.env_http_headers]\nAuthorization = \"MY_TOKEN\"\n[other]\ntoken = \"T1\"\n",
	},
	{"nothing", ".mcp.json", `{"mcpServers": {}}`, []string{}, `{"mcpServers": {}}`},
}

func tokens(text string) string {
	return strings.NewReplacer("T1", ghToken, "T2", sbxToken).Replace(text)
}

// A rewritten file differs in the values alone, and rewriting it again finds
// nothing to do.
func TestSettingsAreFoundAndRewritten(t *testing.T) {
	for _, test := range configurations {
		t.Run(test.name, func(t *testing.T) {
			s, found := settings(t, test.file, tokens(test.before))
			if diff := cmp.Diff(test.found, found); diff != "" {
				t.Error(diff)
			}
			names := map[int]string{}
			for i, e := range s.Settings {
				if e.Token {
					names[i] = fmt.Sprintf("r%d", i)
				}
			}
			after, err := s.Rewrite(names)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tokens(test.after), string(after)); diff != "" {
				t.Error(diff)
			}
			again, _ := settings(t, test.file, string(after))
			for _, e := range again.Settings {
				if e.Token {
					t.Errorf("%s is still a token", e.Place())
				}
			}
		})
	}
}

func TestValuesAreTheSecretsAlone(t *testing.T) {
	s, _ := settings(t, "x.json", tokens(configurations[0].before))
	got := []string{}
	for _, e := range s.Settings {
		if text := fmt.Sprintf("%v", e); strings.Contains(text, "ghp_") || strings.Contains(text, "hunter") {
			t.Errorf("printing a setting shows its value: %s", text)
		}
		if e.Token {
			got = append(got, string([]byte(e.Value)))
		}
	}
	if diff := cmp.Diff([]string{ghToken, sbxToken, "postgres://u:hunter22@h/db"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestJudging(t *testing.T) {
	for _, test := range []struct {
		key, value string
		want       bool
	}{
		{"GITHUB_TOKEN", "abc", true},
		{"githubToken", "abc", true},
		{"X-Api-Key", "abc", true},
		{"OPENAI_KEY", "abc", true},
		{"DB_PASSWORD", "x y z", true},
		{"DB_PASSWORD_2", "hunter", true},
		{"AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", true},
		{"SLACKTOKEN", "abc", true},
		{"Authorization", "Basic dTpw", true},
		{"X-Anything", "Bearer abcdef", true},
		{"ANYTHING", ghToken, true},
		{"ANYTHING", "--header " + ghToken, true},
		{"ANYTHING", "0123456789abcdef0123456789abcdef", true},
		{"ANYTHING", "redis://:hunter22@h:1/0", true},
		{"PRIVATE_KEY", "-----BEGIN PRIVATE KEY-----\nx", true},

		{"GITHUB_TOKEN", "", false},
		{"GITHUB_TOKEN", "sb://github.token", false},
		{"Authorization", "Bearer sb://github.token", false},
		{"GITHUB_TOKEN", "${GITHUB_TOKEN}", false},
		{"GITHUB_TOKEN", "$GITHUB_TOKEN", false},
		{"Authorization", "Bearer ${TOKEN}", false},
		{"GITHUB_TOKEN", "{env:GITHUB_TOKEN}", false},
		{"GITHUB_TOKEN", "<your token>", false},
		{"GITHUB_TOKEN", "YOUR_TOKEN_HERE", false},
		{"GITHUB_TOKEN", "op://vault/github/token", false},
		{"MAX_TOKENS", "4096", false},
		{"TOKEN_LIMIT", "abc", false},
		{"PUBLIC_KEY", "abc", false},
		{"KEYBOARD", "abc", false},
		{"AUTH", "true", false},
		{"SSH_KEY", "/home/u/.ssh/id_ed25519", false},
		{"TLS_KEY", "/certs/a/tls.key", false},
		{"TOKEN_FILE", "/run/secrets/x", false},
		{"NOTION_DATABASE_ID", "0123456789abcdef0123456789abcdef", false},
		{"LOG_LEVEL", "debug", false},
		{"ENDPOINT", "https://example.com/mcp", false},
		{"DATABASE_URL", "postgres://u@h/db", false},
		{"DATABASE_URL", "postgres://u:${PASSWORD}@h/db", false},
	} {
		s, _ := settings(t, "x.json", fmt.Sprintf(`{"mcpServers": {"a": {"env": {%q: %q}}}}`, test.key, test.value))
		if got := s.Settings[0]; got.Token != test.want {
			t.Errorf("%s=%s: token %v (%s)", test.key, test.value, got.Token, got.Why)
		}
	}
}

func TestSettingsRefuse(t *testing.T) {
	for _, test := range []struct{ file, text, want string }{
		{"x.json", "{\n\"mcpServers\": {\"hunter22\"}}", "x.json:2: "},
		{"x.json", "", "x.json:1: the file is empty"},
		{"x.json", "[]", "x.json:1: expected an object"},
		{"x.json", "{\"mcpServers\": {\"a\": {\"env\": {\n\"K_TOKEN\": \"hunter22\", \"K_TOKEN\": \"x\"}}}}", `x.json:2: "K_TOKEN" is given twice`},
		{"x.toml", "a = 1\n[mcp_servers.a]\nenv = hunter22\n", "x.toml:3: "},
		{"x.toml", "[mcp_servers.a.env]\nT = \"hunter22\"\nT = \"x\"\n", "x.toml:3: "},
	} {
		path := filepath.Join(t.TempDir(), test.file)
		if err := os.WriteFile(path, []byte(test.text), 0o600); err != nil {
			t.Fatal(err)
		}
		file, err := agents.OpenFile(path, true)
		if err != nil {
			t.Fatal(err)
		}
		_, err = agents.ReadSettings(file)
		if !errors.Is(err, agents.ErrInvalid) || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "hunter22") {
			t.Errorf("%q: %v, want %s", test.text, err, test.want)
		}
	}
}

func TestOpenFile(t *testing.T) {
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	for _, err := range []error{
		os.WriteFile(plain, []byte("x"), 0o640), os.Symlink("plain", filepath.Join(dir, "link")), os.Symlink("nowhere", filepath.Join(dir, "dangling")),
		os.WriteFile(filepath.Join(dir, "one"), []byte("x"), 0o600), os.Link(filepath.Join(dir, "one"), filepath.Join(dir, "two")),
		syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		name        string
		replaceable bool
		want        error
	}{
		{"plain", true, nil},
		{"link", true, nil},
		{"one", false, nil},
		{"one", true, agents.ErrUnsafe},
		{"fifo", false, agents.ErrUnsafe},
		{".", false, agents.ErrUnsafe},
		{"dangling", false, agents.ErrUnsafe},
		{"missing", false, fs.ErrNotExist},
	} {
		file, err := agents.OpenFile(filepath.Join(dir, test.name), test.replaceable)
		if !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", test.name, err, test.want)
		}
		if err == nil && test.name == "link" && file.Path() != plain {
			t.Errorf("the link leads to %s", file.Path())
		}
	}
}

func TestReplaceKeepsLinkAndMode(t *testing.T) {
	dir := t.TempDir()
	real, link := filepath.Join(dir, "real"), filepath.Join(dir, "link")
	for _, err := range []error{os.WriteFile(real, []byte("old"), 0o600), os.Chmod(real, 0o641), os.Symlink("real", link)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(real, 0, 12); err != nil {
			t.Fatal(err)
		}
	}
	before, err := os.Stat(real)
	if err != nil {
		t.Fatal(err)
	}
	file, err := agents.OpenFile(link, true)
	if err != nil {
		t.Fatal(err)
	}
	if err := file.Replace([]byte("new")); err != nil {
		t.Fatal(err)
	}
	after, err := os.Lstat(real)
	if err != nil {
		t.Fatal(err)
	}
	was, now := before.Sys().(*syscall.Stat_t), after.Sys().(*syscall.Stat_t)
	if after.Mode() != before.Mode() || now.Uid != was.Uid || now.Gid != was.Gid {
		t.Errorf("%v %d:%d became %v %d:%d", before.Mode(), was.Uid, was.Gid, after.Mode(), now.Uid, now.Gid)
	}
	if text, _ := os.ReadFile(link); string(text) != "new" {
		t.Errorf("holds %q", text)
	}
	if names, _ := filepath.Glob(filepath.Join(dir, "*")); len(names) != 2 {
		t.Errorf("left behind: %v", names)
	}
	// Written by somebody else since it was read: nothing is lost.
	if err := os.WriteFile(real, []byte("theirs"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := file.Replace([]byte("ours")); !errors.Is(err, agents.ErrConcurred) {
		t.Errorf("replacing a file that changed: %v", err)
	}
	if text, _ := os.ReadFile(real); string(text) != "theirs" {
		t.Errorf("holds %q", text)
	}
}

// Whatever can be read can be rewritten, and then holds no token where it held
// one; what cannot be read is refused without being quoted.
func FuzzSettings(f *testing.F) {
	for _, c := range configurations {
		f.Add(filepath.Ext(c.file) == ".toml", []byte(tokens(c.before)))
	}
	f.Fuzz(func(t *testing.T, toml bool, text []byte) {
		name := "x.json"
		if toml {
			name = "x.toml"
		}
		s, err := agents.ReadSettings(agents.FileOf("/"+name, text))
		if err != nil {
			if !errors.Is(err, agents.ErrInvalid) {
				t.Fatalf("an error of another kind: %v", err)
			}
			return
		}
		names := map[int]string{}
		for i, e := range s.Settings {
			if e.Token {
				names[i] = "r"
			}
		}
		if _, err := s.Rewrite(names); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
	})
}

func TestSettingsOfTooMuch(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.toml")
	line := "[mcp_servers.a.env]\nA_TOKEN = \"" + ghToken + "\"\n"
	for _, test := range []struct {
		size int
		want error
	}{{1 << 20, nil}, {1<<20 + 1, agents.ErrInvalid}} {
		text := line + strings.Repeat("#", test.size-len(line))
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		file, err := agents.OpenFile(path, false)
		if err != nil {
			t.Fatal(err)
		}
		s, err := agents.ReadSettings(file)
		if !errors.Is(err, test.want) {
			t.Errorf("%d bytes: %v, want %v", test.size, err, test.want)
		}
		if err == nil && len(s.Settings) != 1 {
			t.Errorf("%d bytes: %d settings", test.size, len(s.Settings))
		}
	}
}
