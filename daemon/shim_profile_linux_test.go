package daemon_test

import (
	"os/exec"
	"strings"
	"testing"

	"subjectbroker/daemon/daemontest"
	"subjectbroker/proto/wire"
)

// What the real shim says under a profile: a tool that the profile does not list
// and a resource outside of the ceiling are denied in the result of the call,
// like anything that was not granted, and the host is told by an exit code.
func TestShimUnderAProfile(t *testing.T) {
	d := withCoders(t)
	program := buildShim(t)
	shimUnder := func(profile string) *shim {
		cmd := exec.Command(program, "--subject", "worker", "--profile", profile, "--home", d.Home)
		cmd.Env = []string{"HOME=" + t.TempDir()}
		s := startShim(t, cmd)
		s.ask(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"0"}}}`)
		return s
	}
	call := func(s *shim, tool, name string) string {
		return s.ask(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"` + tool + `","arguments":{"resourceId":"` + name + `"}}}`)
	}
	const denied = `"isError":true`
	reader, lister, blind := shimUnder("reader"), shimUnder("lister"), shimUnder("blind")
	for _, tc := range []struct {
		s          *shim
		tool, name string
		want       []string
	}{
		{reader, "list_resources", "", []string{`"structuredContent":{"resources":["docs.plan"],"reasonCode":"ALLOWED"}`}},
		{reader, "read_resource", "docs.plan", []string{`"content":"the plan"`}},
		{reader, "read_resource", "notes", []string{`"structuredContent":{"decision":"deny","reasonCode":"ACCESS_DENIED","resourceId":"notes"}`, denied}},
		{reader, "explain_decision", "notes", []string{`"decision":"deny"`, denied}},
		{reader, "capability_report", "", []string{`"profileId":"reader"`, `"tier":"cooperative"`, "What no tool of the profile needs is denied"}},
		{lister, "list_resources", "", []string{`"structuredContent":{"resources":[],"reasonCode":"ALLOWED"}`}}, // it has nothing that reads
		{lister, "read_resource", "notes", []string{`"decision":"deny","reasonCode":"ACCESS_DENIED"`, denied}},
		{blind, "read_resource", "notes", []string{`"content":"the notes"`}},
		{blind, "list_resources", "", []string{`"structuredContent":{"resources":[],"reasonCode":"ACCESS_DENIED"}`, denied}},
	} {
		answer := call(tc.s, tc.tool, tc.name)
		for _, want := range tc.want {
			if !strings.Contains(answer, want) {
				t.Errorf("%s %s: %s, want %s", tc.tool, tc.name, answer, want)
			}
		}
		for _, word := range []string{"NOT_LISTED", "NARROWED", `"error":`, "elicitation"} {
			if strings.Contains(answer, word) {
				t.Errorf("%s %s says %s: %s", tc.tool, tc.name, word, answer)
			}
		}
	}
	for profile, want := range map[string]int{"fetcher": wire.ExitDone, "reader": wire.ExitDenied, "theirs": wire.ExitDenied} {
		cmd := exec.Command(program, "can", "--subject", "worker", "--profile", profile, "--home", d.Home, "reach:docs.example.com")
		cmd.Env = []string{"HOME=" + t.TempDir()}
		code, said, talk := daemontest.Exit(t, cmd)
		equal(t, "can under "+profile+": "+said+talk, code, want)
	}
}
