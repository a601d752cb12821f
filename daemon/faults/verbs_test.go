//go:build linux

package faults

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"subjectbroker/daemon/daemontest"
	"subjectbroker/proto/place"
	"subjectbroker/proto/recovery"
	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

// verb is one thing that changes what is on the disk. What can be seen before
// it and after it differ; anything else that is seen after a fault is a loss.
type verb struct {
	// rpc is the operator's call with more words where it stands twice, or a word
	// of its own in brackets.
	rpc string
	// arrange brings about the state before, whatever there was.
	arrange func(*world)
	// act makes the change. No error means that it was answered.
	act func(*world) error
	// look tells what a client sees.
	look          func(*world) string
	before, after string
	// between are further states that may be seen when it was not answered.
	between []string
}

// judge looks at what is left of a verb after a fault.
func (v verb) judge(w *world, answered bool) {
	w.t.Helper()
	switch saw := v.look(w); {
	case saw == v.after && answered:
		w.add(answers, 1)
	case answered:
		w.lost(w.t, "%s was answered, and is not there: %q instead of %q", v.rpc, saw, v.after)
	case saw != v.before && saw != v.after && !slices.Contains(v.between, saw):
		w.lost(w.t, "%s was not answered, and left %q, which is neither %q nor %q", v.rpc, saw, v.before, v.after)
	}
}

const (
	present = "present"
	absent  = "absent"
	hello   = "hello"
	denied  = "ACCESS_DENIED"
)

