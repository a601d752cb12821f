package daemon

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"subjectbroker/audit"
)

func someHead(seq uint64) audit.Head {
	return audit.Head{
		Genesis: strings.Repeat("ab", 32), VaultID: strings.Repeat("cd", 16), Segment: 2, Seq: seq, Hash: [32]byte{1, 2, 3}, Signature: "c2ln",
	}
}

// What is written is read back; everything else is refused, and nothing passes
// for absent that is damaged.
func TestParseHead(t *testing.T) {
	want := newKeptHead(someHead(7), time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	line := string(want.line())
	if got, err := parseHead([]byte(line)); err != nil || got != want {
		t.Fatalf("%q is read as %+v, %v", line, got, err)
	}
	for name, text := range map[string]string{
		"empty":         "",
		"cut":           line[:len(line)-2],
		"no line end":   strings.TrimSuffix(line, "\n"),
		"two":           line + line,
		"unknown field": strings.Replace(line, `"seq"`, `"seq2":1,"seq"`, 1),
		"twice":         strings.Replace(line, `"seq":7`, `"seq":7,"seq":8`, 1),
		"other case":    strings.Replace(line, `"seq"`, `"Seq"`, 1),
		"blank":         strings.Replace(line, `:7`, `: 7`, 1),
		"no entry":      strings.Replace(line, `"seq":7`, `"seq":0`, 1),
		"short hash":    strings.Replace(line, "010203", "0102", 1),
		"upper case":    strings.Replace(line, "ab", "AB", 1),
		"short vault":   strings.Replace(line, "cdcd", "cd", 1),
		"array":         "[" + line + "]",
		"null":          "null\n",
	} {
		if text == line {
			t.Fatalf("%s: nothing was replaced", name)
		}
		if got, err := parseHead([]byte(text)); err == nil {
			t.Errorf("%s: %q is read as %+v", name, text, got)
		}
	}
}

// What parses is written again as the same bytes.
func FuzzParseHead(f *testing.F) {
	f.Add(newKeptHead(someHead(7), time.Unix(0, 0)).line())
	f.Add([]byte("{}\n"))
	f.Add([]byte(`{"genesis":"","vault":"","segment":1,"seq":1,"hash":"","sig":"","timestamp":""}` + "\n"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		h, err := parseHead(raw)
		if err == nil && !bytes.Equal(h.line(), raw) {
			t.Errorf("%q becomes %q", raw, h.line())
		}
	})
}

func TestParseExpect(t *testing.T) {
	hash := strings.Repeat("0a", 32)
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for name, tc := range map[string]struct {
		text string
		seq  uint64 // 0: refused
	}{
		"plain":              {"12:" + hash, 12},
		"upper case":         {"12:" + strings.ToUpper(hash), 12},
		"in a file":          {file("plain", "12:"+hash+"\n"), 12},
		"head file":          {file("head", string(newKeptHead(someHead(9), time.Unix(0, 0)).line())), 9},
		"sbctl's own":        {file("json", `{"genesis":"x","seq":8,"hash":"`+hash+`","signature":"y"}`), 8},
		"no entry":           {"0:" + hash, 0},
		"short":              {"12:0a", 0},
		"no hash":            {"12", 0},
		"negative":           {"-1:" + hash, 0},
		"no such file":       {filepath.Join(dir, "none"), 0},
		"file of words":      {file("words", "hello"), 0},
		"head without hash":  {file("half", `{"seq":8}`), 0},
		"not hexadecimal":    {"12:" + strings.Repeat("zz", 32), 0},
		"a folder":           {dir, 0},
		"more behind it":     {"12:" + hash + ":1", 0},
		"a sign of its own":  {"+12:" + hash, 0},
		"beyond what counts": {"99999999999999999999:" + hash, 0},
	} {
		p, err := parseExpect(tc.text)
		if tc.seq == 0 && err == nil || tc.seq > 0 && (err != nil || p.Seq != tc.seq) {
			t.Errorf("%s: %+v, %v", name, p, err)
		}
	}
	if p, err := parseExpect(""); p != nil || err != nil {
		t.Errorf("nothing: %+v, %v", p, err)
	}
}

// The keeper pushes what changed at once, everything else once a second, and
// says why it cannot.
func TestHeadKeeper(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		k := newHeadKeeper(headPlaces{file: filepath.Join(dir, "heads", "sb")}, time.Now)
		ctx := t.Context()
		k.toFile(someHead(1))
		if seq, cause := k.status(); seq != 0 || !strings.HasPrefix(cause, "headFile: ") {
			t.Errorf("without its folder: %d, %q", seq, cause)
		}
		before := time.Now()
		k.changed(1)
		if k.wait(ctx); !time.Now().Equal(before) {
			t.Error("what cannot be written is waited for")
		}
		if err := os.Mkdir(filepath.Join(dir, "heads"), 0o700); err != nil {
			t.Fatal(err)
		}
		k.toFile(someHead(1)) // a second later
		if seq, cause := k.status(); seq != 1 || cause != "" {
			t.Errorf("with its folder: %d, %q", seq, cause)
		}
		if info, err := os.Stat(k.places.file); err != nil || info.Mode().Perm() != 0o644 {
			t.Errorf("the file: %v, %v", info, err)
		}
		h, err := readHead(k.places.file)
		if err != nil || h.Seq != 1 {
			t.Errorf("it holds %+v, %v", h, err)
		}
		if names, _ := os.ReadDir(filepath.Join(dir, "heads")); len(names) != 1 {
			t.Errorf("beside it lies something: %v", names)
		}

		// Somebody waits for a change, which takes no longer than its push.
		k.changed(2)
		waited := make(chan time.Duration)
		go func() {
			begun := time.Now()
			k.wait(ctx)
			waited <- time.Since(begun)
		}()
		time.Sleep(300 * time.Millisecond)
		k.toFile(someHead(2))
		if took := <-waited; took != 300*time.Millisecond {
			t.Errorf("it was waited for %v", took)
		}
		k.changed(3) // and nobody pushes
		begun := time.Now()
		if k.wait(ctx); time.Since(begun) != headWait {
			t.Errorf("a push that does not come is waited for %v", time.Since(begun))
		}
	})
}

