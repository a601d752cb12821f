package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"subjectbroker/mcpshim/wrap"
)

// maxServerName is the longest --server-name, in bytes.
const maxServerName = 128

// options are the command line.
type options struct {
	subject, profile, serverName, home, socket string
	command                                    string // one of the commands below; empty: speak to one agent
	capability                                 string // of can
	help, version                              bool

	// Of wrap.
	server                 string
	env                    []string // names of variables
	maxLine, maxServerLine int      // bytes; 0: the default
	program                []string // the server's command

	// Of serve.
	listen, unix, tlsCert, tlsKey string
	hosts                         []string
	check                         bool
}

// once is a flag that may be given once: of two subjects neither is the one
// that was meant.
type once struct {
	value *string
	given bool
}

func (o *once) String() string { return "" }

func (o *once) Set(value string) error {
	switch {
	case o.given:
		return errors.New("it is given twice")
	case value == "":
		return errors.New("it is empty")
	}
	o.given, *o.value = true, value
	return nil
}

// Commands beside serving.
const (
	commandCheck = "check"
	commandCan   = "can"
	commandWrap  = "wrap"
	commandServe = "serve"
	commandHost  = "host" // for the daemon
)

// Limits on a line, in bytes: shorter ones would not hold any session.
const (
	minLine = 64
	maxLine = 1 << 30
)

// variables is a flag that names variables, once for each.
type variables struct{ names *[]string }

func (v variables) String() string { return "" }

func (v variables) Set(name string) error {
	if err := wrap.CheckName(name); err != nil {
		return err
	}
	*v.names = append(*v.names, name)
	return nil
}

// several is a flag that may be given more than once.
type several struct{ values *[]string }

func (s several) String() string { return "" }

func (s several) Set(value string) error {
	*s.values = append(*s.values, value)
	return nil
}

// size is a flag that takes a number of bytes, once.
type size struct {
	value *int
}

func (s size) String() string { return "" }

func (s size) Set(value string) error {
	n, err := strconv.Atoi(value)
	switch {
	case *s.value != 0:
		return errors.New("it is given twice")
	case err != nil || n < minLine || n > maxLine:
		return fmt.Errorf("%q is not a number of bytes from %d to %d", value, minLine, maxLine)
	}
	*s.value = n
	return nil
}

