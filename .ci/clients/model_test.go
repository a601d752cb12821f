package clients

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
)

// model is a language model that knows one thing: list the resources, read the
// one called greeting, and say what it read. It answers in the four dialects
// that the agents speak, each streamed, and never keeps state between requests:
// what has been called stands in the conversation it is sent.
type model struct {
	server *httptest.Server
	only   step // instead of all that, a call of this tool, by the end of its name

	mu      sync.Mutex
	tools   []string // of the broker, as the agent offered them
	results []string // of the broker's tools, as the agent sent them back
	strange []string // requests for anything else
	keys    []string // that the agent showed, each once
}

func startModel(t *testing.T) *model {
	m := &model{}
	m.server = httptest.NewServer(http.HandlerFunc(m.serve))
	t.Cleanup(m.server.Close)
	return m
}

// turn is what the model sees of a conversation, whatever the dialect.
type turn struct {
	tools   []string
	results []string
}

// step is what it does next: call a tool, or say something.
type step struct {
	tool string
	args map[string]any
	say  string
}

// next decides. The tools are called by the names the agent gave them, which end in ours.
func (m *model) next(t turn) step {
	named := map[string]string{}
	for _, tool := range t.tools {
		for _, ours := range []string{"list_resources", "read_resource", "explain_decision", "capability_report", m.only.tool} {
			if ours != "" && strings.HasSuffix(tool, ours) && strings.Contains(tool, "subject") {
				named[ours] = tool
			}
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(named) == 0 {
		return step{say: "ok"} // a title or a summary is asked for
	}
	m.tools = m.tools[:0]
	for ours := range named {
		m.tools = append(m.tools, ours)
	}
	m.results = t.results
	switch {
	case m.only.tool != "" && len(t.results) == 0:
		return step{tool: named[m.only.tool], args: m.only.args}
	case m.only.tool != "":
		return step{say: "It says: " + t.results[0]}
	}
	switch len(t.results) {
	case 0:
		return step{tool: named["list_resources"], args: map[string]any{}}
	case 1:
		return step{tool: named["read_resource"], args: map[string]any{"resourceId": "greeting"}}
	default:
		return step{say: "It says: " + t.results[1]}
	}
}

func (m *model) serve(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 16<<20))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	m.saw(r)
	switch path := r.URL.Path; {
	case r.Method == http.MethodPost && strings.HasSuffix(path, "/v1/messages"):
		m.anthropic(w, body)
	case r.Method == http.MethodPost && strings.HasSuffix(path, "/chat/completions"):
		m.chat(w, body)
	case r.Method == http.MethodPost && strings.HasSuffix(path, "/responses"):
		m.responses(w, body)
	case r.Method == http.MethodPost && strings.HasSuffix(path, ":streamGenerateContent"):
		m.gemini(w, body, true)
	case r.Method == http.MethodPost && strings.HasSuffix(path, ":generateContent"):
		m.gemini(w, body, false)
	default:
		m.mu.Lock()
		m.strange = append(m.strange, r.Method+" "+path)
		m.mu.Unlock()
		http.NotFound(w, r)
	}
}

// saw remembers the key of a request.
func (m *model) saw(r *http.Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	bearer, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	for _, key := range []string{r.Header.Get("X-Api-Key"), r.Header.Get("X-Goog-Api-Key"), r.URL.Query().Get("key"), bearer} {
		if key != "" && !slices.Contains(m.keys, key) {
			m.keys = append(m.keys, key)
		}
	}
}

// events writes server-sent events; an empty name leaves the name out.
type events struct {
	w http.ResponseWriter
}

func stream(w http.ResponseWriter) events {
	w.Header().Set("Content-Type", "text/event-stream")
	return events{w}
}

func (e events) send(name string, data any) {
	text, err := json.Marshal(data)
	if err != nil {
		panic(err) // the data is ours
	}
	if name != "" {
		fmt.Fprintf(e.w, "event: %s\n", name)
	}
	fmt.Fprintf(e.w, "data: %s\n\n", text)
	e.w.(http.Flusher).Flush()
}

type object = map[string]any

func encode(args map[string]any) string {
	text, err := json.Marshal(args)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// flat is the text of a tool result, which may be a string or a list of parts.
func flat(raw json.RawMessage) string {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return text
	}
	var parts []struct {
		Text string `json:"text"`
	}
	if json.Unmarshal(raw, &parts) == nil {
		for _, part := range parts {
			text += part.Text
		}
		return text
	}
	return string(raw)
}

