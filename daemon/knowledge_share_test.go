package daemon_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"subjectbroker/daemon/daemontest"
	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// A subject captures no more than its share, of entries and of bytes, whatever it
// supersedes and also after a restart; what is forgotten, removed or imported is not in
// it, and the shares of others are their own.
func TestShareOfTheMemory(t *testing.T) {
	for name, tc := range map[string]struct {
		config string
		text   string
		full   int // captures that fit
	}{
		"entries": {"memory: {subjectEntries: 4}\n", "", 4},
		"bytes":   {"memory: {subjectBytes: 100000}\n", strings.Repeat("text ", 6000), 3},
	} {
		t.Run(name, func(t *testing.T) {
			d := daemontest.Start(t)
			must(t, os.WriteFile(filepath.Join(d.Home, "config.yaml"), []byte(tc.config+"operatorGuard: false\n"), 0o600))
			d.Restart()
			d.AddSubject("worker")
			d.AddSubject("other")
			remembering(t, d, "acme", "beta")
			d.Grant("worker", "memory.write:*")
			d.Grant("other", "memory.write:*")
			imported(t, d, strings.Repeat(`{"kind":"note","title":"from elsewhere","tenant":"acme","subject":"worker"}`+"\n", 1), "")
			run := d.Open("worker")
			try := func(title, supersedes string) (string, error) {
				got, err := run.CaptureKnowledge(t.Context(), &brokerv1.CaptureKnowledgeRequest{
					RunId: run.ID, Tenant: "acme", Kind: "note", Title: title, Text: tc.text, Supersedes: supersedes,
				})
				return got.GetEntry().GetEntryId(), err
			}
			full := func(title string) {
				t.Helper()
				if _, err := try(title, ""); wire.FromError(err).Reason != wire.PolicyBlocked {
					t.Errorf("%s: %v", title, err)
				}
			}
			var ids []string
			for i := range tc.full {
				before := ""
				if i == 1 {
					before = ids[0]
				}
				id, err := try(fmt.Sprintf("title %d", i), before)
				must(t, err)
				ids = append(ids, id)
			}
			full("one more")
			if _, err := try("title 2", ""); err != nil { // it is there already: nothing is added
				t.Errorf("what existed: %v", err)
			}
			there := d.Open("other")
			capture(t, there, "acme", "by another", tc.text, "")
			status, err := d.Operator().Status(t.Context(), &operatorv1.StatusRequest{})
			must(t, err)
			if probes := fmt.Sprint(status.GetProbes()); !strings.Contains(probes, "memory share") || !strings.Contains(probes, "worker has captured") || strings.Contains(probes, "other has captured") {
				t.Errorf("the status: %s", probes)
			}
			denials := fmt.Sprint(d.Entries())
			if n := strings.Count(denials, "SHARE_FULL"); n != 1 {
				t.Errorf("the log has it %d times", n)
			}

			d.Restart()
			awaitMemory(t, d)
			run = d.Open("worker")
			full("one more")
			_, err = d.Operator().ForgetKnowledge(t.Context(), &operatorv1.ForgetKnowledgeRequest{EntryIds: ids[2:3]})
			must(t, err)
			if _, err := try("in its place", ""); err != nil {
				t.Errorf("what was forgotten still counts: %v", err)
			}
			full("another one")
			_, err = d.Operator().RemoveTenant(t.Context(), &operatorv1.RemoveTenantRequest{Name: "acme"})
			must(t, err)
			got, err := run.CaptureKnowledge(t.Context(), &brokerv1.CaptureKnowledgeRequest{RunId: run.ID, Tenant: "beta", Kind: "note", Title: "elsewhere", Text: tc.text})
			if err != nil || got.GetExisted() {
				t.Errorf("what was removed still counts: %v", err)
			}
		})
	}
}

// A subject captures only so often in a minute; another one's captures are its own.
func TestRateOfCaptures(t *testing.T) {
	d := daemontest.Start(t)
	must(t, os.WriteFile(filepath.Join(d.Home, "config.yaml"), []byte("memory: {capturesPerMinute: 3}\noperatorGuard: false\n"), 0o600))
	d.Restart()
	d.AddSubject("worker")
	d.AddSubject("other")
	remembering(t, d, "acme")
	d.Grant("worker", "memory.write:acme")
	d.Grant("other", "memory.write:acme")
	run := d.Open("worker")
	added, refused := 0, 0
	for i := range 12 { // within four minutes of any machine there are some too many
		_, err := run.CaptureKnowledge(t.Context(), &brokerv1.CaptureKnowledgeRequest{RunId: run.ID, Tenant: "acme", Kind: "note", Title: fmt.Sprint(i)})
		switch {
		case err == nil:
			added++
		case wire.FromError(err).Reason == wire.RateLimited:
			refused++
		default:
			t.Fatal(err)
		}
	}
	if added < 3 || refused == 0 {
		t.Errorf("%d added, %d refused", added, refused)
	}
	if !strings.Contains(fmt.Sprint(d.Entries()), "CAPTURES_RATE") {
		t.Error("the log does not say why")
	}
	capture(t, d.Open("other"), "acme", "by another", "", "")
}
