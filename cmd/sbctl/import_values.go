package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"subjectbroker/cmd/sbctl/internal/agents"
	"subjectbroker/cmd/sbctl/internal/agents/copies"
	"subjectbroker/cmd/sbctl/internal/agents/textedit"
	"subjectbroker/cmd/sbctl/internal/content"
	"subjectbroker/cmd/sbctl/internal/dotenv"
	"subjectbroker/cmd/sbctl/internal/nearest"
	"subjectbroker/cmd/sbctl/internal/ui"
	"subjectbroker/proto/wire"
)

type importDotenvCmd struct {
	File    string `arg:"" help:"The file."`
	Subject string `placeholder:"S" help:"Let this subject use what is sealed where the broker puts it in; it reads none of it."`
	Rewrite bool   `help:"Leave NAME=sb://RESOURCE in the file in place of each value."`
	DryRun  bool   `help:"Print what would be done, and do nothing."`
}

// Help is the manual of import dotenv.
func (importDotenvCmd) Help() string {
	return `Every value is sealed as kind secret, once: repeating changes nothing, and a value
that changed in the file becomes a new version. Names are shown, values never.

The resource is called as the variable is; one that begins with an underscore
gets "env." before it. Where that name belongs to something else, such as the
variable of another file, eight letters that stand for this file are added. The
resource's note says which variable of which file it came from, and that is how
a repetition finds it.

Lines are NAME=VALUE, with "export" before or not; empty lines and comments are
skipped. A value without quotes ends at the end of the line or before " #".
'Single quotes' take everything as it stands; "double quotes" know \n \r \t \" \\
\$ and ` + "\\`" + `; both may span lines. Nothing is replaced: "${" and "$(", which some
programs would replace, are refused outside single quotes, and so are names
given twice. An empty value is left.

--rewrite first seals, then puts the new file in the place of the old one in one
step, with the same owner and mode, and keeps no copy. A program gets the values
back with "sbctl run --env-file".

Examples:
  sbctl import dotenv .env --dry-run
  sbctl import dotenv .env --subject worker
  sbctl import dotenv .env --rewrite`
}

// Run imports a dotenv file.
func (c importDotenvCmd) Run(ctx context.Context, a *app) error {
	doing := "importing " + c.File
	file, err := openImport(doing, c.File, c.Rewrite)
	if err != nil {
		return err
	}
	defer file.Wipe()
	vars, err := dotenv.Parse(file.Text())
	if err != nil {
		return refuse(doing, "%v", err)
	}
	defer dotenv.Wipe(vars)
	values := 0
	for _, v := range vars {
		if len(v.Value) > 0 && !bytes.HasPrefix(v.Value, []byte(agents.Scheme)) {
			values++
		}
	}
	if err := checkImported(doing, values); err != nil {
		return err
	}
	job := importJob{doing: doing, file: file, subject: c.Subject, rewrite: c.Rewrite, dryRun: c.DryRun}
	for _, v := range vars {
		item := importItem{Key: v.Name, Line: v.Line, Result: leftAsItIs, Reason: "a reference already", same: -1}
		switch {
		case len(v.Value) == 0:
			item.Reason = "empty"
		case !bytes.HasPrefix(v.Value, []byte(agents.Scheme)):
			item.value, item.base, item.Reason = v.Value, nameFrom(v.Name), ""
			item.source = v.Name + " of " + file.Path()
		}
		if item.value != nil && v.Ambiguous != "" {
			a.say("line %d: the value of %s %s: it is sealed as it stands", v.Line, v.Name, v.Ambiguous)
		}
		job.items = append(job.items, item)
	}
	job.after = func(names map[int]string) ([]byte, error) {
		var edits []textedit.Edit
		for i, name := range names {
			edits = append(edits, textedit.Edit{At: vars[i].Start, Delete: vars[i].End - vars[i].Start, Insert: agents.Scheme + name})
		}
		return proven(textedit.Apply(file.Text(), edits...), vars, names)
	}
	return a.importValues(ctx, job)
}

// proven is a rewritten dotenv file that was read again, and holds references
// where they should be and everything else as it was.
func proven(after []byte, vars []dotenv.Var, names map[int]string) ([]byte, error) {
	again, err := dotenv.Parse(after)
	if err != nil {
		return nil, fmt.Errorf("checking the edited text: %w", err)
	}
	defer dotenv.Wipe(again)
	for i, v := range vars {
		want := v.Value
		if name := names[i]; name != "" {
			want = content.Bytes(agents.Scheme + name)
		}
		if len(again) != len(vars) || again[i].Name != v.Name || !bytes.Equal(again[i].Value, want) {
			return nil, fmt.Errorf("checking the edited text: %s is not as it should be", v.Name)
		}
	}
	return after, nil
}

