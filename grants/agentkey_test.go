package grants

import (
	"bytes"
	"crypto/sha256"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func agentKeys() []AgentKey {
	created := time.Date(2030, 1, 2, 3, 4, 5, 678000000, time.FixedZone("", 3600))
	return []AgentKey{
		{ID: "abcdefghjk", Hash: sha256.Sum256([]byte("one")), Subject: "worker", SubjectCreated: created, Created: created},
		{
			ID: "zyxwvtsrqp", Hash: sha256.Sum256([]byte("two")), Name: "laptop", Subject: "worker", SubjectCreated: created,
			Tenants: []string{"acme", "initech"}, Created: created.Add(time.Hour), Revoked: created.Add(2 * time.Hour),
			Expires: created.Add(24 * time.Hour), BootID: "3c1c5a6e-0000-4000-8000-000000000000", BootExpires: 90 * time.Minute,
			From: "abcdefghjk", To: "kjhgfedcba",
		},
	}
}

// The stored form of keys and tenants is fixed.
func TestGoldenKeyRows(t *testing.T) {
	var rows []string
	for _, k := range agentKeys() {
		row, err := EncodeAgentKey(k)
		if err != nil {
			t.Fatal(err)
		}
		rows = append(rows, string(row))
		again, err := DecodeAgentKey(row)
		if diff := cmp.Diff(k.canonical(), again, cmp.Comparer(func(a, b []string) bool { return slices.Equal(a, b) })); err != nil || diff != "" {
			t.Errorf("DecodeAgentKey: %v\n%s", err, diff)
		}
		slices.Reverse(k.Tenants)
		if other, err := EncodeAgentKey(k); err != nil || !bytes.Equal(row, other) {
			t.Errorf("in another order the key is written %s, %v, and not %s", other, err, row)
		}
	}
	for _, one := range []Tenant{{Name: "acme"}, {Name: "Initech.eu", Created: agentKeys()[0].Created, Owner: "laptop"}} {
		row, err := EncodeTenant(one)
		if err != nil {
			t.Fatal(err)
		}
		rows = append(rows, string(row))
		again, err := DecodeTenant(row)
		one.Created = one.Created.UTC()
		if diff := cmp.Diff(one, again); err != nil || diff != "" {
			t.Errorf("DecodeTenant: %v\n%s", err, diff)
		}
	}
	golden := filepath.Join("testdata", "keyrows.jsonl")
	got := []byte(strings.Join(rows, "\n") + "\n")
	if *update {
		if err := os.WriteFile(golden, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("the stored form changed:\n%s", diff)
	}
}

func TestRefusedKeyRows(t *testing.T) {
	row, err := EncodeAgentKey(agentKeys()[1])
	if err != nil {
		t.Fatal(err)
	}
	for was, is := range map[string]string{
		`{"v":1,`:             `{"v":2,`,
		`"id":"zyxwvtsrqp"`:   `"id":"zyxwvtsrq1"`,
		`"hash":"3`:           `"hash":"X`,
		`"name":"laptop",`:    `"name":"laptop","name":"laptop",`,
		`"subject":"worker"`:  `"subject":""`,
		`["acme","initech"]`:  `["initech","acme"]`,
		`["acme",`:            `["acme","acme",`,
		`"bootId":"3c`:        `"other":1,"bootId":"3c`,
		`:05.678Z`:            `:05.678+00:00`,
		`"from":"abcdefghjk"`: `"from":"ABC"`,
	} {
		changed := strings.Replace(string(row), was, is, 1)
		if changed == string(row) {
			t.Fatalf("%s is not in the row", was)
		}
		if k, err := DecodeAgentKey([]byte(changed)); err == nil {
			t.Errorf("%s is read as %+v", changed, k)
		}
	}
	for name, k := range map[string]func(*AgentKey){
		"no hash":          func(k *AgentKey) { k.Hash = KeyHash{} },
		"no time":          func(k *AgentKey) { k.Created = time.Time{} },
		"no subject's":     func(k *AgentKey) { k.SubjectCreated = time.Time{} },
		"half a boot end":  func(k *AgentKey) { k.BootID = "" },
		"boot end alone":   func(k *AgentKey) { k.Expires = time.Time{} },
		"many tenants":     func(k *AgentKey) { k.Tenants = make([]string, MaxKeyTenants+1) },
		"a tenant's name":  func(k *AgentKey) { k.Tenants = []string{"a b"} },
		"a name":           func(k *AgentKey) { k.Name = "a b" },
		"a year too large": func(k *AgentKey) { k.Revoked = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC) },
	} {
		one := agentKeys()[1]
		if k(&one); one.Validate() == nil {
			t.Errorf("%s: it is valid", name)
		}
	}
}

// A key ends by either clock, at its end exactly, and in doubt.
func TestKeyExpired(t *testing.T) {
	k := agentKeys()[1]
	at := k.Expires
	boot := k.BootID
	for _, tt := range []struct {
		name string
		r    Request
		want bool
	}{
		{"before", Request{Now: at.Add(-1)}, false},
		{"at its end", Request{Now: at}, true},
		{"by the boot clock", Request{Now: at.Add(-time.Hour), BootID: boot, SinceBoot: k.BootExpires}, true},
		{"another boot", Request{Now: at.Add(-time.Hour), BootID: "b", SinceBoot: k.BootExpires}, false},
		{"clock rolled back", Request{Now: at.Add(-time.Hour), ClockBehind: true}, true},
		{"no clock", Request{}, true},
	} {
		if got := k.Expired(&tt.r); got != tt.want {
			t.Errorf("%s: expired %v, want %v", tt.name, got, tt.want)
		}
	}
	endless := agentKeys()[0]
	if endless.Expired(&Request{ClockBehind: true}) {
		t.Error("a key without an end has expired")
	}
}

func FuzzDecodeAgentKey(f *testing.F) {
	for _, k := range agentKeys() {
		row, _ := EncodeAgentKey(k)
		f.Add(row)
	}
	f.Fuzz(func(t *testing.T, row []byte) {
		k, err := DecodeAgentKey(row)
		if err != nil {
			return
		}
		if again, err := EncodeAgentKey(k); err != nil || !bytes.Equal(again, row) {
			t.Fatalf("%s is written as %s, %v", row, again, err)
		}
	})
}
