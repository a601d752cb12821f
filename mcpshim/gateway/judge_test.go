package gateway

import (
	"fmt"
	"testing"
)

// What comes of a request of a session, by whose key it has, what is known of that,
// and what has become of the run: who is asked, what is answered, and whether the
// session is left.
func TestAuthenticate(t *testing.T) {
	tests := []struct {
		run, key, state string
		asked           string // in what order, by the first letters of open, check and authenticate
		status          int
		left            bool
	}{
		{"open", "own", "good", "a", 200, true},
		{"open", "own", "revoked", "a", 401, false},
		{"open", "own", "unjudged", "a", 503, true},
		{"open", "other", "good", "a", 404, true},
		{"open", "other", "revoked", "a", 401, true},
		{"open", "other", "unjudged", "a", 503, true},

		{"over", "own", "good", "o", 200, true},
		{"over", "own", "revoked", "o", 401, false},
		{"over", "own", "unjudged", "o", 503, true},
		{"over", "other", "good", "c", 404, true},
		{"over", "other", "revoked", "c", 401, true},
		{"over", "other", "unjudged", "c", 503, true},

		// The daemon knows it, and we have not heard of it.
		{"unheard", "own", "good", "ao", 200, true},
		{"unheard", "other", "good", "a", 404, true},
	}
	for _, tc := range tests {
		t.Run(fmt.Sprint(tc.run, " ", tc.key, " ", tc.state), func(t *testing.T) {
			s := start(t, Limits{})
			id := s.open()
			ask := func(key []byte) int {
				return s.do("POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"x"}`, "Mcp-Session-Id", id, "Authorization", "Bearer "+string(key)).status
			}
			key := goodKey
			if tc.key == "other" {
				key = otherKey
			}
			s.keys.mu.Lock()
			switch tc.run {
			case "over":
				s.keys.runs[0].end()
			case "unheard":
				s.keys.runs[0].id = "another"
			}
			switch tc.state {
			case "revoked":
				s.keys.refused[string(key)] = RevokedKey
			case "unjudged":
				s.keys.down = errDown
			}
			s.keys.mu.Unlock()
			s.said()
			if got := ask(key); got != tc.status {
				t.Errorf("answered with %d, not %d", got, tc.status)
			}
			asked := ""
			for _, line := range s.said() {
				asked += line[:1]
			}
			if asked != tc.asked {
				t.Errorf("asked %q, not %q", asked, tc.asked)
			}
			s.keys.mu.Lock()
			clear(s.keys.refused)
			s.keys.down = nil
			s.keys.mu.Unlock()
			if got := ask(goodKey); (got == 200) != tc.left {
				t.Errorf("afterwards: %d", got)
			}
		})
	}
}
