package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"subjectbroker/cmd/sbctl/internal/ui"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

type callsCmd struct {
	Tail  callsTailCmd  `cmd:"" default:"withargs" help:"Show the newest calls, and with -f those to come"`
	Stats callsStatsCmd `cmd:"" help:"Count the calls of each tool, and how long they took"`
}

// Help is the manual of calls.
func (callsCmd) Help() string {
	return `Calls of tools of the servers behind the broker, as the log has them: who called
what, what came of it and how long it took. Arguments and results are in no log. What
calls no tool and had to be judged stands as method:SERVER/METHOD.`
}

// kindCallDone is the kind of an entry that says how a call ended that was let
// through; kindCall is that of how it was judged.
const kindCallDone = "call.done"

// actionCall is the action of an entry about a tool.
const actionCall = "call"

// callEntry is what is read of an entry about a call.
type callEntry struct {
	Seq        uint64    `json:"seq"`
	Timestamp  time.Time `json:"timestamp"`
	Kind       string    `json:"kind"`
	LaunchID   string    `json:"launchId"`
	RunID      string    `json:"runId"`
	SubjectID  string    `json:"subjectId"`
	Server     string    `json:"server"`
	Tool       string    `json:"tool"`
	Action     string    `json:"action"`
	Policy     string    `json:"policy"`
	ApprovalID string    `json:"approvalId"`
	Decision   string    `json:"decision"`
	ReasonCode string    `json:"reasonCode"`
	Cause      string    `json:"cause"`
	Count      uint64    `json:"count"`
}

// callView is the JSON shape of a call.
type callView struct {
	Seq        uint64 `json:"seq"`
	Timestamp  string `json:"timestamp"`
	SubjectID  string `json:"subjectId"`
	LaunchID   string `json:"launchId,omitempty"`
	RunID      string `json:"runId,omitempty"`
	Server     string `json:"server"`
	Tool       string `json:"tool,omitempty"`
	Method     string `json:"method,omitempty"` // of a message that calls no tool
	Decision   string `json:"decision"`
	ReasonCode string `json:"reasonCode"`
	Cause      string `json:"cause,omitempty"`
	Policy     string `json:"policy,omitempty"`
	ApprovalID string `json:"approvalId,omitempty"`
	CostMicros uint64 `json:"costMicros,omitempty"`
	Outcome    string `json:"outcome,omitempty"`    // how a forwarded call ended; absent before it did
	DurationMS *int64 `json:"durationMs,omitempty"` // of a forwarded call that ended
}

func viewCall(e callEntry) callView {
	view := callView{
		Seq: e.Seq, Timestamp: ui.Stamp(e.Timestamp.UnixMilli()), SubjectID: e.SubjectID, LaunchID: e.LaunchID, RunID: e.RunID, Server: e.Server,
		Tool: e.Tool, Decision: e.Decision, ReasonCode: e.ReasonCode, Cause: e.Cause, Policy: e.Policy, ApprovalID: e.ApprovalID,
	}
	if e.Decision == decisionAllow {
		view.CostMicros = e.Count
	}
	if e.Tool == "" && e.Action != actionCall {
		view.Method = e.Action
	}
	return view
}

// oneCall is a call as far as it has come.
type oneCall struct {
	callView
	at time.Time
}

// end adds how the call ended.
func (c *oneCall) end(done callEntry) {
	took := max(done.Timestamp.Sub(c.at), 0).Milliseconds()
	c.Outcome, c.DurationMS = done.Cause, &took
}

func (c *oneCall) duration() string {
	switch {
	case c.DurationMS == nil:
		return ""
	case *c.DurationMS == 0:
		return "<1ms" // the log counts in milliseconds
	}
	return took(time.Duration(*c.DurationMS) * time.Millisecond)
}

// object is the tool, the method of a message that calls none, or where no tool is
// named the server as a whole, as "denials" names them.
func (c *oneCall) object() string {
	if c.Method != "" {
		return "method:" + c.Server + "/" + c.Method
	}
	return c.Server + "/" + cmp.Or(c.Tool, "*")
}

// outcome is what came of a call, in a few words.
func (c *oneCall) outcome() string {
	if c.Decision == decisionAllow {
		words := []string{c.Decision, strings.ToLower(strings.ReplaceAll(c.Outcome, "_", " "))}
		if strings.HasPrefix(c.Cause, "OBSERVED_") { // a rule would have said otherwise
			words = append(words, c.Cause)
		}
		if c.ApprovalID != "" {
			words = append(words, "approved "+c.ApprovalID)
		}
		return strings.Join(strings.Fields(strings.Join(words, " ")), " ")
	}
	words := []string{c.Decision, c.ReasonCode}
	if c.Cause != "" && c.Cause != c.ReasonCode {
		words = append(words, c.Cause)
	}
	if c.ApprovalID != "" {
		words = append(words, c.ApprovalID)
	}
	return strings.Join(words, " ")
}

