package daemon

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	grpcpeer "google.golang.org/grpc/peer"

	"subjectbroker/audit"
	"subjectbroker/daemon/peer"
	"subjectbroker/grants"
	"subjectbroker/proto/place"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
	"subjectbroker/vault/keysource"
)

// patience is how long these tests wait for what must happen.
const patience = 30 * time.Second

// desk is a daemon without sockets, an operator of another uid in front of it, and a
// run that may call files/write where a person approves.
type desk struct {
	*Daemon
	t      *testing.T
	ctx    context.Context //nolint:containedctx // of the operator's calls
	home   string
	run    *run
	done   atomic.Int64 // calls that were forwarded
	leave  func()
	offset atomic.Int64 // of the clock
}

const toolObject = `{"description":"writes","name":"write"}`

func newDesk(t *testing.T, home string, loggers ...slog.Handler) *desk {
	t.Helper()
	k := &desk{t: t, home: home}
	now := func() time.Time { return time.Now().Add(time.Duration(k.offset.Load())) }
	config := Config{Home: home, Logger: slog.New(append(loggers, slog.DiscardHandler)[0]), KeySource: keysource.KindFile, Now: now, Boot: func() (string, time.Duration) { return "", 0 }}
	k.Daemon = newDaemon(config, fileConfig{operators: []uint32{4242}})
	if err := k.openVault(t.Context(), config, fileConfig{}); err != nil {
		t.Fatal(err)
	}
	var tasks sync.WaitGroup
	tasks.Go(k.tendApprovals)
	k.leave = sync.OnceFunc(func() {
		k.endLife()
		tasks.Wait()
		k.close()
	})
	t.Cleanup(k.leave)
	k.ctx = grpcpeer.NewContext(t.Context(), &grpcpeer.Peer{AuthInfo: &peer.Peer{UID: 4242}})
	st := k.state()
	if _, ok := st.set.Subject("worker"); !ok {
		k.must(k.op().AddSubject(k.ctx, &operatorv1.AddSubjectRequest{Name: "worker"}))
		k.must(k.op().CreateGrants(k.ctx, &operatorv1.CreateGrantsRequest{Subject: "worker", Capabilities: []string{"call:files/write"}, RequireApproval: true}))
	}
	k.pin(toolObject)
	k.run = k.open("worker")
	return k
}

func (k *desk) op() operator { return operator{d: k.Daemon} }

func (k *desk) must(_ any, err error) {
	k.t.Helper()
	if err != nil {
		k.t.Fatal(err)
	}
}

// pin trusts a description of the tool.
func (k *desk) pin(object string) {
	st := k.state()
	st.mu.Lock()
	defer st.mu.Unlock()
	st.pins[pinKey{"files", "write"}] = pin{Server: "files", Tool: "write", Object: []byte(object)}
}

// open opens a run of a process that is this one.
func (k *desk) open(subject string) *run {
	k.t.Helper()
	ends, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		k.t.Fatal(err)
	}
	var conns [2]net.Conn
	for i, end := range ends {
		f := os.NewFile(uintptr(end), "pair")
		conns[i], err = net.FileConn(f)
		_ = f.Close()
		if err != nil {
			k.t.Fatal(err)
		}
		k.t.Cleanup(func() { _ = conns[i].Close() })
	}
	p, err := peer.Accept(conns[0].(*net.UnixConn))
	if err != nil {
		k.t.Fatal(err)
	}
	k.t.Cleanup(p.Close)
	s, _ := k.state().set.Subject(subject)
	r := &run{
		id: grants.NewID(), subject: subject, born: s.Created, tier: grants.Cooperative, peer: p, opened: k.clock.now(),
		done: make(chan struct{}), resources: map[string]*uint32{},
	}
	if err := k.runs.add(r); err != nil {
		k.t.Fatal(err)
	}
	return r
}

// ask is a call with arguments.
func (k *desk) ask(args string) gateAsk {
	pin, _ := k.state().pinOf("files", "write")
	return gateAsk{
		run: k.run, server: "files", tool: "write", capability: "call:files/write", args: []byte(args), argsDigest: k.digestArgs([]byte(args)),
		pin: pin, why: "the grant says so", wait: patience, share: true,
	}
}

// gate asks and does not forward.
func (k *desk) gate(g gateAsk) gateAnswer {
	k.t.Helper()
	answer, err := k.gateOn(k.t.Context(), g)
	if err != nil {
		k.t.Error(err)
	}
	return answer
}

// take takes what was approved under the log's mutex, as a release does.
func (k *desk) take(answer gateAnswer) bool {
	took := false
	_, err := k.log().Append(func(uint64, time.Time) (audit.Entry, error) {
		if took = answer.take(); !took {
			return audit.Entry{}, errNotThere
		}
		return k.run.entry(audit.Call), nil
	})
	return took && err == nil
}

