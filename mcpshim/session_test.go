package mcpshim

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"subjectbroker/grants"
	"subjectbroker/proto/wire"
	"subjectbroker/worker"
	"subjectbroker/worker/workertest"
)

// meta is what every request of the stateless era carries.
const meta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"test","version":"0"},"io.modelcontextprotocol/clientCapabilities":{}}`

// Every revision of the handshake is spoken as asked for.
func TestHandshakes(t *testing.T) {
	b := workertest.Start(t)
	b.Allow("worker")
	for asked, want := range map[string]string{
		"2024-11-05": "2024-11-05", "2025-03-26": "2025-03-26", "2025-06-18": "2025-06-18", "2025-11-25": "2025-11-25",
		"2026-07-28": "2025-11-25", // has no handshake
		"1999-01-01": "2025-11-25",
	} {
		c := start(t, b, "worker", func(config *Config) { config.ServerName = "my broker" })
		got := c.ask(strings.Replace(initialize, "2025-06-18", asked, 1))
		for _, part := range []string{`"protocolVersion":"` + want + `"`, `"serverInfo":{"name":"my broker","version":"1.2.3"}`, `"resources":{"listChanged":true,"subscribe":true}`, `"tools":{"listChanged":true}`, "must not be retried"} {
			if !strings.Contains(got, part) {
				t.Errorf("initialize %s: no %s in %s", asked, part, got)
			}
		}
		if strings.Contains(got, "worker") {
			t.Errorf("initialize %s names a subject before there is one: %s", asked, got)
		}
		if strings.Contains(got, "logging") || strings.Contains(got, "prompts") {
			t.Errorf("initialize %s promises too much: %s", asked, got)
		}
	}
}

// The stateless era needs no handshake; what it returns is private.
func TestStateless(t *testing.T) {
	b := workertest.Start(t)
	b.Put("plan", "text", []byte("the plan"))
	b.Put("blob", "binary", []byte{0xff})
	b.Allow("worker", "plan", "blob")
	c := start(t, b, "worker")
	for _, tc := range []struct{ method, params, want string }{
		{"server/discover", ``, `"supportedVersions":["2026-07-28","2025-11-25","2025-06-18","2025-03-26","2024-11-05"]`},
		{"server/discover", ``, `"cacheScope":"private"`},
		{"tools/list", ``, `"cacheScope":"private"`},
		{"resources/list", ``, `"cacheScope":"private"`},
		{"resources/list", ``, `"resources":[{"mimeType":"application/octet-stream","name":"blob","size":1,"uri":"sb://resource/blob"},{"mimeType":"text/plain","name":"plan","size":8,"uri":"sb://resource/plan"}]`},
		{"resources/templates/list", ``, `"cacheScope":"private"`},
		{"resources/read", `,"uri":"sb://resource/plan"`, `"contents":[{"uri":"sb://resource/plan","mimeType":"text/plain","text":"the plan"}]`},
		{"resources/read", `,"uri":"sb://resource/plan"`, `"cacheScope":"private"`},
		{"resources/read", `,"uri":"sb://resource/blob"`, `"contents":[{"uri":"sb://resource/blob","mimeType":"application/octet-stream","blob":"/w=="}]`},
		{"tools/call", `,"name":"read_resource","arguments":{"resourceId":"plan"}`, `"structuredContent":{"decision":"allow","reasonCode":"ALLOWED","resourceId":"plan","content":"the plan"}`},
		{"tools/call", `,"name":"read_resource","arguments":{"resourceId":"plan"}`, `"resultType":"complete"`},
		{"tools/call", `,"name":"capability_report"`, `"mcpRevision":"2026-07-28"`},
	} {
		got := c.ask(`{"jsonrpc":"2.0","id":1,"method":"` + tc.method + `","params":{` + meta + tc.params + `}}`)
		if !strings.Contains(got, tc.want) || strings.Contains(got, "ticket-") {
			t.Errorf("%s %s: no %s in %s", tc.method, tc.params, tc.want, got)
		}
	}
}

// Nothing that a client can list says more than it should.
func TestTexts(t *testing.T) {
	b := workertest.Start(t)
	b.Allow("worker")
	c := start(t, b, "worker")
	c.greet()
	line := c.ask(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
	var listed struct {
		Result struct {
			Tools []struct {
				Name, Description         string
				InputSchema, OutputSchema map[string]any
			}
		}
	}
	if err := json.Unmarshal([]byte(line), &listed); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, tool := range listed.Result.Tools {
		names = append(names, tool.Name)
		if !strings.Contains(tool.Description, `subject "worker"`) || !strings.Contains(tool.Description, "must not be retried through another connection") {
			t.Errorf("%s: %s", tool.Name, tool.Description)
		}
		for _, schema := range []map[string]any{tool.InputSchema, tool.OutputSchema} {
			if schema["type"] != "object" || schema["additionalProperties"] != false {
				t.Errorf("%s: a schema is not strict: %v", tool.Name, schema)
			}
		}
	}
	slices.Sort(names)
	if diff := cmp.Diff([]string{grants.ToolReport, grants.ToolExplain, grants.ToolList, grants.ToolRead}, names); diff != "" {
		t.Error(diff)
	}
	texts := line + instructions
	for reason := range sentences {
		texts += protocolError(reason).Message
	}
	for _, word := range []string{"sbctl", "sbd", "--", "/run", ".sock", b.Home, "NO_GRANT", "grant the"} {
		if strings.Contains(texts, word) {
			t.Errorf("a text says %q", word)
		}
	}
}

// Every public reason has a sentence and a decision.
func TestEveryReasonIsKnown(t *testing.T) {
	for _, reason := range []wire.Reason{
		wire.AccessDenied, wire.InvalidArgument, wire.ResourceChanged, wire.ResourceTooLarge, wire.ResourceEncodingInvalid, wire.ApprovalPending,
		wire.ApprovalDenied, wire.ApprovalExpired, wire.RateLimited, wire.PolicyBlocked, wire.RunEnded, wire.AuditFailed, wire.VaultLocked,
		wire.IntegrityFailed, wire.PolicyUnavailable, wire.BrokerUnavailable, wire.PlatformUnsupported, wire.TenantOutOfScope, wire.ServerUnavailable, wire.InternalError,
	} {
		if reason != wire.InternalError && sentences[reason] == "" {
			t.Errorf("%s has no sentence", reason)
		}
		if got := public(wire.Deny(reason)); got != reason {
			t.Errorf("%s is told as %s", reason, got)
		}
		b := workertest.Start(t)
		b.Put("plan", "text", []byte("x"))
		b.Allow("worker", "plan")
		b.OnAcquire(func(context.Context, string, string) error { return wire.Deny(reason) })
		c := start(t, b, "worker")
		c.greet()
		want := fmt.Sprintf(`{"decision":%q,"reasonCode":%q,"resourceId":"plan"}`, decision(reason), reason)
		if got, isError := c.call("read_resource", `{"resourceId":"plan"}`); got != want || !isError {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	for err, want := range map[error]wire.Reason{
		&wire.Error{Reason: wire.SocketUnsafe}:    wire.BrokerUnavailable,
		&wire.Error{Reason: wire.ConfigInvalid}:   wire.BrokerUnavailable,
		&wire.Error{Reason: "SOMETHING_NEW"}:      wire.InternalError,
		context.DeadlineExceeded:                  wire.BrokerUnavailable,
		wire.Deny("SOMETHING_WORSE"):              wire.InternalError,
		&wire.Error{Reason: wire.IntegrityFailed}: wire.IntegrityFailed,
	} {
		if got := public(err); got != want {
			t.Errorf("%v is told as %s, want %s", err, got, want)
		}
	}
}

// What is unknown and what is forbidden read the same as mcp.Resource too.
func TestReadDenied(t *testing.T) {
	b := workertest.Start(t)
	b.Put("other", "text", []byte("not yours"))
	b.Allow("worker")
	c := start(t, b, "worker")
	c.greet()
	read := func(uri string) string {
		return c.ask(`{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"` + uri + `"}}`)
	}
	want := read("sb://resource/absent")
	if !strings.Contains(want, `"code":-32602,"message":"ACCESS_DENIED: `) {
		t.Errorf("got %s", want)
	}
	if got := read("sb://resource/other"); got != want {
		t.Errorf("forbidden: %s\nunknown:   %s", got, want)
	}
}

