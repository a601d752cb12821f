package mcpshim

import (
	"bytes"
	"crypto/rand"
	"io"
	"strconv"
	"sync"
)

// payload is a JSON object on its way to the client, perhaps with content:
//
//	head                                 without content
//	head content-as-JSON-string tail     with it
//
// A document passes the SDK's encoder several times, once inside the other: as
// text and as structured content, and checked again at each step. So the SDK
// gets a ticket in place of the object, and the transport writes the object
// where the ticket stands, in one pass and without holding a second copy.
type payload struct {
	head, tail []byte
	content    []byte
	base64     bool // content is written in base64
	inline     bool // content stands in a resource, not in a tool's result
	listed     bool // head is tools, in a list of tools
	// release gives back what was taken to fetch the content. Never nil.
	release func()
}

// writeJSON writes the object.
func (p *payload) writeJSON(out io.Writer) error {
	if _, err := out.Write(p.head); err != nil {
		return err
	}
	if p.tail == nil {
		return nil
	}
	if err := p.writeContent(out); err != nil {
		return err
	}
	_, err := out.Write(p.tail)
	return err
}

// writeContent writes the inside of the content's JSON string.
func (p *payload) writeContent(out io.Writer) error {
	if p.base64 {
		return writeBase64(out, p.content)
	}
	_, err := (&escaper{out: out}).Write(p.content)
	return err
}

// tickets hands out payloads for the strings that stand for them.
type tickets struct {
	prefix string // random, so that no other string in a result can be one

	mu   sync.Mutex
	next uint64
	open map[string]*payload
}

func newTickets() *tickets {
	return &tickets{prefix: "ticket-" + rand.Text() + "-", open: map[string]*payload{}}
}

// put keeps p until its ticket is written.
func (t *tickets) put(p *payload) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.next++
	ticket := t.prefix + strconv.FormatUint(t.next, 10)
	t.open[ticket] = p
	return ticket
}

func (t *tickets) get(ticket string) *payload {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.open[ticket]
}

func (t *tickets) drop(ticket string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.open, ticket)
}

// redeem writes an encoded result with the payloads in place of their tickets:
//
//	"text":"TICKET"               → "text":"the object, quoted"    in a tool's result
//	"structuredContent":"TICKET"  → "structuredContent":object
//	"text":"TICKET"               → "text":"content" or "blob":"base64"    in a resource
//	{…,"name":"TICKET"}           → the tools                              in a list of tools
func (t *tickets) redeem(out io.Writer, result []byte) error {
	var used []string
	defer func() {
		for _, ticket := range used {
			if p := t.get(ticket); p != nil {
				t.drop(ticket)
				p.release()
			}
		}
	}()
	for {
		start := bytes.Index(result, []byte(`"`+t.prefix))
		if start < 0 {
			_, err := out.Write(result)
			return err
		}
		length := bytes.IndexByte(result[start+1:], '"')
		ticket := string(result[start+1 : start+1+length])
		before := result[:start]
		result = result[start+length+2:]
		p := t.get(ticket)
		if p == nil {
			return io.ErrUnexpectedEOF // a ticket is written once
		}
		used = append(used, ticket)
		if p.listed {
			if len(result) == 0 || !bytes.HasSuffix(before, []byte(listedHead)) || result[0] != listedTail {
				return io.ErrUnexpectedEOF // the SDK writes tools in another way
			}
			before, result = before[:len(before)-len(listedHead)], result[1:]
		}
		if err := p.redeem(out, before); err != nil {
			return err
		}
	}
}

// What the SDK writes around the name of a tool that is nothing but a name.
const (
	listedHead = `{"inputSchema":null,"name":`
	listedTail = '}'
)

func (p *payload) redeem(out io.Writer, before []byte) error {
	text := []byte(`"text":`)
	asText := bytes.HasSuffix(before, text)
	if p.inline && p.base64 {
		before = append(before[:len(before)-len(text):len(before)-len(text)], `"blob":`...)
	}
	if _, err := out.Write(before); err != nil {
		return err
	}
	if !asText {
		return p.writeJSON(out)
	}
	if _, err := io.WriteString(out, `"`); err != nil {
		return err
	}
	var err error
	if p.inline {
		err = p.writeContent(out)
	} else {
		err = p.writeJSON(&escaper{out: out})
	}
	if err != nil {
		return err
	}
	_, err = io.WriteString(out, `"`)
	return err
}
