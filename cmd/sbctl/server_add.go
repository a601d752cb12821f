package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"subjectbroker/cmd/sbctl/internal/agents"
	"subjectbroker/cmd/sbctl/internal/manual"
	"subjectbroker/cmd/sbctl/internal/ui"
	"subjectbroker/grants/policy"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

type serverAddCmd struct {
	Server  string   `arg:"" help:"Name: lower-case letters, digits and dash, at most 32."`
	Secret  []string `sep:"none" placeholder:"ENV=RES" help:"Start it with the content of the resource RES in the variable ENV. Repeatable."`
	Env     []string `sep:"none" placeholder:"K=V" help:"Start it with this variable; nothing secret in clear. Repeatable."`
	Header  []string `sep:"none" placeholder:"'H: V'" help:"Send this header with each request to the URL; $${secret:RES} stands for a content. Repeatable."`
	Cwd     string   `placeholder:"DIR" help:"Directory that the command starts in; without it a new empty one."`
	Subject []string `sep:"none" placeholder:"S" help:"Grant this subject all its tools. Repeatable."`
	Observe string   `placeholder:"D" help:"For how long its policies only log: 24h, 7d."`
	What    []string `arg:"" optional:"" name:"what" passthrough:"partial" help:"-- and the command with its arguments, or the URL; options stand before it."`
}

// Help is the manual of server add.
func (serverAddCmd) Help() string {
	return `The daemon has the command run, one process for each subject that calls it, with
an environment of PATH, HOME, USER, LANG, LC_*, TMPDIR and what is given here, and
never with an agent's. A command without a slash is looked up in your PATH now, and
the absolute path is kept. A URL is https, or http to this machine, of a server
that speaks Streamable HTTP.

A secret is a sealed resource. The subject that calls needs a grant to use it
("sbctl grant S use:RES"), and can by that not read it. It is put into the
environment, or a header, when the server starts; without it the server does not
start. Headers are the better place: what stands in an environment is known to
every process of the server. A token in clear is refused here: it would stay in
your shell's history.

The server can do nothing until it is trusted ("sbctl server trust") and a subject
may call it ("sbctl grant S 'call:NAME/*'", or --subject). What is missing is
printed at the end, as lines to paste.

Examples:
  sbctl server add github --secret GITHUB_TOKEN=github.token -- npx -y server-github
  sbctl server add files --subject coder --cwd /srv/docs -- files-mcp --read-only
  sbctl server add web --header 'X-Api-Key: ${secret:web.key}' https://mcp.example.com`
}

// AfterApply shows the help also where the options of another command would stand:
// behind a URL, or a command that no -- comes before.
func (c *serverAddCmd) AfterApply(kctx *kong.Context, a *app) error {
	if len(c.What) == 0 || c.What[0] == "--" || !slices.ContainsFunc(c.What, func(word string) bool { return word == "--help" || word == "-h" }) {
		return nil
	}
	if err := manual.Text(a.stdout, kctx.Selected()); err != nil {
		return err
	}
	return errShown
}

type serverAddView struct {
	serverView
	Grants  []grantView `json:"grants"`
	Missing []string    `json:"missing"` // grants to use a secret, as SUBJECT CAPABILITY
	Next    []string    `json:"next"`
}