// Without a daemon everything but the content is answered; when it comes the
// client is told, and again after it was away.
func TestWithoutADaemon(t *testing.T) {
	b := workertest.New(t)
	b.Put("plan", "text", []byte("the plan"))
	b.Allow("worker", "plan")
	c := start(t, b, "worker")
	c.greet()
	const list = `{"jsonrpc":"2.0","id":1,"method":"resources/list"}`
	if got := c.ask(list); !strings.Contains(got, `"resources":[]`) {
		t.Errorf("list: %s", got)
	}
	for tool, want := range map[string]string{
		"list_resources":   `{"resources":[],"reasonCode":"BROKER_UNAVAILABLE"}`,
		"read_resource":    `{"decision":"error","reasonCode":"BROKER_UNAVAILABLE","resourceId":"plan"}`,
		"explain_decision": `{"decision":"error","reasonCode":"BROKER_UNAVAILABLE","resourceId":"plan","action":"read"}`,
	} {
		if got, isError := c.call(tool, `{"resourceId":"plan"}`); got != want || !isError {
			t.Errorf("%s: %s", tool, got)
		}
	}
	if got, isError := c.call("capability_report", `{}`); !isError || !strings.HasPrefix(got, `{"reasonCode":"BROKER_UNAVAILABLE","version":"1.2.3"`) || strings.Contains(got, "tier") {
		t.Errorf("capability_report: %s", got)
	}
	const changed = `{"jsonrpc":"2.0","method":"notifications/resources/list_changed","params":{}}`
	for range 2 {
		b.Start()
		if got := c.next(); got != changed {
			t.Errorf("after the start: %s", got)
		}
		if got := c.ask(list); !strings.Contains(got, `"name":"plan"`) {
			t.Errorf("list: %s", got)
		}
		if got, isError := c.call("read_resource", `{"resourceId":"plan"}`); isError {
			t.Errorf("read: %s", got)
		}
		b.Stop()
	}
}

