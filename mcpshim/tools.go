package mcpshim

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"subjectbroker/mcpshim/strict"
	"subjectbroker/proto/wire"
	"subjectbroker/worker"
)

// maxName is the longest name that is passed on, in bytes. The daemon refuses
// all beyond 128 and records that; what is longer than this is not worth a
// message.
const maxName = 4096

// Schemas say that nothing else is taken. What a caller adds all the same, a
// subject above all, is not refused but means nothing: the request is judged
// and recorded under the subject of the connection.
const (
	noInput       = `{"type":"object","properties":{},"additionalProperties":false}`
	resourceInput = `{"type":"object","properties":{"resourceId":{"type":"string","description":"Name of the resource, as list_resources gives it."}},"required":["resourceId"],"additionalProperties":false}`
	explainInput  = `{"type":"object","properties":{"resourceId":{"type":"string","description":"Name of the resource."},"action":{"type":"string","description":"What would be done with it; read if left out.","default":"read"}},"required":["resourceId"],"additionalProperties":false}`

	listOutput    = `{"type":"object","properties":{"resources":{"type":"array","items":{"type":"string"}},"reasonCode":{"type":"string"}},"required":["resources","reasonCode"],"additionalProperties":false}`
	readOutput    = `{"type":"object","properties":{"decision":{"type":"string","enum":["allow","deny","pending","error"]},"reasonCode":{"type":"string"},"resourceId":{"type":"string"},"content":{"type":"string"},"encoding":{"type":"string","enum":["base64"]},"approvalId":{"type":"string"}},"required":["decision","reasonCode","resourceId"],"additionalProperties":false}`
	explainOutput = `{"type":"object","properties":{"decision":{"type":"string","enum":["allow","deny","pending","error"]},"reasonCode":{"type":"string"},"resourceId":{"type":"string"},"action":{"type":"string"}},"required":["decision","reasonCode","resourceId","action"],"additionalProperties":false}`
	reportOutput  = `{"type":"object","properties":{"reasonCode":{"type":"string"},"version":{"type":"string"},"daemonVersion":{"type":"string"},"platform":{"type":"string"},"mcpRevision":{"type":"string"},"subjectId":{"type":"string"},"runId":{"type":"string"},"tier":{"type":"string"},"profileId":{"type":"string"},"keySource":{"type":"string"},"auditState":{"type":"string"},"covered":{"type":"array","items":{"type":"string"}},"notProvided":{"type":"array","items":{"type":"string"}}},"required":["reasonCode","version","platform","mcpRevision","subjectId","covered","notProvided"],"additionalProperties":false}`
)

// denials is said wherever an agent may look: they retry what looks like a failure.
const denials = "A denial must not be retried through another connection: ask the person who runs this agent."

// boundary is said with every tool.
func boundary(subject string) string {
	return fmt.Sprintf("This connection is bound to subject %q. %s", subject, denials)
}

// instructions are what the client is told first, before the daemon has said whose
// connection this is. So they name no subject.
const instructions = "Hands out documents that the subject of this connection was granted, each use recorded. " +
	"list_resources names what can be read now, read_resource reads one. " +
	"Where search_knowledge is among the tools there is a memory that agents share: search it before you decide, and capture what others should know. " + denials

// tools are what every shim serves.
func (s *shim) tools() []tool {
	return append([]tool{
		{
			name: "list_resources", title: "List readable resources", input: noInput, output: listOutput,
			description: "Name the resources that this subject may read now; never their content.",
			parse:       func([]strict.Member, string) (ask, *wire.Error) { return listAsk{}, nil },
		},
		{
			name: "read_resource", title: "Read a resource", input: resourceInput, output: readOutput,
			description: "Read one resource. The read is judged and recorded first. Content that is not text comes as base64, with encoding set to base64.",
			parse:       parseRead,
		},
		{
			name: "explain_decision", title: "Explain a decision", input: explainInput, output: explainOutput,
			description: "Say how a request would be judged now, by its public reason code; reads nothing and uses nothing up.",
			parse:       parseExplain,
		},
		{
			name: "capability_report", title: "Report capabilities", input: noInput, output: reportOutput,
			description: "Say what holds for this connection as it was probed: versions, subject, run, tier, profile, what is covered and what is not.",
			parse: func(_ []strict.Member, revision string) (ask, *wire.Error) {
				return reportAsk{version: s.version, subject: s.bound(), revision: revision}, nil
			},
		},
	}, knowledgeTools()...)
}

