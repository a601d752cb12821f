package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"subjectbroker/daemon/daemontest"
	"subjectbroker/worker/workertest"
)

// programsForAll builds the three programs where every uid may start them.
func programsForAll(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("suite left out: conformance: builds the three programs")
	}
	if err := realPrograms(); err != nil {
		t.Fatal(err)
	}
	if err := launchesHere(); err != nil {
		daemontest.LeaveOut(t, "launches", err.Error())
	}
	dir, err := os.MkdirTemp("", "sb")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"sbctl", "sbd", "sb-mcp"} {
		content, err := os.ReadFile(filepath.Join(programDir, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := workertest.WriteProgram(filepath.Join(dir, name), content); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// conformanceAs is conformance as a uid, with a folder for what is temporary.
func conformanceAs(t *testing.T, programs string, uid int, args ...string) (cmd *exec.Cmd, temporary string) {
	t.Helper()
	temporary = filepath.Join(programs, t.Name()[strings.LastIndex(t.Name(), "/")+1:])
	if err := os.Mkdir(temporary, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(temporary, uid, uid); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*daemontest.Patience)
	t.Cleanup(cancel)
	cmd = exec.CommandContext(ctx, filepath.Join(programs, "sbctl"), append([]string{"conformance", "-o", "json"}, args...)...)
	cmd.Dir, cmd.WaitDelay = temporary, time.Second
	// Nothing of the person's own broker is touched, even when it is named.
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + temporary, "TMPDIR=" + temporary, "SB_HOME=/nonexistent", "SB_SOCKET=/nonexistent"}
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if uid != os.Geteuid() {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}
	}
	return cmd, temporary
}

// TestConformance has this machine examined as it is: every check is made, and
// none fails. What is not provided is so in the tier that says so.
func TestConformance(t *testing.T) {
	t.Parallel()
	programs := programsForAll(t)
	golden, err := os.ReadFile("testdata/conformance.golden")
	if err != nil {
		t.Fatal(err)
	}
	uids := []int{os.Geteuid()}
	if uids[0] == 0 {
		uids = append(uids, 1001)
	}
	for _, uid := range uids {
		t.Run("uid"+strconv.Itoa(uid), func(t *testing.T) {
			t.Parallel()
			cmd, temporary := conformanceAs(t, programs, uid, "--host")
			if uid == 0 { // and may be where its launches cannot: they have no other's rights
				cmd.Dir = t.TempDir()
				if err := errors.Join(os.Chown(cmd.Dir, 1001, 1001), os.Chmod(cmd.Dir, 0o700)); err != nil {
					t.Fatal(err)
				}
			}
			// There is a terminal, on which nothing may be asked: nobody would answer.
			master, slave, err := openTerminal()
			if err != nil {
				t.Fatal(err)
			}
			defer master.Close()
			defer slave.Close()
			cmd.ExtraFiles = []*os.File{slave}
			cmd.SysProcAttr.Setsid, cmd.SysProcAttr.Setctty, cmd.SysProcAttr.Ctty = true, true, 3
			var said bytes.Buffer
			cmd.Stderr = &said
			out, err := cmd.Output()
			var view conformanceView
			if failed := json.Unmarshal(out, &view); failed != nil {
				t.Fatalf("%v: %v\n%s%s", err, failed, out, said.String())
			}
			if err != nil || view.Status != checkPass || said.Len() > 0 {
				t.Errorf("%s: %v\n%s", view.Status, err, said.String())
			}
			var got []string
			for _, check := range view.Checks {
				if check.Layer == layerHost { // how many there are is the machine's
					if check.Status == checkFail {
						t.Errorf("%+v", check)
					}
					continue
				}
				got = append(got, check.Layer+" "+check.ID)
				unsupported := check.ID == "separate.uid" && uid != 0
				if check.Summary == "" || check.Status == checkFail || check.Status == checkUnsupported && !unsupported {
					t.Errorf("%+v", check)
				}
			}
			want := strings.Split(strings.TrimSpace(string(golden)), "\n")
			if uid != 0 {
				want = slices.DeleteFunc(want, func(line string) bool {
					return strings.Contains(line, " separate.") && !strings.HasSuffix(line, ".uid") || strings.HasSuffix(line, ".mount.later")
				})
			}
			slices.Sort(got)
			slices.Sort(want)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("checks (-want +got):\n%s", diff)
			}
			// One attack of each kind that nothing but the tier itself can hold.
			for id, status := range map[string]string{
				"cooperative.home.key": checkNotProvided, "cooperative.claim": checkNotProvided, "cooperative.door.tmux": checkNotProvided,
				"cooperative.supervisor": checkNotProvided, "bound.files": checkNotProvided, "bound.network": checkNotProvided,
				"bound.home.key": checkPass, "bound.claim": checkPass, "bound.door.tmux": checkPass, "bound.supervisor": checkPass,
				"sandboxed.files": checkPass, "sandboxed.network": checkPass,
				"cooperative.home.parent": checkNotProvided, "cooperative.keys": checkNotProvided, "cooperative.stdin": checkNotProvided,
				"cooperative.impostor": checkNotProvided, "bound.home.parent": checkPass, "bound.keys": checkPass, "bound.cgroup": checkPass,
				"bound.stdin": checkPass, "bound.impostor": checkPass,
				"userns": checkPass, "home": checkNotProvided, // the person's own, which is not made
			} {
				if !slices.ContainsFunc(view.Checks, func(c conformanceCheck) bool { return c.ID == id && c.Status == status }) {
					t.Errorf("%s is not %s", id, status)
				}
			}
			nothingLeft(t, programs, temporary)
		})
	}
}

