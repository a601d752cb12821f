package daemon_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"subjectbroker/audit/verify"
	"subjectbroker/daemon/daemontest"
	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// P40: whatever else a request says, the subject is the connection's.
func TestClaimsElsewhereAreIgnored(t *testing.T) {
	d := daemontest.Start(t)
	d.Put("diary", "mine")
	d.AddSubject("owner", "worker")
	d.Grant("owner", "read:diary")
	run, owner := d.Open("worker"), d.Open("owner")

	ctx := metadata.AppendToOutgoingContext(t.Context(),
		"subject", "owner", "x-subject-id", "owner", "authorization", "Bearer owner", "run-id", owner.ID, "sb-subject-bin", "owner")
	_, err := run.Acquire(ctx, &brokerv1.AcquireRequest{RunId: run.ID, ResourceId: "diary"})
	equal(t, "with claims in metadata", daemontest.Reason(err), wire.AccessDenied)
	newest := d.Entries("acquire")
	equal(t, "the entry's subject", newest[len(newest)-1].SubjectID, "worker")

	_, err = run.Acquire(ctx, &brokerv1.AcquireRequest{RunId: owner.ID, ResourceId: "diary"})
	equal(t, "with the handle of another connection", daemontest.Reason(err), wire.RunEnded)
	refused := d.Entries("authz")
	equal(t, "entries about it", len(refused), 1)
	equal(t, "its cause", refused[0].Cause, "NO_RUN")
	equal(t, "the owner still reads", owner.Refused("diary"), wire.Allowed)

	// Unknown fields are no way in either.
	request := &brokerv1.ListResourcesRequest{RunId: run.ID}
	raw, err := proto.Marshal(daemontest.Claim("owner"))
	must(t, err)
	request.ProtoReflect().SetUnknown(raw)
	list, err := run.ListResources(t.Context(), request)
	must(t, err)
	equal(t, "names listed", len(list.GetResources()), 0)
}

// P41: a denial is the same bytes whatever its cause.
func TestDenialsAreIdentical(t *testing.T) {
	clock := newClock()
	d := daemontest.StartWith(t, daemontest.Options{Now: clock.Now})
	d.AddSubject("worker", "disabled")
	for _, name := range []string{"forbidden", "denied", "expired", "exhausted", "removed", "revoked", "tiered"} {
		d.Put(name, "content of "+name)
	}
	d.PutKind("wild-secret", "secret", "never by a pattern")
	d.Grant("worker", "read:denied")
	d.Grant("worker", "read:denied", daemontest.Denying)
	d.Grant("worker", "read:expired", daemontest.For(time.Second))
	d.Grant("worker", "read:exhausted", daemontest.Uses(1))
	d.Grant("worker", "read:removed")
	d.Grant("worker", "read:tiered", func(r *operatorv1.CreateGrantsRequest) { r.Tier = "bound" })
	d.Grant("worker", "read:wild-*")
	d.Revoke(d.Grant("worker", "read:revoked"))
	d.Remove("removed")
	run := d.Open("worker")
	equal(t, "the one use", run.Refused("exhausted"), wire.Allowed)
	clock.step(2 * time.Second)

	causes := map[string]string{
		"unknown": "UNKNOWN_RESOURCE", "forbidden": "NO_GRANT", "denied": "EXPLICIT_DENY", "expired": "GRANT_EXPIRED",
		"exhausted": "GRANT_EXHAUSTED", "removed": "UNKNOWN_RESOURCE", "revoked": "NO_GRANT", "tiered": "TIER_TOO_LOW", "wild-secret": "NO_GRANT",
	}
	var first []byte
	for name, cause := range causes {
		clock.step(time.Minute) // the budget for denials is full again
		var trailer, header metadata.MD
		_, err := run.Acquire(t.Context(), &brokerv1.AcquireRequest{RunId: run.ID, ResourceId: name}, grpc.Trailer(&trailer), grpc.Header(&header))
		raw := statusBytes(t, err)
		if first == nil {
			first = raw
		}
		if !slices.Equal(raw, first) {
			t.Errorf("%s: the status differs: %q, want %q", name, raw, first)
		}
		delete(trailer, "grpc-status-details-bin") // compared above
		delete(trailer, "content-type")
		if len(header) != 0 || len(trailer) != 0 {
			t.Errorf("%s: metadata %v %v", name, header, trailer)
		}
		equal(t, name+": cause in the log", last(d, "acquire").Cause, cause)
		if decision, reason := run.Explained(name); decision != "deny" || reason != wire.AccessDenied {
			t.Errorf("%s: explained as %s, %s", name, decision, reason)
		}
	}

	// A subject that is unknown and one that is disabled look the same.
	clock.step(time.Minute)
	d.SetEnabled("disabled", false)
	_, unknown := d.Broker().OpenRun(t.Context(), daemontest.Claim("nobody"))
	_, disabled := d.Broker().OpenRun(t.Context(), daemontest.Claim("disabled"))
	profile := daemontest.Claim("worker")
	profile.GetSubject().Profile = "coder"
	_, profiled := d.Broker().OpenRun(t.Context(), profile)
	for name, err := range map[string]error{"unknown": unknown, "disabled": disabled, "with a profile": profiled} {
		if raw := statusBytes(t, err); !slices.Equal(raw, first) {
			t.Errorf("a run of a subject %s: the status is %q, want %q", name, raw, first)
		}
	}
}

