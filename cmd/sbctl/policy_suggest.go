package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"subjectbroker/audit/verify"
	"subjectbroker/cmd/sbctl/internal/ui"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

type policySuggestCmd struct {
	Subject string `arg:"" help:"Name of the subject."`
	Server  string `arg:"" help:"Name of the server."`
	Since   string `placeholder:"D" help:"Only from what was called since: 90m, 2h, 7d, or a time."`
}

// Help is the manual of policy suggest.
func (policySuggestCmd) Help() string {
	return `Reads the calls in the log and writes a document with the strictest policy under
which all that were forwarded would have been: the tools that were called, the most
calls of one session, and the most in a minute. Read it before you apply it; a tool
that is needed once a month is missing after a week.

The log holds no arguments, so that rules about arguments are yours to add. Tools of
which calls were approved by a person go on to need one. A policy that stands now is
replaced whole when you apply another one: carry its rules over. Nothing is changed.

Examples:
  sbctl policy suggest coder github --since 7d > github.yaml
  sbctl policy suggest coder github | sbctl policy lint -`
}

// window is what a suggested rate limit counts in.
const window = time.Minute

// callHistory is what a subject called on one server.
type callHistory struct {
	tools    map[string]int // forwarded
	approved map[string]int // of those, when a person had said so
	refused  map[string]int
	sessions map[string]uint64 // forwarded, by launch or run
	times    []time.Time       // of those forwarded, in the order of the log
	first    time.Time
	last     time.Time
}

func (h *callHistory) add(e *verify.Entry) {
	if e.Kind != kindCall || e.Tool == "" {
		return
	}
	if e.Decision != decisionAllow {
		h.refused[e.Tool]++
		return
	}
	h.tools[e.Tool]++
	if e.ApprovalID != "" {
		h.approved[e.Tool]++
	}
	session := e.LaunchID
	if session == "" {
		session = e.RunID
	}
	h.sessions[session]++
	h.times = append(h.times, e.Timestamp)
	if h.first.IsZero() {
		h.first = e.Timestamp
	}
	h.last = e.Timestamp
}

// kindCall is the kind of an entry about a call that was judged.
const kindCall = "call"

// mostAtOnce is the most calls within any window.
func (h *callHistory) mostAtOnce() int {
	slices.SortFunc(h.times, time.Time.Compare)
	most, begin := 0, 0
	for end, at := range h.times {
		for at.Sub(h.times[begin]) >= window {
			begin++
		}
		most = max(most, end-begin+1)
	}
	return most
}

// Run suggests.
func (c policySuggestCmd) Run(ctx context.Context, a *app) error {
	doing := fmt.Sprintf("looking for calls of %s to %s", c.Subject, c.Server)
	since, err := pastMillis(doing, "--since", c.Since, a.now())
	if err != nil {
		return err
	}
	h := &callHistory{tools: map[string]int{}, approved: map[string]int{}, refused: map[string]int{}, sessions: map[string]uint64{}}
	err = a.eachLine(ctx, doing, &operatorv1.ReadAuditRequest{Subject: c.Subject, Kind: kindCall, Since: since}, func(line []byte) error {
		e, err := verify.ParseLine(line)
		if err == nil && e.Server == c.Server {
			h.add(&e)
		}
		return err
	})
	if err != nil {
		return err
	}
	if len(h.tools) == 0 {
		none := &failure{code: wire.InvalidArgument, doing: doing, what: "none was forwarded", exit: wire.ExitFailed}
		if c.Since != "" {
			none.what += " since then"
		}
		return none.withHint("sbctl audit list --kind call --subject %s", c.Subject)
	}
	text := h.document(c.Subject, c.Server)
	if a.out.Format == ui.JSON {
		return a.out.Object(ui.Object{Value: documentView{text}})
	}
	if _, err := fmt.Fprint(a.stdout, text); err != nil {
		return fail(err, "%s", doing)
	}
	return nil
}

// document is the strictest policy under which every call would have been forwarded.
func (h *callHistory) document(subject, server string) string {
	var text strings.Builder
	calls := len(h.times)
	fmt.Fprintf(&text, "# From %s of %s to %s, %s to %s.\n", count(calls, "call"), subject, server,
		h.first.UTC().Format(time.RFC3339), h.last.UTC().Format(time.RFC3339))
	text.WriteString("# The log holds no arguments: granular_rules are yours to add. Try it first with\n# \"sbctl policy test\". It replaces a policy that stands now whole, with its rules,\n# budget and approvals: carry those over.\n")
	fmt.Fprintf(&text, "version: 1\nsubjects: {%s: {}}\npolicies:\n", quotedYAML(subject))
	fmt.Fprintf(&text, "  - subject: %s\n    server: %s\n    rules:\n", quotedYAML(subject), quotedYAML(server))
	most := uint64(0)
	for n := range maps.Values(h.sessions) {
		most = max(most, n)
	}
	fmt.Fprintf(&text, "      limits:\n        max_tool_calls: %d # the most in one of %s\n", most, count(len(h.sessions), "session"))
	fmt.Fprintf(&text, "        rate_limit: {calls_per_window: %d, window_seconds: %d} # the most in a minute\n", h.mostAtOnce(), int(window/time.Second))
	text.WriteString("      security:\n        allowed_tools:\n")
	for _, tool := range slices.Sorted(maps.Keys(h.tools)) {
		fmt.Fprintf(&text, "          - %s # %s\n", quotedYAML(tool), count(h.tools[tool], "call"))
	}
	if len(h.approved) > 0 {
		text.WriteString("        require_approval:\n")
	}
	for _, tool := range slices.Sorted(maps.Keys(h.approved)) {
		fmt.Fprintf(&text, "          - %s # %s approved\n", quotedYAML(tool), count(h.approved[tool], "call"))
	}
	for _, tool := range slices.Sorted(maps.Keys(h.refused)) {
		if h.tools[tool] == 0 {
			fmt.Fprintf(&text, "# refused, and not in it: %s, %s\n", ui.Safe(tool), count(h.refused[tool], "call"))
		}
	}
	return text.String()
}

// quotedYAML is a text as YAML takes it, whatever is in it.
func quotedYAML(text string) string {
	quoted, err := json.Marshal(text)
	if err != nil {
		return `""`
	}
	return string(quoted)
}
