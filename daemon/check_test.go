package daemon_test

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"subjectbroker/daemon"
	"subjectbroker/daemon/daemontest"
	"subjectbroker/proto/place"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// What a kill leaves behind the last signature is no damage: check says what the
// next start does about it. A cut that goes further is damage.
func TestCheckTornTail(t *testing.T) {
	t.Parallel()
	d := newSpoilable(t, "")
	d.Kill()
	segment := filepath.Join(place.AuditDir(d.Home), "00000001.jsonl")
	whole, err := os.ReadFile(segment)
	must(t, err)
	lines := strings.SplitAfter(strings.TrimSuffix(string(whole), "\n")+"\n", "\n")
	last := lines[len(lines)-2]
	unsigned := last[:strings.Index(last, `,"sig":`)] + "}\n"
	for name, tail := range map[string]string{"half a line": last[:len(last)/2], "garbage": "garbage\n", "zeros": string(make([]byte, 100)), "unsigned": unsigned} {
		write(t, segment, string(whole)+tail)
		exit, out, said := sbd(t, d.Home, "check")
		equal(t, name+": exit: "+said, exit, wire.ExitDone)
		if !strings.Contains(out, fmt.Sprintf("%d bytes behind entry", len(tail))) {
			t.Errorf("%s: it says\n%s", name, out)
		}
	}
	write(t, segment, string(whole)+last[:len(last)/2])
	sound(t, d.Home)
	d.Start()
	d.Stop()
	sound(t, d.Home)

	write(t, segment, strings.Join(lines[:4], ""))
	refusesToStart(t, d.Home, wire.RollbackDetected)
}

// --expect, as SEQ:HASH and as a file, holds the log against what was noted.
func TestCheckExpect(t *testing.T) {
	t.Parallel()
	d := newSpoilable(t, "")
	head, err := d.Operator().AuditHead(t.Context(), &operatorv1.AuditHeadRequest{})
	must(t, err)
	d.Stop()
	point := fmt.Sprintf("%d:%s", head.GetSeq(), head.GetHash())
	file := filepath.Join(t.TempDir(), "head")
	write(t, file, point+"\n")
	many := filepath.Join(t.TempDir(), "heads")
	write(t, many, fmt.Sprintf(`{"seq":1,"hash":"%064d"}`, 0)+"\n"+fmt.Sprintf(`{"seq":%d,"hash":%q}`, head.GetSeq(), head.GetHash())+"\n")
	for _, expect := range []string{point, file, many} {
		exit, out, said := sbd(t, d.Home, "check", "--expect", expect)
		equal(t, "exit: "+said, exit, wire.ExitDone)
		if !strings.Contains(out, fmt.Sprintf("expect: the log holds entry %d", head.GetSeq())) {
			t.Errorf("it says\n%s", out)
		}
	}
	for name, expect := range map[string]string{
		"another hash": fmt.Sprintf("%d:%s", head.GetSeq(), strings.Repeat("0", 64)),
		"a later one":  fmt.Sprintf("%d:%s", head.GetSeq()+100, head.GetHash()),
	} {
		exit, out, said := sbd(t, d.Home, "check", "--expect", expect)
		equal(t, name, exit, wire.ExitIntegrity)
		if !strings.HasPrefix(said, "sbd: ROLLBACK_DETECTED: ") || !strings.Contains(out, "unchanged: ") {
			t.Errorf("%s: it says %q and\n%s", name, said, out)
		}
	}
	exit, _, _ := sbd(t, d.Home, "check", "--expect", "hello")
	equal(t, "nonsense", exit, wire.ExitUsage)
}

// The proof that nothing was changed finds changes: of content, of times, of
// modes, of names.
func TestCheckNoticesChanges(t *testing.T) {
	t.Parallel()
	d := newSpoilable(t, "")
	d.Stop()
	for name, change := range map[string]func(t *testing.T){
		"content": func(t *testing.T) { write(t, filepath.Join(d.Home, "note"), "other") },
		"mode":    func(t *testing.T) { must(t, os.Chmod(filepath.Join(d.Home, "note"), 0o644)) },
		"new":     func(t *testing.T) { write(t, filepath.Join(d.Home, "note2"), "") },
		"gone":    func(t *testing.T) { remove(t, filepath.Join(d.Home, "note")) },
	} {
		t.Run(name, func(t *testing.T) {
			write(t, filepath.Join(d.Home, "note"), "note")
			remove(t, filepath.Join(d.Home, "note2"))
			said := ""
			o := daemon.Offline{
				Config: daemon.Config{Home: d.Home, Logger: slog.New(slog.DiscardHandler), Self: "/nonexistent", KeychildArg: "none", Version: "test"},
				Say: func(line string) {
					said += line + "\n"
					if strings.HasPrefix(line, "config: ") {
						change(t)
					}
				},
			}
			err := daemon.Check(context.Background(), o, "")
			if err == nil || !strings.Contains(err.Error(), "note") || strings.Contains(said, "unchanged") {
				t.Errorf("%v; it says\n%s", err, said)
			}
			if f, ok := errors.AsType[*daemon.Fault](err); ok {
				t.Errorf("it is a fault: %v", f)
			}
		})
	}
}

