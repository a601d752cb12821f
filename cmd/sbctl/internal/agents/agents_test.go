package agents_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"subjectbroker/cmd/sbctl/internal/agents"
)

// desk is an operator's home and project in a temporary folder.
type desk struct {
	t    *testing.T
	cfg  agents.Config
	home string
}

func newDesk(t *testing.T, agent agents.Agent) *desk {
	t.Helper()
	home := t.TempDir()
	shim := filepath.Join(home, "bin", "sb-mcp")
	d := &desk{t: t, home: home, cfg: agents.Config{Agent: agent, Subject: "worker", Shim: shim, UserHome: home, ProjectDir: filepath.Join(home, "project")}}
	d.put("bin/sb-mcp", "", 0o700)
	d.put("project/README", "", 0o600)
	return d
}

func (d *desk) put(name, text string, mode fs.FileMode) string {
	d.t.Helper()
	path := filepath.Join(d.home, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		d.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		d.t.Fatal(err)
	}
	return path
}

func (d *desk) text(name string) string {
	d.t.Helper()
	text, err := os.ReadFile(filepath.Join(d.home, name))
	if err != nil {
		d.t.Fatal(err)
	}
	return string(text)
}

func (d *desk) connect() agents.Result {
	d.t.Helper()
	res, err := agents.Connect(d.t.Context(), d.cfg)
	if err != nil {
		d.t.Fatal(err)
	}
	return res
}

func (d *desk) disconnect() agents.Result {
	d.t.Helper()
	res, err := agents.Disconnect(d.t.Context(), d.cfg)
	if err != nil {
		d.t.Fatal(err)
	}
	return res
}

// SHIM stands for the shim's path in what is wanted.
func (d *desk) want(text string) string { return strings.ReplaceAll(text, "SHIM", d.cfg.Shim) }

func TestFreshFiles(t *testing.T) {
	for _, test := range []struct {
		agent agents.Agent
		scope agents.Scope
		file  string
		want  string
	}{
		{agents.Claude, agents.User, ".claude.json", "{\n  \"mcpServers\": {\n    \"subject-broker\": {\n      \"type\": \"stdio\",\n      \"command\": \"SHIM\",\n      \"args\": [\"--subject\", \"worker\"]\n    }\n  }\n}\n"},
		{agents.Claude, agents.Project, "project/.mcp.json", "{\n  \"mcpServers\": {\n    \"subject-broker\": {\n      \"type\": \"stdio\",\n      \"command\": \"SHIM\",\n      \"args\": [\"--subject\", \"worker\"]\n    }\n  }\n}\n"},
		{agents.Codex, agents.User, ".codex/config.toml", "[mcp_servers.subject-broker]\ncommand = \"SHIM\"\nargs = [\"--subject\", \"worker\"]\n"},
		{agents.Codex, agents.Project, "project/.codex/config.toml", "[mcp_servers.subject-broker]\ncommand = \"SHIM\"\nargs = [\"--subject\", \"worker\"]\n"},
		{agents.Gemini, agents.User, ".gemini/settings.json", "{\n  \"mcpServers\": {\n    \"subject-broker\": {\n      \"command\": \"SHIM\",\n      \"args\": [\"--subject\", \"worker\"]\n    }\n  }\n}\n"},
		{agents.Gemini, agents.Project, "project/.gemini/settings.json", "{\n  \"mcpServers\": {\n    \"subject-broker\": {\n      \"command\": \"SHIM\",\n      \"args\": [\"--subject\", \"worker\"]\n    }\n  }\n}\n"},
		{agents.OpenCode, agents.User, ".config/opencode/opencode.json", "{\n  \"$schema\": \"https://opencode.ai/config.json\",\n  \"mcp\": {\n    \"subject-broker\": {\n      \"type\": \"local\",\n      \"command\": [\"SHIM\", \"--subject\", \"worker\"],\n      \"enabled\": true\n    }\n  }\n}\n"},
		{agents.OpenCode, agents.Project, "project/opencode.json", "{\n  \"$schema\": \"https://opencode.ai/config.json\",\n  \"mcp\": {\n    \"subject-broker\": {\n      \"type\": \"local\",\n      \"command\": [\"SHIM\", \"--subject\", \"worker\"],\n      \"enabled\": true\n    }\n  }\n}\n"},
	} {
		t.Run(string(test.agent)+" "+string(test.scope), func(t *testing.T) {
			d := newDesk(t, test.agent)
			d.cfg.Scope = test.scope
			res := d.connect()
			if diff := cmp.Diff(d.want(test.want), d.text(test.file)); diff != "" {
				t.Error(diff)
			}
			if res.File != filepath.Join(d.home, test.file) || !res.Changed || res.Snippet != d.want(test.want) {
				t.Errorf("result: %+v", res)
			}
			info, err := os.Stat(res.File)
			if err != nil {
				t.Fatal(err)
			}
			want := fs.FileMode(0o600)
			if test.scope == agents.Project {
				want = 0o644
			}
			if info.Mode().Perm() != want {
				t.Errorf("mode %v, want %v", info.Mode(), want)
			}
			if again := d.connect(); again.Changed || again.Diff != "" {
				t.Errorf("a second time changed the file:\n%s", again.Diff)
			}
			d.disconnect()
			if _, err := os.Stat(res.File); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the file we made is still there: %v", err)
			}
		})
	}
}

