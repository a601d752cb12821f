package memory

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func note(id, tenant, text string) Entry {
	return Entry{ID: id, Tenant: tenant, Kind: "note", Text: text, Created: 1}
}

func add(tb testing.TB, ix *Index, entries ...Entry) {
	tb.Helper()
	for _, e := range entries {
		if err := ix.Add(e); err != nil {
			tb.Fatalf("%s: %v", e.ID, err)
		}
	}
}

// ids are those of the hits of a query in some tenants.
func ids(tb testing.TB, ix *Index, text string, tenants ...string) string {
	tb.Helper()
	var found []string
	for _, h := range ix.Search(query(tb, text), Scope{Tenants: tenants, Limit: 100}).Hits {
		found = append(found, h.ID)
	}
	slices.Sort(found)
	return strings.Join(found, " ")
}

func TestConfig(t *testing.T) {
	many := make([]string, MaxKinds+1)
	for i := range many {
		many[i] = fmt.Sprint(i)
	}
	for _, kinds := range [][]string{{""}, {"a", "b", "a"}, many} {
		if _, err := New(Config{Kinds: kinds}); err == nil {
			t.Errorf("kinds %v are taken", kinds)
		}
	}
	ix, err := New(Config{Kinds: many[:MaxKinds]})
	if err != nil {
		t.Fatal(err)
	}
	add(t, ix, Entry{ID: "a", Tenant: "t", Kind: "63", Text: "x"}, Entry{ID: "b", Tenant: "t", Kind: "0", Text: "x"})
	if r := ix.Search(query(t, "x"), Scope{Tenants: []string{"t"}, Kinds: []string{"63", "no such kind"}}); r.Total != 1 || r.Hits[0].ID != "a" {
		t.Errorf("of kind 63: %+v", r)
	}
	if r := ix.Search(query(t, "x"), Scope{Tenants: []string{"t"}, Kinds: []string{"no such kind"}}); r.Total != 0 {
		t.Errorf("of no kind that there is: %+v", r)
	}
}

func TestMatches(t *testing.T) {
	ix := newIndex(t)
	add(t, ix,
		Entry{ID: "a", Tenant: "t", Kind: "note", Title: "Data keys", Text: "rotate daily", Tags: []string{"ops", "key-care"}},
		note("b", "t", "The daemon.state is sealed; the data is not. Keys rotate."),
		note("c", "t", "数据库的连接 и ключи"),
		note("d", "t", "data data data"),
		note("e", "u", "data keys"))
	tests := []struct{ query, want string }{
		{"data", "a b d"},
		{"daily ops", "a"},
		{`"data keys"`, "a"},
		{`"keys rotate"`, "b"},    // in a, title and text are two
		{`"daily ops"`, ""},       // and so are text and tags
		{`"ops key"`, ""},         // and tags among themselves
		{`"key care"`, "a"},       //
		{`"data data"`, "d"},      //
		{`"data data data"`, "d"}, //
		{`"data data data data"`, ""},
		{"rot*", "a b"},
		{"key*", "a b"},
		{`"data ke*"`, "a"},
		{`"data k*" sealed`, "a b"},
		{"daemon.state", "b"},
		{"state.daemon", ""},
		{"state", "b"},
		{"数据", "c"},
		{"库的连", "c"},
		{"据数", ""},
		{"КЛЮЧИ", "c"},
		{"nowhere", ""},
		{"nowh*", ""},
		{`"data nowhere"`, ""},
		{`"nowhere da*"`, ""},
	}
	for _, settled := range []bool{false, true} {
		if settled {
			ix.Settle()
		}
		for _, test := range tests {
			if got := ids(t, ix, test.query, "t", "t", "none"); got != test.want {
				t.Errorf("%s finds %q, not %q", test.query, got, test.want)
			}
		}
	}
	if got := ids(t, ix, "data"); got != "" {
		t.Errorf("in no tenant there is %q", got)
	}
	if r := ix.Search(Query{}, Scope{Tenants: []string{"t"}}); r.Total != 0 || len(r.Hits) != 0 {
		t.Errorf("the zero query finds %+v", r)
	}
}

