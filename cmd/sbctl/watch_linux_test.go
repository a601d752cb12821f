package main

import (
	"testing"

	"subjectbroker/proto/terminal/terminaltest"
)

// What waits for a person is on the screen when it comes, is shown whole before it is
// approved, and the answer carries the digest of what was shown.
func TestWatchApproves(t *testing.T) {
	fake, sbctl := startFake(t)
	stands := fakeConsent("kstand", "coder", "desk", "read")
	stands.Covers = `calls where path is in "/data", and all else is as it was shown`
	fake.cards.mu.Lock()
	fake.cards.consents = append(fake.cards.consents, stands)
	fake.cards.mu.Unlock()
	p := terminaltest.Start(t, sbctl("watch"))
	p.Expect(`no operator's session`)
	p.Expect(`ANSWERS THAT STAND \(1\)`)
	p.Expect(`coder +desk/read +3 left +calls where path is in "/data"`)
	fake.cards.ask(fakeApproval("kmpx", "worker", "desk", "publish", `{"title":"hello"}`))
	p.Expect(`WAITING FOR YOU \(1\)`)
	p.Expect(`desk/publish`)
	p.Type("a")
	p.Expect(`arguments: \{"title":"hello"\}`)
	p.Expect(`approve desk/publish of worker once\? y/n`)
	p.Type("n")
	p.Expect(`nothing was changed`)
	p.Type("gy")
	p.Expect(`Operator's passphrase: `)
	p.Type("correct horse\r")
	p.Expect(`operator's session open`)
	p.Expect(`done`)

	// The session is the connection's: the next answer asks for nothing.
	p.Expect(`» RUNS`)
	fake.cards.ask(fakeApproval("knot", "worker", "desk", "publish"))
	p.Expect(`WAITING FOR YOU \(1\)`)
	p.Type("\t\tdy") // to the runs, and from them to the denials
	p.Expect(`select a denial`)
	p.Type("\t")
	p.Type("d")
	p.Expect(`refuse desk/publish of worker\? y/n`)
	p.Type("y")
	p.Expect(`done`)
	p.Type("q")
	if code := p.Wait(); code != 0 {
		t.Errorf("exit %d", code)
	}
	fake.cards.mu.Lock()
	defer fake.cards.mu.Unlock()
	if len(fake.cards.decided) != 2 {
		t.Fatalf("%d answers, want 2", len(fake.cards.decided))
	}
	yes, no := fake.cards.decided[0], fake.cards.decided[1]
	if yes.GetApprovalId() != "kmpx" || !yes.GetApprove() || yes.GetScope() != "until" || yes.GetUntil() == 0 || yes.GetArgsDigest() == "" {
		t.Errorf("the first answer is %v", yes)
	}
	if no.GetApprovalId() != "knot" || no.GetApprove() {
		t.Errorf("the second answer is %v", no)
	}
}
