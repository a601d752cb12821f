package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"subjectbroker/cmd/sbctl/internal/manual"
	"subjectbroker/cmd/sbctl/internal/nearest"
	"subjectbroker/cmd/sbctl/internal/ui"
	"subjectbroker/proto/terminal"
	"subjectbroker/proto/wire"
)

// globals are the options of every command.
type globals struct {
	Home   string    `placeholder:"DIR" help:"Home of the broker; else SB_HOME, else the platform's default."`
	Socket string    `placeholder:"DIR" help:"Directory that holds broker/ and operator/; else SB_SOCKET, else run in the home."`
	Output ui.Format `short:"o" enum:"table,json" default:"table" placeholder:"table|json" help:"Tables for people, JSON for programs."`
	Quiet  bool      `short:"q" help:"Print ids only, one a line."`
	Yes    bool      `help:"Answer yes to every question."`
	Help   helpFlag  `short:"h" help:"Print this help and exit."`

	PassphraseFD *int `name:"passphrase-fd" placeholder:"N" help:"Read the operator's passphrase, or the vault's where the command is about that, from this open descriptor, up to its end."`
}

// grammar is everything that can be said to sbctl.
type grammar struct {
	globals

	Init   initCmd   `cmd:"" group:"start" help:"Meet a new daemon: print the log's fingerprint and what its key source protects"`
	Status statusCmd `cmd:"" group:"start" help:"Show what the daemon knows of itself"`
	Doctor doctorCmd `cmd:"" group:"start" help:"Probe everything, say what is wrong and the command that mends it"`

	Demo       demoCmd       `cmd:"" group:"start" help:"The five-minute proof, in a temporary home"`
	Service    serviceCmd    `cmd:"" aliases:"services" group:"start" help:"Keep the daemon running"`
	Connect    connectCmd    `cmd:"" group:"start" help:"Connect an AI agent as a subject"`
	Disconnect disconnectCmd `cmd:"" group:"start" help:"Take the broker out of an agent's configuration"`
	Run        runCmd        `cmd:"" group:"start" help:"Start a command as a launch: every process in it is one subject"`
	Sandbox    sandboxCmd    `cmd:"" group:"start" help:"Show what a sandbox keeps out"`

	Conformance conformanceCmd `cmd:"" group:"start" help:"Check on this machine what the broker promises, with attacks"`

	Secret   secretCmd   `cmd:"" aliases:"secrets" group:"content" help:"Manage sealed content"`
	Resource resourceCmd `cmd:"" aliases:"resources" group:"content" help:"Manage named content, registered files included"`

	Subject subjectCmd `cmd:"" aliases:"subjects" group:"policy" help:"Manage the identities that ask"`
	Grant   grantCmd   `cmd:"" group:"policy" help:"Allow or deny a subject capabilities"`
	Revoke  revokeCmd  `cmd:"" group:"policy" help:"Take grants back"`
	Grants  grantsCmd  `cmd:"" group:"policy" help:"List grants"`
	Explain explainCmd `cmd:"" group:"policy" help:"Show how a request would be judged, step by step"`
	Apply   applyCmd   `cmd:"" group:"policy" help:"Bring the broker to the state of a document"`
	Export  exportCmd  `cmd:"" group:"policy" help:"Write the present state as a document"`
	Import  importCmd  `cmd:"" group:"policy" help:"Take over policies, and seal values that stand in files in clear"`
	Policy  policyCmd  `cmd:"" aliases:"policies" group:"policy" help:"Test, suggest, list and remove policies around servers; check documents"`

	AgentKey agentKeyCmd `cmd:"" name:"agent-key" aliases:"agent-keys" group:"policy" help:"Make and revoke keys that speak for a subject"`
	Tenant   tenantCmd   `cmd:"" aliases:"tenants" group:"policy" help:"Manage bodies of knowledge"`
	Memory   memoryCmd   `cmd:"" group:"content" help:"See the agents' shared memory, bring entries in, take them out, have them forgotten"`

	Server serverCmd `cmd:"" aliases:"servers" group:"policy" help:"Put MCP servers behind the broker, and trust what they offer"`

	Why     whyCmd     `cmd:"" group:"look" help:"Explain the newest denial and how to mend it"`
	Denials denialsCmd `cmd:"" aliases:"denial" group:"look" help:"List what was denied, grouped"`
	Runs    runsCmd    `cmd:"" group:"look" help:"List, show and end runs"`
	Watch   watchCmd   `cmd:"" group:"look" help:"Watch runs and denials live, and act on them"`
	Audit   auditCmd   `cmd:"" group:"look" help:"Read, verify and check the audit log"`

	Approvals approvalsCmd `cmd:"" aliases:"approval" group:"look" help:"Answer what waits for a person"`
	Notify    notifyCmd    `cmd:"" group:"look" help:"Tell, on the desktop or to a URL, that something waits"`
	Calls     callsCmd     `cmd:"" group:"look" help:"Look at calls of tools, and count them"`
	Metrics   metricsCmd   `cmd:"" group:"look" help:"Print what can be counted, for Prometheus"`

	Key    keyCmd    `cmd:"" aliases:"keys" group:"keep" help:"Manage the keys that open the vault"`
	Backup backupCmd `cmd:"" aliases:"backups" group:"keep" help:"Make, verify and list backups"`

	Operator operatorCmd `cmd:"" aliases:"operators" group:"keep" help:"Say who is the operator: passphrase and sessions"`
	Console  consoleCmd  `cmd:"" group:"keep" help:"Run commands on one authenticated connection"`

	Lock   lockCmd   `cmd:"" group:"stop" help:"Wipe the keys from the daemon's memory"`
	Unlock unlockCmd `cmd:"" group:"stop" help:"Fetch the keys again"`
	Panic  panicCmd  `cmd:"" group:"stop" help:"Disable every subject and lock, at once"`

	Uninstall uninstallCmd `cmd:"" group:"stop" help:"Take the broker off this machine, with --purge also what it keeps"`

	Completion completionCmd `cmd:"" group:"shell" help:"Write a completion script for your shell"`
	Man        manCmd        `cmd:"" hidden:"" help:"Write the man pages into a directory"`
	Complete   completeCmd   `cmd:"" hidden:"" name:"__complete" help:"Answer a completion script"`
	Attempt    attemptCmd    `cmd:"" hidden:"" name:"__attempt" help:"Make an attack for conformance"`
	Desk       deskCmd       `cmd:"" hidden:"" name:"__desk" help:"Be the MCP server of a demonstration"`
}

