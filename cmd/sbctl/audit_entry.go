package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"subjectbroker/audit/verify"
	"subjectbroker/cmd/sbctl/internal/ui"
)

// entry is what sbctl shows of a line of the log. It judges nothing: verifying
// is the work of audit/verify.
type entry struct {
	Seq         uint64    `json:"seq"`
	Timestamp   time.Time `json:"timestamp"`
	Kind        string    `json:"kind"`
	RunID       string    `json:"runId"`
	SubjectID   string    `json:"subjectId"`
	ResourceID  string    `json:"resourceId"`
	Version     uint32    `json:"version"`
	Action      string    `json:"action"`
	Capability  string    `json:"capability"`
	Server      string    `json:"server"`
	Tool        string    `json:"tool"`
	GrantID     string    `json:"grantId"`
	Decision    string    `json:"decision"`
	ReasonCode  string    `json:"reasonCode"`
	Cause       string    `json:"cause"`
	ShimVersion string    `json:"shimVersion"`
	KeyID       string    `json:"keyId"`
	Count       uint64    `json:"count"`
}

func parseEntry(line []byte) (entry, error) {
	var e entry
	if err := json.Unmarshal(line, &e); err != nil {
		return entry{}, fmt.Errorf("reading an entry: %w", err)
	}
	return e, nil
}

// object is what the entry is about.
func (e entry) object() string {
	switch {
	case e.Kind == "op.intent":
		about := e.Capability
		if about == "" {
			about = e.ResourceID
		}
		if about == "" {
			about = e.called()
		}
		return strings.TrimSpace(e.Action + " " + about)
	case e.Capability != "":
		return e.Capability
	case e.ResourceID != "" && e.Action != "" && !strings.Contains(e.Kind, "."):
		return e.Action + ":" + e.ResourceID
	case e.ResourceID != "":
		return e.ResourceID
	case e.Server != "":
		return e.called()
	case e.GrantID != "":
		return e.GrantID
	}
	return e.Action
}

// called is the server that the entry is about, with its tool.
func (e entry) called() string {
	if e.Tool == "" {
		return e.Server
	}
	return e.Server + "/" + e.Tool
}

// denial is e as `denials` counts it. The daemon asks the same function.
func (e entry) denial() (d verify.Denial, times uint64, ok bool) {
	judged := verify.Entry{
		Kind: e.Kind, SubjectID: e.SubjectID, ResourceID: e.ResourceID, Action: e.Action, Capability: e.Capability, Server: e.Server, Tool: e.Tool,
		Decision: e.Decision, ReasonCode: e.ReasonCode, Cause: e.Cause, Count: e.Count, KeyID: e.KeyID,
	}
	return judged.Denial()
}

// outcome is the decision with its reason and, where it differs, its cause; and
// how many events the entry stands for. The count of other kinds is none of that.
func (e entry) outcome() string {
	var words []string
	for _, word := range []string{e.Decision, e.ReasonCode, e.Cause} {
		if word != "" && !slices.Contains(words, word) {
			words = append(words, word)
		}
	}
	if e.Count > 1 && (e.Kind == "suppressed" || e.Kind == "recovered") {
		words = append(words, fmt.Sprintf("×%d", e.Count))
	}
	return strings.Join(words, " ")
}

// line is the entry as one line of a stream.
func (e entry) line(p *ui.Printer) string {
	return strings.TrimRight(fmt.Sprintf("%6d  %s  %-18s %-16s %-28s %s",
		e.Seq, p.Clock(e.Timestamp.UnixMilli()), e.Kind, e.SubjectID, e.object(), e.outcome()), " ")
}

// entryTable gathers entries into a table.
type entryTable struct {
	ui.List
	app *app
}

func (t *entryTable) add(line []byte) error {
	e, err := parseEntry(line)
	if err != nil {
		return err
	}
	if t.Head == nil {
		t.Head = []string{"SEQ", "TIME", "KIND", "SUBJECT", "OBJECT", "OUTCOME"}
	}
	t.IDs = append(t.IDs, fmt.Sprint(e.Seq))
	t.Rows = append(t.Rows, []string{
		fmt.Sprint(e.Seq), t.app.out.Clock(e.Timestamp.UnixMilli()), e.Kind, e.SubjectID, e.object(), e.outcome(),
	})
	return nil
}
