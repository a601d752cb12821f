package daemon_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"subjectbroker/daemon/daemontest"
	"subjectbroker/proto/place"
	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// forget has entries forgotten.
func forget(t *testing.T, d *daemontest.Daemon, ids ...string) *operatorv1.ForgetKnowledgeResponse {
	t.Helper()
	got, err := d.Operator().ForgetKnowledge(t.Context(), &operatorv1.ForgetKnowledgeRequest{EntryIds: ids})
	must(t, err)
	return got
}

// titleOf is what is left of an entry's title.
func titleOf(t *testing.T, run *daemontest.Run, id string) string {
	t.Helper()
	got, err := run.ReadEntry(t.Context(), &brokerv1.ReadEntryRequest{RunId: run.ID, EntryId: id})
	must(t, err)
	return got.GetEntry().GetTitle()
}

// A vault that is older than its log, or whose log was lost in part: what was forgotten
// since is forgotten once more when it is accepted, and the copy that is kept is said to
// hold it. What the log does not know comes back, and that is said.
func TestForgottenInAnOlderVault(t *testing.T) {
	t.Parallel()
	for name, flipped := range map[string]bool{"its log goes on": false, "its log is damaged": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := &spoilable{Daemon: daemontest.Launch(t, daemontest.Options{Spoiled: true})}
			run := librarian(t, d.Daemon, "acme")
			before := capture(t, run, "acme", "forgotten before", "", "")
			gone := capture(t, run, "acme", "a marker", "of what shall go", "")
			kept := capture(t, run, "acme", "another marker", "", gone)
			forget(t, d.Daemon, before)
			d.Stop()
			old := daemontest.Copy(t, d.Home, "vault.db")
			d.Start()
			awaitMemory(t, d.Daemon)
			forget(t, d.Daemon, gone)
			d.Put("doc", "x")
			d.Kill()
			daemontest.Restore(t, old)
			if flipped {
				path := filepath.Join(place.AuditDir(d.Home), "00000001.jsonl")
				raw, err := os.ReadFile(path)
				must(t, err)
				raw[len(raw)-9] ^= 1
				must(t, os.WriteFile(path, raw, 0o600))
			}
			exit, out, said := sbd(t, d.Home, "recover", "--yes")
			equal(t, "exit: "+said, exit, wire.ExitDone)
			for _, text := range []string{"memory.forget " + gone + " acme", "forgets 1 entries of the memory once more"} {
				if !strings.Contains(out, text) {
					t.Errorf("it does not say %q:\n%s", text, out)
				}
			}
			sound(t, d.Home)
			d.Start()
			awaitMemory(t, d.Daemon)
			run = d.Open("worker")
			if titleOf(t, run, gone) != "" || titleOf(t, run, kept) != "another marker" {
				t.Error("what was forgotten is there again, or what was not is gone")
			}
			last := d.Entries("memory.forget")
			if e := last[len(last)-1]; e.ResourceID != gone || e.Cause != d.accepted(t) || !slices.Equal(e.Tenants, []string{"acme"}) {
				t.Errorf("%+v", e)
			}
			// The file is written anew without it, as after any forgetting; what was kept has it.
			row := sealedRow(t, old[place.VaultFile(d.Home)], gone)
			eventually(t, "the vault is purged", func() bool {
				raw, err := os.ReadFile(place.VaultFile(d.Home))
				must(t, err)
				return !bytes.Contains(raw, row)
			})
			again := capture(t, run, "acme", "one more", "", "")
			if got := forget(t, d.Daemon, again).GetKept(); len(got) != 1 || !strings.HasPrefix(got[0], place.VaultFile(d.Home)+".before-") {
				t.Errorf("kept: %q", got)
			} else if raw, err := os.ReadFile(got[0]); err != nil || !bytes.Contains(raw, row) {
				t.Errorf("the control: %v", err)
			}
			removed, err := d.Operator().RemoveTenant(t.Context(), &operatorv1.RemoveTenantRequest{Name: "acme"})
			if must(t, err); len(removed.GetKept()) != 1 {
				t.Errorf("%v", removed)
			}
		})
	}
}

// sealedRow is a part of an entry's sealed value as it lies in a vault's file.
func sealedRow(t *testing.T, file []byte, id string) []byte {
	t.Helper()
	_, behind, found := bytes.Cut(file, []byte(id+"v1:"))
	if !found {
		t.Fatalf("the row of %s is not in the file", id)
	}
	return bytes.Clone(behind[:100])
}

