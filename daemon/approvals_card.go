package daemon

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"

	"subjectbroker/audit"
	"subjectbroker/grants"
)

// Limits on cards. What is over them is refused without a card: a person who is
// asked too often says yes to everything.
const (
	maxCards           = 256         // that wait or were approved and not used
	maxCardsPerSubject = 16          // likewise
	maxLeftPerSubject  = 32          // that nobody had answered when their run ended, within the life of a card
	keptCards          = 200         // that have ended, for the operator to look at
	maxKeptAnswer      = 1 << 20     // bytes of one answer that nobody got
	maxKeptAnswers     = 16 << 20    // bytes of all of them
	quietAfter         = 3           // refusals of the same request in quietSpan, after which nobody is asked
	quietToolAfter     = 10          // refusals of whatever arguments of one tool, likewise
	quietSpan          = time.Hour   //
	maxWaitingReads    = 8           // of one run: the rest is told at once that a person has not answered
	maxAskings         = 4096        // requests of which is remembered how often they were made
	sweepCards         = time.Second // how often the clock is looked at
	maxConsentLife     = 7 * 24 * time.Hour
)

// cardState is how far a card has come.
type cardState int

const (
	cardMaking   cardState = iota // its entry has no place in the log yet
	cardPending                   // a person is asked
	cardDeciding                  // a person answers
	cardApproved                  // and may be used once
	cardRunning                   // it is being used
	cardSettled                   // it was used, or an answer was given that stands
	cardDenied
	cardExpired
	cardVoid
)

// String is the state as the operator reads it.
func (s cardState) String() string {
	switch s {
	case cardMaking, cardPending, cardDeciding:
		return "pending"
	case cardApproved:
		return "approved"
	case cardRunning:
		return "running"
	case cardSettled:
		return "settled"
	case cardDenied:
		return "denied"
	case cardExpired:
		return "expired"
	case cardVoid:
		return "void"
	}
	return ""
}

// askerKey is a subject; a later one of its name is another one.
type askerKey struct {
	subject string
	born    int64
}

func (k cardKey) asker() askerKey { return askerKey{k.subject, k.born} }

// word is the state of a card as the operator reads it: while an answer stands that was
// given to it, it is approved. The caller holds approvals.mu.
func (c *card) word() string {
	if c.state == cardSettled && c.stands() {
		return cardApproved.String()
	}
	return c.state.String()
}

// stands reports whether the answer to it stands for more than one request, as far as
// is known. The caller holds approvals.mu.
func (c *card) stands() bool { return c.scope != "" && c.scope != scopeOnce && c.outcome == "" }

// came is what came of a card, in a word; empty: nothing yet. The caller holds
// approvals.mu.
func (c *card) came() string {
	if c.state == cardVoid || c.state == cardExpired {
		return c.cause
	}
	return c.outcome
}

// How an answer ended that stood.
const (
	outcomeUsedUp  = "used-up"
	outcomeExpired = "expired"
	outcomeEnded   = "ended" // with its run or launch
	outcomeRevoked = "revoked"
)

// conclude says on their cards how answers ended that stood; causes are by id.
func (a *approvals) conclude(causes map[string]string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for id, cause := range causes {
		c := a.cards[id]
		if c == nil {
			i := slices.IndexFunc(a.ended, func(c *card) bool { return c.id == id })
			if i < 0 {
				continue
			}
			c = a.ended[i]
		}
		switch cause {
		case causeUsedUp:
			c.outcome = outcomeUsedUp
		case causeOutOfDate:
			c.outcome = outcomeExpired
		case causeRunOver:
			c.outcome = outcomeEnded
		case causeRevoked:
			c.outcome = outcomeRevoked
		default:
			c.outcome = cause
			if c.state == cardSettled {
				c.state, c.cause = cardVoid, cause
			}
		}
		a.tell(c)
	}
}

// standing are the ids of answers that stand, as far as cards tell.
func (a *approvals) standing() (ids []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, c := range a.ended {
		if c.state == cardSettled && c.stands() {
			ids = append(ids, c.id)
		}
	}
	return ids
}

// over reports whether nothing comes of the card any more but the replay of an
// answer.
func (s cardState) over() bool { return s >= cardSettled }

