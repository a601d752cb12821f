package main

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"subjectbroker/cmd/sbctl/internal/agents"
	"subjectbroker/daemon/daemontest"
)

// marker is in every value that these tests import.
const marker = "hunter2-marker"

// mover runs imports against a real daemon, with a home of its own.
type mover struct {
	t      *testing.T
	daemon *daemontest.Daemon
	dir    string
}

func newMover(t *testing.T) *mover {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return &mover{t, daemontest.Start(t), dir}
}

func (m *mover) put(name, text string) string {
	m.t.Helper()
	path := filepath.Join(m.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		m.t.Fatal(err)
	}
	return path
}

func (m *mover) command(ctx context.Context, args ...string) (cmd *exec.Cmd, output *bytes.Buffer) {
	cmd = exec.CommandContext(ctx, filepath.Join(programDir, "sbctl"), args...)
	cmd.Dir = m.dir
	cmd.Env = append(os.Environ(), "SB_HOME="+m.daemon.Home, "HOME="+m.dir)
	output = &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = output, output
	return cmd, output
}

// Killed at any instant, an import leaves the file as it was or rewritten whole;
// whatever a rewritten one refers to is sealed; nothing else holds a value.
func TestImportIsKilled(t *testing.T) {
	m := newMover(t)
	const tokens = 6
	value := func(file, i int) string { return fmt.Sprintf("%s-%d-%d", marker, file, i) }
	file := func(n int) (name, text string) {
		var b strings.Builder
		b.WriteString("{\"mcpServers\": {\n")
		for i := range tokens {
			fmt.Fprintf(&b, "  \"s%d-%d\": {\"env\": {\"A_TOKEN\": %q}},\n", n, i, value(n, i))
		}
		b.WriteString("}}\n")
		return fmt.Sprintf("f%d/mcp.json", n), b.String()
	}
	was, now := 0, 0
	look := func(n int, path, before string) {
		after, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		entries, err := os.ReadDir(filepath.Dir(path))
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range entries {
			text, err := os.ReadFile(filepath.Join(filepath.Dir(path), entry.Name()))
			if err != nil {
				t.Fatal(err)
			}
			if entry.Name() != filepath.Base(path) && bytes.Contains(text, []byte(marker)) {
				t.Errorf("%d: %s holds a value", n, entry.Name())
			}
		}
		if string(after) == before {
			was++
			return
		}
		now++
		want := before
		for i := range tokens {
			name := fmt.Sprintf("s%d-%d.A_TOKEN", n, i)
			want = strings.Replace(want, value(n, i), agents.Scheme+name, 1)
			if got := m.daemon.Content(name); got != value(n, i) {
				t.Errorf("%d: the file refers to %s, which is %q", n, name, got)
			}
		}
		if diff := cmp.Diff(want, string(after)); diff != "" {
			t.Errorf("%d: neither old nor new: %s", n, diff)
		}
	}
	// One that is not killed says how long it takes.
	name, text := file(0)
	path := m.put(name, text)
	cmd, output := m.command(t.Context(), "import", "mcp-config", name, "--rewrite")
	started := time.Now()
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	took := time.Since(started)
	look(0, path, text)
	if now != 1 {
		t.Fatal("an import that was not killed did not rewrite")
	}
	const times = 24
	for n := 1; n <= times; n++ {
		name, text := file(n)
		path := m.put(name, text)
		ctx, cancel := context.WithTimeout(t.Context(), took*time.Duration(n)/times)
		cmd, _ := m.command(ctx, "import", "mcp-config", name, "--rewrite") // killed by SIGKILL
		_ = cmd.Run()
		cancel()
		look(n, path, text)
		// Whatever was done, doing it again ends it.
		cmd, output := m.command(t.Context(), "import", "mcp-config", name, "--rewrite")
		if err := cmd.Run(); err != nil {
			t.Fatalf("%v\n%s", err, output)
		}
		if after, err := os.ReadFile(path); err != nil || bytes.Contains(after, []byte(marker)) {
			t.Errorf("%d: not rewritten by a repetition: %v", n, err)
		}
	}
	t.Logf("the file was old %d times and new %d times", was, now)
	if was == 0 {
		t.Error("no import was killed before it rewrote its file")
	}
}

