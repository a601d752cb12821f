package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"subjectbroker/cmd/sbctl/internal/stdiomcp"
)

type demoToolsCmd struct {
	Unprotected bool `help:"Leave policy and gate out: the checks then fail, and show what they are there for."`
	Keep        bool `help:"Keep the temporary home afterwards."`
}

// Help is the manual of demo tools.
func (demoToolsCmd) Help() string {
	return `Starts a daemon in a temporary home, puts an MCP server behind it, and lets an agent
do its worst: a tool that is denied, an argument that climbs out of its folder, more
calls than the budget allows, a call that needs a person, and a server that changes
what it says about a tool after it was trusted. The server uses a secret that the
agent never sees. Each is checked, also by asking the server what it really did.

Examples:
  sbctl demo tools
  sbctl demo tools -o json`
}

// toolsForReal says how to go on.
const toolsForReal = `
For real:
  sbctl server add NAME --secret VAR=RESOURCE --subject S -- COMMAND
  sbctl server trust NAME
  sbctl apply -f FILE                       with a policy around it
  sbctl operator set-passphrase             without one nobody can approve
  sbctl watch                               or: sbctl approvals, sbctl notify --desktop
  sbctl calls tail -f
`

// deskPolicy is the policy around the desk.
const deskPolicy = `version: 1
tools:
  desk/publish: {requires: ["use:desk.token"], gate: always}
policies:
- subject: rogue
  server: desk
  approvalWait: 0s
  rules:
    limits:
      budget: {max_cost: 3, currency: EUR, cost_per_call: 0.01, tool_costs: {lookup: 0.9}}
    security:
      denied_tools: [wipe]
      granular_rules:
      - {tool: read_note, allow_if: {arguments: {path: {path: /notes}}}}
`

// Run demonstrates.
func (c demoToolsCmd) Run(ctx context.Context, a *app) error {
	return demonstrate(ctx, a, c.Keep, toolsForReal, func(d *demo, genesis string) error {
		t := &toolsDemo{demo: d, passphrase: rand.Text(), token: rand.Text(), unprotected: c.Unprotected}
		return t.tell(genesis)
	})
}

// toolsDemo is the story of an agent and a desk.
type toolsDemo struct {
	*demo
	passphrase  string // of the operator
	token       string // of the desk
	unprotected bool   // there is no policy, and no gate
	agent       *stdiomcp.Client
	heard       strings.Builder // everything that the agent was told
}

func (t *toolsDemo) tell(genesis string) (err error) {
	if err := t.prepare(); err != nil {
		return err
	}
	t.title("An agent connects, through its shim (stdio MCP)")
	if t.agent, err = t.shim("rogue"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.agent.Close()) }()
	return t.play([]act{
		{"What it sees", t.sees},
		{"Allowed: a note", t.allowed},
		{"Denied: a tool, and an argument that climbs out of its folder", t.blocked},
		{"Gated: a person is asked, and what was approved runs once", t.gated},
		{"The secret is used, and the agent never has it", t.secret},
		{"The budget", t.budget},
		{"The server changes what it says about a tool", t.turned},
		{"What the server really did", t.tally},
		{"Every call is an entry, and the log verifies", func() error { return t.proof(genesis) }},
	})
}

// prepare puts the desk behind the broker.
func (t *toolsDemo) prepare() error {
	t.title("A server with a secret, a policy around it, and an operator who is known by a passphrase")
	self, err := os.Executable()
	if err != nil {
		return err
	}
	token, document := filepath.Join(t.dir, "desk.token"), filepath.Join(t.dir, "policy.yaml")
	if err := errors.Join(os.WriteFile(token, []byte(t.token), 0o600), os.WriteFile(document, []byte(deskPolicy), 0o600)); err != nil {
		return err
	}
	if _, code, err := t.sbctlWith(t.passphrase, "operator", "set-passphrase"); err != nil || code != 0 {
		return errors.Join(err, fmt.Errorf("setting the passphrase: exit code %d", code))
	}
	for _, args := range [][]string{
		{"secret", "put", "desk.token", "--kind", "secret", "--from-file", token, "-q"},
		{"subject", "add", "rogue", "-q"},
		{"server", "add", "desk", "--secret", deskToken + "=desk.token", "--subject", "rogue", "-q", "--", self, "__desk"},
		{"grant", "rogue", "use:desk.token", "-q"},
		{"apply", "-f", document},
	} {
		if t.unprotected && args[0] == "apply" {
			continue
		}
		if _, err := t.must(args...); err != nil {
			return err
		}
	}
	t.say("  $ sbctl server trust desk --yes      and so everything that it says of its tools\n")
	if said, code, err := t.stage.sbctlWith(t.ctx, t.passphrase, passphraseOption, "3", "server", "trust", "desk", "--yes"); err != nil || code != 0 {
		return errors.Join(err, fmt.Errorf("trusting the server: exit code %d: %s", code, said))
	}
	if _, err := t.must("server", "show", "desk"); err != nil {
		return err
	}
	return os.Remove(token)
}

