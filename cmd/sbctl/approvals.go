package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"subjectbroker/cmd/sbctl/internal/complete"
	"subjectbroker/cmd/sbctl/internal/ui"
	"subjectbroker/grants/policy"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

type approvalsCmd struct {
	List    approvalsListCmd    `cmd:"" default:"withargs" help:"List what waits for an answer, and answers that stand"`
	Show    approvalsShowCmd    `cmd:"" help:"Show what one request is about"`
	Approve approvalsApproveCmd `cmd:"" help:"Let one request through: once, or for longer"`
	Deny    approvalsDenyCmd    `cmd:"" help:"Refuse one request"`
	Revoke  approvalsRevokeCmd  `cmd:"" help:"Take back an answer that stands"`
	Watch   approvalsWatchCmd   `cmd:"" help:"Write each request, and what becomes of it, as it happens"`
}

// Help is the manual of approvals.
func (approvalsCmd) Help() string {
	return `A call or a read that needs a person waits here, for 15 minutes at most, and is
not done before somebody has said yes. What is shown is made by the daemon from the
live request: the exact arguments, with what looks like a secret masked, what would
be handed out, whether the tool's description is the one that was trusted. None of
it is an agent's own account. What is approved is exactly that: other arguments,
another description or other rules are another request.

Approving needs the operator's passphrase, or another operator's uid; an agent of
the same uid cannot answer its own request. The same can be done in "watch", and
"notify" tells when there is something to answer.`
}

// approvalView is the JSON shape of a request.
type approvalView struct {
	ApprovalID string   `json:"approvalId"`
	State      string   `json:"state"`
	SubjectID  string   `json:"subjectId"`
	LaunchID   string   `json:"launchId,omitempty"`
	RunID      string   `json:"runId,omitempty"`
	Tier       string   `json:"tier,omitempty"`
	Server     string   `json:"server,omitempty"`
	Tool       string   `json:"tool,omitempty"`
	ResourceID string   `json:"resourceId,omitempty"`
	Capability string   `json:"capability,omitempty"`
	Arguments  string   `json:"arguments,omitempty"` // JSON text, masked; no JSON any more when cut
	Cut        bool     `json:"cut,omitempty"`
	ArgsDigest string   `json:"argsDigest,omitempty"`
	Pin        string   `json:"pin,omitempty"`
	PinState   string   `json:"pinState,omitempty"`
	Policy     string   `json:"policy,omitempty"`
	Why        string   `json:"why,omitempty"`
	Discloses  []string `json:"discloses"`
	Asked      uint32   `json:"asked"`
	Waiting    uint32   `json:"waiting"`
	Created    string   `json:"created"`
	Expires    string   `json:"expires"`
	Decided    string   `json:"decided,omitempty"`
	Scope      string   `json:"scope,omitempty"`
	Scopes     []string `json:"scopes"`
	Outcome    string   `json:"outcome,omitempty"`
}

func viewApproval(m *operatorv1.Approval) approvalView {
	return approvalView{
		ApprovalID: m.GetApprovalId(), State: m.GetState(), SubjectID: m.GetSubject(), LaunchID: m.GetLaunchId(), RunID: m.GetRunId(), Tier: m.GetTier(),
		Server: m.GetServer(), Tool: m.GetTool(), ResourceID: m.GetResource(), Capability: m.GetCapability(),
		Arguments: string(m.GetArguments()), Cut: m.GetCut(), ArgsDigest: m.GetArgsDigest(), Pin: m.GetPin(), PinState: m.GetPinState(),
		Policy: m.GetPolicy(), Why: m.GetWhy(), Discloses: append([]string{}, m.GetDiscloses()...), Asked: m.GetAsked(), Waiting: m.GetWaiting(),
		Created: ui.Stamp(m.GetCreated()), Expires: ui.Stamp(m.GetExpires()), Decided: ui.Stamp(m.GetDecided()), Scope: m.GetScope(),
		Scopes: append([]string{}, m.GetScopes()...), Outcome: m.GetOutcome(),
	}
}

