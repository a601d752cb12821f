package daemon

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"subjectbroker/grants"
	"subjectbroker/proto/credential"
	"subjectbroker/vault"
)

// maxShown is how much of the arguments of a call a person is shown, in bytes.
const maxShown = 16 << 10

// States of a tool's description, as the operator reads them.
const (
	pinTrusted   = "trusted"
	pinUntrusted = "untrusted"
	pinChanged   = "changed"
)

// show fills in what a person will see of a card. All of it is made here, from the
// live request: the agent has no word in it but in the arguments, which are shown as
// what they are.
func (d *Daemon) show(c *card, g *gateAsk) {
	st := d.state()
	c.scopes = []string{scopeOnce}
	if g.resource != "" {
		st.mu.RLock()
		c.owner = st.catalog[g.resource].owner
		st.mu.RUnlock()
		c.scopes = append(c.scopes, scopeUses, scopeSession, scopeUntil)
		c.discloses = []disclosure{st.disclosesContent(g.resource, strings.HasPrefix(g.capability, grants.Use.String()+":"))}
		return
	}
	switch pin, trusted := st.pinOf(g.server, g.tool); {
	case trusted && pin == g.pin:
		c.pinState = pinTrusted
		c.scopes = append(c.scopes, scopeUses, scopeSession, scopeUntil)
		if len(g.args) <= maxRuleArgs {
			c.args = append([]byte{}, g.args...)
		}
	case trusted || st.trusted(g.server):
		c.pinState = pinChanged
	default:
		c.pinState = pinUntrusted
	}
	server, _ := st.server(g.server)
	st.mu.RLock()
	names := slices.DeleteFunc(server.Secrets(), func(name string) bool { return !st.given(&server, name) })
	st.mu.RUnlock()
	secrets := d.secretsOf(names)
	defer func() {
		for _, secret := range secrets {
			clear(secret)
		}
	}()
	for _, name := range names {
		st.mu.RLock()
		owner := st.catalog[name].owner
		st.mu.RUnlock()
		c.discloses = append(c.discloses, disclosure{"the use of " + name + " by the server " + g.server, owner})
	}
	c.arguments, c.cut = shownArguments(g.args, secrets)
}

// disclosesContent says in words what would be handed out, to the agent or for use
// on its behalf. It takes mu.
func (s *state) disclosesContent(name string, use bool) disclosure {
	s.mu.RLock()
	defer s.mu.RUnlock()
	f := s.catalog[name]
	words := fmt.Sprintf("the content of %s (%s, %d bytes", name, f.kind, f.size)
	if f.version > 0 {
		words += fmt.Sprintf(", version %d", f.version)
	}
	to := ") to the agent"
	if use {
		to = ") to a server that the agent calls"
	}
	return disclosure{words + to, f.owner}
}

// secretsOf are the contents that a server is given, so that they are not shown where
// an agent has got hold of one. The caller wipes them. What cannot be read is not
// there: the server has not got it either.
func (d *Daemon) secretsOf(names []string) (all [][]byte) {
	_ = d.vault.View(func(tx *vault.Tx) error {
		for _, name := range names {
			record, err := tx.Record(name)
			if err != nil || record.File != nil {
				continue
			}
			if content, _, err := tx.ContentOf(record, 0); err == nil && len(content) >= minMasked {
				all = append(all, content)
			}
		}
		return nil
	})
	return all
}

// minMasked is how long a secret is at least, in bytes, to be looked for in
// arguments: a shorter one would be found everywhere.
const minMasked = 4

// shownArguments are the arguments of a call for the eyes of a person: compact JSON
// with members in the order in which they were written, what looks like a credential
// or is one of secrets replaced by its length, and whatever a terminal acts on or
// nobody sees escaped. Where that is more than a person is shown, the middle of long
// texts, lists and objects is left out and counted, so that nothing is pushed out of
// sight by what stands before it.
func shownArguments(args []byte, secrets [][]byte) (shown []byte, cut bool) {
	if len(args) == 0 {
		return nil, false
	}
	w := argumentWriter{secrets: secrets, most: excerpt{text: len(args), first: len(args)}}
	if err := w.write(args); err != nil { // it was parsed before
		return []byte(`"[not shown]"`), true
	}
	if w.out.Len() <= maxShown {
		return w.out.Bytes(), false
	}
	sizes, err := countItems(args)
	if err != nil {
		return []byte(`"[not shown]"`), true
	}
	for _, most := range excerpts {
		w = argumentWriter{secrets: secrets, most: most, sizes: sizes}
		if err := w.write(args); err != nil {
			return []byte(`"[not shown]"`), true
		}
		if w.out.Len() <= maxShown {
			return w.out.Bytes(), true
		}
	}
	out := w.out.Bytes()[:maxShown]
	for len(out) > 0 && !utf8.Valid(out[max(0, len(out)-utf8.UTFMax):]) && !utf8.RuneStart(out[len(out)-1]) {
		out = out[:len(out)-1]
	}
	if r, size := utf8.DecodeLastRune(out); r == utf8.RuneError && size == 1 {
		out = out[:len(out)-1]
	}
	return out, true
}

