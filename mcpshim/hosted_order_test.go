package mcpshim

import (
	"fmt"
	"testing"
)

// Calls take turns by server, in the order in which they came, and one that gives up
// neither overtakes nor keeps those behind it.
func TestTurns(t *testing.T) {
	h := &hosted{}
	var turns []*turn
	for range 5 {
		turns = append(turns, h.line("a"))
	}
	if other := h.line("b"); other.wait(t.Context()) != nil {
		t.Error("another server's calls wait")
	} else {
		other.pass()
	}
	isTurn := func(i int) bool {
		select {
		case <-turns[i].before:
			return true
		default:
			return false
		}
	}
	turns[1].pass() // its client did not wait
	if isTurn(2) {
		t.Fatal("the third overtook the first")
	}
	turns[0].pass()
	for i := 2; i < 5; i++ {
		if err := turns[i].wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		if i < 4 && isTurn(i+1) {
			t.Errorf("call %d overtook", i+1)
		}
		turns[i].pass()
		turns[i].pass()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.lines) > 0 {
		t.Error(fmt.Sprint("left: ", len(h.lines)))
	}
}