// consentView is the JSON shape of an answer that stands.
type consentView struct {
	ConsentID  string `json:"consentId"`
	SubjectID  string `json:"subjectId"`
	Server     string `json:"server,omitempty"`
	Tool       string `json:"tool,omitempty"`
	ResourceID string `json:"resourceId,omitempty"`
	Pin        string `json:"pin,omitempty"`
	Covers     string `json:"covers,omitempty"`
	Scope      string `json:"scope"`
	UsesLeft   uint64 `json:"usesLeft,omitempty"`
	EndsWith   string `json:"endsWith,omitempty"`
	Until      string `json:"until,omitempty"`
	Created    string `json:"created"`
	// Where is the rule about arguments, as JSON; Rule is its hash in the log.
	Where json.RawMessage `json:"where,omitempty"`
	Rule  string          `json:"rule,omitempty"`
}

func viewConsent(c *operatorv1.Consent) consentView {
	view := consentView{
		ConsentID: c.GetConsentId(), SubjectID: c.GetSubject(), Server: c.GetServer(), Tool: c.GetTool(), ResourceID: c.GetResource(), Pin: c.GetPin(),
		Covers: c.GetCovers(), Scope: c.GetScope(), UsesLeft: c.GetUsesLeft(), EndsWith: c.GetEndsWith(), Until: ui.Stamp(c.GetUntil()), Created: ui.Stamp(c.GetCreated()), Rule: c.GetRule(),
	}
	if json.Valid(c.GetWhere()) {
		view.Where = c.GetWhere()
	}
	return view
}

// statePending is the state of a request that nobody has answered.
const statePending = "pending"

// approvalObject is what a request is about, in a word or two.
func approvalObject(m *operatorv1.Approval) string {
	switch {
	case m.GetTool() != "":
		return m.GetServer() + "/" + m.GetTool()
	case m.GetCapability() != "":
		return m.GetCapability()
	}
	return m.GetResource()
}

// scopeWords say for how long an answer holds.
func scopeWords(scope string) string {
	switch scope {
	case "run":
		return "run: until this run ends"
	case "launch":
		return "launch: until this launch ends"
	}
	return scope
}

// pinWords say whether a tool is what was trusted.
func pinWords(state string) string {
	switch state {
	case "trusted":
		return "trusted: the description is the one that was trusted"
	case "changed":
		return "changed: the description is not the one that was trusted"
	case "untrusted":
		return "untrusted: nobody has looked at the description yet"
	}
	return state
}

// argumentsInCell is how much of the arguments a table shows, in characters.
const argumentsInCell = 48

// shortened is text up to n characters.
func shortened(text string, n int) string {
	text = ui.Safe(text) // what becomes longer by being made visible counts as such
	if runes := []rune(text); len(runes) > n {
		return string(runes[:n-1]) + "…"
	}
	return text
}

var (
	approvalHead = []string{"APPROVAL", "SUBJECT", "WHAT", "STATE", "ASKED", "EXPIRES", "ARGUMENTS"}
	consentHead  = []string{"CONSENT", "SUBJECT", "WHAT", "COVERS", "SCOPE", "LEFT", "UNTIL"}
)

func (a *app) approvalRows(approvals []*operatorv1.Approval) [][]string {
	var rows [][]string
	for _, m := range approvals {
		state := m.GetState()
		if m.GetOutcome() != "" {
			state += " " + m.GetOutcome()
		}
		ends := a.out.When(m.GetExpires())
		if m.GetState() != statePending {
			ends = "-"
		}
		rows = append(rows, []string{
			m.GetApprovalId(), m.GetSubject(), approvalObject(m), state, fmt.Sprintf("×%d", m.GetAsked()), ends,
			shortened(string(m.GetArguments()), argumentsInCell),
		})
	}
	return rows
}

