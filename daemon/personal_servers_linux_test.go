package daemon_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"subjectbroker/daemon/daemontest"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// What is personal is given to no server that another operator declares: not on that
// operator's word, and not under the right of a subject that its own operator gave it.
func TestPersonalSecretsOfServers(t *testing.T) {
	d, second := twoOperatorsWith(t, daemontest.Options{HostProgram: self(t)})
	ctx, other := t.Context(), second()
	d.AddSubject("worker")
	_, err := d.Operator().PutSecret(ctx, &operatorv1.PutSecretRequest{Name: "diary", Kind: "secret", Content: []byte("marker-of-a-diary"), Domain: "personal"})
	must(t, err)
	d.Grant("worker", "use:diary")
	note := filepath.Join(t.TempDir(), "note")
	// add declares a server of a client's, which is given the secret.
	add := func(client operatorv1.OperatorServiceClient, name string) *operatorv1.AddServerResponse {
		t.Helper()
		added, err := client.AddServer(ctx, &operatorv1.AddServerRequest{Server: &operatorv1.Server{
			Name: name, Command: []string{"stub", "note=" + note}, Env: map[string]string{"TOKEN": "${secret:diary}"},
		}, Subjects: []string{"worker"}})
		must(t, err)
		return added
	}
	trusting := func(client operatorv1.OperatorServiceClient, name string) wire.Reason {
		t.Helper()
		_, err := client.TrustServer(ctx, &operatorv1.TrustServerRequest{Name: name})
		return daemontest.Reason(err)
	}

	equal(t, "what the other's server misses", strings.Join(add(other, "theirs").GetMissing(), ","), "worker use:diary")
	for what, client := range map[string]operatorv1.OperatorServiceClient{"the other's word": other, "its own operator's word": d.Operator()} {
		equal(t, "the other's server on "+what, trusting(client, "theirs"), wire.InvalidArgument)
	}
	equal(t, "starts of it", len(starts(t, note)), 0)

	equal(t, "what its operator's server misses", strings.Join(add(d.Operator(), "own").GetMissing(), ","), "")
	equal(t, "its operator's server on the other's word", trusting(other, "own"), wire.InvalidArgument)
	equal(t, "starts of it", len(starts(t, note)), 0)
	equal(t, "on its operator's word", trusting(d.Operator(), "own"), wire.Allowed)
	equal(t, "starts of it", len(starts(t, note)), 1)
	stream := hostedRelay(t, d.Open("worker"), "own")
	equal(t, "a call", stream.call("echo", `{}`).String(), "OK {}")

	// Nor is the other told its name.
	shown := func(client operatorv1.OperatorServiceClient) string {
		one, err := client.GetServer(ctx, &operatorv1.GetServerRequest{Name: "own"})
		must(t, err)
		all, err := client.ListServers(ctx, &operatorv1.ListServersRequest{})
		must(t, err)
		_, err = client.TrustServer(ctx, &operatorv1.TrustServerRequest{Name: "theirs"}) // it says why it does not start
		return one.String() + all.String() + fmt.Sprint(err)
	}
	if got := shown(d.Operator()); strings.Count(got, "${secret:diary}") != 3 {
		t.Errorf("its own operator sees: %s", got)
	}
	if got := shown(other); strings.Contains(got, "diary") || strings.Count(got, "${secret:[hidden]}") != 3 || !strings.Contains(got, "the secret [hidden]") {
		t.Errorf("the other sees: %s", got)
	}
}
