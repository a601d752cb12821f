package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
	"subjectbroker/worker/launch"
)

// fakeRun is a run that was opened by its own word, or within a launch: ID
// SUBJECT [LAUNCH].
func fakeRun(args ...string) *operatorv1.Run {
	r := &operatorv1.Run{
		RunId: args[0], Subject: args[1], Tier: "cooperative", Pid: 99, Uid: 1000, Command: "sb-mcp --subject " + args[1],
		ShimVersion: "dev", Opened: fakeNow, Reads: 1, Resources: []string{"readme"}, Attested: "plain",
	}
	if len(args) > 2 {
		r.Tier, r.Attested, r.LaunchId, r.Profile, r.Opened = "bound", "launch", args[2], "coder", fakeNow+2
	}
	return r
}

// fakeLaunch is a launch: ID SUBJECT [STATE].
func fakeLaunch(args ...string) *operatorv1.Launch {
	l := &operatorv1.Launch{
		LaunchId: args[0], Subject: args[1], Profile: "coder", Tier: "bound", Pid: 55, Uid: 1000, Command: "claude --print",
		Opened: fakeNow + 1, Runs: 1, Reads: 2, Denials: 1, Disclosed: []string{"api.key"}, State: "open", NoNet: true,
	}
	if len(args) > 2 {
		l.State = args[2]
	}
	return l
}

// endLaunch ends the launch whose id begins with prefix.
func (f *fakeOperator) endLaunch(prefix string) (*operatorv1.EndRunResponse, error) {
	for i, l := range f.launches {
		if strings.HasPrefix(l.GetLaunchId(), prefix) {
			f.launches = slices.Delete(f.launches, i, i+1)
			f.runs = slices.DeleteFunc(f.runs, func(r *operatorv1.Run) bool { return r.GetLaunchId() == l.GetLaunchId() })
			l.Ended, l.State = fakeNow, "ended"
			return &operatorv1.EndRunResponse{Launch: l}, nil
		}
	}
	return nil, invalid("", "there is no such run")
}

// OpenLaunch opens a launch for a process that it believes to be one: what the
// real one looks at is tested with the real one.
func (f *fakeOperator) OpenLaunch(_ context.Context, q *operatorv1.OpenLaunchRequest) (*operatorv1.OpenLaunchResponse, error) {
	s, err := f.subject(q.GetSubject())
	if err != nil {
		return nil, err
	}
	if !s.GetEnabled() {
		return nil, &wire.Error{Reason: wire.AccessDenied, Message: "the subject is disabled", Cause: "SUBJECT_DISABLED"}
	}
	response := &operatorv1.OpenLaunchResponse{}
	for _, name := range q.GetDisclose() {
		r, err := f.resource(name)
		if err != nil {
			return nil, err
		}
		content := bytes.Clone(r.contents[len(r.contents)-1])
		response.Contents = append(response.Contents, &operatorv1.LaunchContent{Name: name, Content: content})
	}
	tier := "bound"
	if q.GetSandbox() {
		tier = "sandboxed"
	}
	response.Launch = &operatorv1.Launch{
		LaunchId: "opened", Subject: q.GetSubject(), Profile: q.GetProfile(), Tier: tier, Pid: q.GetPid(), Command: q.GetCommand(),
		Opened: fakeNow, Disclosed: q.GetDisclose(), State: "open", NoNet: q.GetNoNet(), Workspace: q.GetWorkspace(),
	}
	f.launches = append(f.launches, response.GetLaunch())
	return response, nil
}

// launchedCommand waits until there is a launch of a subject: launched SUBJECT.
func launchedCommand(ts *testscript.TestScript, _ bool, args []string) {
	for range 200 {
		ts.Check(ts.Exec("sbctl", "runs"))
		if regexp.MustCompile(`(?m)^[a-z]+ +` + args[0] + ` .* launched `).MatchString(ts.ReadFile("stdout")) {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	ts.Fatalf("there is no launch of %s", args[0])
}

// launchCondition is [launches]: this machine can make a launch, and a sandbox.
func launchCondition(name string) (bool, error) {
	if name != "launches" {
		return false, fmt.Errorf("unknown condition %q", name)
	}
	return launchesHere() == nil, nil
}

var launchesHere = sync.OnceValue(func() error {
	home, err := os.MkdirTemp("", "sb")
	if err != nil {
		return err
	}
	defer os.RemoveAll(home)
	workspace := filepath.Join(home, "workspace")
	config := launch.Config{Home: filepath.Join(home, "h"), Workspace: workspace, Sandbox: true, NoNet: true, Subject: "nobody"}
	if err := errors.Join(os.MkdirAll(filepath.Join(config.Home, "run", "broker"), 0o700), os.Mkdir(workspace, 0o700)); err != nil {
		return err
	}
	return launch.Check(context.Background(), config)
})
