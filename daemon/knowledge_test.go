package daemon_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"subjectbroker/audit/verify"
	"subjectbroker/daemon/daemontest"
	"subjectbroker/proto/place"
	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// awaitMemory waits until the memory was read.
func awaitMemory(t *testing.T, d *daemontest.Daemon) {
	t.Helper()
	eventually(t, "the memory is read", func() bool {
		listed, err := d.Operator().ListTenants(t.Context(), &operatorv1.ListTenantsRequest{})
		must(t, err)
		return listed.GetToIndex() == 0
	})
}

// remembering is a daemon with tenants, and who may do what in them.
func remembering(t *testing.T, d *daemontest.Daemon, tenants ...string) {
	t.Helper()
	for _, name := range tenants {
		_, err := d.Operator().AddTenant(t.Context(), &operatorv1.AddTenantRequest{Name: name})
		must(t, err)
	}
	awaitMemory(t, d)
}

// capture adds a note and returns its id.
func capture(t *testing.T, run *daemontest.Run, tenant, title, text, supersedes string) string {
	t.Helper()
	got, err := run.CaptureKnowledge(t.Context(), &brokerv1.CaptureKnowledgeRequest{
		RunId: run.ID, Tenant: tenant, Kind: "note", Title: title, Text: text, Supersedes: supersedes,
	})
	must(t, err)
	if got.GetExisted() {
		t.Fatalf("%s was there already", title)
	}
	return got.GetEntry().GetEntryId()
}

// recalled returns the titles that fit, best first.
func recalled(t *testing.T, run *daemontest.Run, query string, tenants ...string) []string {
	t.Helper()
	got, err := run.SearchKnowledge(t.Context(), &brokerv1.SearchKnowledgeRequest{RunId: run.ID, Query: query, Tenants: tenants})
	must(t, err)
	titles := []string{}
	for _, hit := range got.GetHits() {
		titles = append(titles, hit.GetEntry().GetTitle())
	}
	return titles
}

// A memory finds what was put in it, says who did, and which version is true; across
// a lock and a restart too.
func TestKnowledge(t *testing.T) {
	d := daemontest.Start(t)
	d.AddSubject("worker")
	remembering(t, d, "acme", "other")
	d.Grant("worker", "memory.read:acme")
	d.Grant("worker", "memory.write:acme")
	run := d.Open("worker")
	first := capture(t, run, "acme", "The deadline", "We ship on the first of May.", "")
	second := capture(t, run, "acme", "The deadline moved", "We ship on the first of June.", first)
	capture(t, run, "acme", "Lunch", "Fridays are for pizza.", "")
	again, err := run.CaptureKnowledge(t.Context(), &brokerv1.CaptureKnowledgeRequest{
		RunId: run.ID, Tenant: "acme", Kind: "note", Title: "Lunch", Text: "Fridays are for pizza.",
	})
	must(t, err)
	if !again.GetExisted() || again.GetEntry().GetRunId() != run.ID {
		t.Errorf("the same again: %v", again)
	}
	check := func(run *daemontest.Run) {
		t.Helper()
		got, err := run.SearchKnowledge(t.Context(), &brokerv1.SearchKnowledgeRequest{RunId: run.ID, Query: "may"})
		must(t, err)
		if len(got.GetHits()) != 1 || got.GetTotal() != 1 || !slices.Equal(got.GetTenants(), []string{"acme"}) {
			t.Fatalf("%v", got)
		}
		hit := got.GetHits()[0]
		if hit.GetEntry().GetEntryId() != second || hit.GetMatched() != first || !strings.Contains(hit.GetEntry().GetText(), "June") {
			t.Errorf("not the current one: %v", hit)
		}
		if replaced := hit.GetReplaced(); len(replaced) != 1 || replaced[0].GetEntryId() != first || replaced[0].GetTitle() != "The deadline" || replaced[0].GetReplaced() == 0 {
			t.Errorf("what it replaced: %v", replaced)
		}
		if e := hit.GetEntry(); e.GetSubject() != "worker" || e.GetRunId() == "" || e.GetCreated() == 0 {
			t.Errorf("who captured it: %v", e)
		}
		old, err := run.ReadEntry(t.Context(), &brokerv1.ReadEntryRequest{RunId: run.ID, EntryId: first})
		must(t, err)
		if e := old.GetEntry(); e.GetSupersededBy() != second || e.GetSuperseded() == 0 || !strings.Contains(e.GetText(), "May") {
			t.Errorf("the older one: %v", e)
		}
		chain, err := run.EntryHistory(t.Context(), &brokerv1.EntryHistoryRequest{RunId: run.ID, EntryId: first})
		must(t, err)
		if e := chain.GetEntries(); len(e) != 2 || e[0].GetEntryId() != second || e[1].GetEntryId() != first {
			t.Errorf("the chain: %v", e)
		}
		recent, err := run.BrowseRecent(t.Context(), &brokerv1.BrowseRecentRequest{RunId: run.ID})
		must(t, err)
		if e := recent.GetEntries(); len(e) != 2 || e[0].GetTitle() != "Lunch" || e[1].GetEntryId() != second {
			t.Errorf("recent: %v", e)
		}
		stats, err := run.KnowledgeStats(t.Context(), &brokerv1.KnowledgeStatsRequest{RunId: run.ID})
		must(t, err)
		if s := stats.GetTenants(); len(s) != 1 || s[0].GetKinds()["note"] != 2 || s[0].GetSuperseded() != 1 || !s[0].GetWritable() {
			t.Errorf("stats: %v", s)
		}
	}
	check(run)
	d.Lock()
	if _, err := run.SearchKnowledge(t.Context(), &brokerv1.SearchKnowledgeRequest{RunId: run.ID, Query: "may"}); daemontest.Reason(err) != wire.VaultLocked {
		t.Errorf("while it is locked: %v", err)
	}
	d.Unlock()
	awaitMemory(t, d)
	check(d.Open("worker"))
	d.Restart()
	awaitMemory(t, d)
	check(d.Open("worker"))
}

