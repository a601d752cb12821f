package daemon

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"subjectbroker/audit"
	"subjectbroker/daemon/peer"
)

// Denials are rationed for each peer process, or anyone could fill the disk:
// a burst of 20, then 2 a second. A process over its budget is refused before
// anything is looked up, and one `suppressed` entry every 10 s accounts for it.
//
// All processes share a budget as well: one that starts others would have as
// many as it likes. When that is used up, denials are refused unrecorded and
// counted in the same way; what is allowed is not affected.
const (
	denialBurst      = 20
	denialRate       = rate.Limit(2)
	sharedBurst      = 2000
	sharedRate       = rate.Limit(20)
	suppressedPeriod = 10 * time.Second
	suppressedAtOnce = 64          // entries; the rest of the processes share one more
	budgetIdle       = time.Minute // a full budget unused for this long is forgotten
)

// budgets ration denials. The zero value is ready.
type budgets struct {
	mu     sync.Mutex
	by     map[peer.ProcessKey]*budget
	shared *rate.Limiter
}

type budget struct {
	limiter    *rate.Limiter
	suppressed uint64
	subject    string // of the newest suppressed request; empty before a run
	last       time.Time
}

func (b *budgets) of(key peer.ProcessKey, now time.Time) *budget {
	if b.by == nil {
		b.by = map[peer.ProcessKey]*budget{}
		b.shared = rate.NewLimiter(sharedRate, sharedBurst)
	}
	one := b.by[key]
	if one == nil {
		one = &budget{limiter: rate.NewLimiter(denialRate, denialBurst)}
		b.by[key] = one
	}
	one.last = now
	return one
}

// admit reports whether key has budget left. A request that is not admitted is
// counted for the next `suppressed` entry.
func (b *budgets) admit(key peer.ProcessKey, subject string, now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	one := b.of(key, now)
	if one.limiter.TokensAt(now) >= 1 {
		return true
	}
	one.suppressed++
	one.subject = subject
	return false
}

// spend takes one denial off key's budget, or reports that none is left: of many
// requests that were admitted at once, all but the first few find that out here.
// Those are counted like requests that were not admitted.
func (b *budgets) spend(key peer.ProcessKey, subject string, now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	one := b.of(key, now)
	if one.limiter.AllowN(now, 1) {
		if b.shared.AllowN(now, 1) {
			return true
		}
		one.limiter.AllowN(now, -1) // it may still ask for what it is allowed
	}
	one.suppressed++
	one.subject = subject
	return false
}

// suppress counts a request that was refused for another reason than denials,
// before anything was looked up.
func (b *budgets) suppress(key peer.ProcessKey, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.of(key, now).suppressed++
}

// refund gives back a denial that is certainly not in the log.
func (b *budgets) refund(key peer.ProcessKey, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.of(key, now).limiter.AllowN(now, -1)
	b.shared.AllowN(now, -1)
}

// suppressed is what one process was refused unrecorded; several of them when
// there is no peer.
type suppressed struct {
	key     peer.ProcessKey // zero for several
	peer    *audit.Peer
	subject string
	count   uint64
}

// collect returns what is not accounted for yet and forgets idle budgets.
func (b *budgets) collect(now time.Time) []suppressed {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []suppressed
	for key, one := range b.by {
		if one.suppressed > 0 {
			all = append(all, suppressed{key, &audit.Peer{UID: key.UID, PID: key.PID}, one.subject, one.suppressed})
			one.suppressed = 0
		} else if now.Sub(one.last) > budgetIdle {
			delete(b.by, key)
		}
	}
	if len(all) <= suppressedAtOnce {
		return all
	}
	slices.SortFunc(all, func(a, b suppressed) int { return cmp.Compare(b.count, a.count) })
	var rest suppressed
	for _, one := range all[suppressedAtOnce:] {
		rest.count += one.count
	}
	return append(all[:suppressedAtOnce], rest)
}
