package worker

import "testing"

// A connection is one key's while there are few, and is shared once there are many.
func TestKeysHaveConnectionsOfTheirOwn(t *testing.T) {
	ks := NewKeys(Config{})
	reserve := func(key uint64) *keyedConn {
		t.Helper()
		c, _, err := ks.reserve(purpose{key: key})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	judge, first, err := ks.reserve(purpose{judges: true})
	if err != nil || !first {
		t.Fatal(first, err)
	}
	one, two := reserve(1), reserve(2)
	if one == two || one == judge || two == judge {
		t.Error("two keys have one connection, although there is room")
	}
	for range runsPerConnection - 1 {
		if reserve(1) != one {
			t.Error("runs of one key do not share a connection")
		}
	}
	if reserve(1) == one {
		t.Error("a connection takes more runs than it may")
	}
	if again, _, err := ks.reserve(purpose{judges: true}); err != nil || again != judge {
		t.Error("keys are judged on several connections")
	}
	for key := uint64(3); len(ks.conns) <= ownConnections; key++ {
		reserve(key)
	}
	before := len(ks.conns)
	if c := reserve(1000); c != two || len(ks.conns) != before {
		t.Error("connections are not shared although there are many")
	}
}
