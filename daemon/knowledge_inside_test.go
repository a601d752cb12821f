package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	grpcpeer "google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"

	"subjectbroker/daemon/memory"
	"subjectbroker/grants"
	"subjectbroker/proto/place"
	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
	"subjectbroker/vault"
)

// library is a desk with the tenants acme, which its run may read and write, and other,
// which it may not.
type library struct {
	*desk
	ctx context.Context //nolint:containedctx // of the run's requests
}

func newLibrary(t *testing.T) *library {
	t.Helper()
	l := &library{desk: newDesk(t, t.TempDir())}
	l.ctx = grpcpeer.NewContext(t.Context(), &grpcpeer.Peer{AuthInfo: l.run.peer})
	for _, tenant := range []string{"acme", "other"} {
		l.must(l.op().AddTenant(l.desk.ctx, &operatorv1.AddTenantRequest{Name: tenant}))
	}
	l.must(l.op().CreateGrants(l.desk.ctx, &operatorv1.CreateGrantsRequest{Subject: "worker", Capabilities: []string{"memory.read:acme", "memory.write:acme"}}))
	return l
}

// learn puts a note in a tenant, whoever may.
func (l *library) learn(tenant, title, supersedes string) string {
	l.t.Helper()
	e := knowledgeEntry{ID: newEntryID(), Tenant: tenant, Kind: "note", Title: title, Created: 1, Supersedes: supersedes}
	l.store(l.state().knowledge.ready, []knowledgeEntry{e})
	return e.ID
}

func (l *library) search(query string) (*brokerv1.SearchKnowledgeResponse, error) {
	return broker{d: l.Daemon}.SearchKnowledge(l.ctx, &brokerv1.SearchKnowledgeRequest{RunId: l.run.id, Query: query})
}

func (l *library) read(id string) (*brokerv1.ReadEntryResponse, error) {
	return broker{d: l.Daemon}.ReadEntry(l.ctx, &brokerv1.ReadEntryRequest{RunId: l.run.id, EntryId: id})
}

func reasonOf(err error) wire.Reason {
	if err == nil {
		return wire.Allowed
	}
	return refusal(err).Reason
}

// The second layer: an index that takes every entry for one of the caller's tenant, and
// puts strangers into its chains, leads to nothing that is not the caller's.
func TestStoreFiltersByItself(t *testing.T) {
	l := newLibrary(t)
	first := l.learn("acme", "plan one", "")
	mine := l.learn("acme", "plan two", first)
	foreign := l.learn("other", "plan of somebody", "")
	newer := l.learn("other", "plan of somebody, later", foreign)
	last := l.learn("other", "plan of somebody, at last", "")
	l.indexKnowledge()
	look := func() (found []proto.Message) {
		t.Helper()
		b := broker{d: l.Daemon}
		searched, err := l.search("plan somebody one")
		l.must(nil, err)
		recent, err := b.BrowseRecent(l.ctx, &brokerv1.BrowseRecentRequest{RunId: l.run.id})
		l.must(nil, err)
		read, err := l.read(first)
		l.must(nil, err)
		chain, err := b.EntryHistory(l.ctx, &brokerv1.EntryHistoryRequest{RunId: l.run.id, EntryId: mine})
		l.must(nil, err)
		if len(chain.GetEntries()) != 2 {
			t.Errorf("the chain: %v", chain)
		}
		return []proto.Message{searched, recent, read, chain}
	}
	honest := look()
	if got := honest[0].(*brokerv1.SearchKnowledgeResponse); len(got.GetHits()) != 1 || len(got.GetHits()[0].GetReplaced()) != 1 {
		t.Fatalf("%v", got)
	}

	// foreign and newer stand in the chain of mine, and in its tenant.
	lies, err := memory.New(memory.Config{Kinds: entryKinds})
	l.must(nil, err)
	for _, e := range []memory.Entry{
		{ID: foreign, Title: "plan of somebody"}, {ID: first, Title: "plan one", Supersedes: foreign}, {ID: mine, Title: "plan two", Supersedes: first},
		{ID: newer, Title: "plan of somebody, later"}, {ID: last, Title: "plan of somebody, at last", Supersedes: mine},
	} {
		e.Tenant, e.Kind = "acme", "note"
		l.must(nil, lies.Add(e))
	}
	l.state().knowledge.index = lies
	query, err := memory.ParseQuery("somebody")
	l.must(nil, err)
	if found := lies.Search(query, memory.Scope{Tenants: []string{"acme"}}); len(found.Hits) != 2 || found.Hits[0].ID != last && found.Hits[1].ID != last { // the control
		t.Fatalf("the index does not lie: %v", found)
	}
	for _, answer := range look() {
		text := fmt.Sprint(answer)
		for _, word := range []string{foreign, newer, last, "somebody"} {
			if strings.Contains(text, word) {
				t.Errorf("%s left: %v", word, answer)
			}
		}
	}
	for _, id := range []string{foreign, newer, last} {
		if got, err := l.read(id); err == nil {
			t.Errorf("%v", got)
		}
	}
	// What is captured is there already, says the index, and names somebody's.
	e := knowledgeEntry{Tenant: "acme", Kind: "note", Title: "said before"}
	l.state().knowledge.known.current[e.digest()] = foreign
	got, err := broker{d: l.Daemon}.CaptureKnowledge(l.ctx, &brokerv1.CaptureKnowledgeRequest{RunId: l.run.id, Tenant: e.Tenant, Kind: e.Kind, Title: e.Title})
	if err == nil || reasonOf(err) != wire.ResourceChanged {
		t.Errorf("%v, %v", got, err)
	}
}

