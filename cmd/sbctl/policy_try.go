package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"subjectbroker/cmd/sbctl/internal/ui"
	"subjectbroker/grants/policy"
	"subjectbroker/proto/links"
	"subjectbroker/proto/wire"
)

type policyTestCmd struct {
	File    string   `arg:"" help:"The document; - is standard input."`
	Call    []string `required:"" sep:"none" placeholder:"JSON" help:"The call: {\"tool\": …, \"arguments\": {…}}. Repeatable: one after the other."`
	Outcome []string `sep:"none" enum:"ok,error,transport" placeholder:"E" help:"How the call ends when it is forwarded: ok (default), error or transport. Repeatable: one for each --call, or one for all."`
	Subject string   `placeholder:"S" help:"Whose policy; needed where the document has several."`
	Server  string   `placeholder:"SERVER" help:"Around which server; likewise."`
	Format  string   `enum:",agent-brake" default:"" placeholder:"agent-brake" help:"agent-brake: it is a policy file of that proxy."`
	Times   int      `default:"1" placeholder:"N" help:"Make them so often, counting as the daemon does (default: 1)."`
	Every   string   `placeholder:"D" help:"Time between two calls: 500ms, 10s. Without it they come at once."`
}

// Help is the manual of policy test.
func (policyTestCmd) Help() string {
	return `Judges with the engine that the daemon judges with, and shows each step of the last
call. Nothing is called and nothing is counted outside of the test; grants, trust
and the tool itself are not looked at, nor whether what the document names is there.
Links in paths are followed on this machine.

A call that is forwarded counts as one that went well, unless --outcome says that it
ended with "error" (an error answer, or a result that says isError) or "transport"
(no answer): that is what a circuit breaker counts.

The exit code is 0 when the last call is forwarded, and 3 when it is blocked or a
person would be asked.

Examples:
  sbctl policy test broker.yaml --call '{"tool": "search", "arguments": {"q": "x"}}'
  sbctl policy test p.yaml --call '{"tool": "search"}' --times 11 --every 10s
  sbctl policy test p.yaml --call '{"tool": "search"}' --outcome transport --times 6
  sbctl policy test p.yaml --call '{"tool": "list"}' --call '{"tool": "del"}'`
}

type tryView struct {
	SubjectID   string        `json:"subjectId"`
	Server      string        `json:"server"`
	Tool        string        `json:"tool"`
	Decision    string        `json:"decision"`
	Policy      string        `json:"policy,omitempty"`
	Action      string        `json:"action,omitempty"`
	Rule        string        `json:"rule,omitempty"`
	Detail      string        `json:"detail,omitempty"`
	Warned      []string      `json:"warned"`
	Observed    bool          `json:"observed"`
	SpentMicros uint64        `json:"spentMicros"`
	Steps       []tryStepView `json:"steps"`
	Calls       []tryCallView `json:"calls"`
}

type tryStepView struct {
	Policy string `json:"policy"`
	Result string `json:"result"`
	Detail string `json:"detail"`
}

// tryCallView is a run of calls that came to the same.
type tryCallView struct {
	First    int    `json:"first"`
	Last     int    `json:"last"`
	Tool     string `json:"tool"`
	Decision string `json:"decision"`
	Policy   string `json:"policy,omitempty"`
	Action   string `json:"action,omitempty"`
	Outcome  string `json:"outcome,omitempty"` // of a call that was forwarded
}

// triedCall is a call that is tried.
type triedCall struct {
	tool      string
	arguments []byte
	end       policy.End
}

// mostTries bounds how many calls are made.
const mostTries = 100_000