// What names a tenant beyond the scope is refused whole, whether there is such a
// tenant or not, and nothing is narrowed; what names none is about all that is granted.
func TestKnowledgeScope(t *testing.T) {
	clock := newClock()
	d := daemontest.StartWith(t, daemontest.Options{Now: clock.Now})
	d.AddSubject("worker")
	d.AddSubject("stranger")
	remembering(t, d, "acme", "beta", "other")
	for _, capability := range []string{"memory.read:acme", "memory.write:acme", "memory.read:beta"} {
		d.Grant("worker", capability)
	}
	d.Grant("stranger", "memory.read:other")
	d.Grant("stranger", "memory.write:other")
	run, stranger := d.Open("worker"), d.Open("stranger")
	capture(t, run, "acme", "one plan", "", "")
	foreign := capture(t, stranger, "other", "another plan", "", "")

	if diff := cmp.Diff([]string{"one plan"}, recalled(t, run, "plan")); diff != "" {
		t.Error(diff)
	}
	refresh := func() { clock.step(time.Minute) } // the budget for denials is full again
	for _, tenants := range [][]string{{"other"}, {"nowhere"}, {"acme", "other"}, {"acme", "nowhere"}, {"beta", "other", "acme"}} {
		for tool, ask := range map[string]func() error{
			"search_knowledge": func() error {
				return second(run.SearchKnowledge(t.Context(), &brokerv1.SearchKnowledgeRequest{RunId: run.ID, Query: "plan", Tenants: tenants}))
			},
			"browse_recent": func() error {
				return second(run.BrowseRecent(t.Context(), &brokerv1.BrowseRecentRequest{RunId: run.ID, Tenants: tenants}))
			},
			"knowledge_stats": func() error {
				return second(run.KnowledgeStats(t.Context(), &brokerv1.KnowledgeStatsRequest{RunId: run.ID, Tenants: tenants}))
			},
		} {
			refresh()
			err := wire.FromError(ask())
			requested := slices.Sorted(slices.Values(tenants))
			if err == nil || err.Reason != wire.TenantOutOfScope || err.Tool != tool || err.Requested != strings.Join(requested, ",") || err.Allowed != "acme,beta" {
				t.Errorf("%s of %q: %+v", tool, tenants, err)
			}
		}
	}
	for _, tenant := range []string{"beta", "other", "nowhere"} { // read only, somebody's, nobody's
		err := wire.FromError(second(run.CaptureKnowledge(t.Context(), &brokerv1.CaptureKnowledgeRequest{RunId: run.ID, Tenant: tenant, Kind: "note", Title: "x"})))
		if err == nil || err.Reason != wire.TenantOutOfScope || err.Requested != tenant || err.Allowed != "acme" {
			t.Errorf("capture in %s: %+v", tenant, err)
		}
	}
	// An entry of somebody's and one of nobody's are refused alike, in the same words.
	var refused []string
	for _, id := range []string{foreign, "aaaaaaaaaaaaaaaa"} {
		for _, ask := range []func() error{
			func() error {
				return second(run.ReadEntry(t.Context(), &brokerv1.ReadEntryRequest{RunId: run.ID, EntryId: id}))
			},
			func() error {
				return second(run.EntryHistory(t.Context(), &brokerv1.EntryHistoryRequest{RunId: run.ID, EntryId: id}))
			},
			func() error {
				return second(run.CaptureKnowledge(t.Context(), &brokerv1.CaptureKnowledgeRequest{RunId: run.ID, Tenant: "acme", Kind: "note", Title: "x", Supersedes: id}))
			},
		} {
			refresh()
			refused = append(refused, fmt.Sprintf("%+v", *wire.FromError(ask())))
		}
	}
	if diff := cmp.Diff(refused[:3], refused[3:]); diff != "" || !strings.Contains(refused[0], "ACCESS_DENIED") {
		t.Errorf("%s%s", diff, refused[0])
	}
	if got, want := recalled(t, stranger, "plan"), []string{"another plan"}; !slices.Equal(got, want) {
		t.Errorf("the stranger finds %q", got)
	}
	// Nothing granted is a plain denial.
	d.AddSubject("nobody")
	none := d.Open("nobody")
	if err := wire.FromError(second(none.SearchKnowledge(t.Context(), &brokerv1.SearchKnowledgeRequest{RunId: none.ID, Query: "plan"}))); err == nil || err.Reason != wire.AccessDenied {
		t.Errorf("%+v", err)
	}
}

