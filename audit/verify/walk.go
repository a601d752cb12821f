package verify

import (
	"bufio"
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
)

// walk follows the chain through one segment.
type walk struct {
	*verifier
	segmentFile
	file   content
	newest bool
	void   *Voided // what the next segment says does not count

	offset   int64
	key      ed25519.PublicKey
	first    []byte            // first line
	firstSeq uint64            // its seq
	closed   ed25519.PublicKey // named by key.handover, after which nothing may come
	signed   signedLine        // the newest signed line, not checked yet
	mark     mark              // the state right after it
	before   mark              // the state right after the signed line before
}

// signedLine is a copy of a line that has a signature.
type signedLine struct {
	seq uint64
	raw []byte
}

// mark is where a walk can be taken up again.
type mark struct {
	offset int64
	seq    uint64
	prev   [sha256.Size]byte
	raw    []byte // the signed line that ends here
}

func (w *walk) run() error {
	end := w.length
	if w.void != nil {
		if w.void.Offset > w.length {
			return w.fault(w.seq, "the file ends before the part that the next segment declares void")
		}
		end = w.void.Offset
	}
	if err := w.lines(newLines(w.file, end), end); err != nil {
		return w.earliest(err)
	}
	if err := w.close(); err != nil {
		return w.earliest(err)
	}
	if w.void != nil {
		w.void.Bytes = w.length - end
		w.report.Voided = append(w.report.Voided, *w.void)
	}
	if w.beside != "" {
		if same, err := w.isStubOf(); err != nil {
			return err
		} else if !same {
			return &Fault{Seq: w.firstSeq, Segment: w.number, File: w.beside, Problem: "the segment is there twice, and this is not its first and last line"}
		}
		w.doubled = append(w.doubled, Pruned{w.number, w.firstSeq, w.signed.seq})
	}
	return nil
}

func (w *walk) lines(lines *lineReader, end int64) error {
	var l line
	for count := 0; w.offset < end; count++ {
		if count&1023 == 0 {
			if err := w.ctx.Err(); err != nil {
				return err
			}
			w.progress()
		}
		raw, err := lines.next()
		if errors.Is(err, errLine) {
			return w.fault(w.seq, err.Error())
		}
		if err != nil {
			return err
		}
		if err := w.step(&l, raw, lines); err != nil {
			return err
		}
		w.offset += int64(len(raw))
		w.done += int64(len(raw))
		w.extend(&l)
		if l.signed() {
			raw := append(w.before.raw[:0], l.raw...)
			w.before, w.mark = w.mark, mark{w.offset, w.seq, w.prev, raw}
		}
	}
	w.progress()
	return nil
}

func (v *verifier) progress() {
	if v.options.Progress != nil && (v.done-v.told >= 1<<20 || v.done == v.total) {
		v.told = v.done
		v.options.Progress(v.done, v.total)
	}
}

// step judges one line and moves on behind it.
func (w *walk) step(l *line, raw []byte, lines *lineReader) error {
	if err := l.scan(raw); err != nil {
		return w.fault(w.seq, err.Error())
	}
	switch {
	case l.seq != w.seq:
		return w.fault(w.seq, fmt.Sprintf("entry %d stands in its place", l.seq))
	case l.number(fSegment) != uint64(w.number):
		return w.fault(w.seq, "it belongs to segment "+l.text(fSegment))
	case w.report.VaultID != "" && l.text(fVault) != w.report.VaultID:
		return w.fault(w.seq, "it belongs to another vault")
	case l.prev != w.prev:
		return w.brokenChain(l, lines)
	}
	if w.key == nil {
		if err := w.opening(l); err != nil {
			return err
		}
	} else if err := w.later(l); err != nil {
		return err
	}
	return w.accept(l)
}

// opening judges the first line of a segment.
func (w *walk) opening(l *line) error {
	key := publicKey(l.field[fKeyID])
	switch {
	case !l.is("segment.opened") || key == nil || !l.signed():
		return w.fault(w.seq, "a segment begins with a signed segment.opened, and this is none")
	case !valid(key, l):
		return w.fault(w.seq, "its signature is not valid")
	case w.nextKey != nil && !key.Equal(w.nextKey):
		return w.fault(w.seq, "it is signed with a key that the segment before did not hand over to")
	}
	w.key = key
	w.first, w.firstSeq = bytes.Clone(l.raw), l.seq
	w.report.Signatures++
	if err := w.origin(l); err != nil {
		return err
	}
	if w.seq != 1 {
		return nil
	}
	w.report.VaultID = l.text(fVault)
	w.report.Genesis = sum(l.raw)
	head := w.options.Head
	switch {
	case w.options.Genesis != "" && w.report.Genesis != w.options.Genesis:
		return w.fault(1, "the log has another genesis than the given one: "+w.report.Genesis)
	case head != nil && (w.report.Genesis != head.Genesis || w.report.VaultID != head.VaultID):
		return w.fault(1, "this is not the log of the daemon: its genesis is "+w.report.Genesis)
	}
	return nil
}

// origin judges what the first line of a segment says of an older log. Only the
// very first may.
func (w *walk) origin(l *line) error {
	cause, count, hash := l.text(fCause), l.number(fCount), l.text(fContentSHA256)
	switch {
	case cause == "" && count == 0 && hash == "":
		return nil
	case w.seq != 1:
		return w.fault(w.seq, "it says where a log begins, and is not the first entry")
	case cause != "RESTORED" && cause != "SET_ASIDE", (count == 0) != (hash == ""):
		return w.fault(w.seq, "what it says of an older log is not whole")
	}
	w.report.Origin = &Origin{Cause: cause, Last: Point{count, hash}}
	w.report.Notes = append(w.report.Notes, "this log was "+w.report.Origin.String())
	return nil
}