// Run judges.
func (c policyTestCmd) Run(a *app) error {
	doing := "testing " + c.File
	if most := mostTries / max(1, len(c.Call)); c.Times < 1 || c.Times > most {
		return refuse(doing, "--times is 1 to %d", most)
	}
	var every time.Duration
	if c.Every != "" {
		var err error
		if every, err = time.ParseDuration(c.Every); err != nil || every < 0 || every > 24*time.Hour {
			return refuse(doing, "--every is a span of time of at most a day, such as 500ms or 10s")
		}
	}
	calls, err := c.calls(doing)
	if err != nil {
		return err
	}
	trial, key, err := c.trial(a, doing)
	if err != nil {
		return err
	}
	for _, one := range calls {
		if rest, prefixed := strings.CutPrefix(one.tool, key.Server+"/"); prefixed {
			return refuse(doing, "--call: a policy names the tool as the server does, %q and not %q", rest, one.tool)
		}
	}
	view := tryView{SubjectID: key.Subject, Server: key.Server, Tool: calls[len(calls)-1].tool, Warned: []string{}, Steps: []tryStepView{}, Calls: []tryCallView{}}
	at := a.now()
	var last policy.Attempt
	all := c.Times * len(calls)
	for n := 1; n <= all; n++ {
		try := calls[(n-1)%len(calls)]
		if last, err = trial.Call(try.tool, try.arguments, try.end, at); err != nil {
			return refuse(doing, "--call: arguments: %v", err)
		}
		one := tryCallView{n, n, try.tool, last.Decision, last.Policy, last.Action, string(last.End)}
		if i := len(view.Calls) - 1; i >= 0 {
			before := view.Calls[i]
			if before.First, before.Last = n, n; before == one {
				view.Calls[i].Last = n
				at = at.Add(every)
				continue
			}
		}
		view.Calls = append(view.Calls, one)
		at = at.Add(every)
	}
	view.Decision, view.Policy, view.Action, view.Rule, view.Detail = last.Decision, last.Policy, last.Action, last.Rule, last.Detail
	view.Observed, view.SpentMicros = last.Observed, last.Spent
	view.Warned = append(view.Warned, last.Warned...)
	for _, s := range last.Trace {
		view.Steps = append(view.Steps, tryStepView(s))
	}
	if err := a.printTry(view, all); err != nil {
		return err
	}
	if last.Decision != policy.TryForward && !last.Observed {
		return exitCode(wire.ExitDenied)
	}
	return nil
}

func (a *app) printTry(view tryView, calls int) error {
	spent := ""
	if view.SpentMicros > 0 {
		spent = micros(view.SpentMicros)
	}
	observed := ""
	if view.Observed {
		observed = "the rules only log at this time: the call is forwarded"
	}
	err := a.out.Object(ui.Object{
		ID: view.Decision,
		Fields: []ui.Field{
			{Name: "decision", Value: view.Decision},
			{Name: "policy", Value: view.Policy},
			{Name: "action", Value: view.Action},
			{Name: "detail", Value: view.Detail},
			{Name: "noted", Value: strings.Join(view.Warned, ", ")},
			{Name: "observed", Value: observed},
			{Name: "spent", Value: spent},
			{Name: "of", Value: view.SubjectID + " around " + view.Server},
		},
		Value: view,
	})
	if err != nil {
		return err
	}
	if calls > 1 {
		var rows [][]string
		for _, c := range view.Calls {
			numbers := fmt.Sprint(c.First)
			if c.Last > c.First {
				numbers = fmt.Sprintf("%d-%d", c.First, c.Last)
			}
			rows = append(rows, []string{numbers, c.Tool, c.Decision, c.Policy, c.Action, c.Outcome})
		}
		if err := a.out.Section("Calls", []string{"CALL", "TOOL", "DECISION", "POLICY", "ACTION", "OUTCOME"}, rows); err != nil {
			return err
		}
	}
	var rows [][]string
	for _, s := range view.Steps {
		rows = append(rows, []string{s.Policy, s.Result, s.Detail})
	}
	return a.out.Section("Trace", []string{"POLICY", "RESULT", "DETAIL"}, rows)
}

