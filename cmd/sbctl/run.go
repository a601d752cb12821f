package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
	"subjectbroker/worker/client"
	"subjectbroker/worker/launch"
)

// Exit codes of run for a command that never ran, as a shell has them.
const (
	exitNotExecutable = 126
	exitNotFound      = 127
)

// maxLaunchCommand is the longest command that the daemon keeps for people, in bytes.
const maxLaunchCommand = 256

type runCmd struct {
	Subject   string   `placeholder:"S" help:"Subject that every process of the launch is. Required, except inside a launch."`
	Profile   string   `placeholder:"P" help:"Profile that its runs are under, whatever they ask for."`
	Sandbox   bool     `help:"Show nothing but the system, read-only, and the workspace."`
	Workspace string   `placeholder:"DIR" help:"Folder that a sandbox may write, and starts in; the current one when not given."`
	NoNet     bool     `help:"No network but its own loopback."`
	Env       []string `sep:"none" placeholder:"NAME=RES" help:"Start it with the content of RES in the variable NAME. Repeatable."`
	EnvFile   string   `placeholder:"F" help:"The same for each line NAME=sb://RES of the file F."`
	KeepEnv   []string `sep:"none" placeholder:"NAME" help:"Hand on this variable of yours too. Repeatable."`
	Command   []string `arg:"" name:"cmd" passthrough:"partial" help:"The command and its arguments."`
}

// Help is the manual of run.
func (runCmd) Help() string {
	return `Starts CMD as a launch: in user, pid and mount namespaces of its own, in which
every process is the subject S, whatever it claims to be. The daemon looks at the
place before CMD starts; the tier of its runs is then "bound", or "sandboxed" with
--sandbox. A shim that is started in there ("sb-mcp --subject …") gets S. Where an
operator's passphrase is set, it is asked for if S demands more than cooperative,
and for --env while any subject does.

What CMD sees:
  The broker's home, the operator's socket, processes outside, the session bus,
  and the sockets of systemd, tmux, screen, docker, podman, X11, ssh and gpg
  agents are not there. /dev has null, zero, full, random, urandom, tty and
  terminals, and no other device (fuse, dri, kvm); /run has what names of hosts
  need; /sys is read-only; what is mounted outside later does not appear, and the
  kernel's keyrings are closed. Programs with the setuid bit, as sudo, gain
  nothing, and files of other uids show as those of nobody. All else is as outside.
  With --sandbox the system is read-only, the workspace can be written, /tmp and
  the home directory are empty and its own, and there is nothing else. "sbctl
  sandbox show" lists either.
  A workspace that holds the broker's home, or lies in it, is refused.

Its environment is an allow-list: PATH, HOME, USER, SHELL, TERM, LANG and their
like, SB_HOME and SB_SOCKET; --keep-env adds to it. Variables that change how
programs load or debug themselves are kept out, whoever names them: LD_*, GRPC_*,
GODEBUG and their like; "-- env LD_LIBRARY_PATH=… CMD" sets one all the same.
--env and --env-file hand it content on your word: each is recorded as disclosed,
no grant is asked for, and what a program was given it can keep. The content of a
resource is the value byte for byte. The file is a dotenv file whose values are
sb://RES or empty, as "sbctl import dotenv --rewrite" leaves it; a plain value is
refused, so that nothing gets in unrecorded.

The terminal, colours, signals, the window's size and job control are those of a
command that was started directly; in a pipeline a pager that has the terminal
gets the keys, and else CMD does. The launch ends with CMD, and when it does,
or when "sbctl run" is killed, no process of it is left. "sbctl runs" shows it,
"sbctl runs end" ends it. It goes on while the daemon is restarted.

Inside a launch run asks the daemon for nothing, and keeps the environment but for
the variables that are kept out of any launch. It can only narrow, with --sandbox
and --no-net; another subject, or --env, exits 3.

Exit codes:
  that of CMD, or 128 and the number of the signal that ended it; by INT, QUIT, HUP,
  TERM, USR1 or USR2 run ends too, so that a shell sees it
  126 CMD cannot be executed    127 there is no such command
  137 the launch was ended from outside, by "runs end" for one
  before CMD starts, those of sbctl: 1 also where the machine lacks a piece that
  the tier needs (PLATFORM_UNSUPPORTED names it; nothing weaker is started), 3
  where the subject is disabled or must not run at this tier

Examples:
  sbctl run --subject coder -- claude
  sbctl run --subject coder --sandbox --workspace ~/project -- codex
  sbctl run --subject ci --sandbox --no-net -- make test
  sbctl run --subject release --env GITHUB_TOKEN=github.token -- ./release.sh
  sbctl run --subject app --env-file app.env --keep-env PORT -- ./server`
}

