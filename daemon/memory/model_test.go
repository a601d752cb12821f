package memory

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var (
	modelWords   = strings.Fields("a an and ant anthem be bee been beer key keys keyring lock 世 żółw été ελλάδα locked vault")
	modelKinds   = []string{"note", "decision", "lesson"}
	modelTenants = []string{"t0", "t1", "t2", "t3"}
)

func drawWords(t *rapid.T, label string, most int) string {
	return strings.Join(rapid.SliceOfN(rapid.SampledFrom(modelWords), 0, most).Draw(t, label), " ")
}

// drawEntries makes up entries that do not contradict each other: chains within
// tenants, some of whose oldest are missing.
func drawEntries(t *rapid.T, most int) []Entry {
	n := rapid.IntRange(0, most).Draw(t, "entries")
	var entries []Entry
	current := map[string][]string{} // of each tenant
	for i := range n {
		e := Entry{
			ID:      fmt.Sprintf("e%03d", i*7919%1000),
			Tenant:  rapid.SampledFrom(modelTenants).Draw(t, "tenant"),
			Kind:    rapid.SampledFrom(modelKinds).Draw(t, "kind"),
			Title:   drawWords(t, "title", 3),
			Text:    drawWords(t, "text", 30),
			Created: int64(rapid.IntRange(1, 20).Draw(t, "created")),
		}
		for range rapid.IntRange(0, 2).Draw(t, "tags") {
			e.Tags = append(e.Tags, drawWords(t, "tag", 2))
		}
		if all := current[e.Tenant]; len(all) > 0 && rapid.Bool().Draw(t, "supersedes") {
			at := rapid.IntRange(0, len(all)-1).Draw(t, "which")
			e.Supersedes = all[at]
			current[e.Tenant] = slices.Delete(all, at, at+1)
		} else if rapid.IntRange(0, 9).Draw(t, "missing") == 0 {
			e.Supersedes = fmt.Sprintf("missing%d", i)
		}
		current[e.Tenant] = append(current[e.Tenant], e.ID)
		entries = append(entries, e)
	}
	return entries
}

func drawQuery(t *rapid.T) (terms []asked, query Query) {
	var text []string
	for range rapid.IntRange(1, 4).Draw(t, "terms") {
		a := asked{words: rapid.SliceOfN(rapid.SampledFrom(modelWords), 1, 3).Draw(t, "words"), prefix: rapid.Bool().Draw(t, "prefix")}
		if a.prefix {
			last := []rune(a.words[len(a.words)-1])
			a.words[len(a.words)-1] = string(last[:rapid.IntRange(1, len(last)).Draw(t, "of it")])
		}
		known := slices.ContainsFunc(terms, func(b asked) bool { return reflect.DeepEqual(a, b) })
		if text = append(text, a.String()); !known {
			terms = append(terms, a)
		}
	}
	query, err := ParseQuery(strings.Join(text, " "))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return terms, query
}

func drawScope(t *rapid.T) Scope {
	return Scope{
		Tenants: rapid.SliceOfN(rapid.SampledFrom(modelTenants), 0, 4).Draw(t, "tenants"),
		Kinds:   rapid.SliceOfN(rapid.SampledFrom(modelKinds), 0, 2).Draw(t, "kinds"),
		Since:   int64(rapid.IntRange(0, 15).Draw(t, "since")),
		Limit:   rapid.IntRange(0, 20).Draw(t, "limit"),
	}
}

// load adds entries in a drawn order, some alone and some together.
func load(t *rapid.T, ix *Index, entries []Entry) {
	for rest := rapid.Permutation(entries).Draw(t, "order"); len(rest) > 0; {
		n := min(len(rest), rapid.IntRange(1, 20).Draw(t, "at once"))
		ix.AddAll(rest[:n], func(e Entry, err error) { t.Fatalf("%s: %v", e.ID, err) })
		rest = rest[n:]
	}
	if rapid.Bool().Draw(t, "settle") {
		ix.Settle()
	}
}

// What the index answers is what the reference answers: hits, their order, scores
// to nine places, which version fitted, what it replaced, and how many there were;
// whatever the order in which entries came, and after some were forgotten.
func TestSearchIsTheReference(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ix, err := New(Config{Kinds: modelKinds})
		if err != nil {
			t.Fatal(err)
		}
		entries := drawEntries(t, 60)
		load(t, ix, entries)
		other, err := New(Config{Kinds: modelKinds})
		if err != nil {
			t.Fatal(err)
		}
		load(t, other, entries)
		r := &reference{entries: map[string]*Entry{}}
		for i := range entries {
			r.entries[entries[i].ID] = &entries[i]
		}
		for i := range entries {
			if rapid.IntRange(0, 9).Draw(t, "forget") == 0 {
				if err := ix.Forget(entries[i].ID); err != nil {
					t.Fatal(err)
				}
				if err := other.Forget(entries[i].ID); err != nil {
					t.Fatal(err)
				}
				entries[i].Forgotten = true
			}
		}
		for range 5 {
			terms, query := drawQuery(t)
			scope := drawScope(t)
			compare(t, r.search(terms, scope), ix.Search(query, scope), scope, query)
			if a, b := bits(ix.Search(query, scope)), bits(other.Search(query, scope)); a != b {
				t.Fatalf("%s in %+v: in another order\n%s\nis\n%s", query, scope, a, b)
			}
		}
		compareLists(t, r, ix)
	})
}