// TestConformanceCanFail takes the launch away from under the attacks: everything
// that a launch alone holds must fail then.
func TestConformanceCanFail(t *testing.T) {
	t.Parallel()
	programs := programsForAll(t)
	cmd, temporary := conformanceAs(t, programs, os.Geteuid(), "--unprotected")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if cmd.ProcessState.ExitCode() != 1 {
		t.Fatalf("%v\n%s%s", err, out, stderr.String())
	}
	var view conformanceView
	if err := json.Unmarshal(out, &view); err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	if view.Status != checkFail {
		t.Errorf("the status is %s", view.Status)
	}
	worked := map[string]bool{}
	for _, check := range view.Checks {
		if attack, found := strings.CutPrefix(check.ID, tierCooperative+"."); found {
			worked[attack] = check.Status == checkNotProvided
		}
	}
	if len(worked) < 40 {
		t.Errorf("only %d attacks", len(worked))
	}
	for _, check := range view.Checks {
		attack, found := strings.CutPrefix(check.ID, tierSandboxed+".")
		if found && worked[attack] && check.Status != checkFail {
			t.Errorf("the attack works without protection, and is not seen: %+v", check)
		}
		if check.Layer == layerBroker && check.Status != checkPass {
			t.Errorf("not part of what was taken away: %+v", check)
		}
	}
	nothingLeft(t, programs, temporary)
}

// TestConformanceKilled kills it at several moments. No daemon, no tree and no
// file is left.
func TestConformanceKilled(t *testing.T) {
	t.Parallel()
	programs := programsForAll(t)
	uid := os.Geteuid()
	if uid == 0 {
		uid = 1001
	}
	for name, when := range map[string]func(temporary string) bool{
		"serving": func(temporary string) bool { return appeared(temporary, "sb-chk-*/up/home/run/operator/operator.sock") },
		"baited":  func(temporary string) bool { return appeared(temporary, "sb-chk-*/engine.sock") },
		"launched": func(temporary string) bool {
			return running(programs, "\x00run\x00--subject\x00", temporary) && appeared(temporary, "sb-chk-*/engine.sock")
		},
	} {
		t.Run(name, func(t *testing.T) {
			cmd, temporary := conformanceAs(t, programs, uid)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			for !when(temporary) {
				if t.Context().Err() != nil || syscall.Kill(cmd.Process.Pid, 0) != nil {
					t.Fatal("it ended before it could be killed")
				}
				time.Sleep(2 * time.Millisecond)
			}
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			nothingLeft(t, programs, temporary)
		})
	}
}

func appeared(dir, pattern string) bool {
	found, err := filepath.Glob(filepath.Join(dir, pattern))
	return err == nil && len(found) > 0
}

// running says whether a process runs one of the programs with all of words in
// its command line.
func running(programs string, words ...string) bool {
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return false
	}
	for _, path := range lines {
		line, err := os.ReadFile(path)
		if err != nil || !bytes.HasPrefix(line, []byte(programs)) {
			continue
		}
		if !slices.ContainsFunc(words, func(word string) bool { return !bytes.Contains(line, []byte(word)) }) {
			return true
		}
	}
	return false
}

// nothingLeft waits until what was temporary is gone, and the processes that
// were about it.
func nothingLeft(t *testing.T, programs, temporary string) {
	t.Helper()
	deadline := time.Now().Add(daemontest.Patience)
	for {
		left, err := os.ReadDir(temporary)
		if err == nil && len(left) == 0 && !running(programs, temporary) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("left behind: %v %v, processes: %t", left, err, running(programs, temporary))
		}
		time.Sleep(10 * time.Millisecond)
	}
}
