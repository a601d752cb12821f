package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"subjectbroker/daemon/daemontest"
	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	"subjectbroker/proto/wire"
)

// TestWithDaemon runs sbctl against a real daemon, a new one for each script.
// One after the other: the umask, which a daemon sets while it makes its
// sockets, belongs to the whole process.
func TestWithDaemon(t *testing.T) {
	scripts, err := filepath.Glob("testdata/real/*.txtar")
	if err != nil || len(scripts) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, script := range scripts {
		t.Run(strings.TrimSuffix(filepath.Base(script), ".txtar"), func(t *testing.T) {
			daemon := daemontest.StartWith(t, daemontest.Options{ApprovalWait: time.Millisecond})
			reader, recaller := readCommand(daemon), recallCommand(daemon)
			testscript.Run(t, testscript.Params{
				Files: []string{script},
				Setup: func(env *testscript.Env) error {
					env.Setenv("SB_HOME", daemon.Home)
					env.Setenv("HOME", env.WorkDir)
					env.Setenv("TZ", "UTC")
					return os.Chmod(env.WorkDir, 0o700)
				},
				Cmds: commands(map[string]scriptCommand{"reads": reader, "recalls": recaller, "big": bigCommand}),
			})
		})
	}
}

// readCommand asks for a resource as a subject:
//
//	reads SUBJECT NAME [CONTENT]     allowed, and has the content
//	! reads SUBJECT NAME [REASON]    denied, for the reason
//
// A subject keeps its run from one use to the next.
func readCommand(daemon *daemontest.Daemon) scriptCommand {
	runs := map[string]*daemontest.Run{}
	return func(ts *testscript.TestScript, neg bool, args []string) {
		if len(args) < 2 {
			ts.Fatalf("usage: [!] reads SUBJECT NAME [CONTENT|REASON]")
		}
		run := runs[args[0]]
		if run == nil {
			run = daemon.Open(args[0])
			runs[args[0]] = run
		}
		content, reason := run.Read(args[1])
		if reason == wire.RunEnded {
			delete(runs, args[0])
		}
		got := content
		if neg {
			got = string(reason)
		}
		switch {
		case (reason != wire.Allowed) != neg:
			ts.Fatalf("%s reads %s: %s", args[0], args[1], reason)
		case len(args) > 2 && got != args[2]:
			ts.Fatalf("%s reads %s: %q, want %q", args[0], args[1], got, args[2])
		}
	}
}

// recallCommand asks for something of the memory as a subject, which is denied where
// it is negated:
//
//	[!] recalls SUBJECT search_knowledge|capture_knowledge [TENANT,…]
func recallCommand(daemon *daemontest.Daemon) scriptCommand {
	return func(ts *testscript.TestScript, neg bool, args []string) {
		if len(args) < 2 {
			ts.Fatalf("usage: [!] recalls SUBJECT TOOL [TENANT,…]")
		}
		var tenants []string
		if len(args) > 2 {
			tenants = strings.Split(args[2], ",")
		}
		run := daemon.Open(args[0])
		var err error
		switch args[1] {
		case "search_knowledge":
			_, err = run.SearchKnowledge(context.Background(), &brokerv1.SearchKnowledgeRequest{RunId: run.ID, Query: "ship", Tenants: tenants})
		case "capture_knowledge":
			_, err = run.CaptureKnowledge(context.Background(), &brokerv1.CaptureKnowledgeRequest{RunId: run.ID, Tenant: strings.Join(tenants, ""), Kind: "note", Title: "x"})
		default:
			ts.Fatalf("no tool %s", args[1])
		}
		if refused := wire.FromError(err); (err != nil) != neg || neg && refused.Reason != wire.AccessDenied && refused.Reason != wire.TenantOutOfScope {
			ts.Fatalf("%v (negated: %v)", err, neg)
		}
	}
}

// bigCommand writes a file named big: big SIZE.
func bigCommand(ts *testscript.TestScript, _ bool, args []string) {
	size, err := strconv.Atoi(args[0])
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs("big"), bytes.Repeat([]byte("x"), size), 0o600))
}
