//go:build linux

package faults

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

// The stages of a call for which a person is asked.
const (
	beforeCard = "before the card"
	onCard     = "waiting"
	approved   = "approved"
	forwarded  = "forwarded"
	answered   = "answered"
)

var stages = []string{beforeCard, onCard, approved, forwarded, answered}

// askAPerson are the rules under which each hit needs one.
const askAPerson = "approvalWait: 4m, rules: {security: {require_approval: [hit]}}"

// gatedCall is one call that a person is asked about, and what its own side has
// written down of it.
type gatedCall struct {
	w         *toolWorld
	id        string
	hold      bool // until release the server does not answer
	approvals int  // that the person gave
	got       int  // answers that the agent had
}

// args are those of every try: with others it would be another call.
func (g *gatedCall) args() string { return fmt.Sprintf(`{"id":%q,"hold":%t}`, g.id, g.hold) }

func (g *gatedCall) card() (card *operatorv1.Approval) {
	g.w.t.Helper()
	eventually(g.w.t, "a person is asked about "+g.id, func() bool { card = g.w.card(g.id); return card != nil })
	return card
}

// decide answers the card as a person does, and reports whether that was taken.
func (g *gatedCall) decide(card *operatorv1.Approval, approve bool) bool {
	_, err := g.w.Operator().DecideApproval(g.w.t.Context(), &operatorv1.DecideApprovalRequest{ApprovalId: card.GetApprovalId(), Approve: approve})
	return err == nil
}

// wrong is what must not be: a call that was made without a person's word, or more
// often than it was given, or an answer of a call that was not made.
func (g *gatedCall) wrong() string {
	switch done := g.w.done(g.id); {
	case done > g.approvals:
		return fmt.Sprintf("made %d times, approved %d times", done, g.approvals)
	case g.got > 0 && done == 0:
		return "answered, and never made"
	}
	return ""
}

// release lets the server answer.
func (g *gatedCall) release() { write(g.w.t, g.w.file+"."+g.id+".go", "") }

// reach makes the call and returns when it is at a stage.
func (g *gatedCall) reach(c *caller, stage string) (answer <-chan string) {
	g.w.t.Helper()
	answer = c.tool("hit", g.args())
	if stage == beforeCard {
		time.Sleep(rand.N(3 * time.Millisecond))
		return answer
	}
	card := g.card()
	if stage == onCard {
		return answer
	}
	if !g.decide(card, true) {
		g.w.t.Fatalf("approving %s is refused", g.id)
	}
	g.approvals++
	switch stage {
	case approved:
		time.Sleep(rand.N(3 * time.Millisecond))
	case forwarded:
		eventually(g.w.t, g.id+" is made", func() bool { return g.w.done(g.id) > 0 })
	case answered:
		again := make(chan string, 1)
		text := c.wait(answer)
		again <- text
		if !strings.Contains(text, "did hit "+g.id) {
			g.w.t.Errorf("approved, %s was answered %s", g.id, text)
		}
		answer = again
	}
	return answer
}

// settle tries the call again, with nobody who approves it, until it has an answer;
// so has the first try, if its shim lives.
func (g *gatedCall) settle(c *caller, first <-chan string) {
	g.w.t.Helper()
	retry := c.tool("hit", g.args())
	for _, answer := range []<-chan string{retry, first} {
		var text string
		eventually(g.w.t, g.id+" is answered", func() bool {
			select {
			case text = <-answer:
				return true
			default:
			}
			if card := g.w.card(g.id); card != nil {
				g.decide(card, false)
			}
			return false
		})
		if strings.Contains(text, "did hit") {
			g.got++
		}
	}
}

