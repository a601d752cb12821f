package mcpshim

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"subjectbroker/mcpshim/canon"
	"subjectbroker/proto/wire"
	"subjectbroker/worker"
)

// hostedPatience bounds how long a list of tools waits for those of hosted
// servers. What comes later is told as a change.
const hostedPatience = 2 * time.Second

// Limits on hosted tools.
const (
	maxExposed     = 64       // characters of a name that clients take
	maxListedBytes = 16 << 20 // of all hosted tools in one list
)

// hosted are the tools of the servers that the daemon has run. They stand in the
// lists beside our own, as their servers describe them; calls of them go round
// the SDK, which knows nothing of them and would leave out what it does not know.
type hosted struct {
	s    *shim
	kick chan struct{} // capacity 1: look whether something is different

	mu      sync.Mutex
	looked  bool                     // it was looked which servers there are
	stale   bool                     // the daemon has to be asked again
	relays  map[string]*worker.Relay // by server; those of the latest look
	latest  [][]byte                 // objects in the latest list
	memory  []string                 // tools of the memory that can be used, as of the latest look
	shown   []string                 // and as of the latest list
	hasList bool
	lines   map[string]*turn // by server: the latest turn that is not over
}

func newHosted(s *shim) *hosted {
	return &hosted{s: s, kick: make(chan struct{}, 1), relays: map[string]*worker.Relay{}}
}

// split is the server and the tool that an exposed name stands for; ok is false
// for names of our own and those that can be no hosted tool's.
func (h *hosted) split(exposed string) (server, name string, ok bool) {
	server, name, ok = strings.Cut(exposed, "_") // no server's name has one
	if !ok || name == "" || !validServer(server) || slices.ContainsFunc(h.s.own, func(t tool) bool { return t.name == exposed }) {
		return "", "", false
	}
	return server, name, true
}

