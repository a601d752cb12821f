package mcpshim

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"subjectbroker/mcpshim/strict"
	"subjectbroker/proto/wire"
	"subjectbroker/worker/workertest"
)

// hostile lines, each with what it gets: the id of the answer as it is written
// and the error's code; no code means no answer.
var hostile = []struct {
	name, line, id string
	code           int
}{
	{"not JSON", `hello`, "null", -32700},
	{"half an object", `{"jsonrpc":"2.0","id":1`, "null", -32700},
	{"trailing comma", `{"jsonrpc":"2.0","id":1,"method":"ping",}`, "null", -32700},
	{"single quotes", `{'jsonrpc':'2.0','id':1,'method':'ping'}`, "null", -32700},
	{"trailing word", `{"jsonrpc":"2.0","id":1,"method":"ping"} x`, "null", -32700},
	{"two objects", `{"jsonrpc":"2.0","id":1,"method":"ping"}{"jsonrpc":"2.0","id":2,"method":"ping"}`, "null", -32700},
	{"trailing brace", `{"jsonrpc":"2.0","id":1,"method":"ping"}}`, "null", -32700},
	{"byte order mark", "\xef\xbb\xbf" + `{"jsonrpc":"2.0","id":1,"method":"ping"}`, "null", -32700},
	{"UTF-16", "\xff\xfe{\x00}\x00", "null", -32700},
	{"invalid UTF-8 in a string", "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\",\"params\":{\"a\":\"\xff\"}}", "null", -32700},
	{"overlong UTF-8", "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xc0\xaf\"}", "null", -32700},
	{"surrogate in UTF-8", "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xed\xa0\x80\"}", "null", -32700},
	{"NUL", "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\x00\"}", "null", -32700},
	{"control character", "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"pi\tng\"}", "null", -32700},
	{"bad escape", `{"jsonrpc":"2.0","id":1,"method":"\x70ing"}`, "null", -32700},
	{"NaN", `{"jsonrpc":"2.0","id":NaN,"method":"ping"}`, "null", -32700},
	{"infinity", `{"jsonrpc":"2.0","id":Infinity,"method":"ping"}`, "null", -32700},
	{"hexadecimal", `{"jsonrpc":"2.0","id":0x1,"method":"ping"}`, "null", -32700},
	{"leading zero", `{"jsonrpc":"2.0","id":01,"method":"ping"}`, "null", -32700},
	{"comment", `{"jsonrpc":"2.0",/* */"id":1,"method":"ping"}`, "null", -32700},
	{"a vertical tab for space", "{\"jsonrpc\":\"2.0\",\v\"id\":1,\"method\":\"ping\"}", "null", -32700},
	{"HTTP", "GET / HTTP/1.1", "null", -32700},
	{"a header", "Content-Length: 42", "null", -32700},
	{"broken batch", `[{"jsonrpc":"2.0"`, "null", -32700},

	{"batch", `[{"jsonrpc":"2.0","id":1,"method":"ping"}]`, "null", -32600},
	{"empty batch", `[]`, "null", -32600},
	{"a string", `"ping"`, "null", -32600},
	{"a number", `1`, "null", -32600},
	{"null", `null`, "null", -32600},
	{"true", `true`, "null", -32600},
	{"an empty object", `{}`, "null", -32600},
	{"id true", `{"jsonrpc":"2.0","id":true,"method":"ping"}`, "null", -32600},
	{"id null", `{"jsonrpc":"2.0","id":null,"method":"ping"}`, "null", -32600},
	{"id object", `{"jsonrpc":"2.0","id":{},"method":"ping"}`, "null", -32600},
	{"id array", `{"jsonrpc":"2.0","id":[1],"method":"ping"}`, "null", -32600},
	{"id too long", `{"jsonrpc":"2.0","id":"` + strings.Repeat("x", strict.MaxID) + `","method":"ping"}`, "null", -32600},
	{"no version", `{"id":"v","method":"ping"}`, `"v"`, -32600},
	{"version 1.0", `{"jsonrpc":"1.0","id":"v","method":"ping"}`, `"v"`, -32600},
	{"version a number", `{"jsonrpc":2.0,"id":"v","method":"ping"}`, `"v"`, -32600},
	{"keys in capitals", `{"JSONRPC":"2.0","ID":1,"METHOD":"ping"}`, "null", -32600},
	{"a URI with an escape", `{"jsonrpc":"2.0","id":"u","method":"resources/read","params":{"uri":"sb://resource/a\u001bb"}}`, `"u"`, -32602},
	{"a URI with a NUL", `{"jsonrpc":"2.0","id":"u","method":"resources/read","params":{"uri":"sb://resource/\u0000"}}`, `"u"`, -32602},
	{"a URI of tag characters", `{"jsonrpc":"2.0","id":"u","method":"resources/read","params":{"uri":"\udb40\udc41\u202e"}}`, `"u"`, -32602},
	{"method a number", `{"jsonrpc":"2.0","id":"m","method":1}`, `"m"`, -32600},
	{"method null", `{"jsonrpc":"2.0","id":"m","method":null}`, `"m"`, -32600},
	{"no method", `{"jsonrpc":"2.0","id":"m"}`, `"m"`, -32600},
	{"request and response", `{"jsonrpc":"2.0","id":"m","method":"ping","result":{}}`, `"m"`, -32600},
	{"result and error", `{"jsonrpc":"2.0","id":"m","result":{},"error":{}}`, `"m"`, -32600},
	{"duplicate method", `{"jsonrpc":"2.0","id":"d","method":"ping","method":"tools/call"}`, `"d"`, -32600},
	{"duplicate method, escaped", `{"jsonrpc":"2.0","id":"d","method":"ping","m\u0065thod":"tools/call"}`, `"d"`, -32600},
	{"duplicate id", `{"jsonrpc":"2.0","id":"d","id":"e","method":"ping"}`, "null", -32600},
	{"duplicate argument", `{"jsonrpc":"2.0","id":"d","method":"tools/call","params":{"name":"read_resource","arguments":{"resourceId":"a","resourceId":"b"}}}`, `"d"`, -32600},
	{"deep array", `{"jsonrpc":"2.0","id":"n","method":"ping","params":{"a":` + strings.Repeat("[", 100000) + strings.Repeat("]", 100000) + `}}`, "null", -32600},
	{"deep object", strings.Repeat(`{"a":`, 5000) + "1" + strings.Repeat("}", 5000), "null", -32600},
	{"deep and unfinished", strings.Repeat("[", 1<<20), "null", -32600},
	{"many keys", `{"jsonrpc":"2.0","id":"k","method":"ping","params":` + manyKeys(strict.MaxMembers+1) + `}`, `"k"`, -32600},
	{"params a string", `{"jsonrpc":"2.0","id":"p","method":"tools/list","params":"x"}`, `"p"`, -32602},
	{"params an array", `{"jsonrpc":"2.0","id":"p","method":"tools/list","params":[]}`, `"p"`, -32602},

	{"unknown method", `{"jsonrpc":"2.0","id":"u","method":"no/such"}`, `"u"`, -32601},
	{"empty method", `{"jsonrpc":"2.0","id":"u","method":""}`, `"u"`, -32601},
	{"method in capitals", `{"jsonrpc":"2.0","id":"u","method":"PING"}`, `"u"`, -32601},
	{"a method we do not have", `{"jsonrpc":"2.0","id":"u","method":"prompts/list"}`, `"u"`, -32601},
	{"logging", `{"jsonrpc":"2.0","id":"u","method":"logging/setLevel","params":{"level":"debug"}}`, `"u"`, -32601},
	{"a notification with an id", `{"jsonrpc":"2.0","id":"u","method":"notifications/initialized"}`, `"u"`, -32600},
	{"unknown tool", `{"jsonrpc":"2.0","id":"t","method":"tools/call","params":{"name":"rm"}}`, `"t"`, -32602},
	{"tool name a number", `{"jsonrpc":"2.0","id":"t","method":"tools/call","params":{"name":1}}`, `"t"`, -32602},
	{"no params", `{"jsonrpc":"2.0","id":"t","method":"tools/call"}`, `"t"`, -32600},
	{"params null", `{"jsonrpc":"2.0","id":"t","method":"tools/call","params":null}`, `"t"`, -32600},
	{"initialize again", strings.Replace(initialize, `"init"`, `"again"`, 1), `"again"`, -32600},
	{"resource of another scheme", `{"jsonrpc":"2.0","id":"r","method":"resources/read","params":{"uri":"file:///etc/passwd"}}`, `"r"`, -32602},
	{"resource above", `{"jsonrpc":"2.0","id":"r","method":"resources/read","params":{"uri":"sb://resource/../x"}}`, `"r"`, -32602},
	{"resource escaped", `{"jsonrpc":"2.0","id":"r","method":"resources/read","params":{"uri":"sb://resource/a%2fb"}}`, `"r"`, -32602},
	{"no resource", `{"jsonrpc":"2.0","id":"r","method":"resources/read","params":{}}`, `"r"`, -32602},
	{"cursor", `{"jsonrpc":"2.0","id":"r","method":"resources/list","params":{"cursor":"!"}}`, `"r"`, -32602},
	{"subscribe elsewhere", `{"jsonrpc":"2.0","id":"r","method":"resources/subscribe","params":{"uri":"file:///x"}}`, `"r"`, -32602},
	{"future revision", `{"jsonrpc":"2.0","id":"f","method":"tools/list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2999-01-01","io.modelcontextprotocol/clientCapabilities":{}}}}`, `"f"`, -32022},
	{"meta without capabilities", `{"jsonrpc":"2.0","id":"f","method":"tools/list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}`, `"f"`, -32602},
	{"discover in the old era", `{"jsonrpc":"2.0","id":"f","method":"server/discover"}`, `"f"`, -32601},

	{"an empty line", ``, "", 0},
	{"spaces", "  \t ", "", 0},
	{"a response", `{"jsonrpc":"2.0","id":1,"result":{}}`, "", 0},
	{"an error", `{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"x"}}`, "", 0},
	{"unknown notification", `{"jsonrpc":"2.0","method":"notifications/none"}`, "", 0},
	{"a call without an id", `{"jsonrpc":"2.0","method":"tools/call","params":{"name":"read_resource","arguments":{"resourceId":"plan"}}}`, "", 0},
	{"initialized again", `{"jsonrpc":"2.0","method":"notifications/initialized","params":{}}`, "", 0},
	{"cancel nothing", `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"none"}}`, "", 0},
	{"cancel without an id", `{"jsonrpc":"2.0","method":"notifications/cancelled"}`, "", 0},
	{"cancel an object", `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":{}}}`, "", 0},
	{"cancel with an array", `{"jsonrpc":"2.0","method":"notifications/cancelled","params":[1]}`, "", 0},
}

