package daemon_test

import (
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

// coders is a document with a profile for each test of a ceiling.
const coders = `version: 1
owner: laptop
resources:
  docs.plan: {kind: text}
  notes: {kind: text}
subjects: {worker: {}, other: {}}
tools:
  github/create_issue: {requires: ["use:github.token", "reach:api.github.com"]}
  host/fetch: {requires: ["read:docs.*", "reach:docs.example.com"]}
profiles:
  all: {subject: worker, tools: [read_resource, list_resources, github/create_issue]}
  reader: {subject: worker, tools: [read_resource, list_resources], caps: ["read:docs.*"]}
  lister: {subject: worker, tools: [list_resources]}
  blind: {subject: worker, tools: [read_resource]}
  fetcher: {subject: worker, tools: [host/fetch]}
  nothing: {subject: worker, tools: []}
  theirs: {subject: other, tools: [read_resource]}
grants:
  - {subject: worker, capability: "read:*"}
  - {subject: worker, capability: "reach:*"}
  - {subject: worker, capability: "call:*"}
  - {subject: other, capability: "read:*"}
`

// withCoders is a daemon in which coders is in force, with contents.
func withCoders(t *testing.T, options ...daemontest.Options) *daemontest.Daemon {
	t.Helper()
	d := daemontest.StartWith(t, append(options, daemontest.Options{})[0])
	apply(t, d, coders)
	d.Put("docs.plan", "the plan")
	d.Put("notes", "the notes")
	return d
}

// under asks for a run of subject under a profile.
func under(t *testing.T, d *daemontest.Daemon, subject, profile string) (*daemontest.Run, error) {
	t.Helper()
	claim := daemontest.Claim(subject)
	claim.GetSubject().Profile = profile
	conn := d.Connect()
	broker := brokerv1.NewBrokerServiceClient(conn)
	opened, err := broker.OpenRun(t.Context(), claim)
	if err != nil {
		return nil, err
	}
	equal(t, "the profile that is answered", opened.GetProfile(), profile)
	return d.RunOf(broker, conn, opened.GetRunId()), nil
}

// openUnder is under for a run that must open.
func openUnder(t *testing.T, d *daemontest.Daemon, subject, profile string) *daemontest.Run {
	t.Helper()
	run, err := under(t, d, subject, profile)
	must(t, err)
	return run
}

// A run reaches what the tools of its profile require, narrowed by the caps, and
// of that what was granted. Every way to ask says the same.
func TestCeilings(t *testing.T) {
	clock := newClock()
	d := withCoders(t, daemontest.Options{Now: clock.Now})
	for _, tc := range []struct {
		profile, capability string
		want                string // the cause; empty: allowed
	}{
		{"", "read:notes", ""},
		{"", "reach:anywhere", ""},
		{"all", "read:docs.plan", ""},
		{"all", "read:notes", ""},
		{"all", "reach:api.github.com", ""},
		{"all", "reach:docs.example.com", "TOOL_NOT_LISTED"},
		{"all", "use:github.token", "UNKNOWN_RESOURCE"},
		{"all", "use:notes", "TOOL_NOT_LISTED"},
		{"reader", "read:docs.plan", ""},
		{"reader", "read:notes", "CAPS_NARROWED"},
		{"reader", "reach:api.github.com", "TOOL_NOT_LISTED"},
		{"lister", "read:notes", "TOOL_NOT_LISTED"},
		{"blind", "read:notes", ""},
		{"nothing", "read:notes", "TOOL_NOT_LISTED"},
		{"nothing", "reach:anywhere", "TOOL_NOT_LISTED"},
		{"fetcher", "reach:docs.example.com", ""},
		{"fetcher", "reach:anywhere", "TOOL_NOT_LISTED"},
		{"fetcher", "read:docs.plan", "TOOL_NOT_LISTED"}, // it has no tool of ours that reads
		{"fetcher", "read:docs.absent", "TOOL_NOT_LISTED"},
		{"all", "read:absent", "UNKNOWN_RESOURCE"},
	} {
		t.Run(tc.profile+" "+tc.capability, func(t *testing.T) {
			clock.step(time.Minute) // the budget for denials is full again
			explained, err := d.Operator().Explain(t.Context(), &operatorv1.ExplainRequest{Subject: "worker", Capability: tc.capability, Profile: tc.profile})
			must(t, err)
			equal(t, "the operator's explain", explained.GetCause(), tc.want)
			if steps := explained.GetSteps(); tc.profile != "" && !slices.ContainsFunc(steps, func(s *operatorv1.TraceStep) bool { return s.GetCheck() == "ceiling" }) {
				t.Errorf("no step of the trace is about the ceiling: %v", steps)
			}
			run := openUnder(t, d, "worker", tc.profile)
			action, object, _ := strings.Cut(tc.capability, ":")
			want, reason := "allow", wire.Allowed
			if tc.want != "" {
				want, reason = "deny", wire.AccessDenied
			}
			got, err := run.Explain(t.Context(), &brokerv1.ExplainRequest{RunId: run.ID, ResourceId: object, Action: action})
			must(t, err)
			equal(t, "explain", got.GetDecision(), want)
			equal(t, "its cause", last(d, "explain").Cause, tc.want)
			equal(t, "its profile", last(d, "explain").ProfileID, tc.profile)
			if action == "read" {
				equal(t, "acquire", run.Refused(object), reason)
				equal(t, "its cause", last(d, "acquire").Cause, tc.want)
			} else {
				equal(t, "can", can(t, run, tc.capability), want+" "+string(reason))
			}
			if action == "read" && want == "allow" {
				equal(t, "can", can(t, run, tc.capability), "allow ALLOWED")
			}
		})
	}
	// A host's own tool needs the capability, not our tool for reading.
	equal(t, "a host's tool", can(t, openUnder(t, d, "worker", "fetcher"), "read:docs.plan"), "allow ALLOWED")
	equal(t, "outside of what it requires", can(t, openUnder(t, d, "worker", "fetcher"), "read:notes"), "deny ACCESS_DENIED")
}

// What a profile leaves out is neither listed nor told of.
func TestListsUnderAProfile(t *testing.T) {
	d := withCoders(t)
	for profile, want := range map[string][]string{
		"": {"docs.plan", "notes"}, "all": {"docs.plan", "notes"}, "reader": {"docs.plan"}, "lister": {},
	} {
		if diff := cmp.Diff(want, openUnder(t, d, "worker", profile).List()); diff != "" {
			t.Errorf("profile %q: %s", profile, diff)
		}
	}
	for _, profile := range []string{"blind", "nothing", "fetcher"} {
		run := openUnder(t, d, "worker", profile)
		_, err := run.ListResources(t.Context(), &brokerv1.ListResourcesRequest{RunId: run.ID})
		equal(t, "listing under "+profile, daemontest.Reason(err), wire.AccessDenied)
		e := last(d, "authz")
		equal(t, "the entry", e.RunID+" "+e.Decision+" "+e.Cause+" "+e.Tool+" "+e.ProfileID, run.ID+" deny TOOL_NOT_LISTED list_resources "+profile)
	}
	reader, control := openUnder(t, d, "worker", "reader").Follow(), openUnder(t, d, "worker", "all").Follow()
	d.Put("notes", "other notes")
	d.Put("docs.plan", "another plan")
	equal(t, "what is told first without caps", control.Next(), "notes updated")
	equal(t, "what is told first with caps", reader.Next(), "docs.plan updated")
	blind := openUnder(t, d, "worker", "blind").Follow()
	d.Put("docs.more", "more")
	d.Put("docs.plan", "yet another plan")
	equal(t, "what is told without a tool that lists", blind.Next(), "docs.plan updated")
}

// No run opens under what is not the subject's, and all such refusals look alike.
func TestProfilesOfOthers(t *testing.T) {
	d := withCoders(t)
	d.AddSubject("disabled")
	d.SetEnabled("disabled", false)
	for _, tc := range []struct{ subject, profile, cause string }{
		{"worker", "theirs", "UNKNOWN_PROFILE"},
		{"worker", "absent", "UNKNOWN_PROFILE"},
		{"other", "all", "UNKNOWN_PROFILE"},
		{"nobody", "all", "UNKNOWN_SUBJECT"},
		{"disabled", "all", "SUBJECT_DISABLED"},
	} {
		_, err := under(t, d, tc.subject, tc.profile)
		got := wire.FromError(err)
		equal(t, tc.subject+" under "+tc.profile, got.Message+" "+string(got.Reason)+got.Cause, "access denied ACCESS_DENIED")
		equal(t, "the cause", last(d, "run.open").Cause, tc.cause)
		equal(t, "the profile", last(d, "run.open").ProfileID, tc.profile)
		explained, err := d.Operator().Explain(t.Context(), &operatorv1.ExplainRequest{Subject: tc.subject, Capability: "read:notes", Profile: tc.profile})
		must(t, err)
		equal(t, "the operator's explain of "+tc.subject+" under "+tc.profile, explained.GetCause(), tc.cause)
	}
	for _, profile := range []string{"a b", "..", strings.Repeat("a", 129)} {
		claim := daemontest.Claim("worker")
		claim.GetSubject().Profile = profile
		_, err := d.Broker().OpenRun(t.Context(), claim)
		equal(t, profile, daemontest.Reason(err), wire.InvalidArgument)
	}
	if raw := string(d.RawLog()); strings.Contains(raw, "a b") || strings.Contains(raw, strings.Repeat("a", 129)) {
		t.Error("the log repeats what is no name")
	}
	run := openUnder(t, d, "worker", "reader")
	runs, err := d.Operator().ListRuns(t.Context(), &operatorv1.ListRunsRequest{})
	must(t, err)
	equal(t, "the profile of the run", runs.GetRuns()[0].GetProfile(), "reader")
	report, err := run.Report(t.Context(), &brokerv1.ReportRequest{RunId: run.ID})
	must(t, err)
	equal(t, "the profile in the report", report.GetProfile(), "reader")
	equal(t, "how many there are", d.Status().GetProfiles(), 7)
}

// A ceiling is fixed when the run opens: what changes later counts for later
// runs. Grants are judged live.
func TestCeilingsStay(t *testing.T) {
	d := withCoders(t)
	before := openUnder(t, d, "worker", "reader")
	apply(t, d, strings.ReplaceAll(coders, `caps: ["read:docs.*"]`, `caps: ["read:notes"]`))
	after := openUnder(t, d, "worker", "reader")
	for name, want := range map[string][2]wire.Reason{"docs.plan": {wire.Allowed, wire.AccessDenied}, "notes": {wire.AccessDenied, wire.Allowed}} {
		equal(t, name+" before", before.Refused(name), want[0])
		equal(t, name+" after", after.Refused(name), want[1])
	}
	widened := openUnder(t, d, "worker", "all")
	apply(t, d, strings.ReplaceAll(coders, `"reach:api.github.com"`, `"reach:uploads.github.com"`))
	equal(t, "what the tool required", can(t, widened, "reach:api.github.com"), "allow ALLOWED")
	equal(t, "what the tool requires now", can(t, widened, "reach:uploads.github.com"), "deny ACCESS_DENIED")
	now := openUnder(t, d, "worker", "all")
	equal(t, "what the tool requires now, later", can(t, now, "reach:uploads.github.com"), "allow ALLOWED")
	equal(t, "what the tool required, later", can(t, now, "reach:api.github.com"), "deny ACCESS_DENIED")
	d.Grant("worker", "read:docs.*", daemontest.Denying)
	equal(t, "after a denial", before.Refused("docs.plan"), wire.AccessDenied)
}

// A profile that is removed ends its runs, and no others; one of the same name
// gives nothing back.
func TestRemovedProfilesEndRuns(t *testing.T) {
	d := withCoders(t)
	gone, stays := openUnder(t, d, "worker", "reader"), openUnder(t, d, "worker", "all")
	watching := gone.Follow()
	without := strings.ReplaceAll(coders, `  reader: {subject: worker, tools: [read_resource, list_resources], caps: ["read:docs.*"]}`+"\n", "")
	done := applyTo(t, d, &operatorv1.ApplyRequest{Document: []byte(without), Prune: true})
	if diff := cmp.Diff([]string{"remove profile reader"}, summary(done)); diff != "" {
		t.Error(diff)
	}
	equal(t, "the stream", watching.Next(), "ended RUN_ENDED")
	equal(t, "the run", gone.Refused("docs.plan"), wire.RunEnded)
	equal(t, "why it ended", last(d, "run.end").Cause, "PROFILE_REMOVED")
	equal(t, "the other run", stays.Refused("docs.plan"), wire.Allowed)
	e := last(d, "subject.profile_remove")
	equal(t, "the entry", e.SubjectID+" "+e.ProfileID, "worker reader")
	_, err := under(t, d, "worker", "reader")
	equal(t, "another run", daemontest.Reason(err), wire.AccessDenied)
	apply(t, d, coders)
	equal(t, "the run, when there is one of the name again", gone.Refused("docs.plan"), wire.RunEnded)
	equal(t, "a new one", openUnder(t, d, "worker", "reader").Refused("docs.plan"), wire.Allowed)

	// A subject takes its profiles with it.
	d.RemoveSubject("worker")
	equal(t, "profiles after the subject", d.Status().GetProfiles(), 1)
	d.AddSubject("worker")
	_, err = under(t, d, "worker", "all")
	equal(t, "a subject of the same name", daemontest.Reason(err), wire.AccessDenied)
}

// Profiles and tools are sealed rows: a restart changes nothing, an export says
// all of it, and applying that changes nothing.
func TestProfilesStay(t *testing.T) {
	d := withCoders(t)
	var kinds []string
	for _, e := range d.Entries("subject.profile", "operator.tool") {
		kinds = append(kinds, e.Kind+" "+e.SubjectID+e.Tool+" "+e.ProfileID)
	}
	slices.Sort(kinds)
	if diff := cmp.Diff([]string{
		"operator.tool github/create_issue ", "operator.tool host/fetch ",
		"subject.profile other theirs", "subject.profile worker all", "subject.profile worker blind", "subject.profile worker fetcher",
		"subject.profile worker lister", "subject.profile worker nothing", "subject.profile worker reader",
	}, kinds); diff != "" {
		t.Error(diff)
	}
	first := export(t, d, &operatorv1.ExportRequest{})
	d.Restart()
	equal(t, "exported after a restart", export(t, d, &operatorv1.ExportRequest{}), first)
	equal(t, "under caps", openUnder(t, d, "worker", "reader").Refused("notes"), wire.AccessDenied)
	d.Lock()
	equal(t, "profiles of a locked vault", d.Status().GetProfiles(), 0)
	d.Unlock()
	equal(t, "under caps after a lock", openUnder(t, d, "worker", "reader").Refused("notes"), wire.AccessDenied)
	equal(t, "applied again", len(applyTo(t, d, &operatorv1.ApplyRequest{Document: []byte(coders)}).GetChanges()), 0)
	equal(t, "the export applied", len(applyTo(t, d, &operatorv1.ApplyRequest{Document: []byte(first)}).GetChanges()), 0)

	other := daemontest.Start(t)
	applyTo(t, other, &operatorv1.ApplyRequest{Document: []byte(first)})
	equal(t, "exported elsewhere", export(t, other, &operatorv1.ExportRequest{}), first)

	// A tool stays as long as a profile lists it, and goes with it.
	_, err := d.Operator().Apply(t.Context(), &operatorv1.ApplyRequest{Prune: true, Document: []byte("version: 1\nowner: laptop\nsubjects: {worker: {}, other: {}}\nprofiles: {all: {subject: worker, tools: [github/create_issue]}}\n")})
	equal(t, "a tool that is listed", daemontest.Reason(err), wire.InvalidArgument)
	equal(t, "after the refusal", export(t, d, &operatorv1.ExportRequest{}), first)
	applyTo(t, d, &operatorv1.ApplyRequest{Prune: true, Document: []byte("version: 1\nowner: laptop\nsubjects: {worker: {}}\n")})
	equal(t, "what is left", export(t, d, &operatorv1.ExportRequest{}), "version: 1\nsubjects:\n  worker: {minTier: cooperative}\n")
	d.Restart()
	equal(t, "profiles after it all", d.Status().GetProfiles(), 0)
}
