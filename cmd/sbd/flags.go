package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"subjectbroker/daemon"
	"subjectbroker/proto/place"
)

// flags are the command line. Flags may stand before and after the verb and its
// operand.
type flags struct {
	verb, file                            string // verb empty: serve
	home, socketDir, keySource, logFormat string
	waitKey, version, help                bool

	slot, expect                 string
	yes, dryRun, forgetPhrase    bool
	passphrase, recoveryCode     bool
	passphraseFD, recoveryCodeFD int
}

// slots of a vault that a person opens.
const (
	slotPassphrase = "passphrase"
	slotRecovery   = "recovery"
)

// verbs are the commands beside serving, with the flags that go with each of
// them and nothing else. --home, --version and --help go with all.
var verbs = map[string][]string{
	"":        {"socket-dir", "key-source", "log", "wait-key"},
	"check":   {"expect", "passphrase", "recovery-code", "passphrase-fd", "recovery-code-fd"},
	"recover": {"yes", "forget-operator-passphrase", "slot", "key-source", "passphrase-fd", "recovery-code-fd"},
	"restore": {"dry-run", "slot", "key-source", "passphrase-fd", "recovery-code-fd"},
	"forget":  {"yes"},
	"help":    {},
}

func parse(args []string) (flags, error) {
	var f flags
	set := flag.NewFlagSet("sbd", flag.ContinueOnError)
	set.SetOutput(io.Discard)
	set.StringVar(&f.home, "home", "", "")
	set.BoolVar(&f.version, "version", false, "")
	set.BoolVar(&f.help, "help", false, "")
	set.BoolVar(&f.help, "h", false, "")
	set.StringVar(&f.socketDir, "socket-dir", "", "")
	set.StringVar(&f.keySource, "key-source", "", "")
	set.StringVar(&f.logFormat, "log", "", "")
	set.BoolVar(&f.waitKey, "wait-key", false, "")
	set.StringVar(&f.expect, "expect", "", "")
	set.StringVar(&f.slot, "slot", "", "")
	set.BoolVar(&f.yes, "yes", false, "")
	set.BoolVar(&f.dryRun, "dry-run", false, "")
	set.BoolVar(&f.forgetPhrase, "forget-operator-passphrase", false, "")
	set.BoolVar(&f.passphrase, "passphrase", false, "")
	set.BoolVar(&f.recoveryCode, "recovery-code", false, "")
	set.IntVar(&f.passphraseFD, "passphrase-fd", -1, "")
	set.IntVar(&f.recoveryCodeFD, "recovery-code-fd", -1, "")
	var operands []string
	for {
		if err := set.Parse(args); err != nil {
			return f, err
		}
		if set.NArg() == 0 {
			break
		}
		operands, args = append(operands, set.Arg(0)), set.Args()[1:]
	}
	if len(operands) > 0 {
		f.verb, operands = operands[0], operands[1:]
	}
	allowed, known := verbs[f.verb]
	if !known {
		return f, fmt.Errorf("unknown command %q", f.verb)
	}
	if f.verb == "help" {
		f.help = true
	}
	if f.verb == "restore" && len(operands) > 0 {
		f.file, operands = operands[0], operands[1:]
	}
	if len(operands) > 0 {
		return f, fmt.Errorf("unexpected argument %q", operands[0])
	}
	var wrong error
	set.Visit(func(given *flag.Flag) {
		switch given.Name {
		case "home", "version", "help", "h":
			return
		}
		if f.verb != "help" && !slices.Contains(allowed, given.Name) {
			wrong = fmt.Errorf("--%s does not go with %s", given.Name, strings.TrimSpace("sbd "+f.verb))
		}
	})
	if f.verb == "restore" && f.file == "" && !f.help {
		wrong = errors.Join(wrong, errors.New("restore wants the file of a backup"))
	}
	return f, errors.Join(wrong, f.chooseSlot(),
		oneOf("--key-source", f.keySource, "auto", "keychain", "file"),
		oneOf("--log", f.logFormat, "text", "json"),
		oneOf("--slot", f.slot, slotPassphrase, slotRecovery))
}

// chooseSlot makes one word of the flags that each name a slot.
func (f *flags) chooseSlot() error {
	for _, named := range []struct {
		given bool
		slot  string
	}{
		{f.passphrase || f.passphraseFD >= 0, slotPassphrase},
		{f.recoveryCode || f.recoveryCodeFD >= 0, slotRecovery},
	} {
		switch {
		case !named.given:
		case f.slot != "" && f.slot != named.slot:
			return errors.New("choose one: passphrase or recovery code")
		default:
			f.slot = named.slot
		}
	}
	return nil
}

func oneOf(name, value string, allowed ...string) error {
	for _, a := range append(allowed, "") {
		if value == a {
			return nil
		}
	}
	return fmt.Errorf("%s: want one of %s", name, strings.Join(allowed, ", "))
}

func (f flags) config(logger *slog.Logger) (daemon.Config, error) {
	home, err := place.Home(f.home)
	if err != nil {
		return daemon.Config{}, err
	}
	self, err := os.Executable()
	if err != nil {
		return daemon.Config{}, err
	}
	cfg := daemon.Config{
		Home: home, KeySource: f.keySource, WaitKey: f.waitKey, Version: version, Logger: logger, LogFormat: f.logFormat,
		Self: self, KeychildArg: keychild, Adopt: true,
	}
	if dir := f.socketDir; dir != "" {
		if cfg.SocketDir, err = filepath.Abs(dir); err != nil {
			return daemon.Config{}, err
		}
	} else if dir := os.Getenv(place.EnvSocket); dir != "" {
		if cfg.SocketDir, err = filepath.Abs(dir); err != nil {
			return daemon.Config{}, err
		}
	}
	return cfg, nil
}