// verbs is the table. Each uses names of its own.
func verbs() []verb {
	content := func(name string) func(*world) string {
		return func(w *world) string { return w.Content(name) }
	}
	there := func(name string) func(*world) string {
		return func(w *world) string {
			if w.exists(name) {
				return present
			}
			return absent
		}
	}
	access := func(subject, name string) func(*world) string {
		return func(w *world) string { return w.access(subject, name) }
	}
	vault := func(w *world) string { return w.Status().GetVaultState() }
	// known makes sure that a subject is there, enabled, and has no grants.
	known := func(w *world, name string) {
		w.without(name)
		w.AddSubject(name)
	}
	codes := []recovery.Code{recovery.New(), recovery.New()}
	tenant := func(w *world) string {
		list, err := w.Operator().ListTenants(w.t.Context(), &operatorv1.ListTenantsRequest{})
		must(w.t, err)
		if slices.ContainsFunc(list.GetTenants(), func(one *operatorv1.Tenant) bool { return one.GetName() == "added" }) {
			return present
		}
		return absent
	}
	var keyID, memory, entry string
	var key []byte
	var version, term, segment uint32
	var backup string
	var launch *operatorv1.Launch
	return []verb{
		{
			rpc:     "PutSecret",
			arrange: func(w *world) { w.Put("put", "before") },
			act: func(w *world) error {
				return second(w.Operator().PutSecret(w.t.Context(), &operatorv1.PutSecretRequest{Name: "put", Kind: "text", Content: []byte("after")}))
			},
			look: content("put"), before: "before", after: "after",
		},
		{
			rpc: "RevertSecret",
			arrange: func(w *world) {
				version = w.Put("revert", "after").GetVersion()
				w.Put("revert", "before")
			},
			act: func(w *world) error {
				return second(w.Operator().RevertSecret(w.t.Context(), &operatorv1.RevertSecretRequest{Name: "revert", To: version}))
			},
			look: content("revert"), before: "before", after: "after",
		},
		{
			rpc: "AddFile",
			arrange: func(w *world) {
				write(w.t, filepath.Join(w.work, "add"), hello)
				if w.exists("add") {
					w.Remove("add")
				}
			},
			act: func(w *world) error {
				return second(w.Operator().AddFile(w.t.Context(), &operatorv1.AddFileRequest{Name: "add", Path: filepath.Join(w.work, "add")}))
			},
			look: there("add"), before: absent, after: present,
		},
		{
			rpc: "RepinFile",
			arrange: func(w *world) {
				file := filepath.Join(w.work, "repin")
				write(w.t, file, "before")
				if w.exists("repin") {
					w.Remove("repin")
				}
				w.AddFile("repin", file, "content")
				known(w, "repinner")
				w.Grant("repinner", "read:repin")
				write(w.t, file, "after")
			},
			act: func(w *world) error {
				return second(w.Operator().RepinFile(w.t.Context(), &operatorv1.RepinFileRequest{Name: "repin"}))
			},
			look: access("repinner", "repin"), before: "RESOURCE_CHANGED", after: "after",
		},
		{
			rpc:     "RemoveResource",
			arrange: func(w *world) { w.Put("remove", hello) },
			act: func(w *world) error {
				return second(w.Operator().RemoveResource(w.t.Context(), &operatorv1.RemoveResourceRequest{Name: "remove"}))
			},
			look: there("remove"), before: present, after: absent,
		},
		{
			rpc: "AddSubject",
			arrange: func(w *world) {
				w.Put("open", hello)
				w.without("added")
			},
			act: func(w *world) error {
				return second(w.Operator().AddSubject(w.t.Context(), &operatorv1.AddSubjectRequest{Name: "added"}))
			},
			look: func(w *world) string { return w.subject("added") }, before: absent, after: present,
		},
		{
			rpc: "SetSubject",
			arrange: func(w *world) {
				w.Put("open", hello)
				known(w, "disabled")
				w.Grant("disabled", "read:open")
			},
			act: func(w *world) error {
				enabled := false
				return second(w.Operator().SetSubject(w.t.Context(), &operatorv1.SetSubjectRequest{Name: "disabled", Enabled: &enabled}))
			},
			look: access("disabled", "open"), before: hello, after: denied,
		},
		{
			rpc: "AddTenant",
			arrange: func(w *world) {
				if tenant(w) != absent {
					must(w.t, second(w.Operator().RemoveTenant(w.t.Context(), &operatorv1.RemoveTenantRequest{Name: "added"})))
				}
			},
			act: func(w *world) error {
				return second(w.Operator().AddTenant(w.t.Context(), &operatorv1.AddTenantRequest{Name: "added"}))
			},
			look: tenant, before: absent, after: present,
		},
		{
			rpc: "RemoveTenant",
			arrange: func(w *world) {
				if tenant(w) == absent {
					must(w.t, second(w.Operator().AddTenant(w.t.Context(), &operatorv1.AddTenantRequest{Name: "added"})))
				}
				known(w, "member")
				w.Grant("member", "memory.read:added")
				minted, err := w.Operator().MintAgentKey(w.t.Context(), &operatorv1.MintAgentKeyRequest{Subject: "member", Tenants: []string{"added"}})
				must(w.t, err)
				keyID, key = minted.GetKey().GetKeyId(), minted.GetToken()
			},
			act: func(w *world) error {
				return second(w.Operator().RemoveTenant(w.t.Context(), &operatorv1.RemoveTenantRequest{Name: "added"}))
			},
			look: func(w *world) string {
				list, err := w.Operator().ListAgentKeys(w.t.Context(), &operatorv1.ListAgentKeysRequest{Key: keyID})
				must(w.t, err)
				return fmt.Sprint(tenant(w), list.GetKeys()[0].GetTenants(), len(w.active("member")))
			},
			before: present + "[added] 1", after: absent + "[] 0",
		},
		{
			rpc:     "(capture)",
			arrange: func(w *world) { memory = w.remember("captured") },
			act: func(w *world) error {
				broker, run, done, err := w.asHistorian()
				if err == nil {
					defer done()
					_, err = broker.CaptureKnowledge(w.t.Context(), &brokerv1.CaptureKnowledgeRequest{RunId: run, Tenant: memory, Kind: "note", Title: "a marker"})
				}
				return err
			},
			look: func(w *world) string { return w.recall(memory) }, before: "0 0", after: "1 0",
		},
		{
			rpc:     "ImportKnowledge",
			arrange: func(w *world) { memory = w.remember("imported") },
			act: func(w *world) error {
				return w.learn(memory, `{"kind":"note","title":"one marker"}`, `{"kind":"note","title":"another marker"}`)
			},
			look: func(w *world) string { return w.recall(memory) }, before: "0 0", after: "2 0",
		},
		{
			rpc: "ForgetKnowledge",
			arrange: func(w *world) {
				memory = w.remember("forgotten")
				must(w.t, w.learn(memory, `{"kind":"note","title":"a marker"}`))
				entry = w.entryOf(memory)
			},
			act: func(w *world) error {
				return second(w.Operator().ForgetKnowledge(w.t.Context(), &operatorv1.ForgetKnowledgeRequest{EntryIds: []string{entry}}))
			},
			look: func(w *world) string { return w.recall(memory) }, before: "1 0", after: "0 1",
		},
		{
			rpc:     "MintAgentKey",
			arrange: func(w *world) { known(w, "keyed") },
			act: func(w *world) error {
				return second(w.Operator().MintAgentKey(w.t.Context(), &operatorv1.MintAgentKeyRequest{Subject: "keyed"}))
			},
			look: func(w *world) string {
				list, err := w.Operator().ListAgentKeys(w.t.Context(), &operatorv1.ListAgentKeysRequest{Subject: "keyed"})
				must(w.t, err)
				return fmt.Sprint(len(list.GetKeys()))
			},
			before: "0", after: "1",
		},
		{
			rpc:     "RotateAgentKey",
			arrange: func(w *world) { known(w, "keyed"); keyID, key = w.mint("keyed") },
			act: func(w *world) error {
				return second(w.Operator().RotateAgentKey(w.t.Context(), &operatorv1.RotateAgentKeyRequest{Key: keyID}))
			},
			look: func(w *world) string { return w.presented(key) }, before: "good", after: "expired_key",
		},
		{
			rpc:     "RevokeAgentKey",
			arrange: func(w *world) { known(w, "keyed"); keyID, key = w.mint("keyed") },
			act: func(w *world) error {
				return second(w.Operator().RevokeAgentKey(w.t.Context(), &operatorv1.RevokeAgentKeyRequest{Key: keyID}))
			},
			look: func(w *world) string { return w.presented(key) }, before: "good", after: "revoked_key",
		},
		{
			rpc:     "RemoveSubject",
			arrange: func(w *world) { known(w, "removed") },
			act: func(w *world) error {
				return second(w.Operator().RemoveSubject(w.t.Context(), &operatorv1.RemoveSubjectRequest{Name: "removed"}))
			},
			look: func(w *world) string { return w.subject("removed") }, before: present, after: absent,
		},
		{
			rpc: "CreateGrants",
			arrange: func(w *world) {
				w.Put("open", hello)
				known(w, "granted")
			},
			act: func(w *world) error {
				return second(w.Operator().CreateGrants(w.t.Context(), &operatorv1.CreateGrantsRequest{Subject: "granted", Capabilities: []string{"read:open"}}))
			},
			look: access("granted", "open"), before: denied, after: hello,
		},
		{
			rpc: "RevokeGrants",
			arrange: func(w *world) {
				w.Put("open", hello)
				known(w, "revoked")
				w.Grant("revoked", "read:open")
			},
			act: func(w *world) error {
				return second(w.Operator().RevokeGrants(w.t.Context(), &operatorv1.RevokeGrantsRequest{Subject: "revoked", All: true}))
			},
			look: access("revoked", "open"), before: hello, after: denied,
		},
		{
			rpc: "Apply",
			arrange: func(w *world) {
				w.Put("open", hello)
				w.without("applied", "applied2")
			},
			act: func(w *world) error {
				return second(w.Operator().Apply(w.t.Context(), &operatorv1.ApplyRequest{Document: []byte(
					"version: 1\nsubjects: {applied: {}, applied2: {}}\nresources: {open: {kind: text}}\n" +
						"grants: [{subject: applied, capability: 'read:open'}, {subject: applied2, capability: 'read:open', effect: deny}]\n")}))
			},
			look: func(w *world) string {
				return fmt.Sprint(w.subject("applied"), w.subject("applied2"), w.access("applied", "open"))
			},
			before: fmt.Sprint(absent, absent, denied), after: fmt.Sprint(present, present, hello),
		},
		{
			rpc: "Apply of a profile",
			arrange: func(w *world) {
				w.without("profiled")
				w.AddSubject("profiled")
			},
			act:  func(w *world) error { return w.profile(true) },
			look: profiled, before: absent, after: present,
		},
		{
			rpc: "Apply without a profile",
			arrange: func(w *world) {
				w.without("profiled")
				w.AddSubject("profiled")
				must(w.t, w.profile(true))
			},
			act:  func(w *world) error { return w.profile(false) },
			look: profiled, before: present, after: absent,
		},
		{
			rpc:     "OpenLaunch",
			arrange: func(w *world) { w.newTree() },
			act:     func(w *world) error { return second(w.openLaunch()) },
			look: func(w *world) string {
				if w.launchOf(w.tree.PID()) == nil {
					return absent
				}
				return present
			},
			before: absent, after: present,
		},
		{
			rpc: "EndRun of a launch",
			arrange: func(w *world) {
				w.newTree()
				opened, err := w.openLaunch()
				must(w.t, err)
				launch = opened.GetLaunch()
			},
			act: func(w *world) error {
				return second(w.Operator().EndRun(w.t.Context(), &operatorv1.EndRunRequest{RunId: launch.GetLaunchId()}))
			},
			// Its processes end before anything is written; the rest is made up for.
			look:   func(w *world) string { return w.endOf(launch.GetLaunchId()) },
			before: "ended once", after: "ended once",
		},
		{
			rpc:     "SetOperatorPassphrase",
			arrange: func(w *world) { w.withoutPassphrase() },
			act:     func(w *world) error { return w.setPassphrase() },
			look:    func(w *world) string { return fmt.Sprint(w.passphrase()) }, before: "false", after: "true",
		},
		{
			rpc: "OpenSession",
			arrange: func(w *world) {
				if !w.passphrase() {
					must(w.t, w.setPassphrase())
				}
			},
			act: func(w *world) error {
				return second(w.Operator().OpenSession(w.t.Context(), &operatorv1.OpenSessionRequest{Passphrase: []byte(phrase)}))
			},
			look: func(w *world) string { return fmt.Sprint(w.passphrase()) }, before: "true", after: "true",
		},
		{
			rpc:     "ConfirmClock",
			arrange: func(*world) {},
			act: func(w *world) error {
				return second(w.Operator().ConfirmClock(w.t.Context(), &operatorv1.ConfirmClockRequest{}))
			},
			look: func(*world) string { return "" },
		},
		{
			rpc:     "(rotation)",
			arrange: func(*world) {},
			act:     func(w *world) error { return w.rotate() },
			look:    func(*world) string { return "" },
		},
		{
			rpc: "RemoveResource purge",
			arrange: func(w *world) {
				w.Put("kept", hello)
				w.Put("purge", hello)
			},
			act: func(w *world) error {
				return second(w.Operator().RemoveResource(w.t.Context(), &operatorv1.RemoveResourceRequest{Name: "purge", Purge: true}))
			},
			look: func(w *world) string { return there("purge")(w) + " " + w.Content("kept") }, before: present + " " + hello, after: absent + " " + hello,
		},
		{
			rpc: "RotateKey",
			arrange: func(w *world) {
				w.Put("sealed", hello)
				term = w.term()
			},
			act: func(w *world) error {
				if err := second(w.Operator().RotateKey(w.t.Context(), &operatorv1.RotateKeyRequest{})); err != nil {
					return err
				}
				for { // until the last old row is rewrapped
					keys, err := w.Operator().ShowKeys(w.t.Context(), &operatorv1.ShowKeysRequest{})
					if err != nil || len(keys.GetOldTerms()) == 0 {
						return nil // the rotation itself was answered
					}
					time.Sleep(5 * time.Millisecond)
				}
			},
			look: func(w *world) string { return fmt.Sprintf("%d %s", w.term()-term, w.Content("sealed")) }, before: "0 " + hello, after: "1 " + hello,
		},
		{
			rpc:     "Rekey",
			arrange: func(w *world) { w.Put("sealed", hello) },
			act:     func(w *world) error { return second(w.Operator().Rekey(w.t.Context(), &operatorv1.RekeyRequest{})) },
			look:    content("sealed"), before: hello, after: hello,
		},
		{
			rpc: "AddSlot",
			arrange: func(w *world) {
				if w.opened(codes) != absent {
					w.removeSlot()
				}
			},
			act:  func(w *world) error { return w.addSlot(codes[0]) },
			look: func(w *world) string { return w.opened(codes) }, before: absent, after: "by code 1",
		},
		{
			rpc: "AddSlot in its place",
			arrange: func(w *world) {
				if w.opened(codes) != "by code 1" {
					must(w.t, w.addSlot(codes[0]))
				}
			},
			act:  func(w *world) error { return w.addSlot(codes[1]) },
			look: func(w *world) string { return w.opened(codes) }, before: "by code 1", after: "by code 2",
		},
		{
			rpc: "RemoveSlot",
			arrange: func(w *world) {
				if w.opened(codes) == absent {
					must(w.t, w.addSlot(codes[1]))
				}
			},
			act: func(w *world) error {
				return second(w.Operator().RemoveSlot(w.t.Context(), &operatorv1.RemoveSlotRequest{Kind: "recovery"}))
			},
			look: func(w *world) string { return w.opened(codes) }, before: "by code 2", after: absent,
		},
		{
			rpc: "Backup",
			arrange: func(w *world) {
				if w.opened(codes) == absent {
					must(w.t, w.addSlot(codes[1]))
				}
				w.Put("saved", hello)
				backup = fmt.Sprintf("backup %d", w.Seq())
			},
			act: func(w *world) error {
				stream, err := w.Operator().Backup(w.t.Context(), &operatorv1.BackupRequest{Name: backup})
				for err == nil {
					_, err = stream.Recv()
				}
				if errors.Is(err, io.EOF) {
					return nil
				}
				return err
			},
			look: func(w *world) string {
				list, err := w.Operator().ListBackups(w.t.Context(), &operatorv1.ListBackupsRequest{})
				must(w.t, err)
				known := slices.ContainsFunc(list.GetBackups(), func(b *operatorv1.BackupInfo) bool { return b.GetName() == backup })
				return fmt.Sprintf("%v %s", known, w.Content("saved"))
			},
			before: "false " + hello, after: "true " + hello,
		},
		{
			rpc:     "PruneAudit",
			arrange: func(w *world) { segment = w.closedSegment() },
			act: func(w *world) error {
				raw, err := os.ReadFile(w.segmentFile(segment))
				must(w.t, err)
				sum := sha256.Sum256(raw)
				return second(w.Operator().PruneAudit(w.t.Context(), &operatorv1.PruneAuditRequest{
					Copies: []*operatorv1.SegmentCopy{{Segment: segment, Sha256: hex.EncodeToString(sum[:])}},
				}))
			},
			look: func(w *world) string {
				if _, err := os.Stat(w.segmentFile(segment)); err == nil {
					return present
				}
				return absent
			},
			before: present, after: absent,
		},
		{
			rpc:     "Lock",
			arrange: func(w *world) { w.unlocked() },
			act:     func(w *world) error { return second(w.Operator().Lock(w.t.Context(), &operatorv1.LockRequest{})) },
			look:    vault, before: "unlocked", after: "locked",
		},
		{
			rpc: "Unlock",
			arrange: func(w *world) {
				if vault(w) != "locked" {
					w.Lock()
				}
			},
			act:  func(w *world) error { return second(w.Operator().Unlock(w.t.Context(), &operatorv1.UnlockRequest{})) },
			look: vault, before: "locked", after: "unlocked",
		},
		{
			rpc: "Panic",
			arrange: func(w *world) {
				w.unlocked()
				w.Put("open", hello)
				known(w, "stopped")
				w.Grant("stopped", "read:open")
			},
			act: func(w *world) error { return second(w.Operator().Panic(w.t.Context(), &operatorv1.PanicRequest{})) },
			look: func(w *world) string {
				state := vault(w)
				w.unlocked()
				return state + " " + w.access("stopped", "open")
			},
			before: "unlocked " + hello, after: "locked " + denied, between: []string{"unlocked " + denied, "locked " + hello},
		},
	}
}

