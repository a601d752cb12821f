package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

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
	GrantID     string    `json:"grantId"`
	Decision    string    `json:"decision"`
	ReasonCode  string    `json:"reasonCode"`
	Cause       string    `json:"cause"`
	ShimVersion string    `json:"shimVersion"`
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
		return strings.TrimSpace(e.Action + " " + about)
	case e.Capability != "":
		return e.Capability
	case e.ResourceID != "" && e.Action != "" && !strings.Contains(e.Kind, "."):
		return e.Action + ":" + e.ResourceID
	case e.ResourceID != "":
		return e.ResourceID
	case e.GrantID != "":
		return e.GrantID
	}
	return e.Action
}

// capability is what was asked for.
func (e entry) capability() string {
	switch {
	case e.Capability != "":
		return e.Capability
	case e.ResourceID != "" && e.Action != "":
		return e.Action + ":" + e.ResourceID
	}
	return ""
}

// isDenial says whether a worker was refused something. What an operator
// mistyped is none.
func (e entry) isDenial() bool {
	switch e.Kind {
	case "acquire", "explain", "authz", "suppressed", "run.open":
		return e.Decision == "deny" || e.Decision == "error"
	}
	return false
}

// outcome is the decision with its reason and, where it differs, its cause.
func (e entry) outcome() string {
	words := []string{}
	for _, word := range []string{e.Decision, e.ReasonCode, e.Cause} {
		if word != "" {
			words = append(words, word)
		}
	}
	if e.Count > 1 {
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
