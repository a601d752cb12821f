// Package frame carries protobuf messages over a stream of bytes that two
// processes share: a length of 4 bytes, big endian, and so many bytes of one
// message. There is no version and no resynchronising: whoever reads something
// else hangs up.
//
// It bounds what the other side can make a reader hold to one message of
// MaxMessage bytes. It protects neither against a stranger on the stream nor
// against one who reads along: the stream must be private.
package frame

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"

	"google.golang.org/protobuf/proto"
)

// MaxMessage is the longest message in bytes, without its length.
const MaxMessage = 1 << 20

const lengthSize = 4

// ErrTooLong says that a message is longer than MaxMessage. Who reads it hangs up,
// for what follows on the stream is not a frame any more.
var ErrTooLong = errors.New("a message is longer than 1 MiB")

// ReadMessage reads the next message into m, whatever was in it before. It returns
// io.EOF when the stream ends between two messages, io.ErrUnexpectedEOF when it
// ends within one, and ErrTooLong before it reads or keeps any of a message that
// is too long. The bytes that it read are wiped: what they held is in m alone.
func ReadMessage(r io.Reader, m proto.Message) error {
	var length [lengthSize]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return err
	}
	n := binary.BigEndian.Uint32(length[:])
	if n > MaxMessage {
		return ErrTooLong
	}
	raw := make([]byte, n)
	defer clear(raw)
	if _, err := io.ReadFull(r, raw); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return err
	}
	if err := proto.Unmarshal(raw, m); err != nil {
		return fmt.Errorf("a frame holds no message: %w", err)
	}
	return nil
}

// WriteMessage writes one message with one Write, and wipes what it wrote from.
// It returns ErrTooLong, and writes nothing, for one that is too long. Only one
// goroutine may write to w at a time: see Writer.
func WriteMessage(w io.Writer, m proto.Message) error {
	size := proto.Size(m)
	if size > MaxMessage {
		return ErrTooLong
	}
	// Room for what is appended, so that no copy is left behind by growing.
	raw := make([]byte, lengthSize, lengthSize+size)
	raw, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(raw, m)
	defer func() { clear(raw[:cap(raw)]) }()
	if err != nil {
		return err
	}
	binary.BigEndian.PutUint32(raw, uint32(len(raw)-lengthSize))
	_, err = w.Write(raw)
	return err
}

// Writer lets several goroutines write messages to one stream: whole frames, one
// at a time. After an error the stream may end within a frame, so that every
// later Write gives that error again.
type Writer struct {
	mu  sync.Mutex
	w   io.Writer
	err error
}

// NewWriter returns a Writer to w, to which nobody else may write.
func NewWriter(w io.Writer) *Writer { return &Writer{w: w} }

// Write writes one message, as WriteMessage does.
func (w *Writer) Write(m proto.Message) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return w.err
	}
	err := WriteMessage(w.w, m)
	if err != nil && !errors.Is(err, ErrTooLong) {
		w.err = err
	}
	return err
}