// errorAnswer is an error as it stands on the line.
type errorAnswer struct {
	ID    json.RawMessage
	Error *struct {
		Code    int
		Message string
	}
}

// Each line gets its answer, and the session goes on.
func TestHostileLines(t *testing.T) {
	b := workertest.Start(t)
	b.Put("plan", "text", []byte("secret"))
	b.Allow("worker", "plan")
	c := start(t, b, "worker")
	c.greet()
	for i, tc := range hostile {
		t.Run(tc.name, func(t *testing.T) {
			c.t = t
			ping := fmt.Sprintf(`"ping %d"`, i)
			c.send(tc.line, `{"jsonrpc":"2.0","id":`+ping+`,"method":"ping"}`)
			var got *errorAnswer
			for ponged := false; !ponged || got == nil && tc.code != 0; { // calls are answered in any order
				line := c.next()
				if line == `{"jsonrpc":"2.0","id":`+ping+`,"result":{}}` {
					ponged = true
					continue
				}
				if got != nil {
					t.Errorf("a second answer: %s", line)
				}
				got = &errorAnswer{}
				if err := json.Unmarshal([]byte(line), got); err != nil {
					t.Fatal(err)
				}
				if got.Error == nil {
					t.Fatalf("handled: %s", line)
				}
				if strings.Contains(line, "secret") || strings.Contains(line, "mcp.") || strings.Contains(line, "jsonrpc2") {
					t.Errorf("the error says too much: %s", line)
				}
			}
			if tc.code != 0 && (got.Error.Code != tc.code || string(got.ID) != tc.id) {
				t.Errorf("got id %s, code %d (%s); want id %s, code %d", got.ID, got.Error.Code, got.Error.Message, tc.id, tc.code)
			}
		})
	}
	c.t = t
	for _, asked := range b.Asked() {
		if strings.Contains(asked, "acquire") && !strings.Contains(asked, "..") {
			t.Errorf("one of the lines had an effect: %s", asked)
		}
	}
}

