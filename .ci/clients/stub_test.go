package clients

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"
)

// stubArgument has this program be an MCP server instead of tests; one of the names
// in stubs follows it.
const stubArgument = "be-the-server"

// stubs are servers with the tools that the conformance suite calls. It knows them
// as its own reference server has them, and the broker puts the name of a server and
// a line before each name: test_simple_text is simple_text of the server test.
var stubs = map[string][]stubTool{
	"test": {
		{name: "simple_text", result: `{"content":[{"type":"text","text":"This is a simple text response for testing."}]}`},
		{name: "image_content", result: `{"content":[` + stubImage + `]}`},
		{name: "audio_content", result: `{"content":[{"type":"audio","data":"UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAAAAA==","mimeType":"audio/wav"}]}`},
		{name: "embedded_resource", result: `{"content":[{"type":"resource","resource":{"uri":"test://embedded-resource","mimeType":"text/plain","text":"This is an embedded resource content."}}]}`},
		{name: "multiple_content_types", result: `{"content":[{"type":"text","text":"Multiple content types test:"},` + stubImage + `,{"type":"resource","resource":{"uri":"test://mixed-content-resource","mimeType":"application/json","text":"{\"test\":\"data\",\"value\":123}"}}]}`},
		{name: "error_handling", result: `{"content":[{"type":"text","text":"This tool intentionally returns an error for testing"}],"isError":true}`},
		{name: "tool_with_progress", result: `{"content":[{"type":"text","text":"done"}]}`, progress: true},
		{name: "headers", schema: `{"type":"object","properties":{"region":{"type":"string","x-mcp-header":"Region"}}}`, result: `{"content":[{"type":"text","text":"done"}]}`},
		{name: "trigger_tool_change", result: `{"content":[{"type":"text","text":"changed"}]}`, changes: true},
		{name: "leaving_9"}, {name: "leaving_8"}, {name: "leaving_7"}, {name: "leaving_6"}, {name: "leaving_5"},
		{name: "leaving_4"}, {name: "leaving_3"}, {name: "leaving_2"}, {name: "leaving_1"},
	},
	"json": {
		{name: "schema_2020_12_tool", result: `{"content":[{"type":"text","text":"done"}]}`, schema: `{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object",` +
			`"$defs":{"address":{"$anchor":"addressDef","type":"object","properties":{"street":{"type":"string"},"city":{"type":"string"}}}},` +
			`"properties":{"name":{"type":"string"},"address":{"$ref":"#/$defs/address"},"contactMethod":{"type":"string","enum":["phone","email"]},"phone":{"type":"string"},"email":{"type":"string"}},` +
			`"allOf":[{"anyOf":[{"required":["phone"]},{"required":["email"]}]}],"if":{"properties":{"contactMethod":{"const":"phone"}},"required":["contactMethod"]},` +
			`"then":{"required":["phone"]},"else":{"required":["email"]},"additionalProperties":false}`},
	},
}

const stubImage = `{"type":"image","data":"iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==","mimeType":"image/png"}`

type stubTool struct {
	name, schema, result string
	progress             bool // says three times how far it is
	// changes takes the last tool away. What comes back within the second in which a
	// server's list is read once is no change.
	changes bool
}

// beTheServer speaks MCP on standard input and output until its input ends.
func beTheServer(name string, in io.Reader, out io.Writer) error {
	tools := stubs[name]
	for lines := bufio.NewScanner(in); lines.Scan(); {
		var request struct {
			ID     json.RawMessage
			Method string
			Params struct {
				Name            string
				ProtocolVersion string
				Meta            struct {
					ProgressToken json.RawMessage
				} `json:"_meta"`
			}
		}
		if err := json.Unmarshal(lines.Bytes(), &request); err != nil {
			return err
		}
		if request.ID == nil {
			continue
		}
		answer := `"error":{"code":-32601,"message":"method not found"}`
		switch request.Method {
		case "initialize":
			answer = fmt.Sprintf(`"result":{"protocolVersion":%q,"capabilities":{"tools":{"listChanged":true}},"serverInfo":{"name":"stub","version":"1"}}`, request.Params.ProtocolVersion)
		case "tools/list":
			var listed []string
			for _, one := range tools {
				schema := one.schema
				if schema == "" {
					schema = `{"type":"object","properties":{}}`
				}
				listed = append(listed, fmt.Sprintf(`{"name":%q,"description":"For the conformance suite.","inputSchema":%s}`, one.name, schema))
			}
			answer = `"result":{"tools":[` + strings.Join(listed, ",") + `]}`
		case "tools/call":
			for _, one := range tools {
				if one.name != request.Params.Name {
					continue
				}
				for percent := 0; one.progress && request.Params.Meta.ProgressToken != nil && percent <= 100; percent += 50 {
					fmt.Fprintf(out, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":%d,"total":100}}`+"\n", request.Params.Meta.ProgressToken, percent)
					time.Sleep(50 * time.Millisecond)
				}
				if one.changes {
					tools = tools[:len(tools)-1]
					fmt.Fprintln(out, `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
				}
				answer = `"result":` + one.result
				break
			}
		}
		if _, err := fmt.Fprintf(out, `{"jsonrpc":"2.0","id":%s,%s}`+"\n", request.ID, answer); err != nil {
			return err
		}
	}
	return nil
}

// stub is the program that is a server when it is told to.
func (h *house) stub(t *testing.T) string {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return program
}

// toBe is the server that this program is to be, if it is to be one.
func toBe() (name string, is bool) {
	if len(os.Args) == 3 && os.Args[1] == stubArgument {
		return os.Args[2], true
	}
	return "", false
}