// What is no good is refused before anything is looked at, and reveals nothing.
func TestKnowledgeMalformed(t *testing.T) {
	d := daemontest.Start(t)
	d.AddSubject("worker")
	remembering(t, d, "acme")
	run := d.Open("worker") // it has no grants at all
	long := strings.Repeat("x", 50<<10)
	for name, ask := range map[string]func(context.Context) error{
		"an empty query": func(ctx context.Context) error {
			return second(run.SearchKnowledge(ctx, &brokerv1.SearchKnowledgeRequest{RunId: run.ID}))
		},
		"a long query": func(ctx context.Context) error {
			return second(run.SearchKnowledge(ctx, &brokerv1.SearchKnowledgeRequest{RunId: run.ID, Query: long}))
		},
		"a tenant that is no name": func(ctx context.Context) error {
			return second(run.SearchKnowledge(ctx, &brokerv1.SearchKnowledgeRequest{RunId: run.ID, Query: "x", Tenants: []string{"a/b"}}))
		},
		"a kind": func(ctx context.Context) error {
			return second(run.SearchKnowledge(ctx, &brokerv1.SearchKnowledgeRequest{RunId: run.ID, Query: "x", Kinds: []string{"secret"}}))
		},
		"a limit": func(ctx context.Context) error {
			return second(run.BrowseRecent(ctx, &brokerv1.BrowseRecentRequest{RunId: run.ID, Limit: 101}))
		},
		"an id": func(ctx context.Context) error {
			return second(run.ReadEntry(ctx, &brokerv1.ReadEntryRequest{RunId: run.ID, EntryId: "../x"}))
		},
		"a title of two lines": func(ctx context.Context) error {
			return second(run.CaptureKnowledge(ctx, &brokerv1.CaptureKnowledgeRequest{RunId: run.ID, Tenant: "acme", Kind: "note", Title: "a\nb"}))
		},
		"a title that cannot be seen": func(ctx context.Context) error {
			return second(run.CaptureKnowledge(ctx, &brokerv1.CaptureKnowledgeRequest{RunId: run.ID, Tenant: "acme", Kind: "note", Title: "\u200b \ufeff\u0301\u3164", Text: "a"}))
		},
		"a tag that cannot be seen": func(ctx context.Context) error {
			return second(run.CaptureKnowledge(ctx, &brokerv1.CaptureKnowledgeRequest{RunId: run.ID, Tenant: "acme", Kind: "note", Title: "a", Tags: []string{"\u2060"}}))
		},
		"a long text": func(ctx context.Context) error {
			return second(run.CaptureKnowledge(ctx, &brokerv1.CaptureKnowledgeRequest{RunId: run.ID, Tenant: "acme", Kind: "note", Title: "a", Text: long}))
		},
		"a control character": func(ctx context.Context) error {
			return second(run.CaptureKnowledge(ctx, &brokerv1.CaptureKnowledgeRequest{RunId: run.ID, Tenant: "acme", Kind: "note", Title: "a", Text: "a\x1b[2J"}))
		},
	} {
		seq := d.Seq()
		if err := wire.FromError(ask(t.Context())); err == nil || err.Reason != wire.InvalidArgument {
			t.Errorf("%s: %+v", name, err)
		}
		d.Await(seq, func(e verify.Entry) bool { return e.Decision == "deny" && e.ReasonCode == "INVALID_ARGUMENT" })
	}
}

