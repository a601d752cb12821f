package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"subjectbroker/cmd/sbctl/internal/content"
	"subjectbroker/cmd/sbctl/internal/ui"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/terminal"
	"subjectbroker/proto/wire"
)

type secretPutCmd struct {
	Name     string `arg:"" help:"Name of the resource: letters, digits, dot, dash, underscore."`
	Stdin    string `arg:"" optional:"" name:"-" help:"Read the content from standard input."`
	FromFile string `placeholder:"F" help:"Read the content from this file; - is standard input."`
	Kind     string `enum:",text,secret,binary" default:"" placeholder:"text|secret|binary" help:"Kind of the content. Default: secret when typed; else text when it is UTF-8 without NUL, else binary."`
	Note     string `placeholder:"T" help:"A note for people; without it the present one stays."`
	Domain   string `enum:",personal" default:"" placeholder:"personal" help:"personal: only the operator who puts it can grant it or look at it. A name keeps its domain."`
	IfAbsent bool   `help:"Refuse when the name exists already."`
	Trim     bool   `xor:"newline" help:"Remove one newline at the end."`
	Exact    bool   `xor:"newline" help:"Keep a newline at the end of a secret from standard input."`
}

// Help is the manual of secret put.
func (secretPutCmd) Help() string {
	return `Without --from-file and - the content is typed on the terminal and not shown.

Bytes that look like a known token or a private key need an explicit --kind, so
that no credential becomes an ordinary document by oversight. A secret from
standard input that ends in one newline is refused: echo and editors add one,
and it would become part of the secret. --trim removes it, --exact keeps it.

The kind of a name never changes. When subjects hold the present version they
are named: they read the new one from now on. What is personal belongs to your uid:
no other operator can grant it or look at it.

Examples:
  sbctl secret put github.token
  sbctl secret put design-doc --from-file design.md --note "as reviewed"
  pass show api | sbctl secret put api.key --kind secret --trim -
  sbctl secret put deploy-key --from-file id_ed25519 --kind secret
  sbctl secret put diary.pin --domain personal`
}

type putView struct {
	resourceView
	Readers []string `json:"readers"`
}

// Run stores the content.
func (c secretPutCmd) Run(ctx context.Context, a *app) error {
	doing := "storing " + c.Name
	if c.Stdin != "" && c.Stdin != "-" {
		return refuse(doing, "content is never taken from the command line").withHint("sbctl secret put %s", shellQuote(c.Name))
	}
	if c.Stdin != "" && c.FromFile != "" {
		return refuse(doing, "content comes from --from-file or from standard input, not from both")
	}
	s, err := a.status(ctx, doing)
	if err != nil {
		return err
	}
	if state := s.GetVaultState(); state == "locked" || state == "waiting" {
		return fail(wire.Deny(wire.VaultLocked), "%s", doing) // before anybody types
	}
	bytes, source, err := c.read(ctx, a, doing, contentLimit(s))
	if err != nil {
		return err
	}
	defer bytes.Wipe()
	kind, bytes, err := c.judge(doing, bytes, source)
	if err != nil {
		return err
	}
	put, err := call(ctx, a, doing, &operatorv1.PutSecretRequest{
		Name: c.Name, Content: bytes, Kind: kind, Note: c.Note, IfAbsent: c.IfAbsent, Domain: c.Domain,
	}, operatorv1.OperatorServiceClient.PutSecret)
	if err != nil {
		return err
	}
	return a.showPut(put)
}

func (a *app) showPut(put *operatorv1.PutSecretResponse) error {
	r := put.GetResource()
	if r.GetVersion() > 1 && len(put.GetReaders()) > 0 {
		a.say("held by %s: they read version %d from now on", strings.Join(put.GetReaders(), ", "), r.GetVersion())
	}
	return a.out.Object(ui.Object{
		ID: r.GetName(),
		Fields: []ui.Field{
			{Name: "resource", Value: r.GetName()},
			{Name: "kind", Value: r.GetKind()},
			{Name: "version", Value: fmt.Sprint(r.GetVersion())},
			{Name: "size", Value: ui.Size(r.GetSize())},
			{Name: "domain", Value: r.GetDomain()},
		},
		Value: putView{viewResource(r), append([]string{}, put.GetReaders()...)},
	})
}

// source is where content came from.
type source int

const (
	fromTerminal source = iota
	fromFile
	fromStdin
)

// read takes the content, at most limit bytes.
func (c secretPutCmd) read(ctx context.Context, a *app, doing string, limit uint64) (content.Bytes, source, error) {
	var from io.Reader
	which := fromFile
	switch {
	case c.Stdin == "-" || c.FromFile == "-":
		from, which = a.stdin, fromStdin
	case c.FromFile != "":
		file, err := os.Open(c.FromFile)
		if err != nil {
			return nil, 0, fail(err, "%s", doing)
		}
		defer file.Close()
		from = file
	default:
		typed, err := a.typed(ctx, doing, c.Name)
		return typed, fromTerminal, err
	}
	bytes, more, err := content.Read(from, limit)
	if err != nil {
		return nil, 0, &failure{code: wire.InvalidArgument, doing: doing, what: err.Error(), exit: wire.ExitUsage, cause: err}
	}
	if more {
		return nil, 0, &failure{
			code: wire.ResourceTooLarge, doing: doing, exit: wire.Exit(wire.ResourceTooLarge),
			what: fmt.Sprintf("the content is larger than %d bytes, the limit of this daemon", limit),
		}
	}
	return bytes, which, nil
}

// typed asks for the content on the terminal.
func (a *app) typed(ctx context.Context, doing, name string) (content.Bytes, error) {
	tty, err := a.tty()
	if err != nil {
		return nil, refuse(doing, "there is no terminal to type the content on: use --from-file F, or - for standard input")
	}
	defer func() { _ = tty.Close() }()
	bytes, err := tty.ReadSecret(ctx, ui.Safe("Content of "+name))
	if errors.Is(err, terminal.ErrTooLong) {
		return nil, refuse(doing, "%v: use --from-file or standard input", err)
	}
	if err != nil {
		return nil, refuse(doing, "%v", err)
	}
	if len(bytes) == 0 {
		return nil, refuse(doing, "nothing was typed")
	}
	return bytes, nil
}

// judge applies the rules for content: its kind, and what must be said
// explicitly. It may shorten bytes by a newline.
func (c secretPutCmd) judge(doing string, bytes content.Bytes, from source) (kind string, kept content.Bytes, err error) {
	kind = c.Kind
	if kind == "" && from == fromTerminal {
		kind = content.Secret
	}
	if kind == "" {
		if what, found := content.Credential(bytes); found {
			return "", nil, refuse(doing, "this looks like %s: say --kind secret to seal it as a credential, or --kind %s if it is none", what, content.KindOf(bytes))
		}
		kind = content.KindOf(bytes)
	}
	if kind == content.Text && content.KindOf(bytes) != content.Text {
		return "", nil, &failure{
			code: wire.ResourceEncodingInvalid, doing: doing, exit: wire.ExitUsage,
			what: "the content is not UTF-8 without NUL: say --kind binary",
		}
	}
	if c.Trim {
		return kind, content.TrimNewline(bytes), nil
	}
	if kind == content.Secret && from == fromStdin && !c.Exact && content.EndsInOneNewline(bytes) {
		return "", nil, refuse(doing, "the secret ends in a newline: say --trim to remove it, or --exact to keep it")
	}
	return kind, bytes, nil
}