// The program gets the head on stdin and nothing of our environment; what hangs
// is killed with whatever it started.
func TestHeadCommand(t *testing.T) {
	t.Setenv("MARKER", "leaks")
	out := filepath.Join(t.TempDir(), "out")
	line := newKeptHead(someHead(7), time.Unix(0, 0)).line()
	if err := runHeadCommand(t.Context(), []string{"/bin/sh", "-c", "{ cat; env; } > " + out}, line); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.HasPrefix(raw, line) || bytes.Contains(raw, []byte("MARKER")) || bytes.Contains(raw, []byte("HOME=")) {
		t.Errorf("it got %q", raw)
	}
	if err := runHeadCommand(t.Context(), []string{"/bin/sh", "-c", "exit 3"}, line); err == nil || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("a failure: %v", err)
	}
	if err := runHeadCommand(t.Context(), []string{"/nonexistent/push"}, line); err == nil {
		t.Error("there is no program, and no error")
	}
	// Everything that it starts has alive open, whose end is read when nobody has.
	alive := filepath.Join(t.TempDir(), "alive")
	if err := syscall.Mkfifo(alive, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- runHeadCommand(ctx, []string{"/bin/sh", "-c", "exec 3>" + alive + "; sleep 3600 & echo begun >&3; sleep 3600"}, line)
	}()
	reader, err := os.Open(alive)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	begun := make([]byte, len("begun\n"))
	if _, err := io.ReadFull(reader, begun); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "took too long") {
		t.Errorf("what hangs: %v", err)
	}
	gone := make(chan error, 1)
	go func() {
		_, err := reader.Read(begun)
		gone <- err
	}()
	select {
	case err := <-gone:
		if err != io.EOF {
			t.Errorf("reading on: %v", err)
		}
	case <-time.After(time.Minute):
		t.Error("what it started goes on")
	}
}

// Only what would protect nothing is refused.
func TestHeadPlaceBelowHome(t *testing.T) {
	top := t.TempDir()
	home := filepath.Join(top, "home")
	if err := os.MkdirAll(filepath.Join(home, "audit"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(home, "audit"), filepath.Join(top, "link")); err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	for _, path := range []string{"home/head", "home/audit/head", "home/none/head", "link/head", "head", "home2/head", "home/../head"} {
		got[path] = below(home, filepath.Join(top, path))
	}
	want := map[string]bool{
		"home/head": true, "home/audit/head": true, "home/none/head": true, "link/head": true, "head": false, "home2/head": false, "home/../head": false,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
