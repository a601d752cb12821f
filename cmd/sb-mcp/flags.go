package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
)

// maxServerName is the longest --server-name, in bytes.
const maxServerName = 128

// options are the command line.
type options struct {
	subject, profile, serverName, home, socket string
	command                                    string // check or can; empty: serve
	capability                                 string // of can
	help, version                              bool
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
)

// parse reads the command line. Flags may stand on both sides of the command and
// of what it takes.
func parse(args []string) (options, error) {
	var opts options
	flags := flag.NewFlagSet("sb-mcp", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.Usage = func() {}
	for name, value := range map[string]*string{
		"subject": &opts.subject, "profile": &opts.profile, "server-name": &opts.serverName, "home": &opts.home, "socket": &opts.socket,
	} {
		flags.Var(&once{value: value}, name, "")
	}
	flags.BoolVar(&opts.version, "version", false, "")
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
	return opts, opts.validate()
}

// take reads a word that is no flag: the command, then what can is about.
func (o *options) take(word string) error {
	switch {
	case o.command == "" && (word == commandCheck || word == commandCan):
		o.command = word
	case o.command == "":
		return fmt.Errorf("unknown command %q", word)
	case o.command == commandCheck && word == commandCheck:
		return errors.New("check is given twice")
	case o.command == commandCheck:
		return fmt.Errorf("check takes no %q", word)
	case o.capability != "":
		return errors.New("can asks for one capability")
	case word == "":
		return errors.New("the capability is empty")
	default:
		o.capability = word
	}
	return nil
}

func (o options) validate() error {
	switch {
	case o.subject == "":
		return errors.New("--subject is required")
	case !validName(o.subject):
		return fmt.Errorf("--subject: %q is not a name: a letter or digit, then up to 127 letters, digits, dots, underscores or dashes", o.subject)
	case o.profile != "" && !validName(o.profile):
		return fmt.Errorf("--profile: %q is not a name: a letter or digit, then up to 127 letters, digits, dots, underscores or dashes", o.profile)
	case len(o.serverName) > maxServerName || strings.ContainsFunc(o.serverName, func(r rune) bool { return r < 0x20 || r > 0x7e }):
		return fmt.Errorf("--server-name: %q is not up to %d printable ASCII characters", o.serverName, maxServerName)
	case o.command != "" && o.serverName != "":
		return fmt.Errorf("--server-name means nothing to %s", o.command)
	case o.command == commandCan && o.capability == "":
		return errors.New("can needs a capability, such as reach:api.example.com")
	}
	return nil
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