// later judges any line but the first.
func (w *walk) later(l *line) error {
	switch {
	case l.is("segment.opened"):
		return w.fault(w.seq, "a segment.opened inside a segment")
	case w.closed != nil:
		return w.fault(w.seq, "an entry behind the segment's key.handover")
	case l.is("audit.pruned"):
		if l.void.segment >= w.number {
			return w.fault(w.seq, "an audit.pruned of a segment that is not older")
		}
		w.accounts = append(w.accounts, account{l.seq, l.void.segment, l.number(fCount)})
	case l.is("key.handover"):
		if w.closed = publicKey(l.field[fKeyID]); w.closed == nil || !l.signed() {
			return w.fault(w.seq, "a key.handover without a key or a signature")
		}
	}
	return nil
}

// accept moves on behind a good line, and holds it against what is expected.
func (w *walk) accept(l *line) error {
	if l.signed() {
		if w.pool != nil && w.signed.raw != nil {
			w.pool.check(w, l)
			w.report.Signatures++
		}
		w.signed.seq = l.seq
		w.signed.raw = append(w.signed.raw[:0], l.raw...)
	}
	w.prev = sha256.Sum256(l.raw)
	w.seq++
	w.report.Entries++
	if l.is("op.applied") {
		w.report.Applied = max(w.report.Applied, l.number(fGeneration))
	}
	if want := w.options.Expect; want != nil && want.Seq == l.seq {
		if hex.EncodeToString(w.prev[:]) != want.Hash {
			return w.fault(l.seq, "it is not the expected entry: history before it was written anew")
		}
		w.expected = true
	}
	if head := w.options.Head; head != nil && head.Seq == l.seq {
		if hex.EncodeToString(w.prev[:]) != head.Hash {
			return w.fault(l.seq, "it is not the daemon's entry: history before it was written anew")
		}
		w.reached = true
	}
	return nil
}

// close judges the end of a segment.
func (w *walk) close() error {
	if w.key == nil {
		return w.fault(w.seq, "the segment is empty")
	}
	if w.signed.seq != w.seq-1 {
		return w.fault(w.signed.seq+1, fmt.Sprintf("no signature vouches for the entries up to %d", w.seq-1))
	}
	if !w.validSigned() {
		return w.fault(w.signed.seq, "its signature is not valid")
	}
	if w.pool == nil {
		w.report.Signatures++
	}
	w.report.Last = Point{w.signed.seq, hex.EncodeToString(w.prev[:])}
	switch {
	case w.void != nil && w.closed != nil:
		return w.fault(w.seq, "the segment was handed over and declared void")
	case w.void != nil:
		w.nextKey = w.key // goes on signing: nothing could be handed over
	case w.closed != nil:
		w.nextKey = w.closed
		if w.newest && !w.reached && !w.part {
			w.report.Rotating = true
			return &Fault{Seq: w.seq, Segment: w.number + 1, Problem: "the segment is missing: the one before was handed over to it"}
		}
	case !w.newest:
		return w.fault(w.seq, "the segment ends without a key.handover")
	}
	return nil
}

func (w *walk) fault(seq uint64, problem string) *Fault {
	return &Fault{Seq: seq, Segment: w.number, File: w.name, Problem: problem}
}

func (w *walk) validSigned() bool {
	var l line
	return l.scan(w.signed.raw) == nil && valid(w.key, &l)
}

// publicKey reads the keyId of segment.opened and key.handover.
func publicKey(id []byte) ed25519.PublicKey {
	text, found := bytes.CutPrefix(id, []byte("ed25519:"))
	if !found {
		return nil
	}
	key, err := base64.StdEncoding.Strict().DecodeString(string(text))
	if err != nil || len(key) != ed25519.PublicKeySize {
		return nil
	}
	return key
}

// valid checks a line's signature.
func valid(key ed25519.PublicKey, l *line) bool {
	sig, err := base64.StdEncoding.Strict().DecodeString(l.text(fSig))
	return err == nil && len(sig) == ed25519.SignatureSize && ed25519.Verify(key, message(l), sig)
}

// message is what is signed: a count, then fields with their lengths, all
// numbers big-endian.
func message(l *line) []byte {
	body := sha256.Sum256(l.body)
	fields := [][]byte{
		[]byte("sb/audit/sig/v1"),
		l.field[fVault],
		binary.BigEndian.AppendUint32(nil, uint32(l.number(fSegment))),
		binary.BigEndian.AppendUint64(nil, l.seq),
		body[:],
	}
	m := binary.BigEndian.AppendUint32(nil, uint32(len(fields)))
	for _, f := range fields {
		m = binary.BigEndian.AppendUint32(m, uint32(len(f)))
		m = append(m, f...)
	}
	return m
}

func sum(raw []byte) string {
	hash := sha256.Sum256(raw)
	return hex.EncodeToString(hash[:])
}

// lineReader cuts a file into lines without copying them.
type lineReader struct{ r *bufio.Reader }

var errLine = errors.New("the line is not ended")

func newLines(file io.ReaderAt, end int64) *lineReader {
	// A line that does not fit is no entry; a small file needs no large buffer.
	size := max(maxLine/16, min(end, 64<<10))
	return &lineReader{bufio.NewReaderSize(io.NewSectionReader(file, 0, end), int(size))}
}

// next returns a line with its newline, good until the next call; errLine when
// there is none, or one that is longer than any entry.
func (l *lineReader) next() ([]byte, error) {
	raw, err := l.r.ReadSlice('\n')
	if errors.Is(err, io.EOF) || errors.Is(err, bufio.ErrBufferFull) {
		return nil, errLine
	}
	return raw, err
}
