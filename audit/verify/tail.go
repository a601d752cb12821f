package verify

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"time"
)

// unfinished decides about a fault in the newest segment. Behind the last valid
// signature may stand what a daemon is writing just now, or what one that was
// killed left of one commit.
func (w *walk) unfinished(fault *Fault) error {
	switch {
	case w.reached:
		return w.inFlight(fault)
	case w.options.Head != nil:
		w.report.Rotating = false
		return fault
	}
	if want := w.options.Expect; want != nil && !w.expected && want.Seq >= w.verifier.seq {
		w.report.Rotating = false // it once went on: something was cut off
	}
	end, seq, err := w.answered(fault)
	if err != nil {
		return err
	}
	if end == w.length || end == 0 {
		return fault
	}
	if want := w.options.Expect; want != nil && want.Seq >= seq {
		return fault
	}
	w.report.Torn, w.report.Rotating = w.length-end, false
	return fault
}

// answered returns where the part ends that the daemon goes on from when it
// starts, and the seq that comes next; 0 when it would not start. It starts when
// the chain is whole up to a valid signature, the last or the last but one, and
// behind that there is the end of at most one commit.
func (w *walk) answered(fault *Fault) (end int64, seq uint64, err error) {
	at := w.mark
	for _, m := range []mark{w.mark, w.before} {
		var l line
		if at = m; at.raw != nil && l.scan(at.raw) == nil && valid(w.key, &l) {
			break
		}
		at = mark{}
	}
	if at.raw == nil || fault.Seq < at.seq {
		return 0, 0, nil
	}
	later, err := w.countCommits(at.offset)
	if err != nil || later > 1 {
		return 0, 0, err
	}
	w.report.Last = Point{at.seq - 1, hex.EncodeToString(at.prev[:])}
	w.report.Entries -= w.verifier.seq - at.seq
	return at.offset, at.seq, nil
}

// countCommits counts, up to two, the ends of commits from offset on: what looks
// like the beginning or the end of a signature, which nothing else in a line does.
func (w *walk) countCommits(offset int64) (int, error) {
	lines := bufio.NewReaderSize(io.NewSectionReader(w.file, offset, w.length-offset), maxLine)
	begun, ended := 0, 0
	for max(begun, ended) < 2 {
		raw, err := lines.ReadSlice('\n')
		begun += bytes.Count(raw, []byte(`"sig":"`))
		ended += bytes.Count(raw, []byte(`=="}`))
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return 0, err
		}
	}
	return max(begun, ended), nil
}

// inFlight decides about a fault behind the daemon's head: the daemon may be
// writing there just now. Then a signature appears within moments; if none does,
// it was not the daemon.
func (w *walk) inFlight(fault *Fault) error {
	const patience, pause = 3 * time.Second, 20 * time.Millisecond
	if w.mark.seq == 0 || fault.Seq < w.mark.seq {
		return fault
	}
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		size, err := w.file.size()
		if err != nil {
			return err
		}
		if size == w.mark.offset || w.grows(size) {
			w.report.Last = Point{w.mark.seq - 1, hex.EncodeToString(w.mark.prev[:])}
			w.report.Entries -= w.verifier.seq - w.mark.seq
			w.report.InFlight = max(0, size-w.mark.offset)
			w.verifier.seq, w.verifier.prev = w.mark.seq, w.mark.prev
			return nil
		}
		select {
		case <-w.ctx.Done():
			return w.ctx.Err()
		case <-time.After(pause):
		}
	}
	return fault
}

// grows reports whether good entries follow up to a valid signature.
func (w *walk) grows(size int64) bool {
	lines := newLines(io.NewSectionReader(w.file, w.mark.offset, size-w.mark.offset), size-w.mark.offset)
	seq, prev := w.mark.seq, w.mark.prev
	var l line
	for {
		raw, err := lines.next()
		if err != nil || l.scan(raw) != nil || l.seq != seq || l.prev != prev {
			return false
		}
		if l.signed() {
			return valid(w.key, &l)
		}
		seq, prev = seq+1, sha256.Sum256(raw)
	}
}
