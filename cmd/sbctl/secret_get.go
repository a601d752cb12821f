package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"

	"subjectbroker/cmd/sbctl/internal/content"
	"subjectbroker/cmd/sbctl/internal/ui"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/terminal"
	"subjectbroker/proto/wire"
)

type secretGetCmd struct {
	Name    string `arg:"" help:"Name of the resource."`
	Version uint32 `placeholder:"N" help:"Version; the newest when not given."`
	Reveal  bool   `help:"Show a secret on the terminal."`
	Raw     bool   `help:"Write the exact bytes also to a terminal."`
}

// Help is the manual of secret get.
func (secretGetCmd) Help() string {
	return `The disclosure is recorded in the audit log before anything is shown.

A file or a pipe gets the exact bytes. On a terminal content of kind secret needs
--reveal, control characters are made visible, and binary content needs --raw.
In JSON, content that is not UTF-8 is base64 and "encoding" says so.

Examples:
  sbctl secret get design-doc
  sbctl secret get github.token --reveal
  sbctl secret get logo --version 2 > logo.png`
}

type contentView struct {
	ResourceID string `json:"resourceId"`
	Kind       string `json:"kind"`
	Version    uint32 `json:"version"`
	Bytes      int    `json:"bytes"`
	Content    string `json:"content"`
	Encoding   string `json:"encoding,omitempty"`
}

// Run discloses the content.
func (c secretGetCmd) Run(ctx context.Context, a *app) error {
	doing := "reading " + c.Name
	shown := terminal.Is(a.stdout)
	if shown && !a.out.Quiet {
		// Asked before, so that a refusal discloses and records nothing.
		kind, err := a.kindOf(ctx, doing, c.Name)
		if err != nil {
			return err
		}
		if kind == content.Secret && !c.Reveal {
			return refuse(doing, "it is a secret, and would be shown on this terminal: add --reveal")
		}
		if kind == content.Binary && !c.Raw && a.out.Format != ui.JSON {
			return refuse(doing, "it is binary, and a terminal would obey what it contains: add --raw, or redirect the output")
		}
	}
	got, err := call(ctx, a, doing, &operatorv1.GetSecretRequest{Name: c.Name, Version: c.Version}, operatorv1.OperatorServiceClient.GetSecret)
	if err != nil {
		return err
	}
	b := content.Bytes(got.GetContent())
	defer b.Wipe()
	if a.out.Quiet || (a.out.Format == ui.JSON && !c.Raw) {
		view := contentView{ResourceID: got.GetName(), Kind: got.GetKind(), Version: got.GetVersion(), Bytes: len(b), Content: string(b)}
		if content.KindOf(b) != content.Text {
			view.Content, view.Encoding = base64.StdEncoding.EncodeToString(b), "base64"
		}
		return a.out.Object(ui.Object{ID: got.GetName(), Value: view})
	}
	if err := a.writeContent(b, shown && !c.Raw); err != nil {
		return &failure{code: wire.InternalError, doing: doing, what: err.Error(), exit: wire.ExitFailed, cause: err}
	}
	return nil
}

// writeContent writes b as it is, or made safe for a terminal.
func (a *app) writeContent(b content.Bytes, safe bool) error {
	if !safe {
		_, err := a.stdout.Write(b)
		return err
	}
	text := ui.SafeText(string(b))
	if !bytes.HasSuffix(b, []byte("\n")) {
		text += "\n"
	}
	_, err := fmt.Fprint(a.stdout, text)
	return err
}

// kindOf is the kind of a resource.
func (a *app) kindOf(ctx context.Context, doing, name string) (string, error) {
	got, err := call(ctx, a, doing, &operatorv1.GetResourceRequest{Name: name}, operatorv1.OperatorServiceClient.GetResource)
	if err != nil {
		return "", err
	}
	return got.GetResource().GetKind(), nil
}
