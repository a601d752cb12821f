package main

import (
	"context"
	"fmt"
	"io"

	"subjectbroker/proto/wire"
	"subjectbroker/worker"
)

// check opens a run, prints what came of it, and ends it.
func check(ctx context.Context, config worker.Config, stdout, stderr io.Writer) int {
	run, err := worker.Open(ctx, config)
	if err != nil {
		typed := wire.FromError(err)
		return fail(stderr, wire.Exit(typed.Reason), fmt.Sprintf("checking the connection: %s: %s", typed.Reason, typed.Message), hint(typed, config.Subject))
	}
	defer run.Close()
	fmt.Fprintf(stdout, "subject  %s\n", run.Subject)
	if run.Profile != "" {
		fmt.Fprintf(stdout, "profile  %s\n", run.Profile)
	}
	fmt.Fprintf(stdout, "tier     %s\nshim     %s\ndaemon   %s\napi      %d\n", run.Tier, config.Version, run.DaemonVersion, run.API)
	return wire.ExitDone
}

// hint is the command that mends err, for the person at the terminal.
func hint(err *wire.Error, subject string) string {
	switch err.Reason {
	case wire.AccessDenied:
		return "sbctl subject show " + subject
	case wire.VaultLocked:
		return "sbctl unlock"
	case wire.AuditFailed, wire.IntegrityFailed:
		return "sbctl status"
	}
	return err.Hint
}