func (a *app) consentRows(consents []*operatorv1.Consent) [][]string {
	var rows [][]string
	for _, c := range consents {
		what := c.GetResource()
		if c.GetTool() != "" {
			what = c.GetServer() + "/" + c.GetTool()
		}
		left := ""
		if c.GetUsesLeft() > 0 {
			left = fmt.Sprint(c.GetUsesLeft())
		}
		scope := c.GetScope()
		if c.GetEndsWith() != "" {
			scope += " " + c.GetEndsWith()
		}
		rows = append(rows, []string{c.GetConsentId(), c.GetSubject(), what, c.GetCovers(), scope, left, a.out.When(c.GetUntil())})
	}
	return rows
}

// approvalFields are the lines of a request.
func approvalFields(out *ui.Printer, m *operatorv1.Approval) []ui.Field {
	arguments := string(m.GetArguments())
	if m.GetCut() {
		arguments += " … cut: there is more"
	}
	asked := "once"
	if m.GetAsked() > 1 {
		asked = fmt.Sprintf("%d times", m.GetAsked())
	}
	waiting := ""
	if m.GetWaiting() > 0 {
		waiting = count(int(m.GetWaiting()), "caller")
	}
	who := m.GetSubject()
	if m.GetTier() != "" {
		who += " (" + m.GetTier() + ")"
	}
	fields := []ui.Field{
		{Name: "approval", Value: m.GetApprovalId()},
		{Name: "state", Value: m.GetState()},
		{Name: "subject", Value: who},
		{Name: "launch", Value: m.GetLaunchId()},
		{Name: "run", Value: m.GetRunId()},
		{Name: "what", Value: approvalObject(m)},
		{Name: "arguments", Value: arguments},
		{Name: "digest", Value: m.GetArgsDigest()},
		{Name: "discloses", Value: strings.Join(m.GetDiscloses(), "; ")},
		{Name: "description", Value: pinWords(m.GetPinState())},
		{Name: "why", Value: m.GetWhy()},
		{Name: "policy", Value: m.GetPolicy()},
		{Name: "asked", Value: asked + ", first " + out.When(m.GetCreated())},
		{Name: "waiting", Value: waiting},
	}
	if m.GetState() == statePending {
		return append(fields, ui.Field{Name: "expires", Value: out.When(m.GetExpires())}, ui.Field{Name: "scopes", Value: strings.Join(m.GetScopes(), ", ")})
	}
	if m.GetDecided() != 0 {
		fields = append(fields, ui.Field{Name: "decided", Value: out.When(m.GetDecided())})
	}
	return append(fields, ui.Field{Name: "scope", Value: scopeWords(m.GetScope())}, ui.Field{Name: "outcome", Value: withMeaning(m.GetOutcome())})
}

type approvalsListCmd struct {
	All     bool   `help:"Also those that were answered or have ended."`
	Subject string `placeholder:"S" help:"Only those of this subject."`
}

// Help is the manual of approvals list.
func (approvalsListCmd) Help() string {
	return `What waits comes first, the newest at the top. ASKED is how often the same was asked.
Answers that stand for more than one call are listed below, with what each covers;
"approvals revoke" takes one back. With --all the requests that they were given to are
"approved" for as long as they stand, and then "settled" with how that ended: used-up,
expired, ended (with the run or launch), revoked. Of what is void or has expired it is
said why.

In JSON "items" are the requests and "consents" those answers.

Examples:
  sbctl approvals
  sbctl approvals list --all -o json`
}

// approvalsView is the JSON shape of the list.
type approvalsView struct {
	Schema   int            `json:"schema"`
	Items    []approvalView `json:"items"`
	Consents []consentView  `json:"consents"`
}