// What is read is judged again in its place in the log: less scope, and it is not handed
// out; something that was forgotten meanwhile, and it is read once more, a few times.
func TestScopeChangesDuringARequest(t *testing.T) {
	forget := func(l *library, id string) {
		l.must(l.op().ForgetKnowledge(l.desk.ctx, &operatorv1.ForgetKnowledgeRequest{EntryIds: []string{id}}))
	}
	for name, tc := range map[string]struct {
		meanwhile func(l *library, mine, foreign string, try int)
		want      wire.Reason
		tries     int
	}{
		"nothing": {func(*library, string, string, int) {}, wire.Allowed, 1},
		"revoked": {func(l *library, _, _ string, _ int) {
			l.must(l.op().RevokeGrants(l.desk.ctx, &operatorv1.RevokeGrantsRequest{Subject: "worker", Capability: "memory.read:acme"}))
		}, wire.AccessDenied, 1},
		"forgotten": {func(l *library, mine, _ string, try int) {
			if try == 1 {
				forget(l, mine)
			}
		}, wire.Allowed, 2},
		"forgotten each time": {func(l *library, _, _ string, _ int) {
			l.state().knowledge.cut("acme")
		}, wire.ResourceChanged, maxTries},
		"somebody's forgotten": {func(l *library, _, foreign string, _ int) { forget(l, foreign) }, wire.Allowed, 1},
		"forgotten and revoked": {func(l *library, mine, _ string, try int) {
			if try > 1 {
				return
			}
			forget(l, mine)
			l.must(l.op().RevokeGrants(l.desk.ctx, &operatorv1.RevokeGrantsRequest{Subject: "worker", Capability: "memory.read:acme"}))
		}, wire.AccessDenied, 2},
		"another tenant of the name": {func(l *library, _, _ string, try int) {
			if try > 1 {
				return
			}
			l.must(l.op().CreateGrants(l.desk.ctx, &operatorv1.CreateGrantsRequest{Subject: "worker", Capabilities: []string{"memory.read:*"}}))
			l.must(l.op().RemoveTenant(l.desk.ctx, &operatorv1.RemoveTenantRequest{Name: "acme"}))
			l.must(l.op().AddTenant(l.desk.ctx, &operatorv1.AddTenantRequest{Name: "acme"}))
		}, wire.Allowed, 2},
		"locked": {func(l *library, _, _ string, _ int) {
			l.must(l.op().Lock(l.desk.ctx, &operatorv1.LockRequest{}))
		}, wire.RunEnded, 1},
		"disabled": {func(l *library, _, _ string, _ int) {
			l.must(l.op().SetSubject(l.desk.ctx, &operatorv1.SetSubjectRequest{Name: "worker", Enabled: new(bool)}))
		}, wire.RunEnded, 1},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLibrary(t)
			mine, foreign := l.learn("acme", "plan", ""), l.learn("other", "plan", "")
			l.indexKnowledge()
			c := l.recall(l.run, kindMemorySearch, grants.ToolSearchKnowledge, grants.MemoryRead, nil)
			tries := 0
			got, err := answerFrom(l.ctx, c, func(ix *memory.Index, scope []string) (*brokerv1.SearchKnowledgeResponse, uint64, error) {
				tries++
				out := &brokerv1.SearchKnowledgeResponse{}
				list, err := c.recent(ix, memory.Scope{Tenants: scope}, 10, "")
				for i := range list {
					out.Hits = append(out.Hits, &brokerv1.KnowledgeHit{Entry: list[i].message()})
				}
				tc.meanwhile(l, mine, foreign, tries)
				return out, 1, err
			})
			if reasonOf(err) != tc.want || (got != nil) != (tc.want == wire.Allowed) || tries != tc.tries {
				t.Errorf("%v, %v after %d; want %s after %d", got, err, tries, tc.want, tc.tries)
			}
			if hits := len(got.GetHits()); tc.want == wire.Allowed && hits != 2-tc.tries {
				t.Errorf("%d entries are handed out after %d tries", hits, tries)
			}
		})
	}
}

