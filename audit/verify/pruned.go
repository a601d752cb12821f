package verify

import "fmt"

// account is what an audit.pruned says. The oldest segments go first and none is
// left out, so that it accounts for all before its own as well; theirs may be
// gone with the segments that they stood in.
type account struct {
	seq     uint64 // of the entry
	segment uint32
	gone    uint64 // how many entries were removed from segment
}

// accountOf finds the audit.pruned that tells of p, its own if there is one.
func (v *verifier) accountOf(p Pruned) (found account, ok bool) {
	for _, a := range v.accounts {
		if a.segment == p.Segment && a.seq > p.Last {
			return a, true
		}
		if a.segment > p.Segment {
			found, ok = a, true
		}
	}
	return found, ok
}

// settlePruned holds what is gone against what the log says about it. What is
// gone is always told; what nothing accounts for is a fault.
func (v *verifier) settlePruned() error {
	v.report.Notes = append(v.report.Notes, tellPruned(v.report.Pruned)...)
	for _, p := range v.report.Pruned {
		if v.extents.excuses(p) {
			continue
		}
		a, ok := v.accountOf(p)
		switch {
		case !ok:
			v.unaccounted = true
			return &Fault{Seq: p.First + 1, Segment: p.Segment, File: fmt.Sprintf("%08d.pruned", p.Segment),
				Problem: fmt.Sprintf("%s gone, and no audit.pruned accounts for that", p.gone())}
		case a.segment == p.Segment && a.gone != p.count():
			return &Fault{Seq: p.First + 1, Segment: p.Segment, File: fmt.Sprintf("%08d.pruned", p.Segment),
				Problem: fmt.Sprintf("%s gone, and the audit.pruned of entry %d accounts for %d", p.gone(), a.seq, a.gone)}
		}
	}
	for _, p := range v.doubled {
		if _, ok := v.accountOf(p); !ok {
			v.unaccounted = true
			return &Fault{Seq: p.First, Segment: p.Segment, Problem: "the segment is there twice, and no audit.pruned says why"}
		}
		v.report.Notes = append(v.report.Notes, fmt.Sprintf("pruning segment %d is not finished: the next start goes on with it", p.Segment))
	}
	return nil
}

// tellPruned says in words what is gone, neighbours in one line.
func tellPruned(list []Pruned) (lines []string) {
	for i := 0; i < len(list); i++ {
		from := list[i]
		gone := from.count()
		for i+1 < len(list) && list[i+1].Segment == list[i].Segment+1 {
			i++
			gone += list[i].count()
		}
		if to := list[i]; to.Segment > from.Segment {
			lines = append(lines, fmt.Sprintf("segments %d to %d were pruned: of entries %d to %d only the ends of each segment are left, and %d are gone",
				from.Segment, to.Segment, from.First, to.Last, gone))
		} else {
			lines = append(lines, fmt.Sprintf("segment %d was pruned: %s gone", from.Segment, from.gone()))
		}
	}
	return lines
}

// count is how many entries are gone.
func (p Pruned) count() uint64 {
	if p.Last <= p.First {
		return 0
	}
	return p.Last - p.First - 1
}

// gone says which.
func (p Pruned) gone() string {
	switch p.count() {
	case 0:
		return "no entries are"
	case 1:
		return fmt.Sprintf("entry %d is", p.First+1)
	}
	return fmt.Sprintf("entries %d to %d are", p.First+1, p.Last-1)
}