// Run lists requests and answers that stand.
func (c approvalsListCmd) Run(ctx context.Context, a *app) error {
	const doing = "listing approvals"
	got, err := call(ctx, a, doing, &operatorv1.ListApprovalsRequest{All: c.All, Subject: c.Subject}, operatorv1.OperatorServiceClient.ListApprovals)
	if err != nil {
		return err
	}
	if !c.All { // what waits for an answer comes before what was approved and is not done yet
		slices.SortStableFunc(got.GetApprovals(), func(a, b *operatorv1.Approval) int {
			return cmp.Compare(answeredOne(a), answeredOne(b))
		})
	}
	view := approvalsView{Schema: 1, Items: []approvalView{}, Consents: []consentView{}}
	list := ui.List{Head: approvalHead, Rows: a.approvalRows(got.GetApprovals())}
	for _, m := range got.GetApprovals() {
		list.IDs = append(list.IDs, m.GetApprovalId())
		view.Items = append(view.Items, viewApproval(m))
	}
	for _, consent := range got.GetConsents() {
		view.Consents = append(view.Consents, viewConsent(consent))
	}
	if a.out.Format == ui.JSON && !a.out.Quiet {
		return a.out.Object(ui.Object{Value: view})
	}
	if err := a.list(list, "nothing waits for an answer"); err != nil {
		return err
	}
	if err := a.out.Section("Answers that stand", consentHead, a.consentRows(got.GetConsents())); err != nil {
		return err
	}
	return a.sayNobodyApproves(ctx, doing)
}

// answeredOne is 0 for a request that waits for an answer, and 1 for any other.
func answeredOne(m *operatorv1.Approval) int {
	if m.GetState() == statePending {
		return 0
	}
	return 1
}

// warn says what the daemon has to say about what was done.
func (a *app) warn(warnings []string) {
	for _, warning := range warnings {
		a.say("%s", warning)
	}
}

// sayNobodyApproves tells a person when no request can be answered at all.
func (a *app) sayNobodyApproves(ctx context.Context, doing string) error {
	if a.out.Format == ui.JSON || a.out.Quiet {
		return nil
	}
	status, err := a.status(ctx, doing)
	if err == nil && !status.GetApprovable() && status.GetVaultState() == "unlocked" {
		a.say("nobody can approve here, so what needs it is denied: set a passphrase with %s", a.paste("operator", "set-passphrase"))
	}
	return err
}

// approval is the one request whose id begins with prefix; without one, the only one
// that is pending.
func (a *app) approval(ctx context.Context, doing, prefix string) (*operatorv1.Approval, error) {
	got, err := call(ctx, a, doing, &operatorv1.ListApprovalsRequest{ApprovalId: prefix}, operatorv1.OperatorServiceClient.ListApprovals)
	if err != nil {
		return nil, err
	}
	found := got.GetApprovals()
	if exact := slices.IndexFunc(found, func(m *operatorv1.Approval) bool { return m.GetApprovalId() == prefix }); exact >= 0 {
		return found[exact], nil
	}
	if prefix == "" {
		found = slices.DeleteFunc(found, func(m *operatorv1.Approval) bool { return m.GetState() != statePending })
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) == 0 && prefix == "":
		return nil, refuse(doing, "nothing waits for an answer").withHint("sbctl approvals list --all")
	case len(found) == 0:
		return nil, refuse(doing, "no request has an id that begins with %s", prefix).withHint("sbctl approvals list --all")
	case prefix == "":
		return nil, refuse(doing, "%d requests wait for an answer: say which", len(found)).withHint("sbctl approvals list")
	}
	return nil, refuse(doing, "the ids of %d requests begin with %s", len(found), prefix).withHint("sbctl approvals list --all")
}

type approvalsShowCmd struct {
	ID string `arg:"" optional:"" help:"Id of the request, or its unique beginning; may be left out when only one is pending."`
}

// Help is the manual of approvals show.
func (approvalsShowCmd) Help() string {
	return `Arguments are the exact ones, but for what looks like a secret and what a terminal
would act on. The digest stands for all of them, also where the text is cut. "covers"
says what else an answer that still stands lets through, and "rule" is the hash by
which the log names it.

Examples:
  sbctl approvals show
  sbctl approvals show kmpx -o json`
}