// call asks, forwards what is approved, and says what came of it.
func (k *desk) call(g gateAsk) gateOutcome {
	answer, err := k.gateOn(k.t.Context(), g)
	if err != nil {
		k.t.Error(err)
	}
	if answer.outcome != gateApproved {
		return answer.outcome
	}
	if !k.take(answer) {
		answer.giveBack()
		return gateNone
	}
	k.done.Add(1)
	answer.settle("ok", []byte(`{}`), false, true)
	return gateApproved
}

// waiting waits until a card has so many callers, and returns its id.
func (k *desk) waiting(n uint32) string {
	k.t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(time.Millisecond) {
		list, err := k.op().ListApprovals(k.ctx, &operatorv1.ListApprovalsRequest{})
		k.must(list, err)
		for _, a := range list.GetApprovals() {
			if a.GetState() == "pending" && a.GetWaiting() == n {
				return a.GetApprovalId()
			}
		}
	}
	k.t.Fatalf("no request has %d callers", n)
	return ""
}

func (k *desk) decide(q *operatorv1.DecideApprovalRequest) *operatorv1.DecideApprovalResponse {
	k.t.Helper()
	response, err := k.op().DecideApproval(k.ctx, q)
	k.must(response, err)
	return response
}

func (k *desk) approve(id string) {
	k.t.Helper()
	k.decide(&operatorv1.DecideApprovalRequest{ApprovalId: id, Approve: true})
}

func (k *desk) deny(id string) {
	k.t.Helper()
	k.decide(&operatorv1.DecideApprovalRequest{ApprovalId: id})
}

// pending asks without waiting and returns the id.
func (k *desk) pending(args string) string {
	k.t.Helper()
	g := k.ask(args)
	g.wait = -1
	answer := k.gate(g)
	if answer.outcome != gatePending || answer.id == "" {
		k.t.Fatalf("it does not wait: %d %s", answer.outcome, answer.cause)
	}
	return answer.id
}

// entries are those of the log of some kinds.
func (k *desk) entries(kinds ...audit.Kind) (all []audit.Entry) {
	k.t.Helper()
	if _, err := k.log().Record(k.t.Context(), k.run.entry(audit.Explain)); err != nil { // what is before it is on the disk then
		k.t.Fatal(err)
	}
	err := k.log().Replay(audit.Position{}, func(e audit.Entry, _ audit.Position) error {
		if slices.Contains(kinds, e.Kind) {
			all = append(all, e)
		}
		return nil
	})
	if err != nil {
		k.t.Fatal(err)
	}
	return all
}

// Of a hundred identical calls that wait, an answer for once lets one through, one
// for five lets five through, and the rest is asked about anew.
func TestManyWaitForOneAnswer(t *testing.T) {
	for name, tc := range map[string]struct {
		answer *operatorv1.DecideApprovalRequest
		want   int64
	}{
		"once":   {&operatorv1.DecideApprovalRequest{Approve: true}, 1},
		"uses":   {&operatorv1.DecideApprovalRequest{Approve: true, Scope: scopeUses, Uses: 5}, 5},
		"denied": {&operatorv1.DecideApprovalRequest{}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			k := newDesk(t, t.TempDir())
			var calls sync.WaitGroup
			var outcomes [gateReplay + 1]atomic.Int64
			for range 100 {
				calls.Go(func() { outcomes[k.call(k.ask(`{"path":"/tmp/x"}`))].Add(1) })
			}
			k.waiting(100)
			k.decide(tc.answer)
			if tc.want > 0 {
				k.deny(k.waiting(uint32(100 - tc.want)))
			}
			calls.Wait()
			if k.done.Load() != tc.want || outcomes[gateApproved].Load() != tc.want || outcomes[gateDenied].Load() != 100-tc.want {
				t.Errorf("%d were forwarded, %d approved and %d denied, want %d forwarded", k.done.Load(), outcomes[gateApproved].Load(), outcomes[gateDenied].Load(), tc.want)
			}
			if n := len(k.entries(kindApprovalRun)); int64(n) != tc.want {
				t.Errorf("the log has %d uses, want %d", n, tc.want)
			}
		})
	}
}

// Identical calls that wait at the same time have a request each, unless the operator
// chose that they share one; a retry of a call that nobody waits for any more attaches
// to its request in both cases, and so does one that does not wait.
func TestParallelCallsShareWhereTheOperatorChose(t *testing.T) {
	for _, share := range []bool{false, true} {
		t.Run(fmt.Sprint(share), func(t *testing.T) {
			k := newDesk(t, t.TempDir())
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var calls sync.WaitGroup
			defer calls.Wait()
			ask := func() {
				g := k.ask(`{"n":1}`)
				g.share = share
				waits := ctx
				calls.Go(func() { _, _ = k.gateOn(waits, g) })
			}
			open := func() (cards, waiting int) {
				list, err := k.op().ListApprovals(k.ctx, &operatorv1.ListApprovalsRequest{})
				k.must(list, err)
				for _, a := range list.GetApprovals() {
					cards, waiting = cards+1, waiting+int(a.GetWaiting())
				}
				return cards, waiting
			}
			want := 3
			if share {
				want = 1
			}
			until := func(when string, cards, waiting int) {
				t.Helper()
				gotCards, gotWaiting := open()
				for end := time.Now().Add(patience); (gotCards != cards || gotWaiting != waiting) && time.Now().Before(end); time.Sleep(time.Millisecond) {
					gotCards, gotWaiting = open()
				}
				if gotCards != cards || gotWaiting != waiting {
					t.Fatalf("%s: %d requests with %d callers, want %d and %d", when, gotCards, gotWaiting, cards, waiting)
				}
			}
			for range 3 {
				ask()
			}
			until("three at once", want, 3)
			k.pending(`{"n":1}`) // does not wait
			until("and one that does not wait", want, 3)
			cancel()
			calls.Wait()
			until("when nobody waits", want, 0)
			ctx, cancel = context.WithCancel(t.Context())
			defer cancel()
			for range 3 {
				ask()
			}
			until("three retries", want, 3)
			cancel()
		})
	}
}

