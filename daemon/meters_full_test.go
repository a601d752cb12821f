package daemon

import (
	"testing"

	"subjectbroker/proto/wire"
)

// What waits for the vault does not grow for ever: calls are refused until the vault
// can be written again.
func TestCallsThatWaitForTheVaultAreBounded(t *testing.T) {
	k := newDesk(t, t.TempDir())
	judge := func() wire.Reason {
		g := k.beginCall(k.run, toolCall{ctx: t.Context(), server: "files", tool: "nothing", args: []byte("{}")})
		g.place()
		return g.finish(t.Context()).reason
	}
	if got := judge(); got != wire.AccessDenied {
		t.Errorf("before: %s", got)
	}
	m := k.state().meters
	m.mu.Lock()
	before := m.since
	m.since = make([]*meterEvent, maxSince)
	m.mu.Unlock()
	got := judge()
	m.mu.Lock()
	m.since = before
	m.mu.Unlock()
	if got != wire.RateLimited {
		t.Errorf("when too many wait: %s", got)
	}
	if got := judge(); got != wire.AccessDenied {
		t.Errorf("after: %s", got)
	}
}
