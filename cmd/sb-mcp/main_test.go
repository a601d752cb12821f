package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/rogpeppe/go-internal/testscript"

	"subjectbroker/proto/wire"
	"subjectbroker/worker/workertest"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"sb-mcp": main, "stubserver": stubServer})
}

// TestScripts runs the transcripts in testdata, each with a broker of its own.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Setup: func(env *testscript.Env) error {
			b := workertest.New(t)
			env.Values["broker"] = b
			env.Setenv("SB_HOME", b.Home)
			env.Setenv("HOME", env.WorkDir)
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"broker": brokerCmd, "converse": converse, "code": code},
		Condition: func(name string) (bool, error) {
			return name == "root" && os.Getuid() == 0, nil
		},
	})
}

// brokerCmd arranges the broker:
//
//	broker start | stop
//	broker put NAME KIND FILE | allow SUBJECT NAME… | revoke SUBJECT NAME… | refuse REASON
//	broker profile SUBJECT NAME | may SUBJECT CAPABILITY DECISION | launch SUBJECT PROFILE
func brokerCmd(ts *testscript.TestScript, _ bool, args []string) {
	b := ts.Value("broker").(*workertest.Broker)
	switch {
	case args[0] == "start":
		b.Start()
	case args[0] == "stop":
		b.Stop()
	case args[0] == "put":
		b.Put(args[1], args[2], []byte(ts.ReadFile(args[3])))
	case args[0] == "allow":
		b.Allow(args[1], args[2:]...)
	case args[0] == "revoke":
		b.Revoke(args[1], args[2:]...)
	case args[0] == "refuse":
		b.Refuse(wire.Reason(args[1]))
	case args[0] == "profile":
		b.AddProfile(args[1], args[2])
	case args[0] == "may":
		b.May(args[1], args[2], args[3])
	case args[0] == "launch":
		b.Launch(args[1], args[2])
	default:
		ts.Fatalf("broker: unknown verb %s", args[0])
	}
}

// code N sb-mcp ARG… runs sb-mcp, which must exit with N. It leaves what it wrote
// in the files out and said.
func code(ts *testscript.TestScript, _ bool, args []string) {
	command := exec.Command(inPath(ts.Getenv("PATH"), args[1]), args[2:]...)
	command.Env = []string{"HOME=" + ts.Getenv("HOME"), "SB_HOME=" + ts.Getenv("SB_HOME"), "PATH=" + ts.Getenv("PATH")}
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	err := command.Run()
	if command.ProcessState == nil {
		ts.Fatalf("code: %v", err)
	}
	if got := strconv.Itoa(command.ProcessState.ExitCode()); got != args[0] {
		ts.Fatalf("code: exit %s, want %s\n%s%s", got, args[0], stdout.String(), stderr.String())
	}
	ts.Check(os.WriteFile(ts.MkAbs("out"), stdout.Bytes(), 0o600))
	ts.Check(os.WriteFile(ts.MkAbs("said"), stderr.Bytes(), 0o600))
}

// converse FILE ARG… runs sb-mcp with ARG and sends it each line of FILE, after
// the answer to the one before. It leaves the answers in the file out, and what
// it said to a person in the file said.
func converse(ts *testscript.TestScript, neg bool, args []string) {
	command := exec.Command(inPath(ts.Getenv("PATH"), "sb-mcp"), args[1:]...)
	command.Env = []string{"HOME=" + ts.Getenv("HOME"), "SB_HOME=" + ts.Getenv("SB_HOME"), "PATH=" + ts.Getenv("PATH")}
	var stderr bytes.Buffer
	command.Stderr = &stderr
	stdin, err := command.StdinPipe()
	ts.Check(err)
	stdout, err := command.StdoutPipe()
	ts.Check(err)
	ts.Check(command.Start())
	answers := bufio.NewReader(stdout)
	var transcript strings.Builder
	for line := range strings.Lines(ts.ReadFile(args[0])) {
		_, err := io.WriteString(stdin, line)
		ts.Check(err)
		if !answered(line) {
			continue
		}
		answer, err := answers.ReadString('\n')
		ts.Check(err)
		transcript.WriteString(answer)
	}
	stdin.Close()
	rest, err := io.ReadAll(answers)
	ts.Check(err)
	transcript.Write(rest)
	if err := command.Wait(); (err != nil) != neg {
		ts.Fatalf("converse: %v\n%s", err, stderr.String())
	}
	ts.Check(os.WriteFile(ts.MkAbs("out"), []byte(transcript.String()), 0o600))
	ts.Check(os.WriteFile(ts.MkAbs("said"), stderr.Bytes(), 0o600))
}

// answered says whether a line gets an answer: all but notifications do.
func answered(line string) bool {
	var message struct {
		ID     json.RawMessage
		Method string
	}
	return json.Unmarshal([]byte(line), &message) != nil || message.ID != nil || message.Method == ""
}

func inPath(path, name string) string {
	for _, dir := range filepath.SplitList(path) {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			return filepath.Join(dir, name)
		}
	}
	return name
}

