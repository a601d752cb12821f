package wrap

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"

	"subjectbroker/mcpshim/canon"
	"subjectbroker/mcpshim/strict"
	"subjectbroker/worker"
)

// listing is what the server says that it offers, and what the client was shown.
type listing struct {
	mu           sync.Mutex
	instructions string

	collecting []worker.ServerTool // of the pages so far
	next       string              // cursor of the next page; empty: there is none

	complete bool                // all pages were seen
	tools    []worker.ServerTool // of all pages
	saidTo   *worker.Relay       // that knows them

	shown map[string]bool // names that the client was shown; nil: it never asked
}

// listed is one tool of a page.
type listed struct {
	name   string
	raw    []byte // as the server wrote it
	object []byte // sorted; nil: it cannot be written again
}

const keyInstructions = "instructions"

// instruct remembers the instructions in the result that sets up a session, and says
// whether there are any, or something that a reader could take for them.
func (l *listing) instruct(result []byte) (any bool) {
	members, _ := canon.Members(result)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.instructions = ""
	for _, one := range members {
		switch {
		case !strings.EqualFold(one.Key, keyInstructions):
		case one.Key == keyInstructions && one.Raw[0] == '"':
			l.instructions = strict.Unquote(one.Raw)
			any = any || l.instructions != ""
		default:
			any = true
		}
	}
	return any
}

// answerGreeting answers what sets up a session. The instructions of a server that was
// trusted are what was trusted, or not there; without a daemon nobody knows.
func (s *session) answerGreeting(ctx context.Context, r *request, m *said) {
	waiting, cancel := context.WithTimeout(ctx, listPatience)
	defer cancel()
	relay, err := s.keeper.Relay(waiting, s.relayTo)
	var offered worker.RelayTools
	if err == nil {
		offered, err = relay.Offered(waiting)
	}
	if members, _ := canon.Members(m.result); err != nil || offered.Trusted && !s.listing.instructs(members, offered.Instructions) {
		m.line = m.with("result", withoutInstructions(members))
		switch {
		case err != nil:
			s.trouble("the server's instructions are withheld: sbd does not say whether they are trusted")
		default:
			s.trouble("the server's instructions are not what was trusted, and are withheld: see sbctl server diff " + s.relayTo.Server)
		}
	}
	s.deliver(ctx, r, m)
}