// parse reads the command line. Flags may stand on both sides of the command and
// of what it takes; behind -- stands the server's command, whatever it is.
func parse(args []string) (options, error) {
	var opts options
	separated := slices.Index(args, "--")
	if separated >= 0 {
		opts.program = args[separated+1:]
		args = args[:separated]
	}
	flags := flag.NewFlagSet("sb-mcp", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.Usage = func() {}
	for name, value := range map[string]*string{
		"subject": &opts.subject, "profile": &opts.profile, "server-name": &opts.serverName, "home": &opts.home, "socket": &opts.socket,
		"server": &opts.server, "listen": &opts.listen, "unix": &opts.unix, "tls-cert": &opts.tlsCert, "tls-key": &opts.tlsKey,
	} {
		flags.Var(&once{value: value}, name, "")
	}
	flags.Var(variables{&opts.env}, "env", "")
	flags.Var(several{&opts.hosts}, "host", "")
	flags.Var(size{&opts.maxLine}, "max-line", "")
	flags.Var(size{&opts.maxServerLine}, "max-server-line", "")
	flags.BoolVar(&opts.version, "version", false, "")
	flags.BoolVar(&opts.check, "check", false, "")
	for rest := args; ; {
		if err := flags.Parse(rest); errors.Is(err, flag.ErrHelp) {
			opts.help = true
			return opts, nil
		} else if err != nil {
			return opts, reworded(err)
		}
		if flags.NArg() == 0 {
			break
		}
		if err := opts.take(flags.Arg(0)); err != nil {
			return opts, err
		}
		rest = flags.Args()[1:]
	}
	if opts.version {
		return opts, nil
	}
	if separated >= 0 && opts.command != commandWrap {
		return opts, errors.New("-- and a command follow wrap only")
	}
	return opts, opts.validate()
}

// take reads a word that is no flag: the command, then what can is about.
func (o *options) take(word string) error {
	switch {
	case o.command == "" && slices.Contains([]string{commandCheck, commandCan, commandWrap, commandHost, commandServe}, word):
		o.command = word
	case o.command == "":
		return fmt.Errorf("unknown command %q", word)
	case o.command == commandCheck && word == commandCheck:
		return errors.New("check is given twice")
	case o.command == commandWrap:
		return fmt.Errorf("wrap takes the server's command behind --, not %q", word)
	case o.command == commandCheck, o.command == commandHost, o.command == commandServe:
		return fmt.Errorf("%s takes no %q", o.command, word)
	case o.capability != "":
		return errors.New("can asks for one capability")
	case word == "":
		return errors.New("the capability is empty")
	default:
		o.capability = word
	}
	return nil
}

func (o *options) validate() error {
	if o.command == commandHost {
		if o.subject+o.profile+o.serverName+o.home+o.socket+o.server+o.listen+o.unix+o.tlsCert+o.tlsKey != "" ||
			len(o.env)+o.maxLine+o.maxServerLine+len(o.hosts) != 0 || o.check {
			return errors.New("host takes no flags: sbd starts it and tells it everything")
		}
		return nil
	}
	if err := o.elsewhere(); err != nil {
		return err
	}
	switch {
	case o.command == commandServe:
		return o.validateServe()
	case o.subject == "":
		return errors.New("--subject is required")
	case !validName(o.subject):
		return fmt.Errorf("--subject: %q is not a name: a letter or digit, then up to 127 letters, digits, dots, underscores or dashes", o.subject)
	case o.profile != "" && !validName(o.profile):
		return fmt.Errorf("--profile: %q is not a name: a letter or digit, then up to 127 letters, digits, dots, underscores or dashes", o.profile)
	case o.command != "" && o.serverName != "":
		return fmt.Errorf("--server-name means nothing to %s", o.command)
	case o.command == commandCan && o.capability == "":
		return errors.New("can needs a capability, such as reach:api.example.com")
	case o.command == commandWrap:
		return o.validateWrap()
	}
	return nil
}

// elsewhere finds flags that belong to another command.
func (o *options) elsewhere() error {
	for _, one := range []struct {
		command string
		flags   map[string]bool
	}{
		{commandWrap, map[string]bool{
			"server": o.server != "", "env": len(o.env) > 0, "max-line": o.maxLine != 0, "max-server-line": o.maxServerLine != 0,
		}},
		{commandServe, map[string]bool{
			"listen": o.listen != "", "unix": o.unix != "", "tls-cert": o.tlsCert != "", "tls-key": o.tlsKey != "", "host": len(o.hosts) > 0,
			"check": o.check,
		}},
	} {
		for flag, given := range one.flags {
			if given && o.command != one.command {
				return fmt.Errorf("--%s belongs to %s", flag, one.command)
			}
		}
	}
	if !validServerName(o.serverName) {
		return fmt.Errorf("--server-name: %q is not up to %d printable ASCII characters", o.serverName, maxServerName)
	}
	return nil
}

// validServerName says whether an agent may be told the name.
func validServerName(name string) bool {
	return len(name) <= maxServerName && !strings.ContainsFunc(name, func(r rune) bool { return r < 0x20 || r > 0x7e })
}

func (o *options) validateWrap() error {
	switch {
	case o.server == "":
		return errors.New("--server is required: the name under which policy knows the server")
	case !validServer(o.server):
		return fmt.Errorf("--server: %q is not a server's name: a lower-case letter or digit, then up to 31 of those or dashes", o.server)
	case len(o.program) == 0 || o.program[0] == "":
		return errors.New("wrap needs the server's command behind --")
	}
	return nil
}

// validServer is the grammar of servers' names: ^[a-z0-9][a-z0-9-]{0,31}$.
func validServer(name string) bool {
	if name == "" || len(name) > 32 || name[0] == '-' {
		return false
	}
	return !strings.ContainsFunc(name, func(r rune) bool { return (r < '0' || r > '9') && (r < 'a' || r > 'z') && r != '-' })
}

// validName is the grammar of every name: ^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$.
func validName(name string) bool {
	if name == "" || len(name) > 128 {
		return false
	}
	for i := range len(name) {
		c := name[i]
		alphanumeric := c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z'
		if !alphanumeric && (i == 0 || c != '.' && c != '_' && c != '-') {
			return false
		}
	}
	return true
}

// reworded says what the flag package says, in the words of our other programs.
func reworded(err error) error {
	text := err.Error()
	if name, unknown := strings.CutPrefix(text, "flag provided but not defined: -"); unknown {
		return fmt.Errorf("unknown flag --%s", strings.TrimPrefix(name, "-"))
	}
	if name, missing := strings.CutPrefix(text, "flag needs an argument: -"); missing {
		return fmt.Errorf("--%s needs a value", name)
	}
	if _, rest, found := strings.Cut(text, "for flag -"); found {
		if name, why, split := strings.Cut(rest, ": "); split {
			return fmt.Errorf("--%s: %s", name, why)
		}
	}
	return err
}