// Run starts the command, waits for it, and ends as it ended.
func (c runCmd) Run(ctx context.Context, a *app) error {
	argv := c.argv()
	if len(argv) == 0 {
		return refuse("reading the command line", "missing CMD").withHint("sbctl run --help")
	}
	doing := "starting " + argv[0]
	if marker, inside := launch.Inside(); inside {
		return c.narrow(ctx, a, doing, argv, marker)
	}
	handed, err := c.check(doing)
	if err != nil {
		return err
	}
	if err := lookFor(doing, argv[0]); err != nil {
		return err
	}
	places, err := a.places()
	if err != nil {
		return err
	}
	config, err := c.config(doing, places)
	if err != nil {
		return err
	}
	for _, name := range c.KeepEnv {
		if _, set := os.LookupEnv(name); !set {
			a.say("warning: --keep-env %s: it is not set here, and so not in there", name)
		}
	}
	return a.launch(ctx, doing, config, launchPlan{
		argv: argv, handed: handed, kept: c.KeepEnv, places: c.placesInside(a, places),
	})
}

// argv is the command without the "--" before it, which the parser leaves.
func (c runCmd) argv() []string {
	if len(c.Command) > 0 && c.Command[0] == "--" {
		return c.Command[1:]
	}
	return c.Command
}

// check refuses flags that do not go together, before anybody is asked, and
// returns what is to be handed over.
func (c runCmd) check(doing string) ([]handedOver, error) {
	if c.Subject == "" {
		return nil, refuse("reading the command line", "missing --subject: who shall the command be?").withHint("sbctl run --help")
	}
	if err := c.checkFlags(doing); err != nil {
		return nil, err
	}
	handed, err := envPairs(c.Env)
	if err != nil {
		return nil, refuse(doing, "%v", err)
	}
	if c.EnvFile != "" {
		more, err := readEnvFile(c.EnvFile)
		if err != nil {
			return nil, refuse(doing, "reading %s: %v", c.EnvFile, err)
		}
		handed = append(handed, more...)
	}
	if name := twice(handed, c.KeepEnv); name != "" {
		return nil, refuse(doing, "%s would be set twice", name)
	}
	return handed, nil
}

// checkFlags refuses what is wrong inside a launch as well as outside.
func (c runCmd) checkFlags(doing string) error {
	if c.Workspace != "" && !c.Sandbox {
		return refuse(doing, "--workspace is for a sandbox: add --sandbox")
	}
	for _, name := range c.KeepEnv {
		if !envName.MatchString(name) {
			return refuse(doing, "--keep-env takes the name of a variable, and its value from your environment")
		}
		if err := checkLoads(name); err != nil {
			return refuse(doing, "--keep-env: %v", err)
		}
	}
	return nil
}

// config is what the launch sees.
func (c runCmd) config(doing string, places client.Places) (launch.Config, error) {
	config := launch.Config{
		Home: places.Home, SocketDir: places.SocketDir, Sandbox: c.Sandbox, NoNet: c.NoNet, Subject: c.Subject, Profile: c.Profile,
	}
	if !c.Sandbox {
		return config, nil
	}
	workspace, err := filepath.Abs(c.Workspace)
	if err == nil {
		workspace, err = filepath.EvalSymlinks(workspace) // as the daemon finds it among the mounts
	}
	if err != nil {
		return config, refuse(doing, "finding the workspace: %v", err)
	}
	config.Workspace = workspace
	config.Readable = readableBesides(c.argv())
	return config, nil
}

// startIn is where the command starts: here, or in the workspace of a sandbox
// that does not show what is here. Empty is here.
func startIn(config launch.Config) string {
	if !config.Sandbox {
		return ""
	}
	here, err := workingDir()
	if err != nil || here != config.Workspace && !strings.HasPrefix(here, config.Workspace+"/") {
		return config.Workspace
	}
	return here
}