// The head outside the home is what the newest change ended with, by the time
// that the change is answered; and it follows everything else.
func TestHeadFile(t *testing.T) {
	t.Parallel()
	head := filepath.Join(t.TempDir(), "head")
	pushed := filepath.Join(t.TempDir(), "pushed")
	d := daemontest.Launch(t, daemontest.Options{
		Config: "audit:\n  headFile: " + head + "\n  headCommand: [/bin/sh, -c, \"cat >> " + pushed + "\"]\n",
	})
	for i := range 5 {
		d.Put("doc", fmt.Sprint(i))
		applied := d.Entries("op.applied")
		if raw, err := os.ReadFile(head); err != nil || !headHolds(raw, applied[len(applied)-1].Seq) {
			t.Errorf("change %d is entry %d, the head outside is %s, %v", i, applied[len(applied)-1].Seq, raw, err)
		}
	}
	status := d.Status()
	if status.GetHeadSeq() == 0 || status.GetHeadCause() != "" {
		t.Errorf("status: %d, %q", status.GetHeadSeq(), status.GetHeadCause())
	}
	equal(t, "exit", d.Stop(), 0)
	entries := d.Entries()
	last := entries[len(entries)-1]
	for _, path := range []string{head, pushed} {
		raw, err := os.ReadFile(path)
		must(t, err)
		if !headHolds(raw, last.Seq) {
			t.Errorf("after the stop at entry %d, %s holds %s", last.Seq, path, raw)
		}
	}
	sound(t, d.Home)

	// Another vault's head is a mistake, not a rollback.
	raw, err := os.ReadFile(head)
	must(t, err)
	write(t, head, strings.Replace(string(raw), last.Vault, hex.EncodeToString(make([]byte, 16)), 1))
	refusesToStart(t, d.Home, wire.ConfigInvalid)
	exit, _, _ := sbd(t, d.Home, "recover", "--yes")
	equal(t, "exit of recover", exit, wire.ExitUsage)
	write(t, head, "garbage")
	refusesToStart(t, d.Home, wire.ConfigInvalid)
	write(t, head, string(raw))
	d.Start()
}

// headHolds reports whether the newest line names an entry not older than seq.
func headHolds(raw []byte, seq uint64) bool {
	lines := strings.Split(strings.TrimSpace(string(raw)), "\n")
	var got uint64
	_, after, _ := strings.Cut(lines[len(lines)-1], `"seq":`)
	_, _ = fmt.Sscanf(after, "%d", &got)
	return got >= seq
}

// forget leaves no key, and the recovery code still opens what is there.
func TestForget(t *testing.T) {
	t.Parallel()
	d := newSpoilable(t, "")
	code := addRecovery(t, d.Daemon)
	exit, _, _ := sbd(t, d.Home, "forget", "--yes")
	equal(t, "beside a daemon", exit, wire.ExitBusy)
	d.Stop()
	held, err := os.Open(place.KeyFile(d.Home)) // sees what became of the bytes
	must(t, err)
	defer held.Close()
	exit, _, _ = sbd(t, d.Home, "forget")
	equal(t, "without a word of the operator's", exit, wire.ExitUsage)
	exit, out, said := sbd(t, d.Home, "forget", "--yes")
	equal(t, "exit: "+said, exit, wire.ExitDone)
	if !strings.Contains(out, "removed: "+place.KeyFile(d.Home)) {
		t.Errorf("it says\n%s", out)
	}
	if _, err := os.Stat(place.KeyFile(d.Home)); err == nil {
		t.Error("the key is there")
	}
	raw, err := io.ReadAll(held)
	must(t, err)
	equal(t, "the key's bytes", string(raw), string(make([]byte, 32)))
	exit, _, _ = sbd(t, d.Home)
	equal(t, "exit of sbd", exit, wire.ExitUnavailable)
	exit, _, said = withCode(t, d.Home, code.Text(), "check")
	equal(t, "exit with the code: "+said, exit, wire.ExitDone)
	exit, _, _ = sbd(t, d.Home, "forget", "--yes")
	equal(t, "once more", exit, wire.ExitDone)
}
