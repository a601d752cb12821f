package main

import (
	"context"
	"encoding/json"
	"fmt"

	"subjectbroker/cmd/sbctl/internal/ui"
)

type auditExportCmd struct {
	auditFilter
	Format string `required:"" enum:"jsonl,subject-broker" placeholder:"jsonl|subject-broker" help:"jsonl: the lines as they are. subject-broker: six fields of every read."`
}

// Help is the manual of audit export.
func (auditExportCmd) Help() string {
	return `The format subject-broker has exactly the fields timestamp, subjectId, resourceId,
action, decision and reasonCode, and only entries of kind acquire with action
read. An entry whose request named no subject or resource that could be written
down is left out, and the number of those is told.

Examples:
  sbctl audit export --format jsonl > log.jsonl
  sbctl audit export --format subject-broker --since 7d`
}

// sixFields is an entry of SubjectBroker's own log, in its order.
type sixFields struct {
	Timestamp  string `json:"timestamp"`
	SubjectID  string `json:"subjectId"`
	ResourceID string `json:"resourceId"`
	Action     string `json:"action"`
	Decision   string `json:"decision"`
	ReasonCode string `json:"reasonCode"`
}

// Run writes the log.
func (c auditExportCmd) Run(ctx context.Context, a *app) error {
	const doing = "exporting the log"
	request, err := c.request(doing, a.now())
	if err != nil {
		return err
	}
	if c.Format == "jsonl" {
		return a.eachLine(ctx, doing, request, func(line []byte) error {
			_, err := a.stdout.Write(line)
			return err
		})
	}
	left := 0
	err = a.eachLine(ctx, doing, request, func(line []byte) error {
		six, relevant, err := toSixFields(line)
		if err != nil || !relevant {
			return err
		}
		if six.SubjectID == "" || six.ResourceID == "" || six.Decision == "" || six.ReasonCode == "" {
			left++
			return nil
		}
		text, err := ui.Encode(six)
		if err != nil {
			return err
		}
		_, err = a.stdout.Write(text)
		return err
	})
	if left > 0 {
		a.say("left out, for want of a subject or a resource: %s", count(left, "entry"))
	}
	return err
}

// toSixFields is the entry in line in the other format, and whether it belongs
// there at all.
func toSixFields(line []byte) (six sixFields, relevant bool, err error) {
	var full struct {
		sixFields
		Kind string `json:"kind"`
	}
	if err := json.Unmarshal(line, &full); err != nil {
		return sixFields{}, false, fmt.Errorf("reading an entry: %w", err)
	}
	if full.Kind != "acquire" || full.Action != "read" {
		return sixFields{}, false, nil
	}
	if full.Decision == "pending" {
		full.Decision = "deny" // the other format has no word for it, and nothing was released
	}
	return full.sixFields, true, nil
}