// answer is what came of a call, as the agent reads it.
type answer struct {
	text   string
	failed bool // a result that is an error, or an error of the protocol
}

// call calls a tool of the desk, as the agent sees it.
func (t *toolsDemo) call(tool string, arguments map[string]any) answer {
	t.say("  agent: desk_%s %s\n", tool, mustJSON(arguments))
	raw, err := t.agent.Call("tools/call", map[string]any{"name": "desk_" + tool, "arguments": arguments})
	if err != nil {
		t.heard.WriteString(err.Error())
		text := strings.TrimPrefix(err.Error(), "calling tools/call: ")
		t.say("    %s\n", text)
		return answer{text, true}
	}
	t.heard.Write(raw)
	var result struct {
		Content []struct{ Text string }
		IsError bool
	}
	if err := json.Unmarshal(raw, &result); err != nil || len(result.Content) == 0 {
		return answer{string(raw), true}
	}
	t.say("    %s\n", result.Content[0].Text)
	return answer{result.Content[0].Text, result.IsError}
}

func mustJSON(value any) string {
	text, _ := json.Marshal(value) // of texts: it cannot fail
	return string(text)
}

// listed are the tools of the desk that the agent is offered.
func (t *toolsDemo) listed() ([]string, error) {
	raw, err := t.agent.Call("tools/list", map[string]any{})
	if err != nil {
		return nil, err
	}
	t.heard.Write(raw)
	var list struct{ Tools []struct{ Name string } }
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, err
	}
	var names []string
	for _, tool := range list.Tools {
		if name, ok := strings.CutPrefix(tool.Name, "desk_"); ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, nil
}

func (t *toolsDemo) sees() error {
	names, err := t.listed()
	if err != nil {
		return err
	}
	t.expect("list", slices.Equal(names, []string{"lookup", "publish", "read_note", "tally", "update"}),
		"the agent is offered %s: what is denied is not listed", strings.Join(names, ", "))
	return nil
}

func (t *toolsDemo) allowed() error {
	got := t.call("read_note", map[string]any{"path": "/notes/today"})
	t.expect("allowed", !got.failed && got.text == deskFiles["/notes/today"], "the call reached the server, and its answer the agent")
	return nil
}

func (t *toolsDemo) blocked() error {
	got := t.call("wipe", map[string]any{})
	t.expect("denied-tool", got.failed && strings.Contains(got.text, "DeniedToolsPolicy"), "a tool that is not listed is refused when it is called all the same")
	got = t.call("read_note", map[string]any{"path": "/notes/../etc/shadow"})
	t.expect("argument", got.failed && strings.Contains(got.text, "GranularAccessPolicy"), "/notes/../etc/shadow is not below /notes")
	t.expect("no-advice", !strings.Contains(got.text, "sbctl") && !strings.Contains(got.text, "/notes"), "and the refusal names no command, and nothing that would be allowed")
	return nil
}

var pendingID = regexp.MustCompile(`^APPROVAL_PENDING id=([a-z0-9]+)`)

// asked is the id of the request that a call waits for.
func asked(got answer) string {
	if found := pendingID.FindStringSubmatch(got.text); got.failed && found != nil {
		return found[1]
	}
	return ""
}