// Run adds a server.
func (c serverAddCmd) Run(ctx context.Context, a *app) error {
	doing := "adding server " + c.Server
	request := &operatorv1.AddServerRequest{Server: &operatorv1.Server{Name: c.Server}, Subjects: c.Subject}
	if err := c.reach(a, doing, request.GetServer()); err != nil {
		return err
	}
	if err := c.surround(doing, request.GetServer()); err != nil {
		return err
	}
	if c.Observe != "" {
		span, err := policy.ParseTTL(c.Observe)
		if err != nil || span < time.Second {
			return refuse(doing, "--observe: say a span of time such as 24h or 7d")
		}
		request.ObserveSeconds = uint64(span / time.Second)
	}
	got, err := call(ctx, a, doing, request, operatorv1.OperatorServiceClient.AddServer)
	if there, ok := errors.AsType[*failure](err); ok && there.hint == "" && strings.HasSuffix(there.what, "exists already") {
		return there.withHint("sbctl server show %s", c.Server)
	}
	if err != nil {
		return err
	}
	view := serverAddView{viewServer(got.GetServer()), viewGrants(got.GetGrants()), append([]string{}, got.GetMissing()...), []string{}}
	for _, words := range a.nextOfServer(ctx, got) {
		view.Next = append(view.Next, a.paste(words...))
	}
	if err := a.out.Object(ui.Object{ID: c.Server, Fields: a.serverFields(got.GetServer()), Value: view}); err != nil {
		return err
	}
	if a.out.Quiet || a.out.Format == ui.JSON {
		return nil
	}
	var text strings.Builder
	for _, next := range view.Next {
		text.WriteString("next: " + ui.Safe(next) + "\n")
	}
	_, err = fmt.Fprint(a.stdout, text.String())
	return err
}

// reach reads the command or the URL.
func (c serverAddCmd) reach(a *app, doing string, s *operatorv1.Server) error {
	words, isCommand := c.What, false
	if len(words) > 0 && words[0] == "--" {
		words, isCommand = words[1:], true
	}
	switch {
	case len(words) == 0:
		return refuse(doing, "missing the command, after --, or the URL").withHint("sbctl server add --help")
	case !isCommand && strings.Contains(words[0], "://"):
		if len(words) > 1 {
			return refuse(doing, "%q stands after the URL: options stand before it", words[1]).withHint("sbctl server add --help")
		}
		if why := agents.TokenWithin(words[0]); why != "" {
			return refuse(doing, "the URL holds a token in clear (%s): give it as a header, --header 'Authorization: Bearer ${secret:NAME}'", why)
		}
		if c.Cwd != "" {
			return refuse(doing, "--cwd goes with a command")
		}
		s.Url = words[0]
		return nil
	}
	program, err := program(doing, words[0])
	if err != nil {
		return err
	}
	if program != words[0] {
		a.done("%s is %s", words[0], program)
	}
	for _, word := range words[1:] {
		if why := agents.TokenWithin(word); why != "" {
			return refuse(doing, "an argument holds a token in clear (%s), which other processes can see: seal it, and give it as --secret ENV=NAME", why).
				withHint("sbctl secret put NAME --kind secret")
		}
	}
	s.Command = append([]string{program}, words[1:]...)
	if c.Cwd == "" {
		return nil
	}
	s.Cwd, err = filepath.Abs(c.Cwd)
	if err != nil {
		return fail(err, "%s", doing)
	}
	if info, err := os.Stat(s.Cwd); err != nil || !info.IsDir() {
		return refuse(doing, "--cwd: %s is no directory", s.GetCwd())
	}
	return nil
}

// program is the absolute path of what a shell would start here by that name.
func program(doing, name string) (string, error) {
	path, err := exec.LookPath(name)
	if errors.Is(err, exec.ErrDot) {
		err = nil // it is made absolute
	}
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		return "", refuse(doing, "%s: there is no such command here", name)
	}
	if err != nil {
		return "", refuse(doing, "%s: it cannot be executed", name)
	}
	path, err = filepath.Abs(path)
	if err != nil {
		return "", fail(err, "%s", doing)
	}
	return path, nil
}

