package daemon_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"subjectbroker/daemon/daemontest"
	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// librarians is a document with a profile for each way to narrow the memory.
const librarians = `version: 1
owner: laptop
tenants: [acme, beta]
subjects: {worker: {}}
profiles:
  all: {subject: worker, tools: [search_knowledge, browse_recent, knowledge_stats, read_entry, history, capture_knowledge]}
  reader: {subject: worker, tools: [search_knowledge, browse_recent, knowledge_stats, read_entry, history]}
  searcher: {subject: worker, tools: [search_knowledge]}
  writer: {subject: worker, tools: [capture_knowledge]}
  narrow: {subject: worker, tools: [search_knowledge, browse_recent, knowledge_stats, read_entry, history, capture_knowledge], caps: ["memory.read:acme", "memory.write:beta"]}
  deaf: {subject: worker, tools: [search_knowledge, capture_knowledge], caps: ["memory.write:acme"]}
  other: {subject: worker, tools: [read_resource]}
grants:
  - {subject: worker, capability: "memory.read:*"}
  - {subject: worker, capability: "memory.write:*"}
`

// memoryTools are all tools of the memory, in the order of lists.
var memoryTools = []string{"browse_recent", "capture_knowledge", "history", "knowledge_stats", "read_entry", "search_knowledge"}

// memoryLists are the tools of the memory that a run is told of.
func memoryLists(t *testing.T, run *daemontest.Run) []string {
	t.Helper()
	got, err := run.ListServers(t.Context(), &brokerv1.ListServersRequest{RunId: run.ID})
	must(t, err)
	return append([]string{}, got.GetKnowledge()...)
}

// reportsOfMemory is what a run is told of what it may do with the memory.
func reportsOfMemory(t *testing.T, run *daemontest.Run) string {
	t.Helper()
	report, err := run.Report(t.Context(), &brokerv1.ReportRequest{RunId: run.ID})
	must(t, err)
	for _, sentence := range slices.Concat(report.GetCovered(), report.GetNotProvided()) {
		if _, behind, ok := strings.Cut(sentence, "Of the shared memory this run may "); ok {
			said, _, _ := strings.Cut(behind, "; a request")
			return said
		}
	}
	return ""
}

// What a profile leaves out of the memory is neither listed nor done nor reported, by
// tools and by caps, for reading and for writing.
func TestMemoryUnderAProfile(t *testing.T) {
	clock := newClock()
	d := daemontest.StartWith(t, daemontest.Options{Now: clock.Now})
	apply(t, d, librarians)
	awaitMemory(t, d)
	free := d.Open("worker")
	ids := map[string]string{"acme": capture(t, free, "acme", "a marker", "", ""), "beta": capture(t, free, "beta", "a marker", "", "")}
	reading := []string{"browse_recent", "history", "knowledge_stats", "read_entry", "search_knowledge"}
	for profile, want := range map[string]struct {
		tools       []string
		read, write []string
		reports     string
	}{
		"":         {memoryTools, []string{"acme", "beta"}, []string{"acme", "beta"}, "read acme, beta; add to acme, beta"},
		"all":      {memoryTools, []string{"acme", "beta"}, []string{"acme", "beta"}, "read acme, beta; add to acme, beta"},
		"reader":   {reading, []string{"acme", "beta"}, nil, "read acme, beta"},
		"searcher": {[]string{"search_knowledge"}, []string{"acme", "beta"}, nil, "read acme, beta"},
		"writer":   {[]string{"capture_knowledge"}, nil, []string{"acme", "beta"}, "add to acme, beta"},
		"narrow":   {memoryTools, []string{"acme"}, []string{"beta"}, "read acme; add to beta"},
		"deaf":     {[]string{"capture_knowledge"}, nil, []string{"acme"}, "add to acme"},
		"other":    {[]string{}, nil, nil, ""},
	} {
		t.Run(profile, func(t *testing.T) {
			run := openUnder(t, d, "worker", profile)
			if diff := cmp.Diff(want.tools, memoryLists(t, run)); diff != "" {
				t.Errorf("the list: %s", diff)
			}
			equal(t, "the report", reportsOfMemory(t, run), want.reports)
			for _, tool := range sixTools {
				for tenant, id := range ids {
					clock.step(time.Minute)
					seq := d.Seq()
					_, err := tool.ask(t.Context(), run, tenant, id)
					mine := want.read
					if tool.name == "capture_knowledge" {
						mine = want.write
					}
					granted := wire.Allowed
					switch {
					case !slices.Contains(want.tools, tool.name) && !(profile == "deaf" && tool.name == "search_knowledge"):
						granted = wire.AccessDenied
					case !slices.Contains(mine, tenant) && tool.byEntry:
						granted = wire.AccessDenied
					case !slices.Contains(mine, tenant):
						granted = wire.TenantOutOfScope
					}
					equal(t, tool.name+" of "+tenant, daemontest.Reason(err), granted)
					if !slices.Contains(want.tools, tool.name) && profile != "deaf" {
						if e := d.Since(seq); len(e) != 1 || e[0].Cause != "TOOL_NOT_LISTED" || e[0].Tool != tool.name {
							t.Errorf("%s: %+v", tool.name, e)
						}
					}
				}
			}
			if len(want.read) > 0 && slices.Contains(want.tools, "knowledge_stats") {
				clock.step(time.Minute)
				stats, err := run.KnowledgeStats(t.Context(), &brokerv1.KnowledgeStatsRequest{RunId: run.ID})
				must(t, err)
				for _, one := range stats.GetTenants() {
					equal(t, "it may add to "+one.GetTenant(), one.GetWritable(), slices.Contains(want.write, one.GetTenant()))
				}
			}
		})
	}
}

