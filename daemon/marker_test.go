package daemon_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"subjectbroker/audit"
	"subjectbroker/daemon/daemontest"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

// P28: whatever stands in a field of a request that breaks the rules for names,
// and content in any case, is in no log, message or error.
func TestMarkersGoNowhere(t *testing.T) {
	const marker = "MARKER zyxw\u202e\x1b[31m" // no name, and hostile to a terminal
	clock := newClock()
	d := daemontest.StartWith(t, daemontest.Options{Now: clock.Now})
	d.Put("readme", "hello")
	d.AddSubject("worker")
	d.Grant("worker", "read:readme")
	run := d.Open("worker")

	errors := huntEverywhere(d, run, marker, func() { clock.step(time.Minute) }) // the budget for denials is full again
	// Content that is stored, disclosed, released and changed.
	d.Put("secret", marker+" as content")
	equal(t, "content", d.Content("secret"), marker+" as content")
	file := filepath.Join(t.TempDir(), "file")
	write(t, file, marker+" in a file")
	d.AddFile("file", file, "content")
	d.Grant("worker", "read:*")
	released, _ := run.Read("file")
	equal(t, "released", released, marker+" in a file")
	write(t, file, marker+" changed")
	_, err := d.Operator().CheckFiles(t.Context(), &operatorv1.CheckFilesRequest{})
	must(t, err)
	d.Stop()

	vault, err := os.ReadFile(filepath.Join(d.Home, "vault.db"))
	must(t, err)
	for place, text := range map[string][]byte{
		"the log": d.RawLog(), "messages": []byte(d.Messages()), "errors": errors, "the vault": vault,
	} {
		for _, form := range []string{"MARKER", "zyxw", "as content", "in a file"} {
			if i := bytes.Index(text, []byte(form)); i >= 0 {
				t.Errorf("%s hold %q: …%q…", place, form, text[max(0, i-200):min(len(text), i+100)])
			}
		}
		if i := bytes.IndexAny(text, "\x1b\u202e"); i >= 0 && place != "the vault" {
			t.Errorf("%s hold what a terminal would act on: …%q…", place, text[max(0, i-100):min(len(text), i+50)])
		}
	}
	if !bytes.Contains(d.RawLog(), []byte("~")) {
		t.Error("no entry stands for a malformed name")
	}
	// P27: one entry is one line, and each parses.
	d.Entries()
}

// Names and notes that are valid stand where they belong; hostile ones are
// refused before.
func TestHostileNames(t *testing.T) {
	clock := newClock()
	d := daemontest.StartWith(t, daemontest.Options{Now: clock.Now})
	d.AddSubject("worker")
	run := d.Open("worker")
	for _, name := range append(badNames, "a\r\nb", `a"b`, "a\\b", "\u200b", "\xff\xfe", strings.Repeat("x", 5000)) {
		clock.step(time.Minute)
		seq := d.Seq()
		reason := run.Refused(name)
		if strings.ToValidUTF8(name, "") != name {
			continue // protobuf refuses it already
		}
		equal(t, name, string(reason), "INVALID_ARGUMENT")
		entry := d.Since(seq, "acquire")
		equal(t, "entries about it", len(entry), 1)
		if len(entry) == 1 && !strings.HasPrefix(entry[0].ResourceID, "~") {
			t.Errorf("%q stands in the log as %q", name, entry[0].ResourceID)
		}
	}
	// The same text gives the same mask, other text another.
	mask := maskOf(d, run, "a b")
	equal(t, "masks", maskOf(d, run, "a b") == mask && maskOf(d, run, "a c") != mask, true)
}

func maskOf(d *daemontest.Daemon, run *daemontest.Run, name string) string {
	run.Refused(name)
	return last(d, "acquire").ResourceID
}

// What stands in for such a name means something in one vault alone, before and
// after a restart: whoever reads the log cannot try names against it.
func TestMasksAreOfOneVault(t *testing.T) {
	var masks []string
	for range 2 {
		d := daemontest.Start(t)
		d.AddSubject("worker")
		mask := maskOf(d, d.Open("worker"), "a b")
		d.Restart()
		equal(t, "mask after a restart", maskOf(d, d.Open("worker"), "a b"), mask)
		masks = append(masks, mask)
	}
	equal(t, "the same mask in two vaults", masks[0] == masks[1], false)
	equal(t, "a mask that anybody can make", slices.Contains(masks, audit.Mask(make([]byte, 32), "a b")), false)
}