// micros is an amount in millionths as a number of units.
func micros(amount uint64) string {
	text := fmt.Sprintf("%d.%06d", amount/1_000_000, amount%1_000_000)
	return strings.TrimSuffix(strings.TrimRight(text, "0"), ".")
}

// calls reads what is to be called, each call with how it ends.
func (c policyTestCmd) calls(doing string) ([]triedCall, error) {
	if len(c.Outcome) > 1 && len(c.Outcome) != len(c.Call) {
		return nil, refuse(doing, "--outcome is said once, or once for each --call: %s, %s", count(len(c.Outcome), "outcome"), count(len(c.Call), "call"))
	}
	var calls []triedCall
	for i, text := range c.Call {
		tool, arguments, err := readCall(doing, text)
		if err != nil {
			return nil, err
		}
		end := policy.EndOK
		if len(c.Outcome) > 0 {
			end = policy.End(c.Outcome[i%len(c.Outcome)])
		}
		calls = append(calls, triedCall{tool, arguments, end})
	}
	return calls, nil
}

// readCall reads what is to be called. The arguments are judged as they stand.
func readCall(doing, text string) (tool string, arguments []byte, err error) {
	var c struct {
		Tool      *string         `json:"tool"`
		Arguments json.RawMessage `json:"arguments"`
	}
	dec := json.NewDecoder(strings.NewReader(text))
	dec.DisallowUnknownFields()
	err = dec.Decode(&c)
	if err == nil {
		if _, more := dec.Token(); !errors.Is(more, io.EOF) {
			err = errors.New("something follows")
		}
	}
	switch {
	case err != nil:
		return "", nil, refuse(doing, `--call takes {"tool": "NAME", "arguments": {…}}: %v`, err)
	case c.Tool == nil || *c.Tool == "":
		return "", nil, refuse(doing, `--call names no tool: {"tool": "NAME", "arguments": {…}}`)
	}
	if bytes.Equal(bytes.TrimSpace(c.Arguments), []byte("null")) {
		c.Arguments = nil
	}
	return *c.Tool, c.Arguments, nil
}

// trial reads the document and chooses the policy that is meant.
func (c policyTestCmd) trial(a *app, doing string) (*policy.Trial, policy.Pair, error) {
	text, err := a.readDocument(doing, c.File)
	if err != nil {
		return nil, policy.Pair{}, err
	}
	var document *policy.Document
	if c.Format == formatAgentBrake {
		document, _, err = policy.ImportAgentBrake(text, orWord(c.Subject, standInSubject), orWord(c.Server, standInServer), envWith(a.now(), orWord(c.Subject, standInSubject)))
	} else {
		document, err = policy.Parse(text, policy.Env{Now: a.now(), Elsewhere: true})
	}
	if refused, ok := errors.AsType[*policy.Error](err); ok {
		return nil, policy.Pair{}, otherFormat(refuse(doing, "%v", refused), text, c.Format,
			"sbctl policy test "+shellQuote(c.File)+" --format agent-brake --call "+shellQuote(c.Call[0]))
	}
	if err != nil {
		return nil, policy.Pair{}, fail(err, "%s", doing)
	}
	var found []policy.Pair
	for key := range document.Policies {
		if (c.Subject == "" || key.Subject == c.Subject) && (c.Server == "" || key.Server == c.Server) {
			found = append(found, key)
		}
	}
	switch {
	case len(document.Policies) == 0:
		return nil, policy.Pair{}, refuse(doing, "there is no policy in it, so that every call is forwarded")
	case len(found) == 0:
		return nil, policy.Pair{}, refuse(doing, "it has no policy of that subject around that server, so that the call is forwarded")
	case len(found) > 1:
		return nil, policy.Pair{}, refuse(doing, "it has %d policies: say --subject and --server", len(found))
	}
	trial, err := document.Try(found[0], links.Resolve)
	return trial, found[0], fail(err, "%s", doing)
}
