package clients

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestConformance runs the official suite against the gateway, in both eras. What
// the suite calls is served by a stub that the broker hosts; what it does not pass
// stands in conformance.yaml with its reason, and the suite itself fails when a line
// there is missing or too much.
func TestConformance(t *testing.T) {
	h := newHouse(t)
	program := h.stub(t)
	for name := range stubs {
		h.must(t, "sbctl", "server", "add", name, "--subject", "worker", "--", program, stubArgument, name)
		h.must(t, "sbctl", "server", "trust", name, "--yes")
	}
	g := h.gateway(t)
	front := withKey(t, g.url, h.key(t, "worker"))
	expected, err := filepath.Abs("conformance.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		revision string
		passed   int // at least so many checks: a suite that tries nothing fails nothing
	}{{"2025-11-25", 50}, {"2026-07-28", 110}} {
		t.Run(tc.revision, func(t *testing.T) {
			t.Parallel()
			suite := func(baseline string, args ...string) (out string, err error) {
				command := append([]string{
					h.glob("@modelcontextprotocol/conformance/dist/index.js"), "server", "--url", front,
					"--spec-version", tc.revision, "--expected-failures", baseline, "--output-dir", t.TempDir(),
				}, args...)
				return h.run(t, limit, h.env(), h.node(), command...)
			}
			results := filepath.Join(t.TempDir(), "results")
			out, err := suite(expected, "--suite", "all", "--output-dir", results)
			if at := strings.Index(out, "=== SUMMARY"); at > 0 {
				out = out[at:]
			}
			counts, failures := checks(t, results)
			if err != nil {
				t.Errorf("%v\n%s\n%s", err, out, strings.Join(failures, "\n"))
			}
			if counts["SUCCESS"] < tc.passed {
				t.Errorf("%d checks passed, want %d", counts["SUCCESS"], tc.passed)
			}
			t.Logf("figure: conformance %s: %d passed, %d expected failures, %d warnings", tc.revision, counts["SUCCESS"], counts["FAILURE"], counts["WARNING"])

			// The controls: a failure that nobody expects, and one that is not there.
			for _, control := range []struct{ scenario, baseline string }{
				{"prompts-list", "server: []\n"},
				{"tools-list", "server:\n  - tools-list\n"},
			} {
				file := filepath.Join(t.TempDir(), "baseline.yaml")
				if err := os.WriteFile(file, []byte(control.baseline), 0o600); err != nil {
					t.Fatal(err)
				}
				if out, err := suite(file, "--scenario", control.scenario); err == nil {
					t.Errorf("the suite does not mind %s with %q:\n%s", control.scenario, control.baseline, out)
				}
			}
		})
	}
}

// checks counts what the suite says of each check, and tells what failed.
func checks(t *testing.T, results string) (counts map[string]int, failures []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(results, "*", "checks.json"))
	if err != nil {
		t.Fatal(err)
	}
	counts = map[string]int{}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var made []struct{ ID, Status, ErrorMessage string }
		if err := json.Unmarshal(raw, &made); err != nil {
			t.Fatal(err)
		}
		for _, check := range made {
			counts[check.Status]++
			if check.Status == "FAILURE" || check.Status == "WARNING" {
				failures = append(failures, check.Status+" "+filepath.Base(filepath.Dir(file))+" "+check.ID+": "+check.ErrorMessage)
			}
		}
	}
	return counts, failures
}

// withKey is the address of a server on loopback that adds the key to what is asked
// of it and passes everything else on as it is, the host too: the suite can send no
// header of ours.
func withKey(t *testing.T, gateway, key string) string {
	t.Helper()
	target, err := url.Parse(gateway)
	if err != nil {
		t.Fatal(err)
	}
	front := httptest.NewServer(&httputil.ReverseProxy{
		FlushInterval: -1,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = target.Scheme, target.Host, r.In.Host
			r.Out.Header.Set("Authorization", "Bearer "+key)
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	})
	t.Cleanup(front.Close)
	return front.URL + target.Path
}
