package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"subjectbroker/grants/rules"
)

// Names of the servers: around two there is a policy, and each is this program
// as a server of tools.
const (
	wrappedGrouped = "grouped"
	wrappedStrict  = "strict"
	hostedServer   = "hosted"
)

// Tools of the server: one has its answer at hand, so that everything else that a
// call costs shows; one works for so long, as a server does that is written for
// people and not for a benchmark; one waits, as one does that asks something on the
// network.
const (
	lookupTool = "lookup"
	workTool   = "work"
	workTime   = 200 * time.Microsecond
	fetchTool  = "fetch"
	fetchTime  = 5 * time.Millisecond
)

// toolsClients is how many agents call at once. Each has a server of its own, as
// stdio has it; of a hosted one they share the process.
const toolsClients = 8

// measureTools has calls of an MCP server's tool: directly, through sb-mcp wrap,
// and of a server that sbd runs.
func measureTools(ctx context.Context, s *settings) ([]figure, error) {
	b, err := s.brokerWith(ctx, "tools", 0)
	if err != nil {
		return nil, err
	}
	defer b.stop()
	if err := b.addServers(ctx, s.served.command); err != nil {
		return nil, err
	}
	figures, err := s.measureOneCaller(ctx, b)
	if err != nil {
		return figures, err
	}
	crowd, err := s.measureCallers(ctx, b)
	figures = append(figures, crowd...)
	if err != nil {
		return figures, err
	}
	judge, err := s.measureJudge()
	return append(figures, judge...), err
}

// measureOneCaller has one agent, in turns with a raw pipe, an empty call, the
// disk and the direct server.
func (s *settings) measureOneCaller(ctx context.Context, b *broker) ([]figure, error) {
	empty, stopEmpty, err := s.empty(ctx)
	if err != nil {
		return nil, err
	}
	defer stopEmpty()
	disk, err := newAppender(b.home, entrySize)
	if err != nil {
		return nil, err
	}
	defer disk.close()
	pipe, err := start(ctx, s.self, asEcho)
	if err != nil {
		return nil, err
	}
	defer pipe.stop()
	direct, err := greeted(start(ctx, s.served.command[0], s.served.command[1:]...))
	if err != nil {
		return nil, err
	}
	defer direct.stop()
	grouped, err := s.wrap(ctx, b, wrappedGrouped)
	if err != nil {
		return nil, err
	}
	defer grouped.stop()
	strict, err := s.wrap(ctx, b, wrappedStrict)
	if err != nil {
		return nil, err
	}
	defer strict.stop()
	hosted, err := s.shim(ctx, b)
	if err != nil {
		return nil, err
	}
	defer hosted.stop()

	var syncs, empties, pipes, directs, groups, stricts, hosteds samples
	for i := range s.pick(4000, 300) {
		id := 10 + i
		line := s.served.line(id, s.served.tool)
		for _, turn := range []struct {
			to   *samples
			call func() error
		}{
			{&syncs, disk.once},
			{&empties, func() error { return empty.call(ctx) }},
			{&pipes, func() error { _, err := pipe.ask(line, anything); return err }},
			{&directs, func() error { return s.served.look(direct, id, s.served.tool) }},
			{&groups, func() error { return s.served.look(grouped, id, s.served.tool) }},
			{&stricts, func() error { return s.served.look(strict, id, s.served.tool) }},
			{&hosteds, func() error { return s.served.look(hosted, id, hostedServer+"_"+s.served.tool) }},
		} {
			if err := timed(turn.to, turn.call); err != nil {
				return nil, err
			}
		}
	}
	size, err := resident(grouped.cmd.Process.Pid)
	if err != nil {
		return nil, err
	}
	six := fmt.Sprintf("6 × pipe %s + empty call %s", ms(pipes.p50()), ms(empties.p50()))
	floor := 6*pipes.p50() + empties.p50()
	added := func(name string, through samples, limit string, floor time.Duration, bound float64) figure {
		more := through.p50() - directs.p50()
		return figure{
			name:  name,
			got:   fmt.Sprintf("%s (%s − direct %s)", ms(more), ms(through.p50()), ms(directs.p50())),
			limit: limit, ratio: more.Seconds() / floor.Seconds(), bound: bound,
		}
	}
	return []figure{
		added("wrapped call, grouped: added p50", groups, six, floor, 1),
		added("wrapped call, strict: added p50", stricts, six+" + fdatasync "+ms(syncs.p50()), floor+syncs.p50(), 0),
		added("hosted call, strict: added p50", hosteds, six+" + fdatasync "+ms(syncs.p50()), floor+syncs.p50(), 0),
		{
			name:  "sb-mcp wrap: memory after those calls",
			got:   fmt.Sprintf("%.1f MiB", size),
			limit: "20 MiB", ratio: size / 20, bound: 1,
		},
	}, nil
}

