package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"subjectbroker/cmd/sbctl/internal/agents"
	"subjectbroker/grants/policy"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

type importCmd struct {
	SubjectBroker importPolicyCmd `cmd:"" name:"subject-broker" help:"Take over a policy file of SubjectBroker"`
	AgentBrake    importBrakeCmd  `cmd:"" name:"agent-brake" help:"Take over a policy file of the proxy agent-brake"`
	Dotenv        importDotenvCmd `cmd:"" help:"Seal the values of a file of NAME=VALUE lines"`
	MCPConfig     importMCPCmd    `cmd:"" name:"mcp-config" help:"Seal the tokens in an agent's configuration of MCP servers"`
}

// Help is the manual of import.
func (importCmd) Help() string {
	return `Takes over what other programs keep in clear. Each import can be done again and
then changes nothing; --dry-run shows what would be done.

A value that is sealed gets kind secret, and nobody may read it until it is
granted. Names are shown, values never. Each import of values ends with the places
where copies may remain, and with what to rotate.

Examples:
  sbctl import dotenv .env --dry-run
  sbctl import mcp-config ~/.claude.json --rewrite
  sbctl import mcp-config ~/.claude.json --host --subject coder
  sbctl import subject-broker policy.yaml`
}

type importPolicyCmd struct {
	File    string   `arg:"" help:"The policy file."`
	Subject []string `placeholder:"S" help:"Only this subject, its rules, and the resources they name; may be repeated."`
	DryRun  bool     `help:"Print what would change, and change nothing."`
}

// Help is the manual of import subject-broker.
func (importPolicyCmd) Help() string {
	return `The file is YAML or JSON with version, storageRoot, subjects, resources and rules,
and is read strictly: what is wrong anywhere in it refuses the whole, with the
line. Resources become registered files pinned by content, rules become grants
for reading, allow and deny. Nothing that is there already is removed.

The storage root must be an absolute path without symbolic links, of mode 0700,
your own, and outside the working directory; every resource lies below it.
Importing the same file again changes nothing. With --subject the whole file is
judged, and only what that subject needs is taken over.

Examples:
  sbctl import subject-broker policy.yaml --dry-run
  sbctl import subject-broker policy.yaml`
}

// formatSubjectBroker is what the daemon calls the format.
const formatSubjectBroker = "subject-broker"

// Run imports a policy.
func (c importPolicyCmd) Run(ctx context.Context, a *app) error {
	doing := "importing " + c.File
	file, err := openPolicy(doing, c.File)
	if err != nil {
		return err
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return fail(err, "%s", doing)
	}
	here, err := workingDir()
	if err != nil {
		return fail(err, "%s", doing)
	}
	text := file.Text()
	if len(c.Subject) > 0 {
		if text, err = narrowed(text, c.Subject); err != nil {
			return refuse(doing, "%s", oneLine(err.Error()))
		}
	}
	got, err := call(ctx, a, doing, &operatorv1.ApplyRequest{
		Document: text, DryRun: c.DryRun, HomeDir: filepath.Clean(home), Format: formatSubjectBroker, WorkingDir: here,
	}, operatorv1.OperatorServiceClient.Apply)
	if err != nil {
		return err
	}
	return a.printChanges(got, c.DryRun)
}

// openImport reads the input of an import. A missing one is the caller's
// mistake, and so is one that is no file.
func openImport(doing, name string, replaceable bool) (*agents.File, error) {
	file, err := agents.OpenFile(name, replaceable)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, refuse(doing, "there is no such file")
	}
	if err != nil {
		return nil, agentFailure(err, doing)
	}
	return file, nil
}

// openPolicy reads a policy of another program, which the daemon parses.
func openPolicy(doing, name string) (*agents.File, error) {
	file, err := openImport(doing, name, false)
	if err == nil && len(file.Text()) > policy.MaxSize {
		return nil, refuse(doing, "a policy has at most %d bytes", policy.MaxSize)
	}
	return file, err
}

// workingDir is where the command was given, links followed.
func workingDir() (string, error) {
	here, err := os.Getwd()
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(here)
}

// narrowed is a policy, in its own format, of some of its subjects alone. The
// whole of it must be right all the same.
func narrowed(text []byte, subjects []string) ([]byte, error) {
	document, report, err := policy.ImportSubjectBroker(text, policy.Env{})
	if err != nil {
		return nil, err
	}
	type resource struct {
		Path string `json:"path"`
	}
	type rule struct {
		Subject  string `json:"subject"`
		Resource string `json:"resource"`
		Action   string `json:"action"`
		Decision string `json:"decision"`
	}
	out := struct {
		Version     int                 `json:"version"`
		StorageRoot string              `json:"storageRoot"`
		Subjects    []string            `json:"subjects"`
		Resources   map[string]resource `json:"resources"`
		Rules       []rule              `json:"rules"`
	}{Version: 1, StorageRoot: report.StorageRoot, Subjects: []string{}, Resources: map[string]resource{}, Rules: []rule{}}
	for _, name := range subjects {
		if _, known := document.Subjects[name]; !known {
			return nil, fmt.Errorf("it has no subject %q", name)
		}
		if !slices.Contains(out.Subjects, name) {
			out.Subjects = append(out.Subjects, name)
		}
	}
	for _, g := range document.Grants {
		if !slices.Contains(out.Subjects, g.Subject) {
			continue
		}
		name := g.Pattern.Object
		out.Resources[name] = resource{document.Resources[name].File}
		out.Rules = append(out.Rules, rule{g.Subject, name, "read", g.Effect.String()})
	}
	return json.Marshal(out)
}