// Run shows one request.
func (c approvalsShowCmd) Run(ctx context.Context, a *app) error {
	doing := strings.TrimSpace("showing approval " + c.ID)
	m, err := a.approval(ctx, doing, c.ID)
	stands := a.standing(ctx, doing, c.ID, m)
	switch {
	case err != nil && stands == nil:
		return err
	case err != nil: // only the answer is left
		return a.out.Object(ui.Object{ID: stands.GetConsentId(), Fields: consentFields(a.out, stands), Value: viewConsent(stands)})
	}
	view := decisionView{approvalView: viewApproval(m)}
	fields := approvalFields(a.out, m)
	if stands != nil {
		consent := viewConsent(stands)
		view.Consent = &consent
		fields = append(fields, consentFields(a.out, stands)[3:]...)
	}
	return a.out.Object(ui.Object{ID: m.GetApprovalId(), Fields: fields, Value: view})
}

// standing is the one answer that stands of a request, or whose id begins with prefix
// where there is no request any more; nil: there is none.
func (a *app) standing(ctx context.Context, doing, prefix string, m *operatorv1.Approval) *operatorv1.Consent {
	if m != nil {
		prefix = m.GetApprovalId()
	}
	if prefix == "" {
		return nil
	}
	got, err := call(ctx, a, doing, &operatorv1.ListApprovalsRequest{ApprovalId: prefix}, operatorv1.OperatorServiceClient.ListApprovals)
	if err != nil || len(got.GetConsents()) != 1 {
		return nil
	}
	return got.GetConsents()[0]
}

// consentFields are the lines of an answer that stands. The first three say whose it
// is.
func consentFields(out *ui.Printer, c *operatorv1.Consent) []ui.Field {
	what, left := c.GetResource(), ""
	if c.GetTool() != "" {
		what = c.GetServer() + "/" + c.GetTool()
	}
	if c.GetUsesLeft() > 0 {
		left = fmt.Sprint(c.GetUsesLeft())
	}
	fields := []ui.Field{
		{Name: "consent", Value: c.GetConsentId()}, {Name: "subject", Value: c.GetSubject()}, {Name: "what", Value: what},
		{Name: "covers", Value: c.GetCovers()}, {Name: "rule", Value: c.GetRule()}, {Name: "holds", Value: scopeWords(c.GetScope())}, {Name: "left", Value: left},
		{Name: "ends with", Value: c.GetEndsWith()},
	}
	if c.GetUntil() != 0 {
		fields = append(fields, ui.Field{Name: "until", Value: out.When(c.GetUntil())})
	}
	return fields
}

type approvalsApproveCmd struct {
	ID      string `arg:"" optional:"" help:"Id of the request, or its unique beginning; may be left out when only one is pending."`
	Once    bool   `xor:"scope" help:"This one call (default)."`
	Uses    uint32 `xor:"scope" placeholder:"N" help:"This call and the same again, N in all."`
	Session bool   `xor:"scope" help:"The same until the launch, or the run, ends."`
	Until   string `xor:"scope" placeholder:"T" help:"The same until then: 18:00, tomorrow 09:00 or RFC 3339; 7 days at most."`
	For     string `xor:"scope" placeholder:"D" help:"The same for so long: 30m, 2h, 7d at most."`

	Where     []string `sep:"none" xor:"where" placeholder:"NAME=KIND:TEXT" help:"And calls in which that argument is something else that matches; for more than once. Repeatable."`
	WhereJSON string   `name:"where-json" xor:"where" placeholder:"JSON" help:"The same as one JSON object, as rules about arguments in policies."`
}