// P42: one subject sees nothing of what another may read.
func TestOthersAreInvisible(t *testing.T) {
	d := daemontest.Start(t)
	d.Put("shared", "for both")
	d.Put("hidden-plan", "for one")
	d.AddSubject("one", "two")
	d.Grant("one", "read:*")
	d.Grant("two", "read:shared")
	one, two := d.Open("one"), d.Open("two")
	watching := two.Follow()

	if diff := cmp.Diff([]string{"hidden-plan", "shared"}, one.List()); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"shared"}, two.List()); diff != "" {
		t.Error(diff)
	}
	report, err := two.Report(t.Context(), &brokerv1.ReportRequest{RunId: two.ID})
	must(t, err)
	_, err = two.Acquire(t.Context(), &brokerv1.AcquireRequest{RunId: two.ID, ResourceId: "hidden-plan"})
	for what, text := range map[string]string{"report": report.String(), "error": string(statusBytes(t, err))} {
		if strings.Contains(text, "hidden") || strings.Contains(text, "one") && what == "error" {
			t.Errorf("the %s mentions it: %s", what, text)
		}
	}
	// Changes that do not concern it are no event: the first event is the one about the shared thing.
	d.Put("hidden-plan", "changed")
	d.Put("hidden-too", "new")
	d.Remove("hidden-too")
	d.Put("shared", "changed")
	equal(t, "the first event", watching.Next(), "shared updated")
}