// describe is the tool as the SDK lists it.
func (t tool) describe(subject string) *mcp.Tool {
	no := false
	return &mcp.Tool{
		Name: t.name, Title: t.title, Description: t.description + " " + boundary(subject),
		InputSchema: json.RawMessage(t.input), OutputSchema: json.RawMessage(t.output),
		Annotations: &mcp.ToolAnnotations{ReadOnlyHint: !t.writes, DestructiveHint: &no, OpenWorldHint: &no},
	}
}

// stringArgument returns a string argument. Absent is ok when it has a default.
func stringArgument(arguments []strict.Member, key, missing string) (value string, ok bool) {
	value, ok = missing, missing != ""
	for _, one := range arguments {
		if one.Key != key {
			continue
		}
		if one.Raw[0] != '"' || !wire.WholeText(one.Raw) {
			return missing, false
		}
		value, ok = strict.Unquote(one.Raw), true
	}
	if len(value) > maxName {
		return missing, false
	}
	return value, ok
}

func malformedUnless(ok bool) *wire.Error {
	if ok {
		return nil
	}
	return wire.Deny(wire.InvalidArgument)
}

// listAsk is a call of list_resources.
type listAsk struct{}

type listResult struct {
	Resources  []string    `json:"resources"`
	ReasonCode wire.Reason `json:"reasonCode"`
}

func (listAsk) handle(ctx context.Context, scope scope) (answer, error) {
	listed, err := scope.list(ctx)
	if err != nil {
		return answer{}, err
	}
	names := make([]string, len(listed))
	for i, one := range listed {
		names[i] = one.Name
	}
	return answer{value: listResult{Resources: names, ReasonCode: wire.Allowed}}, nil
}

func (listAsk) refused(why *wire.Error) any {
	return listResult{Resources: []string{}, ReasonCode: why.Reason}
}

// readAsk is a call of read_resource.
type readAsk struct{ name string }

type readResult struct {
	Decision   string      `json:"decision"`
	ReasonCode wire.Reason `json:"reasonCode"`
	ResourceID string      `json:"resourceId"`
	ApprovalID string      `json:"approvalId,omitempty"` // of the request that waits for a person
}

func parseRead(arguments []strict.Member, _ string) (ask, *wire.Error) {
	name, ok := stringArgument(arguments, "resourceId", "")
	return readAsk{name: name}, malformedUnless(ok)
}

func (r readAsk) handle(ctx context.Context, scope scope) (answer, error) {
	content, release, err := scope.acquire(ctx, r.name)
	if id := waitsFor(err); id != "" {
		return answer{value: readResult{decision(wire.ApprovalPending), wire.ApprovalPending, r.name, id}, denied: true}, nil
	}
	if err != nil {
		return answer{}, err
	}
	head, err := json.Marshal(r.result(wire.Allowed))
	if err != nil {
		release()
		return answer{}, err
	}
	p := &payload{
		head:    append(head[:len(head)-1], `,"content":"`...),
		tail:    []byte(`"}`),
		content: content.Bytes, base64: !isText(content), release: release,
	}
	if p.base64 {
		p.tail = []byte(`","encoding":"base64"}`)
	}
	return answer{payload: p}, nil
}

func (r readAsk) refused(why *wire.Error) any { return r.result(why.Reason) }

