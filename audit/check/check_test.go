package check

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// line writes an entry of SubjectBroker's own log, ms after noon.
func line(ms int, subject, resource, action, decision string) string {
	at := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC).Add(time.Duration(ms) * time.Millisecond)
	return fmt.Sprintf(`{"timestamp":%q,"subjectId":%q,"resourceId":%q,"action":%q,"decision":%q,"reasonCode":"X"}`+"\n",
		at.Format("2006-01-02T15:04:05.000Z"), subject, resource, action, decision)
}

// entry writes the same as an entry of ours.
func entry(ms int, subject, resource, action, decision string) string {
	at := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC).Add(time.Duration(ms) * time.Millisecond)
	return fmt.Sprintf(`{"v":1,"seq":%d,"timestamp":%q,"vault":"00112233445566778899aabbccddeeff","segment":1,"kind":"acquire",`+
		`"subjectId":%q,"resourceId":%q,"action":%q,"decision":%q,"reasonCode":"X","prev":"%064d"}`+"\n",
		ms+1, at.Format("2006-01-02T15:04:05.000Z"), subject, resource, action, decision, 0)
}

// pairs runs the detector and writes each finding as denied>allowed, with the
// milliseconds between them.
func pairs(t *testing.T, options Options, logs ...string) []string {
	t.Helper()
	var readers []io.Reader
	for _, log := range logs {
		readers = append(readers, strings.NewReader(log))
	}
	findings, err := Run(readers, options)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, f := range findings {
		out = append(out, fmt.Sprintf("%s>%s+%d", f.Denied.SubjectID, f.Allowed.SubjectID,
			f.Allowed.Timestamp.Sub(f.Denied.Timestamp).Milliseconds()))
	}
	return out
}

func TestRun(t *testing.T) {
	for _, format := range []struct {
		name string
		line func(ms int, subject, resource, action, decision string) string
	}{{"six fields", line}, {"entries", entry}} {
		l := format.line
		for _, c := range []struct {
			name string
			log  string
			want []string
		}{
			{"nothing", "", nil},
			{"another subject", l(0, "a", "r", "read", "deny") + l(5000, "b", "r", "read", "allow"), []string{"a>b+5000"}},
			{"same instant", l(0, "a", "r", "read", "deny") + l(0, "b", "r", "read", "allow"), []string{"a>b+0"}},
			{"edge of the window", l(0, "a", "r", "read", "deny") + l(10_000, "b", "r", "read", "allow"), []string{"a>b+10000"}},
			{"past the window", l(0, "a", "r", "read", "deny") + l(10_001, "b", "r", "read", "allow"), nil},
			{"same subject", l(0, "a", "r", "read", "deny") + l(1, "a", "r", "read", "allow"), nil},
			{"other resource", l(0, "a", "r", "read", "deny") + l(1, "b", "s", "read", "allow"), nil},
			{"other action", l(0, "a", "r", "read", "deny") + l(1, "b", "r", "use", "allow"), nil},
			{"allow before the denial", l(0, "b", "r", "read", "allow") + l(1, "a", "r", "read", "deny"), nil},
			{"errors are ignored", l(0, "a", "r", "read", "error") + l(1, "b", "r", "read", "allow") + l(2, "b", "r", "read", "error"), nil},
			{"a person was asked", l(0, "a", "r", "read", "pending") + l(1, "b", "r", "read", "allow"), nil},
			{
				"every pair", l(0, "a", "r", "read", "deny") + l(1, "c", "r", "read", "deny") + l(2, "b", "r", "read", "allow") + l(3, "c", "r", "read", "allow"),
				[]string{"a>b+2", "c>b+1", "a>c+3"},
			},
			{"out of order", l(5, "b", "r", "read", "allow") + l(0, "a", "r", "read", "deny"), []string{"a>b+5"}},
		} {
			t.Run(format.name+"/"+c.name, func(t *testing.T) {
				if diff := cmp.Diff(c.want, pairs(t, Options{}, c.log)); diff != "" {
					t.Error(diff)
				}
			})
		}
	}
}

func TestSeveralLogs(t *testing.T) {
	got := pairs(t, Options{Window: time.Second}, line(500, "b", "r", "read", "allow"), entry(0, "a", "r", "read", "deny")+line(9000, "c", "r", "read", "allow"))
	if diff := cmp.Diff([]string{"a>b+500"}, got); diff != "" {
		t.Error(diff)
	}
}

// Only requests for a resource count: an explain discloses nothing.
func TestOtherKinds(t *testing.T) {
	log := strings.Replace(entry(0, "a", "r", "read", "deny"), "acquire", "explain", 1) + entry(1, "b", "r", "read", "allow")
	if got := pairs(t, Options{}, log); got != nil {
		t.Error(got)
	}
}