// surround reads variables and headers.
func (c serverAddCmd) surround(doing string, s *operatorv1.Server) error {
	s.Env, s.Headers = map[string]string{}, map[string]string{}
	for _, pair := range c.Secret {
		name, resource, found := strings.Cut(pair, "=")
		if !found || name == "" || !agents.IsName(resource) {
			return refuse(doing, "--secret takes VARIABLE=RESOURCE, the name of a sealed resource and not its content")
		}
		if err := once(doing, "--secret", s.GetEnv(), name); err != nil {
			return err
		}
		s.Env[name] = secretReference(resource)
	}
	for _, pair := range c.Env {
		name, value, found := strings.Cut(pair, "=")
		if !found || name == "" {
			return refuse(doing, "--env takes NAME=VALUE")
		}
		if err := once(doing, "--env", s.GetEnv(), name); err != nil {
			return err
		}
		if err := clearToken(doing, "--env", name, value, "--secret "+name+"=%s"); err != nil {
			return err
		}
		s.Env[name] = value
	}
	for _, line := range c.Header {
		name, value, found := strings.Cut(line, ":")
		name, value = strings.TrimSpace(name), strings.TrimSpace(value)
		if !found || name == "" {
			return refuse(doing, "--header takes 'NAME: VALUE'")
		}
		if err := once(doing, "--header", s.GetHeaders(), name); err != nil {
			return err
		}
		scheme, _, several := strings.Cut(value, " ")
		if !several {
			scheme = ""
		}
		again := strings.TrimSpace(scheme + " ${secret:%s}")
		if err := clearToken(doing, "--header", name, value, "--header '"+name+": "+again+"'"); err != nil {
			return err
		}
		s.Headers[name] = value
	}
	switch {
	case s.GetUrl() != "" && len(s.GetEnv()) > 0:
		return refuse(doing, "--secret and --env go with a command; a URL takes --header")
	case s.GetUrl() == "" && len(s.GetHeaders()) > 0:
		return refuse(doing, "--header goes with a URL; a command takes --secret and --env")
	}
	return nil
}

func once(doing, option string, values map[string]string, name string) error {
	for taken := range values {
		if taken == name || option == "--header" && strings.EqualFold(taken, name) {
			return refuse(doing, "%s: %s is given twice", option, name)
		}
	}
	return nil
}

// clearToken refuses a token in clear, and says how it is given instead. again has
// the place of the resource's name.
func clearToken(doing, option, name, value, again string) error {
	why := agents.Token(name, value)
	if why == "" {
		return nil
	}
	resource := strings.ToLower(strings.Trim(notInNames.ReplaceAllString(strings.ReplaceAll(name, "_", "."), "-"), "._-"))
	return refuse(doing, "%s: the value of %s looks like a token in clear (%s), which your shell may keep: change it where it comes from, seal the new one, and give %s",
		option, name, why, fmt.Sprintf(again, resource)).withHint("sbctl secret put %s --kind secret", resource)
}

// secretReference is how a value names a sealed resource.
func secretReference(resource string) string { return "${secret:" + resource + "}" }

var secretReferences = regexp.MustCompile(`\$\{secret:([^}]*)\}`)

// secretsOf are the resources that a server's variables and headers name, sorted.
func secretsOf(s *operatorv1.Server) []string {
	var names []string
	for _, values := range []map[string]string{s.GetEnv(), s.GetHeaders()} {
		for value := range maps.Values(values) {
			for _, found := range secretReferences.FindAllStringSubmatch(value, -1) {
				names = append(names, found[1])
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// nextOfServer are the commands that are still to be given before an agent can call
// a server that was added.
func (a *app) nextOfServer(ctx context.Context, got *operatorv1.AddServerResponse) (commands [][]string) {
	name := got.GetServer().GetName()
	if secrets := secretsOf(got.GetServer()); len(secrets) > 0 {
		resources, _ := a.resources(ctx, "")
		for _, secret := range secrets {
			there := slices.ContainsFunc(resources, func(r *operatorv1.Resource) bool {
				return r.GetName() == secret && (r.GetVersion() > 0 || r.GetType() != typeSealed)
			})
			if !there {
				commands = append(commands, []string{"secret", "put", secret, "--kind", "secret"})
			}
		}
	}
	for _, missing := range got.GetMissing() {
		subject, capability, _ := strings.Cut(missing, " ")
		commands = append(commands, []string{"grant", subject, capability})
	}
	if len(got.GetServer().GetSubjects()) == 0 {
		for _, secret := range secretsOf(got.GetServer()) {
			commands = append(commands, []string{"grant", "SUBJECT", "use:" + secret})
		}
		commands = append(commands, []string{"grant", "SUBJECT", "call:" + name + "/*"})
	}
	return append(commands, []string{"server", "trust", name})
}