func (r readAsk) result(reason wire.Reason) readResult {
	return readResult{Decision: decision(reason), ReasonCode: reason, ResourceID: r.name}
}

// isText says whether content can be shown as text. Text that was declared as
// such may hold anything that is UTF-8; a file has no declaration.
func isText(content worker.Content) bool {
	switch content.Kind {
	case "binary":
		return false
	case "file":
		return utf8.Valid(content.Bytes) && bytes.IndexByte(content.Bytes, 0) < 0
	}
	return utf8.Valid(content.Bytes)
}

// explainAsk is a call of explain_decision.
type explainAsk struct{ name, action string }

type explainResult struct {
	readResult
	Action string `json:"action"`
}

func parseExplain(arguments []strict.Member, _ string) (ask, *wire.Error) {
	name, ok := stringArgument(arguments, "resourceId", "")
	action, also := stringArgument(arguments, "action", "read")
	return explainAsk{name: name, action: action}, malformedUnless(ok && also)
}

func (e explainAsk) handle(ctx context.Context, scope scope) (answer, error) {
	verdict, err := scope.run.Explain(ctx, e.name, e.action)
	if err != nil {
		return answer{}, err
	}
	result := explainResult{readResult{Decision: verdict.Decision, ReasonCode: verdict.Reason, ResourceID: e.name}, e.action}
	return answer{value: result, denied: verdict.Decision != "allow"}, nil
}

func (e explainAsk) refused(why *wire.Error) any {
	return explainResult{readResult{Decision: decision(why.Reason), ReasonCode: why.Reason, ResourceID: e.name}, e.action}
}

// reportAsk is a call of capability_report.
type reportAsk struct{ version, subject, revision string }

type reportResult struct {
	ReasonCode    wire.Reason `json:"reasonCode"`
	Version       string      `json:"version"`
	DaemonVersion string      `json:"daemonVersion,omitempty"`
	Platform      string      `json:"platform"`
	MCPRevision   string      `json:"mcpRevision"`
	SubjectID     string      `json:"subjectId"`
	RunID         string      `json:"runId,omitempty"`
	Tier          string      `json:"tier,omitempty"`
	ProfileID     string      `json:"profileId,omitempty"`
	KeySource     string      `json:"keySource,omitempty"`
	AuditState    string      `json:"auditState,omitempty"`
	Covered       []string    `json:"covered"`
	NotProvided   []string    `json:"notProvided"`
}

func (r reportAsk) handle(ctx context.Context, scope scope) (answer, error) {
	report, err := scope.run.Report(ctx)
	if err != nil {
		return answer{}, err
	}
	// Said only where there is something that it is true of.
	if servers, _, err := scope.run.Servers(ctx); err == nil && len(servers) > 0 {
		report.Covered = append(report.Covered, "Each call of a tool of a hosted server is judged and recorded before the server sees it.")
		report.NotProvided = append(report.NotProvided, "Nobody limits what a hosted server does with a call that was let through.")
	}
	return answer{value: reportResult{
		ReasonCode: wire.Allowed, Version: r.version, DaemonVersion: report.DaemonVersion, Platform: report.Platform, MCPRevision: r.revision,
		SubjectID: report.Subject, RunID: report.RunID, Tier: report.Tier, ProfileID: report.Profile,
		KeySource: report.KeySource, AuditState: report.AuditState, Covered: orEmpty(report.Covered), NotProvided: orEmpty(report.NotProvided),
	}}, nil
}

// refused claims nothing: without a run nothing was probed.
func (r reportAsk) refused(why *wire.Error) any {
	return reportResult{
		ReasonCode: why.Reason, Version: r.version, Platform: runtime.GOOS + "/" + runtime.GOARCH, MCPRevision: r.revision,
		SubjectID: r.subject, Covered: []string{}, NotProvided: []string{},
	}
}

// orEmpty is list, as an array in JSON when there is none.
func orEmpty(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}