// Every method is answered whatever its parameters are, in both eras.
func TestHostileParams(t *testing.T) {
	b := workertest.Start(t)
	b.Allow("worker")
	c := start(t, b, "worker", func(config *Config) {
		config.Trouble = func(reason wire.Reason, text string) { t.Errorf("%s: %s", reason, text) }
	})
	c.greet()
	deep := strings.Repeat(`{"a":`, 100) + `null` + strings.Repeat(`}`, 100)
	values := []string{`null`, `true`, `0`, `-1e400`, `""`, `"x"`, `[]`, `[null]`, `{}`, `{"":null}`, `"\ud800"`, deep}
	keys := []string{"name", "arguments", "uri", "cursor", "ref", "argument", "level", "requestId", "notifications", "protocolVersion", "capabilities", "clientInfo", "inputResponses", "_meta"}
	all := append([]string{"completion/complete", "prompts/get", "notifications/progress", "roots/list", "sampling/createMessage"}, methods...)
	i := 0
	for _, method := range all {
		for _, key := range keys {
			for _, value := range values {
				for _, with := range []string{``, meta + `,`, `"_meta":{"progressToken":` + value + `},`} {
					if key == "_meta" && with != "" {
						continue
					}
					i++
					line := c.ask(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":{%s%q:%s}}`, i, method, with, key, value))
					if !strings.HasPrefix(line, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,`, i)) {
						t.Fatalf("%s with %s %s: %s", method, key, value, line)
					}
				}
			}
		}
	}
}

// Lines at the limit pass, longer ones are skipped to their end.
func TestLongLines(t *testing.T) {
	b := workertest.Start(t)
	b.Allow("worker")
	const limit = 1000
	c := start(t, b, "worker", func(config *Config) { config.MaxLine = limit })
	c.greet()
	line := func(length int) string {
		const frame = `{"jsonrpc":"2.0","id":"long","method":"ping","params":{"a":""}}`
		return strings.Replace(frame, `"a":""`, `"a":"`+strings.Repeat("x", length-len(frame))+`"`, 1)
	}
	for _, tc := range []struct {
		length int
		want   string
	}{
		{limit, `{"jsonrpc":"2.0","id":"long","result":{}}`},
		{limit + 1, `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"invalid request: the line is too long"}}`},
		{16 << 10, `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"invalid request: the line is too long"}}`},
		{5 << 20, `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"invalid request: the line is too long"}}`},
	} {
		if got := c.ask(line(tc.length)); got != tc.want {
			t.Errorf("a line of %d bytes: %s", tc.length, got)
		}
		if got := c.ask(`{"jsonrpc":"2.0","id":"ping","method":"ping"}`); got != `{"jsonrpc":"2.0","id":"ping","result":{}}` {
			t.Errorf("ping after %d bytes: %s", tc.length, got)
		}
	}
}

// manyKeys is an object with n keys.
func manyKeys(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `,"k%d":%d`, i, i)
	}
	return "{" + b.String()[1:] + "}"
}
