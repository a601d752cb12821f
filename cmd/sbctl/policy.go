package main

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"subjectbroker/cmd/sbctl/internal/ui"
	"subjectbroker/grants/policy"
)

type policyCmd struct {
	Lint    policyLintCmd    `cmd:"" help:"Check a document without a daemon"`
	Test    policyTestCmd    `cmd:"" help:"Judge a call by a policy in a file, without a daemon"`
	Suggest policySuggestCmd `cmd:"" help:"Write a strict policy from what was really called"`
	List    policyListCmd    `cmd:"" default:"1" help:"List the policies around servers"`
	Show    policyShowCmd    `cmd:"" help:"Show one policy and what it has counted"`
	Reset   policyResetCmd   `cmd:"" help:"Set what a policy has counted to nothing"`
	Rm      policyRmCmd      `cmd:"" help:"Remove a policy"`
}

// Help is the manual of policy.
func (policyCmd) Help() string {
	return `A policy is the rules around one server for one subject: which tools may be called,
with which arguments, how often, and where a person is asked. A grant says that the
subject may call at all; a policy takes away from that and never adds. No policy
means no limits.

Policies are part of the document that "apply" brings the broker to, and that
"export" writes; "import agent-brake" takes one over from that proxy.`
}

// Formats of a file with policies.
const (
	formatOwn        = ""
	formatAgentBrake = "agent-brake"
)

type policyLintCmd struct {
	File   string `arg:"" help:"The document; - is standard input."`
	Format string `enum:",agent-brake" default:"" placeholder:"agent-brake" help:"agent-brake: it is a policy file of that proxy."`
}

// Help is the manual of policy lint.
func (policyLintCmd) Help() string {
	return `Reads the document with the parser of "apply". Everything that is wrong is
listed with its line, and the exit code is 2; what is legal but likely not meant
is a warning, and the exit code is 0. Wrong are, too, patterns that are none or
take too long, rules that can never match, and tools that no rule leaves.

Examples:
  sbctl policy lint broker.yaml
  sbctl policy lint agent-brake.yaml --format agent-brake`
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
	var warnings []policy.Problem
	if c.Format == formatAgentBrake {
		_, warnings, err = policy.ImportAgentBrake(document, standInSubject, standInServer, envWith(a.now(), standInSubject))
	} else {
		warnings, err = policy.Lint(document, policy.Env{Now: a.now()})
	}
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
		return otherFormat(refuse(doing, "%v", refused), document, c.Format, fmt.Sprintf("sbctl policy lint %s --format agent-brake", shellQuote(c.File)))
	}
	return nil
}

// Whom a policy file of agent-brake is read for where nobody is named.
const (
	standInSubject = "SUBJECT"
	standInServer  = "server"
)

// envWith is what a policy file of agent-brake is read against: somebody that it is
// for.
func envWith(now time.Time, subject string) policy.Env {
	return policy.Env{Now: now, Current: &policy.Document{Subjects: map[string]policy.Subject{subject: {}}}}
}

// otherFormat adds to a refusal of a document the command that reads it as what it
// seems to be.
func otherFormat(f *failure, document []byte, format, command string) *failure {
	if format == formatOwn && (bytes.Contains(document, []byte(`version: "3.0"`)) || bytes.Contains(document, []byte(`"version": "3.0"`))) {
		return f.withHint("%s", command)
	}
	return f
}
