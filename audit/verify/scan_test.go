package verify

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

// Whatever is taken for an entry is one line of plain JSON that any other
// reader understands in the same way.
func FuzzParseLine(f *testing.F) {
	for _, line := range golden(f) {
		f.Add(line)
	}
	f.Add([]byte(`{"v":1,"seq":1}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		entry, err := ParseLine(text)
		if err != nil {
			return
		}
		if bytes.ContainsAny(bytes.TrimSuffix(text, []byte("\n")), "\n\r\x00\\") {
			t.Errorf("a line with %q was accepted", text)
		}
		for _, c := range text {
			if c >= 0x7f {
				t.Errorf("a line beyond ASCII was accepted: %q", text)
			}
		}
		var other map[string]any
		if err := json.Unmarshal(text, &other); err != nil {
			t.Fatalf("accepted what is no JSON: %v: %q", err, text)
		}
		for key, mine := range map[string]string{
			"kind": entry.Kind, "subjectId": entry.SubjectID, "resourceId": entry.ResourceID, "prev": entry.Prev,
			"decision": entry.Decision, "reasonCode": entry.ReasonCode, "capability": entry.Capability, "sig": entry.Sig,
		} {
			if theirs, _ := other[key].(string); theirs != mine {
				t.Errorf("%s: %q, and %q to others", key, mine, theirs)
			}
		}
		tenants, _ := other["tenants"].([]any)
		if len(tenants) != len(entry.Tenants) {
			t.Errorf("tenants: %q, and %q to others", entry.Tenants, tenants)
		}
		if _, theirs := other["peer"]; theirs != entry.HasPeer {
			t.Errorf("peer: %v, and %v to others", entry.HasPeer, theirs)
		}
	})
}

// golden returns the lines of the golden log.
func golden(t testing.TB) [][]byte {
	t.Helper()
	names, err := filepath.Glob("../testdata/golden/audit/*.jsonl")
	if err != nil || len(names) == 0 {
		t.Fatalf("no golden log: %v", err)
	}
	var lines [][]byte
	for _, name := range names {
		content, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, bytes.SplitAfter(bytes.TrimSuffix(content, []byte("\n")), []byte("\n"))...)
	}
	return lines
}

func TestScanAllocatesNothing(t *testing.T) {
	lines := golden(t)
	raw := append(bytes.TrimSuffix(bytes.Clone(lines[1]), []byte("\n")), '\n')
	var l line
	if n := testing.AllocsPerRun(100, func() {
		if err := l.scan(raw); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
