package daemon_test

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"subjectbroker/daemon/daemontest"
)

const (
	olderHello   = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"0"}}}`
	statelessTag = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"t","version":"0"},"io.modelcontextprotocol/clientCapabilities":{}}`
)

// The tools of the memory over stdio, in both eras: in the list while they can be used,
// callable in any case; what they answer is what they say that they answer.
func TestMemoryThroughTheShim(t *testing.T) {
	program := buildShim(t)
	for era, tag := range map[string]string{"older": "", "stateless": statelessTag} {
		t.Run(era, func(t *testing.T) {
			d := daemontest.Start(t)
			d.AddSubject("worker")
			remembering(t, d, "acme", "other")
			cmd := exec.Command(program, "--subject", "worker", "--home", d.Home)
			cmd.Env = []string{"HOME=" + t.TempDir()}
			s := startShim(t, cmd)
			if tag == "" {
				s.ask(olderHello)
			}
			listed := func() map[string]listedTool {
				t.Helper()
				var got struct{ Result struct{ Tools []listedTool } }
				must(t, json.Unmarshal([]byte(s.ask(`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{`+tag+`}}`)), &got))
				tools := map[string]listedTool{}
				for _, one := range got.Result.Tools {
					if slices.Contains(memoryTools, one.Name) {
						tools[one.Name] = one
					}
				}
				return tools
			}
			var schemas map[string]listedTool
			call := func(tool, arguments string) (structured map[string]any, isError bool) {
				t.Helper()
				params := fmt.Sprintf(`"name":%q,"arguments":%s`, tool, arguments)
				if tag != "" {
					params += "," + tag
				}
				line := s.ask(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{` + params + `}}`)
				var got struct {
					Result *struct {
						StructuredContent map[string]any
						IsError           bool
					}
				}
				if err := json.Unmarshal([]byte(line), &got); err != nil || got.Result == nil {
					t.Fatalf("%s is no result of a tool: %s", tool, line)
				}
				if schema, ok := schemas[tool]; ok {
					for _, wrong := range disagrees(schema.OutputSchema, got.Result.StructuredContent, tool) {
						t.Errorf("%s, in %s", wrong, line)
					}
				}
				return got.Result.StructuredContent, got.Result.IsError
			}
			reason := func(tool, arguments string) string {
				t.Helper()
				got, isError := call(tool, arguments)
				if isError == (got["reasonCode"] == "ALLOWED") {
					t.Errorf("%s: error %v with %v", tool, isError, got)
				}
				return fmt.Sprint(got["reasonCode"])
			}

			if got := listed(); len(got) != 0 {
				t.Errorf("without a right there are %v", got)
			}
			if got := reason("search_knowledge", `{"query":"plan"}`); got != "ACCESS_DENIED" {
				t.Errorf("without a right: %s", got)
			}
			d.Grant("worker", "memory.read:acme")
			if got := listed(); len(got) != 5 || got["capture_knowledge"].Name != "" {
				t.Errorf("who may read has %v", got)
			}
			write := d.Grant("worker", "memory.write:acme")
			schemas = listed()
			if len(schemas) != 6 {
				t.Fatalf("%v", schemas)
			}
			for name, one := range schemas {
				if one.Annotations.ReadOnlyHint == (name == "capture_knowledge") {
					t.Errorf("%s: read only %v", name, one.Annotations.ReadOnlyHint)
				}
				text, err := json.Marshal(one)
				must(t, err)
				for _, word := range []string{"sbctl", "sbd", "--", d.Home, ".sock"} {
					if strings.Contains(string(text), word) {
						t.Errorf("%s says %s", name, word)
					}
				}
			}

			captured, _ := call("capture_knowledge", `{"tenant":"acme","kind":"decision","title":"a plan","text":"in May","tags":["dates"]}`)
			entry, _ := captured["entry"].(map[string]any)
			first := fmt.Sprint(entry["entryId"])
			for tool, arguments := range map[string]string{
				"capture_knowledge": `{"tenant":"acme","kind":"decision","title":"a plan","text":"in June","supersedes":"` + first + `"}`,
				"search_knowledge":  `{"query":"plan*","tenants":["acme"],"kinds":["decision"],"since":"2020-01-01","limit":5}`,
				"browse_recent":     `{"limit":3}`, "knowledge_stats": `{}`,
				"read_entry": `{"entryId":"` + first + `"}`, "history": `{"entryId":"` + first + `"}`,
			} {
				if got := reason(tool, arguments); got != "ALLOWED" {
					t.Errorf("%s: %s", tool, got)
				}
			}
			for tool, all := range map[string][]string{
				"search_knowledge": {
					`{}`, `{"query":"x","tenant":"acme"}`, `{"query":"x","Tenants":["acme"]}`, `{"query":"x","tenants":[]}`, `{"query":"x","tenants":"acme"}`,
					`{"query":"x","limit":0}`, `{"query":"x","limit":"5"}`, `{"query":"x","since":"yesterday"}`, `{"query":"x","since":""}`, `{"query":""}`, `[]`,
				},
				"capture_knowledge": {`{"tenant":"acme","kind":"note","title":"x"}`, `{"tenant":"acme","kind":"rumour","title":"x","text":""}`, `{"tenant":"acme","kind":"note","title":"x","text":"","subject":"other"}`, `{"tenant":"acme","kind":"note","title":"x","text":"","supersedes":""}`},
				"read_entry":        {`{}`, `{"entryId":"` + first + `","tenant":"other"}`, `{"entryId":7}`},
				"browse_recent":     {`{"tenants":[]}`, `{"befor":"x"}`, `{"before":""}`}, "knowledge_stats": {`{"tenants":[]}`}, "history": {`{"id":"` + first + `"}`},
			} {
				for _, arguments := range all {
					if got := reason(tool, arguments); got != "INVALID_ARGUMENT" {
						t.Errorf("%s %s: %s", tool, arguments, got)
					}
				}
			}
			// What is wrong is said, and what it has to be, and nothing of what it is.
			for _, one := range []struct{ tool, arguments, argument, message string }{
				{"search_knowledge", `{}`, "query", "query is missing"},
				{"search_knowledge", `{"query":"zebra \"plan"}`, "query", "a phrase is opened and not closed"},
				{"search_knowledge", `{"query":"zeb*ra"}`, "query", "a * stands at the end of a word"},
				{"search_knowledge", `{"query":"?!"}`, "query", "there is no word in it"},
				{"search_knowledge", `{"query":7}`, "query", "query is a string"},
				{"search_knowledge", `{"query":"x","zebra":["acme"]}`, "", "none of query, tenants, kinds, since, limit"},
				{"search_knowledge", `{"query":"x","tenants":"zebra"}`, "tenants", "tenants is a list of one or more strings"},
				{"search_knowledge", `{"query":"x","tenants":["zebra/x"]}`, "tenants", "tenants are at most 64 names"},
				{"search_knowledge", `{"query":"x","kinds":["zebra"]}`, "kinds", "kinds are note, decision, lesson"},
				{"search_knowledge", `{"query":"x","since":"zebra"}`, "since", "since is a date such as"},
				{"search_knowledge", `{"query":"x","limit":101}`, "limit", "limit is a whole number from 1 to 100"},
				{"browse_recent", `{"before":"zebra"}`, "before", "before is the id of an entry"},
				{"read_entry", `{"entryId":"zebra"}`, "entryId", "entryId is the id of an entry"},
				{"history", `{"entryId":"zebra"}`, "entryId", "entryId is the id of an entry"},
				{"knowledge_stats", `{"tenants":[]}`, "tenants", "or left out"},
				{"capture_knowledge", `{"tenant":"acme","kind":"zebra","title":"x","text":""}`, "kind", "kind is one of note, decision, lesson"},
				{"capture_knowledge", `{"tenant":"acme","kind":"note","title":"zebra\nx","text":""}`, "title", "title is one line of 1 to 256 bytes"},
				{"capture_knowledge", `{"tenant":"acme","kind":"note","title":"x","text":"` + strings.Repeat("zebra", 10<<10) + `"}`, "text", "at most 48 KiB"},
				{"capture_knowledge", `{"tenant":"acme","kind":"note","title":"x","text":"","tags":["zebra\n"]}`, "tags", "a tag is one line of 1 to 64 bytes"},
				{"capture_knowledge", `{"tenant":"zebra/x","kind":"note","title":"x","text":""}`, "tenant", "tenant is the name of one"},
				{"capture_knowledge", `{"tenant":"acme","kind":"note","title":"x","text":"","supersedes":"` + first + `"}`, "supersedes", "read its history"},
				{"capture_knowledge", `{"tenant":"acme","kind":"note","title":"x","text":"","supersedes":"zebrazebrazebraz"}`, "supersedes", "supersedes is the id of a current entry"},
			} {
				got, _ := call(one.tool, one.arguments)
				argument, _ := got["argument"].(string)
				want := "INVALID_ARGUMENT"
				if strings.Contains(one.arguments, first) { // another took its place, which is nobody's fault
					want = "RESOURCE_CHANGED"
				}
				if said := fmt.Sprint(got["message"]); got["reasonCode"] != want || argument != one.argument || !strings.Contains(said, one.message) || strings.Contains(said, "zebra") {
					t.Errorf("%s %.80s: %v", one.tool, one.arguments, got)
				}
			}
			got, isError := call("search_knowledge", `{"query":"plan","tenants":["acme","other","nowhere"]}`)
			if !isError || got["reasonCode"] != "TENANT_OUT_OF_SCOPE" || got["tool"] != "search_knowledge" ||
				fmt.Sprint(got["requestedTenants"], got["allowedTenants"]) != "[acme nowhere other] [acme]" || got["hits"] != nil {
				t.Errorf("%v", got)
			}
			d.Revoke(write)
			if got := listed(); len(got) != 5 {
				t.Errorf("after the right went: %v", got)
			}
			if got := reason("capture_knowledge", `{"tenant":"acme","kind":"note","title":"x","text":""}`); got != "TENANT_OUT_OF_SCOPE" && got != "ACCESS_DENIED" {
				t.Errorf("after the right went: %s", got)
			}
		})
	}
}

// listedTool is a tool as tools/list has it.
type listedTool struct {
	Name, Description, Title  string
	InputSchema, OutputSchema map[string]any
	Annotations               struct{ ReadOnlyHint bool }
}

// disagrees says where a value is not as a schema has it; what a schema does not name
// must not be there.
func disagrees(schema map[string]any, value any, at string) (wrong []string) {
	kinds := map[string]bool{}
	switch v := value.(type) {
	case string:
		kinds["string"] = true
	case bool:
		kinds["boolean"] = true
	case float64:
		kinds["number"] = true
		kinds["integer"] = v == float64(int64(v))
	case []any:
		kinds["array"] = true
		items, _ := schema["items"].(map[string]any)
		for i, one := range v {
			wrong = append(wrong, disagrees(items, one, fmt.Sprintf("%s[%d]", at, i))...)
		}
	case map[string]any:
		kinds["object"] = true
		properties, _ := schema["properties"].(map[string]any)
		rest, _ := schema["additionalProperties"].(map[string]any)
		for name, one := range v {
			of, named := properties[name].(map[string]any)
			if !named {
				of = rest
			}
			if of == nil {
				wrong = append(wrong, at+"."+name+" is not in the schema")
				continue
			}
			wrong = append(wrong, disagrees(of, one, at+"."+name)...)
		}
		required, _ := schema["required"].([]any)
		for _, name := range required {
			if _, ok := v[fmt.Sprint(name)]; !ok {
				wrong = append(wrong, fmt.Sprint(at, ".", name, " is missing"))
			}
		}
	}
	if !kinds[fmt.Sprint(schema["type"])] {
		wrong = append(wrong, fmt.Sprintf("%s is no %v", at, schema["type"]))
	}
	if enum, ok := schema["enum"].([]any); ok && !slices.Contains(enum, value) {
		wrong = append(wrong, fmt.Sprintf("%s is none of %v", at, enum))
	}
	return wrong
}
