// Package textedit holds changes to a text as byte ranges, applies them, and
// shows them as a unified diff. A diff ends up on a terminal that an agent may
// be reading, so what stood in the file before is shown through a mask.
//
// It knows no file format and touches no files.
package textedit

import "slices"

// Edit replaces source[At:At+Delete] with Insert.
type Edit struct {
	At, Delete int
	Insert     string
}

// IsZero reports whether the edit changes nothing.
func (e Edit) IsZero() bool { return e.Delete == 0 && e.Insert == "" }

// Apply returns a copy of src with the edits made. Their offsets are those of
// src; they must not overlap, and may come in any order.
func Apply(src []byte, edits ...Edit) []byte {
	var out []byte
	at := 0
	for _, e := range inOrder(edits) {
		out = append(out, src[at:e.At]...)
		out = append(out, e.Insert...)
		at = e.At + e.Delete
	}
	return append(out, src[at:]...)
}

// Trim drops what an edit leaves as it is at its two ends.
func Trim(src []byte, e Edit) Edit {
	old := src[e.At : e.At+e.Delete]
	head := 0
	for head < len(old) && head < len(e.Insert) && old[head] == e.Insert[head] {
		head++
	}
	tail := 0
	for tail < len(old)-head && tail < len(e.Insert)-head && old[len(old)-1-tail] == e.Insert[len(e.Insert)-1-tail] {
		tail++
	}
	return Edit{At: e.At + head, Delete: e.Delete - head - tail, Insert: e.Insert[head : len(e.Insert)-tail]}
}

func inOrder(edits []Edit) []Edit {
	sorted := slices.Clone(edits)
	slices.SortStableFunc(sorted, func(a, b Edit) int { return a.At - b.At })
	return sorted
}