// The uses of an answer that stands are counted once each, whoever races, and also
// by a daemon that starts from vault and log, whether it died or was stopped.
func TestUsesOfAnAnswerSurvive(t *testing.T) {
	home := t.TempDir()
	k := newDesk(t, home)
	id := k.pending(`{"n":1}`)
	k.decide(&operatorv1.DecideApprovalRequest{ApprovalId: id, Approve: true, Scope: scopeUses, Uses: 10})
	rush := func(k *desk, n int) int64 {
		before := k.done.Load()
		var calls sync.WaitGroup
		for range n {
			calls.Go(func() {
				g := k.ask(`{"n":1}`)
				g.wait = -1
				k.call(g)
			})
		}
		calls.Wait()
		return k.done.Load() - before
	}
	if n := rush(k, 4); n != 4 {
		t.Fatalf("%d of 4 calls were forwarded", n)
	}
	// What is taken and given back counts for nothing.
	if answer := k.gate(k.ask(`{"n":1}`)); answer.outcome != gateApproved || answer.id != id {
		t.Fatalf("the answer is not used: %d", answer.outcome)
	} else {
		answer.giveBack()
		answer.giveBack() // twice is once
		answer.settle("ok", nil, false, true)
	}
	k.leave()
	k = newDesk(t, home)
	if n := rush(k, 20); n != 6 {
		t.Errorf("%d calls were forwarded after a restart, want the 6 that were left", n)
	}
	var numbers []uint64
	for _, e := range k.entries(kindApprovalRun) {
		if e.ApprovalID == id {
			numbers = append(numbers, e.Count)
		}
	}
	slices.Sort(numbers)
	if diff := cmp.Diff([]uint64{1, 2, 3, 4, 5, 5, 6, 7, 8, 9, 10}, numbers); diff != "" {
		t.Errorf("the uses in the log (-want +got)\n%s", diff)
	}
	for end := time.Now().Add(patience); len(k.entries(kindApprovalExpire)) == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("what is used up is not removed")
		}
	}
	st := k.state()
	st.mu.RLock()
	defer st.mu.RUnlock()
	if len(st.consents) != 0 {
		t.Errorf("%d answers stand", len(st.consents))
	}
}

