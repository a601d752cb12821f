package daemon

import (
	"bytes"
	"encoding/json"
	"fmt"
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
	case trusted || st.trusted(g.server):
		c.pinState = pinChanged
	default:
		c.pinState = pinUntrusted
	}
	server, _ := st.server(g.server)
	secrets := d.secretsOf(server)
	defer func() {
		for _, secret := range secrets {
			clear(secret)
		}
	}()
	for _, name := range server.Secrets() {
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

// secretsOf are the contents that a server has, so that they are not shown where an
// agent has got hold of one. The caller wipes them. What cannot be read is not
// there: the server has not got it either.
func (d *Daemon) secretsOf(server grants.Server) (all [][]byte) {
	_ = d.vault.View(func(tx *vault.Tx) error {
		for _, name := range server.Secrets() {
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
// with members in the order in which they were written, every text that looks like a
// credential or holds one of secrets replaced by its length, whatever a terminal
// acts on or nobody sees escaped, and cut.
func shownArguments(args []byte, secrets [][]byte) (shown []byte, cut bool) {
	if len(args) == 0 {
		return nil, false
	}
	decoder := json.NewDecoder(bytes.NewReader(args))
	decoder.UseNumber()
	w := argumentWriter{secrets: secrets}
	if err := w.value(decoder); err != nil { // it was parsed before
		return []byte(`"[not shown]"`), true
	}
	out := w.out.Bytes()
	if len(out) <= maxShown {
		return out, false
	}
	out = out[:maxShown]
	for len(out) > 0 && !utf8.Valid(out[max(0, len(out)-utf8.UTFMax):]) && !utf8.RuneStart(out[len(out)-1]) {
		out = out[:len(out)-1]
	}
	if r, size := utf8.DecodeLastRune(out); r == utf8.RuneError && size == 1 {
		out = out[:len(out)-1]
	}
	return out, true
}

// maxCredential is how much of a credential tells that it is one, in bytes.
const maxCredential = 1 << 10

// argumentWriter writes a value again, as a person may see it.
type argumentWriter struct {
	out     bytes.Buffer
	secrets [][]byte
}

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
		w.out.WriteString(t.String())
	case bool:
		fmt.Fprint(&w.out, t)
	case nil:
		w.out.WriteString("null")
	}
	return nil
}

func (w *argumentWriter) nested(decoder *json.Decoder, open json.Delim) error {
	w.out.WriteString(open.String())
	for first := true; decoder.More(); first = false {
		if !first {
			w.out.WriteByte(',')
		}
		if w.out.Len() > maxShown+utf8.UTFMax { // nobody sees the rest
			return nil
		}
		if open == '{' {
			token, err := decoder.Token()
			if err != nil {
				return err
			}
			name, _ := token.(string)
			w.text(name)
			w.out.WriteByte(':')
		}
		if err := w.value(decoder); err != nil {
			return err
		}
		if w.out.Len() > maxShown+utf8.UTFMax {
			return nil
		}
	}
	token, err := decoder.Token()
	if err != nil {
		return err
	}
	fmt.Fprint(&w.out, token)
	return nil
}

// text writes one text, or that there was one.
func (w *argumentWriter) text(s string) {
	if w.secret(s) {
		fmt.Fprintf(&w.out, `"[masked %d bytes]"`, len(s))
		return
	}
	w.out.WriteByte('"')
	for _, r := range s {
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
	w.out.WriteByte('"')
}

// secret reports whether a text must not be shown.
func (w *argumentWriter) secret(s string) bool {
	// Only what could be shown is looked at closely: texts may be long.
	if _, found := credential.Find([]byte(s[:min(len(s), maxShown+maxCredential)])); found {
		return true
	}
	for _, secret := range w.secrets {
		if bare := bytes.TrimSpace(secret); len(bare) >= minMasked && bytes.Contains([]byte(s), bare) {
			return true
		}
	}
	return false
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