// start runs the real program, as an agent would.
func start(t *testing.T, b *workertest.Broker, args ...string) *exec.Cmd {
	t.Helper()
	program := filepath.Join(t.TempDir(), "sb-mcp")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, program); err != nil {
		t.Fatal(err)
	}
	command := exec.Command(program, args...)
	command.Env = []string{"HOME=" + t.TempDir(), "SB_HOME=" + b.Home}
	return command
}

// The SDK's client over the real program: the newer era by itself.
func TestSDKClient(t *testing.T) {
	b := workertest.Start(t)
	b.Put("plan", "text", []byte("the plan"))
	b.Allow("worker", "plan")
	session, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "0"}, nil).
		Connect(t.Context(), &mcp.CommandTransport{Command: start(t, b, "--subject", "worker")}, nil)
	if err != nil {
		t.Fatal(err)
	}
	got, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "read_resource", Arguments: map[string]any{"resourceId": "plan"}})
	if err != nil || got.IsError || got.StructuredContent.(map[string]any)["content"] != "the plan" {
		t.Errorf("read_resource: %+v, %v", got, err)
	}
	if err := session.Close(); err != nil {
		t.Errorf("closing: %v", err)
	}
}

// SIGTERM: what is in flight is answered, and that is a good end.
func TestTerminate(t *testing.T) {
	b := workertest.Start(t)
	b.Put("plan", "text", []byte("the plan"))
	b.Allow("worker", "plan")
	entered, hold := make(chan struct{}), make(chan struct{})
	b.OnAcquire(func(context.Context, string, string) error {
		close(entered)
		<-hold
		return nil
	})
	command := start(t, b, "--subject", "worker")
	var stderr bytes.Buffer
	command.Stderr = &stderr
	stdin, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	stdout, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	io.WriteString(stdin, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"0"}}}
{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"read_resource","arguments":{"resourceId":"plan"}}}
`)
	<-entered
	if err := command.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	close(hold)
	answers, err := io.ReadAll(stdout)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(answers), `"id":2,"result"`) || !strings.Contains(string(answers), "the plan") {
		t.Errorf("answers: %s", answers)
	}
	if err := command.Wait(); err != nil || stderr.Len() > 0 {
		t.Errorf("%v, stderr %q", err, stderr.String())
	}
}

// A client that has gone is no fault of ours.
func TestClientGone(t *testing.T) {
	b := workertest.Start(t)
	b.Allow("worker")
	command := start(t, b, "--subject", "worker")
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	command.Stdout = writer
	command.Stdin = strings.NewReader(strings.Repeat(`{"jsonrpc":"2.0","id":1,"method":"ping"}`+"\n", 10))
	var stderr bytes.Buffer
	command.Stderr = &stderr
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	writer.Close()
	reader.Close()
	if err := command.Wait(); err != nil {
		var exit *exec.ExitError
		t.Errorf("%v (%v): %s", err, errors.As(err, &exit), stderr.String())
	}
}

// The manual of serve is about serving, and loses nothing of it.
func TestManualOfServe(t *testing.T) {
	var out, talk strings.Builder
	if code := run(t.Context(), []string{"serve", "--help"}, nil, &out, &talk); code != wire.ExitDone || talk.Len() > 0 {
		t.Fatalf("%d, %s", code, talk.String())
	}
	got := out.String()
	for _, want := range []string{"--listen ADDRESS:PORT", "--unix PATH", "--tls-cert FILE", "--host NAME", "--check", "--home DIR", "Authorization: Bearer", "SB_HOME", "/healthz", "sbctl agent-key mint"} {
		if !strings.Contains(got, want) {
			t.Errorf("it does not say %s", want)
		}
	}
	for _, other := range []string{"WRAPPING", "--max-line", "capability_report", "--env VAR", "sb-mcp can"} {
		if strings.Contains(got, other) || !strings.Contains(manual, other) {
			t.Errorf("it says %s", other)
		}
	}
	for line := range strings.Lines(got) {
		if len(strings.TrimSuffix(line, "\n")) > 86 {
			t.Errorf("a long line: %s", line)
		}
	}
	if manualOf("check") != manual {
		t.Error("check has a manual of its own")
	}
}

func TestParse(t *testing.T) {
	for _, tc := range []struct {
		args string
		want options
		err  string
	}{
		{"--subject a", options{subject: "a"}, ""},
		{"-subject=a --profile p --server-name n --home /h --socket /s", options{subject: "a", profile: "p", serverName: "n", home: "/h", socket: "/s"}, ""},
		{"check --subject a", options{subject: "a", command: "check"}, ""},
		{"--subject a check --home h", options{subject: "a", home: "h", command: "check"}, ""},
		{"--help", options{help: true}, ""},
		{"check -h", options{help: true, command: "check"}, ""},
		{"--version", options{version: true}, ""},
		{"", options{}, "--subject is required"},
		{"check", options{command: "check"}, "--subject is required"},
		{"--subject", options{}, "--subject needs a value"},
		{"--subject=", options{}, "--subject: it is empty"},
		{"--subject a --subject a", options{subject: "a"}, "--subject: it is given twice"},
		{"--subject a --verbose", options{subject: "a"}, "unknown flag --verbose"},
		{"--subject a frobnicate", options{subject: "a"}, `unknown command "frobnicate"`},
		{
			"wrap --subject a --server s --env A --env B --max-line 200 --max-server-line 300 -- prog --subject b -- c",
			options{
				subject: "a", command: "wrap", server: "s", env: []string{"A", "B"}, maxLine: 200, maxServerLine: 300,
				program: []string{"prog", "--subject", "b", "--", "c"},
			}, "",
		},
		{"--subject a --server s wrap -- prog", options{subject: "a", command: "wrap", server: "s", program: []string{"prog"}}, ""},
		{"wrap --subject a -- prog", options{subject: "a", command: "wrap", program: []string{"prog"}}, "--server is required"},
		{"wrap --server s -- prog", options{command: "wrap", server: "s", program: []string{"prog"}}, "--subject is required"},
		{"wrap --subject a --server s", options{subject: "a", command: "wrap", server: "s"}, "wrap needs the server's command behind --"},
		{"wrap --subject a --server s --", options{subject: "a", command: "wrap", server: "s", program: []string{}}, "wrap needs the server's command behind --"},
		{"wrap --subject a --server s prog", options{subject: "a", command: "wrap", server: "s"}, `behind --, not "prog"`},
		{"wrap --subject a --server S -- prog", options{subject: "a", command: "wrap", server: "S", program: []string{"prog"}}, "is not a server's name"},
		{"wrap --subject a --server -s -- prog", options{subject: "a", command: "wrap", server: "-s", program: []string{"prog"}}, "is not a server's name"},
		{"wrap --subject a --server " + strings.Repeat("s", 33) + " -- p", options{subject: "a", command: "wrap", server: strings.Repeat("s", 33), program: []string{"p"}}, "is not a server's name"},
		{"wrap --env SB_HOME -- p", options{command: "", program: []string{"p"}}, "SB_HOME is not passed on"},
		{"wrap --subject a --max-line 63 -- p", options{}, "--max-line"},
		{"wrap --subject a --max-line 99 --max-line 99 -- p", options{}, "--max-line: it is given twice"},
		{"--subject a --server s", options{subject: "a", server: "s"}, "--server belongs to wrap"},
		{"--subject a -- prog", options{subject: "a", program: []string{"prog"}}, "-- and a command follow wrap only"},
		{"host", options{command: "host"}, ""},
		{"host --subject a", options{subject: "a", command: "host"}, "host takes no flags"},
		{"host x", options{command: "host"}, `host takes no "x"`},
		{"can --subject a read:x", options{subject: "a", command: "can", capability: "read:x"}, ""},
		{"--subject a can reach:h --profile p", options{subject: "a", profile: "p", command: "can", capability: "reach:h"}, ""},
		{"can can --subject a", options{subject: "a", command: "can", capability: "can"}, ""},
		{"can --subject a", options{subject: "a", command: "can"}, "can needs a capability"},
		{"can --subject a read:x read:y", options{subject: "a", command: "can", capability: "read:x"}, "can asks for one capability"},
		{"can --subject a --server-name n read:x", options{subject: "a", serverName: "n", command: "can", capability: "read:x"}, "--server-name means nothing to can"},
		{"can read:x", options{command: "can", capability: "read:x"}, "--subject is required"},
		{"check --subject a check", options{subject: "a", command: "check"}, "check is given twice"},
		{"check --subject a read:x", options{subject: "a", command: "check"}, `check takes no "read:x"`},
		{"--subject -a", options{subject: "-a"}, `--subject: "-a" is not a name`},
		{"--subject a/b", options{subject: "a/b"}, `--subject: "a/b" is not a name`},
		{"--subject " + strings.Repeat("a", 129), options{subject: strings.Repeat("a", 129)}, "is not a name"},
		{"--subject a --profile ..", options{subject: "a", profile: ".."}, `--profile: ".." is not a name`},
		{"--subject a --server-name é", options{subject: "a", serverName: "é"}, "--server-name"},
		{"check --subject a --server-name n", options{subject: "a", serverName: "n", command: "check"}, "--server-name means nothing to check"},
		{"--subject a --version=maybe", options{subject: "a"}, "version"},
	} {
		got, err := parse(slices.DeleteFunc(strings.Split(tc.args, " "), func(s string) bool { return s == "" }))
		switch {
		case err != nil && tc.err != "" && strings.Contains(err.Error(), tc.err): // what was read until then means nothing
		case tc.err == "" && err != nil, tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)):
			t.Errorf("%q: %v, want %q", tc.args, err, tc.err)
		case !cmp.Equal(got, tc.want, cmp.AllowUnexported(options{})):
			t.Errorf("%q: got %+v, want %+v", tc.args, got, tc.want)
		}
	}
}
