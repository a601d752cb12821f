package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"subjectbroker/daemon"
	"subjectbroker/proto/wire"
)

// offline runs the verbs that need the daemon stopped.
func offline(ctx context.Context, f flags, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, os.Interrupt)
	defer stop()
	cfg, err := f.config(slog.New(slog.DiscardHandler))
	if err != nil {
		return f.failed(stderr, err)
	}
	work := newProgress(stderr)
	o := daemon.Offline{
		Config: cfg, Slot: f.slot, ForgetPassphrase: f.forgetPhrase,
		Person: person{ctx: ctx, yes: f.yes, passphraseFD: f.passphraseFD, recoveryCodeFD: f.recoveryCodeFD},
		Say: func(line string) {
			work.clear()
			fmt.Fprintln(stdout, line)
		},
		Progress: work.show,
	}
	switch f.verb {
	case "check":
		err = daemon.Check(ctx, o, f.expect)
	case "recover":
		err = daemon.Recover(ctx, o)
	case "restore":
		err = restore(ctx, o, f)
	case "forget":
		err = forget(ctx, o)
	}
	work.clear()
	if errors.Is(err, context.Canceled) && ctx.Err() != nil {
		fmt.Fprintln(stderr, "sbd: interrupted")
		return wire.ExitFailed
	}
	if err != nil {
		return f.failed(stderr, err)
	}
	return wire.ExitDone
}

func restore(ctx context.Context, o daemon.Offline, f flags) error {
	file, err := filepath.Abs(f.file)
	if err != nil {
		return err
	}
	return daemon.Restore(ctx, o, file, f.dryRun)
}

func forget(ctx context.Context, o daemon.Offline) error {
	o.Say("The keys that are stored for the vault in " + o.Home + " are removed. Without a recovery code or a passphrase nothing opens it again.")
	yes, err := o.Person.Confirm("Go on?")
	if err != nil {
		return err
	}
	if !yes {
		return fmt.Errorf("nothing was changed")
	}
	return daemon.Forget(ctx, o)
}