// took is a duration as a person reads it.
func took(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return fmt.Sprintf("%dµs", d.Microseconds())
	case d < 10*time.Millisecond && d%time.Millisecond != 0:
		return fmt.Sprintf("%.1fms", float64(d.Microseconds())/1000)
	case d < time.Second:
		return fmt.Sprintf("%dms", d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%.1fs", d.Seconds())
	}
	return ui.Span(d)
}

type callsTailCmd struct {
	Follow  bool   `short:"f" help:"Go on with new calls until interrupted."`
	Lines   uint32 `short:"n" default:"20" placeholder:"N" help:"How many of the newest calls (default: 20)."`
	Subject string `placeholder:"S" help:"Only calls of this subject."`
	Server  string `placeholder:"SERVER" help:"Only calls of this server."`
	Tool    string `placeholder:"T" help:"Only calls of this tool."`
}

// Help is the manual of calls tail.
func (callsTailCmd) Help() string {
	return `Oldest first. TOOK is how long a call was on its way after it was let through. With -f
a call that is let through is written twice: when it is, and when it has ended.

Examples:
  sbctl calls tail -f
  sbctl calls tail -n 100 --subject worker --server github -o json`
}

func (c callsTailCmd) wants(e callEntry) bool {
	return (c.Subject == "" || e.SubjectID == c.Subject) && (c.Server == "" || e.Server == c.Server) && (c.Tool == "" || e.Tool == c.Tool)
}

// Run shows calls.
func (c callsTailCmd) Run(ctx context.Context, a *app) error {
	const doing = "listing calls"
	head := uint64(0)
	if c.Follow {
		at, err := a.auditHead(ctx, doing)
		if err != nil {
			return err
		}
		head = at.GetSeq()
	}
	calls, err := c.newest(ctx, a, doing, head)
	if err != nil {
		return err
	}
	if err := a.printCalls(calls, c.Follow); err != nil {
		return fail(err, doing)
	}
	if !c.Follow {
		return nil
	}
	err = c.follow(ctx, a, doing, head, calls)
	if interrupted(ctx, err) {
		return nil
	}
	return err
}

// newest are the newest calls up to an entry, oldest first, each with its end where it
// has one; 0: up to the newest.
func (c callsTailCmd) newest(ctx context.Context, a *app, doing string, upTo uint64) ([]*oneCall, error) {
	if c.Lines == 0 {
		return nil, nil
	}
	request := &operatorv1.ReadAuditRequest{Kind: kindCall, Subject: c.Subject}
	if c.Server == "" && c.Tool == "" && upTo == 0 {
		request.Last = c.Lines
	}
	var calls []*oneCall
	err := a.eachLine(ctx, doing, request, func(line []byte) error {
		e, err := parseCall(line)
		if err != nil || e.Kind != kindCall || !c.wants(e) || upTo > 0 && e.Seq > upTo {
			return err
		}
		calls = append(calls, &oneCall{viewCall(e), e.Timestamp})
		if len(calls) > 2*int(c.Lines) { // a log can be larger than memory
			calls = append([]*oneCall{}, calls[len(calls)-int(c.Lines):]...)
		}
		return nil
	})
	if err != nil || len(calls) == 0 {
		return nil, err
	}
	calls = calls[max(0, len(calls)-int(c.Lines)):]
	open := map[uint64]*oneCall{}
	for _, one := range calls {
		open[one.Seq] = one
	}
	request = &operatorv1.ReadAuditRequest{Kind: kindCallDone, Subject: c.Subject, FromSeq: calls[0].Seq}
	err = a.eachLine(ctx, doing, request, func(line []byte) error {
		done, err := parseCall(line)
		if one := open[done.Count]; err == nil && done.Kind == kindCallDone && one != nil && (upTo == 0 || done.Seq <= upTo) {
			one.end(done)
		}
		return err
	})
	return calls, err
}

func parseCall(line []byte) (callEntry, error) {
	var e callEntry
	if err := json.Unmarshal(line, &e); err != nil {
		return e, fmt.Errorf("reading an entry: %w", err)
	}
	return e, nil
}

var callHead = []string{"TIME", "SUBJECT", "TOOL", "TOOK", "OUTCOME"}

// printCalls prints calls as a list, or as the beginning of a stream.
func (a *app) printCalls(calls []*oneCall, stream bool) error {
	list := ui.List{Head: callHead}
	views := make([]callView, 0, len(calls))
	for _, one := range calls {
		if stream {
			if err := a.callEvent(one); err != nil {
				return err
			}
			continue
		}
		list.IDs = append(list.IDs, fmt.Sprint(one.Seq))
		list.Rows = append(list.Rows, []string{a.out.Clock(one.at.UnixMilli()), one.SubjectID, one.object(), one.duration(), one.outcome()})
		views = append(views, one.callView)
	}
	if stream {
		return nil
	}
	list.Items = views
	return a.list(list, "no call matches")
}

