package daemon

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"subjectbroker/audit"
	"subjectbroker/grants"
	"subjectbroker/proto/wire"
	"subjectbroker/vault"
)

// bucketPins holds one row for each tool that was trusted, named SERVER/TOOL, and
// one for the instructions of its server, named SERVER/.
const bucketPins = "pins"

// Limits on what a server may offer: more is refused as a whole, so that nobody
// fills the memory of the daemon with descriptions.
const (
	maxOffered      = 1024     // tools of one server
	maxOfferedBytes = 16 << 20 // bytes of all their objects and the instructions together
	maxToolObject   = 1 << 20  // bytes of one tool's object
	maxInstructions = 64 << 10 // bytes of the instructions
	maxOffers       = 256      // servers whose offer is remembered
	maxSeenBytes    = 32 << 20 // bytes of what wrapped ones of them offer
	maxExposed      = 64       // bytes of SERVER_tool, above which agents are not shown it
)

// pin is one tool of a server as the operator trusted it: its whole object. With
// an empty tool it is the server's instructions.
type pin struct {
	Server  string
	Tool    string
	Object  []byte
	Trusted time.Time
}

// hash is what calls and entries name it by.
func (p pin) hash() string { return pinHash(p.Object) }

// pinHash is the pin of an object of tools/list, in the one form in which hosts and
// wrappers hand it on: compact, members sorted, numbers as written. Everything in
// it counts, also members that nobody knows.
func pinHash(object []byte) string {
	sum := sha256.Sum256(object)
	return hex.EncodeToString(sum[:])
}

func (p pin) key() pinKey { return pinKey{p.Server, p.Tool} }

// row is the name of its row. A server's name holds no slash.
func (p pin) row() string { return p.Server + "/" + p.Tool }

// pinKey names a pin in the state.
type pinKey struct{ server, tool string }

// offer is what a server says that it offers. It is never changed.
type offer struct {
	tools        map[string][]byte // objects, by name; see proto Tool
	instructions string
}

// pinOf returns the pin of a tool, or of the instructions when tool is empty, and
// whether it was trusted. It takes mu.
func (s *state) pinOf(server, tool string) (hash string, trusted bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	p, ok := s.pins[pinKey{server, tool}]
	if !ok {
		return "", false
	}
	return p.hash(), true
}

// trusted reports whether anything of the server was ever trusted: from then on
// what is not pinned is withheld. It takes mu.
func (s *state) trusted(server string) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.trustedLocked(server)
}

// trustedLocked is trusted for callers that hold mu or changing.mu.
func (s *state) trustedLocked(server string) bool {
	for k := range s.pins {
		if k.server == server {
			return true
		}
	}
	return false
}

// pinned returns what was trusted of a server, by name, the instructions first. The
// caller holds mu or changing.mu.
func (s *state) pinned(server string) []pin {
	var all []pin
	for k, p := range s.pins {
		if k.server == server {
			all = append(all, p)
		}
	}
	slices.SortFunc(all, func(a, b pin) int { return strings.Compare(a.Tool, b.Tool) })
	return all
}

// callable returns the pin of a tool that may be forwarded to a server that offers
// o; nil: nobody knows what it offers now. A tool that was not trusted, that is
// gone, that is not what was trusted or whose exposed name is too long is not
// callable. It takes mu.
func (s *state) callable(server, tool string, o *offer) (hash string, ok bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	p, ok := s.pins[pinKey{server, tool}]
	if !ok || tool == "" || !exposable(server, tool) {
		return "", false
	}
	if o != nil {
		if now, offered := o.tools[tool]; !offered || !bytes.Equal(now, p.Object) {
			return "", false
		}
	}
	return p.hash(), true
}

// callableTools returns the pins of all tools that callable lets pass, by name, and
// the instructions when they are what was trusted. It takes mu.
func (s *state) callableTools(server string, o *offer) (tools []pin, instructions string) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, p := range s.pinned(server) {
		switch {
		case p.Tool == "":
			if o == nil || o.instructions == string(p.Object) {
				instructions = string(p.Object)
			}
		case !exposable(server, p.Tool):
		case o == nil || bytes.Equal(o.tools[p.Tool], p.Object):
			tools = append(tools, p)
		}
	}
	return tools, instructions
}

// exposed is the name under which agents see a tool.
func exposed(server, tool string) string { return server + "_" + tool }