func TestInvalidInput(t *testing.T) {
	good := line(0, "a", "r", "read", "deny")
	for name, bad := range map[string]string{
		"no JSON":          "denied\n",
		"empty line":       "\n",
		"array":            "[]\n",
		"unknown field":    strings.Replace(good, "{", `{"content":"x",`, 1),
		"repeated field":   strings.Replace(good, "{", `{"decision":"deny",`, 1),
		"other case":       strings.Replace(good, "subjectId", "SubjectID", 1),
		"missing field":    strings.Replace(good, `"action":"read",`, "", 1),
		"empty subject":    strings.Replace(good, `"a"`, `""`, 1),
		"number":           strings.Replace(good, `"a"`, `1`, 1),
		"null":             strings.Replace(good, `"a"`, `null`, 1),
		"unknown decision": strings.Replace(good, `"deny"`, `"denied"`, 1),
		"no time":          strings.Replace(good, "T12:00", " 12:00", 1),
		"two objects":      strings.TrimSuffix(good, "\n") + good,
		"half a line":      good[:40],
		"invalid UTF-8":    strings.Replace(good, `"a"`, "\"\xff\"", 1),
		"lone surrogate":   strings.Replace(good, `"a"`, `"\ud800"`, 1),
		"entry with blank": strings.Replace(entry(0, "a", "r", "read", "deny"), ",", ", ", 1),
		"half an entry":    entry(0, "a", "r", "read", "deny")[:100],
		"long line":        strings.Repeat("x", maxLine+1),
	} {
		if findings, err := Run([]io.Reader{strings.NewReader(good + bad)}, Options{}); err == nil || !strings.Contains(err.Error(), "line 2") {
			t.Errorf("%s: %v, %v", name, findings, err)
		}
	}
	if _, err := Run(nil, Options{Window: -1}); err == nil {
		t.Error("a negative window was accepted")
	}
}

func TestGoldenLog(t *testing.T) {
	names, err := filepath.Glob("../testdata/golden/audit/*.jsonl")
	if err != nil || len(names) == 0 {
		t.Fatalf("no golden log: %v", err)
	}
	var logs []io.Reader
	for _, name := range names {
		content, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		logs = append(logs, bytes.NewReader(content))
	}
	if _, err := Run(logs, Options{}); err != nil {
		t.Error(err)
	}
}

// The window that slides along finds what looking at every pair finds.
func TestAgainstNaive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		window := time.Duration(rapid.IntRange(1, 50).Draw(t, "window")) * time.Millisecond
		n := rapid.IntRange(0, 40).Draw(t, "entries")
		var log strings.Builder
		type asked struct {
			ms                        int
			subject, resource, decide string
		}
		var all []asked
		ms := 0
		for range n {
			ms += rapid.IntRange(0, 20).Draw(t, "pause")
			a := asked{
				ms, rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "subject"), rapid.SampledFrom([]string{"r", "s"}).Draw(t, "resource"),
				rapid.SampledFrom([]string{"allow", "deny", "error"}).Draw(t, "decision"),
			}
			all = append(all, a)
			log.WriteString(line(a.ms, a.subject, a.resource, "read", a.decide))
		}
		want := 0
		for i, allow := range all {
			for _, deny := range all[:i] {
				if allow.decide == "allow" && deny.decide == "deny" && allow.subject != deny.subject && allow.resource == deny.resource &&
					time.Duration(allow.ms-deny.ms)*time.Millisecond <= window {
					want++
				}
			}
		}
		findings, err := Run([]io.Reader{strings.NewReader(log.String())}, Options{Window: window})
		if err != nil || len(findings) != want {
			t.Errorf("%d findings, want %d (%v)", len(findings), want, err)
		}
	})
}

func FuzzRun(f *testing.F) {
	f.Add(line(0, "a", "r", "read", "deny") + line(1, "b", "r", "read", "allow"))
	f.Add(entry(0, "a", "r", "read", "deny"))
	f.Fuzz(func(t *testing.T, log string) {
		findings, err := Run([]io.Reader{strings.NewReader(log)}, Options{})
		if err != nil && findings != nil {
			t.Error("findings in invalid input")
		}
		for _, finding := range findings {
			gap := finding.Allowed.Timestamp.Sub(finding.Denied.Timestamp)
			if gap < 0 || gap > DefaultWindow || finding.Denied.SubjectID == finding.Allowed.SubjectID {
				t.Errorf("%+v", finding)
			}
		}
	})
}