// readableBesides are the folders that a sandbox shows so that the command, the
// shim and this program can be started: those in which they lie, and in which
// what they are links to lies.
func readableBesides(argv []string) []string {
	var paths []string
	for _, name := range append([]string{"sb-mcp"}, argv[:min(1, len(argv))]...) {
		if path, err := exec.LookPath(name); err == nil || errors.Is(err, exec.ErrDot) {
			paths = append(paths, path)
		}
	}
	if self, err := os.Executable(); err == nil {
		paths = append(paths, self, filepath.Join(filepath.Dir(self), "sb-mcp"))
	}
	var found []string
	for _, path := range paths {
		path, err := filepath.Abs(path)
		if err != nil {
			continue
		}
		real, err := filepath.EvalSymlinks(path)
		if err != nil {
			continue
		}
		for _, place := range []string{folderOrFile(path), folderOrFile(real)} {
			if !slices.Contains(found, place) {
				found = append(found, place)
			}
		}
	}
	return found
}

// folderOrFile is the folder of a program, or the program alone where the folder
// holds more than programs: the home directory, or one above it.
func folderOrFile(path string) string {
	dir := filepath.Dir(path)
	home, err := os.UserHomeDir()
	if err == nil {
		home, err = filepath.EvalSymlinks(home)
	}
	if err != nil || dir == home || strings.HasPrefix(home, strings.TrimSuffix(dir, "/")+"/") {
		return path
	}
	return dir
}

// placesInside are the variables by which programs inside find the broker.
func (runCmd) placesInside(a *app, places client.Places) []string {
	var added []string
	if a.opts.Home != "" || os.Getenv("SB_HOME") != "" {
		added = append(added, "SB_HOME="+places.Home)
	}
	if a.opts.Socket != "" || os.Getenv("SB_SOCKET") != "" {
		added = append(added, "SB_SOCKET="+places.SocketDir)
	}
	return added
}

// lookFor refuses a command that is not there outside either, before a launch
// is opened and content handed over for it.
func lookFor(doing, program string) error {
	_, err := exec.LookPath(program)
	if err == nil || errors.Is(err, exec.ErrDot) {
		return nil
	}
	return notStarted(doing, err)
}

// notStarted is the failure of a command that never ran.
func notStarted(doing string, err error) *failure {
	f := &failure{code: wire.InvalidArgument, doing: doing, what: err.Error(), exit: exitNotExecutable, cause: err}
	switch {
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist):
		f.what, f.exit = "there is no such command", exitNotFound
	case errors.Is(err, fs.ErrPermission):
		f.what = "it cannot be executed: permission denied"
	}
	return f
}

// notLaunched is the failure of a launch that the machine or its configuration
// does not allow.
func notLaunched(doing string, err error) error {
	if missing, ok := errors.AsType[*launch.Unsupported](err); ok {
		what := string(wire.PlatformUnsupported) + ": " + missing.Error()
		if missing.Hint != "" {
			what += "; " + missing.Hint
		}
		return &failure{code: wire.PlatformUnsupported, doing: doing, what: what, hint: "sbctl doctor", exit: wire.ExitFailed, cause: err}
	}
	if errors.Is(err, launch.ErrRefused) {
		return refuse(doing, "%v", err)
	}
	return fail(err, "%s", doing)
}

// named puts the code of what the daemon did not find on this machine into words.
func named(err error) error {
	if known, ok := errors.AsType[*failure](err); ok && known.code == wire.PlatformUnsupported && !strings.Contains(known.what, string(known.code)) {
		known.what = string(known.code) + ": " + known.what
	}
	return err
}

// launchPlan is what is started in a launch, and with what.
type launchPlan struct {
	argv   []string
	handed []handedOver
	kept   []string
	places []string // variables that name the broker
}

