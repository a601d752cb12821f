package daemon_test

import (
	"strings"
	"testing"

	"subjectbroker/daemon/daemontest"
	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
)

// A tool whose exposed name is one of the shim's own is reported as withheld, and not
// left out without a word.
func TestNamesOfTheShimsOwnTools(t *testing.T) {
	d := daemontest.Start(t)
	d.AddSubject("worker")
	d.Grant("worker", "call:list/*")
	r := relayOf(t, d.Open("worker"), "list")
	try(t, r.send(&brokerv1.RelayRequest{Message: &brokerv1.RelayRequest_Listed{Listed: &brokerv1.RelayListed{Tools: []*brokerv1.ServerTool{
		{Name: "files", Object: []byte(`{"name":"files"}`)}, {Name: "resources", Object: []byte(`{"name":"resources"}`)},
	}}}}))
	want := "files new, resources withheld"
	eventually(t, want, func() bool { return strings.Join(seen(t, d, "list"), ", ") == want })
}
