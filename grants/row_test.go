package grants

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden rows anew")

func TestGoldenRows(t *testing.T) {
	uid, root := uint32(1001), uint32(0)
	created := time.Date(2030, 1, 2, 3, 4, 5, 678000000, time.FixedZone("", 3600))
	subjects := []Subject{
		{Name: "worker"},
		{Name: "orchestrator", Disabled: true, MinTier: Bound, UID: &uid, Created: created, Owner: "laptop"},
	}
	given := []Grant{
		allow("read:plan").as("abcdefghjk").Grant,
		{
			ID: "zyxwvtsrqp", Subject: "worker", Pattern: pattern("use:github.token"), Effect: Allow,
			Until: noon, BootID: "3c1c5a6e-0000-4000-8000-000000000000", BootUntil: 90 * time.Minute,
			Uses: 3, Tier: Sandboxed, RequireApproval: true, Disclose: true,
			Note: "für Zoë <once> & \"again\"", Owner: "laptop", Created: created,
		},
		deny("memory.write:*").as("a").Grant,
		{ID: "b", Subject: "worker", Pattern: pattern("read:diary"), Effect: Allow, Created: created, GrantedBy: &root},
		{ID: "c", Subject: "worker", Pattern: pattern("read:diary"), Effect: Allow, GrantedBy: &uid},
	}
	profiles := []Profile{
		{Name: "bare", Subject: "worker"},
		{Name: "closed", Subject: "worker", Tools: []string{"read_resource"}, Caps: []Pattern{}},
		{
			Name: "coder", Subject: "worker", Tools: []string{"github/create_issue", "read_resource"},
			Caps: []Pattern{pattern("read:docs.*"), pattern("use:github.token")}, Approval: ApprovalAlways, Created: created, Owner: "laptop",
		},
	}
	tools := []Tool{
		{Name: "shell/true"},
		{
			Name: "github/create_issue", Requires: []Pattern{pattern("reach:api.github.com"), pattern("use:github.token")},
			Approval: true, Gate: true, Created: created, Owner: "laptop",
		},
	}
	var rows []string
	for _, s := range subjects {
		row, err := EncodeSubject(s)
		if err != nil {
			t.Fatal(err)
		}
		rows = append(rows, string(row))
		again, err := DecodeSubject(row)
		s.Created = s.Created.UTC()
		if diff := cmp.Diff(s, again); err != nil || diff != "" {
			t.Errorf("DecodeSubject: %v\n%s", err, diff)
		}
	}
	for _, g := range given {
		row, err := EncodeGrant(g)
		if err != nil {
			t.Fatal(err)
		}
		rows = append(rows, string(row))
		again, err := DecodeGrant(row)
		g.Created = g.Created.UTC()
		if diff := cmp.Diff(g, again); err != nil || diff != "" {
			t.Errorf("DecodeGrant: %v\n%s", err, diff)
		}
	}
	for _, p := range profiles {
		row, err := EncodeProfile(p)
		if err != nil {
			t.Fatal(err)
		}
		rows = append(rows, string(row))
		again, err := DecodeProfile(row)
		p.Created = p.Created.UTC()
		if diff := cmp.Diff(p, again); err != nil || diff != "" {
			t.Errorf("DecodeProfile: %v\n%s", err, diff)
		}
		slices.Reverse(p.Tools)
		slices.Reverse(p.Caps)
		if other, err := EncodeProfile(p); err != nil || !bytes.Equal(row, other) {
			t.Errorf("in another order the profile is written %s, %v, and not %s", other, err, row)
		}
	}
	for _, one := range tools {
		row, err := EncodeTool(one)
		if err != nil {
			t.Fatal(err)
		}
		rows = append(rows, string(row))
		again, err := DecodeTool(row)
		one.Created = one.Created.UTC()
		if diff := cmp.Diff(one, again); err != nil || diff != "" {
			t.Errorf("DecodeTool: %v\n%s", err, diff)
		}
		slices.Reverse(one.Requires)
		if other, err := EncodeTool(one); err != nil || !bytes.Equal(row, other) {
			t.Errorf("in another order the tool is written %s, %v, and not %s", other, err, row)
		}
	}
	golden := filepath.Join("testdata", "rows.jsonl")
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
	if !bytes.Equal(got, want) {
		t.Errorf("the row format changed:\n%s", cmp.Diff(string(want), string(got)))
	}
}