// What is forgotten is in no answer, not in the vault's file, and said to be in the
// backups that were made before.
func TestForgetKnowledge(t *testing.T) {
	d := daemontest.Start(t)
	run := librarian(t, d, "acme")
	first := capture(t, run, "acme", "old marker", "", "")
	gone := capture(t, run, "acme", "a marker", "to be forgotten", first)
	kept := capture(t, run, "acme", "another marker", "", "")
	addRecovery(t, d)
	_, _, err := backupOf(t, d, &operatorv1.BackupRequest{})
	must(t, err)
	file, err := os.ReadFile(place.VaultFile(d.Home))
	must(t, err)
	sealed := map[string][]byte{}
	for _, id := range []string{first, gone, kept} {
		sealed[id] = sealedRow(t, file, id)
	}
	response, err := d.Operator().ForgetKnowledge(t.Context(), &operatorv1.ForgetKnowledgeRequest{EntryIds: []string{gone}, History: true})
	must(t, err)
	want := []string{first, gone}
	slices.Sort(want)
	if !slices.Equal(response.GetEntryIds(), want) || len(response.GetBackups()) != 1 {
		t.Fatalf("%v", response)
	}
	file, err = os.ReadFile(place.VaultFile(d.Home))
	must(t, err)
	for id, row := range sealed {
		if bytes.Contains(file, row) != (id == kept) {
			t.Errorf("%s is in the vault's file: %v", id, id != kept)
		}
	}
	look := func(run *daemontest.Run) {
		t.Helper()
		if got := recalled(t, run, "marker"); !slices.Equal(got, []string{"another marker"}) {
			t.Errorf("found: %q", got)
		}
		read, err := run.ReadEntry(t.Context(), &brokerv1.ReadEntryRequest{RunId: run.ID, EntryId: gone})
		must(t, err)
		if e := read.GetEntry(); !e.GetForgotten() || e.GetTitle() != "" || e.GetText() != "" || e.GetSubject() != "" {
			t.Errorf("what is left: %v", e)
		}
		if got := recalled(t, run, "forgotten"); len(got) != 0 {
			t.Errorf("%q", got)
		}
	}
	look(run)
	if err := wire.FromError(second(d.Operator().ForgetKnowledge(t.Context(), &operatorv1.ForgetKnowledgeRequest{EntryIds: []string{gone}}))); err == nil {
		t.Error("it was forgotten twice")
	}
	d.Restart()
	awaitMemory(t, d)
	look(d.Open("worker"))
}

// A tenant that is removed takes its entries along; another one of its name begins
// with nothing.
func TestRemoveTenantWithEntries(t *testing.T) {
	d := daemontest.Start(t)
	d.AddSubject("worker")
	remembering(t, d, "acme", "beta")
	d.Grant("worker", "memory.read:*")
	d.Grant("worker", "memory.write:*")
	run := d.Open("worker")
	id := capture(t, run, "acme", "a plan", "", "")
	capture(t, run, "beta", "b plan", "", "")
	gone, err := d.Operator().RemoveTenant(t.Context(), &operatorv1.RemoveTenantRequest{Name: "acme"})
	must(t, err)
	if gone.GetEntries() != 1 {
		t.Errorf("%v", gone)
	}
	remembering(t, d, "acme")
	leavesNothing(t, d, run, id)
}