// exposable reports whether agents can be shown a tool under its exposed name: it is
// not too long, and none of the shim's own.
func exposable(server, tool string) bool {
	name := exposed(server, tool)
	return len(name) <= maxExposed && !wire.OwnTool(name)
}

// size is about how many bytes it holds.
func (o *offer) size() int {
	n := len(o.instructions)
	for name, object := range o.tools {
		n += len(name) + len(object)
	}
	return n
}

// pinsChange trusts what is in added and forgets what is in gone.
func (o operator) pinsChange(ctx context.Context, added, gone []pin) change {
	forgotten := o.pinsRemoval(ctx, gone)
	c := change{
		write: func(tx *vault.Tx) error {
			for _, p := range added {
				row, err := encodePin(p)
				if err == nil {
					err = tx.Put(bucketPins, p.row(), row)
				}
				if err != nil {
					return err
				}
			}
			return nil
		},
		// What was trusted before under that name is not any more.
		restrict: func(st *state) {
			for _, p := range added {
				delete(st.pins, p.key())
			}
		},
		permit: func(st *state) {
			for _, p := range added {
				st.pins[p.key()] = p
			}
		},
		after: func() { o.d.hub.listChanged() },
	}
	for _, p := range added {
		e := o.entry(ctx, kindServerTrust)
		e.Server, e.Tool, e.Pin = p.Server, p.Tool, p.hash()
		c.effects = append(c.effects, e)
	}
	return joined(c, forgotten)
}

// pinsRemoval forgets what was trusted. Its effects may be empty.
func (o operator) pinsRemoval(ctx context.Context, gone []pin) change {
	c := change{
		write: func(tx *vault.Tx) error {
			for _, p := range gone {
				if err := tx.Delete(bucketPins, p.row()); err != nil {
					return err
				}
			}
			return nil
		},
		restrict: func(st *state) {
			for _, p := range gone {
				delete(st.pins, p.key())
			}
		},
	}
	for _, p := range gone {
		e := o.entry(ctx, kindServerForget)
		e.Server, e.Tool, e.Pin = p.Server, p.Tool, p.hash()
		c.effects = append(c.effects, e)
	}
	return c
}

// offers is what was last seen to be offered, by server, whoever ran it. Hosted
// servers are asked by the daemon; what wrapped ones offer is the word of an agent,
// for the operator to look at.
type offers struct {
	mu   sync.Mutex
	seen map[string]*seenOffer
}

// seenOffer is one server's.
type seenOffer struct {
	*offer
	wrapped bool // the word of an agent
	size    int  // bytes
	at      time.Time

	told string    // fingerprint of what was told of it that was not trusted
	last time.Time // when that was
}

// tellPause is between two entries about what one server offers: it can be made to
// offer something else all the time.
const tellPause = 10 * time.Second

func newOffers() *offers { return &offers{seen: map[string]*seenOffer{}} }

// of returns what a server was last seen to offer; nil when nobody knows.
func (os *offers) of(server string) *offer {
	os.mu.Lock()
	defer os.mu.Unlock()
	if s, ok := os.seen[server]; ok {
		return s.offer
	}
	return nil
}

// names returns the servers of which that is known, sorted.
func (os *offers) names() []string {
	os.mu.Lock()
	defer os.mu.Unlock()
	return slices.Sorted(maps.Keys(os.seen))
}

// see remembers an offer, and reports whether it is another one than before, and
// whether what is not trusted of it has to be told.
func (os *offers) see(server string, o *offer, wrapped bool, untrusted []string, now time.Time) (other, tell bool) {
	sum := sha256.New()
	for _, name := range untrusted {
		fmt.Fprintf(sum, "%d %s %s\n", len(name), name, pinHash(o.tools[name]))
	}
	told := hex.EncodeToString(sum.Sum([]byte(pinHash([]byte(o.instructions)))))
	os.mu.Lock()
	defer os.mu.Unlock()
	s, ok := os.seen[server]
	if !ok {
		s = &seenOffer{offer: &offer{}}
		os.seen[server] = s
	}
	other = s.instructions != o.instructions || !maps.EqualFunc(s.tools, o.tools, bytes.Equal)
	s.offer, s.at, s.wrapped, s.size = o, now, wrapped, o.size()
	os.makeRoom(server)
	if len(untrusted) > 0 && s.told != told && now.Sub(s.last).Abs() >= tellPause {
		s.told, s.last, tell = told, now, true
	}
	return other, tell
}