func TestRowsAreReadStrictly(t *testing.T) {
	const good = `{"v":1,"id":"a","subject":"worker","capability":"read:plan","effect":"allow"}`
	if _, err := DecodeGrant([]byte(good)); err != nil {
		t.Fatalf("DecodeGrant(%s): %v", good, err)
	}
	replace := func(from, to string) string { return strings.Replace(good, from, to, 1) }
	for name, row := range map[string]string{
		"empty":                       ``,
		"null":                        `null`,
		"a list":                      `[]`,
		"no version":                  replace(`"v":1,`, ``),
		"a later version":             replace(`"v":1`, `"v":2`),
		"an unknown key":              replace(`"v":1`, `"v":1,"x":1`),
		"a key of another case":       replace(`"id"`, `"ID"`),
		"a key that only folds alike": replace(`"v":1`, `"v":1,"bootId":"b","until":"2030-06-01T12:00:00Z","\u0062ootUntil":1`),
		"a key twice":                 replace(`"id":"a"`, `"id":"b","id":"a"`),
		"a space":                     replace(`:1,`, `: 1,`),
		"a newline at the end":        good + "\n",
		"something after it":          good + good,
		"another order":               replace(`"v":1,"id":"a"`, `"id":"a","v":1`),
		"a zero value written":        replace(`}`, `,"uses":0}`),
		"an escape not needed":        replace(`worker`, `w\u006frker`),
		"a capability not canonical":  replace(`read:plan`, `plan`),
		"an unknown effect":           replace(`allow`, `permit`),
		"an unknown tier":             replace(`}`, `,"tier":"keyed"}`),
		"invalid UTF-8":               replace(`}`, `,"note":"`+"\xff"+`"}`),
		"a time not in UTC":           replace(`}`, `,"until":"2030-06-01T12:00:00+00:00"}`),
		"a malformed name":            replace(`worker`, `wor ker`),
	} {
		if g, err := DecodeGrant([]byte(row)); err == nil {
			t.Errorf("%s: %s is read as %+v", name, row, g)
		}
	}
	if s, err := DecodeSubject([]byte(`{"v":1,"name":"worker","Disabled":true}`)); err == nil {
		t.Errorf("a subject's key of another case is read as %+v", s)
	}
}

func TestProfilesAndToolsAreReadStrictly(t *testing.T) {
	const (
		goodProfile = `{"v":1,"name":"coder","subject":"worker","tools":["a/b","read_resource"],"caps":["read:a","read:b"],"approval":"never"}`
		goodTool    = `{"v":1,"name":"a/b","requires":["read:a","use:b"],"approval":true}`
	)
	profiles := func(from, to string) string { return strings.Replace(goodProfile, from, to, 1) }
	tools := func(from, to string) string { return strings.Replace(goodTool, from, to, 1) }
	if _, err := DecodeProfile([]byte(goodProfile)); err != nil {
		t.Fatalf("DecodeProfile(%s): %v", goodProfile, err)
	}
	if _, err := DecodeTool([]byte(goodTool)); err != nil {
		t.Fatalf("DecodeTool(%s): %v", goodTool, err)
	}
	for name, row := range map[string]string{
		"empty":                  ``,
		"a later version":        profiles(`"v":1`, `"v":2`),
		"an unknown key":         profiles(`"v":1`, `"v":1,"x":1`),
		"a key of another case":  profiles(`"tools"`, `"Tools"`),
		"tools in another order": profiles(`"a/b","read_resource"`, `"read_resource","a/b"`),
		"caps in another order":  profiles(`"read:a","read:b"`, `"read:b","read:a"`),
		"a tool twice":           profiles(`"a/b",`, `"a/b","a/b",`),
		"null for tools":         profiles(`["a/b","read_resource"]`, `null`),
		"an empty list of tools": profiles(`["a/b","read_resource"]`, `[]`),
		"null for caps":          profiles(`["read:a","read:b"]`, `null`),
		"a cap not canonical":    profiles(`"read:a"`, `"a"`),
		"an approval of none":    profiles(`never`, `sometimes`),
		"the default is written": profiles(`never`, `auto`),
		"a number for approval":  profiles(`"never"`, `2`),
		"a malformed tool":       profiles(`a/b`, `a b`),
		"no subject":             profiles(`"subject":"worker",`, ``),
		"a tool's row":           goodTool,
	} {
		if p, err := DecodeProfile([]byte(row)); err == nil {
			t.Errorf("%s: %s is read as %+v", name, row, p)
		}
	}
	for name, row := range map[string]string{
		"requirements in another order": tools(`"read:a","use:b"`, `"use:b","read:a"`),
		"an empty list":                 tools(`["read:a","use:b"]`, `[]`),
		"a built-in":                    tools(`a/b`, `read_resource`),
		"false written":                 tools(`}`, `,"gate":false}`),
		"text for a boolean":            tools(`true`, `"always"`),
		"a profile's row":               goodProfile,
	} {
		if one, err := DecodeTool([]byte(row)); err == nil {
			t.Errorf("%s: %s is read as %+v", name, row, one)
		}
	}
}