// cardKey is what an answer is bound to. The same request is one with the same key.
type cardKey struct {
	subject    string
	born       int64 // when the subject was created, Unix nanoseconds
	profile    string
	tier       grants.Tier
	session    string // launch of the run, or the run
	server     string
	tool       string
	resource   string
	capability string
	argsDigest audit.Hash
	pin        string
	policy     string
	grant      string         // that allows, once a person did
	outcome    grants.Outcome // of the grants: pending, or allowed where the policy asks
	content    string         // which content the resource has, or how the server of a call is run
}

// cardTopic is the part of a key that no other run, no other policy and no other grant
// makes anew: how often a person was asked is counted by it.
type cardTopic struct {
	subject, server, tool, resource string
	born                            int64      // of the subject: a later one of its name is another one
	argsDigest                      audit.Hash // zero: whatever the arguments
}

func (k cardKey) topic() cardTopic {
	return cardTopic{k.subject, k.server, k.tool, k.resource, k.born, k.argsDigest}
}

// anyArguments is the same tool with whatever arguments.
func (a cardTopic) anyArguments() cardTopic {
	a.argsDigest = audit.Hash{}
	return a
}

// askings is how often something was asked and refused.
type askings struct {
	times    uint32
	last     time.Time
	refusals []time.Time // within quietSpan, rising
}

// deadline ends by whichever clock is first, as a grant does.
type deadline struct {
	at     time.Time
	bootID string
	since  time.Duration // boot clock
}

// in is the deadline that is a while after a reading.
func (r reading) in(while time.Duration) deadline {
	return deadline{at: r.now.Add(while).UTC().Truncate(time.Millisecond), bootID: r.bootID, since: r.since + while}
}

// passed reports whether a deadline is over. A wall clock that cannot be trusted
// ends it where no boot clock can be asked.
func (e deadline) passed(at reading) bool {
	if e.at.IsZero() {
		return false
	}
	same := e.bootID != "" && e.bootID == at.bootID
	return !at.now.Before(e.at) || same && at.since >= e.since || at.behind && !same
}

// card is one request to a person. What is fixed is set before it is found by
// anybody; the rest is approvals.mu's.
type card struct {
	id        string
	key       cardKey
	run       *run // that asked first
	why       string
	arguments []byte // masked and escaped
	cut       bool
	args      []byte // as they are, of a call whose answer may cover others, until there is one; nil: it may not
	discloses []disclosure
	owner     *uint32 // whose the resource of a read is; nil: every operator's
	pinState  string
	scopes    []string
	created   time.Time
	expires   deadline

	state   cardState
	changed chan struct{} // closed when the state changes, and then another one
	asked   uint32
	waiting uint32
	decided time.Time
	scope   string // of the answer
	cause   string // why it is void
	outcome string // how what was approved ended, or the answer that stood
	turn    uint64 // how often its use was reserved

	answer    *replay
	replaying bool // the answer is being given to a retry
}

// disclosure is one thing that would be handed out, in words.
type disclosure struct {
	words string
	owner *uint32 // whose the resource is that the words name; nil: every operator's
}

// over reports whether who asked is gone: the launch, or the run outside of any.
func (c *card) over() bool {
	if l := c.run.launch; l != nil {
		return l.over()
	}
	return c.run.over() || !c.run.peer.Alive()
}

// entry is the part of an entry that everything about a card has.
func (c *card) entry(kind audit.Kind) audit.Entry {
	e := c.run.entry(kind)
	c.key.describe(&e)
	e.ApprovalID = c.id
	return e
}

// describe says in an entry what a key is about.
func (k cardKey) describe(e *audit.Entry) {
	e.Server, e.Tool, e.ResourceID, e.ArgsDigest, e.Pin, e.Policy, e.GrantID = k.server, k.tool, k.resource, k.argsDigest, k.pin, k.policy, k.grant
	if action, _, ok := strings.Cut(k.capability, ":"); ok {
		e.Action = action
	}
	if k.resource == "" {
		e.Capability = k.capability
	}
}

