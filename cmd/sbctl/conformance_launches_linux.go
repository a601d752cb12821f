package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/worker/launch"
)

// firstWays are the ways into a process that is not closed.
var firstWays = []string{"environ", "memory", "descriptors"}

// first looks into the first process of a tree, which holds the rights over it, from
// inside.
func (h *harness) first(ctx context.Context, supported bool) error {
	if !supported {
		return nil
	}
	h.progress("looking into the first process")
	for _, tier := range harnessTiers[1:] {
		if !h.gives(tier) {
			continue
		}
		out, err := h.output(ctx, tier, h.self, "__attempt", "first")
		if err != nil {
			return err
		}
		var got map[string][2]bool
		if err := json.Unmarshal(out, &got); err != nil {
			return fmt.Errorf("reading what an attack printed: %w", err)
		}
		for _, way := range firstWays {
			id, tried := tier+".first."+way, "looking into the first process of the launch ("+way+")"
			if control := got[way][0]; !control {
				h.note(layerHarness, id, checkUnsupported, "%s: nothing can be looked into here", tried)
				continue
			}
			h.expect(layerHarness, id, !got[way][1], "%s: of a process that is not closed it works", tried)
		}
	}
	return nil
}

// first prints for each way whether it leads into a process of its own, and whether
// into the first one.
func (attemptCmd) first(ctx context.Context, a *app) error {
	victim, err := again(ctx, "victim")
	if err != nil {
		return err
	}
	victim.Stdin, victim.Stdout = nil, nil
	in, err := victim.StdinPipe()
	if err != nil {
		return err
	}
	out, err := victim.StdoutPipe()
	if err != nil {
		return err
	}
	if err := victim.Start(); err != nil {
		return err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	got := map[string][2]bool{}
	if pid, failed := strconv.Atoi(strings.TrimSpace(line)); err == nil && failed == nil {
		for _, way := range firstWays {
			got[way] = [2]bool{leadsInto(way, pid), leadsInto(way, 1)}
		}
	}
	_ = in.Close()
	if err := errors.Join(err, victim.Wait()); err != nil {
		return err
	}
	return json.NewEncoder(a.stdout).Encode(got)
}

// leadsInto reports whether a way leads into a process.
func leadsInto(way string, pid int) bool {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	switch way {
	case "environ":
		_, err := os.ReadFile(filepath.Join(dir, "environ"))
		return err == nil
	case "memory":
		file, err := os.OpenFile(filepath.Join(dir, "mem"), os.O_RDWR, 0)
		if err != nil {
			return false
		}
		_ = file.Close()
		return true
	default:
		_, err := os.Readlink(filepath.Join(dir, "fd", "0"))
		return err == nil
	}
}

// otherCalls are the tables of system calls beside its own that a program can use.
var otherCalls = []string{"i386", "x32"}

// foreign makes a system call that trees do not have by other tables of them.
func (h *harness) foreign(ctx context.Context, supported bool) error {
	h.progress("calling the kernel in other ways")
	var mu sync.Mutex
	found := map[string]map[string]string{}
	err := h.tiers(supported, func(tier string) error {
		if runtime.GOARCH != "amd64" { // there are none
			return nil
		}
		out, err := h.output(ctx, tier, h.self, "__attempt", "foreign")
		if err != nil {
			return err
		}
		var got map[string]string
		if err := json.Unmarshal(out, &got); err != nil {
			return fmt.Errorf("reading what an attack printed: %w", err)
		}
		mu.Lock()
		defer mu.Unlock()
		found[tier] = got
		return nil
	})
	if err != nil {
		return err
	}
	for _, table := range otherCalls {
		worked, words := map[string]bool{}, map[string]string{}
		for tier, got := range found {
			worked[tier], words[tier] = got[table] == "", "it is answered"
			if got[table] != "" {
				words[tier] = got[table]
			}
		}
		h.judge(escape{id: "calls." + table, bound: true, kernel: true}, "asking for a keyring by the system calls of "+table, worked, words)
	}
	return nil
}

// foreign prints how the kernel answers that, and nothing where it does it. Each call
// is made by a process of its own: where there is no such table, that is the end of it.
func (attemptCmd) foreign(ctx context.Context, a *app) error {
	got := map[string]string{}
	for _, table := range otherCalls {
		cmd, err := again(ctx, "keyring", table)
		if err != nil {
			return err
		}
		cmd.Stdout, cmd.Stderr = nil, nil
		out, err := cmd.Output()
		if got[table] = strings.TrimSpace(string(out)); err != nil {
			got[table] = "there is no such table"
		}
	}
	return json.NewEncoder(a.stdout).Encode(got)
}

// keyring asks for the keyring of our uid by a table of system calls, and prints why
// there is none.
func (c attemptCmd) keyring(_ context.Context, a *app) error {
	const (
		keyctlAMD64, keyctlI386 = 250, 288
		x32                     = 0x40000000
	)
	user := uintptr(0xfffffffc) // KEY_SPEC_USER_KEYRING, as 32 bits
	var errno unix.Errno
	switch c.Args[0] {
	case "i386":
		errno = i386Call(keyctlI386, unix.KEYCTL_GET_KEYRING_ID, user, 1)
	case "x32":
		_, _, errno = unix.RawSyscall(keyctlAMD64|x32, unix.KEYCTL_GET_KEYRING_ID, user, 1)
	default:
		return refuse("making an attempt", "there is no table of this name")
	}
	if errno != 0 {
		_, err := fmt.Fprintln(a.stdout, errno.Error())
		return err
	}
	return nil
}

// claimed are the answers to who asks for launches that are none.
type claimed struct{ Stranger, Own, Open bool }

// falseLaunches asks for launches of processes that are not confined as one, or are
// somebody else's children.
func (h *harness) falseLaunches(ctx context.Context, supported bool) error {
	if !supported {
		return nil
	}
	h.progress("asking for false launches")
	out, err := h.output(ctx, tierCooperative, h.self, "__attempt", "pretend")
	var got claimed
	if err == nil {
		err = json.Unmarshal(out, &got)
	}
	if err != nil {
		return fmt.Errorf("asking for false launches: %w", err)
	}
	h.expect(layerHarness, "launch.own", got.Own, "who started a tree gets a launch for it")
	h.expect(layerHarness, "launch.stranger", !got.Stranger, "a process gets no launch for the tree of another one")
	h.expect(layerHarness, "launch.open", !got.Open, "there is no launch for a process in namespaces of its own from where the home is seen")
	return nil
}

// pretend prints who was given a launch for what.
func (c attemptCmd) pretend(ctx context.Context, a *app) error {
	places, err := a.places()
	if err != nil {
		return err
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	tree, err := launch.Start(ctx, launch.Config{Home: places.Home, SocketDir: places.SocketDir, Environ: os.Environ(), Stdin: null, Stdout: null, Stderr: null})
	if err != nil {
		return err
	}
	defer tree.Kill()
	stranger, err := again(ctx, "claim", strconv.Itoa(tree.PID()))
	if err != nil {
		return err
	}
	stranger.Stdout = nil
	said, err := stranger.Output()
	if err != nil {
		return err
	}
	own, err := claims(ctx, a, tree.PID())
	if err != nil {
		return err
	}
	bare, err := again(ctx, "victim")
	if err != nil {
		return err
	}
	bare.Stdin, bare.Stdout = nil, nil
	in, err := bare.StdinPipe()
	if err != nil {
		return err
	}
	bare.SysProcAttr = inNamespaces()
	if err := errors.Join(open(), bare.Start()); err != nil { // the maps are written through /proc/PID
		return err
	}
	seen, err := claims(ctx, a, bare.Process.Pid)
	_ = in.Close()
	if err = errors.Join(err, bare.Wait()); err != nil {
		return err
	}
	return json.NewEncoder(a.stdout).Encode(claimed{Stranger: strings.TrimSpace(string(said)) == "true", Own: own, Open: seen})
}

// claim prints whether there is a launch for a process.
func (c attemptCmd) claim(ctx context.Context, a *app) error {
	pid, err := strconv.Atoi(c.Args[0])
	if err != nil {
		return err
	}
	given, err := claims(ctx, a, pid)
	if err == nil {
		_, err = fmt.Fprintln(a.stdout, given)
	}
	return err
}

// claims asks for a launch, and reports whether there is one.
func claims(ctx context.Context, a *app, pid int) (bool, error) {
	operator, err := a.operator(ctx)
	if err != nil {
		return false, err
	}
	_, refused := operator.OpenLaunch(ctx, &operatorv1.OpenLaunchRequest{Subject: subjectWorker, Pid: int32(pid), Command: "conformance"})
	return refused == nil, nil
}