// P44: a new thing with an old name inherits nothing but patterns.
func TestNamesInheritNothing(t *testing.T) {
	d := daemontest.Start(t)
	d.Put("pl-an", "old")
	d.Put("other", "other")
	d.AddSubject("worker")
	d.Grant("worker", "read:pl-an")
	d.Grant("worker", "read:other", daemontest.Uses(1))
	run := d.Open("worker")
	equal(t, "at first", run.Refused("pl-an"), wire.Allowed)
	d.Remove("pl-an")
	equal(t, "removed", run.Refused("pl-an"), wire.AccessDenied)
	d.Put("pl-an", "new")
	equal(t, "a new resource of the old name", run.Refused("pl-an"), wire.AccessDenied)
	resource, err := d.Operator().GetResource(t.Context(), &operatorv1.GetResourceRequest{Name: "pl-an"})
	must(t, err)
	equal(t, "its versions", len(resource.GetVersions()), 1)

	d.Grant("worker", "read:pl-an")
	d.Remove("pl-an")
	d.Grant("worker", "read:pl-*")
	equal(t, "a pattern for a name that is gone", run.Refused("pl-an"), wire.AccessDenied)
	d.Put("pl-an", "newer")
	equal(t, "a pattern covers a new resource", run.Refused("pl-an"), wire.Allowed)

	equal(t, "the one use", run.Refused("other"), wire.Allowed)
	d.RemoveSubject("worker")
	equal(t, "the run of a subject that was removed", run.Refused("other"), wire.RunEnded)
	d.AddSubject("worker")
	equal(t, "the old run of a new subject", run.Refused("other"), wire.RunEnded)
	again := d.Open("worker")
	equal(t, "a new subject of the old name", again.Refused("other"), wire.AccessDenied)
	equal(t, "patterns of the old one", again.Refused("pl-an"), wire.AccessDenied)
	d.Grant("worker", "read:other", daemontest.Uses(1))
	equal(t, "uses of the old one", again.Refused("other"), wire.Allowed)
}

// P45: a run ends in these ways, and in no other.
func TestRunsEnd(t *testing.T) {
	for name, end := range map[string]struct {
		by    func(d *daemontest.Daemon, run *daemontest.Run)
		cause string
		event string
	}{
		"with CloseRun":            {func(_ *daemontest.Daemon, run *daemontest.Run) { run.Close() }, "CLOSED", "ended RUN_ENDED"},
		"with its connection":      {func(_ *daemontest.Daemon, run *daemontest.Run) { _ = run.Conn.Close() }, "CONNECTION_CLOSED", ""},
		"by the operator's word":   {endRun(func(id string) string { return id }), "ENDED_BY_OPERATOR", "ended RUN_ENDED"},
		"by a prefix of its id":    {endRun(func(id string) string { return id[:4] }), "ENDED_BY_OPERATOR", "ended RUN_ENDED"},
		"with its subject":         {func(d *daemontest.Daemon, _ *daemontest.Run) { d.RemoveSubject("worker") }, "SUBJECT_CHANGED", "ended RUN_ENDED"},
		"when it is disabled":      {func(d *daemontest.Daemon, _ *daemontest.Run) { d.SetEnabled("worker", false) }, "SUBJECT_CHANGED", "ended RUN_ENDED"},
		"when the tier is too low": {func(d *daemontest.Daemon, _ *daemontest.Run) { setTier(d, "worker", "bound") }, "SUBJECT_CHANGED", "ended RUN_ENDED"},
		"when the vault is locked": {func(d *daemontest.Daemon, _ *daemontest.Run) { d.Lock() }, "LOCKED", "ended VAULT_LOCKED"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := daemontest.Start(t)
			d.Put("readme", "hello")
			d.AddSubject("worker", "bystander")
			d.Grant("worker", "read:readme")
			bystander := d.Open("bystander")
			run := d.Open("worker")
			equal(t, "while it is open", run.Refused("readme"), wire.Allowed)
			watching := run.Follow()
			seq := d.Seq()

			end.by(d, run)
			ended := d.Await(seq, func(e verify.Entry) bool { return e.Kind == "run.end" && e.RunID == run.ID })
			equal(t, "the cause", ended.Cause, end.cause)
			if end.event != "" {
				event := watching.Next()
				for event == "list changed" { // of one that may read nothing any more
					event = watching.Next()
				}
				equal(t, "what its watcher is told", event, end.event)
				if reason := run.Refused("readme"); reason != wire.RunEnded && reason != wire.VaultLocked {
					t.Errorf("afterwards: %s", reason)
				}
			}
			if end.cause != "LOCKED" {
				equal(t, "another run", bystander.Refused("readme"), wire.AccessDenied)
			}
		})
	}
}

