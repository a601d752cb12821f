package rules

import (
	"bytes"
	"testing"
	"time"
)

// What is given back leaves a meter as it was, also when the window of the rate was
// full, in whatever order several calls are given back.
func TestUndoRestoresTheWindow(t *testing.T) {
	c := compile(t, Rules{Limits: Limits{Rate: &Rate{3, time.Hour}}})
	now := time.UnixMilli(1_700_000_000_000)
	call := func(i int) Call { return Call{Tool: "t", Now: now.Add(time.Duration(i) * time.Second)} }
	for name, order := range map[string][]int{"the last first": {1, 0}, "the first first": {0, 1}} {
		t.Run(name, func(t *testing.T) {
			var m Meter
			for i := range 3 {
				c.Take(&m, call(i))
			}
			before := m.Append(nil)
			costs := []Cost{c.Take(&m, call(3)), c.Take(&m, call(4))}
			if bytes.Equal(m.Append(nil), before) {
				t.Fatal("nothing was taken")
			}
			for _, i := range order {
				c.Undo(&m, costs[i])
			}
			if !bytes.Equal(m.Append(nil), before) {
				t.Error("it is another meter")
			}
		})
	}
}
