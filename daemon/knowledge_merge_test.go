package daemon

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"subjectbroker/grants"
	"subjectbroker/proto/wire"
)

// What becomes of a line of an import, by what is there and what came before it.
func TestMerge(t *testing.T) {
	const now = 5000
	type lines = []knowledgeLine
	line := func(id, title string) knowledgeLine {
		return knowledgeLine{ID: id, Tenant: "acme", Kind: "note", Title: title, Created: 1}
	}
	instead := func(of string, l knowledgeLine) knowledgeLine {
		l.Supersedes = of
		return l
	}
	elsewhere := func(l knowledgeLine) knowledgeLine {
		l.Tenant = "other"
		return l
	}
	at := func(created int64, l knowledgeLine) knowledgeLine {
		l.Created = created
		return l
	}
	// Of an entry that is new: its id here, and what it takes the place of.
	type added struct{ ID, Supersedes string }
	tests := map[string]struct {
		there     lines
		forgotten []string
		come      lines
		want      []added
		existed   uint64
		forgot    uint64
		refused   bool
		again     int // are added where the same comes once more
	}{
		"new":                               {come: lines{line("a", "one")}, want: []added{{ID: "a"}}},
		"new, without an id":                {come: lines{line("", "one")}, want: []added{{ID: "of one"}}},
		"another's id":                      {there: lines{line("a", "another")}, come: lines{line("a", "one")}, want: []added{{ID: "a of one"}}},
		"another's id, in the file":         {come: lines{line("a", "one"), line("a", "two")}, want: []added{{ID: "a"}, {ID: "a of two"}}},
		"there":                             {there: lines{line("a", "one")}, come: lines{line("a", "one")}, existed: 1},
		"there under another id":            {there: lines{line("b", "one")}, come: lines{line("a", "one")}, existed: 1},
		"in another tenant":                 {there: lines{elsewhere(line("b", "one"))}, come: lines{line("a", "one")}, want: []added{{ID: "a"}}},
		"twice in the file":                 {come: lines{line("a", "one"), line("b", "one")}, want: []added{{ID: "a"}}, existed: 1},
		"there, and superseded":             {there: lines{line("a", "one"), instead("a", line("b", "two"))}, come: lines{line("a", "one")}, existed: 1},
		"superseded under another id":       {there: lines{line("a", "one"), instead("a", line("b", "two"))}, come: lines{line("c", "one")}, want: []added{{ID: "c"}}},
		"as what it became":                 {there: lines{line("a", "another"), line("a of one", "one"), instead("a of one", line("b", "two"))}, come: lines{line("a", "one")}, existed: 1},
		"forgotten":                         {there: lines{line("a", "one")}, forgotten: []string{"a"}, come: lines{line("a", "one")}, forgot: 1},
		"forgotten, as what it became":      {there: lines{line("a", "another"), line("a of one", "one")}, forgotten: []string{"a of one"}, come: lines{line("a", "one")}, forgot: 1},
		"forgotten in another tenant":       {there: lines{elsewhere(line("a", "one"))}, forgotten: []string{"a"}, come: lines{line("a", "one")}, want: []added{{ID: "a of one"}}},
		"forgotten, with an id of its own":  {there: lines{line("a", "one")}, forgotten: []string{"a"}, come: lines{line("b", "one")}, want: []added{{ID: "b"}}},
		"supersedes what is there":          {there: lines{line("a", "one")}, come: lines{instead("a", line("b", "two"))}, want: []added{{"b", "a"}}},
		"supersedes what is new":            {come: lines{line("a", "one"), instead("a", line("b", "two"))}, want: []added{{ID: "a"}, {"b", "a"}}},
		"supersedes what has another id":    {there: lines{line("x", "one")}, come: lines{line("a", "one"), instead("a", line("b", "two"))}, want: []added{{"b", "x"}}, existed: 1, again: 1}, // x is not current any more, and a is not its id
		"supersedes what got another id":    {there: lines{line("a", "another")}, come: lines{line("a", "one"), instead("a", line("b", "two"))}, want: []added{{ID: "a of one"}, {"b", "a of one"}}},
		"says again what is superseded now": {there: lines{line("a", "one")}, come: lines{instead("a", line("b", "two")), instead("b", line("c", "one"))}, want: []added{{"b", "a"}, {"c", "b"}}},
		"says again what it supersedes":     {come: lines{line("a", "one"), instead("a", line("b", "two")), instead("b", line("c", "one"))}, want: []added{{ID: "a"}, {"b", "a"}, {"c", "b"}}},
		"supersedes nothing":                {come: lines{instead("a", line("b", "two"))}, refused: true},
		"supersedes another tenant's":       {there: lines{elsewhere(line("a", "one"))}, come: lines{instead("a", line("b", "two"))}, refused: true},
		"supersedes another tenant's, new":  {come: lines{elsewhere(line("a", "one")), instead("a", line("b", "two"))}, refused: true},
		"supersedes what was superseded":    {there: lines{line("a", "one"), instead("a", line("b", "two"))}, come: lines{instead("a", line("c", "three"))}, refused: true},
		"supersedes what is superseded now": {come: lines{line("a", "one"), instead("a", line("b", "two")), instead("a", line("c", "three"))}, refused: true},
		"a tenant that there is not":        {come: lines{{ID: "a", Tenant: "nobody", Kind: "note", Title: "one"}}, refused: true},
		"without a time":                    {come: lines{at(0, line("a", "one"))}, want: []added{{ID: "a"}}},
		"later than now":                    {come: lines{at(now+1, line("a", "one"))}, want: []added{{ID: "a"}}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			k := newKnowledge()
			k.ready = true
			titles := map[entryDigest]string{}
			named := func(lines lines) {
				for _, l := range lines {
					e := l.entry(now)
					titles[e.digest()] = l.Title
				}
			}
			named(tc.there)
			named(tc.come)
			for _, l := range tc.there {
				e := l.entry(now)
				e.ID, e.Supersedes = l.ID, l.Supersedes
				k.note(func(k *knowledge) { k.add(e) })
			}
			for _, id := range tc.forgotten {
				k.note(func(k *knowledge) { k.forget(id) })
			}
			ix, err := k.use()
			if err != nil {
				t.Fatal(err)
			}
			m := &merge{
				tenants: map[string]grants.Tenant{"acme": {}, "other": {}}, present: k, index: ix, these: newImported(), ids: map[string]string{}, now: now,
				become: func(id string, digest entryDigest) string {
					if id != "" {
						id += " "
					}
					return id + "of " + titles[digest]
				},
			}
			entries, count, err := m.all(tc.come)
			if tc.refused {
				if refused, ok := errors.AsType[*wire.Error](err); !ok || refused.Reason != wire.InvalidArgument {
					t.Errorf("%v, %v", entries, err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var got []added
			for i, e := range entries {
				got = append(got, added{e.ID, e.Supersedes})
				if l := tc.come[len(tc.come)-len(entries)+i]; e.Created < 1 || e.Created > now || l.Created == 0 && e.Created != now {
					t.Errorf("%s is of %d", e.ID, e.Created)
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("added (-want +got):\n%s", diff)
			}
			if want := [fates]uint64{isAdded: uint64(len(tc.want)), isThere: tc.existed, wasForgotten: tc.forgot}; count != want {
				t.Errorf("%v, not %v", count, want)
			}
			if again, _, err := m.all(tc.come); err != nil || len(again) != tc.again {
				t.Errorf("the same again adds %d: %v", len(again), err)
			}
		})
	}
}