// From the moment at which it is known that an entry will be forgotten nothing reads it,
// although the vault and the index still hold it.
func TestNothingReadsWhatIsBeingForgotten(t *testing.T) {
	l := newLibrary(t)
	first := l.learn("acme", "plan of old", "")
	mine := l.learn("acme", "plan", first)
	l.indexKnowledge()
	look := func() string {
		t.Helper()
		searched, err := l.search("plan")
		l.must(nil, err)
		read, err := l.read(mine)
		l.must(nil, err)
		chain, err := broker{d: l.Daemon}.EntryHistory(l.ctx, &brokerv1.EntryHistoryRequest{RunId: l.run.id, EntryId: first})
		l.must(nil, err)
		recent, err := broker{d: l.Daemon}.BrowseRecent(l.ctx, &brokerv1.BrowseRecentRequest{RunId: l.run.id})
		l.must(nil, err)
		return fmt.Sprint(len(searched.GetHits()), read.GetEntry().GetTitle(), len(chain.GetEntries()), chain.GetEntries()[0].GetTitle(), len(recent.GetEntries()))
	}
	if got := look(); got != "1plan2plan1" { // the control
		t.Fatal(got)
	}
	l.state().knowledge.cut("acme", mine)
	if got := look(); got != "020" {
		t.Error(got)
	}
	l.must(l.op().ForgetKnowledge(l.desk.ctx, &operatorv1.ForgetKnowledgeRequest{EntryIds: []string{mine}}))
	if l.state().knowledge.goes(mine) {
		t.Error("it is still being forgotten")
	}
}

// Until the memory was read its tools say so, each of them, to who may use it.
func TestMemoryBeingRead(t *testing.T) {
	l := newLibrary(t)
	id := l.learn("acme", "plan", "")
	all := func() []wire.Reason {
		b, none := broker{d: l.Daemon}, func(_ any, err error) wire.Reason { return reasonOf(err) }
		return []wire.Reason{
			none(l.search("plan")), none(l.read(id)), none(b.EntryHistory(l.ctx, &brokerv1.EntryHistoryRequest{RunId: l.run.id, EntryId: id})),
			none(b.BrowseRecent(l.ctx, &brokerv1.BrowseRecentRequest{RunId: l.run.id})), none(b.KnowledgeStats(l.ctx, &brokerv1.KnowledgeStatsRequest{RunId: l.run.id})),
			none(b.CaptureKnowledge(l.ctx, &brokerv1.CaptureKnowledgeRequest{RunId: l.run.id, Tenant: "acme", Kind: "note", Title: "new"})),
		}
	}
	same := func(want wire.Reason) {
		t.Helper()
		if got := all(); slices.ContainsFunc(got, func(one wire.Reason) bool { return one != want }) {
			t.Errorf("%v, not %s", got, want)
		}
	}
	same(wire.BrokerUnavailable)
	l.indexKnowledge()
	same(wire.Allowed)
}

// A memory that cannot be read whole is not used in part.
func TestMemoryFault(t *testing.T) {
	l := newLibrary(t)
	first := l.learn("acme", "plan", "")
	l.learn("acme", "one", first)
	l.learn("acme", "two", first) // of which a change would have seen that it cannot be
	l.indexKnowledge()
	if _, err := l.search("plan"); reasonOf(err) != wire.IntegrityFailed {
		t.Errorf("%v", err)
	}
	if err := l.state().knowledge.failed(); !errors.Is(err, vault.ErrIntegrity) {
		t.Errorf("%v", err)
	}
	if _, err := l.op().ListTenants(l.desk.ctx, &operatorv1.ListTenantsRequest{}); reasonOf(err) != wire.IntegrityFailed || !strings.Contains(err.Error(), "the memory is not used") {
		t.Errorf("the list of tenants: %v", err)
	}
	if !slices.ContainsFunc(l.probes(), func(p *operatorv1.Probe) bool { return p.GetName() == "shared-memory" && p.GetStatus() == "fail" }) {
		t.Error("the status does not say it")
	}
}

