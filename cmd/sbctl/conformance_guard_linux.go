package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"subjectbroker/cmd/sbctl/internal/stdiomcp"
	"subjectbroker/proto/wire"
)

// guarded has an agent ask for what is the operator's, while its shim is connected
// and after. The daemon is another one: here agent and operator are one process.
func (h *harness) guarded(ctx context.Context, _ bool) (err error) {
	h.progress("being eager")
	other := *h.stage
	other.home, other.guard = filepath.Join(h.dir, above, "g"), true // a short name, for the paths of sockets
	other.env = slices.DeleteFunc(slices.Clone(h.env), func(v string) bool { return strings.HasPrefix(v, secretVariable+"=") })
	stop, err := other.daemon(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	if output, code, err := other.sbctl(ctx, "subject", "add", subjectWorker, "-q"); err != nil || code != 0 {
		return fmt.Errorf("sbctl subject add: exit code %d: %w: %s", code, err, oneLine(output))
	}
	// Our own program only starts others, the guard knows, and is no agent.
	agent, err := os.ReadFile(h.self)
	if err != nil {
		return err
	}
	program := filepath.Join(h.dir, "agent")
	if err := os.WriteFile(program, agent, 0o700); err != nil { //nolint:gosec // G306: it is a program
		return err
	}
	shim, err := sibling("sb-mcp")
	if err != nil {
		return err
	}
	var got [3]int
	for try := range 2 { // a shim that did not come up in time says nothing of the guard
		cmd := h.command(ctx, program, "__attempt", "eager", h.self, shim)
		cmd.Env = other.environment()
		var said bytes.Buffer
		cmd.Stderr = &said
		out, err := boundOutput(cmd)
		if err == nil {
			err = json.Unmarshal(out, &got)
		}
		if err == nil {
			break
		}
		if try > 0 {
			return fmt.Errorf("asking as an agent: %w: %s", err, oneLine(strings.TrimSpace(said.String())))
		}
	}
	h.expect(layerHarness, "guard", got[0] == 0 && got[1] == wire.ExitDenied && got[2] == 0,
		"the process that started a shim is no operator as long as that is connected: exit codes %d before, %d meanwhile and %d after", got[0], got[1], got[2])
	return nil
}

// eager starts a shim, as an agent does, and prints the exit codes of what it asks
// for as if it were the operator: before, meanwhile and after.
func (c attemptCmd) eager(ctx context.Context, a *app) error {
	if len(c.Args) != 2 {
		return refuse("making an attempt", "it takes the programs")
	}
	codes := make([]int, 3)
	ask := func(when int) error {
		err := exec.CommandContext(ctx, c.Args[0], "subject", "list", "-q").Run()
		exit, exited := errors.AsType[*exec.ExitError](err)
		if exited {
			codes[when] = exit.ExitCode()
			return nil
		}
		return err
	}
	if err := ask(0); err != nil {
		return err
	}
	shim, err := stdiomcp.Start(ctx, stdiomcp.Config{Command: c.Args[1], Args: []string{"--subject", subjectWorker}, Env: os.Environ(), Stderr: a.stderr})
	if err != nil {
		return err
	}
	if err := meanwhile(shim, func() error { return ask(1) }); err != nil {
		return err
	}
	if err := ask(2); err != nil {
		return err
	}
	return json.NewEncoder(a.stdout).Encode(codes)
}

// meanwhile does something while a shim has a run, and ends the shim.
func meanwhile(shim *stdiomcp.Client, do func() error) error {
	_, err := list(shim)
	if err == nil {
		err = do()
	}
	return errors.Join(err, shim.Close())
}