// Help is the manual of approvals approve.
func (approvalsApproveCmd) Help() string {
	return `Shows first what the request is about, and asks, where there is a terminal and not
--yes. What is approved is what was shown: if the request is not the same any more,
nothing is. The call that waits goes on at once; a later try of the same call runs
once.

More than once is possible for a read, and for a tool whose description is trusted.
Such an answer covers what "approvals list" then says, nothing else: the same again,
or, with --where, calls that differ in the arguments that it names and nowhere else.

--where NAME=KIND:TEXT: the argument NAME, up to the first "=", may be whatever
matches; KIND, up to the next ":", is a matcher of policies, and TEXT is all that
follows:
  path     a file or folder, or what is below it; .. and links are resolved. Files are
           named so, not by their beginning: /data/../etc begins with /data/
  prefix   text that begins so            exact  this and nothing else
  oneOf    one of these                   host   a URL of that host
  regex    a pattern of RE2, anywhere in it
The same NAME and KIND again is one more TEXT (not of exact and regex); another NAME
must match as well. A NAME that begins with "/" is a JSON pointer. A name with "="
in it, and whatever else, goes into --where-json. The rule must match the call that is
shown. An argument stays of its kind: text stays text.

Examples:
  sbctl approvals approve
  sbctl approvals approve kmpx --for 1h
  sbctl approvals approve kmpx --where path=path:/data --where mode=oneOf:r
  sbctl approvals approve kmpx --session --where-json '{"/to/0": {"exact": "me"}}'
  pass show broker/operator | sbctl approvals approve kmpx --passphrase-fd 0`
}

// request is the answer that the options describe, for a request that was shown.
func (c approvalsApproveCmd) request(doing string, m *operatorv1.Approval, now time.Time) (*operatorv1.DecideApprovalRequest, error) {
	request := &operatorv1.DecideApprovalRequest{ApprovalId: m.GetApprovalId(), Approve: true, Scope: "once", ArgsDigest: m.GetArgsDigest()}
	switch {
	case c.Uses > 0:
		request.Scope, request.Uses = "uses", c.Uses
		if c.Uses == 1 {
			request.Scope, request.Uses = "once", 0
		}
	case c.Session:
		request.Scope = "session"
	case c.Until != "":
		at, err := policy.ParseUntil(c.Until, now)
		if err != nil {
			return nil, refuse(doing, "--until: %v", err)
		}
		request.Scope, request.Until = "until", at.UnixMilli()
	case c.For != "":
		span, err := policy.ParseTTL(c.For)
		if err != nil {
			return nil, refuse(doing, "--for: %v", err)
		}
		request.Scope, request.Until = "until", now.Add(span).UnixMilli()
	}
	if !slices.Contains(m.GetScopes(), request.GetScope()) {
		refused := refuse(doing, "this can be approved only: %s", strings.Join(m.GetScopes(), ", "))
		if m.GetPinState() != "" && m.GetPinState() != "trusted" {
			refused.what += "; the tool's description is " + m.GetPinState()
		}
		return nil, refused
	}
	return request, c.where(doing, request)
}

// answerWords are the question about an answer.
func answerWords(request *operatorv1.DecideApprovalRequest, where string, out *ui.Printer) string {
	what := "this"
	if where != "" {
		what = "this, and the same where " + ui.Safe(where) + ","
	}
	switch request.GetScope() {
	case "uses":
		return fmt.Sprintf("Approve %d of %s?", request.GetUses(), strings.TrimSuffix(what, ","))
	case "session":
		return "Approve " + what + " until the session ends?"
	case "until":
		return "Approve " + what + " until " + out.When(request.GetUntil()) + "?"
	}
	return "Approve this once?"
}

// decisionView is the JSON shape of an answer.
type decisionView struct {
	approvalView
	Consent *consentView `json:"consent,omitempty"`
}