// Between the answer and what is done on the strength of it everything may change;
// what is not what was approved is not done. The control is.
func TestWhatChangesBeforeItIsTaken(t *testing.T) {
	grant := func(k *desk) string { return k.state().set.GrantsOf("worker")[0].ID }
	for name, change := range map[string]func(k *desk){
		"": func(*desk) {},
		"revoked": func(k *desk) {
			k.must(k.op().RevokeGrants(k.ctx, &operatorv1.RevokeGrantsRequest{GrantId: grant(k)}))
		},
		"replaced by one without a gate": func(k *desk) {
			k.must(k.op().CreateGrants(k.ctx, &operatorv1.CreateGrantsRequest{Subject: "worker", Capabilities: []string{"call:files/write"}}))
		},
		"another description": func(k *desk) { k.pin(`{"description":"deletes","name":"write"}`) },
		"disabled": func(k *desk) {
			k.must(k.op().SetSubject(k.ctx, &operatorv1.SetSubjectRequest{Name: "worker", Enabled: ptr(false)}))
		},
		"the run's end": func(k *desk) { k.must(nil, k.endRuns(wire.RunEnded, "CLOSED", func(*run) bool { return true })) },
		"locked": func(k *desk) {
			e := audit.Entry{Kind: kindVaultLock, Decision: decisionAllow, ReasonCode: string(wire.Allowed)}
			k.must(nil, k.lock(t.Context(), e, "by the test"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			k := newDesk(t, t.TempDir())
			reserved := map[string]gateAnswer{}
			for _, scope := range []string{scopeOnce, scopeSession} {
				args := `{"scope":"` + scope + `"}`
				k.decide(&operatorv1.DecideApprovalRequest{ApprovalId: k.pending(args), Approve: true, Scope: scope})
				if reserved[scope] = k.gate(k.ask(args)); reserved[scope].outcome != gateApproved {
					t.Fatalf("%s: it is not approved: %d %s", scope, reserved[scope].outcome, reserved[scope].cause)
				}
			}
			change(k)
			for scope, answer := range reserved {
				if took := k.take(answer); took != (name == "") {
					t.Errorf("%s: it is taken: %v", scope, took)
				}
				answer.giveBack()
			}
		})
	}
}

// What a person has approved is a call to the server as it is run then: neither the
// card nor an answer that stands holds for another command behind the same name, with
// the same tools. The control adds it anew as it was.
func TestAnotherServerBehindTheName(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*grants.Server)
		took   bool
	}{
		"as it was":        {func(s *grants.Server) { s.ObserveUntil = s.Created.Add(time.Hour) }, true},
		"another command":  {func(s *grants.Server) { s.Command = []string{"/bin/false"} }, false},
		"another variable": {func(s *grants.Server) { s.Env = map[string]string{"LD_PRELOAD": "/tmp/x.so"} }, false},
		"a URL":            {func(s *grants.Server) { s.Command, s.URL = nil, "https://example.com/" }, false},
	} {
		t.Run(name, func(t *testing.T) {
			k := newDesk(t, t.TempDir())
			server := grants.Server{Name: "files", Command: []string{"/bin/true"}, Hosted: true, Created: time.UnixMilli(1000)}
			set := func() {
				st := k.state()
				st.mu.Lock()
				defer st.mu.Unlock()
				st.servers["files"] = server
			}
			set()
			for _, scope := range []string{scopeOnce, scopeSession} {
				k.decide(&operatorv1.DecideApprovalRequest{ApprovalId: k.pending(`{"scope":"` + scope + `"}`), Approve: true, Scope: scope})
			}
			waits := k.pending(`{"scope":"none"}`)
			tc.change(&server)
			set()
			for _, scope := range []string{scopeOnce, scopeSession} {
				g := k.ask(`{"scope":"` + scope + `"}`)
				g.wait = -1
				if outcome := k.call(g); (outcome == gateApproved) != tc.took {
					t.Errorf("%s: the outcome is %d, want it approved: %v", scope, outcome, tc.took)
				}
			}
			_, err := k.op().DecideApproval(k.ctx, &operatorv1.DecideApprovalRequest{ApprovalId: waits, Approve: true})
			if (err == nil) != tc.took {
				t.Errorf("the request from before: %v", err)
			}
		})
	}
}

// A consent that is taken back is not used, not even by who has reserved it.
func TestRevokedConsent(t *testing.T) {
	k := newDesk(t, t.TempDir())
	k.decide(&operatorv1.DecideApprovalRequest{ApprovalId: k.pending(`{}`), Approve: true, Scope: scopeUntil, Until: k.clock.now().Add(time.Hour).UnixMilli()})
	answer := k.gate(k.ask(`{}`))
	k.must(k.op().RevokeConsent(k.ctx, &operatorv1.RevokeConsentRequest{ConsentId: answer.id[:4]}))
	if k.take(answer) {
		t.Error("it is taken after it was taken back")
	}
	answer.giveBack()
	if id := k.pending(`{}`); id == answer.id {
		t.Error("it is used again")
	}
	if void := k.entries(kindApprovalVoid); len(void) != 1 || void[0].Cause != causeRevoked || void[0].ApprovalID != answer.id {
		t.Errorf("the log says %+v", void)
	}
}

// A standing answer ends with its time, and holds for nothing but what it was given
// for.
func TestWhatAConsentCovers(t *testing.T) {
	k := newDesk(t, t.TempDir())
	k.decide(&operatorv1.DecideApprovalRequest{ApprovalId: k.pending(`{"a":1}`), Approve: true, Scope: scopeUntil, Until: k.clock.now().Add(time.Hour).UnixMilli()})
	for name, tc := range map[string]struct {
		change func(*gateAsk)
		want   gateOutcome
	}{
		"the same":        {func(*gateAsk) {}, gateApproved},
		"another run":     {func(g *gateAsk) { g.run = k.open("worker") }, gateApproved},
		"other arguments": {func(g *gateAsk) { g.argsDigest = k.digestArgs([]byte(`{"a":2}`)) }, gatePending},
		"another policy":  {func(g *gateAsk) { g.policy = "0123456789abcdef" }, gatePending},
		"another pin":     {func(g *gateAsk) { g.pin = strings.Repeat("a", 64) }, gatePending},
	} {
		g := k.ask(`{"a":1}`)
		g.wait = -1
		tc.change(&g)
		answer := k.gate(g)
		if answer.outcome != tc.want {
			t.Errorf("%s: %d, want %d", name, answer.outcome, tc.want)
		}
		answer.giveBack()
	}
	k.offset.Store(int64(time.Hour))
	if k.pending(`{"a":1}`) == "" {
		t.Error("it stands after its end")
	}
}