// instructs reports whether the instructions are the trusted ones, to every reader.
func (l *listing) instructs(members []canon.Member, trusted string) bool {
	for _, one := range members {
		if one.Key != keyInstructions && strings.EqualFold(one.Key, keyInstructions) || one.Key == keyInstructions && one.Raw[0] != '"' {
			return false
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.instructions == trusted
}

// withoutInstructions is the result that sets up a session, without instructions.
func withoutInstructions(members []canon.Member) []byte {
	result := []byte{'{'}
	for _, one := range members {
		if strings.EqualFold(one.Key, keyInstructions) {
			continue
		}
		if len(result) > 1 {
			result = append(result, ',')
		}
		result = append(canon.Quote(result, one.Key), ':')
		result = strict.Compact(result, one.Raw)
	}
	return append(result, '}')
}

// parseTools reads the tools of one page. False: it is no page that everybody
// would understand alike.
func parseTools(raw []byte) ([]listed, bool) {
	elements, err := strict.Elements(raw)
	if err != nil {
		return nil, false
	}
	tools := make([]listed, 0, len(elements))
	for _, element := range elements {
		members, err := canon.Members(element)
		if err != nil {
			return nil, false
		}
		tool := listed{raw: element}
		for _, one := range members {
			switch {
			case one.Key == "name" && one.Raw[0] == '"':
				tool.name = strict.Unquote(one.Raw)
			case one.Key == "name", strings.EqualFold(one.Key, "name"):
				return nil, false
			}
		}
		tool.object = canon.Sorted(element)
		tools = append(tools, tool)
	}
	return tools, true
}

// answerList answers a list of tools with those that may be called.
func (s *session) answerList(ctx context.Context, r *request, m *said) {
	members, err := canon.Members(m.result)
	var raw []byte
	next := ""
	odd := err != nil
	for _, one := range members {
		switch {
		case one.Key == "tools":
			raw = one.Raw
		case one.Key == "nextCursor" && one.Raw[0] == '"':
			next = strict.Unquote(one.Raw)
		case strings.EqualFold(one.Key, "tools"):
			odd = true
		}
	}
	tools, understood := parseTools(raw)
	if odd || !understood {
		s.broken(ctx, r)
		return
	}
	allowed := s.mayCall(ctx, r, tools, next)
	seen := map[string]int{}
	for _, tool := range tools {
		seen[tool.name]++
	}
	shown, count := []string{}, 0
	page := []byte{'['}
	for _, tool := range tools {
		if !allowed(tool.name, seen[tool.name]) {
			continue
		}
		if len(page) > 1 {
			page = append(page, ',')
		}
		page = strict.Compact(page, tool.raw)
		count++
		if seen[tool.name] == 1 { // as in what is told to the daemon
			shown = append(shown, tool.name)
		}
	}
	s.listing.show(shown, r.cursor == nil)
	if count < len(tools) {
		m.line = m.with("result", withTools(members, append(page, ']')))
	}
	if s.finish(r) {
		s.answer(m.line)
	}
}

// withTools is the result of a list with other tools.
func withTools(members []canon.Member, tools []byte) []byte {
	result := []byte{'{'}
	for i, one := range members {
		if i > 0 {
			result = append(result, ',')
		}
		result = append(canon.Quote(result, one.Key), ':')
		if one.Key == "tools" {
			result = append(result, tools...)
		} else {
			result = strict.Compact(result, one.Raw)
		}
	}
	return append(result, '}')
}

// mayCall takes in a page and says what of it may be called. Once all pages are
// there the daemon is told. Without a daemon nothing may be called.
func (s *session) mayCall(ctx context.Context, r *request, tools []listed, next string) func(name string, times int) bool {
	complete := s.listing.collect(r.cursor, tools, next)
	ctx, cancel := context.WithTimeout(ctx, listPatience)
	defer cancel()
	relay, err := s.keeper.Relay(ctx, s.relayTo)
	var offered worker.RelayTools
	if err == nil {
		if complete {
			offered, err = s.listing.say(ctx, relay)
		} else {
			offered, err = relay.Offered(ctx)
		}
	}
	if err != nil {
		return func(string, int) bool { return false }
	}
	return namesIn(offered)
}

// namesIn says what may be called of what the daemon offers, and times how often the
// server lists it: of two tools of one name nobody knows which was trusted.
func namesIn(offered worker.RelayTools) func(name string, times int) bool {
	if !offered.Trusted {
		return func(string, int) bool { return true }
	}
	names := make(map[string]bool, len(offered.Tools))
	for _, tool := range offered.Tools {
		names[tool.Name] = true
	}
	return func(name string, times int) bool { return names[name] && times == 1 }
}

// collect takes in a page, and says whether it was the last one.
func (l *listing) collect(cursor []byte, tools []listed, next string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case cursor == nil || string(cursor) == "null":
		l.collecting = nil
	case cursor[0] != '"' || strict.Unquote(cursor) != l.next: // a page out of order
		return false
	}
	for _, tool := range tools {
		l.collecting = append(l.collecting, worker.ServerTool{Name: tool.name, Object: tool.object})
	}
	l.next = next
	if next != "" {
		return false
	}
	l.tools, l.collecting, l.complete, l.saidTo = unique(l.collecting), nil, true, nil
	return true
}

// unique leaves out tools of which the name stands twice.
func unique(tools []worker.ServerTool) []worker.ServerTool {
	count := map[string]int{}
	for _, tool := range tools {
		count[tool.Name]++
	}
	return slices.DeleteFunc(tools, func(tool worker.ServerTool) bool { return count[tool.Name] > 1 })
}

// say tells the daemon what the server offers and returns what may be called.
func (l *listing) say(ctx context.Context, relay *worker.Relay) (worker.RelayTools, error) {
	l.mu.Lock()
	tools, instructions := l.tools, l.instructions
	l.saidTo = relay
	l.mu.Unlock()
	answer, err := relay.Listed(ctx, tools, instructions)
	if err != nil {
		return worker.RelayTools{}, err
	}
	return answer(ctx)
}

// sayAgain tells a relay what the server offers, if it does not know.
func (l *listing) sayAgain(ctx context.Context, relay *worker.Relay) {
	l.mu.Lock()
	known := !l.complete || l.saidTo == relay
	tools, instructions := l.tools, l.instructions
	l.saidTo = relay
	l.mu.Unlock()
	if !known {
		_, _ = relay.Listed(ctx, tools, instructions)
	}
}

// knows says whether a relay was told what the server offers, as far as that is known.
func (l *listing) knows(relay *worker.Relay) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.saidTo == relay
}

// show notes what the client was shown; first: the pages begin anew.
func (l *listing) show(names []string, first bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.shown == nil || first {
		l.shown = map[string]bool{}
	}
	for _, name := range names {
		l.shown[name] = true
	}
}

// outdated says whether the client was shown something else than it would be now,
// and notes that it is going to be told.
func (l *listing) outdated(allowed func(string, int) bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.shown == nil || !l.complete {
		return false
	}
	now := map[string]bool{}
	for _, tool := range l.tools {
		if allowed(tool.Name, 1) {
			now[tool.Name] = true
		}
	}
	if maps.Equal(now, l.shown) {
		return false
	}
	l.shown = now
	return true
}

// watchTools keeps a relay open, and tells the client when its list of tools is
// out of date.
func (s *session) watchTools(ctx context.Context) {
	for {
		select {
		case <-s.recheck:
		case <-ctx.Done():
			return
		}
		patient, cancel := context.WithTimeout(ctx, listPatience)
		relay, err := s.relay(patient)
		var offered worker.RelayTools
		if err == nil {
			offered, err = relay.Offered(patient)
		}
		cancel()
		if err == nil && s.listing.outdated(namesIn(offered)) && s.greeted.Load() {
			s.answer([]byte(`{"jsonrpc":"2.0","method":"` + notifyListChanged + `"}`))
		}
	}
}
