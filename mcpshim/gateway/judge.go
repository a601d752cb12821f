package gateway

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// ask has the daemon judge a key, by do. About one of which nothing good is known it
// is asked when it is the turn of whoever presents it.
func (g *Gateway) ask(ctx context.Context, key []byte, do func() error) error {
	hash := hashOf(key)
	known := g.rates.known(hash)
	if !known {
		done, err := g.rates.turn(ctx, connOf(ctx).address)
		if err != nil {
			return err
		}
		defer done()
	}
	err := do()
	switch {
	case isRefused(err):
		g.rates.doubt(hash)
		connOf(ctx).judged(false)
	case err == nil || errors.Is(err, ErrOtherKey):
		now := time.Now()
		g.rates.know(hash, now)
		connOf(ctx).judged(true)
		if !known {
			g.rates.take(&g.rates.keys, string(hash[:]), now) // from now on it counts
		}
	}
	return err
}

// isRefused says whether an error means that a key is not good.
func isRefused(err error) bool {
	_, refused := errors.AsType[*Refused](err)
	return refused
}

// authenticate has the key of a request judged: under the run of its session, or, where
// that is over, for another one, or, without a session, alone. With another key than the
// session's nobody has a session: ErrOtherKey is the best that comes of it.
func (g *Gateway) authenticate(ctx context.Context, s *session, key []byte, p Presented) error {
	if s == nil {
		return g.check(ctx, key, p)
	}
	own := s.is(hashOf(key))
	err := g.underRun(ctx, s, own, key, p)
	if errors.Is(err, errNoRun) {
		if own {
			err = g.reopen(ctx, s, key, p)
		} else {
			err = g.check(ctx, key, p)
		}
	}
	switch {
	case !own && err == nil:
		return ErrOtherKey
	case own && isRefused(err):
		g.end(s)
	}
	return err
}

// check judges a key of which no run is wanted.
func (g *Gateway) check(ctx context.Context, key []byte, p Presented) error {
	return g.ask(ctx, key, func() error { return g.config.Keys.Check(ctx, key, p) })
}

// errNoRun says that a session has no open run.
var errNoRun = errors.New("there is no open run")

// underRun judges a key under the open run of a session. own says that it is the
// session's key.
func (g *Gateway) underRun(ctx context.Context, s *session, own bool, key []byte, p Presented) error {
	run := s.current()
	if run == nil {
		return errNoRun
	}
	err := g.ask(ctx, key, func() error { return run.Authenticate(ctx, key, p) })
	switch {
	case own && errors.Is(err, ErrOtherKey): // the run ended, and we have not heard of it yet
		run.Close()
		return errNoRun
	case err == nil, isRefused(err), errors.Is(err, ErrOtherKey): // it was judged
		return err
	case s.current() == nil: // what went wrong is that it ended
		return errNoRun
	}
	return err
}

// reopen brings a session another run of its key, in place of one that is over.
func (g *Gateway) reopen(ctx context.Context, s *session, key []byte, p Presented) error {
	var run Run
	err := g.ask(ctx, key, func() (err error) {
		run, err = g.config.Keys.Open(ctx, key, p)
		return err
	})
	if err != nil || run.KeyID() == s.keyID && s.bring(run) {
		return err
	}
	run.Close()
	if s.current() == nil {
		return errOver
	}
	return nil // another request has brought one
}

// end ends a session: nobody finds it any more, and it answers what is in flight.
func (g *Gateway) end(s *session) {
	g.forget(s)
	s.stop()
}

// slot is the session that requests of one key share. Whoever finds it empty fills
// it; the others wait for that.
type slot struct {
	session *session
	filling chan struct{} // closed when it is filled, or was not
}

