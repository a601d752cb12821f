package host

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"subjectbroker/proto/frame"
)

// FuzzLines: every line that is not too long comes as it was, in order, however
// the stream is cut.
func FuzzLines(f *testing.F) {
	for _, seed := range []string{"", "a\n\nb", strings.Repeat("x", 40) + "\nshort\n", `{"id":12,"result":"` + strings.Repeat("x", 40) + `"}` + "\nafter"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		const limit = 32
		var want []string
		rest := data
		for len(rest) > 0 {
			line, after, _ := bytes.Cut(rest, []byte("\n"))
			rest = after
			if len(line) > limit {
				line = []byte("too long")
			}
			want = append(want, string(line))
		}
		for _, in := range []io.Reader{bytes.NewReader(data), iotest.OneByteReader(bytes.NewReader(data))} {
			reader := newLines(in, limit)
			var got []string
			for {
				line, long, err := reader.next()
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				if long != nil {
					long.idIn()
					line = []byte("too long")
				}
				got = append(got, string(line))
			}
			if strings.Join(got, "|") != strings.Join(want, "|") {
				t.Fatalf("%q: got %q, want %q", data, got, want)
			}
		}
	})
}

// FuzzEvents: a stream of events is read to its end, whatever is in it, and what is
// taken of it was in it.
func FuzzEvents(f *testing.F) {
	for _, seed := range []string{"data: {}\n\n", "event: x\ndata: a\n\nid: 1\nretry: 5\ndata:b\r\ndata: c\r\n\r\n", ": c\n\ndata", "data\n\n"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		taken := &takes{}
		r := &remote{limit: 64, to: taken, large: make(chan struct{}, 1)}
		r.events(context.Background(), bytes.NewReader(data), &position{wait: time.Second})
		for _, message := range taken.all {
			if len(message) > 64 {
				t.Fatalf("%d bytes", len(message))
			}
			for line := range strings.SplitSeq(message, "\n") {
				if !bytes.Contains(data, []byte(line)) {
					t.Fatalf("%q is not in %q", line, data)
				}
			}
		}
		if len(r.large) != 0 {
			t.Fatal("the room was not given back")
		}
	})
}

// takes is a listener that keeps what it gets.
type takes struct{ all []string }

func (l *takes) take(message []byte) { l.all = append(l.all, string(message)) }
func (*takes) cut(long *longLine)    { long.idIn() }
func (*takes) lost(uint64, string)   {}
func (*takes) awaited(uint64) bool   { return false }
func (*takes) say(string)            {}

// nothing is a link to nobody.
type nothing struct{}

func (nothing) begin(listener)         {}
func (nothing) post(outgoing)          {}
func (nothing) settle(context.Context) {}
func (nothing) forget(uint64)          {}
func (nothing) agreed(string)          {}
func (nothing) refuses() bool          { return false }
func (nothing) gone() <-chan struct{}  { return nil }
func (nothing) end(bool) ending        { return ending{} }

// FuzzTake: whatever a server writes, a session goes on and answers at most once.
func FuzzTake(f *testing.F) {
	for _, seed := range []string{`{"jsonrpc":"2.0","id":1,"result":{}}`, `{"id":1,"error":{},"result":{}}`, `{"method":"ping","id":{}}`, `{"method":"notifications/progress","params":{"progressToken":1}}`, `[`, "{\"id\":1,\"result\":\"\xff\"}"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		ours, theirs := io.Pipe()
		go io.Copy(io.Discard, ours)
		defer theirs.Close()
		s := newSession(frame.NewWriter(theirs), nothing{}, "1", func(err error) { t.Error(err) })
		p := &pending{done: make(chan reply, 1)}
		s.begin(p)
		s.take(line)
		s.take(line)
		if len(p.done) == 0 && !s.awaited(1) {
			t.Fatal("a request was forgotten")
		}
	})
}