// Help is the manual of sbctl itself.
func (grammar) Help() string {
	return `SubjectBroker decides which agent may reach which data, hands it out, and can
prove afterwards what it handed out. sbctl is the operator's side of it.

Data goes to standard output, everything else to standard error. Plural and
singular nouns are the same word. Where an id is asked for, any unique
beginning of it will do. Content is never taken from the command line.
"sbctl --version" prints the version.

Exit codes:
  0 done    1 failed    2 usage or refused input    3 denied
  4 daemon unreachable, vault locked or key unavailable
  5 integrity failure   6 busy

Examples:
  sbctl secret put github.token
  sbctl resource add readme --file ./README.md
  sbctl subject add worker
  sbctl grant worker readme --ttl 2h
  sbctl why worker`
}

// errShown ends a parse that has already printed what was asked for.
var errShown = errors.New("shown")

// helpFlag prints the help of the command that it stands beside.
type helpFlag bool

// IgnoreDefault makes kong describe the noun and not its default verb.
func (helpFlag) IgnoreDefault() {}

// BeforeReset is called by kong when the flag is given, before anything is judged.
func (helpFlag) BeforeReset(kctx *kong.Context, a *app) error {
	node := kctx.Selected()
	if node == nil {
		node = kctx.Model.Node
	}
	if err := manual.Text(a.stdout, node); err != nil {
		return err
	}
	return errShown
}

// asksVersion says whether args ask for the version before any command. It is
// no flag of the grammar, because `secret get` has a --version of its own.
func asksVersion(args []string) bool {
	for i := 0; i < len(args); i++ {
		switch arg := args[i]; {
		case arg == "--version":
			return true
		case slices.Contains([]string{"--home", "--socket", "--output", "-o", "--passphrase-fd"}, arg):
			i++ // its value
		case !strings.HasPrefix(arg, "-") || arg == "--":
			return false
		}
	}
	return false
}

// run is sbctl: it parses args, does what they say, and returns the exit code.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	return newApp(stdin, stdout, stderr).run(ctx, args)
}

