package daemon_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"subjectbroker/audit/verify"
	"subjectbroker/daemon/daemontest"
	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// librarian has a daemon whose subject worker may read and write the tenants.
func librarian(t *testing.T, d *daemontest.Daemon, tenants ...string) *daemontest.Run {
	t.Helper()
	d.AddSubject("worker")
	remembering(t, d, tenants...)
	for _, tenant := range tenants {
		d.Grant("worker", "memory.read:"+tenant)
		d.Grant("worker", "memory.write:"+tenant)
	}
	return d.Open("worker")
}

// P42: two subjects, tenants, grants and entries at random; whatever one of them asks,
// the answer is that of a model that holds nothing but what it may read, byte for byte,
// whatever the other one adds.
func TestForeignTenantsChangeNothing(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 1415))
	tenants := []string{"a", "b", "c", "d"}
	words := []string{"rotate", "keys", "daemon", "vault", "state", "plan"}
	for round := range 4 {
		clock := newClock()
		d := daemontest.StartWith(t, daemontest.Options{Now: clock.Now})
		remembering(t, d, tenants...)
		subjects := []string{"left", "right"}
		d.AddSubject(append(subjects, "scribe")...)
		d.Grant("scribe", "memory.write:*")
		may := map[string][]string{}
		for i, tenant := range tenants {
			for s, subject := range subjects {
				if random.IntN(2) == 0 || i == s {
					d.Grant(subject, "memory.read:"+tenant)
					if random.IntN(4) == 0 && i != s { // deny goes before allow
						d.Grant(subject, "memory.read:"+tenant, daemontest.Denying)
						continue
					}
					may[subject] = append(may[subject], tenant)
				}
			}
		}
		scribe := d.Open("scribe")
		type note struct{ id, tenant, title string }
		var all []note
		add := func(tenant string) {
			clock.step(time.Second)
			title := fmt.Sprint(words[random.IntN(len(words))], " ", words[random.IntN(len(words))], " ", len(all))
			all = append(all, note{capture(t, scribe, tenant, title, "", ""), tenant, title})
		}
		for range 12 {
			add(tenants[random.IntN(len(tenants))])
		}
		for _, subject := range subjects {
			run, mine := d.Open(subject), may[subject]
			ask := func() []byte {
				t.Helper()
				var answers []byte
				put := func(m proto.Message, err error) {
					must(t, err)
					bytes, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
					must(t, err)
					answers = append(answers, bytes...)
				}
				for _, word := range words {
					got, err := run.SearchKnowledge(t.Context(), &brokerv1.SearchKnowledgeRequest{RunId: run.ID, Query: word, Limit: 100})
					put(got, err)
					found, want := []string{}, []string{}
					for _, hit := range got.GetHits() {
						found = append(found, hit.GetEntry().GetTitle())
					}
					for _, one := range all {
						if slices.Contains(mine, one.tenant) && strings.Contains(one.title, word) {
							want = append(want, one.title)
						}
					}
					slices.Sort(found)
					slices.Sort(want)
					if diff := cmp.Diff(want, found); diff != "" || got.GetTotal() != uint64(len(want)) {
						t.Errorf("%s asks for %s: %s", subject, word, diff)
					}
				}
				recent, err := run.BrowseRecent(t.Context(), &brokerv1.BrowseRecentRequest{RunId: run.ID, Limit: 100})
				put(recent, err)
				var listed, want []string
				for _, e := range recent.GetEntries() {
					listed = append(listed, e.GetEntryId())
				}
				for _, one := range slices.Backward(all) {
					if slices.Contains(mine, one.tenant) {
						want = append(want, one.id)
					}
				}
				if diff := cmp.Diff(want, listed); diff != "" {
					t.Errorf("%s browses: %s", subject, diff)
				}
				stats, err := run.KnowledgeStats(t.Context(), &brokerv1.KnowledgeStatsRequest{RunId: run.ID})
				put(stats, err)
				if len(stats.GetTenants()) != len(mine) {
					t.Errorf("%s counts %v", subject, stats)
				}
				return answers
			}
			before := ask()
			foreign := 0
			for _, tenant := range tenants {
				if !slices.Contains(mine, tenant) {
					for range 5 {
						add(tenant)
						foreign++
					}
				}
			}
			if after := ask(); !bytes.Equal(before, after) {
				t.Errorf("round %d: %s sees that %d entries of others were added", round, subject, foreign)
			}
			refused := map[string][]string{} // what was said, of foreign and of nobody's
			ids := []string{"aaaaaaaaaaaaaaaa"}
			for _, one := range all {
				if len(ids) < 5 && !slices.Contains(mine, one.tenant) {
					ids = append(ids, one.id)
				}
			}
			for _, id := range ids {
				for what, err := range map[string]error{
					"read":    second(run.ReadEntry(t.Context(), &brokerv1.ReadEntryRequest{RunId: run.ID, EntryId: id})),
					"history": second(run.EntryHistory(t.Context(), &brokerv1.EntryHistoryRequest{RunId: run.ID, EntryId: id})),
				} {
					clock.step(time.Minute) // the budget for denials is full again
					refused[what] = append(refused[what], fmt.Sprintf("%+v", wire.FromError(err)))
				}
			}
			for what, said := range refused {
				if len(slices.Compact(said)) != 1 {
					t.Errorf("%s: %q", what, said)
				}
			}
		}
		// The control: what is added to a tenant of its own a subject does see.
		run := d.Open(subjects[0])
		n := len(recalled(t, run, "plan"))
		capture(t, scribe, may[subjects[0]][0], "plan of the control", "", "")
		if got := len(recalled(t, run, "plan")); got != n+1 {
			t.Errorf("%d, and then %d", n, got)
		}
	}
}