// Run approves.
func (c approvalsApproveCmd) Run(ctx context.Context, a *app) error {
	doing := strings.TrimSpace("approving " + c.ID)
	m, err := a.approval(ctx, doing, c.ID)
	if err != nil {
		return err
	}
	if m.GetState() != statePending {
		return refuse(doing, "it is %s already", m.GetState()).withHint("sbctl approvals list")
	}
	request, err := c.request(doing, m, a.now())
	if err != nil {
		return err
	}
	if a.out.Format != ui.JSON && !a.out.Quiet {
		if c.looksLikeFiles() {
			a.say("prefix and regex see text, and /data/../etc begins with /data/: path is the matcher for files, host the one for URLs")
		}
		shown := *a.out
		shown.Out = a.stderr
		if err := shown.Object(ui.Object{Fields: approvalFields(a.out, m)}); err != nil {
			return fail(err, "%s", doing)
		}
	}
	if err := a.confirmApproval(ctx, doing, answerWords(request, c.whereWords(), a.out)); err != nil {
		return err
	}
	got, err := call(ctx, a, doing, request, operatorv1.OperatorServiceClient.DecideApproval)
	if err != nil {
		return err
	}
	return a.printDecision(got, request.GetUses())
}

// confirmApproval asks a person who is there. Where nobody is, the passphrase is
// what says that somebody means it.
func (a *app) confirmApproval(ctx context.Context, doing, question string) error {
	if a.opts.Yes || a.passphraseFD() != nil {
		return nil
	}
	tty, err := a.tty()
	if err != nil {
		return nil
	}
	_ = tty.Close()
	return a.confirm(ctx, doing, question)
}

// printDecision tells of an answer; uses: how many it is for, 0 where they are not
// counted.
func (a *app) printDecision(got *operatorv1.DecideApprovalResponse, uses uint32) error {
	m := got.GetApproval()
	view := decisionView{approvalView: viewApproval(m)}
	fields := []ui.Field{
		{Name: "approval", Value: m.GetApprovalId()}, {Name: "subject", Value: m.GetSubject()}, {Name: "what", Value: approvalObject(m)},
		{Name: "state", Value: m.GetState()}, {Name: "scope", Value: scopeWords(m.GetScope())},
	}
	if uses > 0 {
		fields = append(fields, ui.Field{Name: "uses", Value: fmt.Sprintf("%d in all", uses)})
	}
	if consent := got.GetConsent(); consent != nil {
		standing := viewConsent(consent)
		view.Consent = &standing
		fields = append(fields, ui.Field{Name: "consent", Value: consent.GetConsentId()}, ui.Field{Name: "covers", Value: consent.GetCovers()})
		if consent.GetUntil() != 0 {
			fields = append(fields, ui.Field{Name: "until", Value: a.out.When(consent.GetUntil())})
		}
	}
	return a.out.Object(ui.Object{ID: m.GetApprovalId(), Fields: fields, Value: view})
}

type approvalsDenyCmd struct {
	ID string `arg:"" optional:"" help:"Id of the request, or its unique beginning; may be left out when only one is pending."`
}

// Help is the manual of approvals deny.
func (approvalsDenyCmd) Help() string {
	return `The call that waits is refused at once. The agent may ask again; after three refusals
of the same within an hour it is denied without anybody being asked. "grant --deny"
keeps it from asking at all.

Examples:
  sbctl approvals deny kmpx`
}

// Run denies.
func (c approvalsDenyCmd) Run(ctx context.Context, a *app) error {
	doing := strings.TrimSpace("denying " + c.ID)
	m, err := a.approval(ctx, doing, c.ID)
	if err != nil {
		return err
	}
	if m.GetState() != statePending {
		return refuse(doing, "it is %s already", m.GetState()).withHint("sbctl approvals list")
	}
	got, err := call(ctx, a, doing, &operatorv1.DecideApprovalRequest{ApprovalId: m.GetApprovalId()}, operatorv1.OperatorServiceClient.DecideApproval)
	if err != nil {
		return err
	}
	return a.printDecision(got, 0)
}

type approvalsRevokeCmd struct {
	Consent string `arg:"" help:"Id of the answer that stands, or its unique beginning."`
}