// A run goes on when other runs of its connection or of its subject end.
func TestRunsEndAlone(t *testing.T) {
	d := daemontest.Start(t)
	d.Put("readme", "hello")
	d.AddSubject("worker")
	d.Grant("worker", "read:readme")
	run := d.Open("worker")
	sameConn := d.OpenOn(run.Conn, "worker")
	elsewhere := d.Open("worker")
	run.Close()
	equal(t, "the closed run", run.Refused("readme"), wire.RunEnded)
	equal(t, "another run of the connection", sameConn.Refused("readme"), wire.Allowed)
	must(t, run.Conn.Close())
	equal(t, "another connection", elsewhere.Refused("readme"), wire.Allowed)
}

// Whatever takes a right away: when it was answered, nothing is released any
// more, also of what was under way.
func TestNothingIsReleasedAfterwards(t *testing.T) {
	for name, take := range map[string]func(d *daemontest.Daemon, run *daemontest.Run){
		"revoked":          func(d *daemontest.Daemon, _ *daemontest.Run) { d.Revoke(d.Grant("worker", "read:readme")) },
		"denied":           func(d *daemontest.Daemon, _ *daemontest.Run) { d.Grant("worker", "read:readme", daemontest.Denying) },
		"disabled":         func(d *daemontest.Daemon, _ *daemontest.Run) { d.SetEnabled("worker", false) },
		"subject removed":  func(d *daemontest.Daemon, _ *daemontest.Run) { d.RemoveSubject("worker") },
		"resource removed": func(d *daemontest.Daemon, _ *daemontest.Run) { d.Remove("readme") },
		"tier raised":      func(d *daemontest.Daemon, _ *daemontest.Run) { setTier(d, "worker", "bound") },
		"locked":           func(d *daemontest.Daemon, _ *daemontest.Run) { d.Lock() },
		"run ended":        endRun(func(id string) string { return id }),
	} {
		t.Run(name, func(t *testing.T) {
			d := daemontest.Start(t)
			d.Put("readme", "hello")
			d.AddSubject("worker")
			d.Grant("worker", "read:readme")
			run := d.Open("worker")
			busy, stop := make(chan struct{}), make(chan struct{})
			var reading sync.WaitGroup
			var once sync.Once
			for range 4 {
				reading.Go(func() {
					for {
						select {
						case <-stop:
							return
						default:
							run.Read("readme")
							once.Do(func() { close(busy) })
						}
					}
				})
			}
			<-busy
			before := d.Seq()
			take(d, run)
			close(stop)
			reading.Wait()
			// In the log the right ends with the newest intent, or with the run.
			taken := d.Since(before, "op.intent", "run.end")
			if len(taken) == 0 {
				t.Fatal("nothing was taken away")
			}
			for _, e := range d.Since(taken[len(taken)-1].Seq, "acquire") {
				if e.Decision == "allow" {
					t.Errorf("entry %d releases after entry %d took it away", e.Seq, taken[len(taken)-1].Seq)
				}
			}
		})
	}
}

func endRun(name func(id string) string) func(*daemontest.Daemon, *daemontest.Run) {
	return func(d *daemontest.Daemon, run *daemontest.Run) {
		_, _ = d.Operator().EndRun(context.Background(), &operatorv1.EndRunRequest{RunId: name(run.ID)})
	}
}

func setTier(d *daemontest.Daemon, subject, tier string) {
	d.Authenticate()
	_, _ = d.Operator().SetSubject(context.Background(), &operatorv1.SetSubjectRequest{Name: subject, MinTier: tier})
}

// last is the newest entry of a kind.
func last(d *daemontest.Daemon, kind string) verify.Entry {
	entries := d.Entries(kind)
	return entries[len(entries)-1]
}

// statusBytes is everything that an error's status says.
func statusBytes(t *testing.T, err error) []byte {
	t.Helper()
	st, ok := status.FromError(err)
	if !ok || err == nil {
		t.Fatalf("%v is no status", err)
	}
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(st.Proto())
	must(t, err)
	return raw
}