// existing are configurations as people have them, per agent.
var existing = map[agents.Agent]struct {
	file  string
	texts []string
}{
	agents.Claude: {".claude.json", []string{
		"{}", "{}\n", "{\"numStartups\":3,\"mcpServers\":{}}",
		"{\n  \"numStartups\": 3,\n  \"mcpServers\": {},\n  \"projects\": {\n    \"/x\": {\"mcpServers\": {\"subject-broker\": {\"command\": \"other\"}}}\n  }\n}\n",
		"{\n\t\"z\": 1e2,\n\t\"a\": \"\\u00e9\\/\",\n\t\"mcpServers\": {\n\t\t\"github\": {\"command\": \"gh\", \"env\": {\"TOKEN\": \"ghp_secret\"}}\n\t}\n}",
		"\ufeff{\r\n    \"mcpServers\": {\r\n        \"a\": {}\r\n    }\r\n}\r\n",
	}},
	agents.Gemini: {".gemini/settings.json", []string{
		"{\n  // theme\n  \"theme\": \"x\" // dark\n}\n", "{\n  \"mcpServers\": {\n    \"a\": {} /* a */\n  }\n}\n",
	}},
	agents.OpenCode: {".config/opencode/opencode.json", []string{
		"{\n  \"$schema\": \"x\",\n  \"mcp\": {\n    \"a\": {\"type\": \"local\", \"command\": [\"x\"],}, // a\n  },\n}\n",
		"{ \"mcp\": { \"servers\": { \"a\": {\"type\": \"local\", \"command\": [\"x\"]} } } }\n",
		"{\n  \"mcp\": {\n    \"servers\": {\"type\": \"local\", \"command\": [\"x\"]}\n  }\n}\n",
	}},
	agents.Codex: {".codex/config.toml", []string{
		"", "model = \"o3\"", "model = \"o3\"\n\n[mcp_servers.gh]\ncommand = \"gh\"\n[mcp_servers.gh.env]\nTOKEN = \"ghp_secret\"\n", "# only a note\r\n",
		"[mcp_servers]\ngh = { command = \"gh\" }\n", "mcp_servers.gh.command = \"gh\"\n",
	}},
}

