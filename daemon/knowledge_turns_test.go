package daemon

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"subjectbroker/audit"
	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// Turns are given to one of each payer, in turn, and to no more than there are.
func TestTurns(t *testing.T) {
	turns := newTurns(1)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if !turns.take(ctx.Done(), "greedy") {
		t.Fatal("the first has no turn")
	}
	served := make(chan string)
	left := make(chan bool)
	waits := func(who string, n int) {
		eventuallyInside(t, "they wait", func() bool {
			turns.mu.Lock()
			defer turns.mu.Unlock()
			return len(turns.waiting[who]) == n
		})
	}
	ask := func(done context.Context, who string) {
		if turns.take(done.Done(), who) {
			served <- who
		} else {
			left <- true
		}
	}
	for i := range 3 {
		go ask(ctx, "greedy")
		waits("greedy", i+1)
	}
	leaving, leave := context.WithCancel(ctx)
	go ask(leaving, "greedy")
	waits("greedy", 4)
	for i := range 2 {
		go ask(ctx, "modest")
		waits("modest", i+1)
	}
	leave()
	<-left
	waits("greedy", 3)
	var got []string
	who := "greedy"
	for range 5 {
		turns.give(who)
		who = <-served
		got = append(got, who)
	}
	turns.give(who)
	// greedy was in line first; from then on they alternate, though greedy asked for all
	// of its before modest did.
	if want := "greedy modest greedy modest greedy"; strings.Join(got, " ") != want {
		t.Errorf("%v, want %s", got, want)
	}
	if len(turns.working)+len(turns.waiting)+len(turns.line) != 0 {
		t.Errorf("left: %v", turns)
	}
	cancel()
	if turns.take(ctx.Done(), "late") {
		turns.give("late")
	}
	if len(turns.working)+len(turns.waiting)+len(turns.line) != 0 {
		t.Errorf("left: %v", turns)
	}
}

func eventuallyInside(t *testing.T, what string, so func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !so(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: never", what)
		}
	}
}

// stacks is where every goroutine of the process is.
func stacks() string {
	buffer := make([]byte, 1<<22)
	return string(buffer[:runtime.Stack(buffer, true)])
}

// dense puts entries into acme that have a word in as many places as may be.
func (l *library) dense(entries int) {
	l.t.Helper()
	l.indexKnowledge()
	for range entries {
		e := knowledgeEntry{ID: newEntryID(), Tenant: "acme", Kind: "note", Title: "dense", Text: strings.Repeat("a ", wire.MaxEntryText/2), Created: 1}
		l.state().knowledge.mu.Lock()
		l.state().knowledge.add(e)
		l.state().knowledge.mu.Unlock()
	}
}

// A lock waits for no search: one that takes long is ended, and one that waits for its
// turn, too.
func TestLockEndsSearches(t *testing.T) {
	l := newLibrary(t)
	l.dense(30)
	short, long := `"a a"`, `"`+strings.Repeat("a ", 400)+`"`
	if _, err := l.search(short); reasonOf(err) != wire.Allowed { // the control: in time it would be answered
		t.Fatal(err)
	}
	if _, err := l.search(long); reasonOf(err) != wire.ResourceTooLarge {
		t.Fatalf("the longest search: %v", err)
	}
	var taken []payer
	for i := range l.turns.limit {
		who := payer(fmt.Sprint(i))
		if !l.turns.take(nil, who) {
			t.Fatal("no turn")
		}
		taken = append(taken, who)
	}
	answers := make(chan error)
	for range 3 {
		go func() {
			_, err := l.search(long)
			answers <- err
		}()
	}
	eventuallyInside(t, "they wait for their turn", func() bool {
		l.turns.mu.Lock()
		defer l.turns.mu.Unlock()
		return len(l.turns.waiting[payerOf(l.run.peer, l.run.key)]) == 3
	})
	locked := make(chan error)
	go func() { locked <- l.lock(l.desk.ctx, *l.op().entry(l.desk.ctx, audit.Kind(kindVaultLock)), "test") }()
	select {
	case err := <-locked:
		l.must(nil, err)
	case <-time.After(time.Minute):
		t.Fatal("the lock waits for searches that wait")
	}
	for range 3 {
		if err := <-answers; err == nil {
			t.Error("a search was answered by a locked memory")
		}
	}
	for _, who := range taken {
		l.turns.give(who)
	}
}

