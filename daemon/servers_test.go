package daemon_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"subjectbroker/daemon/daemontest"
	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// trust trusts everything that a server offers now.
func trust(t *testing.T, d *daemontest.Daemon, name string, tools ...string) []string {
	t.Helper()
	done, err := d.Operator().TrustServer(t.Context(), &operatorv1.TrustServerRequest{Name: name, Tools: tools})
	must(t, err)
	return states(done.GetTools())
}

func states(tools []*operatorv1.ServerToolState) []string {
	all := []string{}
	for _, tool := range tools {
		all = append(all, strings.TrimSpace(tool.GetName()+" "+tool.GetState()))
	}
	return all
}

func getServer(t *testing.T, d *daemontest.Daemon, name string, refresh bool) *operatorv1.GetServerResponse {
	t.Helper()
	got, err := d.Operator().GetServer(t.Context(), &operatorv1.GetServerRequest{Name: name, Refresh: refresh})
	must(t, err)
	return got
}

// What is wrong with a server is said in words that repeat no value, and nothing is
// added.
func TestAddServerRefuses(t *testing.T) {
	d := daemontest.Start(t)
	d.AddSubject("worker")
	command := []string{"prog"}
	for _, c := range []struct {
		name, want string
		req        *operatorv1.AddServerRequest
	}{
		{"nothing", "server is named", &operatorv1.AddServerRequest{}},
		{"a bad name", "server is named", &operatorv1.AddServerRequest{Server: &operatorv1.Server{Name: "Hub", Command: command}}},
		{"neither command nor url", "command or url", &operatorv1.AddServerRequest{Server: &operatorv1.Server{Name: "hub"}}},
		{"plain http", "https", &operatorv1.AddServerRequest{Server: &operatorv1.Server{Name: "hub", Url: "http://example.com/mcp"}}},
		{"a secret in the command", "secret does not go into command", &operatorv1.AddServerRequest{Server: &operatorv1.Server{Name: "hub", Command: []string{"prog", "${secret:marker}"}}}},
		{"another expansion", "${secret:NAME}", &operatorv1.AddServerRequest{Server: &operatorv1.Server{Name: "hub", Command: command, Env: map[string]string{"A": "${marker}"}}}},
		{"a variable of ours", "SB_", &operatorv1.AddServerRequest{Server: &operatorv1.Server{Name: "hub", Command: command, Env: map[string]string{"SB_HOME": "marker"}}}},
		{"an unknown subject", "no subject", &operatorv1.AddServerRequest{Server: &operatorv1.Server{Name: "hub", Command: command}, Subjects: []string{"nobody"}}},
		{"a subject twice", "twice", &operatorv1.AddServerRequest{Server: &operatorv1.Server{Name: "hub", Command: command}, Subjects: []string{"worker", "worker"}}},
		{"observed for ever", "days", &operatorv1.AddServerRequest{Server: &operatorv1.Server{Name: "hub", Command: command}, ObserveSeconds: 1 << 62}},
	} {
		_, err := d.Operator().AddServer(t.Context(), c.req)
		message := wire.FromError(err).Message
		if daemontest.Reason(err) != wire.InvalidArgument || !strings.Contains(message, c.want) || strings.Contains(message, "marker") {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	list, err := d.Operator().ListServers(t.Context(), &operatorv1.ListServersRequest{})
	must(t, err)
	equal(t, "servers", len(list.GetServers()), 0)
	for _, call := range []func() error{
		func() error {
			_, err := d.Operator().GetServer(t.Context(), &operatorv1.GetServerRequest{Name: "hub"})
			return err
		},
		func() error {
			_, err := d.Operator().TrustServer(t.Context(), &operatorv1.TrustServerRequest{Name: "hub"})
			return err
		},
		func() error {
			_, err := d.Operator().RestartServer(t.Context(), &operatorv1.RestartServerRequest{Name: "hub"})
			return err
		},
		func() error {
			_, err := d.Operator().RemoveServer(t.Context(), &operatorv1.RemoveServerRequest{Name: "hub"})
			return err
		},
	} {
		if err := call(); daemontest.Reason(err) != wire.InvalidArgument || !strings.Contains(err.Error(), "no server is named hub") {
			t.Errorf("of one that is not there: %v", err)
		}
	}
}

// A server with everything that names it, over a restart, and what its removal takes
// along. A later one of its name inherits nothing.
func TestServerComesAndGoes(t *testing.T) {
	d := daemontest.Start(t)
	d.AddSubject("worker", "other")
	server := &operatorv1.Server{
		Name: "hub", Command: []string{"prog", "--flag"}, Cwd: "/", Env: map[string]string{"TOKEN": "${secret:token}"},
		Created: 1, Owner: "ignored", Processes: []*operatorv1.ServerProcess{{}},
	}
	added, err := d.Operator().AddServer(t.Context(), &operatorv1.AddServerRequest{Server: server, Subjects: []string{"worker"}, ObserveSeconds: 3600})
	must(t, err)
	equal(t, "the grant", added.GetGrants()[0].GetSubject()+" "+added.GetGrants()[0].GetCapability(), "worker call:hub/*")
	if diff := cmp.Diff([]string{"worker use:token"}, added.GetMissing()); diff != "" {
		t.Errorf("missing: %s", diff)
	}
	_, err = d.Operator().AddServer(t.Context(), &operatorv1.AddServerRequest{Server: server})
	if err == nil || !strings.Contains(err.Error(), "exists already") {
		t.Errorf("the same again: %v", err)
	}
	for _, capability := range []string{"call:hub/echo", "call:hubs/echo", "call:*"} {
		d.Grant("worker", capability)
	}
	d.Grant("other", "call:hub/echo")
	applyRules(t, d, "version: 1\npolicies: [{subject: worker, server: hub, rules: {limits: {max_tool_calls: 3}}}]\n")
	d.Restart()
	got := getServer(t, d, "hub", false).GetServer()
	equal(t, "its command", strings.Join(got.GetCommand(), " "), "prog --flag")
	equal(t, "who may call it", strings.Join(got.GetSubjects(), " "), "other worker")
	equal(t, "its secret is", got.GetDisclosed(), "reachable")
	if got.GetOwner() != "" || got.GetCreated() < 1000 || len(got.GetProcesses()) != 0 || got.GetObserveUntil()-got.GetCreated() != 3600_000 {
		t.Errorf("what is not the caller's to say: %v", got)
	}
	removed, err := d.Operator().RemoveServer(t.Context(), &operatorv1.RemoveServerRequest{Name: "hub"})
	must(t, err)
	equal(t, "grants that went", removed.GetRevoked(), 3)
	equal(t, "policies that went", removed.GetPolicies(), 1)
	_, err = d.Operator().AddServer(t.Context(), &operatorv1.AddServerRequest{Server: server})
	must(t, err)
	for _, g := range d.Grants("worker") {
		if strings.HasPrefix(g.GetCapability(), "call:hub/") && g.GetState() != "revoked" {
			t.Errorf("the next one inherits %s", g.GetCapability())
		}
	}
	equal(t, "patterns stay", strings.Join(getServer(t, d, "hub", false).GetServer().GetSubjects(), " "), "worker")
	policies, err := d.Operator().ListPolicies(t.Context(), &operatorv1.ListPoliciesRequest{Server: "hub"})
	must(t, err)
	equal(t, "its policies", len(policies.GetPolicies()), 0)
}

// listing says on a wrapped stream what its server offers.
func listing(t *testing.T, r *relay, instructions string, tools ...string) {
	t.Helper()
	listed := &brokerv1.RelayListed{Instructions: instructions}
	for _, tool := range tools {
		name, description, _ := strings.Cut(tool, "=")
		listed.Tools = append(listed.Tools, &brokerv1.ServerTool{Name: name, Object: []byte(`{"description":"` + description + `","name":"` + name + `"}`)})
	}
	must(t, r.send(&brokerv1.RelayRequest{Message: &brokerv1.RelayRequest_Listed{Listed: listed}}))
}

// A wrapped server that nobody trusted is judged by policy alone. Once something of
// it was, what is new or changed is withheld until it is trusted too, and the
// operator is told of it once.
func TestTrustOfAWrappedServer(t *testing.T) {
	d := daemontest.Start(t)
	d.AddSubject("worker")
	d.Grant("worker", "call:box/*")
	run := d.Open("worker")
	_, err := d.Operator().TrustServer(t.Context(), &operatorv1.TrustServerRequest{Name: "box"})
	if err == nil {
		t.Error("a server that nobody has seen is trusted")
	}
	stream := relayOf(t, run, "box")
	listing(t, stream, "be kind", "echo=1", "add=1")
	eventually(t, "it was seen", func() bool { return len(seen(t, d, "box")) == 3 })
	equal(t, "before any trust", said(stream.call("add", `{}`)), "forward")
	equal(t, "entries about it", len(d.Entries("server.changed")), 0)

	dry, err := d.Operator().TrustServer(t.Context(), &operatorv1.TrustServerRequest{Name: "box", DryRun: true})
	must(t, err)
	if diff := cmp.Diff([]string{"new", "add new", "echo new"}, states(dry.GetTools())); diff != "" {
		t.Errorf("a dry run: %s", diff)
	}
	equal(t, "and nothing was trusted", getServer(t, d, "box", false).GetServer().GetTrustedTools(), 0)
	_, err = d.Operator().TrustServer(t.Context(), &operatorv1.TrustServerRequest{Name: "box", Shown: strings.Repeat("0", 64)})
	if daemontest.Reason(err) != wire.InvalidArgument {
		t.Errorf("trusting what was not shown: %v", err)
	}
	_, err = d.Operator().TrustServer(t.Context(), &operatorv1.TrustServerRequest{Name: "box", Tools: []string{"nothing"}})
	if err == nil || !strings.Contains(err.Error(), "no tool named nothing") {
		t.Errorf("trusting a tool that it does not have: %v", err)
	}
	done, err := d.Operator().TrustServer(t.Context(), &operatorv1.TrustServerRequest{Name: "box", Tools: []string{"echo"}, Shown: dry.GetShown()})
	must(t, err)
	equal(t, "what was trusted", strings.Join(states(done.GetTools()), ", "), "echo new")
	entry := last(d, "server.trust")
	equal(t, "the entry", entry.Server+" "+entry.Tool, "box echo")
	equal(t, "the trusted one", said(stream.call("echo", `{}`)), "forward")
	equal(t, "the pin in the log", last(d, "call").Pin, entry.Pin)
	equal(t, "one that was not trusted", said(stream.call("add", `{}`)), "0 ACCESS_DENIED")
	equal(t, "everything", strings.Join(trust(t, d, "box"), ", "), "new, add new")
	equal(t, "then", said(stream.call("add", `{}`)), "forward")

	d.Restart() // pins are rows; what was seen is not
	run = d.Open("worker")
	stream = relayOf(t, run, "box")
	listing(t, stream, "be kind", "echo=1", "add=2", "more=1")
	eventually(t, "it was seen again", func() bool { return len(seen(t, d, "box")) == 4 })
	if diff := cmp.Diff([]string{"trusted", "add changed", "echo trusted", "more new"}, seen(t, d, "box")); diff != "" {
		t.Errorf("after it changed: %s", diff)
	}
	for tool, want := range map[string]string{"echo": "forward", "add": "0 ACCESS_DENIED", "more": "0 ACCESS_DENIED", "none": "0 ACCESS_DENIED"} {
		equal(t, tool, said(stream.call(tool, `{}`)), want)
	}
	eventually(t, "the operator is told", func() bool { return len(d.Entries("server.changed")) == 1 })
	changed := last(d, "server.changed")
	equal(t, "what was told", changed.Server+" "+changed.SubjectID, "box worker")
	for range 3 {
		listing(t, stream, "be kind", "echo=1", "add=2", "more=1")
	}
	equal(t, "the same again", said(stream.call("echo", `{}`)), "forward")
	equal(t, "is not told again", len(d.Entries("server.changed")), 1)
	status := d.Status()
	equal(t, "status", strings.Join(status.GetUntrustedServers(), " "), "box")

	listing(t, stream, "", "add=2")
	eventually(t, "what is gone was seen", func() bool { return seen(t, d, "box")[0] == "gone" })
	equal(t, "what is gone", said(stream.call("echo", `{}`)), "0 ACCESS_DENIED")
	equal(t, "trusting that", strings.Join(trust(t, d, "box"), ", "), "gone, add changed, echo gone")
	if diff := cmp.Diff([]string{"add trusted"}, seen(t, d, "box")); diff != "" {
		t.Errorf("what is left: %s", diff)
	}

	// Nothing of it is left when it is removed: not even for one of its name that
	// offers the same.
	_, err = d.Operator().RemoveServer(t.Context(), &operatorv1.RemoveServerRequest{Name: "box"})
	must(t, err)
	d.Grant("worker", "call:box/*")
	stream = relayOf(t, run, "box")
	listing(t, stream, "", "add=2", "echo=1")
	eventually(t, "the next one was seen", func() bool { return len(seen(t, d, "box")) == 2 })
	equal(t, "nothing of it is trusted", getServer(t, d, "box", false).GetServer().GetTrustedTools(), 0)
}

// seen are the states of what is known of a server; nothing while it is not known.
func seen(t *testing.T, d *daemontest.Daemon, name string) []string {
	t.Helper()
	got, err := d.Operator().GetServer(t.Context(), &operatorv1.GetServerRequest{Name: name})
	if err != nil {
		return []string{""}
	}
	if len(got.GetTools()) == 0 {
		return []string{""}
	}
	return states(got.GetTools())
}

// Names that agents cannot be shown are withheld, whatever is trusted.
func TestNamesThatAreWithheld(t *testing.T) {
	d := daemontest.Start(t)
	d.AddSubject("worker")
	d.Grant("worker", "call:box/*")
	stream := relayOf(t, d.Open("worker"), "box")
	fits, long := strings.Repeat("a", 60), strings.Repeat("b", 61)
	listing(t, stream, "", fits, long, "with a blank", "ok")
	eventually(t, "it was seen", func() bool { return len(seen(t, d, "box")) == 4 })
	if diff := cmp.Diff([]string{fits + " new", long + " withheld", "ok new", "with a blank withheld"}, seen(t, d, "box")); diff != "" {
		t.Errorf("shown: %s", diff)
	}
	equal(t, "trusted", len(trust(t, d, "box")), 2)
	_, err := d.Operator().TrustServer(t.Context(), &operatorv1.TrustServerRequest{Name: "box", Tools: []string{long}})
	if err == nil || !strings.Contains(err.Error(), "too long") {
		t.Errorf("trusting one: %v", err)
	}
	equal(t, "one that fits", said(stream.call(fits, `{}`)), "forward")
	equal(t, "one that does not", said(stream.call(long, `{}`)), "0 ACCESS_DENIED")
	equal(t, "one with a blank", said(stream.call("with a blank", `{}`)), "0 ACCESS_DENIED")
}

// What an agent says of a server that it wraps does not count for one that the
// daemon runs under the same name.
func TestWrappedDoesNotSpeakForHosted(t *testing.T) {
	d := daemontest.Start(t)
	d.AddSubject("worker")
	_, err := d.Operator().AddServer(t.Context(), &operatorv1.AddServerRequest{Server: &operatorv1.Server{Name: "hub", Command: []string{"prog"}}, Subjects: []string{"worker"}})
	must(t, err)
	d.Grant("worker", "call:box/*")
	run := d.Open("worker")
	equal(t, "a call under a name that is hosted", said(relayOf(t, run, "hub").call("echo", "{}")), "0 ACCESS_DENIED")
	// What was seen and trusted of one that was wrapped before it was added is not.
	stream := relayOf(t, run, "box")
	listing(t, stream, "", "echo=1")
	eventually(t, "it was seen", func() bool { return seen(t, d, "box")[0] == "echo new" })
	trust(t, d, "box")
	equal(t, "it is trusted", seen(t, d, "box")[0], "echo trusted")
	_, err = d.Operator().AddServer(t.Context(), &operatorv1.AddServerRequest{Server: &operatorv1.Server{Name: "box", Command: []string{"prog"}}})
	must(t, err)
	_ = stream.send(&brokerv1.RelayRequest{Message: &brokerv1.RelayRequest_Listed{Listed: &brokerv1.RelayListed{
		Tools: []*brokerv1.ServerTool{{Name: "echo", Object: []byte(`{"name":"echo","description":"2"}`)}},
	}}})
	equal(t, "a call of it then", said(stream.call("echo", "{}")), "0 ACCESS_DENIED") // what is said of it comes before
	for _, tool := range getServer(t, d, "box", false).GetTools() {
		t.Errorf("the word of an agent is shown as the server's: %v", tool)
	}
}
