package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"subjectbroker/proto/terminal/terminaltest"
)

// startFake starts a fake operator, and returns it with what runs sbctl against it.
func startFake(t *testing.T) (*fakeOperator, func(args ...string) *exec.Cmd) {
	t.Helper()
	home, err := os.MkdirTemp("", "sb") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(home) })
	fake, _ := fakeAt(t, home)
	return fake, func(args ...string) *exec.Cmd {
		cmd := exec.Command(filepath.Join(programDir, "sbctl"), args...)
		cmd.Env = append(os.Environ(), "SB_HOME="+home, "HOME="+home, "TZ=UTC")
		return cmd
	}
}

// fakeAt starts a fake operator for a home, and returns it with what stops it.
func fakeAt(t *testing.T, home string) (*fakeOperator, func()) {
	t.Helper()
	fake, stop, err := serveFake(home)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	fake.mu.Lock()
	defer fake.mu.Unlock()
	fake.auth.passphrase, fake.follow, fake.stop = []byte("correct horse"), true, stop
	return fake, stop
}

// mustRun runs cmd away from any terminal.
func mustRun(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(cmd.Args, " "), err, out)
	}
}

const prompted = `sbctl> $`

func TestConsoleOnATerminal(t *testing.T) {
	fake, sbctl := startFake(t)
	p := terminaltest.Start(t, sbctl("console"))
	p.Expect(`Operator's passphrase: `)
	p.Type("wrong horse\r")
	p.Expect(`this is not the operator's passphrase; try again`)
	p.Expect(`Operator's passphrase: `)
	p.Type("correct horse\r")
	p.Expect(`a session is open, for this console only`)
	p.Expect(prompted)
	if p.Cooked() {
		t.Error("a line is edited with the terminal in its usual mode")
	}

	// A line is edited, taken back, and run; the session is the console's.
	p.Type("subject add wrokre\x7f\x7f\x7f\x7f\x7forker\r")
	p.Expect(`subject: +worker`)
	p.Expect(prompted)
	p.Type("subject add taken\x03")
	p.Expect(prompted)
	p.Type("secret put token\r")
	p.Expect(`Content of token: `)
	p.Type("hunter2\r")
	p.Expect(`version: +1`)
	p.Expect(prompted)
	p.Type("grant worker token --disclose -q\r")
	p.Expect(`granta`)
	p.Expect(prompted)

	// Tab completes words of the grammar and names of the daemon.
	p.Type("subj\tsh\tw\t\r")
	p.Expect(`subject show worker`)
	p.Expect(`granta`)
	p.Expect(prompted)
	p.Type("subject e\tx\x03")
	p.Expect(`subject enable x`)
	p.Expect(prompted)
	p.Type("subject s\t")
	p.Expect(`set  show`)
	p.Type("how worker -q\r")
	p.Expect(`\r\nworker\r\n`)
	p.Expect(prompted)

	// What is typed ahead of a line's question is its answer.
	p.Type("resource rm token\ry\r")
	p.Expect(`Remove token with 1 version and revoke 1 grant\? \[y/N\]`)
	p.Expect(`removed: +token`)
	p.Expect(prompted)

	// An interrupt ends the line that runs and takes nothing from the next.
	p.Type("secret put other\r")
	p.Expect(`Content of other: `)
	p.Type("half\x03")
	p.Expect(`sbctl: storing other: interrupted`)
	p.Expect(prompted)
	p.Type("subject rm worker\r")
	p.Expect(`\[y/N\] $`)
	p.Type("\x03")
	p.Expect(`interrupted`)
	p.Expect(prompted)
	p.Type("subject list -q\r")
	p.Expect(`worker\r\n`)
	p.Expect(prompted)

	// A screen gives the terminal back.
	p.Type("watch\r")
	p.Expect(`sbctl watch .*operator's session open`)
	p.Type("q")
	p.Expect(prompted)
	p.Type("subject show nobody\r")
	p.Expect(`no subject is named nobody`)
	p.Expect(prompted)
	p.Type("\x04")
	if code := p.Wait(); code != 2 {
		t.Errorf("exit %d, want that of the last line that failed", code)
	}
	if strings.Contains(p.Shown(), "horse") || strings.Contains(p.Shown(), "hunter2") {
		t.Errorf("what is secret was shown:\n%s", p.Shown())
	}
	fake.mu.Lock()
	defer fake.mu.Unlock()
	if fake.auth.tried != 2 {
		t.Errorf("the passphrase was given %d times, want 2", fake.auth.tried)
	}
	if len(fake.subjects) != 1 {
		t.Errorf("a line that was taken back was run: %v", sortedKeys(fake.subjects))
	}
}

// A session ends with its connection: after a restart of the daemon a line connects
// anew, and is asked anew.
func TestConsoleAndANewDaemon(t *testing.T) {
	before, sbctl := startFake(t)
	p := terminaltest.Start(t, sbctl("console"))
	p.Expect(`passphrase: `)
	p.Type("correct horse\r")
	p.Expect(prompted)
	before.stop()
	p.Type("subject list\r")
	p.Expect(`hint: sbctl service start`)
	p.Expect(`the connection to the daemon has ended, and the session with it`)
	p.Expect(prompted)
	fakeAt(t, before.home)
	p.Type("subject add worker -q\r")
	p.Expect(`worker\r\nsbctl> $`)
	p.Type("grant worker nothing\r")
	p.Expect(`Operator's passphrase: `)
	p.Type("correct horse\r")
	p.Expect(`there is no resource nothing`)
	p.Expect(prompted)
	p.Type("exit\r")
	if code := p.Wait(); code != 2 {
		t.Errorf("exit %d, want that of the last line that failed", code)
	}
}