// measureCallers has several agents at once: of our own server, by each way and with
// each of its tools, and of a real server where one is installed.
func (s *settings) measureCallers(ctx context.Context, b *broker) ([]figure, error) {
	hops, stopHops, err := s.startHops(ctx)
	if err != nil {
		return nil, err
	}
	defer stopHops()
	direct := &way{open: func() (*process, error) { return greeted(start(ctx, s.served.command[0], s.served.command[1:]...)) }}
	bare := &way{open: func() (*process, error) {
		return greeted(start(ctx, s.self, append([]string{asHopsWrapper, hops}, s.served.command...)...))
	}}
	grouped := &way{open: func() (*process, error) { return s.wrap(ctx, b, wrappedGrouped) }}
	strict := &way{open: func() (*process, error) { return s.wrap(ctx, b, wrappedStrict) }}
	hosted := &way{open: func() (*process, error) { return s.shim(ctx, b) }, prefix: hostedServer + "_"}
	tools := []string{s.served.tool}
	if s.served.ours {
		tools = append(tools, workTool, fetchTool)
	}
	ways := []*way{direct, bare, grouped, strict, hosted}
	defer func() { closeWays(ways) }()
	if err := s.crowd(ctx, &s.served, tools, ways); err != nil {
		return nil, err
	}
	var figures []figure
	for _, tool := range tools {
		what, bound := "", judgedShare
		switch {
		case !s.served.ours:
		case tool == lookupTool: // there is nothing beside the hops, and those alone cost more than the bound allows
			what, bound = ", of a tool with its answer at hand", 0
		case tool == workTool:
			what = fmt.Sprintf(", of a tool that works for %v", workTime)
		case tool == fetchTool:
			what, bound = fmt.Sprintf(", of a tool that waits for %v", fetchTime), 0
		}
		figures = append(figures,
			beside("wrapped calls a second, grouped", grouped, "the direct servers", direct, tool, what, bound),
			beside("the same", grouped, "bare hops", bare, tool, what, 0),
			beside("bare hops, nobody looks at what passes", bare, "the direct servers", direct, tool, what, 0),
			beside("wrapped calls a second, strict", strict, "the direct servers", direct, tool, what, 0),
			beside("hosted calls a second, strict", hosted, "the direct servers", direct, tool, what, 0))
	}
	if !s.served.ours {
		return figures, nil
	}
	closeWays(ways) // two processors are not many
	ways = nil
	real, err := s.measureReal(ctx, b, hops)
	return append(figures, real...), err
}

// judgedShare is what wrapped calls have to reach of the direct server's rate.
const judgedShare = 0.6

// measureReal has calls of a real server, if one is installed.
func (s *settings) measureReal(ctx context.Context, b *broker, hops string) ([]figure, error) {
	if s.real.command == nil {
		return []figure{{name: "wrapped calls of a real server, grouped", got: "not measured: server-everything is not installed", absent: true}}, nil
	}
	direct := &way{open: func() (*process, error) { return greeted(start(ctx, s.real.command[0], s.real.command[1:]...)) }}
	grouped := &way{open: func() (*process, error) { return s.wrapped(ctx, b, wrappedGrouped, s.real.command) }}
	bare := &way{open: func() (*process, error) {
		return greeted(start(ctx, s.self, append([]string{asHopsWrapper, hops}, s.real.command...)...))
	}}
	ways := []*way{direct, bare, grouped}
	defer closeWays(ways)
	if err := s.crowd(ctx, &s.real, []string{s.real.tool}, ways); err != nil {
		return nil, err
	}
	const what = ", server-everything on Node"
	return []figure{
		beside("wrapped calls a second, grouped", grouped, "the direct servers", direct, s.real.tool, what, judgedShare),
		beside("the same", grouped, "bare hops", bare, s.real.tool, what, 0),
		beside("bare hops, nobody looks at what passes", bare, "the direct servers", direct, s.real.tool, what, 0),
	}, nil
}