func TestConnectAndDisconnectRestoreEveryByte(t *testing.T) {
	for agent, files := range existing {
		for _, text := range files.texts {
			d := newDesk(t, agent)
			path := d.put(files.file, text, 0o640)
			if err := os.Chmod(path, 0o640); err != nil {
				t.Fatal(err)
			}
			res := d.connect()
			if strings.Contains(res.Diff, "ghp_secret") {
				t.Errorf("%s: the diff shows another server's token:\n%s", agent, res.Diff)
			}
			if !strings.Contains(res.Diff, d.cfg.Shim) {
				t.Errorf("%s: the diff does not show the entry:\n%s", agent, res.Diff)
			}
			if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o640 {
				t.Errorf("%s: mode %v, %v", agent, info.Mode(), err)
			}
			if again := d.connect(); again.Changed {
				t.Errorf("%s: a second time changed the file:\n%s", agent, again.Diff)
			}
			list := d.list()
			if len(list) != 1 || list[0].Subject != "worker" || !list[0].Connected {
				t.Errorf("%s: listed as %+v", agent, list)
			}
			connected := d.text(files.file)
			d.disconnect()
			if got := d.text(files.file); got != text {
				t.Errorf("%s: %q became %q by way of %q", agent, text, got, connected)
			}
			if left, err := filepath.Glob(filepath.Join(filepath.Dir(path), ".*.*[0-9]")); err != nil || len(left) > 0 {
				t.Errorf("%s: left behind %v, %v", agent, left, err)
			}
		}
	}
}

// list is what List says about the desk's own agent.
func (d *desk) list() []agents.Listing {
	d.t.Helper()
	all, err := agents.List(d.t.Context(), d.cfg)
	if err != nil {
		d.t.Fatal(err)
	}
	var own []agents.Listing
	for _, l := range all {
		if l.Agent == d.cfg.Agent {
			own = append(own, l)
		}
	}
	return own
}

func TestReconnectKeepsTheOperatorsOwnSettings(t *testing.T) {
	d := newDesk(t, agents.Claude)
	d.put(".claude.json", "{\"mcpServers\": {\n  \"subject-broker\": {\n    \"command\": \"/old/sb-mcp\",\n    \"args\": [\"--subject=worker\"],\n    \"timeout\": 9\n  }\n}}\n", 0o600)
	d.connect()
	want := d.want("{\"mcpServers\": {\n  \"subject-broker\": {\n    \"command\": \"SHIM\",\n    \"args\": [\"--subject\", \"worker\"],\n    \"timeout\": 9\n  }\n}}\n")
	if diff := cmp.Diff(want, d.text(".claude.json")); diff != "" {
		t.Error(diff)
	}

	d = newDesk(t, agents.Codex)
	d.put(".codex/config.toml", "[mcp_servers.subject-broker]\ncommand = \"/old/sb-mcp\"\nargs = [\"--subject\", \"worker\"]\nenabled = false # for now\n", 0o600)
	res := d.connect()
	want = d.want("[mcp_servers.subject-broker]\ncommand = \"SHIM\"\nargs = [\"--subject\", \"worker\"]\nenabled = false # for now\n")
	if diff := cmp.Diff(want, d.text(".codex/config.toml")); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{`Codex has the entry "subject-broker" switched off`}, res.Warnings); diff != "" {
		t.Error(diff)
	}
}

func TestHomeAndSocketAreNamedOnlyWhenTheyMustBe(t *testing.T) {
	d := newDesk(t, agents.Codex)
	t.Setenv("HOME", d.home)
	d.cfg.Home = filepath.Join(d.home, ".local", "state", "subject-broker")
	d.cfg.SocketDir = filepath.Join(d.cfg.Home, "run")
	if diff := cmp.Diff([]string{"--subject", "worker"}, agents.ShimArgs(d.cfg)); diff != "" {
		t.Error("default home: " + diff)
	}
	d.cfg.Home, d.cfg.SocketDir = "/srv/sb", "/run/sb"
	if diff := cmp.Diff([]string{"--subject", "worker", "--home", "/srv/sb", "--socket", "/run/sb"}, agents.ShimArgs(d.cfg)); diff != "" {
		t.Error("another home: " + diff)
	}
}