// Grants and content that change are told to those who asked.
func TestNotifications(t *testing.T) {
	b := workertest.Start(t)
	b.Put("plan", "text", []byte("1"))
	b.Allow("worker")
	b.Allow("other", "plan")
	c := start(t, b, "worker")
	c.greet()
	c.call("list_resources", `{}`)
	workertest.Eventually(t, "the run is watched", func() bool { return b.Runs() == 1 })

	b.Allow("worker", "plan")
	if got := c.next(); !strings.Contains(got, "list_changed") {
		t.Errorf("after a grant: %s", got)
	}
	c.ask(`{"jsonrpc":"2.0","id":1,"method":"resources/subscribe","params":{"uri":"sb://resource/plan"}}`)
	b.Put("plan", "text", []byte("2"))
	if got := c.next(); got != `{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"sb://resource/plan"}}` {
		t.Errorf("after a change: %s", got)
	}
	c.ask(`{"jsonrpc":"2.0","id":1,"method":"resources/unsubscribe","params":{"uri":"sb://resource/plan"}}`)
	b.Put("plan", "text", []byte("3"))
	b.Revoke("worker", "plan")
	if got := c.next(); !strings.Contains(got, "list_changed") {
		t.Errorf("after a revocation: %s", got)
	}
	b.Put("plan", "text", []byte("4"))
	if got := c.ask(`{"jsonrpc":"2.0","id":2,"method":"ping"}`); !strings.HasPrefix(got, `{"jsonrpc":"2.0","id":2`) {
		t.Errorf("of what may not be read: %s", got)
	}
}