// crowd has all agents of each way call each tool.
func (s *settings) crowd(ctx context.Context, by *served, tools []string, ways []*way) error {
	for _, way := range ways {
		way.rates = map[string]float64{}
		for range toolsClients {
			server, err := way.open()
			if err != nil {
				return err
			}
			way.agents = append(way.agents, &agent{server, 10})
		}
	}
	// A server that compiles while it runs is slow at first. Each is called as often
	// before anything is measured, whichever way that goes.
	first := s.pick(1500, 200)
	if by.ours {
		first = 20
	}
	for _, way := range ways {
		for _, tool := range tools {
			if err := way.callEach(ctx, by, tool, first); err != nil {
				return err
			}
		}
	}
	rounds := s.pick(5, 1)
	span := time.Duration(s.pick(1000, 400)) * time.Millisecond
	for range rounds {
		for _, tool := range tools { // in turns, so that each sees the same machine
			for _, way := range ways {
				rate, err := way.flood(ctx, by, tool, span)
				if err != nil {
					return err
				}
				way.rates[tool] += rate / float64(rounds)
			}
		}
	}
	return nil
}

// beside is the rate of a way beside that of another.
func beside(name string, one *way, limit string, other *way, tool, what string, bound float64) figure {
	return figure{
		name:  fmt.Sprintf("%s, %d clients", name, toolsClients),
		got:   fmt.Sprintf("%.0f", one.rates[tool]),
		limit: fmt.Sprintf("%s%s: %.0f", limit, what, other.rates[tool]),
		ratio: one.rates[tool] / other.rates[tool], bound: bound, atLeast: bound > 0,
	}
}

// way is how agents reach the same server.
type way struct {
	open   func() (*process, error)
	prefix string // of the tools' names
	agents []*agent
	rates  map[string]float64
}

func closeWays(ways []*way) {
	for _, way := range ways {
		for _, agent := range way.agents {
			agent.server.stop()
		}
	}
}

// agent is who calls, one call after the other.
type agent struct {
	server *process
	id     int
}

// callEach has each agent call a tool n times, all at once.
func (w *way) callEach(ctx context.Context, by *served, tool string, n int) error {
	var wait sync.WaitGroup
	failed := make([]error, len(w.agents))
	for i, a := range w.agents {
		wait.Go(func() {
			for range n {
				if a.id++; ctx.Err() != nil || failed[i] != nil {
					return
				}
				failed[i] = by.look(a.server, a.id, w.prefix+tool)
			}
		})
	}
	wait.Wait()
	return errors.Join(failed...)
}

// flood has all agents call a tool for a span of time, and returns the calls a
// second.
func (w *way) flood(ctx context.Context, by *served, tool string, span time.Duration) (float64, error) {
	calls := make([]func(context.Context) error, 0, len(w.agents))
	for _, a := range w.agents {
		calls = append(calls, func(context.Context) error {
			a.id++
			return by.look(a.server, a.id, w.prefix+tool)
		})
	}
	var took samples
	return flood(ctx, calls, span, &took)
}

