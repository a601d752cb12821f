package audit

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/hex"
)

// batch is the entries of one commit. Lines are encoded as they are appended,
// with room for prev; the chain and the signature are filled in by seal, off
// the appenders' mutex, because prev depends on the signature of the batch
// before.
type batch struct {
	segment  uint32
	first    uint64 // seq of its first entry
	buf      []byte
	ends     []int // where each line ends in buf
	operator bool  // may use the reserve
	due      bool  // the committer is told to take it; guarded by Log.mu until it is taken

	hashes []Hash // of the lines; filled in by seal
	sig    string // signature of the last line; filled in by seal

	done chan struct{} // closed when the batch is durable or has failed
	err  error         // valid once done is closed

	settled bool    // guarded by Log.mu: done is closed or about to be
	late    []Entry // guarded by Log.mu: release.withheld entries owed if this batch becomes durable
}

// newBatch returns an empty batch. size is that of the one before, in bytes: another
// as large will not have to grow.
func newBatch(size int) *batch {
	b := &batch{done: make(chan struct{})}
	if size > blockSize {
		b.buf = make([]byte, 0, min(size+size/4, maxGrouped))
	}
	return b
}

// add encodes e, which becomes the newest entry of the batch.
func (b *batch) add(e *Entry) {
	if len(b.ends) == 0 {
		b.segment, b.first = e.Segment, e.Seq
	}
	b.buf = appendHead(b.buf, e)
	b.buf = append(b.buf, prevKey...)
	b.buf = append(b.buf, zeroPrev...)
	b.buf = append(b.buf, lineEnd...)
	b.ends = append(b.ends, len(b.buf))
}

const zeroPrev = "0000000000000000000000000000000000000000000000000000000000000000"

// seal chains the lines to prev and signs the last one.
func (b *batch) seal(prev Hash, vault string, key ed25519.PrivateKey) {
	b.hashes = make([]Hash, len(b.ends))
	start := 0
	for i, end := range b.ends {
		hex.Encode(b.buf[end-len(lineEnd)-prevDigit:], prev[:])
		if i == len(b.ends)-1 {
			b.sign(vault, key)
			end = len(b.buf)
		}
		prev = hashLine(b.buf[start:end])
		b.hashes[i] = prev
		start = end
	}
}

func (b *batch) sign(vault string, key ed25519.PrivateKey) {
	last := len(b.ends) - 1
	start := 0
	if last > 0 {
		start = b.ends[last-1]
	}
	bodyEnd := len(b.buf) - len(lineEnd) + 1 // keep the quote that closes prev
	message := signedMessage(vault, b.segment, b.first+uint64(last), b.buf[start:bodyEnd])
	b.sig = base64.StdEncoding.EncodeToString(ed25519.Sign(key, message))
	b.buf = append(b.buf[:bodyEnd], sigKey...)
	b.buf = append(b.buf, b.sig...)
	b.buf = append(b.buf, lineEnd...)
	b.ends[last] = len(b.buf)
}

// last is the position of the newest entry; valid after seal.
func (b *batch) last() Position { return b.at(len(b.ends) - 1) }

func (b *batch) at(index int) Position {
	return Position{Segment: b.segment, Seq: b.first + uint64(index), Hash: b.hashes[index]}
}

func (b *batch) empty() bool { return len(b.ends) == 0 }