// leavesNothing: of a tenant that was removed and added again nothing is found, and not
// its entry, by a run that is open and by one after a restart. That of another one is.
func leavesNothing(t *testing.T, d *daemontest.Daemon, run *daemontest.Run, id string) {
	t.Helper()
	look := func(run *daemontest.Run) {
		t.Helper()
		if got := recalled(t, run, "plan"); !slices.Equal(got, []string{"b plan"}) {
			t.Errorf("%q", got)
		}
		_, err := run.ReadEntry(t.Context(), &brokerv1.ReadEntryRequest{RunId: run.ID, EntryId: id})
		equal(t, "its entry", daemontest.Reason(err), wire.AccessDenied)
	}
	look(run)
	d.Restart()
	awaitMemory(t, d)
	look(d.Open("worker"))
}

// What was exported is imported once, however often, in its order and with its ids.
func TestExportImport(t *testing.T) {
	d := daemontest.Start(t)
	d.AddSubject("worker")
	remembering(t, d, "acme", "beta")
	d.Grant("worker", "memory.read:*")
	d.Grant("worker", "memory.write:*")
	run := d.Open("worker")
	first := capture(t, run, "acme", "version one", "", "")
	second := capture(t, run, "acme", "version two", "", first)
	capture(t, run, "beta", "plain", "", "")
	lines := exported(t, d, &operatorv1.ExportKnowledgeRequest{History: true})
	if n := strings.Count(lines, "\n"); n != 3 || strings.Index(lines, first) > strings.Index(lines, `"supersedes":"`+first) {
		t.Fatal(lines)
	}
	if current := exported(t, d, &operatorv1.ExportKnowledgeRequest{Tenants: []string{"acme"}}); strings.Count(current, "\n") != 1 || !strings.Contains(current, second) {
		t.Fatal(current)
	}
	if got := imported(t, d, lines, ""); got.GetAdded() != 0 || got.GetExisted() != 3 {
		t.Fatalf("%v", got)
	}

	fresh := daemontest.Start(t)
	fresh.AddSubject("worker")
	remembering(t, fresh, "acme", "beta")
	fresh.Grant("worker", "memory.read:*")
	for i, want := range []uint64{3, 0} {
		if got := imported(t, fresh, lines, ""); got.GetAdded() != want || got.GetLines() != 3 {
			t.Fatalf("import %d: %v", i, got)
		}
	}
	there := fresh.Open("worker")
	if got := recalled(t, there, "version"); !slices.Equal(got, []string{"version two"}) {
		t.Fatalf("%q", got)
	}
	if again := exported(t, fresh, &operatorv1.ExportKnowledgeRequest{History: true}); again != lines {
		t.Errorf("%s\nis not\n%s", again, lines)
	}
	for _, bad := range []string{
		`{"kind":"note"}`, `{"kind":"note","title":"x","tenant":"nowhere"}`, `{"kind":"note","title":"x","more":1}`, `[]`, `{"kind":"note","title":"x"}`,
		`{"kind":"note","title":"x","tenant":"acme","supersedes":"` + first + `"}`,
	} {
		stream, err := fresh.Operator().ImportKnowledge(t.Context())
		must(t, err)
		must(t, stream.Send(&operatorv1.ImportKnowledgeRequest{Lines: []byte(`{"kind":"note","title":"good","tenant":"acme"}` + "\n" + bad + "\n")}))
		if _, err := stream.Recv(); wire.FromError(err).Reason != wire.InvalidArgument || !strings.Contains(err.Error(), "line 2") {
			t.Errorf("%s: %v", bad, err)
		}
	}
	if got := recalled(t, there, "good"); len(got) != 0 {
		t.Errorf("half of an import: %q", got)
	}
}