func (m *model) anthropic(w http.ResponseWriter, body []byte) {
	var request struct {
		Stream   bool
		Tools    []struct{ Name string }
		Messages []struct {
			Content json.RawMessage
		}
	}
	if err := json.Unmarshal(body, &request); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	var t turn
	for _, tool := range request.Tools {
		t.tools = append(t.tools, tool.Name)
	}
	for _, message := range request.Messages {
		var blocks []struct {
			Type    string
			Content json.RawMessage
		}
		if json.Unmarshal(message.Content, &blocks) != nil {
			continue
		}
		for _, block := range blocks {
			if block.Type == "tool_result" {
				t.results = append(t.results, flat(block.Content))
			}
		}
	}
	s := m.next(t)
	block, delta, reason := object{"type": "text", "text": ""}, object{"type": "text_delta", "text": s.say}, "end_turn"
	full := object{"type": "text", "text": s.say}
	if s.tool != "" {
		id := fmt.Sprintf("toolu_%d", len(t.results))
		block = object{"type": "tool_use", "id": id, "name": s.tool, "input": object{}}
		delta, reason = object{"type": "input_json_delta", "partial_json": encode(s.args)}, "tool_use"
		full = object{"type": "tool_use", "id": id, "name": s.tool, "input": s.args}
	}
	message := object{"id": "msg_1", "type": "message", "role": "assistant", "model": "fake", "content": []any{}, "stop_reason": nil, "stop_sequence": nil, "usage": object{"input_tokens": 1, "output_tokens": 1}}
	if !request.Stream {
		message["content"], message["stop_reason"] = []any{full}, reason
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, encode(message))
		return
	}
	e := stream(w)
	e.send("message_start", object{"type": "message_start", "message": message})
	e.send("content_block_start", object{"type": "content_block_start", "index": 0, "content_block": block})
	e.send("content_block_delta", object{"type": "content_block_delta", "index": 0, "delta": delta})
	e.send("content_block_stop", object{"type": "content_block_stop", "index": 0})
	e.send("message_delta", object{"type": "message_delta", "delta": object{"stop_reason": reason, "stop_sequence": nil}, "usage": object{"output_tokens": 1}})
	e.send("message_stop", object{"type": "message_stop"})
}

func (m *model) chat(w http.ResponseWriter, body []byte) {
	var request struct {
		Tools []struct {
			Function struct{ Name string }
		}
		Messages []struct {
			Role    string
			Content json.RawMessage
		}
	}
	if err := json.Unmarshal(body, &request); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	var t turn
	for _, tool := range request.Tools {
		t.tools = append(t.tools, tool.Function.Name)
	}
	for _, message := range request.Messages {
		if message.Role == "tool" {
			t.results = append(t.results, flat(message.Content))
		}
	}
	s := m.next(t)
	delta, reason := object{"role": "assistant", "content": s.say}, "stop"
	if s.tool != "" {
		delta, reason = object{"role": "assistant", "tool_calls": []any{object{
			"index": 0, "id": fmt.Sprintf("call_%d", len(t.results)), "type": "function",
			"function": object{"name": s.tool, "arguments": encode(s.args)},
		}}}, "tool_calls"
	}
	chunk := func(delta object, reason any) object {
		return object{"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "fake", "choices": []any{object{"index": 0, "delta": delta, "finish_reason": reason}}}
	}
	e := stream(w)
	e.send("", chunk(delta, nil))
	e.send("", chunk(object{}, reason))
	fmt.Fprint(w, "data: [DONE]\n\n")
}

func (m *model) responses(w http.ResponseWriter, body []byte) {
	type tool struct {
		Type, Name string
		Tools      []struct{ Name string }
	}
	var request struct {
		Tools []tool
		Input []struct {
			Type   string
			Output json.RawMessage
		}
	}
	if err := json.Unmarshal(body, &request); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	var t turn
	spaces := map[string]string{}
	for _, tool := range request.Tools {
		t.tools = append(t.tools, tool.Name)
		// Tools of one server may come as a namespace.
		for _, inner := range tool.Tools {
			name := tool.Name + inner.Name
			t.tools, spaces[name] = append(t.tools, name), tool.Name
		}
	}
	for _, item := range request.Input {
		if item.Type == "function_call_output" {
			t.results = append(t.results, flat(item.Output))
		}
	}
	s := m.next(t)
	item := object{"type": "message", "id": "m1", "role": "assistant", "content": []any{object{"type": "output_text", "text": s.say}}}
	if s.tool != "" {
		item = object{"type": "function_call", "id": "f1", "call_id": fmt.Sprintf("call_%d", len(t.results)), "name": s.tool, "arguments": encode(s.args)}
		if space := spaces[s.tool]; space != "" {
			item["namespace"], item["name"] = space, strings.TrimPrefix(s.tool, space)
		}
	}
	e := stream(w)
	e.send("response.created", object{"type": "response.created", "response": object{"id": "r1"}})
	e.send("response.output_item.done", object{"type": "response.output_item.done", "output_index": 0, "item": item})
	e.send("response.completed", object{"type": "response.completed", "response": object{"id": "r1", "output": []any{item}, "usage": object{
		"input_tokens": 1, "output_tokens": 1, "total_tokens": 2, "input_tokens_details": nil, "output_tokens_details": nil,
	}}})
}

func (m *model) gemini(w http.ResponseWriter, body []byte, streamed bool) {
	var request struct {
		Tools []struct {
			FunctionDeclarations []struct{ Name string }
		}
		Contents []struct {
			Parts []struct {
				FunctionResponse *struct{ Response json.RawMessage }
			}
		}
	}
	if err := json.Unmarshal(body, &request); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	var t turn
	for _, tool := range request.Tools {
		for _, f := range tool.FunctionDeclarations {
			t.tools = append(t.tools, f.Name)
		}
	}
	for _, content := range request.Contents {
		for _, part := range content.Parts {
			if part.FunctionResponse != nil {
				t.results = append(t.results, string(part.FunctionResponse.Response))
			}
		}
	}
	s := m.next(t)
	part := object{"text": s.say}
	if s.tool != "" {
		part = object{"functionCall": object{"name": s.tool, "args": s.args}}
	}
	answer := object{
		"candidates":    []any{object{"index": 0, "content": object{"role": "model", "parts": []any{part}}, "finishReason": "STOP"}},
		"usageMetadata": object{"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2},
	}
	if streamed {
		stream(w).send("", answer)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprint(w, encode(answer))
}