// Of two that take the place of the same entry at once, one does; and of many that say
// the same, one is added.
func TestCapturedAtOnce(t *testing.T) {
	d := daemontest.Start(t)
	run := librarian(t, d, "acme")
	first := capture(t, run, "acme", "the deadline", "", "")
	for what, supersedes := range map[string]string{"the same": "", "the place of one": first} {
		var wait sync.WaitGroup
		var mu sync.Mutex
		added := map[string]bool{}
		refused := 0
		for i := range 8 {
			title := what
			if supersedes != "" {
				title = fmt.Sprint(what, " ", i)
			}
			other := d.Open("worker")
			wait.Go(func() {
				got, err := other.CaptureKnowledge(t.Context(), &brokerv1.CaptureKnowledgeRequest{RunId: other.ID, Tenant: "acme", Kind: "note", Title: title, Supersedes: supersedes})
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					if refused++; wire.FromError(err).Reason != wire.ResourceChanged {
						t.Errorf("%v", err)
					}
					return
				}
				added[got.GetEntry().GetEntryId()] = true
			})
		}
		wait.Wait()
		if len(added) != 1 || (refused == 7) != (supersedes != "") {
			t.Errorf("%s: %d were added, %d refused", what, len(added), refused)
		}
	}
	if chain, err := run.EntryHistory(t.Context(), &brokerv1.EntryHistoryRequest{RunId: run.ID, EntryId: first}); err != nil || len(chain.GetEntries()) != 2 {
		t.Errorf("%v, %v", chain, err)
	}
}

// Who supersedes what another has superseded meanwhile is told to look again, as often
// as that happens; who may not read the tenant learns nothing of what stands in it.
func TestOvertaken(t *testing.T) {
	d := daemontest.StartWith(t, daemontest.Options{Now: newClock().Now})
	run := librarian(t, d, "acme", "beta")
	first := capture(t, run, "acme", "one", "", "")
	capture(t, run, "acme", "two", "", first)
	elsewhere := capture(t, run, "beta", "three", "", "")
	d.AddSubject("writer")
	d.Grant("writer", "memory.write:acme")
	supersede := func(run *daemontest.Run, id string) *wire.Error {
		return wire.FromError(second(run.CaptureKnowledge(t.Context(), &brokerv1.CaptureKnowledgeRequest{RunId: run.ID, Tenant: "acme", Kind: "note", Title: "x", Supersedes: id})))
	}
	for range 60 { // more than are refused before it is too many
		err := supersede(run, first)
		if err == nil || err.Reason != wire.ResourceChanged || err.Argument != "supersedes" || !strings.Contains(err.Message, "history") || strings.Contains(err.Message, first) {
			t.Fatalf("%+v", err)
		}
	}
	e := d.Await(0, func(e verify.Entry) bool { return e.Cause == "SUPERSEDED" })
	if e.Kind != "memory.capture" || e.Decision != "error" || e.SubjectID != "worker" {
		t.Errorf("%+v", e)
	}
	for _, id := range []string{elsewhere, "aaaaaaaaaaaaaaaa"} {
		if err := supersede(run, id); err == nil || err.Reason != wire.InvalidArgument {
			t.Errorf("%s: %+v", id, err)
		}
	}
	writer := d.Open("writer")
	seen, unseen := supersede(writer, first), supersede(writer, "aaaaaaaaaaaaaaaa")
	if diff := cmp.Diff(seen, unseen); diff != "" || seen == nil || seen.Reason != wire.InvalidArgument {
		t.Errorf("%+v %s", seen, diff)
	}
	limited := false
	for range 60 { // the control
		limited = limited || supersede(writer, first).Reason == wire.RateLimited
	}
	if !limited {
		t.Error("malformed requests are not rationed")
	}
}