// measureJudge has the policy alone: what a call costs before and beside its
// entry.
func (s *settings) measureJudge() ([]figure, error) {
	atMost := uint64(1 << 40)
	policy := rules.Policy{Subject: subject, Server: wrappedStrict, Audit: rules.Strict, Rules: rules.Rules{
		OnViolation: rules.Block,
		Limits:      rules.Limits{MaxToolCalls: &atMost},
		Security: rules.Security{
			DeniedTools: []string{"delete"},
			Granular: []rules.Rule{{
				Tool: lookupTool, Action: rules.Block,
				DenyIf: map[string]rules.Matcher{"word": {Regex: `^\s*(rm|sudo)\b`}},
			}},
		},
	}}
	compiled, err := rules.Compile(policy, nil)
	if err != nil {
		return nil, err
	}
	arguments := []byte(lookupArguments)
	now := time.Now()
	var meter rules.Meter
	meter.Begin(now)
	var failed error
	var judged, decoded cost
	for range s.pick(3, 1) {
		judged.best(testing.Benchmark(func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				args, err := rules.ParseArgs(arguments)
				call := rules.Call{Tool: lookupTool, Args: args, Now: now}
				if err != nil || compiled.Judge(&meter, call).Outcome != rules.Forwarded {
					failed = fmt.Errorf("the call was not let through: %v", err)
					return
				}
				compiled.Take(&meter, call)
			}
		}))
		decoded.best(testing.Benchmark(func(b *testing.B) {
			for b.Loop() {
				var into map[string]any
				if err := json.Unmarshal(arguments, &into); err != nil {
					failed = err
					return
				}
			}
		}))
	}
	return []figure{{
		name:  "parsing and judging one call's arguments",
		got:   fmt.Sprintf("%.0f ns, %d allocations", judged.ns, judged.allocs),
		limit: fmt.Sprintf("decoding them with encoding/json %.0f ns", decoded.ns),
		ratio: judged.ns / decoded.ns,
	}}, failed
}

// addServers applies a document with a policy around each wrapped server and a
// hosted server, and trusts that.
func (b *broker) addServers(ctx context.Context, command []string) error {
	words, err := json.Marshal(command) // a list of YAML, too
	if err != nil {
		return err
	}
	document := fmt.Sprintf(`version: 1
subjects: {%[1]s: {}}
servers:
  %[2]s: {command: %[5]s}
policies:
- subject: %[1]s
  server: %[3]s
  audit: grouped
  rules: &RULES
- subject: %[1]s
  server: %[4]s
  rules: &RULES
grants:
- {subject: %[1]s, capability: "call:%[2]s/*"}
- {subject: %[1]s, capability: "call:%[3]s/*"}
- {subject: %[1]s, capability: "call:%[4]s/*"}
`, subject, hostedServer, wrappedGrouped, wrappedStrict, words)
	const limits = `
    limits: {max_tool_calls: 1000000000, rate_limit: {calls_per_window: 10000, window_seconds: 1}}
    security:
      denied_tools: [delete]
      granular_rules:
      - {tool: lookup, deny_if: {arguments: {word: {regex: '^\s*(rm|sudo)\b'}}}}`
	file := filepath.Join(filepath.Dir(b.home), "servers.yaml")
	document = strings.ReplaceAll(document, " &RULES", limits)
	if err := os.WriteFile(file, []byte(document), 0o600); err != nil {
		return err
	}
	if err := b.sbctl(ctx, nil, "apply", "-f", file); err != nil {
		return err
	}
	return b.sbctl(ctx, nil, "server", "trust", hostedServer, "--yes")
}

// wrap starts sb-mcp wrap around this program as a server, and shakes hands.
func (s *settings) wrap(ctx context.Context, b *broker, server string) (*process, error) {
	return s.wrapped(ctx, b, server, s.served.command)
}

// wrapped starts it around any server.
func (s *settings) wrapped(ctx context.Context, b *broker, server string, command []string) (*process, error) {
	args := []string{"wrap", "--subject", subject, "--server", server, "--home", b.home, "--"}
	return greeted(start(ctx, filepath.Join(s.bin, "sb-mcp"), append(args, command...)...))
}

// greeted shakes hands with a server that was started.
func greeted(p *process, err error) (*process, error) {
	if err != nil {
		return nil, err
	}
	if err := initialize(p); err != nil {
		p.stop()
		return nil, err
	}
	return p, nil
}

// lookupArguments are of the size of a small real call.
const lookupArguments = `{"word":"subject","language":"en","options":{"limit":20,"fuzzy":false,"fields":["title","body"]}}`