// makeRoom forgets what was seen longest ago of the servers that agents wrap, but
// not of latest: what they say must not fill the memory, nor drive out what the
// daemon's own processes say. The caller holds mu.
func (os *offers) makeRoom(latest string) {
	for {
		oldest, count, size := "", 0, 0
		for name, s := range os.seen {
			if !s.wrapped {
				continue
			}
			count, size = count+1, size+s.size
			if name != latest && (oldest == "" || s.at.Before(os.seen[oldest].at)) {
				oldest = name
			}
		}
		if oldest == "" || count <= maxOffers && size <= maxSeenBytes {
			return
		}
		delete(os.seen, oldest)
	}
}

func (os *offers) forget(server string) {
	os.mu.Lock()
	defer os.mu.Unlock()
	delete(os.seen, server)
}

// offered takes what a server says that it offers, and tells the operator when
// something of it is not trusted. by is the server whose process says so; nil: an
// agent does. Of a server that was added only a process of that very server is
// believed, and not one that a removed one of its name has left. It reports whether
// that is something else than was known before.
func (d *Daemon) offered(subject, server string, o *offer, by *grants.Server) (other bool) {
	st := d.state()
	var untrusted []string
	alone, hosted := "", by != nil
	st.mu.RLock()
	if s, added := st.servers[server]; hosted && (!added || !same(s, *by)) || !hosted && added && s.Hosted {
		st.mu.RUnlock()
		return false
	}
	for _, t := range st.toolStates(server, o) {
		if t.untrusted() {
			untrusted = append(untrusted, t.name)
			alone = t.name
		}
	}
	if !hosted && !st.trustedLocked(server) { // judged by policy alone
		untrusted = nil
	}
	other, tell := d.offers.see(server, o, !hosted, untrusted, d.clock.now()) // before a removal forgets
	st.mu.RUnlock()
	if !tell {
		return other
	}
	e := audit.Entry{Kind: kindServerChanged, SubjectID: subject, Server: server, Count: uint64(len(untrusted))}
	if len(untrusted) == 1 && alone != "" {
		e.Tool = d.maskedTool(server, alone)
	}
	d.hosts.note(e)
	return other
}

// maskedTool is the name of a tool as it may stand in the log.
func (d *Daemon) maskedTool(server, tool string) string {
	if grants.CheckTool(server+"/"+tool) == nil {
		return tool
	}
	return d.mask(tool)
}

// States of tools, for the operator.
const (
	toolTrusted  = "trusted"
	toolNew      = "new"
	toolChanged  = "changed"
	toolGone     = "gone"
	toolWithheld = "withheld"
)

// toolState is one tool of a server, or with an empty name its instructions.
type toolState struct {
	name    string
	state   string
	pin     *pin   // what was trusted; nil: nothing
	seen    []byte // what was seen last; nil: nothing
	present bool   // something was seen
}

// untrusted reports whether the operator has something to look at.
func (t toolState) untrusted() bool { return t.state == toolNew || t.state == toolChanged }

// toolStates holds what a server was last seen to offer, nil for nothing, beside
// what was trusted: the instructions, where there are any, and then the tools by
// name. The caller holds mu or changing.mu.
func (s *state) toolStates(server string, o *offer) []toolState {
	byName := map[string]*toolState{}
	for _, p := range s.pinned(server) {
		byName[p.Tool] = &toolState{name: p.Tool, state: toolTrusted, pin: &p}
		if o != nil && p.Tool != "" {
			byName[p.Tool].state = toolGone
		}
	}
	if o != nil {
		seen := maps.Clone(o.tools)
		_, instructed := byName[""]
		if seen == nil {
			seen = map[string][]byte{}
		}
		delete(seen, "")
		if instructed || o.instructions != "" {
			seen[""] = []byte(o.instructions)
		}
		for name, object := range seen {
			t, ok := byName[name]
			if !ok {
				t = &toolState{name: name, state: toolNew}
				byName[name] = t
			}
			t.seen, t.present = object, true
			switch {
			case t.pin == nil:
			case bytes.Equal(t.pin.Object, object):
				t.state = toolTrusted
			case name == "" && len(object) == 0:
				t.state = toolGone
			default:
				t.state = toolChanged
			}
		}
	}
	var all []toolState
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		t := *byName[name]
		if name != "" && (!exposable(server, name) || grants.CheckTool(server+"/"+name) != nil) {
			t.state = toolWithheld
		}
		all = append(all, t)
	}
	return all
}
