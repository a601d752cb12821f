package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"subjectbroker/mcpshim/canon"
	"subjectbroker/mcpshim/stateless"
	hostv1 "subjectbroker/proto/subjectbroker/host/v1"
)

// Methods that only the era without sessions has.
const (
	methodDiscover = "server/discover"
	methodListen   = "subscriptions/listen"
)

// Codes of errors that say that a server does not know initialize, or speaks
// another revision.
const (
	codeNoMethod   = -32601
	codeNoRevision = -32022
)

// Members of the _meta of each request in the era without sessions. What begins
// like them is between a client and a server, so that no call brings its own.
const (
	protocolPrefix  = "io.modelcontextprotocol/"
	keyRevision     = protocolPrefix + "protocolVersion"
	keyClientInfo   = protocolPrefix + "clientInfo"
	keyCapabilities = protocolPrefix + "clientCapabilities"
	resultComplete  = "complete"
)

// discover asks a server of the era without sessions what it is.
func (s *session) discover(ctx context.Context) (greeting, error) {
	result, err := s.askIn(ctx, true, methodDiscover, nil)
	if err != nil {
		return greeting{}, err
	}
	members, err := canon.Members(result)
	if err != nil {
		return greeting{}, errors.New("what it says of itself is no object")
	}
	g := greeting{revision: stateless.Revision}
	var spoken []string
	for _, m := range members {
		if m.Key == "supportedVersions" && json.Unmarshal(m.Raw, &spoken) != nil {
			return greeting{}, errors.New("the revisions that it speaks are no list")
		}
	}
	if !slices.Contains(spoken, stateless.Revision) {
		return greeting{}, errRevision
	}
	return s.offers(g, members)
}

// askMeta is the _meta of a request of our own, and the beginning of that of a call.
func (s *session) askMeta() []byte {
	meta := append([]byte(`{"`+keyRevision+`":"`+stateless.Revision+`","`+keyClientInfo+`":`), s.clientInfo()...)
	return append(meta, `,"`+keyCapabilities+`":{}}`...)
}

// clientInfo says who asks.
func (s *session) clientInfo() []byte {
	info := canon.Quote([]byte(`{"name":"subject-broker","version":`), s.version)
	return append(info, '}')
}

// headersOf is what a request says again in its headers, where it goes over HTTP.
func headersOf(method string) [][2]string {
	return [][2]string{{stateless.HeaderRevision, stateless.Revision}, {stateless.HeaderMethod, method}}
}

// headersOfCall is the same of a call of a tool, with the arguments that the tool
// wants to see there.
func (s *session) headersOfCall(c *hostv1.Call) [][2]string {
	headers := append(headersOf("tools/call"), [2]string{stateless.HeaderName, stateless.HeaderText(c.GetTool())})
	s.mu.Lock()
	bindings := s.bindings[c.GetTool()]
	s.mu.Unlock()
	for _, b := range bindings {
		if value, ok := b.Value(c.GetArguments()); ok {
			headers = append(headers, [2]string{b.Header(), value})
		}
	}
	return headers
}

// bind remembers which arguments of which tools stand in headers.
func (s *session) bind(tools []*hostv1.Tool) {
	bindings := map[string][]stateless.Binding{}
	for _, tool := range tools {
		if found := stateless.Bindings(tool.GetObject()); found != nil {
			bindings[tool.GetName()] = found
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bindings = bindings
}

// listen holds the stream open on which a server of the era without sessions says
// that its tools are other ones, until ctx ends or it will not have it.
func (s *session) listen(ctx context.Context) {
	at := &position{wait: firstListenWait}
	for {
		began := time.Now()
		_, err := s.ask(ctx, methodListen, []byte(`"notifications":{"toolsListChanged":true}`))
		if ctx.Err() != nil || errors.Is(err, errFailed) {
			return
		}
		if time.Since(began) > maxListenWait {
			at.wait = firstListenWait
		}
		if !at.pause(ctx) {
			return
		}
		at.wait = min(2*at.wait, maxListenWait)
		s.again() // what it said meanwhile nobody has heard
	}
}

// incomplete says why a result of the era without sessions is none: it asks for
// something more, which nobody here could give. Empty: it is one.
func incomplete(result []byte) string {
	members, err := canon.Members(result)
	if err != nil {
		return ""
	}
	for _, m := range members {
		if m.Key != "resultType" {
			continue
		}
		if kind, ok := text(m.Raw); !ok || kind != resultComplete {
			return fmt.Sprintf("it is no result but %.40q: what asks for more is not passed on", kind)
		}
	}
	return ""
}