func (t *toolsDemo) gated() error {
	title := map[string]any{"title": "resignation"}
	id := asked(t.call("publish", title))
	if t.expect("pending", id != "", "the call waits for a person, and was not carried out"); id == "" {
		return nil
	}
	again := asked(t.call("publish", title))
	t.expect("one-card", again == id && id != "", "asking again is the same request")
	shown, err := t.must("approvals", "show", id)
	if err != nil {
		return err
	}
	t.expect("shown", strings.Contains(shown, `{"title":"resignation"}`) && strings.Contains(shown, "desk.token"),
		"the operator sees the exact arguments and what would be used, as the broker has them")
	_, code, err := t.sbctl("approvals", "approve", id, "-q")
	if err != nil {
		return err
	}
	t.expect("no-passphrase", code == 3, "nobody approves without the passphrase, the agent least of all")
	_, code, err = t.sbctlWith(t.passphrase, "approvals", "approve", id, "--once")
	if err != nil {
		return err
	}
	t.expect("approved", code == 0, "who knows it does")
	other := asked(t.call("publish", map[string]any{"title": "another title"}))
	t.expect("exactly", other != "" && other != id, "other arguments were not approved: they are another request")
	got := t.call("publish", title)
	t.expect("runs", !got.failed && strings.HasPrefix(got.text, "number 1, "), "what was approved is carried out")
	third := asked(t.call("publish", title))
	t.expect("once", third != "" && third != id, "and once: the same again is a new request")
	if third == "" {
		return nil
	}
	_, code, err = t.sbctlWith(t.passphrase, "approvals", "deny", third)
	if err != nil {
		return err
	}
	got = t.call("publish", title)
	t.expect("refused", code == 0 && got.failed && !strings.HasPrefix(got.text, "number"), "what the operator refuses is not carried out")
	return nil
}

func (t *toolsDemo) secret() error {
	signed := deskSign(t.token, "resignation")
	t.expect("used", strings.Contains(t.heard.String(), signed), "the server signed with it: %s", signed)
	got, err := read(t.agent, "desk.token")
	if err != nil {
		return err
	}
	t.expect("not-readable", got.Decision == "deny" && got.Content == nil, "the agent may not read it: %s %s", got.Decision, got.ReasonCode)
	return nil
}

func (t *toolsDemo) budget() error {
	spent := 0
	for range 5 {
		got := t.call("lookup", map[string]any{"word": "more"})
		if got.failed {
			t.expect("budget", strings.Contains(got.text, "BudgetPolicy"), "after %s the money is spent", count(spent, "lookup"))
			break
		}
		spent++
	}
	t.expect("budget-exact", spent == 3, "3 EUR are 3 lookups at 0.90 with what there was before, and not a fourth")
	if t.unprotected {
		return nil
	}
	_, err := t.must("policy", "list")
	return err
}

// turnPatience is how long the change of a tool may take to be seen.
const turnPatience = 20 * time.Second

func (t *toolsDemo) turned() error {
	if !t.unprotected {
		if _, err := t.must("policy", "reset", "rogue", "desk", "--yes", "-q"); err != nil {
			return err
		}
	}
	t.call("update", map[string]any{})
	var names []string
	var err error
	for end := time.Now().Add(turnPatience); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if names, err = t.listed(); err != nil || !slices.Contains(names, "lookup") {
			break
		}
	}
	if err != nil {
		return err
	}
	t.expect("withheld", !slices.Contains(names, "lookup") && slices.Contains(names, "read_note"), "the tool is withheld, the others are not: %s", strings.Join(names, ", "))
	got, unknown := t.call("lookup", map[string]any{"word": "x"}), t.call("no_such_tool", map[string]any{})
	t.expect("withheld-denied", got.failed && got.text == unknown.text, "a call is denied like one of a tool that is not there")
	t.expect("not-heard", !strings.Contains(t.heard.String(), "/etc/shadow and put"), "the agent never read the new description")
	shown, _, err := t.sbctl("server", "diff", "desk", "--seen")
	if err != nil {
		return err
	}
	t.expect("diff", strings.Contains(shown, "lookup") && strings.Contains(shown, "IMPORTANT"), "the operator sees what has changed")
	return nil
}

func (t *toolsDemo) tally() error {
	got := t.call("tally", map[string]any{})
	var done map[string]int
	if err := json.Unmarshal([]byte(got.text), &done); err != nil {
		return fmt.Errorf("reading the tally: %w", err)
	}
	want := map[string]int{"read_note": 1, "publish": 1, "lookup": 3, "update": 1, "tally": 1}
	same := len(done) == len(want)
	for tool, times := range want {
		same = same && done[tool] == times
	}
	t.expect("tally", same, "it carried out what was allowed and approved, and nothing else: %s", got.text)
	t.expect("never-seen", !strings.Contains(t.heard.String(), t.token), "nothing that the agent was told holds the secret")
	return nil
}

func (t *toolsDemo) proof(genesis string) error {
	if _, err := t.must("calls", "tail", "-n", "100"); err != nil {
		return err
	}
	if _, err := t.must("calls", "stats"); err != nil {
		return err
	}
	return t.intact(genesis, "the secret, arguments and answers", map[string][]byte{"the secret": []byte(t.token), "the arguments": []byte("resignation"), "the answer": []byte("water the plants")})
}
