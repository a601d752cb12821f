package daemon_test

import (
	"errors"
	"io"
	"testing"
	"time"

	"subjectbroker/audit/verify"
	"subjectbroker/daemon/daemontest"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// lines reads what ReadAudit streams, to its end.
func lines(t *testing.T, d *daemontest.Daemon, request *operatorv1.ReadAuditRequest) []verify.Entry {
	t.Helper()
	stream, err := d.Operator().ReadAudit(t.Context(), request)
	must(t, err)
	var entries []verify.Entry
	for {
		batch, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return entries
		}
		must(t, err)
		for _, line := range batch.GetLines() {
			e, err := verify.ParseLine(line)
			must(t, err)
			entries = append(entries, e)
		}
	}
}

// The operator reads the log, byte for byte, and picks what matters.
func TestReadAudit(t *testing.T) {
	clock := newClock()
	d := daemontest.StartWith(t, daemontest.Options{Now: clock.Now})
	d.Put("readme", "hello")
	d.AddSubject("one", "two")
	d.Grant("one", "read:readme")
	one, two := d.Open("one"), d.Open("two")
	one.Refused("readme")
	middle := clock.Now().Add(30 * time.Second)
	clock.step(time.Minute)
	two.Refused("readme")
	two.Refused("readme")

	all := lines(t, d, &operatorv1.ReadAuditRequest{})
	for i, e := range all {
		equal(t, "seq of a line", e.Seq, uint64(i+1))
	}
	for name, tc := range map[string]struct {
		request *operatorv1.ReadAuditRequest
		match   func(verify.Entry) bool
	}{
		"of a subject":    {&operatorv1.ReadAuditRequest{Subject: "one"}, func(e verify.Entry) bool { return e.SubjectID == "one" }},
		"of a resource":   {&operatorv1.ReadAuditRequest{Resource: "readme"}, func(e verify.Entry) bool { return e.ResourceID == "readme" }},
		"denials":         {&operatorv1.ReadAuditRequest{Decision: "deny"}, func(e verify.Entry) bool { return e.Decision == "deny" }},
		"of a kind":       {&operatorv1.ReadAuditRequest{Kind: "acquire"}, func(e verify.Entry) bool { return e.Kind == "acquire" }},
		"of a family":     {&operatorv1.ReadAuditRequest{Kind: "run.*"}, func(e verify.Entry) bool { return len(e.Kind) > 4 && e.Kind[:4] == "run." }},
		"since":           {&operatorv1.ReadAuditRequest{Since: middle.UnixMilli(), Until: clock.Now().Add(time.Hour).UnixMilli()}, func(e verify.Entry) bool { return !e.Timestamp.Before(middle) }},
		"until":           {&operatorv1.ReadAuditRequest{Until: middle.UnixMilli()}, func(e verify.Entry) bool { return e.Timestamp.Before(middle) }},
		"from":            {&operatorv1.ReadAuditRequest{FromSeq: 5}, func(e verify.Entry) bool { return e.Seq >= 5 }},
		"all of it":       {&operatorv1.ReadAuditRequest{Subject: "two", Kind: "acquire", Decision: "deny", Resource: "readme"}, func(e verify.Entry) bool { return e.Kind == "acquire" && e.SubjectID == "two" }},
		"nothing":         {&operatorv1.ReadAuditRequest{Subject: "nobody"}, func(verify.Entry) bool { return false }},
		"a hostile value": {&operatorv1.ReadAuditRequest{Subject: `one","kind":"acquire`}, func(verify.Entry) bool { return false }},
	} {
		got := lines(t, d, tc.request)
		want := 0
		now := d.Entries()
		for _, e := range now {
			if tc.match(e) {
				want++
			}
		}
		for _, e := range got {
			if !tc.match(e) {
				t.Errorf("%s: %+v", name, e)
			}
		}
		// The entries of reading itself may come after what was read.
		if len(got) < want-1 || len(got) > want {
			t.Errorf("%s: %d lines, want %d", name, len(got), want)
		}
	}
	newest := lines(t, d, &operatorv1.ReadAuditRequest{Last: 2, Kind: "acquire"})
	equal(t, "the last two", len(newest), 2)
	equal(t, "the last two are the newest", newest[1].Seq, last(d, "acquire").Seq)
}

// Following goes on where the beginning ended, with no gap and nothing twice.
func TestFollow(t *testing.T) {
	d := daemontest.Start(t)
	stream, err := d.Operator().ReadAudit(t.Context(), &operatorv1.ReadAuditRequest{Follow: true})
	must(t, err)
	go func() {
		for range 30 {
			_, _ = d.Operator().AuditHead(t.Context(), &operatorv1.AuditHeadRequest{})
		}
	}()
	for next := uint64(1); next < 30; {
		batch, err := stream.Recv()
		must(t, err)
		for _, line := range batch.GetLines() {
			e, err := verify.ParseLine(line)
			must(t, err)
			equal(t, "the next line", e.Seq, next)
			next++
		}
	}
	d.Stop()
	for err == nil {
		_, err = stream.Recv()
	}
	if !errors.Is(err, io.EOF) && daemontest.Reason(err) != wire.BrokerUnavailable {
		t.Errorf("it ended with %v", err)
	}
}

// The head that the operator keeps elsewhere is that of the log.
func TestHead(t *testing.T) {
	d := daemontest.Start(t)
	d.Put("readme", "hello")
	before := d.Seq()
	head, err := d.Operator().AuditHead(t.Context(), &operatorv1.AuditHeadRequest{})
	must(t, err)
	equal(t, "seq", head.GetSeq() >= before, true)
	status := d.Status()
	equal(t, "genesis", head.GetGenesis(), status.GetAuditGenesis())
	equal(t, "vault", head.GetVaultId(), status.GetVaultId())
	d.Stop()
	report, err := verify.Dir(t.Context(), head.GetDir(), verify.Options{
		Genesis: head.GetGenesis(), Expect: &verify.Point{Seq: head.GetSeq(), Hash: head.GetHash()},
	})
	must(t, err)
	equal(t, "exit code", report.ExitCode(), 0)
}
