package main

import (
	"context"
	"errors"

	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

type importBrakeCmd struct {
	File    string `arg:"" help:"The policy file."`
	Subject string `required:"" placeholder:"S" help:"Whose calls it judges."`
	Server  string `required:"" placeholder:"SERVER" help:"The server that it is around, hosted or wrapped; it need not be there yet."`
	DryRun  bool   `help:"Print what would change, and change nothing."`
}

// Help is the manual of import agent-brake.
func (importBrakeCmd) Help() string {
	return `The file is YAML or JSON as that proxy reads it, and is read strictly: what is wrong
anywhere in it, or has no meaning here, refuses the whole, with the line. It
becomes the policy of one subject around one server, in the place of one that is
there, and what that has counted is kept only where the limits are the same.

Every limit holds from then on and survives restarts; on_violation is what is done
when a list of tools or a limit is violated, and "sandbox" means block. Rules about
arguments stay regular expressions: where an argument is a path, a warning says
so, as "/data/../etc" begins with "/data/". Write {path: /data} there instead, in
the document that "export" gives.

Examples:
  sbctl import agent-brake policy.yaml --subject coder --server github --dry-run
  sbctl import agent-brake policy.yaml --subject coder --server github`
}

// Run imports a policy.
func (c importBrakeCmd) Run(ctx context.Context, a *app) error {
	doing := "importing " + c.File
	file, err := openPolicy(doing, c.File)
	if err != nil {
		return err
	}
	if _, err := a.subject(ctx, doing, "show", c.Subject); err != nil {
		if unknown, ok := errors.AsType[*failure](err); ok && unknown.code == wire.InvalidArgument && unknown.hint == listSubjects {
			return unknown.withHint("sbctl subject add %s", shellQuote(c.Subject))
		}
		return err
	}
	got, err := call(ctx, a, doing, &operatorv1.ApplyRequest{
		Document: file.Text(), DryRun: c.DryRun, Format: formatAgentBrake, Subject: c.Subject, Server: c.Server,
	}, operatorv1.OperatorServiceClient.Apply)
	if err != nil {
		return err
	}
	if err := a.printChanges(got, c.DryRun); err != nil {
		return err
	}
	if c.DryRun || len(got.GetChanges()) == 0 {
		return nil
	}
	return a.sayUncalled(ctx, doing, c.Subject, c.Server)
}

// sayUncalled says that a policy does nothing yet, as its subject may not call the
// server, and how it may.
func (a *app) sayUncalled(ctx context.Context, doing, subject, server string) error {
	servers, err := a.servers(ctx, doing)
	if err != nil {
		return err
	}
	if !callsServer(servers, subject, server) {
		a.done("%s may not call %s yet: %s", subject, server, a.paste("grant", subject, "call:"+server+"/*"))
	}
	return nil
}

// callsServer says whether a subject holds a grant to call a server.
func callsServer(servers []*operatorv1.Server, subject, server string) bool {
	for _, s := range servers {
		if s.GetName() != server {
			continue
		}
		for _, name := range s.GetSubjects() {
			if name == subject {
				return true
			}
		}
	}
	return false
}