// phrase is the operator's.
const phrase = "long enough a phrase"

// passphrase tells whether the operator has one.
func (w *world) passphrase() bool {
	w.t.Helper()
	got, err := w.Operator().GetOperator(w.t.Context(), &operatorv1.GetOperatorRequest{})
	must(w.t, err)
	return got.GetPassphrase()
}

func (w *world) setPassphrase() error {
	return second(w.Operator().SetOperatorPassphrase(w.t.Context(), &operatorv1.SetOperatorPassphraseRequest{Passphrase: []byte(phrase)}))
}

func (w *world) withoutPassphrase() {
	w.t.Helper()
	if w.passphrase() {
		must(w.t, second(w.Operator().SetOperatorPassphrase(w.t.Context(), &operatorv1.SetOperatorPassphraseRequest{Present: []byte(phrase)})))
	}
}

// newTree starts a tree that waits, in place of the one before, and makes what its
// launch needs.
func (w *world) newTree() {
	w.t.Helper()
	w.Put("open", hello)
	if w.subject("launched") == absent {
		w.AddSubject("launched")
	}
	if w.tree != nil {
		w.tree.Kill()
	}
	w.tree = daemontest.NewTree(w.t, daemontest.TreeOptions{Places: w.Places})
}

// openLaunch makes it a launch that is handed content.
func (w *world) openLaunch() (*operatorv1.OpenLaunchResponse, error) {
	request := w.tree.Request("launched", daemontest.TreeOptions{})
	request.Disclose = []string{"open"}
	return w.Operator().OpenLaunch(w.t.Context(), request)
}