// However many captures there are, an operator's change comes after one of them, and
// each process's in turn.
func TestCapturesMakeWay(t *testing.T) {
	l := newLibrary(t)
	l.indexKnowledge()
	const n = 60
	var done atomic.Int32
	answers := make(chan error)
	l.changing.mu.Lock()
	for i := range n {
		go func() {
			_, err := broker{d: l.Daemon}.CaptureKnowledge(l.ctx, &brokerv1.CaptureKnowledgeRequest{RunId: l.run.id, Tenant: "acme", Kind: "note", Title: fmt.Sprint("flood ", i)})
			done.Add(1)
			answers <- err
		}()
	}
	eventuallyInside(t, "they wait for their turn", func() bool {
		l.captures.mu.Lock()
		defer l.captures.mu.Unlock()
		return len(l.captures.waiting[payerOf(l.run.peer, l.run.key)]) == n-1
	})
	changed := make(chan int32)
	go func() {
		l.must(l.op().AddTenant(l.desk.ctx, &operatorv1.AddTenantRequest{Name: "between"}))
		changed <- done.Load()
	}()
	eventuallyInside(t, "the operator waits, too", func() bool {
		return slices.ContainsFunc(strings.Split(stacks(), "\n\n"), func(stack string) bool {
			return strings.Contains(stack, "operator.AddTenant(") && strings.Contains(stack, "sync.(*Mutex).Lock")
		})
	})
	l.changing.mu.Unlock()
	collected := make(chan bool)
	go func() {
		for range n {
			if err := <-answers; err != nil {
				t.Error(err)
			}
		}
		close(collected)
	}()
	if before := <-changed; before >= n/2 {
		t.Errorf("%d of %d captures came first", before, n)
	}
	<-collected
	if len(l.captures.working)+len(l.captures.waiting)+len(l.captures.line) != 0 {
		t.Errorf("left: %v", l.captures)
	}
}

// An index that takes as much as it may takes in nothing more, of agents and of
// imports, and does again once something went.
func TestIndexIsFull(t *testing.T) {
	l := newLibrary(t)
	l.indexKnowledge()
	k := l.state().knowledge
	capture := func(title string) wire.Reason {
		t.Helper()
		_, err := broker{d: l.Daemon}.CaptureKnowledge(l.ctx, &brokerv1.CaptureKnowledgeRequest{RunId: l.run.id, Tenant: "acme", Kind: "note", Title: title})
		return reasonOf(err)
	}
	bring := func(title string) error {
		im := importing{o: l.op(), ids: map[string]string{}, would: newImported()}
		return im.piece(l.desk.ctx, []byte(`{"tenant":"other","kind":"note","title":"`+title+`"}`+"\n"))
	}
	if got := capture("one"); got != wire.Allowed {
		t.Fatal(got)
	}
	l.must(nil, bring("two"))
	_, err := k.use() // with that
	l.must(nil, err)
	k.most = k.index.Held()
	if got := capture("three"); got != wire.PolicyBlocked {
		t.Errorf("a capture: %v", got)
	}
	if err := bring("four"); err == nil {
		t.Error("an import went on")
	}
	l.must(l.op().RemoveTenant(l.desk.ctx, &operatorv1.RemoveTenantRequest{Name: "other"}))
	if got := capture("three"); got != wire.Allowed { // the control
		t.Errorf("a capture: %v", got)
	}
}