// A line means the same to everybody who reads it, or is refused, and no refusal
// repeats what it says.
func TestImportLines(t *testing.T) {
	d := daemontest.Start(t)
	remembering(t, d, "acme")
	const good = `"kind":"note","title":"x","tenant":"acme"`
	for _, test := range []struct{ line, why string }{
		{`{` + good + `}}`, "after the object"},
		{`{` + good + `}]`, "after the object"},
		{`{` + good + `} {}`, "after the object"},
		{`{` + good, "no object"},
		{`{` + good + `,}`, "no object"},
		{`[{` + good + `}]`, "no object"},
		{`null`, "no object"},
		{`{` + good + `,"title":"qzx"}`, "title stands twice"},
		{`{` + good + `,"Title":"qzx"}`, "a member that there is not"},
		{`{` + good + `,"qzx":1}`, "a member that there is not: there are created, id, kind, subject, supersedes, tags, tenant, text, title"},
		{"\ufeff{" + good + `,"text":"qzx"}`, "byte order mark"},
		{`{` + good + `,"tags":["qzx",1]}`, "tags is not of its type"},
		{`{` + good + `,"created":"qzx"}`, "created is not of its type"},
		{`{` + good + `,"created":1.5}`, "created is not of its type"},
		{`{` + good + `,"text":"qzx` + "\xff" + `"}`, "not UTF-8"},
		{`{` + good + `,"text":"qzx\ud800"}`, "half of a surrogate pair"},
		{`{` + good + `,"tags":["qzx\udc00"]}`, "half of a surrogate pair"},
		{`{` + good + `,"text":"` + strings.Repeat("qzx", 100<<10) + `"}`, "longer than"},
	} {
		stream, err := d.Operator().ImportKnowledge(t.Context())
		must(t, err)
		must(t, stream.Send(&operatorv1.ImportKnowledgeRequest{Lines: []byte(test.line + "\n")}))
		_, err = stream.Recv()
		if typed := wire.FromError(err); typed == nil || typed.Reason != wire.InvalidArgument || !strings.Contains(err.Error(), test.why) || strings.Contains(err.Error(), "qzx") {
			t.Errorf("%.80s: %v", test.line, err)
		}
	}
	if got := imported(t, d, "{"+good+"}", ""); got.GetAdded() != 1 { // the control
		t.Errorf("%v", got)
	}

	// What turns the direction of writing stands as an escape, and is the same.
	imported(t, d, `{"kind":"note","title":"🚀 \u202eqzx","tenant":"acme","text":"żółw\u2066"}`, "")
	lines := exported(t, d, &operatorv1.ExportKnowledgeRequest{})
	if !strings.Contains(lines, `"🚀 \u202eqzx","text":"żółw\u2066"`) {
		t.Error(lines)
	}
	if got := imported(t, d, lines, ""); got.GetAdded() != 0 || got.GetExisted() != 2 {
		t.Errorf("%v", got)
	}
}

// What was said, replaced, and said again is three versions here and elsewhere, and
// a dry run over several pieces judges as the import does.
func TestImportOfWhatCameBack(t *testing.T) {
	d := daemontest.Start(t)
	run := librarian(t, d, "acme")
	first := capture(t, run, "acme", "yes", "", "")
	capture(t, run, "acme", "yes", "", capture(t, run, "acme", "no", "", first))
	lines := exported(t, d, &operatorv1.ExportKnowledgeRequest{History: true})

	fresh := daemontest.Start(t)
	remembering(t, fresh, "acme")
	for _, dry := range []bool{true, false, true} {
		stream, err := fresh.Operator().ImportKnowledge(t.Context())
		must(t, err)
		var got *operatorv1.ImportKnowledgeResponse
		for line := range strings.Lines("\n" + lines) {
			must(t, stream.Send(&operatorv1.ImportKnowledgeRequest{DryRun: dry, Lines: []byte(line)}))
			got, err = stream.Recv()
			must(t, err)
		}
		if got.GetAdded()+got.GetExisted() != 3 || got.GetLines() != 4 {
			t.Errorf("dry %v: %v", dry, got)
		}
	}
	if again := exported(t, fresh, &operatorv1.ExportKnowledgeRequest{History: true}); again != lines {
		t.Errorf("%s\nis not\n%s", again, lines)
	}
	stream, err := fresh.Operator().ImportKnowledge(t.Context())
	must(t, err)
	must(t, stream.Send(&operatorv1.ImportKnowledgeRequest{Lines: []byte("\n\n" + `{"kind":"note","title":"x","tenant":"nowhere"}`)}))
	if _, err := stream.Recv(); !strings.Contains(fmt.Sprint(err), "line 3") {
		t.Errorf("empty lines count: %v", err)
	}
}

func exported(t *testing.T, d *daemontest.Daemon, req *operatorv1.ExportKnowledgeRequest) string {
	t.Helper()
	stream, err := d.Operator().ExportKnowledge(t.Context(), req)
	must(t, err)
	var lines strings.Builder
	for {
		piece, err := stream.Recv()
		if err != nil {
			return lines.String()
		}
		lines.Write(piece.GetLines())
	}
}

