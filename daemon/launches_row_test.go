package daemon

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"subjectbroker/daemon/peer"
	"subjectbroker/grants"
)

var someLaunch = launchRow{
	id: "abcdefghjk", subject: "worker", born: time.Date(2026, 3, 1, 12, 0, 0, 123456789, time.UTC), profile: "coder", tier: grants.Sandboxed,
	uid: 1000, pid: 4711, start: 987654, bootID: "8c1f4b0e-0000-4000-8000-000000000000",
	pidNS: peer.Namespace{Dev: 4, Ino: 4026532001}, userNS: peer.Namespace{Dev: 4, Ino: 4026532000},
	command: "agent --now", opened: time.Date(2026, 3, 1, 12, 0, 1, 0, time.UTC), disclosed: []string{"a", "token"}, noNet: true, workspace: "/work", personal: []string{"a"},
}

// The stored form does not change: a daemon of a later version knows the trees
// that this one has opened.
func TestLaunchRow(t *testing.T) {
	const golden = `{"v":1,"id":"abcdefghjk","subject":"worker","born":"2026-03-01T12:00:00.123456789Z","profile":"coder","tier":"sandboxed",` +
		`"uid":1000,"pid":4711,"start":987654,"bootId":"8c1f4b0e-0000-4000-8000-000000000000","pidNs":{"dev":4,"ino":4026532001},"userNs":{"dev":4,"ino":4026532000},` +
		`"command":"agent --now","opened":"2026-03-01T12:00:01Z","disclosed":["a","token"],"noNet":true,"workspace":"/work","personal":["a"]}`
	raw, err := encodeLaunch(someLaunch)
	if err != nil || string(raw) != golden {
		t.Errorf("%v: it is stored as\n%s, want\n%s", err, raw, golden)
	}
	got, err := decodeLaunch([]byte(golden))
	if err != nil || !reflect.DeepEqual(got, someLaunch) {
		t.Errorf("%v: read as %+v, want %+v", err, got, someLaunch)
	}
	vouched := someLaunch
	vouched.vouched, vouched.seenFrom = true, peer.Namespace{Dev: 4, Ino: 4026531836}
	raw, err = encodeLaunch(vouched)
	if want := strings.TrimSuffix(golden, "}") + `,"vouched":true,"seenFrom":{"dev":4,"ino":4026531836}}`; err != nil || string(raw) != want {
		t.Errorf("%v: it is stored as\n%s, want\n%s", err, raw, want)
	}
	if got, err := decodeLaunch(raw); err != nil || !reflect.DeepEqual(got, vouched) {
		t.Errorf("%v: read as %+v, want %+v", err, got, vouched)
	}
}

// What is read as a row is stored as the same bytes.
func FuzzLaunchRow(f *testing.F) {
	raw, err := encodeLaunch(someLaunch)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	f.Add([]byte(`{"v":2}`))
	f.Add([]byte(`{"v":1,"more":1}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		l, err := decodeLaunch(raw)
		if err != nil {
			return
		}
		if again, err := encodeLaunch(l); err != nil || string(again) != string(raw) {
			t.Errorf("%v: %s is stored again as %s", err, raw, again)
		}
	})
}
