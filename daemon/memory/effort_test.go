package memory

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// everywhere is an index in which one word stands in as many places as may be.
func everywhere(tb testing.TB, entries int) *Index {
	tb.Helper()
	ix := newIndex(tb)
	text := strings.Repeat("a ", 24_000)
	for i := range entries {
		add(tb, ix, note(fmt.Sprintf("e%d", i), "acme", text))
	}
	return ix
}

// What a search may read is bounded, and a search that takes long says so once, and is
// ended by who asked for it.
func TestSearchIsBounded(t *testing.T) {
	ix := everywhere(t, 60)
	phrase := func(words int) Query { return query(t, `"`+strings.Repeat("a ", words)+`"`) }
	for _, test := range []struct {
		name  string
		query Query
		want  error
		long  int
	}{
		{"a word", query(t, "a"), nil, 0},
		{"a short phrase", phrase(3), nil, 1},
		{"the longest phrase", phrase(500), ErrWork, 1},
		{"that, and a beginning", query(t, `"`+strings.Repeat("a ", 500)+`a*"`), ErrWork, 1},
	} {
		asked := 0
		scope := Scope{Tenants: []string{"acme"}, Long: func() bool { asked++; return true }}
		got := ix.Search(test.query, scope)
		if !errors.Is(got.Err, test.want) || asked != test.long || (got.Err == nil) != (len(got.Hits) == 10 && got.Total == 60) {
			t.Errorf("%s: %v, asked %d times, %d hits of %d", test.name, got.Err, asked, len(got.Hits), got.Total)
		}
		scope.Long = func() bool { return false }
		if got := ix.Search(test.query, scope); test.long > 0 && (!errors.Is(got.Err, ErrEnded) || len(got.Hits)+got.Total > 0) {
			t.Errorf("%s, ended: %v, %d hits", test.name, got.Err, len(got.Hits))
		}
		done := make(chan struct{})
		scope.Done, scope.Long = done, func() bool { close(done); return true }
		if got := ix.Search(test.query, scope); test.long > 0 && (!errors.Is(got.Err, ErrEnded) || len(got.Hits)+got.Total > 0) {
			t.Errorf("%s, ended meanwhile: %v, %d hits", test.name, got.Err, len(got.Hits))
		}
	}
	// What was begun leaves nothing behind for the next.
	if got := ix.Search(query(t, `"a a" b`), Scope{Tenants: []string{"acme"}}); got.Err != nil || got.Total != 60 {
		t.Errorf("%v, %d", got.Err, got.Total)
	}
}

// Which of two versions is later is known without looking through the chain, however
// that came to be.
func TestLater(t *testing.T) {
	const n = 300
	for round := range 5 {
		ix := newIndex(t)
		order := rand.New(rand.NewPCG(1, uint64(round))).Perm(n)
		if round == 0 {
			for i := range order {
				order[i] = i
			}
		}
		for _, i := range order {
			e := note(fmt.Sprint(i), "acme", "tie")
			if i > 0 {
				e.Supersedes = fmt.Sprint(i - 1)
			}
			add(t, ix, e)
		}
		for i, d := range line(ix.entry("0")) {
			if d.id != fmt.Sprint(i) || int(d.place.Load()) != i {
				t.Fatalf("round %d: %s stands at %d, and says %d", round, d.id, i, d.place.Load())
			}
		}
		got := ix.Search(query(t, "tie"), Scope{Tenants: []string{"acme"}})
		if len(got.Hits) != 1 || got.Hits[0].ID != fmt.Sprint(n-1) || got.Hits[0].Matched != "" {
			t.Errorf("round %d: %v", round, got.Hits)
		}
	}
}

// What is held is counted, whatever comes and goes.
func TestHeld(t *testing.T) {
	ix := newIndex(t)
	for i := range 200 {
		add(t, ix, note(fmt.Sprintf("a%d", i), "acme", strings.Repeat("same ", 100)), note(fmt.Sprintf("b%d", i), "other", fmt.Sprintf("word%d other%d", i, i)))
	}
	weighed := func() (sum int64) {
		for _, v := range ix.views([]string{"acme", "other"}) {
			for _, p := range v.pieces {
				sum += int64(p.weight())
			}
		}
		return sum
	}
	held := func(what string) int64 {
		t.Helper()
		if got, want := ix.Held(), weighed(); got != want {
			t.Errorf("%s: %d, want %d", what, got, want)
		}
		return ix.Held()
	}
	full := held("added")
	ix.Settle()
	if settled := held("settled"); settled > full || settled < 200*100 {
		t.Errorf("settled: %d, was %d", settled, full)
	}
	for i := range 200 {
		if err := ix.Forget(fmt.Sprintf("a%d", i)); err != nil {
			t.Fatal(err)
		}
	}
	if left := held("forgotten"); left == 0 || left > full-200*100 {
		t.Errorf("forgotten: %d, was %d", left, full)
	}
	ix.RemoveTenant("other")
	if left := held("removed"); left != 0 {
		t.Errorf("left: %d", left)
	}
	add(t, ix, note("c", "other", "again"))
	if held("again") == 0 {
		t.Error("a tenant of the same name is not counted")
	}
	ix.Drop()
	if ix.Held() != 0 {
		t.Error("a dropped index holds something")
	}
}