// What was superseded may be said again; what takes the place of another is no older
// than that, whatever the clock did; and pages go on where an entry was that is not
// current any more, or forgotten.
func TestVersionsInTime(t *testing.T) {
	clock := newClock()
	d := daemontest.StartWith(t, daemontest.Options{Now: clock.Now})
	run := librarian(t, d, "acme")
	first := capture(t, run, "acme", "yes", "", "")
	clock.step(time.Minute)
	second := capture(t, run, "acme", "no", "", first)
	third := capture(t, run, "acme", "yes", "", second)
	capture(t, run, "acme", "no", "", "") // of another chain
	clock.step(-time.Hour)
	fifth := capture(t, run, "acme", "maybe", "", third)
	chain, err := run.EntryHistory(t.Context(), &brokerv1.EntryHistoryRequest{RunId: run.ID, EntryId: first})
	must(t, err)
	var ids []string
	for i, e := range chain.GetEntries() {
		ids = append(ids, e.GetEntryId())
		if i > 0 && e.GetCreated() > chain.GetEntries()[i-1].GetCreated() {
			t.Errorf("%s is older than what it replaced", chain.GetEntries()[i-1].GetTitle())
		}
	}
	if want := []string{fifth, third, second, first}; !slices.Equal(ids, want) {
		t.Errorf("%q, not %q", ids, want)
	}
	page := func(before string) (titles []string) {
		t.Helper()
		got, err := run.BrowseRecent(t.Context(), &brokerv1.BrowseRecentRequest{RunId: run.ID, Before: before})
		must(t, err)
		for _, e := range got.GetEntries() {
			titles = append(titles, e.GetTitle())
		}
		return titles
	}
	clock.step(2 * time.Hour)
	last := capture(t, run, "acme", "last", "", "")
	whole := page(last)
	if len(whole) != 2 {
		t.Fatalf("%q", whole)
	}
	clock.step(time.Second)
	capture(t, run, "acme", "the very last", "", last)
	if got := page(last); !slices.Equal(got, whole) {
		t.Errorf("superseded meanwhile: %q, not %q", got, whole)
	}
	forget(t, d, last)
	if got := page(last); !slices.Equal(got, whole) {
		t.Errorf("forgotten meanwhile: %q, not %q", got, whole)
	}
	// Where the current version was forgotten nothing says what is true.
	forget(t, d, fifth)
	if got := recalled(t, run, "yes"); len(got) != 0 {
		t.Errorf("an older version is a hit: %q", got)
	}
	if got := page(""); slices.Contains(got, "yes") || slices.Contains(got, "maybe") {
		t.Errorf("%q", got)
	}
	chain, err = run.EntryHistory(t.Context(), &brokerv1.EntryHistoryRequest{RunId: run.ID, EntryId: third})
	must(t, err)
	if e := chain.GetEntries(); len(e) != 4 || !e[0].GetForgotten() || e[0].GetTitle() != "" || e[1].GetTitle() != "yes" {
		t.Errorf("the chain: %v", e)
	}
	capture(t, run, "acme", "yes again", "", fifth)
	if got := recalled(t, run, "yes"); !slices.Equal(got, []string{"yes again"}) {
		t.Errorf("%q", got)
	}
}