func TestSecondSubject(t *testing.T) {
	d := newDesk(t, agents.Gemini)
	const trust = "Gemini CLI starts servers only in folders that it has been told to trust"
	d.connect()
	before := d.text(".gemini/settings.json")
	d.cfg.Subject = "other"
	res := d.connect()
	if diff := cmp.Diff([]string{"subject-broker-other"}, res.Names); diff != "" {
		t.Error(diff)
	}
	if len(res.Warnings) != 2 || res.Warnings[0] != trust || !strings.Contains(res.Warnings[1], "would see two subjects") {
		t.Errorf("warnings: %q", res.Warnings)
	}
	for _, l := range d.list() {
		if len(l.Warnings) != 1 || l.Warnings[0] != "this agent sees more than one subject" {
			t.Errorf("listed as %+v", l)
		}
	}
	d.disconnect()
	if diff := cmp.Diff(before, d.text(".gemini/settings.json")); diff != "" {
		t.Error(diff)
	}
	d.connect()
	d.cfg.Subject = ""
	if res = d.disconnect(); len(res.Names) != 2 {
		t.Errorf("disconnecting all took %v", res.Names)
	}
}

// An entry that wraps a server is the agent's own server: it is told apart, and
// neither rewritten nor taken away, whatever it is called.
func TestWrappedEntriesAreNotOurs(t *testing.T) {
	d := newDesk(t, agents.Claude)
	const before = `{"mcpServers": {
  "subject-broker-files": {"command": "/o/sb-mcp", "args": ["wrap", "--subject", "worker", "--server=files", "--", "x", "--subject", "another"]},
  "notes": {"command": "/o/sb-mcp", "args": ["wrap", "--subject", "worker", "--", "x", "--server", "another"]},
  "plain": {"command": "/o/sb-mcp", "args": ["--", "--subject", "another"]}
}}
`
	d.put(".claude.json", before, 0o600)
	d.connect()
	wraps := map[string]string{}
	for _, l := range d.list() {
		wraps[l.Name] = l.Subject + " " + l.Wraps
	}
	if diff := cmp.Diff(map[string]string{"subject-broker-files": "worker files", "notes": "worker notes", "subject-broker": "worker "}, wraps); diff != "" {
		t.Error(diff)
	}
	d.cfg.Subject = ""
	if res := d.disconnect(); len(res.Names) != 1 {
		t.Errorf("disconnecting all took %v", res.Names)
	}
	if diff := cmp.Diff(before, d.text(".claude.json")); diff != "" {
		t.Error(diff)
	}
}

func TestProjectEntryReplacesTheUsers(t *testing.T) {
	d := newDesk(t, agents.OpenCode)
	d.connect()
	d.cfg.Scope, d.cfg.Subject = agents.Project, "other"
	res := d.connect()
	if len(res.Warnings) != 1 || !strings.HasPrefix(res.Warnings[0], `in this project, the entry takes the place of the one for subject "worker"`) {
		t.Errorf("warnings: %q", res.Warnings)
	}
}

func TestNamesFitTheAgents(t *testing.T) {
	for _, test := range []struct{ subject, want string }{
		{"other", "subject-broker-other"},
		{"a.b_c", "subject-broker-a-b-c-5b8f"},
		{strings.Repeat("x", 128), "subject-broker-xxxxxxxxxxxxxxxxxxxx-"},
	} {
		d := newDesk(t, agents.Codex)
		d.connect()
		d.cfg.Subject = test.subject
		name := d.connect().Names[0]
		if !strings.HasPrefix(name, test.want[:min(len(test.want), 36)]) || len(name) > 41 || strings.ContainsAny(name, "._") {
			t.Errorf("%s is called %s", test.subject, name)
		}
		d.disconnect()
	}
}

