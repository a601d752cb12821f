package daemon_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// Of a server that does not start or cannot be reached an agent hears just that, and
// not that the broker cannot be reached; the operator hears why.
func TestAgentHearsOfItsServer(t *testing.T) {
	for _, c := range []struct{ end, cause string }{
		{"exited", "the server exited with code 7: as it was told"},
		{"unreachable", "the server cannot be reached: as it was told"},
		{"protocol", "the server does not speak MCP: as it was told"},
	} {
		t.Run(c.end, func(t *testing.T) {
			d := hosting(t)
			d.AddSubject("worker")
			addServer(t, d, "hub", &operatorv1.Server{}, "worker")
			trust(t, d, "hub")
			change(t, d, "hub", "stub", "end="+c.end)
			stream := hostedRelay(t, d.Open("worker"), "hub")
			for range 2 { // the second waits for the next start
				got := stream.call("echo", `{}`).verdict
				equal(t, "the agent hears", fmt.Sprintf("%d %s: %s", got.GetCode(), got.GetReasonCode(), got.GetMessage()),
					"-32000 SERVER_UNAVAILABLE: the server of this tool could not be started or reached. Ask the person who runs this agent.")
			}
			equal(t, "the operator sees", process(t, d, "hub", "worker").GetCause(), c.cause)
			start, call := last(d, "server.start"), last(d, "call")
			equal(t, "the entries", start.Cause+" "+start.ReasonCode+", "+call.Decision+" "+call.Cause+" "+call.ReasonCode,
				"SERVER_FAILED SERVER_UNAVAILABLE, error SERVER_FAILED SERVER_UNAVAILABLE")
		})
	}
}

// What the operator could not start is shown with its cause, until it starts.
func TestOperatorSeesWhyNothingStarted(t *testing.T) {
	d := hosting(t)
	d.AddSubject("worker")
	addServer(t, d, "hub", &operatorv1.Server{Command: []string{"end=exited"}}, "worker")
	shown := func() string {
		var all []string
		for _, p := range getServer(t, d, "hub", false).GetServer().GetProcesses() {
			all = append(all, fmt.Sprintf("%q %s: %s", p.GetSubject(), p.GetState(), p.GetCause()))
		}
		return strings.Join(all, ", ")
	}
	equal(t, "before", shown(), "")
	if _, err := d.Operator().TrustServer(t.Context(), &operatorv1.TrustServerRequest{Name: "hub"}); err == nil {
		t.Fatal("it is trusted")
	}
	equal(t, "after a start that failed", shown(), `"" waiting: the server exited with code 7: as it was told`)
	change(t, d, "hub", "stub", "deaf")
	trust(t, d, "hub")
	equal(t, "after one that did not", shown(), "")
	// The one that was looked at is still on its way out: it is no subject's.
	restarted, err := d.Operator().RestartServer(t.Context(), &operatorv1.RestartServerRequest{Name: "hub"})
	must(t, err)
	equal(t, "processes of subjects that were ended", restarted.GetProcesses(), 0)
}

// A secret without content keeps a server from being started for the operator as
// for a subject, and the operator hears what to do.
func TestTrustBeforeTheSecretIsPut(t *testing.T) {
	d := hosting(t)
	d.AddSubject("worker")
	_, err := d.Operator().Apply(t.Context(), &operatorv1.ApplyRequest{Document: []byte("version: 1\nresources: {token: {kind: secret}}\n")})
	must(t, err)
	addServer(t, d, "hub", &operatorv1.Server{Env: map[string]string{"TOKEN": "${secret:token}"}}, "worker")
	_, err = d.Operator().TrustServer(t.Context(), &operatorv1.TrustServerRequest{Name: "hub"})
	got := wire.FromError(err)
	equal(t, "the operator hears", fmt.Sprint(err != nil)+" "+got.Message+" ("+got.Hint+")", "true hub was not started: the secret token has no content (sbctl secret put token)")
	used, start := last(d, "acquire"), last(d, "server.start")
	equal(t, "the entries", used.Decision+" "+used.Cause+" "+used.ReasonCode+", "+start.Decision+" "+start.Cause, "deny NO_CONTENT ACCESS_DENIED, error SECRET_MISSING")
	equal(t, "shown", process(t, d, "hub", "").GetCause(), "the secret token has no content")
	d.PutKind("token", "secret", "now there is something")
	equal(t, "afterwards", strings.Join(trust(t, d, "hub"), ", "), "echo new")
}

// Nobody refused a call that nobody waits for any more when its server has started.
func TestCallLeftWhileItsServerStarts(t *testing.T) {
	d := hosting(t)
	d.Authenticate()
	d.AddSubject("worker")
	addServer(t, d, "hub", &operatorv1.Server{}, "worker")
	trust(t, d, "hub")
	started := filepath.Join(t.TempDir(), "started")
	change(t, d, "hub", "stub", "await="+started)
	stream := hostedRelay(t, d.Open("worker"), "hub")
	id, done := stream.begin("echo", `{"n":1}`)
	eventually(t, "it starts", func() bool { return process(t, d, "hub", "worker").GetState() == "starting" })
	must(t, stream.stream.Send(&brokerv1.RelayRequest{Message: &brokerv1.RelayRequest_Cancel{Cancel: &brokerv1.RelayCancel{Id: id}}}))
	if stream.wait(done).verdict.GetForward() {
		t.Error("it was forwarded")
	}
	left := last(d, "call")
	equal(t, "the entry", fmt.Sprintf("%q %q %s %s", left.Decision, left.ReasonCode, left.Cause, left.Capability), `"" "" CANCELLED call:hub/echo`)
	denials, err := d.Operator().ListDenials(t.Context(), &operatorv1.ListDenialsRequest{})
	must(t, err)
	equal(t, "denials", len(denials.GetGroups()), 0)
	runs, err := d.Operator().ListRuns(t.Context(), &operatorv1.ListRunsRequest{})
	must(t, err)
	equal(t, "denials of the run", runs.GetRuns()[0].GetDenials(), 0)
	write(t, started, "")
	equal(t, "the next", stream.call("echo", `{"n":2}`).String(), `OK {"n":2}`)
}