// kill -9 of each process on a gated call's way, at each of its stages: the call is
// made at most as often as a person approved it, which is once, and never before.
func TestKilledAtEachStageOfAGatedCall(t *testing.T) {
	for server, victims := range map[string][]string{
		"hosted":  {"shim", "host", "server", "daemon"},
		"wrapped": {"shim", "server", "daemon"},
	} {
		t.Run(server, func(t *testing.T) {
			t.Parallel()
			w := newToolWorld(t, keepScore(t, "killed at each stage of a gated call, "+server))
			var subjects []string
			for _, victim := range victims {
				for i := range stages {
					subjects = append(subjects, fmt.Sprintf("%s%d", victim, i))
				}
			}
			w.admit(askAPerson, subjects...)
			made, all := 0, map[string]*gatedCall{}
			for _, victim := range victims {
				for i, stage := range stages {
					subject := fmt.Sprintf("%s%d", victim, i)
					g := &gatedCall{w: w, id: subject, hold: stage == forwarded}
					all[subject] = g
					c := w.call(subject, server)
					c.warm()
					answer := g.reach(c, stage)
					c = w.strike(victim, subject, server, c)
					g.release()
					c.warm() // or the retry would find no server
					g.settle(c, answer)
					c.close()
					if problem := g.wrong(); problem != "" {
						w.lost(t, "%s killed, %s: %s", victim, stage, problem)
					}
					t.Logf("%s killed, %s: made %d times, approved %d times, answered %d times", victim, stage, w.done(g.id), g.approvals, g.got)
					made += w.done(g.id)
					w.add(answers, g.got)
				}
			}
			w.judge(all)
			if made == 0 {
				t.Error("nothing was made")
			}
		})
	}
}

// strike kills one of the processes of a call, brings back what does not come back
// by itself, and returns the agent that goes on.
func (w *toolWorld) strike(victim, subject, server string, c *caller) *caller {
	w.t.Helper()
	switch victim {
	case "daemon":
		w.crash(false)
		w.Authenticate()
		return c
	case "shim":
		c.kill()
	case "host":
		must(w.t, syscall.Kill(w.host(subject), syscall.SIGKILL))
	case "server":
		must(w.t, syscall.Kill(w.server(subject, server, c), syscall.SIGKILL))
	}
	w.add(kills, 1)
	if server == "wrapped" && victim == "server" { // its shim ends with it
		<-c.ended
	}
	select {
	case <-c.ended:
		return w.call(subject, server)
	default:
		return c
	}
}

// server is the process of the server itself.
func (w *toolWorld) server(subject, server string, c *caller) int {
	w.t.Helper()
	above := c.cmd.Process.Pid
	if server == "hosted" {
		above = w.host(subject)
	}
	ours := family(w.t, above)
	ours = slices.DeleteFunc(ours, func(pid int) bool { return !slices.Contains(w.servers(), pid) })
	if len(ours) != 1 {
		w.t.Fatalf("processes of the server: %v", ours)
	}
	return ours[0]
}

// judge compares the log with what was written down: each call that was made has
// an entry of its own with the request that a person approved.
func (w *toolWorld) judge(all map[string]*gatedCall) {
	w.t.Helper()
	allowed, requests := map[string]int{}, map[string]bool{}
	for _, e := range w.Entries("call", "approval.approve") {
		switch {
		case e.Kind == "approval.approve" && e.Decision == "allow":
			requests[e.ApprovalID] = true
		case e.Kind == "call" && e.Tool == "hit" && e.Decision == "allow":
			if !requests[e.ApprovalID] {
				w.lost(w.t, "entry %d lets a call pass that nobody approved: %+v", e.Seq, e)
			}
			delete(requests, e.ApprovalID) // once
			allowed[e.SubjectID]++
		}
	}
	for subject, g := range all {
		if done := w.done(g.id); done > allowed[subject] {
			w.lost(w.t, "%s was made %d times, and the log has %d", g.id, done, allowed[subject])
		}
	}
}

// The control: without the rule a call is made without a person, and again when it
// is tried again after a kill, and both are noticed.
func TestKilledWithoutAGate(t *testing.T) {
	t.Parallel()
	w := newToolWorld(t, keepScore(t, "control: an ungated call is made again after a kill"))
	w.admit("", "server0")
	g := &gatedCall{w: w, id: "server0", hold: true}
	c := w.call("server0", "hosted")
	c.warm()
	answer := c.tool("hit", g.args())
	eventually(t, "it is made", func() bool { return w.done(g.id) > 0 })
	if g.wrong() == "" {
		t.Error("a call without a person is not noticed")
	}
	g.approvals = 1
	c = w.strike("server", "server0", "hosted", c)
	g.release()
	g.settle(c, answer)
	c.warm()
	g.settle(c, c.tool("hit", g.args()))
	if g.wrong() == "" {
		t.Errorf("it was made %d times, and that is not noticed", w.done(g.id))
	}
}
