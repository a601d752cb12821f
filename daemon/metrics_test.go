package daemon

import (
	"fmt"
	"testing"
	"time"

	"subjectbroker/grants/rules"
)

// A subject that makes up names is counted under none in the end, and others under
// theirs.
func TestCallsAreCountedOfSoManyTools(t *testing.T) {
	s := newCallStats(time.Now)
	for n := range maxCallKeys + 100 {
		k := callKey{"liar", "srv", fmt.Sprint(n)}
		s.count(k, callAllowed)
		s.done(k, rules.EndTransport, time.Millisecond)
	}
	s.count(callKey{"other", "srv", "ok"}, callAllowed)
	all := s.all()
	if len(all) != maxCallKeys+2 {
		t.Errorf("%d are counted, want %d", len(all), maxCallKeys+2)
	}
	if rest := s.by[callKey{subject: "liar"}]; rest == nil || rest.counts[callAllowed] != 100 || rest.counts[callFailed] != 100 || rest.took.n != 100 {
		t.Errorf("the rest: %+v", rest)
	}
	if one := s.by[callKey{"other", "srv", "ok"}]; one == nil || one.counts[callAllowed] != 1 {
		t.Errorf("the other: %+v", one)
	}
}