// No value reaches an output, the log, or a file that is not the vault's.
func TestImportLeaksNothing(t *testing.T) {
	m := newMover(t)
	m.daemon.AddSubject("worker")
	m.put(".env", "A_TOKEN='"+marker+"'\nB=\""+marker+"\nx\"\n")
	m.put("bad.env", "A="+marker+"\n"+marker+"\n")
	m.put("unclosed.env", "A='"+marker+"\n")
	m.put("twice.env", "A="+marker+"\nA="+marker+"\n")
	m.put("mcp.json", `{"mcpServers": {"a": {"args": ["--token=`+marker+`"], "url": "https://u:`+marker+`@x/", "env": {"A_TOKEN": "`+marker+`", "OTHER": "`+marker+`"}}}}`)
	m.put("bad.json", `{"mcpServers": {"a": {"env": {"A_TOKEN": "`+marker+`", "A_TOKEN": `+marker+`}}}}`)
	m.put("config.toml", "[mcp_servers.a.env]\nA_TOKEN = '"+marker+"'\n")
	m.put("bad.toml", "[mcp_servers.a.env]\nA_TOKEN = "+marker+"\n")
	m.put("policy.yaml", "version: 1\nstorageRoot: "+marker+"\n")
	for _, args := range [][]string{
		{"dotenv", "bad.env"}, {"dotenv", "unclosed.env"}, {"dotenv", "twice.env"}, {"dotenv", "mcp.json"}, {"mcp-config", "bad.json"},
		{"mcp-config", "bad.toml"}, {"mcp-config", ".env"}, {"mcp-config", "mcp.json", "--server", "b"},
		{"dotenv", ".env", "--dry-run"}, {"dotenv", ".env", "-o", "json"}, {"dotenv", ".env", "--subject", "worker"}, {"dotenv", ".env", "--rewrite"},
		{"mcp-config", "mcp.json"}, {"mcp-config", "mcp.json", "--rewrite", "-o", "json"}, {"mcp-config", "config.toml", "--rewrite"},
	} {
		for _, verb := range [][]string{append([]string{"import"}, args...), {"doctor"}} {
			cmd, output := m.command(t.Context(), verb...)
			_ = cmd.Run() // the refused ones are here for what they say
			if strings.Contains(output.String(), marker) {
				t.Errorf("%v says a value:\n%s", verb, output)
			}
		}
	}
	if m.daemon.Content("A_TOKEN") != marker || m.daemon.Content("a.A_TOKEN") != marker {
		t.Error("nothing was imported")
	}
	if bytes.Contains(m.daemon.RawLog(), []byte(marker)) || strings.Contains(m.daemon.Messages(), marker) {
		t.Error("a value is in the log")
	}
	err := filepath.WalkDir(m.daemon.Home, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		if bytes.Contains(text, []byte(marker)) {
			t.Errorf("a value is in %s", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	for _, name := range []string{".env", "config.toml"} {
		if text, err := os.ReadFile(filepath.Join(m.dir, name)); err != nil || bytes.Contains(text, []byte(marker)) {
			t.Errorf("%s still holds a value: %v", name, err)
		}
	}
}

func TestNamesOfImports(t *testing.T) {
	for original, want := range map[string]string{
		"GITHUB_TOKEN":           "GITHUB_TOKEN",
		"github.GITHUB_TOKEN":    "github.GITHUB_TOKEN",
		"_X":                     "env._X",
		"__X":                    "env.__X",
		"my server.A":            "my-server.A-",
		"my-server.A":            "my-server.A",
		".x":                     "env.x",
		"":                       "env.",
		"\x1b[31m.A":             "env.31m.A-",
		"größe.A":                "gr--e.A-",
		strings.Repeat("a", 128): strings.Repeat("a", 128),
		strings.Repeat("a", 129): strings.Repeat("a", 119) + "-",
	} {
		got := nameFrom(original)
		told := strings.HasSuffix(want, "-")
		if !told && got != want || told && (!strings.HasPrefix(got, want) || len(got) != len(want)+8) || len(got) > longestName {
			t.Errorf("%q is called %q, want %q", original, got, want)
		}
	}
	if nameFrom("my server.A") == nameFrom("my?server.A") {
		t.Error("two names became one")
	}
	long := noteOf(strings.Repeat("x", 2000))
	if len(long) > longestNote || long == noteOf(strings.Repeat("x", 2001)) {
		t.Error("a long source does not tell itself apart")
	}
}

// The examples do what they say: what is a value is sealed, and a rewritten file
// is what "sbctl run --env-file" and the agents read.
func TestExamplesOfImports(t *testing.T) {
	m := newMover(t)
	for _, test := range []struct {
		format, file string
		want         map[string]string // contents by name
	}{
		{"dotenv", "app.env", map[string]string{
			"DATABASE_PASSWORD": `not a password, "really"`, "API_TOKEN": "not-a-token-either", "SIGNING_KEY": "first line\nsecond line",
		}},
		{"mcp-config", "mcp.json", map[string]string{"tickets.TICKETS_TOKEN": "not-a-token", "search.Authorization": "not-a-token-either"}},
		{"mcp-config", "config.toml", map[string]string{}},
	} {
		text, err := os.ReadFile(filepath.Join("../../examples/moving-in", test.file))
		if err != nil {
			t.Fatal(err)
		}
		path := m.put(test.file, string(text))
		cmd, output := m.command(t.Context(), "import", test.format, test.file, "--rewrite", "-q")
		if err := cmd.Run(); err != nil {
			t.Fatalf("%s: %v\n%s", test.file, err, output)
		}
		for name, want := range test.want {
			if got := m.daemon.Content(name); got != want {
				t.Errorf("%s: %s is %q, want %q", test.file, name, got, want)
			}
		}
		after, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(output.String()) {
			name := strings.TrimSpace(line)
			if !bytes.Contains(after, []byte(agents.Scheme+name)) || m.daemon.Content(name) == "" {
				t.Errorf("%s: there is no reference to %s in it:\n%s", test.file, name, after)
			}
		}
		if bytes.Contains(after, []byte("not-a-token")) {
			t.Errorf("%s still holds a value:\n%s", test.file, after)
		}
	}
}

// A file of more values than one import takes is refused before any is sealed.
func TestImportOfTooMuch(t *testing.T) {
	m := newMover(t)
	const most = 1000
	file := func(values int) (env, config string) {
		var lines, servers strings.Builder
		for i := range values {
			fmt.Fprintf(&lines, "V%d=%s-%d\n", i, marker, i)
			fmt.Fprintf(&servers, "%q: {\"env\": {\"A_TOKEN\": \"%s-%d\"}},\n", fmt.Sprintf("s%d", i), marker, i)
		}
		return lines.String() + "EMPTY=\nREFERENCE=" + agents.Scheme + "x\n", "{\"mcpServers\": {\n" + servers.String() + "\"none\": {\"env\": {\"DEBUG\": \"1\"}}}}\n"
	}
	for _, values := range []int{most, most + 1} {
		env, config := file(values)
		m.put("many.env", env)
		m.put("many.json", config)
		for _, args := range [][]string{{"dotenv", "many.env", "--dry-run"}, {"mcp-config", "many.json", "--dry-run"}, {"dotenv", "many.env"}, {"mcp-config", "many.json", "--rewrite"}} {
			dry := args[len(args)-1] == "--dry-run"
			if values <= most && !dry {
				continue // the control says enough without sealing so many
			}
			cmd, output := m.command(t.Context(), append([]string{"import"}, args...)...)
			err := cmd.Run()
			refused := strings.Contains(output.String(), "it has 1001 values, and one import seals at most 1000")
			if values <= most && err != nil || values > most && (cmd.ProcessState.ExitCode() != 2 || !refused) {
				t.Errorf("%d values, %v: %v\n%.300s", values, args, err, output)
			}
		}
	}
	cmd, output := m.command(t.Context(), "resource", "list")
	if err := cmd.Run(); err != nil || strings.Contains(output.String(), "V0") || strings.Contains(output.String(), "s0.A_TOKEN") {
		t.Errorf("%v: something was sealed:\n%.300s", err, output)
	}
	// Of one server it takes what that one has.
	cmd, output = m.command(t.Context(), "import", "mcp-config", "many.json", "--server", "s7")
	if err := cmd.Run(); err != nil || m.daemon.Content("s7.A_TOKEN") != marker+"-7" {
		t.Errorf("%v\n%.300s", err, output)
	}
}