// What is true after an export and its import is what was true before: a text that came
// back, in a tenant of another name too; again, nothing is added; and what was forgotten
// does not come back.
func TestImportKeepsWhatIsTrue(t *testing.T) {
	d := daemontest.Start(t)
	run := librarian(t, d, "acme", "beta")
	first := capture(t, run, "acme", "yes", "", "")
	second := capture(t, run, "acme", "no", "", first)
	third := capture(t, run, "acme", "yes", "", second)
	lines := exported(t, d, &operatorv1.ExportKnowledgeRequest{History: true})
	beta := strings.ReplaceAll(lines, `"tenant":"acme"`, `"tenant":"beta"`) // whose ids are taken
	for i, want := range []uint64{3, 0, 0} {
		if got := imported(t, d, beta, ""); got.GetAdded() != want || got.GetExisted() != 3-want {
			t.Errorf("import %d: %v", i, got)
		}
	}
	got, err := run.SearchKnowledge(t.Context(), &brokerv1.SearchKnowledgeRequest{RunId: run.ID, Query: "yes no", Tenants: []string{"beta"}})
	must(t, err)
	if hits := got.GetHits(); len(hits) != 1 || hits[0].GetEntry().GetTitle() != "yes" || len(hits[0].GetReplaced()) != 2 || hits[0].GetEntry().GetEntryId() == third {
		t.Errorf("%v", hits)
	}
	// A dry run says what a real one would do, in several pieces too.
	dry := func(dry bool, tenant string) (added []uint64) {
		t.Helper()
		stream, err := d.Operator().ImportKnowledge(t.Context())
		must(t, err)
		for i, line := range []string{
			`{"id":"aaaaaaaaaaaaaaa2","kind":"note","title":"one"}`, `{"kind":"note","title":"two","supersedes":"aaaaaaaaaaaaaaa2"}`, `{"kind":"note","title":"two"}`, `{"kind":"note","title":"one"}`,
		} {
			must(t, stream.Send(&operatorv1.ImportKnowledgeRequest{Tenant: tenant, DryRun: dry, Lines: []byte(line)}))
			got, err := stream.Recv()
			if err != nil {
				t.Fatalf("line %d: %v", i, err)
			}
			added = append(added, got.GetAdded())
		}
		must(t, stream.CloseSend())
		_, _ = stream.Recv()
		return added
	}
	would := dry(true, "acme")
	if want := []uint64{1, 2, 2, 3}; !slices.Equal(would, want) || !slices.Equal(dry(false, "acme"), want) {
		t.Errorf("%v, not %v", would, want)
	}
	forget(t, d, third)
	if got := imported(t, d, lines, ""); got.GetAdded() != 0 {
		t.Errorf("what was forgotten came back: %v", got)
	}
}

// More tenants than an entry names can be searched, and exported, by who names none.
func TestManyTenants(t *testing.T) {
	d := daemontest.Start(t)
	var names []string
	for i := range 65 {
		names = append(names, fmt.Sprintf("tenant-%02d", i))
	}
	remembering(t, d, names...)
	d.AddSubject("worker")
	d.Grant("worker", "memory.read:*")
	d.Grant("worker", "memory.write:*")
	run := d.Open("worker")
	for _, name := range names {
		capture(t, run, name, "a plan of "+name, "", "")
	}
	seq := d.Seq()
	got, err := run.SearchKnowledge(t.Context(), &brokerv1.SearchKnowledgeRequest{RunId: run.ID, Query: "plan", Limit: 100})
	must(t, err)
	if len(got.GetHits()) != 65 || len(got.GetTenants()) != 65 {
		t.Errorf("%d hits in %d tenants", len(got.GetHits()), len(got.GetTenants()))
	}
	if e := d.Since(seq, "memory.search"); len(e) != 1 || e[0].Cause != "ALL_TENANTS" || len(e[0].Tenants) != 0 || e[0].Count != 65 {
		t.Errorf("%+v", e)
	}
	for _, of := range [][]string{nil, names} { // each entry of the log names as many as it has room for
		seq := d.Seq()
		if lines := exported(t, d, &operatorv1.ExportKnowledgeRequest{Tenants: of}); strings.Count(lines, "\n") != 65 {
			t.Errorf("%d lines", strings.Count(lines, "\n"))
		}
		e := slices.DeleteFunc(d.Since(seq, "memory.export"), func(e verify.Entry) bool { return e.Action != "" }) // the beginning of the stream
		if len(e) != 2 || len(e[0].Tenants) != 64 || e[0].Count != 64 || len(e[1].Tenants) != 1 || e[1].Count != 1 {
			t.Errorf("%+v", e)
		}
	}
	if got := recalled(t, run, "plan", names[:64]...); len(got) != 10 {
		t.Errorf("%d hits", len(got))
	}
	if err := wire.FromError(second(run.SearchKnowledge(t.Context(), &brokerv1.SearchKnowledgeRequest{RunId: run.ID, Query: "plan", Tenants: names}))); err == nil || err.Reason != wire.InvalidArgument {
		t.Errorf("%+v", err)
	}
}