type importMCPCmd struct {
	File    string `arg:"" help:"The configuration of an agent: JSON, or TOML where the name ends in .toml."`
	Server  string `placeholder:"N" help:"Only this MCP server."`
	Subject string `placeholder:"S" help:"Let this subject use what is sealed where the broker puts it in; it reads none of it."`
	Host    bool   `help:"Put the servers behind the broker, for the subject, with what is sealed."`
	Rewrite bool   `help:"Leave sb://RESOURCE in the file in place of each token; with --host, sb-mcp in place of the servers."`
	DryRun  bool   `help:"Print what would be done, and do nothing."`
}

// Help is the manual of import mcp-config.
func (importMCPCmd) Help() string {
	return `Looks at the variables and headers that the file gives to MCP servers, and seals
what looks like a token, by its name or its shape, as kind secret, once: repeating
changes nothing. Names are shown, values never. Read are the files of Claude Code,
Claude Desktop, Codex, Gemini CLI, opencode, and others that write "mcpServers".

The resource is called SERVER.NAME; what does not belong in a name becomes a dash,
and eight letters are added that stand for the original. Where the name belongs to
something else, eight letters that stand for this place are added. A value that
stands in several places is sealed under its first name. Of "Bearer TOKEN" only
the token is sealed.

--rewrite first seals, then puts the new file in the place of the old one in one
step, with the same owner and mode, and keeps no copy. Comments and layout stay.
A link is followed. A server that is started with a reference does not log in by
it: it has to be hosted, or started with "sbctl run --env NAME=RESOURCE". Tokens in
arguments and addresses are named, and left to you.

--host puts each server behind the broker as "server add" does, its tokens as
secrets, and lets the subject call it; with --rewrite its entry then leaves the file,
and one that starts sb-mcp for the subject takes the place of all. A server is left,
and the reason said, when the agent alone can run it (what it expands, a log-in of
its own, SSE), when it is switched off, and when another of its name is there. Each
still has to be trusted; the commands are printed at the end.

Examples:
  sbctl import mcp-config ~/.claude.json --dry-run
  sbctl import mcp-config ~/.claude.json --host --subject coder --rewrite
  sbctl import mcp-config ~/.codex/config.toml --server github --rewrite`
}

// Run imports the tokens of a configuration.
func (c importMCPCmd) Run(ctx context.Context, a *app) error {
	doing := "importing " + c.File
	file, err := openImport(doing, c.File, c.Rewrite)
	if err != nil {
		return err
	}
	defer file.Wipe()
	found, err := agents.ReadSettings(file)
	if err != nil {
		return agentFailure(err, doing)
	}
	defer found.Wipe()
	if c.Server != "" && !slices.Contains(found.Servers, c.Server) {
		refused := "there is no MCP server " + c.Server + " in it"
		if name, ok := nearest.Name(c.Server, found.Servers); ok {
			refused += ", did you mean " + name + "?"
		}
		return refuse(doing, "%s", refused)
	}
	if c.Host {
		return c.host(ctx, a, doing, file, found)
	}
	values := 0
	for _, s := range found.Settings {
		if s.Token && (c.Server == "" || s.Server == c.Server) {
			values++
		}
	}
	if err := checkImported(doing, values); err != nil {
		return err
	}
	job := importJob{doing: doing, file: file, subject: c.Subject, rewrite: c.Rewrite, dryRun: c.DryRun, servers: true, after: found.Rewrite}
	job.items = settingsOf(found, file, func(s agents.Setting) string {
		if c.Server != "" && s.Server != c.Server {
			return "of another server"
		}
		return ""
	})
	for _, stray := range found.Strays {
		if c.Server == "" || stray.Server == c.Server {
			a.say("line %d: %s %s %s: not sealed, change it by hand", stray.Line, stray.Server, stray.Place, stray.Why)
		}
	}
	return a.importValues(ctx, job)
}

// maxImported is how many values one import seals: each is a call of the daemon
// and an entry of the log, and is looked for in every place where copies may be.
const maxImported = 1000

func checkImported(doing string, values int) error {
	if values > maxImported {
		return refuse(doing, "it has %d values, and one import seals at most %d: divide the file", values, maxImported)
	}
	return nil
}

// importJob is one import of values from a file.
type importJob struct {
	doing   string
	file    *agents.File
	items   []importItem
	subject string
	servers bool // the items belong to MCP servers
	rewrite bool
	dryRun  bool

	// after is the file in which items, by their index, are references to the
	// resources that names gives.
	after func(names map[int]string) ([]byte, error)
}