func newApp(stdin io.Reader, stdout, stderr io.Writer) *app {
	return &app{stdin: stdin, stdout: stdout, stderr: stderr, now: time.Now, tty: terminal.Open, die: func() {}}
}

func (a *app) run(ctx context.Context, args []string) int {
	defer a.close()
	return a.perform(ctx, args)
}

// perform does what args say and returns the exit code. The connection stays.
func (a *app) perform(ctx context.Context, args []string) int {
	err := a.parseAndRun(ctx, args)
	if interrupted(ctx, err) {
		stopped := &failure{code: wire.InternalError, what: "interrupted", exit: wire.ExitFailed}
		if known, ok := errors.AsType[*failure](err); ok {
			stopped.doing = known.doing
		}
		err = stopped
	}
	if failed, ok := errors.AsType[*failure](err); ok {
		failed.hint = a.located(failed.hint)
	}
	format := outputOf(args)
	if a.console != nil && a.console.opts.Output == ui.JSON {
		format = ui.JSON
	}
	return report(a.stderr, format, err)
}

func (a *app) parseAndRun(ctx context.Context, args []string) error {
	if asksVersion(args) {
		_, err := fmt.Fprintf(a.stdout, "sbctl %s (%s, %s/%s)\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
		return err
	}
	var commands grammar
	parser, err := newParser(a, &commands)
	if err != nil {
		return fmt.Errorf("building the command line: %w", err)
	}
	a.model = parser.Model
	kctx, err := parser.Parse(args)
	if errors.Is(err, errShown) {
		return nil
	}
	if err != nil {
		return usage(parser.Model.Node, args, err)
	}
	a.opts = commands.globals
	if a.console != nil {
		if err := a.console.inherit(&a.opts); err != nil {
			return err
		}
	}
	a.out = &ui.Printer{
		Out: a.stdout, Format: a.opts.Output, Quiet: a.opts.Quiet, Wide: terminal.Is(a.stdout), Columns: terminal.Columns(a.stdout), Now: a.now,
	}
	kctx.BindTo(ctx, (*context.Context)(nil))
	return a.suggest(ctx, args, kctx.Run())
}

// newParser builds the parser of commands.
func newParser(a *app, commands *grammar) (*kong.Kong, error) {
	return kong.New(commands,
		kong.Name("sbctl"),
		kong.Description("Manage SubjectBroker"),
		kong.NoDefaultHelp(),
		kong.Writers(a.stdout, a.stderr),
		kong.Exit(func(int) {}), // nothing but main exits
		kong.Bind(a),
		kong.ExplicitGroups([]kong.Group{
			{Key: "start", Title: "Start"},
			{Key: "content", Title: "Content"},
			{Key: "policy", Title: "Policy"},
			{Key: "look", Title: "Look"},
			{Key: "keep", Title: "Keep"},
			{Key: "stop", Title: "Stop"},
			{Key: "shell", Title: "Shell"},
		}),
	)
}

// outputOf finds the output format in args that may not parse, so that a
// program is told about its mistake in its own language.
func outputOf(args []string) ui.Format {
	for i, arg := range args {
		switch {
		case arg == "--":
			return ui.Table
		case (arg == "-o" || arg == "--output") && i+1 < len(args):
			arg = args[i+1]
		case strings.HasPrefix(arg, "-o"):
			arg = strings.TrimPrefix(strings.TrimPrefix(arg, "-o"), "=")
		case strings.HasPrefix(arg, "--output="):
			arg = strings.TrimPrefix(arg, "--output=")
		default:
			continue
		}
		if arg == string(ui.JSON) {
			return ui.JSON
		}
	}
	return ui.Table
}

// What kong says about a word that it does not know.
var (
	unknownWord = regexp.MustCompile(`^unexpected argument (.+?)(?:, did you mean .*)?$`)
	unknownFlag = regexp.MustCompile(`^unknown flag (\S+?)(?:, did you mean .*)?$`)
	missingArgs = regexp.MustCompile(`^expected "(.+)"$`)
	wrongNumber = regexp.MustCompile(`^(\S+): expected a valid \d+ bit u?int but got (".*")$`)
	wrongChoice = regexp.MustCompile(`^(\S+) must be one of (\S+) but got (".*")$`)
)

// usage says what is wrong with the command line, in one line, with the nearest
// word that exists and the help that tells more.
func usage(root *kong.Node, args []string, err error) error {
	const doing = "reading the command line"
	node := root
	if parse, ok := errors.AsType[*kong.ParseError](err); ok && parse.Context != nil {
		node = lastNode(parse.Context, root)
		if failed, ok := errors.AsType[*failure](err); ok {
			return failed
		}
	}
	// A noun's default verb was never named: the word was meant for the noun.
	if node.Parent != nil && node.Parent.DefaultCmd == node && !slices.Contains(args, node.Name) {
		node = node.Parent
	}
	what := err.Error()
	help := node
	full := strings.Join(manual.Path(node), " ")
	if found := unknownWord.FindStringSubmatch(what); found != nil && len(node.Children) > 0 {
		what = fmt.Sprintf("%q is no command of %s", found[1], full)
		if child := nearestCommand(node, found[1]); child != nil {
			what += fmt.Sprintf(", did you mean %q?", child.Name)
			help = child
		}
	} else if found := unknownFlag.FindStringSubmatch(what); found != nil {
		what = fmt.Sprintf("unknown flag %s", found[1])
		if flag, ok := nearestFlag(node, found[1]); ok {
			what += fmt.Sprintf(", did you mean %s?", flag)
		}
	} else if found := missingArgs.FindStringSubmatch(what); found != nil && len(node.Children) == 0 {
		what = "missing " + strings.NewReplacer("<", "", ">", "", " ...", "…").Replace(strings.ToUpper(found[1]))
	} else if found := wrongChoice.FindStringSubmatch(what); found != nil {
		choices := strings.TrimPrefix(strings.ReplaceAll(found[2], `"`, ""), ",")
		what = fmt.Sprintf("%s is one of %s, not %s", plainName(found[1]), strings.ReplaceAll(choices, ",", ", "), found[3])
	} else if found := wrongNumber.FindStringSubmatch(what); found != nil {
		what = fmt.Sprintf("%s takes a whole number, not %s", plainName(found[1]), found[2])
	} else if len(node.Children) > 0 && strings.HasPrefix(what, "expected ") {
		what = fmt.Sprintf("%s needs a command: %s", full, strings.Join(commandNames(node), ", "))
		if usual := node.DefaultCmd; usual != nil && len(usual.Positional) > 0 {
			what = fmt.Sprintf("missing %s, or a command: %s", strings.ToUpper(usual.Positional[0].Name), strings.Join(commandNames(node), ", "))
		}
	}
	refused := refuse(doing, "%s", what).withHint("%s --help", strings.Join(manual.Path(help), " "))
	if full == "sbctl audit check" {
		return invalidIsOne(refused)
	}
	return refused
}

// plainName is an argument or flag as a person writes it: AGENT for [<agent>].
func plainName(name string) string {
	if strings.HasPrefix(name, "-") {
		return name
	}
	return strings.ToUpper(strings.Trim(name, "[<>]"))
}

// lastNode is the deepest command that was recognised.
func lastNode(kctx *kong.Context, root *kong.Node) *kong.Node {
	for _, step := range slices.Backward(kctx.Path) {
		if step.Command != nil {
			return step.Command
		}
	}
	return root
}

func commandNames(node *kong.Node) []string {
	var names []string
	for _, child := range manual.Commands(node) {
		names = append(names, child.Name)
	}
	return names
}

func nearestCommand(node *kong.Node, typed string) *kong.Node {
	var words []string
	var nodes []*kong.Node
	for _, child := range manual.Commands(node) {
		for _, word := range append([]string{child.Name}, child.Aliases...) {
			words, nodes = append(words, word), append(nodes, child)
		}
	}
	if word, ok := nearest.Name(typed, words); ok {
		return nodes[slices.Index(words, word)]
	}
	return nil
}

func nearestFlag(node *kong.Node, typed string) (string, bool) {
	if !strings.HasPrefix(typed, "--") {
		return "", false // one letter is near to every other
	}
	var flags []string
	if node.DefaultCmd != nil {
		node = node.DefaultCmd
	}
	for _, level := range node.AllFlags(true) {
		for _, flag := range level {
			flags = append(flags, "--"+flag.Name)
		}
	}
	return nearest.Name(typed, flags)
}