// A card ends after a quarter of an hour, answered or not.
func TestCardsExpire(t *testing.T) {
	k := newDesk(t, t.TempDir())
	unanswered := k.pending(`{}`)
	k.offset.Add(int64(approvalLife))
	if _, err := k.op().DecideApproval(k.ctx, &operatorv1.DecideApprovalRequest{ApprovalId: unanswered, Approve: true}); err == nil {
		t.Error("it is answered too late")
	}
	unused := k.pending(`{}`)
	k.approve(unused)
	k.offset.Add(int64(approvalLife))
	if k.pending(`{}`) == unused {
		t.Error("it is used too late")
	}
	var ends []string
	for _, e := range k.entries(kindApprovalExpire) {
		ends = append(ends, e.ApprovalID+" "+e.Cause)
	}
	if diff := cmp.Diff([]string{unanswered + " " + causeUnanswered, unused + " " + causeUnused}, ends); diff != "" {
		t.Errorf("the ends in the log (-want +got)\n%s", diff)
	}
	k.offset.Add(int64(approvalLife))
	k.approve(k.pending(`{}`))
	k.offset.Add(int64(approvalLife - time.Second))
	if k.call(k.ask(`{}`)) != gateApproved {
		t.Error("it is not used in time")
	}

	waits := make(chan gateAnswer, 1)
	go func() { waits <- k.gate(k.ask(`{"n":1}`)) }()
	k.waiting(1)
	k.offset.Add(int64(approvalLife))
	if answer := <-waits; answer.outcome != gateExpired || answer.reason != wire.ApprovalExpired {
		t.Errorf("who waits is told %d %s", answer.outcome, answer.reason)
	}
}

// The answer of an approved call that nobody got is given to the retry, once; what
// was delivered is not, and is asked about again.
func TestReplay(t *testing.T) {
	k := newDesk(t, t.TempDir())
	done := func(delivered bool) string {
		id := k.pending(`{}`)
		k.approve(id)
		answer := k.gate(k.ask(`{}`))
		if answer.id != id || !k.take(answer) {
			t.Fatalf("it is not taken: %d", answer.outcome)
		}
		answer.settle("ok", []byte(`{"content":[]}`), false, delivered)
		return id
	}
	id := done(false)
	var calls sync.WaitGroup
	var replays atomic.Int64
	for range 20 {
		calls.Go(func() {
			g := k.ask(`{}`)
			g.wait = -1
			answer := k.gate(g)
			if answer.outcome != gateReplay {
				return
			}
			if replays.Add(1) == 1 { // it is not given after all, and then it is
				answer.untake()
				answer.settle("", nil, false, true)
				return
			}
			defer answer.settle("", nil, false, true)
			if answer.id != id || string(answer.replay.answer) != `{"content":[]}` {
				t.Errorf("it is given %q for %s", answer.replay.answer, answer.id)
			}
		})
	}
	calls.Wait()
	for replays.Load() < 2 { // the others may have come while it was about to be given
		answer := k.gate(k.ask(`{}`))
		if answer.outcome != gateReplay {
			t.Fatalf("what was not given is not given again: %d", answer.outcome)
		}
		replays.Add(1)
		answer.settle("", nil, false, true)
	}
	if replays.Load() != 2 {
		t.Errorf("the answer was given %d times, want once and once not", replays.Load())
	}
	if k.approvals.kept != 0 {
		t.Errorf("%d bytes are kept", k.approvals.kept)
	}
	k.deny(k.pending(`{}`))
	done(true)
	k.pending(`{}`)
}

// A retry while the approved call is under way waits for how that ends.
func TestRetryWhileItRuns(t *testing.T) {
	k := newDesk(t, t.TempDir())
	id := k.pending(`{}`)
	k.approve(id)
	answer := k.gate(k.ask(`{}`))
	if !k.take(answer) {
		t.Fatal("it is not taken")
	}
	g := k.ask(`{}`)
	g.wait = -1
	if retry := k.gate(g); retry.outcome != gatePending || retry.id != id {
		t.Errorf("the retry is %d about %s, want it to wait for %s", retry.outcome, retry.id, id)
	}
	late := make(chan gateAnswer, 1)
	go func() { late <- k.gate(k.ask(`{}`)) }()
	answer.settle("error", []byte(`{"code":1}`), true, false)
	if got := <-late; got.outcome != gateReplay || !got.replay.isError {
		t.Errorf("who waited got %d", got.outcome)
	}
}

// Who has given back what was approved has no part in it any more.
func TestReservationsAreTold(t *testing.T) {
	k := newDesk(t, t.TempDir())
	k.approve(k.pending(`{}`))
	first := k.gate(k.ask(`{}`))
	first.giveBack()
	second := k.gate(k.ask(`{}`))
	if k.take(first) {
		t.Error("what was given back is taken")
	}
	first.giveBack()
	first.settle("ok", []byte(`{}`), false, false)
	if !k.take(second) {
		t.Error("what was approved is not taken")
	}
	g := k.ask(`{}`)
	g.wait = -1
	if third := k.gate(g); third.outcome != gatePending {
		t.Errorf("it is used twice: %d", third.outcome)
	}
}

