package verify

import (
	"bytes"
	"crypto/ed25519"
	"runtime"
	"sync"
)

// pool checks signatures on all processors while the chain is followed on one.
type pool struct {
	jobs  chan job
	group sync.WaitGroup

	mu      sync.Mutex
	first   *Fault
	invalid uint64 // the signed entry at which first was found
}

type job struct {
	walk    *walk
	key     ed25519.PublicKey
	vouched uint64 // seq of the signed entry before
	raw     []byte
}

func newPool() *pool {
	p := &pool{jobs: make(chan job, 256)}
	for range runtime.GOMAXPROCS(0) {
		p.group.Go(p.work)
	}
	return p
}

func (p *pool) work() {
	var l line
	for j := range p.jobs {
		if l.scan(j.raw) == nil && valid(j.key, &l) {
			continue
		}
		fault := j.walk.unvouched(j.vouched, l.seq)
		p.mu.Lock()
		if p.first == nil || l.seq < p.invalid {
			p.first, p.invalid = fault, l.seq
		}
		p.mu.Unlock()
	}
}

func (p *pool) check(w *walk, l *line) {
	p.jobs <- job{walk: w, key: w.key, vouched: w.signed.seq, raw: bytes.Clone(l.raw)}
}

// wait returns the first fault, if it lies before what the walk found: from an
// invalid signature before that, the chain went on.
func (p *pool) wait(found *Fault) *Fault {
	close(p.jobs)
	p.group.Wait()
	if p.first != nil && (found == nil || p.invalid < found.Seq) {
		return p.first
	}
	return found
}