// A grant of a better tier than the run has grants nothing of the memory, to a shim and
// to a key; one that a person would have to approve, or that counts uses, is not made.
func TestMemoryGrantConditions(t *testing.T) {
	clock := newClock()
	d := daemontest.StartWith(t, daemontest.Options{Now: clock.Now})
	d.Authenticate()
	d.AddSubject("worker")
	remembering(t, d, "acme", "beta")
	for _, action := range []string{"memory.read", "memory.write"} {
		for _, on := range []string{":acme", ":*"} {
			for name, condition := range map[string]daemontest.Condition{"approval": daemontest.Gated, "uses": daemontest.Uses(3)} {
				request := &operatorv1.CreateGrantsRequest{Subject: "worker", Capabilities: []string{action + on}}
				condition(request)
				_, err := d.Operator().CreateGrants(t.Context(), request)
				if refused := wire.FromError(err); refused == nil || refused.Reason != wire.InvalidArgument || !strings.Contains(refused.Message, action+on) {
					t.Errorf("%s with %s: %v", action+on, name, err)
				}
			}
		}
	}
	d.Grant("worker", "memory.read:acme")
	for _, capability := range []string{"memory.read:beta", "memory.write:acme"} {
		_, err := d.Operator().CreateGrants(t.Context(), &operatorv1.CreateGrantsRequest{Subject: "worker", Capabilities: []string{capability}, Tier: "bound"})
		must(t, err)
	}
	_, key := mint(t, d, "worker", "", 0, "acme", "beta")
	for name, run := range map[string]*daemontest.Run{"shim": d.Open("worker"), "key": openKeyed(t, d, d.Connect(), key)} {
		equal(t, name+": the report", reportsOfMemory(t, run), "read acme")
		if got := memoryLists(t, run); len(got) != 5 || slices.Contains(got, "capture_knowledge") {
			t.Errorf("%s: %v", name, got)
		}
		for _, tool := range sixTools[:3] {
			clock.step(time.Minute)
			_, err := tool.ask(t.Context(), run, "acme,beta", "")
			if e := wire.FromError(err); e == nil || e.Reason != wire.TenantOutOfScope || e.Requested != "acme,beta" || e.Allowed != "acme" {
				t.Errorf("%s: %s: %v", name, tool.name, err)
			}
		}
		_, err := sixTools[5].ask(t.Context(), run, "acme", "")
		equal(t, name+": capture", fmt.Sprint(daemontest.Reason(err)), "TENANT_OUT_OF_SCOPE")
	}
}
