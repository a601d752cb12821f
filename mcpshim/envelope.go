package mcpshim

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"subjectbroker/mcpshim/strict"
	"subjectbroker/proto/wire"
	"subjectbroker/worker"
)

// tool is one tool as a client sees it. Its parts run in the envelope alone.
type tool struct {
	name, title, description string
	input, output            string // JSON schemas
	writes                   bool
	// knowledge says that it is one of the memory's, which are in the list while they
	// can be used.
	knowledge bool
	// parse reads the arguments into an ask; revision is the MCP revision that
	// the client speaks. The ask is there also when the arguments are not good, with
	// what is wrong.
	parse func(arguments []strict.Member, revision string) (asked ask, wrong *wire.Error)
}

// ask is one parsed call. It can only be handled with a scope, and only the
// envelope makes those.
type ask interface {
	// handle does what is asked. An error is a refusal.
	handle(ctx context.Context, scope scope) (answer, error)
	// refused is the result that goes with a refusal, whose reason is a public one.
	refused(why *wire.Error) any
}

// answer is the result of an ask: value is encoded as JSON, unless there is a
// payload already.
type answer struct {
	value   any
	payload *payload
	// denied marks a result as an error to the client.
	denied bool
}

// scope is what a call was authorised for: a run of this shim's subject, on
// which the daemon judges every request again.
type scope struct {
	shim *shim
	run  *worker.Run
}

// list names what may be read now, sorted.
func (s scope) list(ctx context.Context) ([]worker.Resource, error) { return s.run.List(ctx) }

// acquire fetches one document, when there is room for it. release makes the
// room again, once the client has it.
func (s scope) acquire(ctx context.Context, name string) (content worker.Content, release func(), err error) {
	select {
	case s.shim.contents <- struct{}{}:
	case <-ctx.Done():
		return worker.Content{}, nil, ctx.Err()
	}
	release = func() {
		<-s.shim.contents
		if len(content.Bytes) >= largeContent {
			s.shim.trimmer.Reset(trimAfter)
		}
	}
	content, err = s.run.Acquire(ctx, name)
	if err != nil {
		release()
		return worker.Content{}, nil, err
	}
	return content, release, nil
}

// envelope is the one way to a tool's handler: parse, then authorise, then, and
// only then, handle. What is refused in one step never reaches the next.
func (s *shim) envelope(t tool) mcp.ToolHandler {
	return func(ctx context.Context, request *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(s.hurry, cancel)()

		arguments, ok := parseArguments(request.Params.Arguments)
		asked, wrong := t.parse(arguments, request.ProtocolVersion())
		if !ok {
			wrong = wire.Deny(wire.InvalidArgument)
		}
		if wrong != nil {
			return s.result(answer{value: asked.refused(wrong), denied: true})
		}
		scope, err := s.authorise(ctx)
		if err != nil {
			return s.result(answer{value: asked.refused(refusedWith(err)), denied: true})
		}
		got, err := asked.handle(ctx, scope)
		if err != nil {
			return s.result(answer{value: asked.refused(refusedWith(err)), denied: true})
		}
		return s.result(got)
	}
}

// parseArguments reads the arguments of a call; none are an empty object.
func parseArguments(raw json.RawMessage) ([]strict.Member, bool) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, true
	}
	members, err := strict.ParseObject(raw)
	return members, err == nil
}

// authorise returns the scope of a call: there is one only while the daemon
// holds a run open for this connection's subject.
func (s *shim) authorise(ctx context.Context) (scope, error) {
	run, err := s.keeper.Run(ctx)
	if err != nil {
		return scope{}, err
	}
	return scope{shim: s, run: run}, nil
}

// result makes the SDK's form of an answer. The object itself is written by the
// transport.
func (s *shim) result(a answer) (*mcp.CallToolResult, error) {
	if a.payload == nil {
		head, err := json.Marshal(a.value)
		if err != nil {
			return nil, err
		}
		a.payload = &payload{head: head, release: func() {}}
	}
	ticket := s.tickets.put(a.payload)
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: ticket}}, StructuredContent: ticket, IsError: a.denied}, nil
}

// methods are those that this server speaks. The SDK would answer others too,
// with empty lists of what we do not have.
var methods = []string{
	"initialize", "ping", "server/discover", "tools/list", "tools/call", "resources/list", "resources/read", "resources/templates/list",
	"resources/subscribe", "resources/unsubscribe", methodListen, methodInitialized, methodCancelled,
}

// guard stands before every method: it refuses what is not ours, answers lists
// of resources from the daemon, and keeps a panic from ending the process.
func (s *shim) guard(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, request mcp.Request) (result mcp.Result, err error) {
		defer func() {
			if recovered := recover(); recovered != nil {
				s.once(wire.InternalError, panicText(recovered))
				result, err = nil, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "internal error"}
			}
		}()
		if !slices.Contains(methods, method) {
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "method not found"}
		}
		if method != "initialize" && method != "ping" {
			s.greeted.Store(true)
		}
		if list, ok := request.(*mcp.ListResourcesRequest); ok {
			return s.listResources(ctx, list)
		}
		result, err = next(ctx, method, request)
		if (method == "initialize" || method == "server/discover") && err == nil {
			return s.hosted.instruct(ctx, result), nil
		}
		if listed, ok := result.(*mcp.ListToolsResult); ok && err == nil {
			s.name(ctx, listed)
			s.hosted.add(ctx, listed)
		}
		return result, err
	}
}

// namePatience bounds how long a list of tools waits for the daemon to say whose
// session this is. Clients list them once, at the start, and keep what they read.
const namePatience = time.Second

// name makes the tools name the subject that the session is bound to, where that
// is not the one that they were registered with.
func (s *shim) name(ctx context.Context, listed *mcp.ListToolsResult) {
	ctx, cancel := context.WithTimeout(ctx, namePatience)
	defer cancel()
	defer context.AfterFunc(s.hurry, cancel)()
	scope, err := s.authorise(ctx)
	if err != nil || scope.run.Subject == s.claimed {
		return
	}
	subject := scope.run.Subject
	for i, registered := range listed.Tools {
		named := *registered
		named.Description = strings.TrimSuffix(named.Description, boundary(s.claimed)) + boundary(subject)
		listed.Tools[i] = &named
	}
}

// panicText is the type of what was thrown and where, never its value: that may
// be what somebody must not see.
func panicText(recovered any) string {
	where := "an unknown place"
	callers := make([]uintptr, 32)
	frames := runtime.CallersFrames(callers[:runtime.Callers(2, callers)])
	for thrown := false; ; {
		frame, more := frames.Next()
		inRuntime := strings.HasPrefix(frame.Function, "runtime.")
		if thrown && !inRuntime {
			where = fmt.Sprintf("%s:%d", frame.Function, frame.Line)
			break
		}
		thrown = thrown || frame.Function == "runtime.gopanic"
		if !more {
			break
		}
	}
	return fmt.Sprintf("a handler panicked with %T in %s", recovered, where)
}