func imported(t *testing.T, d *daemontest.Daemon, lines, tenant string) *operatorv1.ImportKnowledgeResponse {
	t.Helper()
	stream, err := d.Operator().ImportKnowledge(t.Context())
	must(t, err)
	must(t, stream.Send(&operatorv1.ImportKnowledgeRequest{Tenant: tenant, Lines: []byte(lines)}))
	got, err := stream.Recv()
	must(t, err)
	must(t, stream.CloseSend())
	_, _ = stream.Recv()
	return got
}

// Import and export are streams, and ask for an authenticated operator themselves.
func TestKnowledgeStreamsNeedTheOperator(t *testing.T) {
	d := daemontest.Start(t)
	remembering(t, d, "acme")
	_, err := d.Operator().SetOperatorPassphrase(t.Context(), &operatorv1.SetOperatorPassphraseRequest{Passphrase: []byte("a passphrase")})
	must(t, err)
	if n := imported(t, d, `{"kind":"note","title":"x"}`, "acme").GetAdded(); n != 1 || exported(t, d, &operatorv1.ExportKnowledgeRequest{}) == "" {
		t.Fatal("nobody is to be told from others yet")
	}
	_, err = d.Operator().OpenSession(t.Context(), &operatorv1.OpenSessionRequest{Passphrase: []byte("a passphrase")})
	must(t, err)
	_, err = d.Operator().AddSubject(t.Context(), &operatorv1.AddSubjectRequest{Name: "high", MinTier: "bound"})
	must(t, err)
	if n := imported(t, d, `{"kind":"note","title":"y"}`, "acme").GetAdded(); n != 1 {
		t.Fatal("an operator who can be told from others")
	}
	_, err = d.Operator().CloseSession(t.Context(), &operatorv1.CloseSessionRequest{})
	must(t, err)
	in, err := d.Operator().ImportKnowledge(t.Context())
	must(t, err)
	must(t, in.Send(&operatorv1.ImportKnowledgeRequest{Tenant: "acme", Lines: []byte(`{"kind":"note","title":"z"}`)}))
	if _, err := in.Recv(); err == nil {
		t.Error("anybody imports")
	}
	out, err := d.Operator().ExportKnowledge(t.Context(), &operatorv1.ExportKnowledgeRequest{})
	must(t, err)
	if got, err := out.Recv(); err == nil {
		t.Errorf("anybody exports: %s", got.GetLines())
	}
}

// A tenant that a document no longer declares takes its entries along as one does that
// is removed by hand; a later one of its name begins with nothing.
func TestPruneTenantWithEntries(t *testing.T) {
	d := daemontest.Start(t)
	const before, after = "version: 1\nowner: laptop\ntenants: [acme, beta]\n", "version: 1\nowner: laptop\ntenants: [beta]\n"
	apply(t, d, before)
	d.AddSubject("worker")
	d.Grant("worker", "memory.read:*")
	d.Grant("worker", "memory.write:*")
	awaitMemory(t, d)
	run := d.Open("worker")
	id := capture(t, run, "acme", "a plan", "", "")
	capture(t, run, "beta", "b plan", "", "")
	addRecovery(t, d)
	_, _, err := backupOf(t, d, &operatorv1.BackupRequest{})
	must(t, err)
	file, err := os.ReadFile(place.VaultFile(d.Home))
	must(t, err)
	row := sealedRow(t, file, id)
	for _, dry := range []bool{true, false} {
		got, err := d.Operator().Apply(t.Context(), &operatorv1.ApplyRequest{Document: []byte(after), Prune: true, DryRun: dry})
		must(t, err)
		if c := got.GetChanges(); len(c) != 1 || c[0].GetVerb() != "remove" || c[0].GetDetail() != "with 1 entries of the memory" {
			t.Errorf("%v", c)
		}
		if w := got.GetWarnings(); (len(w) == 1 && strings.HasPrefix(w[0], "the entries of tenant acme are still in backup ")) == dry {
			t.Errorf("dry %v: %q", dry, w)
		}
	}
	eventually(t, "the vault is purged", func() bool {
		file, err := os.ReadFile(place.VaultFile(d.Home))
		must(t, err)
		return !bytes.Contains(file, row)
	})
	remembering(t, d, "acme")
	leavesNothing(t, d, run, id)
}