// approvals is the one store of cards: in memory only, so that no answer outlives
// the daemon that asked. The zero value is ready.
type approvals struct {
	mu       sync.Mutex
	cards    map[string]*card    // that are not over, and settled ones whose answer nobody got
	byKey    map[cardKey][]*card // those that the same request attaches to
	ended    []*card             // newest last
	history  map[cardTopic]*askings
	kept     int                     // bytes of answers
	held     map[string]int          // uses of standing answers that are under way
	reads    map[*run]int            // reads that wait
	left     map[askerKey][]deadline // of cards that nobody had answered when their run ended, until they would have expired
	stuck    bool                    // answers that are over cannot be removed
	steps    clockSteps              // for history
	watchers map[*cardWatcher]struct{}
	wakes    chan struct{} // capacity 1
}

func newApprovals() *approvals {
	return &approvals{
		cards: map[string]*card{}, byKey: map[cardKey][]*card{}, history: map[cardTopic]*askings{}, held: map[string]int{}, reads: map[*run]int{}, left: map[askerKey][]deadline{},
		watchers: map[*cardWatcher]struct{}{}, wakes: make(chan struct{}, 1),
	}
}

// waitRead reports whether one more read of a run may wait: one that waits must not
// hold up others on the connection.
func (a *approvals) waitRead(r *run) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.reads[r] >= maxWaitingReads {
		return false
	}
	a.reads[r]++
	return true
}

// waitedRead ends the wait of a read.
func (a *approvals) waitedRead(r *run) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.reads[r]--; a.reads[r] <= 0 {
		delete(a.reads, r)
	}
}

// wake has everything looked at again: what cards are about may have changed.
func (a *approvals) wake() {
	select {
	case a.wakes <- struct{}{}:
	default:
	}
}

// set moves a card on and tells who waits and who watches. The caller holds mu.
func (a *approvals) set(c *card, state cardState) {
	if c.state == cardPending && state == cardVoid && c.cause == causeRunOver {
		a.left[c.key.asker()] = append(a.left[c.key.asker()], c.expires)
	}
	c.state = state
	if state > cardDeciding {
		c.args = nil
	}
	close(c.changed)
	c.changed = make(chan struct{})
	if state.over() && a.cards[c.id] == c && c.answer == nil {
		a.drop(c)
	}
	a.tell(c)
}

// drop ends that requests attach to a card. The caller holds mu.
func (a *approvals) drop(c *card) {
	delete(a.cards, c.id)
	a.detach(c)
	a.ended = append(a.ended, c)
	if extra := len(a.ended) - keptCards; extra > 0 {
		a.ended = slices.Delete(a.ended, 0, extra)
	}
}

// detach makes the next request of the same key another one. The caller holds mu.
func (a *approvals) detach(c *card) {
	i := slices.Index(a.byKey[c.key], c)
	if i < 0 {
		return
	}
	if a.byKey[c.key] = slices.Delete(a.byKey[c.key], i, i+1); len(a.byKey[c.key]) == 0 {
		delete(a.byKey, c.key)
	}
}

// forget drops the answer of a settled card. The caller holds mu.
func (a *approvals) forget(c *card) {
	if c.answer == nil {
		return
	}
	a.kept -= len(c.answer.answer)
	c.answer = nil
	if a.cards[c.id] == c {
		a.drop(c)
	}
}

// tell marks a card for everybody who watches. The caller holds mu.
func (a *approvals) tell(c *card) {
	if c.state == cardMaking {
		return
	}
	for w := range a.watchers {
		w.mark(c)
	}
}

// waits counts the cards of a subject, and all, that a person or their caller still
// has to do with. The caller holds mu.
func (a *approvals) waits(subject string) (of, all int) {
	for _, c := range a.cards {
		if c.state > cardApproved {
			continue
		}
		if all++; c.key.subject == subject {
			of++
		}
	}
	return of, all
}

// leaves reports whether a subject has left so many requests behind, by ending its
// runs, that nobody is asked for it: else who asks anew each time would tell a person
// as often as it likes. The caller holds mu.
func (a *approvals) leaves(who askerKey, at reading) bool {
	for one, all := range a.left {
		if all = slices.DeleteFunc(all, func(e deadline) bool { return e.passed(at) }); len(all) == 0 {
			delete(a.left, one)
		} else {
			a.left[one] = all
		}
	}
	return len(a.left[who]) >= maxLeftPerSubject
}