// A person who has said no three times is not asked again for an hour, and not about
// whatever arguments after ten times.
func TestQuietDenial(t *testing.T) {
	k := newDesk(t, t.TempDir())
	for range quietAfter {
		k.deny(k.pending(`{}`))
	}
	g := k.ask(`{}`)
	if answer := k.gate(g); answer.outcome != gateDenied || answer.cause != causeQuiet {
		t.Errorf("after %d refusals it is %d %s", quietAfter, answer.outcome, answer.cause)
	}
	k.run = k.open("worker")
	if answer := k.gate(k.ask(`{}`)); answer.cause != causeQuiet {
		t.Errorf("another run is %d %s", answer.outcome, answer.cause)
	}
	for i := range quietToolAfter - quietAfter {
		k.deny(k.pending(`{"n":` + strings.Repeat("1", i+1) + `}`))
	}
	if answer := k.gate(k.ask(`{"other":true}`)); answer.cause != causeQuiet {
		t.Errorf("after %d refusals of the tool it is %d %s", quietToolAfter, answer.outcome, answer.cause)
	}
	k.offset.Store(int64(quietSpan))
	k.pending(`{}`)
	if n := len(k.entries(kindApprovalRequest)); n != quietToolAfter+1 {
		t.Errorf("a person was asked %d times", n)
	}
}

// One subject cannot fill a person's screen.
func TestManyCards(t *testing.T) {
	k := newDesk(t, t.TempDir())
	for i := range maxCardsPerSubject {
		k.pending(`{"n":` + strings.Repeat("1", i+1) + `}`)
	}
	if answer := k.gate(k.ask(`{"one":"more"}`)); answer.outcome != gateDenied || answer.reason != wire.RateLimited || answer.cause != causeTooMany {
		t.Errorf("one more is %d %s %s", answer.outcome, answer.reason, answer.cause)
	}
	k.must(k.op().AddSubject(k.ctx, &operatorv1.AddSubjectRequest{Name: "other"}))
	k.must(k.op().CreateGrants(k.ctx, &operatorv1.CreateGrantsRequest{Subject: "other", Capabilities: []string{"call:files/write"}, RequireApproval: true}))
	k.run = k.open("other")
	k.pending(`{"one":"more"}`)
}

// A daemon that died leaves requests without an end; the next one ends them, once,
// and does nothing on the strength of them.
func TestCardsOfADeadDaemon(t *testing.T) {
	home := t.TempDir()
	k := newDesk(t, home)
	waits, approved, stands := k.pending(`{"n":1}`), k.pending(`{"n":2}`), k.pending(`{"n":3}`)
	k.approve(approved)
	k.decide(&operatorv1.DecideApprovalRequest{ApprovalId: stands, Approve: true, Scope: scopeSession})
	k.leave() // as close does, and not stop
	for range 2 {
		k = newDesk(t, home)
		var ended []string
		for _, e := range k.entries(kindApprovalVoid) {
			if e.Cause == causeDaemonDied {
				ended = append(ended, e.ApprovalID)
			}
		}
		if diff := cmp.Diff([]string{waits, approved}, ended); diff != "" {
			t.Errorf("ended by the start (-want +got)\n%s", diff)
		}
		if id := k.pending(`{"n":2}`); id == approved {
			t.Error("the approval goes on")
		}
		if id := k.pending(`{"n":3}`); id == stands {
			t.Error("an answer for a run that is over goes on")
		}
		k.voidCards(causeStopped)
		k.leave()
	}
}

// Neither arguments nor what was masked in them come into log or vault.
func TestArgumentsAreNowhere(t *testing.T) {
	home := t.TempDir()
	k := newDesk(t, home)
	id := k.pending(`{"marker-7f3a":"marker-7f3a"}`)
	list, err := k.op().ListApprovals(k.ctx, &operatorv1.ListApprovalsRequest{})
	k.must(list, err)
	if got := string(list.GetApprovals()[0].GetArguments()); got != `{"marker-7f3a":"marker-7f3a"}` { // the control
		t.Errorf("the person sees %s", got)
	}
	k.decide(&operatorv1.DecideApprovalRequest{ApprovalId: id, Approve: true, Scope: scopeUses, Uses: 2})
	if k.call(k.ask(`{"marker-7f3a":"marker-7f3a"}`)) != gateApproved {
		t.Error("it is not forwarded")
	}
	k.leave()
	found := false
	for _, file := range []string{place.VaultFile(home), filepath.Join(place.AuditDir(home), "00000001.jsonl")} {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(raw, []byte("marker-7f3a")) {
			t.Errorf("%s holds the arguments", filepath.Base(file))
		}
		found = found || bytes.Contains(raw, []byte(id))
	}
	if !found {
		t.Error("nothing of the request is there: this test looks in the wrong place")
	}
}