// launchOf is the newest launch of a process, whatever has become of it.
func (w *world) launchOf(pid int32) *operatorv1.Launch {
	w.t.Helper()
	list, err := w.Operator().ListRuns(w.t.Context(), &operatorv1.ListRunsRequest{Ended: true})
	must(w.t, err)
	for _, l := range slices.Backward(list.GetLaunches()) {
		if l.GetPid() == pid && l.GetSubject() == "launched" {
			return l
		}
	}
	return nil
}

// endOf tells how often a launch has ended, once it has.
func (w *world) endOf(id string) string {
	w.t.Helper()
	for until := time.Now().Add(daemontest.Patience); time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
		ends := 0
		for _, e := range w.Entries("launch.end") {
			if e.LaunchID == id {
				ends++
			}
		}
		switch {
		case ends == 1:
			return "ended once"
		case ends > 1:
			return fmt.Sprintf("ended %d times", ends)
		}
	}
	return "open"
}

// unlocked unlocks the vault unless it is.
func (w *world) unlocked() {
	w.t.Helper()
	if w.Status().GetVaultState() != "unlocked" {
		w.Unlock()
	}
}

// subject tells whether there is a subject.
func (w *world) subject(name string) string {
	w.t.Helper()
	list, err := w.Operator().ListSubjects(w.t.Context(), &operatorv1.ListSubjectsRequest{})
	must(w.t, err)
	if slices.ContainsFunc(list.GetSubjects(), func(s *operatorv1.Subject) bool { return s.GetName() == name }) {
		return present
	}
	return absent
}