func compare(t *rapid.T, want []answer, got Result, scope Scope, query Query) {
	t.Helper()
	if got.Total != len(want) {
		t.Fatalf("%s in %+v: %d fit, the reference has %d", query, scope, got.Total, len(want))
	}
	limit := scope.Limit
	if limit == 0 {
		limit = 10
	}
	want = want[:min(len(want), limit)]
	if len(got.Hits) != len(want) {
		t.Fatalf("%s in %+v: %d hits, the reference has %d", query, scope, len(got.Hits), len(want))
	}
	for i, h := range got.Hits {
		var replaced []string
		for _, v := range h.Replaced {
			replaced = append(replaced, fmt.Sprintf("%s at %d", v.ID, v.Superseded))
		}
		a := answer{h.ID, h.Matched, h.Score, replaced}
		if math.Abs(a.score-want[i].score) > 1e-9 {
			t.Fatalf("%s in %+v: hit %d, %s, has %v, the reference %v", query, scope, i, h.ID, h.Score, want[i])
		}
		a.score = want[i].score
		if !reflect.DeepEqual(a, want[i]) {
			t.Fatalf("%s in %+v: hit %d is %v, the reference has %v", query, scope, i, a, want[i])
		}
	}
}

// compareLists compares what is not searched: chains, the newest, and counts.
func compareLists(t *rapid.T, r *reference, ix *Index) {
	t.Helper()
	for id, e := range r.entries {
		if tenant, known := ix.TenantOf(id); !known || tenant != e.Tenant {
			t.Fatalf("%s is of %q (%v)", id, tenant, known)
		}
		if current, known := ix.Current(id); !known || current != r.current(id).ID {
			t.Fatalf("the current %s is %s (%v)", id, current, known)
		}
		var want []Version
		for at := r.current(id); at != nil; at = r.entries[at.Supersedes] {
			v := Version{ID: at.ID, Tenant: at.Tenant, Kind: at.Kind, Created: at.Created, Supersedes: at.Supersedes, Forgotten: at.Forgotten}
			if newer := r.newer(at.ID); newer != nil {
				v.SupersededBy, v.Superseded = newer.ID, newer.Created
			}
			want = append(want, v)
		}
		if diff := cmp.Diff(want, ix.History(id)); diff != "" {
			t.Fatalf("history of %s:\n%s", id, diff)
		}
	}
	scope := drawScope(t)
	var want []string
	for id, e := range r.entries {
		if r.newer(id) == nil && !e.Forgotten && slices.Contains(scope.Tenants, e.Tenant) && e.Created >= scope.Since && (len(scope.Kinds) == 0 || slices.Contains(scope.Kinds, e.Kind)) {
			want = append(want, id)
		}
	}
	slices.SortFunc(want, func(a, b string) int {
		x, y := r.entries[a], r.entries[b]
		if x.Created != y.Created {
			return int(y.Created - x.Created)
		}
		return strings.Compare(a, b)
	})
	var got []string
	page := rapid.IntRange(1, 7).Draw(t, "page")
	for before := ""; ; before = got[len(got)-1] {
		recent, err := ix.Recent(scope, page, before)
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range recent {
			got = append(got, v.ID)
		}
		if len(recent) < page {
			break
		}
	}
	if !slices.Equal(got, want) {
		t.Fatalf("the newest in %+v are %v, not %v", scope, got, want)
	}
	for _, s := range ix.Stats(modelTenants) {
		want := TenantStats{Tenant: s.Tenant, Kinds: map[string]int{}}
		for id, e := range r.entries {
			switch {
			case e.Tenant != s.Tenant:
				continue
			case e.Forgotten:
				want.Forgotten++
				continue
			case r.newer(id) != nil:
				want.Superseded++
			default:
				want.Kinds[e.Kind]++
			}
			want.Newest = max(want.Newest, e.Created)
			if want.Oldest == 0 || e.Created < want.Oldest {
				want.Oldest = e.Created
			}
		}
		if diff := cmp.Diff(want, s); diff != "" {
			t.Fatalf("counts:\n%s", diff)
		}
	}
}

// bits writes an answer down to the last bit.
func bits(r Result) string {
	s := fmt.Sprintf("%d %+v", r.Total, r.Hits)
	for _, h := range r.Hits {
		s += fmt.Sprintf(" %x", math.Float64bits(h.Score))
	}
	return s
}

// What a tenant outside the scope holds changes not a bit of an answer.
func TestScoresDependOnTheScopeAlone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ix, err := New(Config{Kinds: modelKinds})
		if err != nil {
			t.Fatal(err)
		}
		entries := drawEntries(t, 40)
		load(t, ix, entries)
		_, query := drawQuery(t)
		scope := drawScope(t)
		before := bits(ix.Search(query, scope))
		recent, err := ix.Recent(scope, 100, "")
		if err != nil {
			t.Fatal(err)
		}

		for i, e := range drawEntries(t, 40) {
			e.ID, e.Supersedes = "other"+e.ID, ""
			e.Tenant = rapid.SampledFrom([]string{"t4", "t5", "t10", "t"}).Draw(t, "foreign")
			if i%2 == 0 && len(entries) > 0 { // the very words that are there
				e.Text = entries[i%len(entries)].Text
			}
			if err := ix.Add(e); err != nil {
				t.Fatal(err)
			}
		}
		if after := bits(ix.Search(query, scope)); after != before {
			t.Fatalf("%s in %+v was\n%s\nand is\n%s", query, scope, before, after)
		}
		now, err := ix.Recent(scope, 100, "")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(recent, now); diff != "" {
			t.Fatal(diff)
		}
		// The control: within the scope, one more entry does change them.
		if r := ix.Search(query, scope); len(r.Hits) > 0 {
			if err := ix.Add(Entry{ID: "inside", Tenant: r.Hits[0].Tenant, Kind: "note", Text: "nothing of that"}); err != nil {
				t.Fatal(err)
			}
			if after := bits(ix.Search(query, scope)); after == before {
				t.Fatalf("%s in %+v does not notice an entry of its own tenants", query, scope)
			}
		}
	})
}