func TestShownArguments(t *testing.T) {
	token := "ghp_" + strings.Repeat("a1B2", 10)
	for name, tc := range map[string]struct{ args, want string }{
		"as written":          {`{ "b": [1, 2.50, true, null], "a": {"c": "x y"} }`, `{"b":[1,2.50,true,null],"a":{"c":"x y"}}`},
		"nothing":             {``, ``},
		"a token":             {`{"header":"Bearer ` + token + `"}`, `{"header":"Bearer [masked 44 bytes]"}`},
		"beside a token":      {`{"c":"rm -rf / # ` + token + `; true"}`, `{"c":"rm -rf / # [masked 44 bytes]; true"}`},
		"beside a key":        {`{"c":"-----BEGIN RSA PRIVATE KEY-----\nAAAABBBBCCCCDDDDEEEE\nrm -rf /"}`, `{"c":"[masked 31 bytes]\u000a[masked 20 bytes]\u000arm -rf /"}`},
		"a name that is one":  {`{"` + token + `":1}`, `{"[masked 44 bytes]":1}`},
		"a secret":            {`{"x":["say s3cr3t-value twice"]}`, `{"x":["say [masked 12 bytes] twice"]}`},
		"part of a secret":    {`{"x":"s3cr3t"}`, `{"x":"s3cr3t"}`},
		"controls":            {`{"x":"a\u001b[31mb\nc\u007f"}`, `{"x":"a\u001b[31mb\u000ac\u007f"}`},
		"directions":          {"{\"x\":\"a\u202eb\u2066c\u200b\"}", `{"x":"a\u202eb\u2066c\u200b"}`},
		"what shows nothing":  {"{\"x\":\"\u3164\u00ad\ufe0f\U000e0001\u2800\u00a0\"}", `{"x":"\u3164\u00ad\ufe0f\udb40\udc01\u2800\u00a0"}`},
		"quotes":              {`{"x":"\"\\\/"}`, `{"x":"\"\\/"}`},
		"letters of the rest": {`{"x":"Grüße, 世界 😀"}`, `{"x":"Grüße, 世界 😀"}`},
	} {
		got, cut := shownArguments([]byte(tc.args), [][]byte{[]byte("s3cr3t-value\n")})
		if string(got) != tc.want || cut {
			t.Errorf("%s: %s, cut %v; want %s", name, got, cut, tc.want)
		}
	}
	// Whatever pads it, a person sees the rest, and how much is missing.
	for name, tc := range map[string]struct{ args, want string }{
		"before it":            {`{"pad":"` + strings.Repeat("x", maxShown) + `","command":"rm -rf /"}`, `"command":"rm -rf /"}`},
		"behind it":            {`{"command":"rm -rf /","pad":"` + strings.Repeat("世", maxShown) + `"}`, `{"command":"rm -rf /",`},
		"inside it":            {`{"command":"true; ` + strings.Repeat(" ", maxShown) + `rm -rf /"}`, ` rm -rf /"}`},
		"in a list":            {`{"a":[` + strings.Repeat("1,", maxShown) + `"rm -rf /"]}`, `,"rm -rf /"]}`},
		"in lists":             {`{"a":[` + strings.Repeat(`["`+strings.Repeat("y", 99)+`"],`, maxShown) + `0],"command":"rm -rf /"}`, `,"command":"rm -rf /"}`},
		"as names":             {`{` + manyMembers(maxShown) + `"command":"rm -rf /"}`, `"command":"rm -rf /"}`},
		"a long number":        {`{"n":1` + strings.Repeat("0", maxShown) + `,"command":"rm -rf /"}`, `,"command":"rm -rf /"}`},
		"a secret, at the end": {`{"a":"` + strings.Repeat("x", 1<<20) + ` s3cr3t-value"}`, `x [masked 12 bytes]"}`},
	} {
		got, cut := shownArguments([]byte(tc.args), [][]byte{[]byte("s3cr3t-value\n")})
		if !cut || len(got) > maxShown || !strings.Contains(string(got), tc.want) || !strings.Contains(string(got), "not shown)…") {
			t.Errorf("padded %s: cut %v, %d bytes: %.200s … %s", name, cut, len(got), got, got[max(0, len(got)-200):])
		}
	}
	deep := strings.Repeat(`{"`+strings.Repeat("k", 200)+`":`, 100) + "1" + strings.Repeat("}", 100)
	if got, cut := shownArguments([]byte(deep), nil); !cut || len(got) > maxShown {
		t.Errorf("of %d bytes %d are shown, cut %v", len(deep), len(got), cut)
	}
}

func manyMembers(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `"k%d":0,`, i)
	}
	return b.String()
}

func TestConsentRow(t *testing.T) {
	c := consent{
		id: "abcdefghjk", scope: scopeUntil, created: time.UnixMilli(1000).UTC(), by: 7,
		ends: deadline{at: time.UnixMilli(2000).UTC(), bootID: "boot", since: time.Second},
		key: cardKey{
			subject: "worker", born: 5, profile: "coder", tier: grants.Bound, server: "files", tool: "write", capability: "call:files/write",
			argsDigest: audit.Hash{1}, pin: "p", policy: "q", grant: "bbbbbbbbbb", outcome: grants.Pending,
		},
	}
	raw, err := encodeConsent(c)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := decodeConsent(raw); err != nil || got != c {
		t.Errorf("%+v becomes %+v, %v", c, got, err)
	}
	for name, change := range map[string][2]string{
		"another form":    {`"v":1`, `"v":2`},
		"no end":          {`"until":2000`, `"until":0`},
		"no such scope":   {`"scope":"until"`, `"scope":"always"`},
		"uses of none":    {`"scope":"until"`, `"scope":"uses"`},
		"of no session":   {`"scope":"until"`, `"scope":"run"`},
		"no such outcome": {`"outcome":"pending"`, `"outcome":"deny"`},
		"no such tier":    {`"tier":"bound"`, `"tier":"godlike"`},
		"something else":  {`"by":7`, `"by":7,"more":1`},
	} {
		if changed := strings.Replace(string(raw), change[0], change[1], 1); changed == string(raw) {
			t.Errorf("%s changes nothing", name)
		} else if _, err := decodeConsent([]byte(changed)); err == nil {
			t.Errorf("a row with %s is read", name)
		}
	}
}