func TestSupersede(t *testing.T) {
	ix := newIndex(t)
	e := func(id, supersedes, text string, created int64) Entry {
		return Entry{ID: id, Tenant: "t", Kind: "decision", Text: text, Created: created, Supersedes: supersedes}
	}
	add(t, ix, e("v1", "", "we deploy on fridays", 10), e("v2", "v1", "we deploy on mondays", 20), e("v3", "v2", "nobody deploys", 30), e("x", "", "fridays", 5))
	r := ix.Search(query(t, "fridays"), Scope{Tenants: []string{"t"}})
	want := []Hit{
		{ID: "x", Tenant: "t", Score: r.Hits[0].Score},
		{ID: "v3", Tenant: "t", Score: r.Hits[1].Score, Matched: "v1", Replaced: []Version{
			{ID: "v2", Tenant: "t", Kind: "decision", Created: 20, Supersedes: "v1", SupersededBy: "v3", Superseded: 30},
			{ID: "v1", Tenant: "t", Kind: "decision", Created: 10, SupersededBy: "v2", Superseded: 20},
		}},
	}
	if diff := cmp.Diff(Result{Hits: want, Total: 2}, r); diff != "" {
		t.Error(diff)
	}
	// Several versions fit: one hit, with the better score.
	if r := ix.Search(query(t, "deploy"), Scope{Tenants: []string{"t"}}); r.Total != 1 || r.Hits[0].ID != "v3" || r.Hits[0].Matched != "v2" {
		t.Errorf("deploy: %+v", r)
	}
	// Kind and time are those of the current one.
	if r := ix.Search(query(t, "fridays"), Scope{Tenants: []string{"t"}, Since: 30}); r.Total != 1 || r.Hits[0].ID != "v3" {
		t.Errorf("since 30: %+v", r)
	}
	// A current one without content is no answer, and an older one is not the truth.
	if err := ix.Forget("v3"); err != nil {
		t.Fatal(err)
	}
	if got := ids(t, ix, "deploy fridays", "t"); got != "x" {
		t.Errorf("after the current one was forgotten: %q", got)
	}
	if h := ix.History("v1"); len(h) != 3 || !h[0].Forgotten || h[1].Forgotten {
		t.Errorf("history: %+v", h)
	}
	// It can be superseded again.
	add(t, ix, e("v4", "v3", "we deploy daily", 40))
	if got := ids(t, ix, "fridays", "t"); got != "v4 x" {
		t.Errorf("after it was superseded: %q", got)
	}
}

// Of a long chain a hit lists so many, and takes no longer for each addition.
func TestLongChain(t *testing.T) {
	const n = 3000
	entries := make([]Entry, n)
	for i := range entries {
		entries[i] = Entry{ID: fmt.Sprint(i), Tenant: "t", Kind: "note", Text: "same", Created: int64(i)}
		if i > 0 {
			entries[i].Supersedes = fmt.Sprint(i - 1)
		}
	}
	for _, reversed := range []bool{false, true} {
		ix := newIndex(t)
		if reversed {
			slices.Reverse(entries)
		}
		if added := ix.AddAll(entries, func(e Entry, err error) { t.Fatal(err) }); added != n {
			t.Fatalf("%d added", added)
		}
		r := ix.Search(query(t, "same"), Scope{Tenants: []string{"t"}})
		if r.Total != 1 || r.Hits[0].ID != fmt.Sprint(n-1) || r.Hits[0].Matched != "" || len(r.Hits[0].Replaced) != MaxReplaced || r.Hits[0].Replaced[0].ID != fmt.Sprint(n-2) {
			t.Errorf("reversed %v: %+v", reversed, r)
		}
		if h := ix.History("7"); len(h) != n || h[0].ID != fmt.Sprint(n-1) || h[n-1].ID != "0" {
			t.Errorf("reversed %v: a history of %d", reversed, len(h))
		}
	}
}

