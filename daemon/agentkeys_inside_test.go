package daemon

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"time"

	"subjectbroker/grants"
	"subjectbroker/proto/agentkey"
	"subjectbroker/proto/wire"
)

var keyNoon = time.Date(2030, 6, 1, 12, 0, 0, 0, time.UTC)

// manyKeys is a state with one subject and so many keys, the last of which is returned
// in the clear.
func manyKeys(tb testing.TB, n int) (*state, agentkey.Key) {
	tb.Helper()
	st := newState()
	st.mustPutSubject(grants.Subject{Name: "worker", MinTier: grants.Cooperative, Created: keyNoon})
	key := agentkey.New()
	for i := range n {
		k := grants.AgentKey{ID: keyIDOf(i), Subject: "worker", SubjectCreated: keyNoon, Created: keyNoon.Add(time.Duration(i) * time.Second)}
		binary.BigEndian.PutUint64(k.Hash[:], uint64(i)+1)
		if i == n-1 {
			k.Hash = agentkey.Hash(key)
		}
		st.keys.put(k)
	}
	return st, key
}

func keyIDOf(i int) string {
	id := []byte("aaaaaaaaaa")
	for at := len(id) - 1; i > 0; at-- {
		id[at] += byte(i % 26)
		i /= 26
	}
	return string(id)
}

// What a key costs does not depend on how many there are.
func BenchmarkPresented(b *testing.B) {
	for _, n := range []int{10, 100_000} {
		st, key := manyKeys(b, n)
		for what, presented := range map[string][]byte{"known": key, "unknown": agentkey.New()} {
			b.Run(fmt.Sprintf("%d/%s", n, what), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if k, _ := st.presented(presented, reading{now: keyNoon}); (k.ID == "") != (what == "unknown") {
						b.Fatal(k.ID)
					}
				}
			})
		}
	}
}

// Of keys that ended the newest are kept, and none that is good goes.
func TestEndedKeysAreForgotten(t *testing.T) {
	st, key := manyKeys(t, keptKeys+100)
	at := reading{now: keyNoon.Add(time.Hour)}
	end := func(i int) {
		k := st.keys.byID[keyIDOf(i)]
		k.Revoked = keyNoon
		st.keys.put(k)
	}
	for i := range keptKeys - 1 {
		end(i)
	}
	if c := (operator{}).keyPruning(st, at); c.restrict != nil {
		t.Error("keys are forgotten that are to be kept")
	}
	for i := range keptKeys + 50 {
		end(i)
	}
	leads := st.keys.byID[keyIDOf(10)] // to one that is good, and that goes with what came after it
	leads.From = keyIDOf(keptKeys + 60)
	st.keys.put(leads)
	(operator{}).keyPruning(st, at).restrict(st)
	if got := len(st.keys.byID); got != keptKeys+100-50 { // with room for the next one
		t.Errorf("%d keys are left", got)
	}
	if _, there := st.keys.byID[keyIDOf(50)]; there || st.keys.byID[keyIDOf(51)].ID == "" {
		t.Error("it is not the oldest ones that are forgotten")
	}
	if st.keys.byID[leads.ID].ID == "" {
		t.Error("one is forgotten by way of which a good one is revoked")
	}
	if k, why := st.presented(key, at); k.ID == "" || why != (badKey{}) {
		t.Errorf("the good one: %v", why)
	}
	if _, why := st.presented(append([]byte("ak_live_"), strings.Repeat("0", 40)...), at); why.auth != wire.UnknownKey {
		t.Errorf("an unknown one: %v", why)
	}
}

// Of many keys not every one that is minted has all of them looked through.
func TestEndedKeysOfMany(t *testing.T) {
	st, _ := manyKeys(t, 10*lookEvery)
	looks := 0
	for i := range 100 {
		if st.keys.look() {
			looks++
		}
		st.keys.put(st.keys.byID[keyIDOf(i)])
	}
	if looks != 10 {
		t.Errorf("100 keys are minted and %d times all are looked at", looks)
	}
}

// What a request about memory may touch: named tenants whole or not at all, the same
// for one that is foreign and one that does not exist, and never more than the key has.
func TestScope(t *testing.T) {
	st := newState()
	st.mustPutSubject(grants.Subject{Name: "worker", MinTier: grants.Cooperative, Created: keyNoon})
	for _, name := range []string{"acme", "globex", "initech", "secret"} {
		st.tenants[name] = grants.Tenant{Name: name}
	}
	for id, text := range map[string]string{"aaaaaaaaaa": "memory.read:acme", "bbbbbbbbbb": "memory.read:globex", "cccccccccc": "memory.write:*", "dddddddddd": "memory.read:ghost"} {
		st.mustPutGrant(grantOf(t, id, "worker", text, grants.Allow, time.Time{}))
	}
	st.mustPutGrant(grantOf(t, "eeeeeeeeee", "worker", "memory.write:secret", grants.Deny, time.Time{}))
	gated := grantOf(t, "ffffffffff", "worker", "memory.read:initech", grants.Allow, time.Time{}) // as an older version took it
	gated.RequireApproval = true
	st.mustPutGrant(gated)
	for id, tenants := range map[string][]string{"kaaaaaaaaa": {"acme", "initech"}, "kbbbbbbbbb": nil} {
		k := grants.AgentKey{ID: id, Hash: agentkey.Hash([]byte(id)), Subject: "worker", SubjectCreated: keyNoon, Created: keyNoon, Tenants: tenants}
		st.keys.put(k)
	}
	const none = "|"
	for _, tt := range []struct {
		name   string
		key    string
		action grants.Action
		named  string
		want   string // granted | outside
	}{
		{"everything", "", grants.MemoryRead, "", "acme globex" + none},
		{"named", "", grants.MemoryRead, "globex acme globex", "acme globex" + none},
		{"one foreign", "", grants.MemoryRead, "acme secret", "|secret"},
		{"one unknown", "", grants.MemoryRead, "acme nope", "|nope"},
		{"granted and gone", "", grants.MemoryRead, "ghost", "|ghost"},
		{"gated", "", grants.MemoryRead, "initech", "|initech"},
		{"writing by a pattern", "", grants.MemoryWrite, "", "acme globex initech" + none},
		{"writing what is denied", "", grants.MemoryWrite, "secret", "|secret"},
		{"a key's", "kaaaaaaaaa", grants.MemoryRead, "", "acme" + none},
		{"a key's writing", "kaaaaaaaaa", grants.MemoryWrite, "", "acme initech" + none},
		{"beyond a key", "kaaaaaaaaa", grants.MemoryRead, "acme globex", "|globex"},
		{"a key without tenants", "kbbbbbbbbb", grants.MemoryRead, "", none},
		{"named with it", "kbbbbbbbbb", grants.MemoryRead, "acme", "|acme"},
		{"a key that is gone", "kccccccccc", grants.MemoryRead, "", none},
	} {
		who := asker{subject: "worker", tier: grants.Cooperative, key: tt.key}
		granted, outside := st.scope(who, tt.action, strings.Fields(tt.named), reading{now: keyNoon})
		if got := strings.Join(granted, " ") + "|" + strings.Join(outside, " "); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}