// A grant about memory has no uses, and who may only write learns nothing of what is
// there already but that it is.
func TestMemoryGrants(t *testing.T) {
	clock := newClock()
	d := daemontest.StartWith(t, daemontest.Options{Now: clock.Now})
	run := librarian(t, d, "acme")
	d.AddSubject("writer", "brief")
	_, err := d.Operator().CreateGrants(t.Context(), &operatorv1.CreateGrantsRequest{Subject: "writer", Capabilities: []string{"memory.read:acme"}, Uses: 3})
	if refused := wire.FromError(err); refused == nil || refused.Reason != wire.InvalidArgument {
		t.Errorf("%+v", refused)
	}
	d.Grant("writer", "memory.write:acme")
	id := capture(t, run, "acme", "a plan", "in words", "")
	writer := d.Open("writer")
	seq := d.Seq()
	got, err := writer.CaptureKnowledge(t.Context(), &brokerv1.CaptureKnowledgeRequest{RunId: writer.ID, Tenant: "acme", Kind: "note", Title: "a plan", Text: "in words"})
	must(t, err)
	if e := got.GetEntry(); !got.GetExisted() || e.GetEntryId() != id || e.GetSubject() != "" || e.GetRunId() != "" || e.GetCreated() != 0 {
		t.Errorf("%v", got)
	}
	if e := d.Since(seq); len(e) != 1 || e[0].Kind != "memory.capture" || e[0].Cause != "EXISTED" || e[0].ResourceID != id || !slices.Equal(e[0].Tenants, []string{"acme"}) {
		t.Errorf("%+v", e)
	}
	if err := wire.FromError(second(writer.SearchKnowledge(t.Context(), &brokerv1.SearchKnowledgeRequest{RunId: writer.ID, Query: "plan"}))); err == nil || err.Reason != wire.AccessDenied {
		t.Errorf("%+v", err)
	}
	// At its edge a grant is over.
	d.Grant("brief", "memory.read:acme", daemontest.For(time.Hour))
	brief := d.Open("brief")
	clock.step(time.Hour - time.Second)
	if got := recalled(t, brief, "plan"); len(got) != 1 {
		t.Errorf("%q", got)
	}
	clock.step(time.Second)
	if err := wire.FromError(second(brief.SearchKnowledge(t.Context(), &brokerv1.SearchKnowledgeRequest{RunId: brief.ID, Query: "plan"}))); err == nil || err.Reason != wire.AccessDenied {
		t.Errorf("at its edge: %+v", err)
	}
}

