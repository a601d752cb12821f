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

// Denials are rationed for each peer process, and for each agent key, or anyone
// could fill the disk: a burst of 20, then 2 a second. A process over its budget is refused before
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

// payer is whose budget a denial is taken from: a peer process (peer.ProcessKey), or
// an agent key (keyPayer), whichever process it comes through.
type payer any

// keyPayer is the id of an agent key.
type keyPayer string

// payerOf is who pays for a request of a peer, and of a key where one is known.
func payerOf(p *peer.Peer, keyID string) payer {
	if keyID != "" {
		return keyPayer(keyID)
	}
	return p.Key()
}

// budgets ration denials. The zero value is ready.
type budgets struct {
	mu     sync.Mutex
	by     map[payer]*budget
	shared *rate.Limiter
}

type budget struct {
	limiter    *rate.Limiter
	suppressed uint64
	subject    string // of the newest suppressed request; empty before a run
	last       time.Time
}

func (b *budgets) of(by payer, now time.Time) *budget {
	if b.by == nil {
		b.by = map[payer]*budget{}
		b.shared = rate.NewLimiter(sharedRate, sharedBurst)
	}
	one := b.by[by]
	if one == nil {
		one = &budget{limiter: rate.NewLimiter(denialRate, denialBurst)}
		b.by[by] = one
	}
	one.last = now
	return one
}

// admit reports whether one who pays has budget left. A request that is not admitted is
// counted for the next `suppressed` entry.
func (b *budgets) admit(by payer, subject string, now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	one := b.of(by, now)
	if one.limiter.TokensAt(now) >= 1 {
		return true
	}
	one.suppressed++
	one.subject = subject
	return false
}

// spend takes one denial off a budget, or reports that none is left: of many
// requests that were admitted at once, all but the first few find that out here.
// Those are counted like requests that were not admitted.
func (b *budgets) spend(by payer, subject string, now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	one := b.of(by, now)
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
func (b *budgets) suppress(by payer, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.of(by, now).suppressed++
}

// refund gives back a denial that is certainly not in the log.
func (b *budgets) refund(by payer, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.of(by, now).limiter.AllowN(now, -1)
	b.shared.AllowN(now, -1)
}

// suppressed is what one process was refused unrecorded; several of them when
// there is no peer.
type suppressed struct {
	key     peer.ProcessKey // zero for several, and for an agent key
	keyID   string          // of an agent key
	peer    *audit.Peer
	subject string
	count   uint64
}

// collect returns what is not accounted for yet and forgets idle budgets.
func (b *budgets) collect(now time.Time) []suppressed {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []suppressed
	for by, one := range b.by {
		if one.suppressed > 0 {
			s := suppressed{subject: one.subject, count: one.suppressed}
			switch by := by.(type) {
			case peer.ProcessKey:
				s.key, s.peer = by, &audit.Peer{UID: by.UID, PID: by.PID}
			case keyPayer:
				s.keyID = string(by)
			}
			all = append(all, s)
			one.suppressed = 0
		} else if now.Sub(one.last) > budgetIdle {
			delete(b.by, by)
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