// The stateless era has a stream for that, named by the client's id as it was
// written; it ends with the input, and is answered.
func TestListen(t *testing.T) {
	b := workertest.Start(t)
	b.Put("plan", "text", []byte("1"))
	b.Allow("worker", "plan")
	c := start(t, b, "worker")
	const id = `9007199254740993.0`
	c.send(`{"jsonrpc":"2.0","id":` + id + `,"method":"subscriptions/listen","params":{` + meta + `,"notifications":{"resourcesListChanged":true,"resourceSubscriptions":["sb://resource/plan"]}}}`)
	const sub = `"io.modelcontextprotocol/subscriptionId":` + id
	expect := func(parts ...string) {
		t.Helper()
		line := c.next()
		for _, part := range append(parts, sub) {
			if !strings.Contains(line, part) {
				t.Errorf("no %s in %s", part, line)
			}
		}
	}
	expect("notifications/subscriptions/acknowledged")
	c.ask(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{` + meta + `,"name":"list_resources"}}`)
	b.Put("plan", "text", []byte("2"))
	expect("notifications/resources/updated", "sb://resource/plan")
	b.Revoke("worker", "plan")
	expect("notifications/resources/list_changed")
	c.in.Close()
	expect(`"id":`+id, `"result"`)
	if line, more := <-c.lines; more {
		t.Errorf("after the end: %s", line)
	}
}

func TestPages(t *testing.T) {
	b := workertest.Start(t)
	var names []string
	for i := range pageSize + 10 {
		name := fmt.Sprintf("doc-%05d", i)
		names = append(names, name)
		b.Put(name, "text", nil)
	}
	b.Allow("worker", names...)
	c := start(t, b, "worker")
	c.greet()
	var got []string
	for cursor := "first"; cursor != ""; {
		params := `{}`
		if cursor != "first" {
			params = `{"cursor":"` + cursor + `"}`
		}
		var page struct {
			Result struct {
				NextCursor string
				Resources  []struct{ Name string }
			}
		}
		if err := json.Unmarshal([]byte(c.ask(`{"jsonrpc":"2.0","id":1,"method":"resources/list","params":`+params+`}`)), &page); err != nil {
			t.Fatal(err)
		}
		if len(page.Result.Resources) > pageSize {
			t.Errorf("a page of %d", len(page.Result.Resources))
		}
		for _, one := range page.Result.Resources {
			got = append(got, one.Name)
		}
		cursor = page.Result.NextCursor
	}
	if diff := cmp.Diff(names, got); diff != "" {
		t.Error(diff)
	}
}

// The SDK's own client, in whatever era it prefers.
func TestSDKClient(t *testing.T) {
	b := workertest.Start(t)
	large := strings.Repeat("a line with \"quotes\", \\ and é\n", 1<<15) // about 1 MiB
	b.Put("large", "text", []byte(large))
	b.Put("blob", "binary", []byte{0, 1, 2, 0xff})
	b.Allow("worker", "large", "blob")

	inReader, inWriter := io.Pipe()
	outReader, outWriter := io.Pipe()
	served := make(chan error, 1)
	go func() {
		served <- Serve(t.Context(), Config{Worker: worker.Config{Places: b.Places, Subject: "worker", Version: "1"}, In: inReader, Out: outWriter})
		outWriter.Close()
	}()
	session, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "0"}, nil).Connect(t.Context(), &mcp.IOTransport{Reader: outReader, Writer: inWriter}, nil)
	if err != nil {
		t.Fatal(err)
	}
	tools, err := session.ListTools(t.Context(), nil)
	if err != nil || len(tools.Tools) != 4 {
		t.Errorf("tools: %v, %v", tools, err)
	}
	got, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "read_resource", Arguments: map[string]any{"resourceId": "large"}})
	if err != nil || got.IsError {
		t.Fatalf("read_resource: %v, %v", got, err)
	}
	if content := got.StructuredContent.(map[string]any)["content"]; content != large {
		t.Error("the document came back as another one")
	}
	var text map[string]any
	if err := json.Unmarshal([]byte(got.Content[0].(*mcp.TextContent).Text), &text); err != nil || text["content"] != large {
		t.Errorf("the document came back as another text: %v", err)
	}
	read, err := session.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "sb://resource/blob"})
	if err != nil || string(read.Contents[0].Blob) != "\x00\x01\x02\xff" {
		t.Errorf("blob: %+v, %v", read, err)
	}
	listed, err := session.ListResources(t.Context(), nil)
	if err != nil || len(listed.Resources) != 2 {
		t.Errorf("resources: %+v, %v", listed, err)
	}
	session.Close()
	if err := <-served; err != nil {
		t.Errorf("Serve: %v", err)
	}
}

// What waits for a person says so with the id that the person sees, in words that
// begin with it where there are only words.
func TestReadWaitsForAPerson(t *testing.T) {
	b := workertest.Start(t)
	b.Put("plan", "text", []byte("the plan"))
	b.Allow("worker", "plan")
	b.OnAcquire(func(context.Context, string, string) error { return wire.Pending("abcdefghjk") })
	c := start(t, b, "worker")
	c.greet()
	want := `{"decision":"pending","reasonCode":"APPROVAL_PENDING","resourceId":"plan","approvalId":"abcdefghjk"}`
	if got, isError := c.call("read_resource", `{"resourceId":"plan"}`); got != want || !isError {
		t.Errorf("got %s, want %s", got, want)
	}
	want = `"error":{"code":-32001,"message":"APPROVAL_PENDING id=abcdefghjk: A person has not answered yet. `
	if got := c.ask(`{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"sb://resource/plan"}}`); !strings.Contains(got, want) {
		t.Errorf("got %s, want %s", got, want)
	}
	b.OnAcquire(nil)
	if got, _ := c.call("read_resource", `{"resourceId":"plan"}`); !strings.Contains(got, "the plan") {
		t.Errorf("afterwards it is %s", got)
	}
}