// excerpt is how much is shown of what is long.
type excerpt struct {
	text        int // bytes of a text, a quarter of them from its end
	first, last int // members of an object, items of a list
}

// excerpts are tried in this order where not all can be shown.
var excerpts = []excerpt{{4 << 10, 128, 32}, {1 << 10, 32, 8}, {256, 16, 4}, {128, 8, 2}}

// countItems returns how many members or items each object and list has, in the order
// in which they begin.
func countItems(args []byte) ([]int, error) {
	var sizes, open []int // of open the objects and lists that are, by number
	decoder := json.NewDecoder(bytes.NewReader(args))
	decoder.UseNumber()
	for {
		token, err := decoder.Token()
		if err != nil {
			return nil, err
		}
		delim, _ := token.(json.Delim)
		switch {
		case delim == '}':
			sizes[open[len(open)-1]] /= 2 // names are tokens too
			fallthrough
		case delim == ']':
			if open = open[:len(open)-1]; len(open) == 0 {
				return sizes, nil
			}
			continue
		case len(open) > 0:
			sizes[open[len(open)-1]]++
		case delim == 0:
			return nil, errors.New("neither an object nor a list")
		}
		if delim != 0 {
			open, sizes = append(open, len(sizes)), append(sizes, 0)
		}
	}
}

// argumentWriter writes a value again, as a person may see it.
type argumentWriter struct {
	out     bytes.Buffer
	secrets [][]byte
	most    excerpt
	sizes   []int // of objects and lists, in the order in which they begin; nil: all is shown
	begun   int   // of them
	muted   bool  // what comes is left out
}

func (w *argumentWriter) write(args []byte) error {
	decoder := json.NewDecoder(bytes.NewReader(args))
	decoder.UseNumber()
	return w.value(decoder)
}

// say writes unless what comes is left out.
func (w *argumentWriter) say(text string) {
	if !w.muted {
		w.out.WriteString(text)
	}
}

// full reports whether nobody sees what is written from here on.
func (w *argumentWriter) full() bool { return w.out.Len() > maxShown+utf8.UTFMax }

// value writes the next value of a decoder. What is over the limit is read no
// further than it must be.
func (w *argumentWriter) value(decoder *json.Decoder) error {
	token, err := decoder.Token()
	if err != nil {
		return err
	}
	switch t := token.(type) {
	case json.Delim:
		return w.nested(decoder, t)
	case string:
		w.text(t)
	case json.Number:
		w.number(t.String())
	case bool:
		w.say(strconv.FormatBool(t))
	case nil:
		w.say("null")
	}
	return nil
}

func (w *argumentWriter) nested(decoder *json.Decoder, open json.Delim) error {
	w.say(open.String())
	muted, from, to := w.muted, -1, -1 // which are left out
	if w.sizes != nil {
		if n := w.sizes[w.begun]; n > w.most.first+w.most.last {
			from, to = w.most.first, n-w.most.last
		}
		w.begun++
	}
	for i := 0; decoder.More(); i++ {
		if i > 0 {
			w.say(",")
		}
		if w.full() {
			return nil
		}
		if i == from {
			w.say(fmt.Sprintf("…(%d not shown)…", to-from))
		}
		w.muted = muted || from <= i && i < to
		if open == '{' {
			token, err := decoder.Token()
			if err != nil {
				return err
			}
			name, _ := token.(string)
			w.text(name)
			w.say(":")
		}
		if err := w.value(decoder); err != nil {
			return err
		}
		if w.full() {
			return nil
		}
	}
	w.muted = muted
	token, err := decoder.Token()
	if err != nil {
		return err
	}
	w.say(fmt.Sprint(token))
	return nil
}

