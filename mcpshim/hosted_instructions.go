package mcpshim

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"subjectbroker/worker"
)

// instructPatience bounds how long the first answer waits for the instructions of
// hosted servers. Where there is no daemon it does not wait.
const instructPatience = time.Second

// Limits on the instructions of hosted servers, in bytes. What is longer is left out
// as a whole: half of what was trusted may mean something else.
const (
	maxInstructions    = 16 << 10 // of one server
	maxAllInstructions = 64 << 10
)

// instruct adds to the greeting what the hosted servers say of themselves, as far as
// the operator has trusted it and the subject may call a tool of theirs.
func (h *hosted) instruct(ctx context.Context, result mcp.Result) mcp.Result {
	ctx, cancel := context.WithTimeout(ctx, instructPatience)
	defer cancel()
	defer context.AfterFunc(h.s.hurry, cancel)()
	switch greeting := result.(type) {
	case *mcp.InitializeResult:
		told := *greeting
		told.Instructions += h.instructions(ctx)
		return &told
	case *mcp.DiscoverResult:
		told := *greeting
		told.Instructions += h.instructions(ctx)
		return &told
	}
	return result
}

// instructions are those of all hosted servers, by name. It is empty when there are
// none, or nobody says so in time.
func (h *hosted) instructions(ctx context.Context) string {
	if h.refreshFirst(ctx) != nil {
		h.look(true)
		return ""
	}
	h.mu.Lock()
	relays := make(map[string]*worker.Relay, len(h.relays))
	for server, relay := range h.relays {
		relays[server] = relay
	}
	h.mu.Unlock()
	var all strings.Builder
	for _, server := range sortedKeys(relays) {
		offered, err := relays[server].Offered(ctx)
		if err != nil || strings.TrimSpace(offered.Instructions) == "" || !h.callsAny(server, offered) {
			continue
		}
		said := instructionsOf(server, offered.Instructions)
		if all.Len()+len(said) > maxAllInstructions {
			said = fmt.Sprintf("\n\nWhat the server %q says of its tools, %s_…, is left out here: there is too much of it.", server, server)
		}
		if all.Len()+len(said) <= maxAllInstructions+(1<<10) {
			all.WriteString(said)
		}
	}
	return all.String()
}

// callsAny reports whether the subject can call one of the tools.
func (h *hosted) callsAny(server string, offered worker.RelayTools) bool {
	for _, tool := range offered.Tools {
		if _, ok := h.expose(server, tool); ok {
			return true
		}
	}
	return false
}

// instructionsOf is what one server says of itself, each line of it marked: nothing in
// it can look like the words of another server, or ours.
func instructionsOf(server, said string) string {
	if len(said) > maxInstructions {
		return fmt.Sprintf("\n\nWhat the server %q says of its tools, %s_…, is left out here: it has %d bytes, more than %d.", server, server, len(said), maxInstructions)
	}
	said = strings.Map(func(c rune) rune {
		switch {
		case c == '\r', c == '\v', c == '\f', c == '\u0085', c == '\u2028', c == '\u2029': // a new line, to some
			return '\n'
		case c == '\t', c == '\n':
			return c
		case c < 0x20, c == 0x7f:
			return ' '
		}
		return c
	}, strings.ReplaceAll(said, "\r\n", "\n"))
	marked := "> " + strings.ReplaceAll(strings.Trim(said, "\n"), "\n", "\n> ")
	return fmt.Sprintf("\n\nThe server %q says of its tools, which are named %s_… here:\n%s", server, server, marked)
}