func TestRefused(t *testing.T) {
	with := func(e Entry, change func(*Entry)) Entry {
		change(&e)
		return e
	}
	base := note("new", "t", "fresh")
	long := strings.Repeat("x", MaxName+1)
	tests := []struct {
		name  string
		entry Entry
		want  error
	}{
		{"there already", note("a1", "t", "fresh"), ErrExists},
		{"there in another tenant", note("b1", "t", "fresh"), ErrExists},
		{"there and forgotten", note("gone", "t", "fresh"), ErrExists},
		{"itself", with(base, func(e *Entry) { e.Supersedes = "new" }), ErrChain},
		{"superseded already", with(base, func(e *Entry) { e.Supersedes = "a1" }), ErrChain},
		{"waited for already", with(base, func(e *Entry) { e.Supersedes = "later" }), ErrChain},
		{"of another tenant", with(base, func(e *Entry) { e.Supersedes = "b1" }), ErrChain},
		{"waited for by another tenant", with(base, func(e *Entry) { e.ID, e.Tenant = "later", "u" }), ErrChain},
		{"a circle", with(base, func(e *Entry) { e.ID, e.Supersedes = "later", "w2" }), ErrChain},
		{"no id", with(base, func(e *Entry) { e.ID = "" }), ErrEntry},
		{"a long id", with(base, func(e *Entry) { e.ID = long }), ErrEntry},
		{"no tenant", with(base, func(e *Entry) { e.Tenant = "" }), ErrEntry},
		{"a long tenant", with(base, func(e *Entry) { e.Tenant = long }), ErrEntry},
		{"no kind", with(base, func(e *Entry) { e.Kind = "" }), ErrEntry},
		{"an unknown kind", with(base, func(e *Entry) { e.Kind = "novel" }), ErrEntry},
		{"too large", with(base, func(e *Entry) { e.Title, e.Tags = strings.Repeat("a ", MaxText/2), []string{"b"} }), ErrEntry},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			ix := newIndex(t)
			add(t, ix, note("a1", "t", "old"), with(note("a2", "t", "old"), func(e *Entry) { e.Supersedes = "a1" }), note("b1", "u", "old"),
				with(note("w1", "t", "old"), func(e *Entry) { e.Supersedes = "later" }), with(note("w2", "t", "old"), func(e *Entry) { e.Supersedes = "w1" }),
				Entry{ID: "gone", Tenant: "t", Kind: "note", Forgotten: true, Text: "fresh"})
			state := func() string {
				return fmt.Sprint(ix.Size(), ix.Stats([]string{"t", "u"}), ix.History("w1"), ix.History("b1"), len(ix.waiting), ix.History("new"))
			}
			before := state()
			if err := ix.Add(test.entry); !errors.Is(err, test.want) {
				t.Errorf("%v, not %v", err, test.want)
			}
			if after := state(); after != before {
				t.Errorf("%s became %s", before, after)
			}
			// Among others it is refused alone.
			var refused []string
			added := ix.AddAll([]Entry{note("c1", "t", "good"), test.entry, note("c2", "t", "good")}, func(e Entry, err error) {
				if !errors.Is(err, test.want) {
					t.Errorf("%v, not %v", err, test.want)
				}
				refused = append(refused, e.ID)
			})
			if added != 2 || !slices.Equal(refused, []string{test.entry.ID}) {
				t.Errorf("%d were added, %v refused", added, refused)
			}
			if got := ids(t, ix, "fresh good old", "t", "u", test.entry.Tenant); got != "a2 b1 c1 c2 w2" {
				t.Errorf("found are %q", got)
			}
			if words := walk(ix); words["fresh"] || !words["good"] {
				t.Error("a word of what was refused is in the index")
			}
			for _, id := range []string{"c1", "c2"} {
				if err := ix.Forget(id); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// A search reads the indexes of its own tenants and nothing of any other's, so
// that how much those hold cannot make it slower.
func TestOtherTenantsAreNotRead(t *testing.T) {
	ix := newIndex(t)
	add(t, ix, note("a", "small", "alpha beta"), note("b", "large", "alpha beta"))
	broken := &view{pieces: []*piece{nil}, entries: 1, words: 1} // who reads it falls over
	ix.tenants["large"].now.Store(broken)
	reads := map[string]func(tenant string){
		"search": func(tenant string) { ix.Search(query(t, `alpha "alpha beta" be*`), Scope{Tenants: []string{tenant}}) },
		"recent": func(tenant string) {
			if _, err := ix.Recent(Scope{Tenants: []string{tenant}}, 1, ""); err != nil {
				t.Error(err)
			}
		},
		"stats":  func(tenant string) { ix.Stats([]string{tenant}) },
		"add":    func(tenant string) { add(t, ix, note("new"+tenant, tenant, "alpha")) },
		"remove": func(tenant string) { ix.RemoveTenant(tenant) },
	}
	for _, name := range []string{"search", "recent", "stats", "add", "remove"} {
		fell := func(tenant string) (fell bool) {
			defer func() { fell = recover() != nil }()
			reads[name](tenant)
			return false
		}
		if fell("small") {
			t.Errorf("%s in one tenant reads another", name)
		}
		if name == "add" || name == "remove" {
			continue // what it does before it falls is not undone
		}
		if !fell("large") { // the control
			t.Errorf("%s does not read what it is asked for", name)
		}
	}
}

// The index of an entry takes less than 1 KiB, in tenants of two thousand entries
// of 60 to 200 words, of which every eighth one is new.
func TestMemoryOfAnEntry(t *testing.T) {
	const entries = 2000
	words100k()
	before := heap()
	ix := newIndex(t)
	text := fill(t, ix, entries, tenants(1))
	took := (heap() - before) / entries
	size := ix.Size()
	t.Logf("%d bytes an entry, of which %d are words and postings; %d of text; %.1f words", took, size.Postings/entries, text/entries, float64(size.Words)/entries)
	if took > 1<<10 {
		t.Errorf("an entry takes %d bytes", took)
	}
	if size.Entries != entries || took < uint64(size.Postings/entries) {
		t.Errorf("%+v, and %d bytes an entry: not everything was counted", size, took)
	}
}

// However many entries come one by one, they lie in few pieces, and no merge is of
// more than a few megabytes.
func TestPieces(t *testing.T) {
	ix := newIndex(t)
	draw := source(2)
	for n := range 600 {
		add(t, ix, words100k().entry(&draw, n, "t"))
		if pieces := ix.tenants["t"].now.Load().pieces; len(pieces) > 3*fullLevel {
			t.Fatalf("after %d entries there are %d pieces", n+1, len(pieces))
		}
	}
	fill(t, ix, 0, nil)
	if pieces := ix.tenants["t"].now.Load().pieces; len(pieces) != 1 {
		t.Errorf("after Settle there are %d pieces", len(pieces))
	}
	for weight, want := range map[int]int{0: 0, smallPiece - 1: 0, smallPiece: 1, fullPiece - 1: fullLevel - 1, fullPiece: fullLevel, 100 * fullPiece: fullLevel} {
		if got := level(&piece{runs: make([]byte, weight)}); got != want {
			t.Errorf("a piece of %d bytes is of level %d, not %d", weight, got, want)
		}
	}
}

// walk is every word of every dictionary, with control of what belongs to it.
func walk(ix *Index) map[string]bool {
	words := map[string]bool{}
	for _, t := range ix.tenants {
		for _, p := range t.now.Load().pieces {
			for all := p.all(); all.next(); {
				words[string(all.word)] = true
				n := 0
				for c := all.found.cursor(); c.next(); n++ {
					if len(c.where(nil)) == 0 || int(c.document) >= len(p.documents) {
						panic("a word stands nowhere")
					}
				}
				if n == 0 {
					panic("a word of no document")
				}
			}
		}
	}
	return words
}

// After Forget no word is left that only the entry had: not in a dictionary, not
// in the bytes behind one, and nothing is counted for it.
func TestForget(t *testing.T) {
	for _, settled := range []bool{false, true} {
		ix := newIndex(t)
		draw := source(5)
		for n := range 100 {
			add(t, ix, words100k().entry(&draw, n, "t"))
		}
		e := Entry{ID: "secret", Tenant: "t", Kind: "lesson", Title: "zyx1title common", Text: "common zyx2text common", Tags: []string{"zyx3tag"}, Created: 7}
		add(t, ix, note("c", "t", "common"), e, Entry{ID: "next", Tenant: "t", Kind: "note", Text: "after", Created: 9, Supersedes: "secret"})
		if settled {
			ix.Settle()
		}
		marks := []string{"zyx1title", "zyx2text", "zyx3tag"}
		for _, word := range marks { // the control
			if !walk(ix)[word] || ids(t, ix, word, "t") != "next" {
				t.Fatalf("%s is not there", word)
			}
		}
		before := ix.Size()
		for range 2 {
			if err := ix.Forget("secret"); err != nil {
				t.Fatal(err)
			}
		}
		words := walk(ix)
		for _, word := range marks {
			if words[word] || ids(t, ix, word, "t") != "" || ids(t, ix, word[:4]+"*", "t") != "" {
				t.Errorf("%s is still there", word)
			}
		}
		for _, tenant := range ix.tenants {
			for _, p := range tenant.now.Load().pieces {
				for _, d := range p.documents {
					if d.id == "secret" {
						t.Error("a piece still has the entry")
					}
				}
				var begins []byte
				for _, b := range p.blocks[:cap(p.blocks)] {
					begins = binary.BigEndian.AppendUint64(begins, b.begin)
				}
				for _, rest := range []string{string(p.dictionary[:cap(p.dictionary)]), string(p.runs[:cap(p.runs)]), string(begins)} {
					if strings.Contains(rest, "zyx") || strings.Contains(rest, "text") {
						t.Error("bytes of it are left")
					}
				}
			}
		}
		after := ix.Size()
		if after.Entries != before.Entries || after.Forgotten != 1 || after.Words != before.Words-6 {
			t.Errorf("%+v became %+v", before, after)
		}
		// One that never had it answers the same, to the last bit.
		never := newIndex(t)
		draw = source(5)
		for n := range 100 {
			add(t, never, words100k().entry(&draw, n, "t"))
		}
		e.Forgotten = true
		add(t, never, note("c", "t", "common"), e, Entry{ID: "next", Tenant: "t", Kind: "note", Text: "after", Created: 9, Supersedes: "secret"})
		for _, text := range []string{"common", "after", words100k().words[0] + " " + words100k().words[3], "ka*"} {
			scope := Scope{Tenants: []string{"t"}, Limit: 1000}
			if a, b := bits(ix.Search(query(t, text), scope)), bits(never.Search(query(t, text), scope)); a != b {
				t.Errorf("%s:\n%s\n%s", text, a, b)
			}
		}
		if diff := cmp.Diff(never.Stats([]string{"t"}), ix.Stats([]string{"t"})); diff != "" {
			t.Error(diff)
		}
	}
	if err := newIndex(t).Forget("none"); !errors.Is(err, ErrUnknown) {
		t.Errorf("%v", err)
	}
}

func TestRemoveTenant(t *testing.T) {
	ix := newIndex(t)
	waits := note("w", "t", "alpha")
	waits.Supersedes = "missing"
	add(t, ix, note("a", "t", "alpha"), note("b", "t", "alpha beta"), waits, note("c", "u", "alpha"))
	if err := ix.Forget("b"); err != nil {
		t.Fatal(err)
	}
	if n := ix.RemoveTenant("t"); n != 4-1 {
		t.Errorf("%d were removed", n)
	}
	if n := ix.RemoveTenant("t"); n != 0 {
		t.Errorf("%d were removed again", n)
	}
	if got := ids(t, ix, "alpha beta", "t", "u"); got != "c" {
		t.Errorf("found are %q", got)
	}
	for _, id := range []string{"a", "b", "w"} {
		if _, known := ix.TenantOf(id); known {
			t.Errorf("%s is known", id)
		}
	}
	if size := ix.Size(); size.Entries != 1 || size.Tenants != 1 || len(ix.waiting) != 0 {
		t.Errorf("%+v, %d are waiting", size, len(ix.waiting))
	}
	// The name and the ids are free again, and nothing is inherited.
	missing := note("missing", "t", "alpha")
	add(t, ix, note("a", "t", "gamma"), missing)
	if h := ix.History("missing"); len(h) != 1 {
		t.Errorf("history: %+v", h)
	}
	if got := ids(t, ix, "gamma alpha", "t"); got != "a missing" {
		t.Errorf("found are %q", got)
	}
}

func TestDrop(t *testing.T) {
	ix := newIndex(t)
	add(t, ix, note("a", "t", "alpha"), note("b", "u", "beta"))
	var pieces []*piece
	for _, tenant := range ix.tenants {
		pieces = append(pieces, tenant.now.Load().pieces...)
	}
	ix.Drop()
	ix.Drop()
	for _, p := range pieces {
		if strings.Trim(string(p.dictionary)+string(p.runs), "\x00") != "" || slices.ContainsFunc(p.blocks, func(b block) bool { return b.begin != 0 }) {
			t.Error("words are left")
		}
	}
	if r := ix.Search(query(t, "alpha"), Scope{Tenants: []string{"t", "u"}}); r.Total != 0 {
		t.Errorf("%+v", r)
	}
	if err := ix.Add(note("c", "t", "x")); !errors.Is(err, ErrDropped) {
		t.Errorf("Add: %v", err)
	}
	if err := ix.Forget("a"); !errors.Is(err, ErrUnknown) {
		t.Errorf("Forget: %v", err)
	}
	if _, err := ix.Recent(Scope{Tenants: []string{"t"}}, 1, ""); !errors.Is(err, ErrDropped) {
		t.Errorf("Recent: %v", err)
	}
	ix.Settle()
	if _, known := ix.TenantOf("a"); known || ix.History("a") != nil || ix.RemoveTenant("t") != 0 || ix.Size() != (Size{}) {
		t.Error("something is left")
	}
	if s := ix.Stats([]string{"t"}); len(s) != 1 || s[0].Newest != 0 {
		t.Errorf("%+v", s)
	}
}

func TestRecentBefore(t *testing.T) {
	ix := newIndex(t)
	add(t, ix, note("a", "t", "x"), note("b", "u", "x"))
	for _, before := range []string{"none", "b"} {
		if r, err := ix.Recent(Scope{Tenants: []string{"t"}}, 10, before); !errors.Is(err, ErrUnknown) || r != nil {
			t.Errorf("before %s: %v, %v", before, r, err)
		}
	}
	// A page goes on where it was, though its last entry is no longer shown.
	if err := ix.Forget("a"); err != nil {
		t.Fatal(err)
	}
	if r, err := ix.Recent(Scope{Tenants: []string{"t", "u"}}, 10, "a"); err != nil || len(r) != 1 || r[0].ID != "b" {
		t.Errorf("%+v, %v", r, err)
	}
	if r, err := ix.Recent(Scope{Tenants: []string{"u"}}, 0, ""); err != nil || len(r) != 0 {
		t.Errorf("none wanted: %+v, %v", r, err)
	}
}

func TestHostileTexts(t *testing.T) {
	var distinct strings.Builder
	for n := 0; distinct.Len() < 64<<10; n++ {
		fmt.Fprintf(&distinct, "%c ", rune(0x4e00+n%20000))
		if n%3 == 0 {
			fmt.Fprintf(&distinct, "%x ", n)
		}
	}
	texts := map[string]string{
		"word":     strings.Repeat("x", 1<<20),
		"same":     strings.Repeat("same ", 1<<16),
		"distinct": distinct.String(),
		"marks":    "a" + strings.Repeat("\u0301", 1<<17),
		"joined":   strings.Repeat("a.", 1<<17),
		"format":   strings.Repeat("a.\u00ad\u00ad", 1<<15),
		"joiners":  strings.Repeat("👩\u200d", 1<<15),
		"flags":    strings.Repeat("🇩", 1<<15),
		"nuls":     "a" + strings.Repeat("\x00", 1<<20) + "b",
		"invalid":  strings.Repeat("\xff\xc3a", 1<<16),
		"quotes":   strings.Repeat("א\"", 1<<16),
		"empty":    "",
	}
	ix := newIndex(t)
	for id, text := range texts {
		e := note(id, "t", text)
		e.Title, e.Tags = "mark"+id, []string{text[:min(len(text), 10)]}
		add(t, ix, e)
	}
	for id := range texts {
		if got := ids(t, ix, "mark"+id, "t"); got != id {
			t.Errorf("mark%s finds %q", id, got)
		}
	}
	for search, want := range map[string]string{
		strings.Repeat("x", 1000): "word",
		`"same same same"`:        "same",
		"丁":                       "distinct",
		"丁*":                      "distinct",
		`"a b"`:                   "nuls",
	} {
		if got := ids(t, ix, search, "t"); got != want {
			t.Errorf("%.20s finds %q, not %q", search, got, want)
		}
	}
	walk(ix)
	for id, text := range texts {
		Excerpt(text, query(t, "a x same*"), 300)
		if err := ix.Forget(id); err != nil {
			t.Error(err)
		}
	}
	if words := walk(ix); len(words) != 0 {
		t.Errorf("%d words are left", len(words))
	}
}

// Readers, writers, forgetting, removal and the end, all at once: every answer is
// one that was true at some moment.
func TestTogether(t *testing.T) {
	ix := newIndex(t)
	add(t, ix, note("fixed", "t0", "anchor stays"))
	var writers, readers sync.WaitGroup
	var done atomic.Bool
	for g := range 3 {
		writers.Go(func() {
			tenant := fmt.Sprintf("t%d", g)
			last := ""
			for n := range 150 {
				e := note(fmt.Sprintf("%d-%d", g, n), tenant, fmt.Sprintf("anchor word%d", n))
				if n%3 != 0 {
					e.Supersedes = last
				}
				last = e.ID
				if err := ix.Add(e); err != nil {
					t.Errorf("%s: %v", e.ID, err)
				}
				if h := ix.Search(query(t, fmt.Sprintf("word%d", n)), Scope{Tenants: []string{tenant}}).Hits; len(h) != 1 || h[0].ID != e.ID {
					t.Errorf("%s does not find itself: %+v", e.ID, h)
				}
				switch {
				case n%10 == 9:
					if err := ix.Forget(e.ID); err != nil {
						t.Errorf("%s: %v", e.ID, err)
					}
				case n%50 == 25 && g == 2:
					ix.RemoveTenant(tenant)
					last = ""
				case n%40 == 0:
					ix.Settle()
				}
			}
		})
	}
	for range 3 {
		readers.Go(func() {
			for !done.Load() {
				r := ix.Search(query(t, `anchor "anchor wo*"`), Scope{Tenants: []string{"t0", "t1", "t2"}, Limit: 1000})
				seen := map[string]bool{}
				for _, h := range r.Hits {
					if seen[h.ID] {
						t.Errorf("%s is there twice", h.ID)
					}
					seen[h.ID] = true
				}
				if !seen["fixed"] {
					t.Error("what was always there was not found")
				}
				if _, err := ix.Recent(Scope{Tenants: []string{"t0"}}, 10, ""); err != nil {
					t.Error(err)
				}
				ix.Stats([]string{"t1"})
				ix.History("0-4")
				ix.Size()
			}
		})
	}
	writers.Wait()
	done.Store(true)
	readers.Wait()
	walk(ix)
	for range 2 {
		readers.Go(func() {
			for range 100 {
				ix.Search(query(t, "anchor wo*"), Scope{Tenants: []string{"t0", "t1"}})
			}
		})
	}
	readers.Go(ix.Drop)
	readers.Wait()
	if r := ix.Search(query(t, "anchor"), Scope{Tenants: []string{"t0"}}); r.Total != 0 {
		t.Errorf("after the end: %+v", r)
	}
}