func TestRefusesAndLeavesUntouched(t *testing.T) {
	for _, test := range []struct {
		name  string
		agent agents.Agent
		file  string
		text  string
		kind  error
		want  string
	}{
		{"malformed JSON", agents.Claude, ".claude.json", "{\n  \"a\": 1,\n}\n", agents.ErrInvalid, ".claude.json:3: a comma before '}'"},
		{"comments where the agent has none", agents.Claude, ".claude.json", "{\n  // x\n}\n", agents.ErrInvalid, ".claude.json:2: comments are not allowed in this file"},
		{"empty JSON", agents.Gemini, ".gemini/settings.json", "", agents.ErrInvalid, "settings.json:1: the file is empty, expected an object"},
		{"container of another kind", agents.Gemini, ".gemini/settings.json", "{\n\"mcpServers\": []}", agents.ErrInvalid, `settings.json:2: "mcpServers" is not an object`},
		{"malformed TOML", agents.Codex, ".codex/config.toml", "a = 1\n[b\n", agents.ErrInvalid, `config.toml:2: expected "]"`},
		{"inline TOML", agents.Codex, ".codex/config.toml", "mcp_servers = {}\n", agents.ErrInvalid, `config.toml:1: "mcp_servers" is written as a value`},
		{"an entry of somebody else", agents.Claude, ".claude.json", "{\"mcpServers\":\n{\"subject-broker\": {\"command\": \"node\", \"args\": [\"x.js\"]}}}", agents.ErrConflict, `.claude.json:2: the entry "subject-broker" does not start sb-mcp`},
		{"an inline entry of ours", agents.Codex, ".codex/config.toml", "\n[mcp_servers]\nsubject-broker = { command = \"/old/sb-mcp\", args = [\"--subject\", \"worker\"] }\n", agents.ErrConflict, `config.toml:3: the entry "subject-broker" is not written as a table`},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := newDesk(t, test.agent)
			path := d.put(test.file, test.text, 0o600)
			before, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			_, err = agents.Connect(t.Context(), d.cfg)
			if !errors.Is(err, test.kind) || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), filepath.Dir(path)) {
				t.Errorf("error %v, want %s", err, test.want)
			}
			after, serr := os.Stat(path)
			if serr != nil || d.text(test.file) != test.text || !os.SameFile(before, after) || !before.ModTime().Equal(after.ModTime()) {
				t.Errorf("the file was touched")
			}
		})
	}
}

func TestRefusesUnsafeFiles(t *testing.T) {
	t.Run("link to nothing", func(t *testing.T) {
		d := newDesk(t, agents.Claude)
		if err := os.Symlink("nowhere", filepath.Join(d.home, ".claude.json")); err != nil {
			t.Fatal(err)
		}
		d.refused(agents.ErrUnsafe)
	})
	t.Run("directory", func(t *testing.T) {
		d := newDesk(t, agents.Claude)
		d.put(".claude.json/x", "", 0o600)
		d.refused(agents.ErrUnsafe)
	})
	t.Run("two names", func(t *testing.T) {
		d := newDesk(t, agents.Claude)
		path := d.put(".claude.json", "{}", 0o600)
		if err := os.Link(path, path+".bak"); err != nil {
			t.Fatal(err)
		}
		d.refused(agents.ErrUnsafe)
	})
	t.Run("another owner", func(t *testing.T) {
		if os.Geteuid() != 0 {
			t.Skip("suite left out: foreign owner: needs root to give files away")
		}
		d := newDesk(t, agents.Claude)
		if err := os.Chown(d.put(".claude.json", "{}", 0o600), 12345, -1); err != nil {
			t.Fatal(err)
		}
		d.refused(agents.ErrUnsafe)
	})
}

func (d *desk) refused(kind error) {
	d.t.Helper()
	if _, err := agents.Connect(d.t.Context(), d.cfg); !errors.Is(err, kind) {
		d.t.Errorf("error %v, want %v", err, kind)
	}
}

func TestFollowsLinks(t *testing.T) {
	d := newDesk(t, agents.Claude)
	target := d.put("dotfiles/claude.json", "{}\n", 0o600)
	link := filepath.Join(d.home, ".claude.json")
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
	res := d.connect()
	if info, err := os.Lstat(link); err != nil || info.Mode()&fs.ModeSymlink == 0 {
		t.Errorf("the link is gone: %v, %v", info, err)
	}
	if !strings.Contains(d.text("dotfiles/claude.json"), "sb-mcp") || filepath.Base(res.File) != "claude.json" {
		t.Errorf("the target was not edited: %+v", res)
	}
}