// number writes a number as it was written.
func (w *argumentWriter) number(s string) {
	if len(s) <= w.most.text {
		w.say(s)
		return
	}
	tail := len(s) - w.most.text/4
	head := w.most.text - w.most.text/4
	w.say(s[:head] + fmt.Sprintf("…(%d bytes not shown)…", tail-head) + s[tail:])
}

// text writes one text, without what must not be shown of it.
func (w *argumentWriter) text(s string) {
	if w.muted {
		return
	}
	masks := masked(s, w.secrets)
	if len(s) <= w.most.text {
		w.quoted(s, 0, len(s), masks)
		return
	}
	head, tail := w.most.text-w.most.text/4, len(s)-w.most.text/4
	for !utf8.RuneStart(s[head]) {
		head--
	}
	for tail < len(s) && !utf8.RuneStart(s[tail]) {
		tail++
	}
	for _, m := range masks { // a mask is not broken
		if m.Begin < head && head < m.End {
			head = m.End
		}
		if m.Begin < tail && tail < m.End {
			tail = m.Begin
		}
	}
	if head >= tail {
		w.quoted(s, 0, len(s), masks)
		return
	}
	w.quoted(s, 0, head, masks)
	w.say(fmt.Sprintf("…(%d bytes not shown)…", tail-head))
	w.quoted(s, tail, len(s), masks)
}

// quoted writes a part of a text, in quotes.
func (w *argumentWriter) quoted(s string, from, to int, masks []credential.Span) {
	w.out.WriteByte('"')
	for _, m := range masks {
		if m.Begin < from || m.Begin >= to {
			continue
		}
		w.plain(s[from:m.Begin])
		fmt.Fprintf(&w.out, "[masked %d bytes]", m.End-m.Begin)
		from = m.End
	}
	if from < to {
		w.plain(s[from:to])
	}
	w.out.WriteByte('"')
}

// plain writes what may be seen.
func (w *argumentWriter) plain(s string) {
	for _, r := range s {
		if w.full() {
			return
		}
		switch {
		case r == '"' || r == '\\':
			w.out.WriteByte('\\')
			w.out.WriteRune(r)
		case visible(r):
			w.out.WriteRune(r)
		case r > 0xffff:
			r -= 0x10000
			fmt.Fprintf(&w.out, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		default:
			fmt.Fprintf(&w.out, `\u%04x`, r)
		}
	}
}

// masked says which parts of a text must not be shown: what is a credential or one of
// secrets, and no more than that, so that a person sees what stands beside it.
func masked(s string, secrets [][]byte) (all []credential.Span) {
	// Only what could be shown is looked at closely: texts may be long.
	const most = 2 * maxShown
	if len(s) <= 2*most {
		all = credential.Spans([]byte(s))
	} else {
		all = credential.Spans([]byte(s[:most]))
		behind := len(s) - most
		for _, m := range credential.Spans([]byte(s[behind:])) {
			all = append(all, credential.Span{Begin: behind + m.Begin, End: behind + m.End})
		}
	}
	for _, secret := range secrets {
		bare := string(bytes.TrimSpace(secret))
		if len(bare) < minMasked {
			continue
		}
		for at := 0; ; {
			i := strings.Index(s[at:], bare)
			if i < 0 {
				break
			}
			all = append(all, credential.Span{Begin: at + i, End: at + i + len(bare)})
			at += i + len(bare)
		}
	}
	return credential.Apart(all)
}

// unseen are characters that count as printable and show nothing, or change how
// others look.
var unseen = &unicode.RangeTable{
	R16: []unicode.Range16{
		{Lo: 0x034f, Hi: 0x034f, Stride: 1}, {Lo: 0x115f, Hi: 0x1160, Stride: 1}, {Lo: 0x17b4, Hi: 0x17b5, Stride: 1}, {Lo: 0x180b, Hi: 0x180f, Stride: 1},
		{Lo: 0x2800, Hi: 0x2800, Stride: 1}, {Lo: 0x3164, Hi: 0x3164, Stride: 1}, {Lo: 0xfe00, Hi: 0xfe0f, Stride: 1}, {Lo: 0xffa0, Hi: 0xffa0, Stride: 1},
	},
	R32: []unicode.Range32{{Lo: 0xe0100, Hi: 0xe01ef, Stride: 1}},
}

// visible reports whether a character shows as what it is. A space does; other
// blanks, controls, marks of direction and what has no width do not.
func visible(r rune) bool {
	return r != utf8.RuneError && unicode.IsPrint(r) && !unicode.Is(unseen, r)
}
