package mcpshim

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"subjectbroker/proto/wire"
	"subjectbroker/worker"
	"subjectbroker/worker/workertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// client is a person at the other end of the streams, with raw lines.
type client struct {
	t      *testing.T
	in     *io.PipeWriter
	lines  chan string
	done   chan error
	cancel context.CancelFunc
}

// start serves subject over pipes until the test ends.
func start(t *testing.T, b *workertest.Broker, subject string, change ...func(*Config)) *client {
	t.Helper()
	config := Config{
		Worker: worker.Config{Places: b.Places, Subject: subject, Version: "1.2.3"},
		In:     strings.NewReader(""), Out: io.Discard, // replaced by pipes
		Trouble: func(reason wire.Reason, text string) { t.Logf("trouble: %s: %s", reason, text) },
	}
	for _, fn := range change {
		fn(&config)
	}
	return startConfig(t, config, func(*shim) {})
}

// startConfig serves over the streams of config, which are pipes, after alter.
func startConfig(t *testing.T, config Config, alter func(*shim)) *client {
	t.Helper()
	s, err := newShim(config)
	if err != nil {
		t.Fatal(err)
	}
	alter(s)
	inReader, inWriter := io.Pipe()
	outReader, outWriter := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	c := &client{t: t, in: inWriter, lines: make(chan string, 10000), done: make(chan error, 1), cancel: cancel}
	go func() {
		err := s.serve(ctx, newStdio(inReader, outWriter, config.MaxLine, s.tickets))
		outWriter.Close()
		inReader.Close()
		c.done <- err
	}()
	read := make(chan struct{})
	go func() {
		defer close(read)
		defer close(c.lines)
		scanner := bufio.NewScanner(outReader)
		scanner.Buffer(nil, 64<<20)
		for scanner.Scan() {
			c.lines <- scanner.Text()
		}
	}()
	t.Cleanup(func() {
		inWriter.Close()
		<-read
		cancel()
	})
	return c
}

func (c *client) send(lines ...string) {
	c.t.Helper()
	for _, line := range lines {
		if _, err := io.WriteString(c.in, line+"\n"); err != nil {
			c.t.Fatal(err)
		}
	}
}

// next is the next line from the server.
func (c *client) next() string {
	c.t.Helper()
	line, ok := <-c.lines
	if !ok {
		c.t.Fatal("the session has ended")
	}
	return line
}

// nextAnswer is the next line that is no notification.
func (c *client) nextAnswer() string {
	c.t.Helper()
	for {
		if line := c.next(); strings.Contains(line, `"id":`) && !strings.HasPrefix(line, `{"jsonrpc":"2.0","method"`) {
			return line
		}
	}
}

func (c *client) ask(line string) string {
	c.t.Helper()
	c.send(line)
	return c.nextAnswer()
}

const initialize = `{"jsonrpc":"2.0","id":"init","method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"test","version":"0"}}}`

// greet opens a session of the older era.
func (c *client) greet() {
	c.t.Helper()
	if got := c.ask(initialize); !strings.Contains(got, `"protocolVersion":"2025-06-18"`) {
		c.t.Fatalf("initialize: %s", got)
	}
	c.send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
}

// result is a tool's result as the client decodes it.
type result struct {
	IsError           bool
	StructuredContent json.RawMessage
	Content           []struct{ Type, Text string }
}

// call calls a tool and returns its structured content, after checking that the
// text is the same JSON.
func (c *client) call(name, arguments string) (structured string, isError bool) {
	c.t.Helper()
	line := c.ask(`{"jsonrpc":"2.0","id":"call","method":"tools/call","params":{"name":"` + name + `","arguments":` + arguments + `}}`)
	var message struct{ Result *result }
	if err := json.Unmarshal([]byte(line), &message); err != nil || message.Result == nil {
		c.t.Fatalf("%s: %v: %s", name, err, line)
	}
	r := message.Result
	if len(r.Content) != 1 || r.Content[0].Type != "text" || r.Content[0].Text != string(r.StructuredContent) {
		c.t.Errorf("%s: the text is not the structured content:\n%q\n%s", name, r.Content, r.StructuredContent)
	}
	return string(r.StructuredContent), r.IsError
}