// A backup holds memory, tenants and keys, is verified with them, and restores them. It
// holds what was forgotten since: that is said, and can be mended from a later log.
func TestRestoreWithMemory(t *testing.T) {
	t.Parallel()
	old := daemontest.Launch(t, daemontest.Options{})
	code := addRecovery(t, old)
	run := librarian(t, old, "acme", "beta")
	first := capture(t, run, "acme", "first marker", "", "")
	gone := capture(t, run, "acme", "second marker", "", first)
	other := capture(t, run, "beta", "third marker", "", "")
	forget(t, old, other)
	minted, err := old.Operator().MintAgentKey(t.Context(), &operatorv1.MintAgentKeyRequest{Subject: "worker", Tenants: []string{"acme"}})
	must(t, err)
	before := exported(t, old, &operatorv1.ExportKnowledgeRequest{History: true})
	file, _ := backedUp(t, old, &operatorv1.BackupRequest{})
	raw, err := os.ReadFile(file)
	must(t, err)
	must(t, second(verifyBackup(t, old, raw)))
	equal(t, "backups that hold it", len(forget(t, old, gone).GetBackups()), 1)
	old.Stop()

	home := newHomePath(t)
	exit, out, said := restoring(t, home, code, file)
	equal(t, "exit: "+said, exit, wire.ExitDone)
	if want := "memory: 2 entries and 1 that were forgotten; what was forgotten after this backup was made is in it"; !strings.Contains(out, want) {
		t.Errorf("it does not say %q:\n%s", want, out)
	}
	recovered(t, home, "lost: what was forgotten of the memory after that")
	sound(t, home)
	d := daemontest.Launch(t, daemontest.Options{Home: home})
	awaitMemory(t, d)
	equal(t, "the memory", exported(t, d, &operatorv1.ExportKnowledgeRequest{History: true}), before)
	keys, err := d.Operator().ListAgentKeys(t.Context(), &operatorv1.ListAgentKeysRequest{})
	must(t, err)
	if k := keys.GetKeys(); len(k) != 1 || k[0].GetKeyId() != minted.GetKey().GetKeyId() || !slices.Equal(k[0].GetTenants(), []string{"acme"}) {
		t.Errorf("%v", k)
	}
	// What the later log knows, with what is not here, and what was forgotten before.
	got, err := d.Operator().ForgetKnowledge(t.Context(), &operatorv1.ForgetKnowledgeRequest{EntryIds: []string{gone, other, "aaaaaaaaaaaaaaa2"}, PresentOnly: true})
	must(t, err)
	equal(t, "forgotten", strings.Join(got.GetEntryIds(), " "), gone)
	again, err := d.Operator().ForgetKnowledge(t.Context(), &operatorv1.ForgetKnowledgeRequest{EntryIds: []string{gone, other, "aaaaaaaaaaaaaaa2"}, PresentOnly: true})
	must(t, err)
	equal(t, "forgotten twice", len(again.GetEntryIds()), 0)
	equal(t, "its title", titleOf(t, d.Open("worker"), gone), "")
	d.Stop()
	sound(t, home)
}

// A vault in which nothing was ever remembered, as one of before there was a memory, is
// checked, backed up and restored, and remembers from then on.
func TestRestoreFromBeforeTheMemory(t *testing.T) {
	t.Parallel()
	old := newSpoilable(t, "")
	code := addRecovery(t, old.Daemon)
	file, _ := backedUp(t, old.Daemon, &operatorv1.BackupRequest{})
	old.Stop()
	raw, err := os.ReadFile(place.VaultFile(old.Home))
	must(t, err)
	for _, bucket := range []string{"tenants", "agentkeys", "knowledge"} {
		if bytes.Contains(raw, []byte(bucket)) {
			t.Errorf("there is a bucket %s before anything is in it", bucket)
		}
	}
	home := newHomePath(t)
	exit, _, said := restoring(t, home, code, file)
	equal(t, "exit: "+said, exit, wire.ExitDone)
	recovered(t, home)
	d := daemontest.Launch(t, daemontest.Options{Home: home})
	remembering(t, d, "acme")
	d.Grant("worker", "memory.write:acme")
	d.Grant("worker", "memory.read:acme")
	run := d.Open("worker")
	capture(t, run, "acme", "a marker", "", "")
	equal(t, "found", strings.Join(recalled(t, run, "marker"), ","), "a marker")
	d.Stop()
	sound(t, home)
}

// The memory through a new root key, new data keys, a panic, and locks while it is
// searched: nothing of it is lost, and while it is locked nothing of it is told.
func TestMemoryThroughKeysAndLocks(t *testing.T) {
	t.Parallel()
	d := daemontest.Start(t)
	addRecovery(t, d)
	run := librarian(t, d, "acme")
	for i := range 50 {
		capture(t, run, "acme", fmt.Sprint("a marker ", i), strings.Repeat("words of it ", 50), "")
	}
	before := exported(t, d, &operatorv1.ExportKnowledgeRequest{})
	same := func(after string) {
		t.Helper()
		awaitMemory(t, d)
		equal(t, "after "+after, exported(t, d, &operatorv1.ExportKnowledgeRequest{}), before)
	}
	_, err := d.Operator().Rekey(t.Context(), &operatorv1.RekeyRequest{})
	must(t, err)
	same("a new root key")
	_, err = d.Operator().RotateKey(t.Context(), &operatorv1.RotateKeyRequest{})
	must(t, err)
	same("new data keys")
	eventually(t, "every row has the new key", func() bool { return keysOf(t, d).GetRewrapTotal() == 0 })
	same("rewrapping")

	// Searches that a lock comes upon end with an answer that is whole, or with none.
	for round := range 3 {
		var asks sync.WaitGroup
		for range 4 {
			asks.Go(func() {
				for {
					got, err := run.SearchKnowledge(t.Context(), &brokerv1.SearchKnowledgeRequest{RunId: run.ID, Query: "marker", Limit: 50})
					switch reason := daemontest.Reason(err); {
					case err == nil && len(got.GetHits()) != 50:
						t.Errorf("%d hits", len(got.GetHits()))
					case err == nil:
						continue
					case reason != wire.VaultLocked && reason != wire.RunEnded && reason != wire.ResourceChanged:
						t.Errorf("a search ends with %v", err)
					}
					return
				}
			})
		}
		if round == 2 {
			_, err := d.Operator().Panic(t.Context(), &operatorv1.PanicRequest{})
			must(t, err)
		} else {
			d.Lock()
		}
		asks.Wait()
		d.Unlock()
		same("a lock")
		if round == 2 {
			_, err := d.Broker().OpenRun(t.Context(), daemontest.Claim("worker"))
			equal(t, "after a panic", daemontest.Reason(err), wire.AccessDenied)
			d.SetEnabled("worker", true)
		}
		run = d.Open("worker")
		equal(t, "found", len(recalled(t, run, "marker")), 10)
	}
	d.Restart()
	same("a restart")
}