// without makes sure that subjects are not there.
func (w *world) without(names ...string) {
	w.t.Helper()
	for _, name := range names {
		if w.subject(name) == present {
			w.RemoveSubject(name)
		}
	}
}

// term is the number of the key that seals rows.
func (w *world) term() uint32 {
	w.t.Helper()
	keys, err := w.Operator().ShowKeys(w.t.Context(), &operatorv1.ShowKeysRequest{})
	must(w.t, err)
	return keys.GetTerm()
}

// addSlot adds the recovery slot of a code, or puts it in place of another's.
func (w *world) addSlot(code recovery.Code) error {
	return second(w.Operator().AddSlot(w.t.Context(), &operatorv1.AddSlotRequest{Kind: "recovery", Secret: code.PublicKey()}))
}

func (w *world) removeSlot() {
	w.t.Helper()
	must(w.t, second(w.Operator().RemoveSlot(w.t.Context(), &operatorv1.RemoveSlotRequest{Kind: "recovery"})))
}

// opened tells which of the codes opens the vault.
func (w *world) opened(codes []recovery.Code) string {
	w.t.Helper()
	found := absent
	for i, code := range codes {
		_, err := w.Operator().TestSlot(w.t.Context(), &operatorv1.TestSlotRequest{Kind: "recovery", Secret: code.Seed()})
		if err == nil {
			if found != absent {
				return "by both"
			}
			found = fmt.Sprintf("by code %d", i+1)
		}
	}
	if found == absent && slices.ContainsFunc(w.Status().GetSlots(), func(s *operatorv1.KeySlot) bool { return s.GetKind() == "recovery" }) {
		return "by neither"
	}
	return found
}

