package main

import (
	"bufio"
	"context"
	"slices"
	"strings"
	"time"

	"subjectbroker/cmd/sbctl/internal/complete"
	"subjectbroker/cmd/sbctl/internal/ui"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/terminal"
)

type completionCmd struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

// Help is the manual of completion.
func (completionCmd) Help() string {
	return `Commands and options are completed from sbctl itself, names and ids from the
daemon when it answers.

Examples:
  source <(sbctl completion bash)
  sbctl completion fish > ~/.config/fish/completions/sbctl.fish`
}

// Run writes the script.
func (c completionCmd) Run(a *app) error {
	return fail(complete.Script(a.stdout, c.Shell, a.model.Name), "writing the completion script")
}

// completePatience bounds what a person at a shell waits for names.
const completePatience = time.Second

type completeCmd struct {
	Words []string `arg:"" optional:"" passthrough:"" help:"The words of the command line up to the cursor."`
}

// Run prints candidates.
func (c completeCmd) Run(ctx context.Context, a *app) error {
	words := c.Words
	if len(words) > 0 && words[0] == "--" {
		words = words[1:] // kong leaves it in passthrough arguments
	}
	ctx, cancel := context.WithTimeout(ctx, completePatience)
	defer cancel()
	a.opts.PassphraseFD, a.tty = nil, func() (*terminal.TTY, error) { return nil, terminal.ErrNone } // nobody is asked in the middle of a line
	a.opts.Home, a.opts.Socket = optionIn(words, "--home"), optionIn(words, "--socket")
	out := bufio.NewWriter(a.stdout)
	for _, candidate := range complete.Words(a.model.Node, words, a.names(ctx)) {
		line := ui.Safe(candidate.Word)
		if candidate.Help != "" {
			line += "\t" + ui.Safe(candidate.Help)
		}
		if _, err := out.WriteString(line + "\n"); err != nil {
			return nil
		}
	}
	_ = out.Flush()
	return nil
}

// optionIn is the value of a long option among words that need not parse.
func optionIn(words []string, option string) string {
	for i, word := range words {
		if value, ok := strings.CutPrefix(word, option+"="); ok {
			return value
		}
		if word == option && i+1 < len(words) {
			return words[i+1]
		}
	}
	return ""
}

// names asks the daemon for names; errors mean that there are none.
func (a *app) names(ctx context.Context) complete.Names {
	return func(sort string, command, typed []string) []complete.Candidate {
		noun := ""
		if len(command) > 0 {
			noun = command[0]
		}
		switch {
		case sort == "s", sort == "subject":
			return a.subjectNames(ctx)
		case sort == "p", sort == "profile":
			return a.profileNames(ctx)
		case sort == "tenant":
			return a.tenantNames(ctx, "")
		case sort == "id" && noun == "agent-key":
			return a.agentKeyNames(ctx)
		case sort == "server":
			return a.serverNames(ctx)
		case sort == "t" && noun == "server" && len(typed) > 0:
			return a.toolNames(ctx, typed[0], "")
		case sort == "r", sort == "name" && noun == "resource":
			return a.resourceNames(ctx, "", "")
		case sort == "name" && noun == "secret":
			return a.resourceNames(ctx, typeSealed, "")
		case sort == "cap":
			return slices.Concat(a.resourceNames(ctx, "", ""), a.resourceNames(ctx, "", "read:"), a.resourceNames(ctx, typeSealed, "use:"), a.callNames(ctx), a.tenantNames(ctx, "memory.read:"), a.tenantNames(ctx, "memory.write:"))
		case sort == "what" && len(typed) == 0:
			return append(a.grantNames(ctx), a.subjectNames(ctx)...)
		case sort == "what" && len(typed) == 1:
			return a.heldCapabilities(ctx, typed[0])
		case sort == "id" && noun == "runs":
			return a.runNames(ctx)
		case sort == "id" && noun == "approvals", sort == "consent":
			return a.approvalNames(ctx, sort == "consent")
		case sort == "name=kind:text":
			return a.whereCandidates(ctx, typed)
		case sort == "tier":
			return tierCandidates(command)
		case sort == "kind" && noun == "memory":
			return entryKindNames()
		case sort == "k" && noun == "audit":
			return kindCandidates()
		}
		return nil
	}
}

