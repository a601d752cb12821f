package main

import (
	"errors"
	"fmt"

	"subjectbroker/cmd/sbctl/internal/ui"
	"subjectbroker/grants/policy"
)

type policyCmd struct {
	Lint policyLintCmd `cmd:"" help:"Check a document without a daemon"`
}

// Help is the manual of policy.
func (policyCmd) Help() string {
	return `A document names resources, subjects, profiles, tools and grants; "apply" brings the
broker to it, "export" writes it.`
}

type policyLintCmd struct {
	File string `arg:"" help:"The document; - is standard input."`
}

// Help is the manual of policy lint.
func (policyLintCmd) Help() string {
	return `Reads the document with the parser of "apply". Everything that is wrong is
listed with its line, and the exit code is 2; what is legal but likely not meant
is a warning, and the exit code is 0.

Examples:
  sbctl policy lint broker.yaml`
}

type problemView struct {
	Severity string `json:"severity"`
	Line     int    `json:"line,omitempty"`
	Message  string `json:"message"`
}

// Run checks the document.
func (c policyLintCmd) Run(a *app) error {
	doing := "checking " + c.File
	document, err := a.readDocument(doing, c.File)
	if err != nil {
		return err
	}
	warnings, err := policy.Lint(document, policy.Env{Now: a.now()})
	refused, isRefused := errors.AsType[*policy.Error](err)
	if err != nil && !isRefused {
		return fail(err, "%s", doing)
	}
	list := ui.List{Head: []string{"SEVERITY", "LINE", "MESSAGE"}}
	views := []problemView{}
	add := func(severity string, problems []policy.Problem) {
		for _, p := range problems {
			line := ""
			if p.Line > 0 {
				line = fmt.Sprint(p.Line)
			}
			views = append(views, problemView{severity, p.Line, p.Text})
			list.Rows = append(list.Rows, []string{severity, line, p.Text})
			list.IDs = append(list.IDs, line)
		}
	}
	if isRefused {
		add("error", refused.Problems)
	}
	add("warning", warnings)
	list.Items = views
	if err := a.list(list, "nothing is wrong"); err != nil {
		return err
	}
	if isRefused {
		return refuse(doing, "%v", refused)
	}
	return nil
}