func TestDryRunWritesNothing(t *testing.T) {
	for _, agent := range agents.All() {
		d := newDesk(t, agent)
		d.cfg.DryRun = true
		res := d.connect()
		if _, err := os.Lstat(res.File); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", agent, err)
		}
		if !res.Changed || res.Snippet == "" {
			t.Errorf("%s: %+v", agent, res)
		}
	}
}

func TestVariablesMoveTheFiles(t *testing.T) {
	for _, test := range []struct {
		agent          agents.Agent
		variable, file string
	}{
		{agents.Claude, "CLAUDE_CONFIG_DIR", ".claude.json"},
		{agents.Codex, "CODEX_HOME", "config.toml"},
		{agents.Gemini, "GEMINI_CLI_HOME", ".gemini/settings.json"},
		{agents.OpenCode, "XDG_CONFIG_HOME", "opencode/opencode.json"},
	} {
		d := newDesk(t, test.agent)
		elsewhere := filepath.Join(d.home, "elsewhere")
		d.cfg.Getenv = func(name string) string {
			if name == test.variable {
				return elsewhere
			}
			return ""
		}
		if got, want := d.connect().File, filepath.Join(elsewhere, test.file); got != want {
			t.Errorf("%s: wrote %s, want %s", test.agent, got, want)
		}
	}
}

func TestOpenCodeTakesTheFileThatIsThere(t *testing.T) {
	d := newDesk(t, agents.OpenCode)
	want := d.put(".config/opencode/opencode.jsonc", "{\n  // mine\n}\n", 0o600)
	if got := d.connect().File; got != want {
		t.Errorf("wrote %s", got)
	}
	d.cfg.Scope = agents.Project
	want = d.put("project/.opencode/opencode.json", "{}", 0o600)
	if got := d.connect().File; got != want {
		t.Errorf("wrote %s", got)
	}
}

func TestConfigIsChecked(t *testing.T) {
	d := newDesk(t, agents.Claude)
	for name, change := range map[string]func(*agents.Config){
		"agent":   func(c *agents.Config) { c.Agent = "cursor" },
		"subject": func(c *agents.Config) { c.Subject = "a b" },
		"shim":    func(c *agents.Config) { c.Shim = "sb-mcp" },
		"scope":   func(c *agents.Config) { c.Scope = "local" },
		"project": func(c *agents.Config) { c.Scope, c.ProjectDir = agents.Project, "" },
		"home":    func(c *agents.Config) { c.Home = "here" },
	} {
		cfg := d.cfg
		change(&cfg)
		if _, err := agents.Connect(t.Context(), cfg); !errors.Is(err, agents.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := agents.Disconnect(t.Context(), d.cfg); !errors.Is(err, agents.ErrNotFound) {
		t.Errorf("nothing to disconnect: %v", err)
	}
}

func TestListSeesClaudesLocalScope(t *testing.T) {
	d := newDesk(t, agents.Claude)
	d.put(".claude.json", d.want("{\"projects\": {\""+d.cfg.ProjectDir+"\": {\"mcpServers\": {\"mine\": {\"command\": \"SHIM\", \"args\": [\"--subject\", \"a\"]}}}}}"), 0o600)
	list := d.list()
	if len(list) != 1 || list[0].Scope != "local" || list[0].Subject != "a" {
		t.Errorf("listed as %+v", list)
	}
	if res := d.connect(); len(res.Warnings) != 1 || !strings.Contains(res.Warnings[0], "two subjects") {
		t.Errorf("warnings: %q", res.Warnings)
	}
}

// TestExamples keeps the examples equal to what Connect writes.
func TestExamples(t *testing.T) {
	for _, agent := range agents.All() {
		d := newDesk(t, agent)
		d.cfg.Shim, d.cfg.DryRun = "/usr/local/bin/sb-mcp", true
		file := string(agent) + filepath.Ext(d.connect().File)
		example, err := os.ReadFile(filepath.Join("..", "..", "..", "..", "examples", "agents", file))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(d.connect().Snippet, string(example)); diff != "" {
			t.Errorf("%s: %s", file, diff)
		}
	}
}