// What is noted twice, or after it was read from the vault, changes nothing; what is
// noted when the memory was dropped does no harm.
func TestNotedAgain(t *testing.T) {
	l := newLibrary(t)
	id := l.learn("acme", "plan", "")
	l.indexKnowledge()
	k := l.state().knowledge
	again := knowledgeEntry{ID: id, Tenant: "acme", Kind: "note", Title: "plan", Created: 1}
	k.note(func(k *knowledge) { k.add(again) })
	k.note(func(k *knowledge) { k.forget(id) })
	k.note(func(k *knowledge) { k.add(again) })
	if _, err := k.use(); err != nil || k.entries() != 1 || k.same(again.digest()) != "" {
		t.Errorf("%v, %d entries", err, k.entries())
	}
	k.note(func(k *knowledge) { k.add(knowledgeEntry{ID: id, Tenant: "acme", Kind: "note", Title: "another"}) })
	k.note(func(k *knowledge) { k.forget(id) })
	if k.drop(); k.entries() != 0 {
		t.Error("something is left")
	}
	k.note(func(k *knowledge) { k.forget(id) })
	if _, err := k.use(); reasonOf(err) != wire.VaultLocked || k.same(again.digest()) != "" {
		t.Errorf("%v", err)
	}
}

// What is exported comes behind what it took the place of, whatever the clock did, and
// once; of a chain that is long, too.
func TestListOrder(t *testing.T) {
	k := newKnowledge()
	k.ready = true
	const n = 3000
	var want []string
	for i := range n {
		e := knowledgeEntry{ID: fmt.Sprintf("e%015d", i), Tenant: "acme", Kind: "note", Title: fmt.Sprint(i), Created: int64(n - i)}
		if i > 0 {
			e.Supersedes = want[i-1]
		}
		want = append(want, e.ID)
		k.note(func(k *knowledge) { k.add(e) })
	}
	if got := k.list([]string{"acme"}, true); !slices.Equal(got, want) {
		t.Errorf("%d of %d, in another order", len(got), n)
	}
	if got := k.list([]string{"acme"}, false); !slices.Equal(got, want[n-1:]) {
		t.Errorf("%v", got)
	}
	k.note(func(k *knowledge) { k.forget(want[7]) })
	if got := k.list([]string{"acme"}, true); !slices.Equal(got, slices.Delete(slices.Clone(want), 7, 8)) {
		t.Error("what was forgotten parts its chain")
	}
	if got := k.list([]string{"other"}, true); len(got) != 0 {
		t.Errorf("%v", got)
	}
	chain := k.index.History(want[0])
	var paged []string
	for id := want[n-1]; ; {
		page := windowOf(chain, id)
		if len(paged) > 0 {
			page = page[1:]
		}
		if len(page) == 0 {
			break
		}
		for _, version := range page {
			paged = append(paged, version.ID)
		}
		id = paged[len(paged)-1]
	}
	if slices.Reverse(paged); !slices.Equal(paged, want) {
		t.Errorf("a history in pieces: %d of %d", len(paged), n)
	}
}

// An entry whose forgetting the log could not take has its content, also for the export.
func TestForgetThatFails(t *testing.T) {
	l := newLibrary(t)
	id := l.learn("acme", "plan", "")
	l.indexKnowledge()
	segment := filepath.Join(place.AuditDir(l.home), "00000001.jsonl")
	l.must(nil, os.Rename(segment, segment+".away"))
	if _, err := l.op().ForgetKnowledge(l.desk.ctx, &operatorv1.ForgetKnowledgeRequest{EntryIds: []string{id}}); reasonOf(err) != wire.AuditFailed {
		t.Fatal(err)
	}
	l.must(nil, os.Rename(segment+".away", segment))
	eventuallyInside(t, "the log is written again", func() bool { ok, _ := l.log().Health(); return ok })
	got, err := l.read(id)
	l.must(nil, err)
	if e := got.GetEntry(); e.GetForgotten() || e.GetTitle() != "plan" {
		t.Errorf("%v", e)
	}
}

// What the index says of an entry that is being forgotten is handed out no more once the
// index has forgotten it, though nothing was announced after it was asked.
func TestIndexForgetsWhileItIsAsked(t *testing.T) {
	l := newLibrary(t)
	id := l.learn("acme", "plan", "")
	l.indexKnowledge()
	k := l.state().knowledge
	k.cut("acme", id)
	c := &lookup{d: l.Daemon, who: payerOf(l.run.peer, ""), scope: []string{"acme"}}
	_, end, err := c.begin(l.ctx)
	l.must(nil, err)
	defer end()
	if c.stale() {
		t.Fatal("nothing was taken out since")
	}
	k.note(func(k *knowledge) { k.forget(id) })
	_, err = k.use()
	l.must(nil, err)
	if !c.stale() {
		t.Error("what was found by the words of a forgotten entry is handed out")
	}
}
