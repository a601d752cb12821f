package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"subjectbroker/daemon/daemontest"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

// An import whose sbctl, and then whose sbd, is killed in the middle is begun anew, and
// comes to what it would have come to at once: each entry there once, each chain whole.
func TestMemoryImportIsKilled(t *testing.T) {
	d := daemontest.Launch(t, daemontest.Options{})
	if _, err := d.Operator().AddTenant(t.Context(), &operatorv1.AddTenantRequest{Name: "acme"}); err != nil {
		t.Fatal(err)
	}
	const entries = 3000
	var file bytes.Buffer
	for i := range entries {
		line := map[string]any{"kind": "note", "title": fmt.Sprint("entry ", i), "text": strings.Repeat("some words ", 80), "created": 1700000000000 + i}
		if i%3 != 2 { // the rest has no id
			line["id"] = "a" + strings.Map(func(r rune) rune { return r - '0' + 'a' }, fmt.Sprintf("%015d", i))
		}
		if i%3 == 1 {
			line["supersedes"] = "a" + strings.Map(func(r rune) rune { return r - '0' + 'a' }, fmt.Sprintf("%015d", i-1))
		}
		if err := json.NewEncoder(&file).Encode(line); err != nil {
			t.Fatal(err)
		}
	}
	begin := func() (cmd *exec.Cmd, in *os.File, output *bytes.Buffer) {
		t.Helper()
		from, in, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		cmd = exec.CommandContext(t.Context(), filepath.Join(programDir, "sbctl"), "memory", "import", "-", "--tenant", "acme")
		cmd.Env = append(os.Environ(), "SB_HOME="+d.Home)
		output = &bytes.Buffer{}
		cmd.Stdin, cmd.Stdout, cmd.Stderr = from, output, output
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		from.Close()
		return cmd, in, output
	}
	held := func() uint64 {
		t.Helper()
		for until := time.Now().Add(daemontest.Patience); ; time.Sleep(10 * time.Millisecond) {
			list, err := d.Operator().ListTenants(t.Context(), &operatorv1.ListTenantsRequest{})
			if err == nil && list.GetToIndex() == 0 && len(list.GetTenants()) == 1 {
				return list.GetTenants()[0].GetEntries() + list.GetTenants()[0].GetSuperseded()
			}
			if time.Now().After(until) {
				t.Fatal(err)
			}
		}
	}
	before := uint64(0)
	for what, kill := range []func(cmd *exec.Cmd){
		func(cmd *exec.Cmd) { _ = cmd.Process.Kill() },
		func(*exec.Cmd) { d.Kill() },
	} {
		cmd, in, output := begin()
		// So much that one piece more than the time before is on its way, and no more.
		if _, err := in.Write(file.Bytes()[:(what+1)<<20+1<<18]); err != nil {
			t.Fatal(err)
		}
		for until := time.Now().Add(daemontest.Patience); held() <= before; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(until) {
				t.Fatal("nothing is added")
			}
		}
		kill(cmd)
		in.Close()
		if err := cmd.Wait(); err == nil {
			t.Errorf("%d: it does not fail: %s", what, output)
		}
		if what == 1 {
			d.Start()
			if said := output.String(); !strings.Contains(said, "the lines up to ") || !strings.Contains(said, "are not added twice") {
				t.Errorf("it says %s", said)
			}
		}
		if before = held(); before == 0 || before >= entries {
			t.Errorf("%d: %d entries in the middle", what, before)
		}
	}
	for again, want := range []string{fmt.Sprint("added: ", entries-int(before)), "added: 0"} {
		cmd, in, output := begin()
		if _, err := in.Write(file.Bytes()); err != nil {
			t.Fatal(err)
		}
		in.Close()
		if err := cmd.Wait(); err != nil || !strings.Contains(strings.Join(strings.Fields(output.String()), " "), want) {
			t.Errorf("%d: %v, and not %q: %s", again, err, want, output)
		}
	}
	stream, err := d.Operator().ExportKnowledge(t.Context(), &operatorv1.ExportKnowledgeRequest{History: true})
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	chained := 0
	for {
		piece, err := stream.Recv()
		if err != nil {
			break
		}
		for line := range bytes.Lines(piece.GetLines()) {
			var one struct{ ID, Title, Supersedes string }
			if err := json.Unmarshal(line, &one); err != nil || seen[one.Title] {
				t.Fatalf("%s: %v", line, err)
			}
			seen[one.Title] = true
			if one.Supersedes != "" {
				chained++
			}
		}
	}
	if len(seen) != entries || chained != entries/3 {
		t.Errorf("%d entries, %d of which supersede another", len(seen), chained)
	}
}
