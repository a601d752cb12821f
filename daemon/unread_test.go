package daemon

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"

	"subjectbroker/daemon/peer"
	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
)

// A process may hold as much as is left for others, and at least one answer.
func TestUnreadIsShared(t *testing.T) {
	const limit, answer = 1000, 10
	u := newUnread(limit)
	connect := func(pid int32) *peer.Peer {
		p := &peer.Peer{PID: pid}
		u.enter(p)
		return p
	}
	held := func(p *peer.Peer) (n int) {
		for {
			s := share{of: u, p: p}
			if !s.grow(1) || !s.grow(answer) { // as a call does
				s.settle(0)
				return n
			}
			n += answer
		}
	}
	first, again := connect(1), connect(1)
	if got := held(first) + held(again); got != limit/2 {
		t.Errorf("one process alone holds %d of %d", got, limit)
	}
	if got := held(connect(2)); got != limit/4 {
		t.Errorf("the next holds %d of %d", got, limit)
	}
	processes := 2
	for ; held(connect(int32(processes+1))) > answer; processes++ {
	}
	if u.total > limit {
		t.Errorf("%d processes hold %d of %d", processes, u.total, limit)
	}
	for range 10 { // there is no room, and each still has one answer
		processes++
		if got := held(connect(int32(processes + 1))); got != answer {
			t.Errorf("process %d holds %d", processes, got)
		}
	}
	u.leave(first)
	u.leave(again)
	if _, still := u.by[first.Key()]; still {
		t.Error("it has left and still holds something")
	}
}

// Whatever the order in which answers are made, taken and dropped and their
// connections leave, nothing stays and nothing is given back twice.
func TestUnreadComesBack(t *testing.T) {
	u := newUnread(1 << 20)
	peers := make([]*peer.Peer, 5)
	var shares []*share
	for range 5000 {
		i := rand.IntN(len(peers))
		if peers[i] == nil {
			peers[i] = &peer.Peer{PID: int32(i / 2)}
			u.enter(peers[i])
		}
		switch rand.IntN(8) {
		case 0:
			u.leave(peers[i])
			peers[i] = nil
		case 1, 2, 3:
			s := &share{of: u, p: peers[i]}
			s.grow(int64(rand.IntN(1 << 16)))
			s.settle(int64(rand.IntN(1 << 17)))
			shares = append(shares, s)
		default:
			if len(shares) > 0 {
				shares[0].settle(0)
				shares = shares[1:]
			}
		}
		if u.total < 0 {
			t.Fatalf("%d bytes are held", u.total)
		}
	}
	for _, s := range shares {
		s.settle(0)
	}
	if u.total != 0 || len(u.by) != 0 {
		t.Errorf("%d bytes are held when nothing is, by %v", u.total, u.by)
	}
}

// What an answer was marshalled into is wiped and given back once it is written.
func TestAnswersAreWiped(t *testing.T) {
	codec := wipingCodec{encoding.GetCodecV2(proto.Name)}
	for _, size := range []int{0, 10, 1000, 5000, 1 << 20} {
		u, p := newUnread(1<<30), &peer.Peer{}
		u.enter(p)
		content := bytes.Repeat([]byte("MARKER"), size/6+1)
		message := &brokerv1.AcquireResponse{Content: content}
		out, err := codec.Marshal(answered{message, &share{of: u, p: p}})
		if err != nil || len(out) != 1 {
			t.Fatalf("%d buffers, %v", len(out), err)
		}
		var back brokerv1.AcquireResponse
		if err := codec.Unmarshal(out, &back); err != nil || len(back.GetContent()) != len(content) || !bytes.HasPrefix(back.GetContent(), []byte("MARKER")) {
			t.Errorf("%d bytes are marshalled as %d, %v", len(content), len(back.GetContent()), err)
		}
		if held := u.total; held < int64(len(content)) || held < smallestAnswer {
			t.Errorf("%d bytes count as %d", len(content), held)
		}
		inside := out[0].ReadOnlyData()
		out.Free()
		if bytes.Contains(inside, []byte("MARKER")) || bytes.Contains(content, []byte("MARKER")) {
			t.Errorf("%d bytes stay in memory", len(content))
		}
		if u.total != 0 {
			t.Errorf("%d bytes are held when all is written", u.total)
		}
	}
}
