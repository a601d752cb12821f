package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"subjectbroker/daemon/daemontest"
	"subjectbroker/proto/terminal/terminaltest"
	"subjectbroker/proto/wire"
)

// A read that waits is let through from the screen of a person who knows the
// passphrase, while it waits; the next one is refused there.
func TestWatchAnswersTheRealDaemon(t *testing.T) {
	d := daemontest.StartWith(t, daemontest.Options{ApprovalWait: daemontest.Patience})
	d.Authenticate()
	d.Put("readme", "design")
	d.AddSubject("worker")
	d.Grant("worker", "read:readme", daemontest.Gated)
	run := d.Open("worker")
	read := func() <-chan string {
		done := make(chan string, 1)
		go func() {
			content, reason := run.Read("readme")
			done <- content + " " + string(reason)
		}()
		return done
	}
	watch := exec.Command(filepath.Join(programDir, "sbctl"), "watch")
	watch.Env = append(os.Environ(), "SB_HOME="+d.Home, "TZ=UTC")
	p := terminaltest.Start(t, watch)
	p.Expect(`RECENT`)
	waits := read()
	p.Expect(`WAITING FOR YOU \(1\)`)
	p.Type("a")
	p.Expect(`discloses: the content of readme`)
	p.Expect(`approve read:readme of worker once\? y/n`)
	p.Type("y")
	p.Expect(`Operator's passphrase: `)
	p.Type(daemontest.Passphrase + "\r")
	p.Expect(`done`)
	p.Expect(`» RUNS \(1\)`) // nothing waits
	if got := <-waits; got != "design "+string(wire.Allowed) {
		t.Errorf("approved: %s", got)
	}
	waits = read()
	p.Expect(`WAITING FOR YOU \(1\)`)
	p.Type("a")
	p.Expect(`approve read:readme`)
	p.Type("n")
	p.Expect(`nothing was changed`)
	p.Type("d")
	p.Expect(`refuse read:readme of worker\? y/n`)
	p.Type("y")
	p.Expect(`done`)
	if got := <-waits; got != " "+string(wire.ApprovalDenied) {
		t.Errorf("refused: %s", got)
	}
	p.Type("q")
	if code := p.Wait(); code != 0 {
		t.Errorf("exit %d", code)
	}
}