// A request about what is personal exists for nobody but its operator.
func TestPersonalRequest(t *testing.T) {
	k := newDesk(t, t.TempDir())
	own := &peer.Peer{UID: k.doors.own}
	theirs := grpcpeer.NewContext(t.Context(), &grpcpeer.Peer{AuthInfo: own})
	k.sessions.begin(own, "session", k.clock.read())
	st := k.state()
	st.mu.Lock()
	st.catalog["diary"] = facts{kind: "text", version: 1, created: k.clock.now(), owner: &k.doors.own}
	st.mu.Unlock()
	k.must(k.op().CreateGrants(theirs, &operatorv1.CreateGrantsRequest{Subject: "worker", Capabilities: []string{"read:diary"}, RequireApproval: true}))
	g := gateAsk{run: k.run, resource: "diary", capability: "read:diary", wait: -1}
	id := k.gate(g).id
	for ctx, want := range map[context.Context]int{k.ctx: 0, theirs: 1} {
		list, err := k.op().ListApprovals(ctx, &operatorv1.ListApprovalsRequest{All: true})
		k.must(list, err)
		if len(list.GetApprovals()) != want || int(k.approvals.pending(sees(callerOf(ctx).UID))) != want {
			t.Errorf("uid %d sees %d requests, want %d", callerOf(ctx).UID, len(list.GetApprovals()), want)
		}
		for _, prefix := range []string{"", id, id[:3]} {
			if _, err := k.findCard(callerOf(ctx).UID, prefix); (err == nil) != (want == 1) {
				t.Errorf("uid %d finds it by %q: %v", callerOf(ctx).UID, prefix, err)
			}
		}
	}
	k.must(k.op().DecideApproval(theirs, &operatorv1.DecideApprovalRequest{ApprovalId: id, Approve: true, Scope: scopeUses, Uses: 2}))
	for ctx, want := range map[context.Context]int{k.ctx: 0, theirs: 1} {
		list, err := k.op().ListApprovals(ctx, &operatorv1.ListApprovalsRequest{})
		k.must(list, err)
		if len(list.GetConsents()) != want {
			t.Errorf("uid %d sees %d standing answers, want %d", callerOf(ctx).UID, len(list.GetConsents()), want)
		}
	}
	if _, err := k.op().RevokeConsent(k.ctx, &operatorv1.RevokeConsentRequest{ConsentId: id}); err == nil {
		t.Error("another operator takes the answer back")
	}
}

// The answer counts at the moment when it is given: a session that ended after the
// call came does not approve.
func TestSessionEndsBeforeTheAnswer(t *testing.T) {
	k := newDesk(t, t.TempDir())
	own := &peer.Peer{UID: k.doors.own}
	ctx := grpcpeer.NewContext(t.Context(), &grpcpeer.Peer{AuthInfo: own})
	for _, q := range []*operatorv1.DecideApprovalRequest{{Approve: true}, {Approve: true, Scope: scopeSession}} {
		id := k.pending(`{}`)
		q.ApprovalId = id
		ctx := context.WithValue(ctx, askedKey{}, asked{row: fixed(always), req: q}) // as needUnary does for a call that it lets through
		if _, err := k.op().DecideApproval(ctx, q); refusal(err).Reason != wire.AccessDenied {
			t.Errorf("without a session: %v", err)
		}
		if again := k.pending(`{}`); again != id {
			t.Error("it does not wait any more")
		}
		k.sessions.begin(own, "session", k.clock.read())
		if _, err := k.op().DecideApproval(ctx, q); err != nil {
			t.Errorf("with one: %v", err)
		}
		k.sessions.endAll()
		k.call(k.ask(`{}`))
	}
}

// A read that waits holds up no other: only so many of one run wait.
func TestWaitingReadsAreBounded(t *testing.T) {
	a, r := newApprovals(), &run{}
	for range maxWaitingReads {
		if !a.waitRead(r) {
			t.Fatal("one of the first may not wait")
		}
	}
	if a.waitRead(r) {
		t.Error("one more may wait")
	}
	if !a.waitRead(&run{id: "another"}) {
		t.Error("one of another run may not")
	}
	a.waitedRead(r)
	if !a.waitRead(r) {
		t.Error("none may wait although one has ended")
	}
}