// Whoever ends the console gets the terminal back.
func TestConsoleIsEnded(t *testing.T) {
	_, sbctl := startFake(t)
	p := terminaltest.Start(t, sbctl("console"))
	p.Expect(`passphrase: `)
	p.Type("\r")
	p.Expect(`no session is open`)
	p.Expect(prompted)
	p.Signal(syscall.SIGTERM)
	p.Expect(`interrupted`)
	if code := p.Wait(); code != 1 {
		t.Errorf("exit %d, want 1", code)
	}
	if !p.Cooked() {
		t.Error("the terminal was not given back")
	}
}

// A single command asks on the terminal, wherever its output goes, and again when
// what was typed is wrong.
func TestVerbAsksForThePassphrase(t *testing.T) {
	_, sbctl := startFake(t)
	mustRun(t, sbctl("subject", "add", "worker"))
	put := sbctl("secret", "put", "token", "--kind", "secret", "-")
	put.Stdin = strings.NewReader("hunter2")
	mustRun(t, put)

	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	get := sbctl("secret", "get", "token")
	get.Stdin, get.Stdout = strings.NewReader(""), out
	p := terminaltest.Start(t, get)
	p.Expect(`Operator's passphrase: `)
	p.Type("no\r")
	p.Expect(`try again`)
	p.Expect(`Operator's passphrase: `)
	p.Type("correct horse\r")
	if code := p.Wait(); code != 0 {
		t.Errorf("exit %d\n%s", code, p.Shown())
	}
	if got, err := os.ReadFile(out.Name()); err != nil || string(got) != "hunter2" {
		t.Errorf("standard output has %q (%v)", got, err)
	}

	p = terminaltest.Start(t, sbctl("grant", "worker", "token", "--disclose"))
	for range tries {
		p.Expect(`Operator's passphrase: `)
		p.Type("no\r")
	}
	p.Expect(`sbctl: granting to worker: this is not the operator's passphrase`)
	if code := p.Wait(); code != 3 {
		t.Errorf("exit %d, want 3", code)
	}
}

func TestSetPassphraseOnATerminal(t *testing.T) {
	fake, sbctl := startFake(t)
	p := terminaltest.Start(t, sbctl("operator", "set-passphrase"))
	p.Expect(`Operator's passphrase: `)
	p.Type("correct horse\r")
	p.Expect(`New passphrase: `)
	p.Type("another horse\r")
	p.Expect(`The same again: `)
	p.Type("another hrose\r")
	p.Expect(`the two passphrases differ, nothing was changed`)
	if code := p.Wait(); code != 2 {
		t.Errorf("exit %d, want 2", code)
	}
	p = terminaltest.Start(t, sbctl("operator", "set-passphrase"))
	p.Expect(`Operator's passphrase: `)
	p.Type("correct horse\r")
	p.Expect(`New passphrase: `)
	p.Type("another horse\r")
	p.Expect(`The same again: `)
	p.Type("another horse\r")
	p.Expect(`this passphrase is short`)
	p.Expect(`every session has ended`)
	if code := p.Wait(); code != 0 {
		t.Errorf("exit %d\n%s", code, p.Shown())
	}
	fake.mu.Lock()
	defer fake.mu.Unlock()
	if got := string(fake.auth.passphrase); got != "another horse" {
		t.Errorf("the passphrase is %q", got)
	}
}

// A key of the live screen that needs a session asks for the passphrase, with the
// screen out of the way, and does what it was pressed for.
func TestWatchAsksForThePassphrase(t *testing.T) {
	fake, sbctl := startFake(t)
	mustRun(t, sbctl("subject", "add", "worker"))
	put := sbctl("secret", "put", "readme", "-")
	put.Stdin = strings.NewReader("x")
	mustRun(t, put)
	fake.mu.Lock()
	fake.lines = append(fake.lines, []byte(`{"v":1,"seq":1,"timestamp":"2026-01-01T00:00:00.000Z","kind":"acquire","subjectId":"worker","capability":"read:readme","decision":"deny","reasonCode":"ACCESS_DENIED","cause":"NO_GRANT"}`+"\n"))
	fake.mu.Unlock()

	p := terminaltest.Start(t, sbctl("watch"))
	p.Expect(`no operator's session`)
	p.Expect(`read:readme`)
	p.Type("\tg")
	p.Expect(`grant worker read:readme for an hour\? y/n`)
	p.Type("y")
	p.Expect(`Operator's passphrase: `)
	p.Type("correct horse\r")
	p.Expect(`operator's session open`)
	p.Expect(`done`)
	p.Type("u")
	p.Expect(`end the operator's session\? y/n`)
	p.Type("y")
	p.Expect(`no operator's session`)
	p.Type("u")
	p.Expect(`Operator's passphrase: `)
	p.Type("\r")
	p.Expect(`nothing was typed`)
	p.Type("q")
	if code := p.Wait(); code != 0 {
		t.Errorf("exit %d", code)
	}
	if !p.Cooked() {
		t.Error("the terminal was not given back")
	}
	fake.mu.Lock()
	defer fake.mu.Unlock()
	if len(fake.grants) != 1 {
		t.Errorf("%d grants, want 1", len(fake.grants))
	}
}