// P1, P28: no word of an entry or of a query is in the log, in a message or, in clear, in
// any file; each request has one entry, refused ones too.
func TestMemoryGoesNowhere(t *testing.T) {
	const marker = "zyxwvmarker"
	clock := newClock()
	d := daemontest.StartWith(t, daemontest.Options{Now: clock.Now})
	run := librarian(t, d, "acme", "other")
	d.AddSubject("nobody")
	none := d.Open("nobody")
	id := ""
	for _, r := range []*daemontest.Run{run, none} {
		for kind, ask := range map[string]func() error{
			"memory.search": func() error {
				return second(r.SearchKnowledge(t.Context(), &brokerv1.SearchKnowledgeRequest{RunId: r.ID, Query: marker + " query", Tenants: []string{"acme", "other"}}))
			},
			"memory.browse": func() error {
				return second(r.BrowseRecent(t.Context(), &brokerv1.BrowseRecentRequest{RunId: r.ID}))
			},
			"memory.stats": func() error {
				return second(r.KnowledgeStats(t.Context(), &brokerv1.KnowledgeStatsRequest{RunId: r.ID}))
			},
			"memory.capture": func() error {
				got, err := r.CaptureKnowledge(t.Context(), &brokerv1.CaptureKnowledgeRequest{RunId: r.ID, Tenant: "acme", Kind: "lesson", Title: marker + " title", Text: marker + " text", Tags: []string{marker + " tag"}})
				if captured := got.GetEntry().GetEntryId(); captured != "" {
					id = captured
				}
				return err
			},
		} {
			clock.step(time.Minute)
			seq := d.Seq()
			err := ask()
			if (err == nil) != (r == run) {
				t.Errorf("%s: %v", kind, err)
			}
			var of []verify.Entry
			for _, e := range d.Since(seq) {
				if e.Kind != "op.intent" && e.Kind != "op.applied" {
					of = append(of, e)
				}
			}
			if len(of) != 1 || string(of[0].Kind) != kind || (of[0].Decision == "allow") != (r == run) {
				t.Errorf("%s has %+v", kind, of)
			}
		}
	}
	must(t, second(run.ReadEntry(t.Context(), &brokerv1.ReadEntryRequest{RunId: run.ID, EntryId: id})))
	for name, request := range map[string]*brokerv1.CaptureKnowledgeRequest{
		"kind": {Tenant: "acme", Kind: marker, Title: "x"}, "tenant": {Tenant: marker + "/x", Kind: "note", Title: "x"},
		"title": {Tenant: "acme", Kind: "note", Title: marker + "\n"}, "supersedes": {Tenant: "acme", Kind: "note", Title: "x", Supersedes: marker},
	} {
		request.RunId = run.ID
		clock.step(time.Minute)
		if err := second(run.CaptureKnowledge(t.Context(), request)); err == nil || strings.Contains(err.Error(), marker) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if lines := exported(t, d, &operatorv1.ExportKnowledgeRequest{}); !strings.Contains(lines, marker+" text") { // the control
		t.Errorf("%s", lines)
	}
	d.Stop()
	if strings.Contains(d.Messages(), marker) || bytes.Contains(d.RawLog(), []byte(marker)) {
		t.Error("it is in the log or in a message")
	}
	err := filepath.WalkDir(d.Home, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		if bytes.Contains(text, []byte(marker)) {
			err = errors.Join(err, fmt.Errorf("%s holds it", path))
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// An import is the same however often it is made, also of lines without an id, and
// whatever became of their entries since: one that was superseded is not said again, and
// one that was forgotten does not come back, unless its line has another id.
func TestImportAgain(t *testing.T) {
	d := daemontest.Start(t)
	run := librarian(t, d, "acme")
	const lines = `{"tenant":"acme","kind":"note","title":"marker a"}
{"tenant":"acme","kind":"note","title":"marker b"}
{"id":"aaaaaaaaaaaaaaa2","tenant":"acme","kind":"note","title":"marker c"}
{"tenant":"acme","kind":"note","title":"marker d","supersedes":"aaaaaaaaaaaaaaa2"}
`
	said := func(lines string) string {
		t.Helper()
		got := imported(t, d, lines, "")
		return fmt.Sprintf("%d added, %d there, %d forgotten", got.GetAdded(), got.GetExisted(), got.GetForgotten())
	}
	idOf := func(title string) string {
		t.Helper()
		got, err := run.SearchKnowledge(t.Context(), &brokerv1.SearchKnowledgeRequest{RunId: run.ID, Query: `"` + title + `"`})
		must(t, err)
		if len(got.GetHits()) != 1 {
			t.Fatalf("%s: %v", title, got)
		}
		return got.GetHits()[0].GetEntry().GetEntryId()
	}
	if got := said(lines); got != "4 added, 0 there, 0 forgotten" {
		t.Fatal(got)
	}
	capture(t, run, "acme", "marker e", "", idOf("marker a"))
	forget(t, d, idOf("marker b"))
	forget(t, d, idOf("marker d"), "aaaaaaaaaaaaaaa2")
	before := exported(t, d, &operatorv1.ExportKnowledgeRequest{History: true})
	for range 2 {
		if got := said(lines); got != "0 added, 1 there, 3 forgotten" {
			t.Error(got)
		}
	}
	d.Restart()
	awaitMemory(t, d)
	if got := said(lines); got != "0 added, 1 there, 3 forgotten" {
		t.Errorf("after a restart: %s", got)
	}
	if after := exported(t, d, &operatorv1.ExportKnowledgeRequest{History: true}); after != before {
		t.Errorf("%s\nis not\n%s", after, before)
	}
	run = d.Open("worker")
	if got := said(`{"id":"bbbbbbbbbbbbbbb2","tenant":"acme","kind":"note","title":"marker b"}`); got != "1 added, 0 there, 0 forgotten" || idOf("marker b") != "bbbbbbbbbbbbbbb2" {
		t.Errorf("on purpose: %s", got)
	}
}
