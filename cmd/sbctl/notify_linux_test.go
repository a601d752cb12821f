package main

import (
	"os"
	"strings"
	"testing"
	"time"
)

// The command tells what is pending and what comes, also from the daemon that comes
// after this one.
func TestNotify(t *testing.T) {
	fake, sbctl := startFake(t)
	r := newReceiver(t)
	secret := hookFile(t, hookSecret, 0o600)
	fake.cards.ask(fakeApproval("first", "worker", "desk", "publish"))
	once := sbctl("notify", "--webhook", r.URL, "--secret-file", secret, "--once", "-o", "json")
	out, err := once.Output()
	if err != nil || string(out) != `{"approvalId":"first","by":"webhook 127.0.0.1","status":"told"}`+"\n" {
		t.Errorf("%v: %s", err, out)
	}
	<-r.came

	follows := sbctl("notify", "--webhook", r.URL, "--secret-file", secret)
	if err := follows.Start(); err != nil {
		t.Fatal(err)
	}
	waits := func(id string) {
		t.Helper()
		select {
		case <-r.came:
		case <-time.After(hookPatience):
			t.Fatalf("%s was not told", id)
		}
		got := r.all()
		if last := got[len(got)-1]; last.header.Get("SB-Delivery") != id {
			t.Errorf("told of %q, want %q", last.header.Get("SB-Delivery"), id)
		}
	}
	waits("first")
	fake.cards.ask(fakeApproval("second", "worker", "desk", "publish"))
	waits("second")
	fake.stop()
	after, _ := fakeAt(t, fake.home)
	after.cards.ask(fakeApproval("third", "worker", "desk", "publish"))
	waits("third")
	if err := follows.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := follows.Wait(); err != nil {
		t.Errorf("interrupted: %v", err)
	}
	if got := len(r.all()); got != 4 {
		t.Errorf("%d posts, want 4", got)
	}
	for _, one := range r.all() {
		if !genuine(one, hookSecret) {
			t.Error("a post is not signed")
		}
	}
	// What cannot be told is a failure.
	refused := newReceiver(t, 404, 404, 404)
	deaf := sbctl("notify", "--webhook", refused.URL, "--format", "slack", "--once")
	if out, err := deaf.CombinedOutput(); err == nil || !strings.Contains(string(out), "could not be delivered") {
		t.Errorf("%v: %s", err, out)
	}
	if out, err := sbctl("notify").CombinedOutput(); err == nil || !strings.Contains(string(out), "say how") {
		t.Errorf("%v: %s", err, out)
	}
}

// hookPatience is how long a post may take to come.
const hookPatience = 30 * time.Second