// launch starts a tree, has the daemon make it a launch, and runs the command.
func (a *app) launch(ctx context.Context, doing string, config launch.Config, plan launchPlan) error {
	if _, err := a.operator(ctx); err != nil {
		return err // before anything is started for a daemon that is not there
	}
	if err := checkOneUID(doing, config.SocketDir); err != nil {
		return err
	}
	tree, err := launch.Start(ctx, config)
	if err != nil {
		return notLaunched(doing, err)
	}
	defer tree.Kill() // whatever happens, nothing of it is left
	opened, err := call(ctx, a, doing, &operatorv1.OpenLaunchRequest{
		Subject: config.Subject, Profile: config.Profile, Sandbox: config.Sandbox, NoNet: config.NoNet, Workspace: config.Workspace,
		Pid: int32(tree.PID()), Command: commandForPeople(plan.argv), Disclose: resourcesOf(plan.handed),
	}, operatorv1.OperatorServiceClient.OpenLaunch)
	if err != nil {
		return named(err)
	}
	a.close()    // the launch outlives this connection, and the daemon itself
	a.conn = nil // in a console close leaves it: its next line has it still, and this one is done with it
	values, err := variables(plan.handed, opened.GetContents())
	for _, c := range opened.GetContents() {
		clear(c.GetContent())
	}
	if err != nil {
		return refuse(doing, "%v", err)
	}
	err = tree.Go(launch.Command{
		Argv: plan.argv, Dir: startIn(config), Env: withoutHanded(launch.Environ(os.Environ(), plan.kept, plan.places), plan.handed), Handed: values,
	})
	wipeAll(values)
	if err != nil {
		return notStarted(doing, err)
	}
	return a.waitFor(doing, tree)
}

// checkOneUID refuses a launch that the daemon could not look at: the owner of
// its socket is who it is.
func checkOneUID(doing, socketDir string) error {
	uid, foreign := foreignDaemon(socketDir)
	if !foreign {
		return nil
	}
	return &failure{
		code: wire.PlatformUnsupported, doing: doing, exit: wire.ExitFailed, hint: "sbctl doctor",
		what: fmt.Sprintf("%s: launches need sbctl run and sbd under one uid, and sbd has uid %d", wire.PlatformUnsupported, uid),
	}
}

// waitFor ends as the command of tree ends.
func (a *app) waitFor(doing string, tree *launch.Tree) error {
	code, err := tree.Wait()
	switch {
	case errors.Is(err, launch.ErrEnded):
		return &failure{code: wire.RunEnded, doing: doing, what: "the launch was ended", exit: code, cause: err}
	case err != nil:
		return fail(err, "%s", doing)
	case code != 0:
		if sig := tree.Died(); sig != 0 {
			a.die = func() { tree.DieOf(sig) }
		}
		return exitCode(code)
	}
	return nil
}

// commandForPeople is argv on one line, as long as the daemon keeps it.
func commandForPeople(argv []string) string {
	var words []string
	for _, word := range argv {
		words = append(words, shellQuote(word))
	}
	line := strings.ToValidUTF8(strings.Join(words, " "), "\uFFFD")
	if len(line) <= maxLaunchCommand {
		return line
	}
	const more = "…"
	end := maxLaunchCommand - len(more)
	for end > 0 && !utf8.RuneStart(line[end]) {
		end--
	}
	return line[:end] + more
}

// narrow runs the command inside a launch: as it is there, or with less.
func (c runCmd) narrow(ctx context.Context, a *app, doing string, argv []string, outer launch.Marker) error {
	denied := func(what string) error {
		return &failure{code: wire.AccessDenied, doing: doing, what: what, exit: wire.ExitDenied}
	}
	switch {
	case c.Subject != "" && c.Subject != outer.Subject:
		return denied("this is a launch of " + outer.Subject + ": what is inside cannot become " + c.Subject)
	case c.Profile != "" && c.Profile != outer.Profile:
		return denied("this is a launch, and its profile was fixed when it was opened")
	case len(c.Env) > 0 || c.EnvFile != "":
		return denied("this is a launch, and nothing is handed over from inside of one")
	}
	if err := c.checkFlags(doing); err != nil {
		return err
	}
	if !c.Sandbox && !c.NoNet {
		return become(doing, argv)
	}
	places, err := a.places()
	if err != nil {
		return err
	}
	config, err := c.config(doing, places)
	if err != nil {
		return err
	}
	config.Subject, config.Profile = outer.Subject, outer.Profile
	tree, err := launch.Start(ctx, config)
	if err != nil {
		return notLaunched(doing, err)
	}
	defer tree.Kill()
	if err := tree.Go(launch.Command{Argv: argv, Dir: startIn(config), Env: os.Environ()}); err != nil {
		return notStarted(doing, err)
	}
	return a.waitFor(doing, tree)
}