func TestTools(t *testing.T) {
	b := workertest.Start(t)
	b.Put("plan", "text", []byte("line 1\nq\"b\\ é \u2028 <&>\x01"))
	b.Put("blob", "binary", []byte("\x00\x01\xff"))
	b.Put("empty", "text", nil)
	b.Put("other", "text", []byte("not yours"))
	b.Allow("worker", "plan", "blob", "empty")
	c := start(t, b, "worker")
	c.greet()
	for _, tc := range []struct {
		tool, arguments, want string
		isError               bool
	}{
		{"list_resources", `{}`, `{"resources":["blob","empty","plan"],"reasonCode":"ALLOWED"}`, false},
		{"read_resource", `{"resourceId":"plan"}`, `{"decision":"allow","reasonCode":"ALLOWED","resourceId":"plan","content":"line 1\nq\"b\\ é ` + "\u2028" + ` <&>\u0001"}`, false},
		{"read_resource", `{"resourceId":"blob"}`, `{"decision":"allow","reasonCode":"ALLOWED","resourceId":"blob","content":"AAH/","encoding":"base64"}`, false},
		{"read_resource", `{"resourceId":"empty"}`, `{"decision":"allow","reasonCode":"ALLOWED","resourceId":"empty","content":""}`, false},
		{"read_resource", `{"resourceId":"other"}`, `{"decision":"deny","reasonCode":"ACCESS_DENIED","resourceId":"other"}`, true},
		{"read_resource", `{"resourceId":"absent"}`, `{"decision":"deny","reasonCode":"ACCESS_DENIED","resourceId":"absent"}`, true},
		{"read_resource", `{"resourceId":"other","subject":"orchestrator"}`, `{"decision":"deny","reasonCode":"ACCESS_DENIED","resourceId":"other"}`, true},
		{"read_resource", `{"RESOURCEID":"plan"}`, `{"decision":"deny","reasonCode":"INVALID_ARGUMENT","resourceId":""}`, true},
		{"read_resource", `{"resourceId":7}`, `{"decision":"deny","reasonCode":"INVALID_ARGUMENT","resourceId":""}`, true},
		{"read_resource", `{}`, `{"decision":"deny","reasonCode":"INVALID_ARGUMENT","resourceId":""}`, true},
		{"read_resource", `null`, `{"decision":"deny","reasonCode":"INVALID_ARGUMENT","resourceId":""}`, true},
		{"read_resource", `[]`, `{"decision":"deny","reasonCode":"INVALID_ARGUMENT","resourceId":""}`, true},
		{"explain_decision", `{"resourceId":"plan"}`, `{"decision":"allow","reasonCode":"ALLOWED","resourceId":"plan","action":"read"}`, false},
		{"explain_decision", `{"resourceId":"other","action":"read"}`, `{"decision":"deny","reasonCode":"ACCESS_DENIED","resourceId":"other","action":"read"}`, true},
		{"explain_decision", `{"resourceId":"other","action":false}`, `{"decision":"deny","reasonCode":"INVALID_ARGUMENT","resourceId":"other","action":"read"}`, true},
		{"capability_report", `{}`, `{"reasonCode":"ALLOWED","version":"1.2.3","daemonVersion":"test","platform":"linux/amd64","mcpRevision":"2025-06-18","subjectId":"worker","runId":"run1","tier":"cooperative","keySource":"file","auditState":"ok","covered":["reads through this connection"],"notProvided":["separation from processes of the same account"]}`, false},
	} {
		got, isError := c.call(tc.tool, tc.arguments)
		if got != tc.want || isError != tc.isError {
			t.Errorf("%s %s:\n got %s (isError %v)\nwant %s (isError %v)", tc.tool, tc.arguments, got, isError, tc.want, tc.isError)
		}
	}
	for _, asked := range b.Asked() {
		if !strings.HasPrefix(asked, "worker ") {
			t.Errorf("asked as somebody else: %s", asked)
		}
	}
}
