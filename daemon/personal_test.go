package daemon_test

import (
	"strings"
	"testing"

	"subjectbroker/daemon/daemontest"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// Putting the same content again stores nothing where that was asked for: an
// import that is repeated makes no versions.
func TestPutIfChanged(t *testing.T) {
	d := daemontest.Start(t)
	put := func(content string, ifChanged bool) *operatorv1.PutSecretResponse {
		t.Helper()
		done, err := d.Operator().PutSecret(t.Context(), &operatorv1.PutSecretRequest{
			Name: "token", Kind: "secret", Content: []byte(content), IfChanged: ifChanged, Note: "note",
		})
		must(t, err)
		return done
	}
	for _, tc := range []struct {
		content   string
		ifChanged bool
		version   uint32
		unchanged bool
	}{
		{"one", true, 1, false},
		{"one", true, 1, true},
		{"one", false, 2, false},
		{"two", true, 3, false},
		{"two", true, 3, true},
		{"one", true, 4, false}, // only the newest version counts
		{"", true, 5, false},
		{"", true, 5, true},
	} {
		seq := d.Seq()
		done := put(tc.content, tc.ifChanged)
		equal(t, tc.content+": version", done.GetResource().GetVersion(), tc.version)
		equal(t, tc.content+": unchanged", done.GetUnchanged(), tc.unchanged)
		equal(t, tc.content+": intents", len(d.Since(seq, "op.intent")) == 0, tc.unchanged)
		equal(t, tc.content+": entries", len(d.Since(seq, "resource.put")), 1)
	}
	equal(t, "the newest", d.Content("token"), "")
	_, err := d.Operator().PutSecret(t.Context(), &operatorv1.PutSecretRequest{Name: "token", Kind: "text", IfChanged: true})
	equal(t, "another kind", daemontest.Reason(err), wire.InvalidArgument)
	apply(t, d, "version: 1\nresources: {declared: {kind: text}}\n")
	done, err := d.Operator().PutSecret(t.Context(), &operatorv1.PutSecretRequest{Name: "declared", Kind: "text", IfChanged: true})
	must(t, err)
	equal(t, "empty content where there was none", done.GetUnchanged(), false)
}

// A resource keeps the domain that it was made with, whichever verb asks.
func TestDomains(t *testing.T) {
	d := daemontest.Start(t)
	ctx := t.Context()
	put := func(name, domain string) error {
		_, err := d.Operator().PutSecret(ctx, &operatorv1.PutSecretRequest{Name: name, Kind: "text", Content: []byte("content"), Domain: domain})
		return err
	}
	document := func(text string) error {
		_, err := d.Operator().Apply(ctx, &operatorv1.ApplyRequest{Document: []byte("version: 1\nresources: " + text + "\n")})
		return err
	}
	must(t, put("diary", "personal"))
	must(t, put("shared", ""))
	must(t, document("{declared: {kind: text, domain: personal}, open: {kind: text}}"))
	must(t, put("declared", ""))
	must(t, put("diary", ""))
	must(t, put("diary", "personal"))
	_, err := d.Operator().RevertSecret(ctx, &operatorv1.RevertSecretRequest{Name: "diary", To: 1})
	must(t, err)
	must(t, document("{diary: {kind: text}, declared: {kind: text, note: mine}}"))
	for what, err := range map[string]error{
		"put":                        put("shared", "personal"),
		"apply":                      document("{shared: {kind: text, domain: personal}}"),
		"apply of a declared one":    document("{open: {kind: text, domain: personal}}"),
		"put of a declared one":      put("open", "personal"),
		"put of another domain":      put("new", "work"),
		"put of a name of another":   put("diary", "work"),
		"document of another domain": document("{new: {kind: text, domain: work}}"),
	} {
		equal(t, what, daemontest.Reason(err), wire.InvalidArgument)
	}
	_, err = d.Operator().AddFile(ctx, &operatorv1.AddFileRequest{Name: "file", Path: "/etc/hostname", Domain: "work"})
	equal(t, "a file of another domain", daemontest.Reason(err), wire.InvalidArgument)
	d.Restart()
	list, err := d.Operator().ListResources(ctx, &operatorv1.ListResourcesRequest{})
	must(t, err)
	var domains []string
	for _, r := range list.GetResources() {
		domains = append(domains, r.GetName()+"="+r.GetDomain())
	}
	equal(t, "domains", strings.Join(domains, " "), "declared=personal diary=personal open= shared=")

	// Its owner's grants match, patterns too, and an export of the owner's says so.
	d.AddSubject("worker")
	d.Grant("worker", "read:*")
	equal(t, "by a pattern of its owner's", d.Open("worker").Refused("diary"), wire.Allowed)
	if text := export(t, d, &operatorv1.ExportRequest{}); strings.Count(text, "domain: personal") != 2 {
		t.Errorf("exported:\n%s", text)
	}
}

// What asks a person cannot be had while nobody can be asked, be it a grant, a
// tool or a profile that wants it. It is a denial, and explained as pending.
func TestGatedByAProfile(t *testing.T) {
	clock := newClock()
	d := daemontest.StartWith(t, daemontest.Options{Now: clock.Now})
	apply(t, d, `version: 1
resources: {readme: {kind: text}}
subjects: {worker: {}}
tools:
  host/ask: {requires: ["reach:ask.example.com"], approval: always}
  host/gate: {requires: ["reach:gate.example.com"], gate: always}
  host/free: {requires: ["reach:free.example.com"]}
profiles:
  auto: {subject: worker, tools: [read_resource, host/ask, host/gate, host/free]}
  always: {subject: worker, tools: [read_resource, host/free], approval: always}
  never: {subject: worker, tools: [read_resource, host/ask, host/gate], approval: never}
grants: [{subject: worker, capability: "read:readme"}, {subject: worker, capability: "reach:*"}]
`)
	d.Put("readme", "hello")
	const yes, ask = "allow ALLOWED", "pending APPROVAL_PENDING"
	for _, tc := range []struct{ profile, capability, want string }{
		{"auto", "reach:free.example.com", yes},
		{"auto", "reach:ask.example.com", ask},
		{"auto", "reach:gate.example.com", ask},
		{"auto", "read:readme", yes},
		{"always", "reach:free.example.com", ask},
		{"always", "read:readme", ask},
		{"never", "reach:ask.example.com", yes},
		{"never", "reach:gate.example.com", ask},
		{"never", "read:readme", yes},
	} {
		clock.step(1e9)
		equal(t, tc.profile+" "+tc.capability, can(t, openUnder(t, d, "worker", tc.profile), tc.capability), tc.want)
	}
	equal(t, "a gated read", openUnder(t, d, "worker", "always").Refused("readme"), wire.ApprovalDenied)
	equal(t, "the control", openUnder(t, d, "worker", "auto").Refused("readme"), wire.Allowed)
}
