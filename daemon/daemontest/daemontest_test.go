package daemontest_test

import (
	"testing"

	"subjectbroker/daemon/daemontest"
	"subjectbroker/proto/wire"
)

func TestKit(t *testing.T) {
	d := daemontest.Start(t)
	d.Put("readme", "hello")
	d.AddSubject("worker")
	run := d.Open("worker")
	if reason := run.Refused("readme"); reason != wire.AccessDenied {
		t.Errorf("before the grant: %s", reason)
	}
	d.Grant("worker", "read:readme")
	if content, reason := run.Read("readme"); content != "hello" {
		t.Errorf("after the grant: %q, %s", content, reason)
	}
	d.Restart()
	if content, reason := d.Open("worker").Read("readme"); content != "hello" {
		t.Errorf("after a restart: %q, %s", content, reason)
	}
	newest := d.Seq()
	if got := d.Settle(); got != newest+1 {
		t.Errorf("settled at %d, %d was the newest", got, newest)
	}
	if n := len(d.Entries("acquire")); n != 3 {
		t.Errorf("%d entries of kind acquire, want 3", n)
	}
}