// share is the session for a request that needs none of its own.
func (g *Gateway) share(ctx context.Context, key []byte, p Presented) (*session, error) {
	hash := hashOf(key)
	for {
		g.mu.Lock()
		one := g.shared[hash]
		if one == nil {
			one = &slot{filling: make(chan struct{})}
			g.shared[hash] = one
			g.mu.Unlock()
			return g.fill(ctx, hash, one, key, p)
		}
		s := one.session
		g.mu.Unlock()
		if s == nil {
			select {
			case <-one.filling:
				continue
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		err := g.authenticate(ctx, s, key, p)
		if errors.Is(err, errOver) {
			g.forget(s)
			continue
		}
		return s, err
	}
}

func (g *Gateway) fill(ctx context.Context, hash keyHash, one *slot, key []byte, p Presented) (*session, error) {
	var s *session
	run, err := g.opened(ctx, key, p)
	if err == nil {
		s, err = g.begin("", hash, run)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if err != nil {
		delete(g.shared, hash)
	} else {
		one.session = s
	}
	close(one.filling)
	return s, err
}

// errFull says that there is no room; errSessions, that there is none for one more
// session.
var (
	errFull     = errors.New("too much at once")
	errSessions = fmt.Errorf("%w: sessions", errFull)
)

// opened opens a run, with a place for a session under it.
func (g *Gateway) opened(ctx context.Context, key []byte, p Presented) (run Run, err error) {
	hash := hashOf(key)
	return run, g.ask(ctx, key, func() error {
		for !g.takePlace(hash) {
			if err := g.config.Keys.Check(ctx, key, p); err != nil {
				return err
			}
			if !g.makePlace(ctx, hash) {
				return errSessions
			}
		}
		if run, err = g.config.Keys.Open(ctx, key, p); err != nil {
			g.givePlace(hash)
		}
		return err
	})
}

// takePlace takes a place for a session of a key, if there is one.
func (g *Gateway) takePlace(hash keyHash) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.draining || g.places >= g.limits.Sessions || g.perKey[hash] >= g.limits.KeySessions {
		return false
	}
	g.places++
	g.perKey[hash]++
	return true
}

// makePlace ends, of a key that has all the sessions that it may have, the one that
// was left unused for longest: many clients go without ending theirs. It returns false
// when there is none that was left.
func (g *Gateway) makePlace(ctx context.Context, hash keyHash) bool {
	g.mu.Lock()
	var own []*session
	if g.perKey[hash] >= g.limits.KeySessions {
		for _, s := range g.sessions {
			if s.is(hash) {
				own = append(own, s)
			}
		}
	}
	g.mu.Unlock()
	var left *session
	longest := g.limits.Left
	now := time.Now()
	for _, s := range own {
		if unused := s.unused(now); unused > longest {
			left, longest = s, unused
		}
	}
	if left == nil {
		return false
	}
	g.end(left)
	select {
	case <-left.ended:
	case <-ctx.Done():
	}
	return true
}

func (g *Gateway) givePlace(hash keyHash) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.places--
	if g.perKey[hash]--; g.perKey[hash] == 0 {
		delete(g.perKey, hash)
	}
}

// begin begins a session under a run that has a place for it. An id is one that
// others may name.
func (g *Gateway) begin(id string, hash keyHash, run Run) (*session, error) {
	g.mu.Lock()
	if g.draining {
		g.mu.Unlock()
		g.abandon(hash, run)
		return nil, errFull
	}
	defer g.mu.Unlock()
	s := g.newSession(id, hash, run)
	if id != "" {
		g.sessions[id] = s
	}
	return s, nil
}

// abandon gives up a run that no session was begun under.
func (g *Gateway) abandon(hash keyHash, run Run) {
	g.givePlace(hash)
	run.Close()
}

// forget lets nobody find a session any more.
func (g *Gateway) forget(s *session) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.sessions[s.id] == s {
		delete(g.sessions, s.id)
	}
	if one := g.shared[s.hash]; s.id == "" && one != nil && one.session == s {
		delete(g.shared, s.hash)
	}
}

// left is told by a session that it is gone.
func (g *Gateway) left(s *session) {
	g.forget(s)
	g.givePlace(s.hash)
}