// Help is the manual of approvals revoke.
func (approvalsRevokeCmd) Help() string {
	return `The next such call waits for a person again. What runs already is not ended.

Examples:
  sbctl approvals revoke kmpx`
}

// Run revokes a standing answer.
func (c approvalsRevokeCmd) Run(ctx context.Context, a *app) error {
	got, err := call(ctx, a, "revoking the answer "+c.Consent, &operatorv1.RevokeConsentRequest{ConsentId: c.Consent}, operatorv1.OperatorServiceClient.RevokeConsent)
	if refused, ok := errors.AsType[*failure](err); ok && refused.code == wire.InvalidArgument {
		return refused.withHint("sbctl approvals list")
	}
	if err != nil {
		return err
	}
	consent := got.GetConsent()
	what := consent.GetResource()
	if consent.GetTool() != "" {
		what = consent.GetServer() + "/" + consent.GetTool()
	}
	return a.out.Object(ui.Object{
		ID: consent.GetConsentId(), Value: viewConsent(consent),
		Fields: []ui.Field{
			{Name: "revoked", Value: consent.GetConsentId()}, {Name: "subject", Value: consent.GetSubject()}, {Name: "what", Value: what},
			{Name: "covered", Value: consent.GetCovers()}, {Name: "scope", Value: scopeWords(consent.GetScope())},
		},
	})
}

type approvalsWatchCmd struct{}

// Help is the manual of approvals watch.
func (approvalsWatchCmd) Help() string {
	return `First what is pending, then every change, one line each, until interrupted. "watch"
is the screen on which they can be answered.

Examples:
  sbctl approvals watch
  sbctl approvals watch -o json | jq 'select(.state == "pending")'`
}

// Run writes requests as they come.
func (approvalsWatchCmd) Run(ctx context.Context, a *app) error {
	const doing = "watching approvals"
	operator, err := a.operator(ctx)
	if err != nil {
		return err
	}
	stream, err := operator.WatchApprovals(ctx, &operatorv1.WatchApprovalsRequest{})
	if err != nil {
		return fail(err, doing)
	}
	for {
		change, err := stream.Recv()
		if errors.Is(err, io.EOF) || interrupted(ctx, err) {
			return nil
		}
		if err != nil {
			return fail(err, doing)
		}
		m := change.GetApproval()
		if m == nil {
			continue
		}
		if a.out.Quiet {
			_, err = fmt.Fprintln(a.stdout, ui.Safe(m.GetApprovalId()))
		} else {
			err = a.out.Event(viewApproval(m), a.approvalLine(m))
		}
		if err != nil {
			return fail(err, doing)
		}
	}
}

// approvalLine is a request as a line of a stream.
func (a *app) approvalLine(m *operatorv1.Approval) string {
	at := m.GetCreated()
	if m.GetDecided() > 0 {
		at = m.GetDecided()
	}
	state := strings.TrimSpace(m.GetState() + " " + m.GetOutcome())
	return strings.TrimRight(fmt.Sprintf("%s  %s  %-14s %-16s %-28s %s", a.out.Clock(at), m.GetApprovalId(), state, m.GetSubject(), approvalObject(m),
		shortened(string(m.GetArguments()), argumentsInCell)), " ")
}

// approvalNames are the ids of what is pending, or of answers that stand.
func (a *app) approvalNames(ctx context.Context, standing bool) []complete.Candidate {
	got, _ := call(ctx, a, "", &operatorv1.ListApprovalsRequest{}, operatorv1.OperatorServiceClient.ListApprovals)
	var found []complete.Candidate
	if standing {
		for _, c := range got.GetConsents() {
			found = append(found, complete.Candidate{Word: c.GetConsentId(), Help: c.GetSubject() + " " + c.GetCovers()})
		}
		return found
	}
	for _, m := range got.GetApprovals() {
		found = append(found, complete.Candidate{Word: m.GetApprovalId(), Help: m.GetSubject() + " " + approvalObject(m)})
	}
	return found
}