func (a *app) subjectNames(ctx context.Context) []complete.Candidate {
	subjects, _ := a.subjects(ctx, "")
	var found []complete.Candidate
	for _, s := range subjects {
		found = append(found, complete.Candidate{Word: s.GetName()})
	}
	return found
}

func (a *app) resourceNames(ctx context.Context, sort, prefix string) []complete.Candidate {
	resources, _ := a.resources(ctx, "")
	var found []complete.Candidate
	for _, r := range resources {
		if sort == "" || r.GetType() == sort {
			found = append(found, complete.Candidate{Word: prefix + r.GetName(), Help: r.GetKind()})
		}
	}
	return found
}

func (a *app) serverNames(ctx context.Context) []complete.Candidate {
	servers, _ := a.servers(ctx, "")
	var found []complete.Candidate
	for _, s := range servers {
		found = append(found, complete.Candidate{Word: s.GetName(), Help: reachedBy(s)})
	}
	return found
}

// toolNames are the tools of a server, each after prefix.
func (a *app) toolNames(ctx context.Context, server, prefix string) []complete.Candidate {
	got, _ := a.server(ctx, "", server, false)
	var found []complete.Candidate
	for _, t := range got.GetTools() {
		if t.GetName() != "" {
			found = append(found, complete.Candidate{Word: prefix + t.GetName(), Help: t.GetState()})
		}
	}
	return found
}

// mostCallServers bounds the servers whose tools are offered.
const mostCallServers = 16

// callNames are the capabilities to call tools of servers.
func (a *app) callNames(ctx context.Context) []complete.Candidate {
	servers, _ := a.servers(ctx, "")
	var found []complete.Candidate
	for _, s := range servers[:min(len(servers), mostCallServers)] {
		prefix := "call:" + s.GetName() + "/"
		found = append(found, complete.Candidate{Word: prefix + "*", Help: "every tool of " + s.GetName()})
		found = append(found, a.toolNames(ctx, s.GetName(), prefix)...)
	}
	return found
}

func (a *app) grantNames(ctx context.Context) []complete.Candidate {
	got, _ := call(ctx, a, "", &operatorv1.ListGrantsRequest{}, operatorv1.OperatorServiceClient.ListGrants)
	var found []complete.Candidate
	for _, g := range got.GetGrants() {
		found = append(found, complete.Candidate{Word: g.GetGrantId(), Help: g.GetSubject() + " " + g.GetEffect() + " " + g.GetCapability()})
	}
	return found
}

func (a *app) heldCapabilities(ctx context.Context, subject string) []complete.Candidate {
	got, _ := call(ctx, a, "", &operatorv1.ListGrantsRequest{Subject: subject}, operatorv1.OperatorServiceClient.ListGrants)
	var found []complete.Candidate
	for _, g := range got.GetGrants() {
		found = append(found, complete.Candidate{Word: g.GetCapability(), Help: g.GetEffect()})
	}
	return found
}

func (a *app) runNames(ctx context.Context) []complete.Candidate {
	got, _ := call(ctx, a, "", &operatorv1.ListRunsRequest{}, operatorv1.OperatorServiceClient.ListRuns)
	var found []complete.Candidate
	for _, r := range got.GetRuns() {
		found = append(found, complete.Candidate{Word: r.GetRunId(), Help: r.GetSubject()})
	}
	for _, l := range got.GetLaunches() {
		found = append(found, complete.Candidate{Word: l.GetLaunchId(), Help: "launch of " + l.GetSubject()})
	}
	return found
}

func (a *app) profileNames(ctx context.Context) []complete.Candidate {
	var found []complete.Candidate
	for _, p := range a.profiles(ctx) {
		found = append(found, complete.Candidate{Word: p.name, Help: "of " + p.subject})
	}
	return found
}

// tierCandidates are the tiers that can be demanded, or assumed to be had.
func tierCandidates(command []string) []complete.Candidate {
	found := []complete.Candidate{
		{Word: tierCooperative, Help: "the same uid, on its word"},
		{Word: tierBound, Help: "in a launch"},
		{Word: tierSandboxed, Help: "in a launch with a closed view"},
		{Word: tierSeparate, Help: "under another uid"},
	}
	if slices.Contains(command, "explain") {
		return found
	}
	return found[:3]
}

func kindCandidates() []complete.Candidate {
	var found []complete.Candidate
	for _, pattern := range kindPatterns() {
		found = append(found, complete.Candidate{Word: pattern})
	}
	return found
}
