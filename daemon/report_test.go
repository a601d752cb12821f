package daemon_test

import (
	"slices"
	"strings"
	"testing"

	"subjectbroker/daemon/daemontest"
	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
)

// What is reported of approvals is what holds now.
func TestReportOfApprovals(t *testing.T) {
	d := daemontest.Start(t)
	d.AddSubject("worker")
	run := d.Open("worker")
	reported := func() (covered, notProvided bool) {
		t.Helper()
		report, err := run.Report(t.Context(), &brokerv1.ReportRequest{RunId: run.ID})
		if err != nil {
			t.Fatal(err)
		}
		about := func(sentence string) bool { return strings.Contains(sentence, "person") }
		return slices.ContainsFunc(report.GetCovered(), about), slices.ContainsFunc(report.GetNotProvided(), about)
	}
	if covered, notProvided := reported(); covered || !notProvided {
		t.Errorf("while nobody can approve: covered %v, not provided %v", covered, notProvided)
	}
	d.Authenticate()
	if covered, notProvided := reported(); !covered || notProvided {
		t.Errorf("with a passphrase: covered %v, not provided %v", covered, notProvided)
	}
}
