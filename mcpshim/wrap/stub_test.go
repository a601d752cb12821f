package wrap

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"
)

// stubLog names, in the environment of a stub server, the file in which it writes
// every line that it gets. Other variables are what it answers to tools/list: one
// page, or several after which a cursor follows.
const (
	stubLog   = "STUB_LOG"
	stubPages = "STUB_PAGES" // separated by newlines
	stubMore  = "STUB_MORE"  // members of the greeting
)

func TestMain(m *testing.M) {
	if log := os.Getenv(stubLog); log != "" {
		os.Exit(stub(log))
	}
	os.Exit(m.Run())
}

// stub is an MCP server without manners. Its tools do what they are called.
func stub(logName string) int {
	log, err := os.OpenFile(logName, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 99
	}
	in := bufio.NewReader(os.Stdin)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return 0
		}
		if _, err := log.Write(line); err != nil {
			return 98
		}
		var message struct {
			ID     json.RawMessage
			Method string
			Params struct {
				Name      string
				Cursor    string
				Arguments map[string]any
			}
		}
		if json.Unmarshal(line, &message) != nil || message.ID == nil && !strings.HasPrefix(message.Method, "custom") {
			continue
		}
		if code := act(message.ID, message.Method, message.Params.Name, message.Params.Cursor, bytes.TrimSpace(line), in); code >= 0 {
			return code
		}
	}
}

// act answers one request; a code that is not negative ends the stub with it.
func act(id json.RawMessage, method, tool, cursor string, line []byte, in *bufio.Reader) int {
	say := func(format string, values ...any) { fmt.Printf(format+"\n", values...) }
	result := func(object string) { say(`{"jsonrpc":"2.0","id":%s,"result":%s}`, id, object) }
	switch {
	case method == "initialize":
		result(`{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"stub","version":"0"},"instructions":"be kind","unknown":{"kept":1.0}` + os.Getenv(stubMore) + "}")
	case method == "tools/list":
		pages := strings.Split(os.Getenv(stubPages), "\n")
		number := 0
		if cursor != "" {
			fmt.Sscanf(cursor, "page%d", &number)
		}
		next := ""
		if number < len(pages)-1 {
			next = fmt.Sprintf(`,"nextCursor":"page%d"`, number+1)
		}
		result(fmt.Sprintf(`{ "tools":%s%s,"_meta":{"x": 1.50}}`, pages[number], next))
	case tool == "die":
		return 7
	case tool == "failing":
		say(`{"jsonrpc":"2.0","id":%s,"error":{"code":-1,"message":"no","data":{"kept":1.0}}}`, id)
	case tool == "sorry":
		result(`{"content":[],"isError":true}`)
	case tool == "silent":
	case tool == "twice":
		result(`{"content":[]}`)
		result(`{"content":["again"]}`)
	case tool == "noisy":
		say("starting up…\n[1,2]\n\xff\xfe\n{\"jsonrpc\":\"2.0\"}\n{\"jsonrpc\":\"2.0\",\"id\":99,\"result\":{}}\n{\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"Method\":\"x\"}")
		say(`{"jsonrpc":"2.0","method":"notifications/message","params":{"data":1.0},"unknown":[ 1 ]}`)
		result(`{"content":[]}`)
	case tool == "returning": // to a reader for whom a carriage return ends a line this is an answer
		say("{\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{\"a\": \r{\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{}}\r}}", id)
		result(`{"content":[]}`)
	case tool == "double":
		say(`{"jsonrpc":"2.0","id":%s,"result":{"content":[],"content":[1]}}`, id)
	case tool == "asking":
		say(`{"jsonrpc":"2.0","id":"s1","method":"sampling/createMessage","params":{"x":1.0}}`)
		answer, _ := in.ReadBytes('\n')
		quoted, _ := json.Marshal(string(bytes.TrimSpace(answer)))
		result(`{"content":[{"type":"text","text":` + string(quoted) + `}]}`)
	case tool == "long":
		result(`{"content":[{"type":"text","text":"` + strings.Repeat("x", 3<<20) + `"}]}`)
	case tool == "endless":
		for piece := []byte(strings.Repeat("x", 64<<10)); ; {
			if _, err := os.Stdout.Write(piece); err != nil {
				return 6
			}
		}
	case tool == "deaf":
		signal.Ignore(syscall.SIGTERM)
		result(`{"content":[]}`)
		time.Sleep(time.Minute)
	case tool == "busy":
		result(`{"content":[]}`)
		time.Sleep(time.Minute)
	case tool == "environment":
		encoded, _ := json.Marshal(os.Environ())
		result(`{"content":` + string(encoded) + `}`)
	case tool == "normal":
		say(`{"id":%s,"jsonrpc":"2.0","result":{"content":[]}}`, normal(id))
	case tool == "closing":
		os.Stdout.Close()
		_, _ = io.Copy(io.Discard, os.Stdin)
		return 5
	default:
		result(`{"content":[],"structuredContent":{"n":1.0},"line":` + string(line) + `}`)
	}
	return -1
}

// normal is the id as a careless server writes it back.
func normal(id json.RawMessage) []byte {
	var value any
	_ = json.Unmarshal(id, &value)
	encoded, _ := json.Marshal(value)
	return encoded
}