// moment is the time for history, by a wall clock that never was set: whoever sets it
// does not make a person be asked again. The caller holds mu.
func (a *approvals) moment(at reading) time.Time {
	a.steps.look(at)
	return at.wall.Add(-a.steps.shift)
}

// note counts that something was asked once more, and returns how often that makes.
// The caller holds mu.
func (a *approvals) note(of cardTopic, at reading) uint32 {
	now := a.moment(at)
	h := a.past(of, now)
	h.times++
	h.last = now
	return h.times
}

// refused remembers that a person said no. The caller holds mu.
func (a *approvals) refused(of cardTopic, at reading) {
	now := a.moment(at)
	topics := []cardTopic{of}
	if any := of.anyArguments(); any != of { // a read has none
		topics = append(topics, any)
	}
	for _, one := range topics {
		h := a.past(one, now)
		h.refusals = append(h.refusals, now)
		h.last = now
	}
}

// quiet reports whether a person has said no so often that nobody is asked. The
// caller holds mu.
func (a *approvals) quiet(of cardTopic, at reading) bool {
	now := a.moment(at)
	said := func(of cardTopic) (n int) {
		if h := a.history[of]; h != nil {
			for _, t := range h.refusals {
				if now.Sub(t) < quietSpan {
					n++
				}
			}
		}
		return n
	}
	return said(of) >= quietAfter || said(of.anyArguments()) >= quietToolAfter
}

// past is what is known of a request within quietSpan. The caller holds mu.
func (a *approvals) past(of cardTopic, now time.Time) *askings {
	h := a.history[of]
	if h == nil {
		a.prune(now)
		h = &askings{last: now}
		a.history[of] = h
	}
	if now.Sub(h.last) >= quietSpan {
		*h = askings{last: now}
	}
	h.refusals = slices.DeleteFunc(h.refusals, func(t time.Time) bool { return now.Sub(t) >= quietSpan })
	return h
}

// prune makes room for one more request to be remembered: first what is old goes,
// then what nobody refused. The caller holds mu.
func (a *approvals) prune(now time.Time) {
	for _, goes := range []func(*askings) bool{
		func(h *askings) bool { return now.Sub(h.last) >= quietSpan },
		func(h *askings) bool { return len(h.refusals) == 0 },
		func(*askings) bool { return true },
	} {
		for of, h := range a.history {
			if len(a.history) < maxAskings {
				return
			}
			if goes(h) {
				delete(a.history, of)
			}
		}
	}
}

// pending counts what nobody has answered yet, as far as see lets it.
func (a *approvals) pending(see func(*card) bool) (n uint32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, c := range a.cards {
		if (c.state == cardPending || c.state == cardDeciding) && see(c) {
			n++
		}
	}
	return n
}

// list returns cards, newest first; with ended also those that are over.
func (a *approvals) list(ended bool) []*card {
	a.mu.Lock()
	defer a.mu.Unlock()
	var all []*card
	for _, c := range a.cards {
		if c.state != cardMaking && (ended || !c.state.over()) {
			all = append(all, c)
		}
	}
	if ended {
		all = append(all, a.ended...)
	}
	slices.SortFunc(all, func(x, y *card) int { return cmp.Or(y.created.Compare(x.created), strings.Compare(x.id, y.id)) })
	return all
}

// cardWatcher is one WatchApprovals stream. Changes coalesce until it looks.
type cardWatcher struct {
	dirty chan struct{} // capacity 1

	mu    sync.Mutex
	cards []*card // in the order in which they changed first
}

// watch begins a stream and marks what is open.
func (a *approvals) watch() *cardWatcher {
	w := &cardWatcher{dirty: make(chan struct{}, 1)}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.watchers[w] = struct{}{}
	return w
}

func (a *approvals) unwatch(w *cardWatcher) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.watchers, w)
}

func (w *cardWatcher) mark(c *card) {
	w.mu.Lock()
	if !slices.Contains(w.cards, c) {
		w.cards = append(w.cards, c)
	}
	w.mu.Unlock()
	select {
	case w.dirty <- struct{}{}:
	default:
	}
}

// take returns the cards that changed since the last call.
func (w *cardWatcher) take() []*card {
	w.mu.Lock()
	defer w.mu.Unlock()
	cards := w.cards
	w.cards = nil
	return cards
}
