package worker

import (
	"context"
	"sync"

	"subjectbroker/proto/wire"
)

// maxUnheard is how many changes wait for one who listens. Who takes none of them
// is let go, and begins anew.
const maxUnheard = 64

// feed is one stream of a run's changes. It is open whether or not anybody listens,
// so that the end of the run is heard of at once, and one listener shares it.
type feed struct {
	mu    sync.Mutex
	ready bool        // Watching was told
	over  bool        // the stream is
	why   error       // why it is
	to    chan Change // of who listens; nil: nobody does
}

// tell hands a change on. It does not wait: the next one may be the end of the run.
func (f *feed) tell(change Change) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ready = f.ready || change.Kind == Watching
	if f.to == nil {
		return
	}
	select {
	case f.to <- change:
	default:
		f.dismiss()
	}
}

// end says that nothing follows.
func (f *feed) end(why error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.over, f.why = true, why
	f.dismiss()
}

// dismiss lets go of who listens. The caller holds mu.
func (f *feed) dismiss() {
	if f.to != nil {
		close(f.to)
		f.to = nil
	}
}

// join begins to listen. Nil: the stream is over, or somebody listens already.
func (f *feed) join() chan Change {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.over || f.to != nil {
		return nil
	}
	f.to = make(chan Change, maxUnheard)
	if f.ready {
		f.to <- Change{Kind: Watching}
	}
	return f.to
}

// follow tells fn what comes, until ctx or the stream ends, or fn takes too long.
func (f *feed) follow(ctx context.Context, changes chan Change, fn func(Change)) error {
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.to == changes {
			f.to = nil
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return wire.FromError(ctx.Err())
		case change, more := <-changes:
			if more {
				fn(change)
				continue
			}
			f.mu.Lock()
			defer f.mu.Unlock()
			if f.over {
				return f.why
			}
			return wire.Deny(wire.BrokerUnavailable)
		}
	}
}