func (w *world) segmentFile(n uint32) string {
	return filepath.Join(place.AuditDir(w.Home), fmt.Sprintf("%08d.jsonl", n))
}

// closedSegment is the oldest segment that is not pruned. There is a newer one.
func (w *world) closedSegment() uint32 {
	w.t.Helper()
	for {
		whole, err := filepath.Glob(filepath.Join(place.AuditDir(w.Home), "*.jsonl"))
		must(w.t, err)
		if len(whole) > 1 {
			slices.Sort(whole)
			var n uint32
			_, err := fmt.Sscanf(filepath.Base(whole[0]), "%08d.jsonl", &n)
			must(w.t, err)
			return n
		}
		must(w.t, w.rotate())
	}
}

// rotate begins a new segment.
func (w *world) rotate() error {
	head, err := w.Operator().AuditHead(w.t.Context(), &operatorv1.AuditHeadRequest{})
	if err != nil {
		return err
	}
	before := head.GetSegment()
	w.Signal(syscall.SIGHUP)
	for head.GetSegment() == before && err == nil {
		head, err = w.Operator().AuditHead(w.t.Context(), &operatorv1.AuditHeadRequest{})
	}
	return err
}

// second is the error of a call.
func second[T any](_ T, err error) error { return err }

// lasting are the calls of the operator's service that leave nothing behind but
// their entry, if any.
var lasting = []string{
	"Status", "GetSecret", "CheckFiles", "ListResources", "GetResource", "ListSubjects", "ListGrants", "Explain", "ListRuns",
	"WatchEvents", "Export", "AuditHead", "ReadAudit", "ListDenials", "ShowKeys", "TestSlot", "VerifyBackup", "ListBackups",
	"ListServers", "GetServer", "ReadServerLogs", "ListPolicies", "CallStats", "Metrics", "ListApprovals", "WatchApprovals", "ListAgentKeys", "ListTenants", "ExportKnowledge",
	"ListKnowledge", "GetKnowledge", "SearchKnowledge",
	"GetOperator", "CloseSession", // a session ends with its daemon in any case
}