// validServer is the grammar of servers' names: ^[a-z0-9][a-z0-9-]{0,31}$.
func validServer(name string) bool {
	if name == "" || len(name) > 32 || name[0] == '-' {
		return false
	}
	return !strings.ContainsFunc(name, func(c rune) bool { return (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' })
}

// look says that the list may be another one; which servers there are too, when
// servers is set. It does not block.
func (h *hosted) look(servers bool) {
	h.mu.Lock()
	h.stale = h.stale || servers
	h.mu.Unlock()
	select {
	case h.kick <- struct{}{}:
	default:
	}
}

// keep tells the client of changes until it is enough, or ctx ends.
func (h *hosted) keep(ctx context.Context, enough <-chan struct{}) {
	for {
		select {
		case <-enough:
			return
		default:
		}
		select {
		case <-h.kick:
		case <-enough:
			return
		case <-ctx.Done():
			return
		}
		h.mu.Lock()
		before, had, stale, shown := h.latest, h.hasList, h.stale, h.shown
		h.mu.Unlock()
		if stale && h.refresh(ctx) != nil {
			continue // the keeper says when there is a daemon again
		}
		if !h.s.greeted.Load() {
			continue // it has not asked for anything yet, and will ask what there is
		}
		h.mu.Lock()
		usable := h.memory
		h.mu.Unlock()
		now, whole := h.objects(ctx)
		other := whole && !slices.EqualFunc(before, now, slices.Equal) || !slices.Equal(shown, usable)
		if whole && !had && len(now)+len(usable) > 0 || had && other {
			if !whole {
				now = before
			}
			h.remember(now)
			h.s.touchTools()
		}
	}
}

// called says that a hosted tool is called. Whoever has asked for no list yet is told
// that there is one.
func (h *hosted) called() {
	h.mu.Lock()
	listed := h.hasList
	h.mu.Unlock()
	if !listed {
		h.look(false)
	}
}

func (h *hosted) remember(list [][]byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.latest, h.shown, h.hasList = list, h.memory, true
}

// refresh asks which servers there are, and opens a relay for each.
func (h *hosted) refresh(ctx context.Context) error {
	h.mu.Lock()
	h.stale = false
	h.mu.Unlock()
	scope, err := h.s.authorise(ctx)
	var servers, memory []string
	if err == nil {
		servers, memory, err = scope.run.Servers(ctx)
	}
	if err != nil {
		h.mu.Lock()
		h.stale = true
		h.mu.Unlock()
		return err
	}
	return h.open(ctx, servers, memory)
}

// refreshFirst is refresh for a greeting. The first time it is content with what the
// daemon said when it opened the run: an agent without hosted servers waits for nothing
// else. Which tools there are is asked for with each list.
func (h *hosted) refreshFirst(ctx context.Context) error {
	h.mu.Lock()
	ask := h.looked || h.stale
	h.mu.Unlock()
	if ask {
		return h.refresh(ctx)
	}
	run, err := h.s.keeper.Fresh(ctx)
	if err != nil {
		return err
	}
	servers, memory, known := run.OfferedAtStart()
	if !known {
		return h.refresh(ctx)
	}
	return h.open(ctx, servers, memory)
}

// open opens a relay for each of the servers, which are those that there are.
func (h *hosted) open(ctx context.Context, servers, memory []string) error {
	opened := make([]*worker.Relay, len(servers))
	var opening sync.WaitGroup
	for i, server := range servers {
		opening.Go(func() {
			relay, err := h.relay(ctx, server)
			if err != nil {
				return // it was taken away meanwhile, or the next look finds it
			}
			opened[i] = relay
		})
	}
	opening.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.looked, h.memory = true, memory
	h.relays = map[string]*worker.Relay{}
	for i, server := range servers {
		if opened[i] != nil {
			h.relays[server] = opened[i]
		}
	}
	return ctx.Err()
}

// relayTo is a relay for one call, and what is done after it. Of a server that the
// daemon did not name nothing is kept: an agent could make up any number.
func (h *hosted) relayTo(ctx context.Context, server string) (relay *worker.Relay, done func(), err error) {
	h.mu.Lock()
	_, known := h.relays[server]
	h.mu.Unlock()
	if known {
		relay, err = h.relay(ctx, server)
		return relay, func() {}, err
	}
	scope, err := h.s.authorise(ctx)
	if err == nil {
		relay, err = scope.run.Relay(ctx, worker.RelayConfig{
			Server: server, Mode: worker.Hosted,
			Tools: func(offered worker.RelayTools) {
				if len(offered.Tools) > 0 { // it is there after all
					h.look(true)
				}
			},
		})
	}
	if err != nil {
		return nil, func() {}, err
	}
	return relay, relay.Close, nil
}

// relay is the open relay for a server.
func (h *hosted) relay(ctx context.Context, server string) (*worker.Relay, error) {
	return h.s.keeper.Relay(ctx, worker.RelayConfig{
		Server: server, Mode: worker.Hosted,
		Tools: func(worker.RelayTools) { h.look(false) },
	})
}

// objects are the tools that may be called, as clients see them, by server and
// name. whole is false when some could not be asked for in time.
func (h *hosted) objects(ctx context.Context) (list [][]byte, whole bool) {
	h.mu.Lock()
	relays := make(map[string]*worker.Relay, len(h.relays))
	for server, relay := range h.relays {
		relays[server] = relay
	}
	h.mu.Unlock()
	whole = true
	size := 0
	for _, server := range sortedKeys(relays) {
		offered, err := relays[server].Offered(ctx)
		if err != nil {
			whole = whole && ctx.Err() == nil // a relay that is over has no tools
			continue
		}
		for _, one := range offered.Tools {
			object, ok := h.expose(server, one)
			if !ok {
				continue
			}
			if size += len(object); size > maxListedBytes {
				h.s.once(wire.ResourceTooLarge, "the tools of the hosted servers are too large for one list; some are left out")
				return list, whole
			}
			list = append(list, object)
		}
	}
	return list, whole
}

func sortedKeys[V any](all map[string]V) []string {
	keys := make([]string, 0, len(all))
	for key := range all {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// expose is the tool's object with the name that clients call it by, and nothing
// else changed. What comes from a sandbox is looked at before it is written into a
// line.
func (h *hosted) expose(server string, tool worker.ServerTool) (object []byte, ok bool) {
	name := server + "_" + tool.Name
	if _, _, ok := h.split(name); !ok || len(name) > maxExposed {
		return nil, false
	}
	if canon.Check(tool.Object) != nil {
		return nil, false
	}
	members, err := canon.Members(tool.Object)
	if err != nil {
		return nil, false
	}
	object = append(make([]byte, 0, len(tool.Object)+len(server)+1), '{')
	for i, m := range members {
		if i > 0 {
			object = append(object, ',')
		}
		object = append(canon.Quote(object, m.Key), ':')
		if m.Key == "name" {
			object = canon.Quote(object, name)
			continue
		}
		object = append(object, canon.Compact(m.Raw)...)
	}
	return append(object, '}'), true
}

// add puts the hosted tools into a list of ours.
func (h *hosted) add(ctx context.Context, listed *mcp.ListToolsResult) {
	ctx, cancel := context.WithTimeout(ctx, hostedPatience)
	defer cancel()
	defer context.AfterFunc(h.s.hurry, cancel)()
	failed := h.refresh(ctx) != nil
	last := listed.NextCursor == ""
	listed.Tools = h.usable(listed.Tools)
	if !last {
		return
	}
	if failed {
		h.remember(nil)
		h.look(true)
		return
	}
	list, whole := h.objects(ctx)
	h.remember(list)
	if !whole {
		h.look(false)
	}
	if len(list) == 0 {
		return
	}
	ticket := h.s.tickets.put(&payload{head: joined(list), listed: true, release: func() {}})
	listed.Tools = append(slices.Clip(listed.Tools), &mcp.Tool{Name: ticket})
}

// usable is a list of our own tools without those of the memory that cannot be used.
func (h *hosted) usable(tools []*mcp.Tool) []*mcp.Tool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(tools), func(listed *mcp.Tool) bool {
		known := slices.ContainsFunc(h.s.own, func(t tool) bool { return t.knowledge && t.name == listed.Name })
		return known && !slices.Contains(h.memory, listed.Name)
	})
}

func joined(list [][]byte) []byte {
	size := len(list)
	for _, object := range list {
		size += len(object)
	}
	all := make([]byte, 0, size)
	for i, object := range list {
		if i > 0 {
			all = append(all, ',')
		}
		all = append(all, object...)
	}
	return all
}
