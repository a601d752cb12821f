package daemon

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"subjectbroker/grants"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// shareLimits are how much of the memory one subject may capture, in all tenants
// together. What an operator imports is nobody's share.
type shareLimits struct {
	entries int // with a content, older versions too
	bytes   int // of their titles, texts and tags
	rate    int // captures in a minute, and at once
}

// What of shareLimits config.yaml does not say.
var defaultShare = shareLimits{entries: 100_000, bytes: 256 << 20, rate: 1200}

func (l shareLimits) orDefault() shareLimits {
	return shareLimits{cmp.Or(l.entries, defaultShare.entries), cmp.Or(l.bytes, defaultShare.bytes), cmp.Or(l.rate, defaultShare.rate)}
}

// Causes of captures that are refused although they are granted.
const (
	causeShareFull    = "SHARE_FULL"    // of the subject
	causeMemoryFull   = "MEMORY_FULL"   // of all
	causeCapturesRate = "CAPTURES_RATE" // too many in a minute
)

// size is what an entry takes of a share, in bytes.
func (e *knowledgeEntry) size() (n int) {
	for _, tag := range e.Tags {
		n += len(tag)
	}
	return n + len(e.Title) + len(e.Text)
}

// room reports whether a subject may capture an entry more; else it says why not.
func (k *knowledge) room(e *knowledgeEntry, limits shareLimits) (cause string, ok bool) {
	if k.entries() >= maxEntries || k.full() {
		return causeMemoryFull, false
	}
	known := k.lock()
	defer k.mu.Unlock()
	if s := known.shares[e.Subject]; s != nil && (s.entries >= limits.entries || s.bytes+int64(e.size()) > int64(limits.bytes)) {
		return causeShareFull, false
	}
	return "", true
}

// capturePace rations captures by subject. The zero value is ready.
type capturePace struct {
	mu sync.Mutex
	by map[string]*rate.Limiter // of subjects that have captured: no more than there are
}

// take reports whether a subject may capture now.
func (p *capturePace) take(subject string, perMinute int, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.by == nil {
		p.by = map[string]*rate.Limiter{}
	}
	limiter := p.by[subject]
	if limiter == nil {
		limiter = rate.NewLimiter(rate.Limit(float64(perMinute)/60), perMinute)
		p.by[subject] = limiter
	}
	return limiter.AllowN(now, 1)
}

// errFull stops a capture that is granted: the recollection says why.
var errFull = errors.New("there is no room for it")

// bar has the request refused although it is granted: it is recorded, and rationed, as
// any denial.
func (c *recollection) bar(reason wire.Reason, cause string) error {
	c.barred = &grants.Decision{Outcome: grants.Denied, Reason: grants.Reason(reason), Cause: grants.Cause(cause)}
	return errFull
}

// shareProbes say whose share of the memory is nearly full.
func (d *Daemon) shareProbes(k *knowledge) (probes []*operatorv1.Probe) {
	if _, err := k.use(); err != nil {
		return nil
	}
	known := k.lock()
	defer k.mu.Unlock()
	for _, subject := range slices.Sorted(maps.Keys(known.shares)) {
		s := known.shares[subject]
		if s.entries*10 < d.share.entries*9 && s.bytes*10 < int64(d.share.bytes)*9 {
			continue
		}
		probes = append(probes, &operatorv1.Probe{
			Name: "memory share", Status: "warn",
			Summary: fmt.Sprintf("%s has captured %d of %d entries and %d of %d KiB: then its captures are refused", subject, s.entries, d.share.entries, s.bytes>>10, d.share.bytes>>10),
		})
	}
	return probes
}