// importValues seals, then rewrites, then says what is left to do. A crash at
// any point leaves the file as it was or rewritten whole, and never a reference
// to what is not sealed.
func (a *app) importValues(ctx context.Context, job importJob) error {
	if err := a.importSubject(ctx, job.doing, job.subject); err != nil {
		return err
	}
	if err := a.nameItems(ctx, job.doing, job.items); err != nil {
		return err
	}
	references := map[int]string{}
	var values []content.Bytes
	for i, item := range job.items {
		if item.value != nil {
			references[i] = item.ResourceID
			values = append(values, item.value)
		}
	}
	var after []byte
	if job.rewrite && len(references) > 0 {
		var err error
		if after, err = job.after(references); err != nil { // before anything is sealed
			return fail(err, "%s", job.doing)
		}
		if err := job.file.Replaceable(); err != nil {
			return agentFailure(err, job.doing)
		}
	}
	view := importView{File: job.file.Path(), DryRun: job.dryRun, Items: job.items, Grants: []string{}, Copies: []string{}, Rotate: names(job.items)}
	if job.dryRun || len(references) == 0 {
		return a.printImport(view, job)
	}
	if err := a.sealItems(ctx, job.doing, job.items); err != nil {
		return err
	}
	if job.subject != "" {
		granted, err := a.grantUse(ctx, job.doing, job.subject, view.Rotate)
		if err != nil {
			return halfImported(err, job)
		}
		view.Grants = granted
	}
	if after != nil {
		if err := job.file.Replace(after); err != nil {
			return a.notRewritten(err, job)
		}
		view.Rewritten = true
	}
	found, err := a.findCopies(ctx, job.file, values)
	if err != nil {
		return fail(err, "%s", job.doing)
	}
	view.Copies = append(view.Copies, found.Files...)
	if err := a.printImport(view, job); err != nil {
		return err
	}
	a.sayGrants(job.subject, view.Grants, view.Rotate)
	if view.Rewritten {
		a.sayHandingOver(job, after)
	}
	a.sayCopies(view.File, uint32(job.file.Mode()), view.Rewritten, found, view.Rotate)
	return nil
}

// halfImported adds to a failure after the values were sealed what is done, and
// how the rest comes.
func halfImported(err error, job importJob) error {
	if failed, ok := errors.AsType[*failure](err); ok {
		failed.what += fmt.Sprintf("; the values are sealed, %s was not granted their use, and the file is as it was: the same command again finishes it", job.subject)
	}
	return err
}

// sayHandingOver says how a program gets the values that a rewritten file refers
// to.
func (a *app) sayHandingOver(job importJob, after []byte) {
	subject := orWord(job.subject, "SUBJECT")
	if job.servers {
		first := job.items[slices.IndexFunc(job.items, func(i importItem) bool { return i.value != nil })]
		a.done("a server that is started with a reference does not log in by it; to have the broker run %s with %s: %s",
			first.Server, first.ResourceID, a.paste("import", "mcp-config", job.file.Path(), "--server", first.Server, "--host", "--rewrite", "--subject", subject))
		return
	}
	command := a.paste("run", "--subject", subject, "--env-file", job.file.Path(), "--", "COMMAND")
	if _, err := parseEnvFile(after); err != nil {
		a.done("to hand them to a program, once nothing else is in the file (%v): %s", err, command)
		return
	}
	a.done("to hand them to a program: %s", command)
}

// notRewritten is the failure of a rewrite after everything was sealed.
func (a *app) notRewritten(err error, job importJob) error {
	failed := agentFailure(err, job.doing)
	if known, ok := errors.AsType[*failure](failed); ok {
		known.what += "; the values are sealed, the file is as it was, and repeating goes on from here"
		if errors.Is(err, agents.ErrConcurred) {
			known.exit, known.code = wire.ExitFailed, wire.InternalError
		}
	}
	return failed
}

// findCopies looks for the values in the places that are known.
func (a *app) findCopies(ctx context.Context, file *agents.File, values []content.Bytes) (copies.Found, error) {
	config, err := a.agentConfig(string(agents.Claude), "", "")
	if err != nil {
		return copies.Found{}, err
	}
	files, err := agents.KnownFiles(config)
	if err != nil {
		return copies.Found{}, err
	}
	return copies.Find(ctx, values, copies.Config{File: file.Path(), UserHome: config.UserHome, Files: files, Avoid: config.Home}), nil
}

// printImport shows what was, or would be, done.
func (a *app) printImport(view importView, job importJob) error {
	if a.out.Format == ui.JSON && !a.out.Quiet {
		return a.out.Object(ui.Object{Value: view})
	}
	list := ui.List{Head: []string{"LINE", "VARIABLE", "RESOURCE", "RESULT", "WHY"}, IDs: view.Rotate}
	if job.servers {
		list.Head = []string{"LINE", "SERVER", "SETTING", "RESOURCE", "RESULT", "WHY"}
	}
	for _, item := range view.Items {
		result := item.Result
		if item.Version > 1 {
			result += fmt.Sprintf(" (version %d)", item.Version)
		}
		row := []string{fmt.Sprint(item.Line), item.Key, item.ResourceID, result, item.Reason}
		if job.servers {
			server := item.Server
			if item.Project != "" {
				server += " (" + item.Project + ")"
			}
			row = slices.Concat(row[:1], []string{server, item.Table + " " + item.Key}, row[2:])
		}
		list.Rows = append(list.Rows, row)
	}
	if err := a.list(list, "there is nothing in it to import"); err != nil {
		return err
	}
	switch {
	case len(view.Rotate) == 0 && len(view.Items) > 0:
		a.done("nothing to seal")
	case view.DryRun:
		a.done("nothing was changed")
	case view.Rewritten:
		a.done("rewritten: %s", view.File)
	}
	return nil
}