// meaning is in each answer.
const meaning = "who or what is spoken of"

// served is the server that is called.
type served struct {
	command         []string
	tool, arguments string
	shows           string // in each answer
	ours            bool   // it has all of our tools
}

// ourTools is this program as a server.
func ourTools(self string) served {
	return served{command: []string{self, asTools}, tool: lookupTool, arguments: lookupArguments, shows: meaning, ours: true}
}

// realTools is server-everything where .ci/clients/run has installed it, and Node is
// there to run it; else it has no command.
func realTools() served {
	cache := os.Getenv("SB_CLIENTS_CACHE")
	if cache == "" {
		dir, err := os.UserCacheDir()
		if err != nil {
			return served{}
		}
		cache = filepath.Join(dir, "subjectbroker-clients")
	}
	node, err := exec.LookPath("node")
	if err != nil {
		return served{}
	}
	found, err := filepath.Glob(filepath.Join(cache, "*", "node_modules/@modelcontextprotocol/server-everything/dist/index.js"))
	if err != nil || len(found) == 0 {
		return served{}
	}
	quiet := []string{"/bin/sh", "-c", `exec "$@" 2>/dev/null`, "server", node, found[len(found)-1], "stdio"} // it greets on stderr
	return served{command: quiet, tool: "echo", arguments: `{"message":"a word"}`, shows: "a word"}
}

func (s *served) line(id int, tool string) []byte {
	return fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":%q,"arguments":%s}}`+"\n", id, tool, s.arguments)
}

// look calls a tool and insists on its answer.
func (s *served) look(p *process, id int, tool string) error {
	answer, err := p.ask(s.line(id, tool), answersID(id))
	if err != nil {
		return err
	}
	if !bytes.Contains(answer, []byte(s.shows)) || bytes.Contains(answer, []byte(`"isError":true`)) {
		return fmt.Errorf("%s was answered with %.300s", tool, answer)
	}
	return nil
}

// toolServer is the hidden mode in which this program is an MCP server: it decodes
// each line, and encodes the answer.
func toolServer(in io.Reader, out io.Writer) error {
	lines := bufio.NewReaderSize(in, 64<<10)
	server := toolsServer{answers: json.NewEncoder(out)}
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return nil // end of input
		}
		var request toolRequest
		if err := json.Unmarshal(line, &request); err != nil {
			return err
		}
		switch {
		case request.ID == nil: // a notification
		case request.Params.Name == workTool:
			for until := ownTime() + workTime; ownTime() < until; {
				_ = json.Valid(line)
			}
			server.answer(&request)
		case request.Params.Name == fetchTool:
			time.AfterFunc(fetchTime, func() { server.answer(&request) })
		default:
			server.answer(&request)
		}
	}
}

type toolRequest struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params struct {
		Version   string         `json:"protocolVersion"`
		Name      string         `json:"name"`
		Arguments map[string]any `json:"arguments"`
	} `json:"params"`
}

type toolsServer struct {
	mu      sync.Mutex
	answers *json.Encoder
}

func (s *toolsServer) answer(request *toolRequest) {
	type object = map[string]any
	tool := func(name string) object {
		return object{
			"name": name, "description": "Looks a word up.",
			"inputSchema": object{"type": "object", "properties": object{"word": object{"type": "string"}}},
		}
	}
	var result any = object{}
	switch request.Method {
	case "initialize":
		result = object{
			"protocolVersion": request.Params.Version, "capabilities": object{"tools": object{}},
			"serverInfo": object{"name": "bench", "version": "1"},
		}
	case "tools/list":
		result = object{"tools": []object{tool(lookupTool), tool(workTool), tool(fetchTool)}}
	case "tools/call":
		text := fmt.Sprintf("%v: %s; %s", request.Params.Arguments["word"], meaning, strings.Repeat("further meanings, ", 10))
		result = object{"content": []object{{"type": "text", "text": text}}}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	// Who does not get the answer says so.
	_ = s.answers.Encode(object{"jsonrpc": "2.0", "id": request.ID, "result": result})
}
