package daemon

import (
	"testing"
	"time"

	"subjectbroker/daemon/peer"
)

// P64: a process that starts others has no more denials than all may have, and
// the entries that account for the rest are few; what is allowed goes on.
func TestBudgetIsShared(t *testing.T) {
	const processes, each = 1000, 15
	var b budgets
	now := time.Now()
	recorded := 0
	for pid := range int32(processes) {
		key := peer.ProcessKey{PID: pid + 1}
		for range each {
			if !b.admit(key, "", now) {
				t.Fatal("a process within its budget was refused unheard")
			}
			if b.spend(key, "", now) {
				recorded++
			}
		}
		if !b.admit(key, "", now) {
			t.Error("it was refused unheard because of others")
		}
	}
	if recorded != sharedBurst {
		t.Errorf("%d denials were recorded", recorded)
	}
	var counted uint64
	all := b.collect(now)
	for _, one := range all {
		counted += one.count
	}
	if want := uint64(processes*each - recorded - 0); counted != want || len(all) > suppressedAtOnce+1 {
		t.Errorf("%d entries count %d of %d", len(all), counted, want)
	}
	if all[len(all)-1].peer != nil || all[0].peer == nil {
		t.Error("the last entry is for the rest, the others name one process each")
	}
	if b.spend(peer.ProcessKey{PID: 5000}, "", now.Add(time.Second)) == false {
		t.Error("a second later there is no room")
	}
}
