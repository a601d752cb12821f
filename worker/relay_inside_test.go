package worker

import (
	"fmt"
	"strings"
	"testing"

	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	"subjectbroker/proto/wire"
)

// What has ended comes before the rest, none of it is lost, and no message says more of
// it than the daemon takes.
func TestJoined(t *testing.T) {
	ends := func(n int) (ends []*brokerv1.RelayRequest) {
		for i := range n {
			ends = append(ends, &brokerv1.RelayRequest{Message: &brokerv1.RelayRequest_Outcome{Outcome: &brokerv1.RelayOutcome{Id: uint64(i + 1)}}})
		}
		return ends
	}
	answered := &brokerv1.RelayRequest{Message: &brokerv1.RelayRequest_Outcome{Outcome: &brokerv1.RelayOutcome{Id: 1000, Answer: []byte("{}")}}}
	call := &brokerv1.RelayRequest{Message: &brokerv1.RelayRequest_Call{Call: &brokerv1.RelayCall{Id: 2000}}}
	for _, tc := range []struct {
		name        string
		apart       bool
		ended, rest []*brokerv1.RelayRequest
		want        string // the number of ends in each message, and what else it says
	}{
		{"nothing", false, nil, nil, ""},
		{"a call alone", false, nil, one(call), "0 call"},
		{"an end alone", false, ends(1), nil, "1"},
		{"an end and a call", false, ends(1), one(call), "1 call"},
		{"an end and a call of an older daemon", true, ends(1), one(call), "0 outcome, 0 call"},
		{"an answer", false, one(answered), nil, "0 outcome"},
		{"an answer and a call", false, one(answered), one(call), "0 outcome, 0 call"},
		{"an answer between ends, and a call", false, append(append(ends(1), answered), ends(1)...), one(call), "0 outcome, 2 call"},
		{"as many as fit", false, ends(wire.MaxEnded), one(call), "64 call"},
		{"more", false, ends(2*wire.MaxEnded + 1), one(call), "64, 64, 1, 0 call"},
		{"more, alone", false, ends(wire.MaxEnded + 1), nil, "64, 1"},
	} {
		call.Ended = nil
		r := &Relay{joins: !tc.apart}
		var got []string
		for _, m := range r.joined(tc.ended, tc.rest) {
			says := fmt.Sprint(len(m.GetEnded()))
			switch m.GetMessage().(type) {
			case *brokerv1.RelayRequest_Call:
				says += " call"
			case *brokerv1.RelayRequest_Outcome:
				says += " outcome"
			}
			got = append(got, says)
		}
		if all := strings.Join(got, ", "); all != tc.want {
			t.Errorf("%s: %s, want %s", tc.name, all, tc.want)
		}
	}
}
