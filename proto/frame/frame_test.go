package frame_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"subjectbroker/proto/frame"
	hostv1 "subjectbroker/proto/subjectbroker/host/v1"
)

func call(id uint64, args []byte) *hostv1.HostRequest {
	return &hostv1.HostRequest{Message: &hostv1.HostRequest_Call{Call: &hostv1.Call{Id: id, Tool: "echo", Arguments: args}}}
}

// What is written is read again, also when it arrives byte by byte.
func TestThereAndBack(t *testing.T) {
	want := []*hostv1.HostRequest{
		call(1, []byte(`{"a":1}`)),
		{},
		{Message: &hostv1.HostRequest_Stop{Stop: &hostv1.Stop{GraceMs: 10}}},
		call(2, bytes.Repeat([]byte{0xff}, 256<<10)),
	}
	var stream bytes.Buffer
	for _, m := range want {
		if err := frame.WriteMessage(&stream, m); err != nil {
			t.Fatal(err)
		}
	}
	r := iotest.OneByteReader(&stream)
	for i, m := range want {
		got := call(99, []byte("left over"))
		if err := frame.ReadMessage(r, got); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(m, got, protocmp.Transform()); d != "" {
			t.Errorf("message %d (-want +got):\n%s", i, d)
		}
	}
	if err := frame.ReadMessage(r, &hostv1.HostRequest{}); !errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("at the end: %v, want %v", err, io.EOF)
	}
}

func TestRefused(t *testing.T) {
	length := func(n uint32, rest string) string {
		return string(binary.BigEndian.AppendUint32(nil, n)) + rest
	}
	for _, c := range []struct {
		name, stream string
		want         error
	}{
		{"nothing", "", io.EOF},
		{"half a length", "\x00\x00", io.ErrUnexpectedEOF},
		{"a length alone", length(1, ""), io.ErrUnexpectedEOF},
		{"half a message", length(3, "\x0a\x01"), io.ErrUnexpectedEOF},
		{"one byte too long", length(frame.MaxMessage+1, strings.Repeat("x", frame.MaxMessage+1)), frame.ErrTooLong},
		{"the longest length", length(1<<32-1, ""), frame.ErrTooLong},
	} {
		if err := frame.ReadMessage(strings.NewReader(c.stream), &hostv1.HostRequest{}); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	if err := frame.ReadMessage(strings.NewReader(length(2, "\xff\xff")), &hostv1.HostRequest{}); err == nil {
		t.Error("what is no message is read")
	}
}

// The longest message goes both ways; one byte more is not written at all.
func TestLongest(t *testing.T) {
	m := call(1, nil)
	args := func(n int) []byte { return make([]byte, n) }
	lo, hi := 0, frame.MaxMessage // the encoding adds something to the arguments: how much is not our business
	for lo < hi {
		mid := (lo + hi + 1) / 2
		m.GetCall().Arguments = args(mid)
		if frame.WriteMessage(io.Discard, m) == nil {
			lo = mid
		} else {
			hi = mid - 1
		}
	}
	m.GetCall().Arguments = args(lo)
	var stream bytes.Buffer
	if err := frame.WriteMessage(&stream, m); err != nil {
		t.Fatal(err)
	}
	if n := stream.Len(); n != frame.MaxMessage+4 {
		t.Errorf("the longest frame has %d bytes", n)
	}
	if err := frame.ReadMessage(&stream, &hostv1.HostRequest{}); err != nil {
		t.Error(err)
	}
	w := frame.NewWriter(&stream)
	m.GetCall().Arguments = args(lo + 1)
	if err := w.Write(m); !errors.Is(err, frame.ErrTooLong) || stream.Len() != 0 {
		t.Errorf("one more: %v, %d bytes written", err, stream.Len())
	}
	if err := w.Write(call(1, nil)); err != nil {
		t.Errorf("after one that was too long: %v", err)
	}
}

// Many writers, whole frames.
func TestWriter(t *testing.T) {
	r, pipe := io.Pipe()
	w := frame.NewWriter(chopped{pipe})
	const each = 50
	var writers sync.WaitGroup
	for id := range uint64(8) {
		writers.Go(func() {
			for range each {
				if err := w.Write(call(id, bytes.Repeat([]byte{byte(id)}, 100))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	go func() { writers.Wait(); pipe.Close() }()
	got := map[uint64]int{}
	for {
		m := &hostv1.HostRequest{}
		err := frame.ReadMessage(r, m)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		id := m.GetCall().GetId()
		if !bytes.Equal(m.GetCall().GetArguments(), bytes.Repeat([]byte{byte(id)}, 100)) {
			t.Fatal("two frames are mixed up")
		}
		got[id]++
	}
	for id := range uint64(8) {
		if got[id] != each {
			t.Errorf("writer %d: %d messages, want %d", id, got[id], each)
		}
	}
}

// chopped writes in pieces, so that two writers at once are noticed.
type chopped struct{ w io.Writer }

func (c chopped) Write(p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		var m int
		m, err = c.w.Write(p[n:min(n+7, len(p))])
		n += m
	}
	return n, err
}

// After a write that failed nothing follows on the stream.
func TestWriterAfterFailure(t *testing.T) {
	out := &failing{}
	w := frame.NewWriter(out)
	if err := w.Write(call(1, nil)); !errors.Is(err, io.ErrClosedPipe) {
		t.Fatalf("the first: %v", err)
	}
	out.mended = true
	if err := w.Write(call(2, nil)); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("the second: %v, want the first error", err)
	}
}

type failing struct{ mended bool }

func (f *failing) Write(p []byte) (int, error) {
	if f.mended {
		return len(p), nil
	}
	return 1, io.ErrClosedPipe
}

// FuzzReadMessage: what is read is written and read again as the same message, and
// nothing panics.
func FuzzReadMessage(f *testing.F) {
	for _, m := range []*hostv1.HostRequest{{}, call(1, []byte("{}"))} {
		var stream bytes.Buffer
		if err := frame.WriteMessage(&stream, m); err != nil {
			f.Fatal(err)
		}
		f.Add(stream.Bytes())
	}
	f.Add([]byte("\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		m := &hostv1.HostRequest{}
		if frame.ReadMessage(bytes.NewReader(raw), m) != nil {
			return
		}
		var stream bytes.Buffer
		if err := frame.WriteMessage(&stream, m); err != nil {
			t.Fatal(err)
		}
		again := &hostv1.HostRequest{}
		if err := frame.ReadMessage(&stream, again); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(m, again, protocmp.Transform()); d != "" {
			t.Error(d)
		}
	})
}