// Every RPC of the operator's service has a row in the table, or changes nothing.
func TestVerbsAreAll(t *testing.T) {
	known := map[string]bool{}
	for _, v := range append(verbs(), (&toolWorld{}).verbs()...) {
		rpc, _, _ := strings.Cut(v.rpc, " ")
		known[rpc] = true
	}
	for _, rpc := range lasting {
		known[rpc] = true
	}
	methods := operatorv1.File_subjectbroker_operator_v1_operator_proto.Services().Get(0).Methods()
	for i := range methods.Len() {
		name := string(methods.Get(i).Name())
		if !known[name] {
			t.Errorf("%s is not in the table of verbs, nor said to change nothing", name)
		}
		delete(known, name)
	}
	for rpc := range maps.Keys(known) {
		if rpc[0] != '(' {
			t.Errorf("%s is no call of the operator's service", rpc)
		}
	}
}

// profile applies a document that has a profile and a tool, or had them.
func (w *world) profile(has bool) error {
	document := "version: 1\nowner: profiles\n"
	if has {
		document += "tools: {github/create_issue: {requires: ['use:token']}}\nprofiles: {crashed: {subject: profiled, tools: [github/create_issue]}}\n"
	}
	return second(w.Operator().Apply(w.t.Context(), &operatorv1.ApplyRequest{Document: []byte(document), Prune: true}))
}

// profiled says whether there is what profile made: all of it or nothing.
func profiled(w *world) string {
	exported, err := w.Operator().Export(w.t.Context(), &operatorv1.ExportRequest{})
	must(w.t, err)
	profile, tool := bytes.Contains(exported.GetDocument(), []byte("crashed:")), bytes.Contains(exported.GetDocument(), []byte("create_issue: {"))
	switch {
	case profile && tool:
		return present
	case !profile && !tool:
		return absent
	}
	return string(exported.GetDocument())
}