// callEvent writes a call as one element of a stream.
func (a *app) callEvent(one *oneCall) error {
	if a.out.Quiet {
		_, err := fmt.Fprintln(a.stdout, one.Seq)
		return err
	}
	return a.out.Event(one.callView, strings.TrimRight(fmt.Sprintf("%s  %-16s %-28s %7s  %s",
		a.out.Clock(one.at.UnixMilli()), one.SubjectID, one.object(), one.duration(), one.outcome()), " "))
}

// follow writes calls after an entry as they come, and the end of those that are open.
func (c callsTailCmd) follow(ctx context.Context, a *app, doing string, after uint64, before []*oneCall) error {
	open := map[uint64]*oneCall{}
	for _, one := range before {
		if one.Decision == decisionAllow && one.DurationMS == nil {
			open[one.Seq] = one
		}
	}
	request := &operatorv1.ReadAuditRequest{Follow: true, FromSeq: after + 1, Subject: c.Subject}
	return a.eachLine(ctx, doing, request, func(line []byte) error {
		e, err := parseCall(line)
		switch {
		case err != nil:
			return err
		case e.Kind == kindCall && c.wants(e):
			one := &oneCall{viewCall(e), e.Timestamp}
			if e.Decision == decisionAllow {
				open[e.Seq] = one
			}
			return a.callEvent(one)
		case e.Kind == kindCallDone && open[e.Count] != nil:
			one := open[e.Count]
			delete(open, e.Count)
			one.end(e)
			return a.callEvent(one)
		}
		return nil
	})
}

type callsStatsCmd struct {
	Subject string `placeholder:"S" help:"Only calls of this subject."`
	Server  string `placeholder:"SERVER" help:"Only calls of this server."`
}

// Help is the manual of calls stats.
func (callsStatsCmd) Help() string {
	return `Counted since the daemon started. Each call is one of ALLOWED, DENIED and WAITED,
which is that the agent was told to ask again because nobody has answered yet. FAILED
is those of ALLOWED that ended with an error. Half of them took at most MEDIAN, 99 of
a hundred at most 99%. Calls of names that no tool is known to have are counted
together, as a question mark, and so is what one subject calls beyond 2048 tools.

Examples:
  sbctl calls stats
  sbctl calls stats --server github -o json`
}

// callStatView is the JSON shape of what was counted of one tool.
type callStatView struct {
	SubjectID string `json:"subjectId"`
	Server    string `json:"server"`
	Tool      string `json:"tool"`
	Allowed   uint64 `json:"allowed"`
	Denied    uint64 `json:"denied"`
	Waited    uint64 `json:"waited"`
	Failed    uint64 `json:"failed"`
	P50US     uint64 `json:"p50Us"`
	P99US     uint64 `json:"p99Us"`
	Last      string `json:"last"`
}

// Run counts calls.
func (c callsStatsCmd) Run(ctx context.Context, a *app) error {
	got, err := call(ctx, a, "counting calls", &operatorv1.CallStatsRequest{Subject: c.Subject, Server: c.Server}, operatorv1.OperatorServiceClient.CallStats)
	if err != nil {
		return err
	}
	list := ui.List{Head: []string{"SUBJECT", "TOOL", "ALLOWED", "DENIED", "WAITED", "FAILED", "MEDIAN", "99%", "LAST"}}
	views := make([]callStatView, 0, len(got.GetStats()))
	micros := func(us uint64) string {
		if us == 0 {
			return ""
		}
		return took(time.Duration(us) * time.Microsecond)
	}
	for _, s := range got.GetStats() {
		tool := s.GetServer() + "/" + cmp.Or(s.GetTool(), "?")
		list.IDs = append(list.IDs, tool)
		list.Rows = append(list.Rows, []string{
			s.GetSubject(), tool, fmt.Sprint(s.GetAllowed()), fmt.Sprint(s.GetDenied()), fmt.Sprint(s.GetWaited()), fmt.Sprint(s.GetFailed()),
			micros(s.GetP50Us()), micros(s.GetP99Us()), a.out.When(s.GetLast()),
		})
		views = append(views, callStatView{
			s.GetSubject(), s.GetServer(), s.GetTool(), s.GetAllowed(), s.GetDenied(), s.GetWaited(), s.GetFailed(), s.GetP50Us(), s.GetP99Us(), ui.Stamp(s.GetLast()),
		})
	}
	list.Items = views
	if err := a.list(list, "no tool was called"); err != nil {
		return err
	}
	a.done("counted since %s", a.out.When(got.GetSince()))
	return nil
}
