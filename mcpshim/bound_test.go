package mcpshim

import (
	"strings"
	"testing"

	"subjectbroker/proto/wire"
	"subjectbroker/worker/workertest"
)

// Inside a launch the configuration does not decide who speaks: what the client
// is told then is what the daemon said.
func TestBoundToAnotherThanClaimed(t *testing.T) {
	b := workertest.Start(t)
	b.Put("plan", "text", []byte("the plan"))
	b.Allow("worker", "plan")
	b.AddProfile("worker", "coder")
	b.Launch("worker", "coder")
	c := start(t, b, "somebody")
	if greeting := c.ask(initialize); strings.Contains(greeting, "somebody") || !strings.Contains(greeting, `"instructions":"`) {
		t.Errorf("the claim is in the first answer: %s", greeting)
	}
	c.send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	if discovered := c.ask(`{"jsonrpc":"2.0","id":"d","method":"server/discover","params":{` + meta + `}}`); strings.Contains(discovered, "somebody") || !strings.Contains(discovered, `"instructions":"`) {
		t.Errorf("the claim is in what the stateless era discovers: %s", discovered)
	}
	listed := c.ask(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
	if n := strings.Count(listed, `bound to subject \"worker\"`); n != 4 {
		t.Errorf("%d of 4 tools name the subject: %s", n, listed)
	}
	if strings.Contains(listed, "somebody") {
		t.Errorf("the tools name the claim: %s", listed)
	}
	if got, _ := c.call("read_resource", `{"resourceId":"plan"}`); !strings.Contains(got, `"content":"the plan"`) {
		t.Errorf("read: %s", got)
	}
	report, _ := c.call("capability_report", `{}`)
	if !strings.Contains(report, `"subjectId":"worker"`) || !strings.Contains(report, `"profileId":"coder"`) {
		t.Errorf("report: %s", report)
	}
	for _, asked := range b.Asked() {
		if !strings.HasPrefix(asked, "worker ") {
			t.Errorf("asked as somebody else: %s", asked)
		}
	}
}

// Before a run was opened there is only the claim, and no report of anything.
func TestClaimedBeforeBound(t *testing.T) {
	b := workertest.New(t) // nobody listens
	c := start(t, b, "somebody")
	c.greet()
	if listed := c.ask(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`); strings.Count(listed, `bound to subject \"somebody\"`) != 4 {
		t.Errorf("tools: %s", listed)
	}
	report, isError := c.call("capability_report", `{}`)
	if !isError || strings.Contains(report, "tier") || strings.Contains(report, "profileId") || !strings.Contains(report, `"covered":[]`) {
		t.Errorf("report: %s", report)
	}
}

// A profile that is not the subject's, and a tool that a profile leaves out, are
// results of a call; nothing asks the agent, and nothing is an error of the
// protocol.
func TestProfileRefusesInResults(t *testing.T) {
	b := workertest.Start(t)
	b.Put("plan", "text", []byte("the plan"))
	b.Allow("worker", "plan")
	b.AddProfile("other", "coder")
	c := start(t, b, "worker", func(config *Config) { config.Worker.Profile = "coder" })
	c.greet()
	for tool, want := range map[string]string{
		"list_resources": `{"resources":[],"reasonCode":"ACCESS_DENIED"}`,
		"read_resource":  `{"decision":"deny","reasonCode":"ACCESS_DENIED","resourceId":"plan"}`,
	} {
		if got, isError := c.call(tool, `{"resourceId":"plan"}`); got != want || !isError {
			t.Errorf("%s: %s (isError %v), want %s", tool, got, isError, want)
		}
	}
	if got := c.ask(`{"jsonrpc":"2.0","id":1,"method":"resources/list"}`); !strings.Contains(got, `"resources":[]`) {
		t.Errorf("resources/list: %s", got)
	}

	open := start(t, b, "worker")
	open.greet()
	if got, isError := open.call("list_resources", `{}`); isError {
		t.Fatalf("the control is refused: %s", got)
	}
	b.Refuse(wire.AccessDenied) // as the daemon does when the profile does not list the tool
	if got, isError := open.call("list_resources", `{}`); got != `{"resources":[],"reasonCode":"ACCESS_DENIED"}` || !isError {
		t.Errorf("list_resources: %s (isError %v)", got, isError)
	}
}
