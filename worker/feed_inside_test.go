package worker

import (
	"context"
	"errors"
	"slices"
	"testing"

	"subjectbroker/proto/wire"
)

// One stream of a run is for who follows its end and for one who listens. Whoever
// comes later hears that it is watched, and what comes then.
func TestFeed(t *testing.T) {
	f := &feed{}
	f.tell(Change{Kind: ListChanged}) // nobody listens
	f.tell(Change{Kind: Watching})
	changes := f.join()
	if f.join() != nil {
		t.Error("two listen to one stream")
	}
	f.tell(Change{Kind: ServersChanged})
	f.tell(Change{Kind: RunEnded})
	f.end(wire.Deny(wire.RunEnded))
	var got []ChangeKind
	err := f.follow(t.Context(), changes, func(change Change) { got = append(got, change.Kind) })
	if want := []ChangeKind{Watching, ServersChanged, RunEnded}; !slices.Equal(got, want) {
		t.Errorf("told %v, want %v", got, want)
	}
	if wire.FromError(err).Reason != wire.RunEnded {
		t.Errorf("it ends with %v", err)
	}
	if f.join() != nil {
		t.Error("a stream that is over is listened to")
	}
}

// Who takes nothing holds up nobody, is let go, and can begin anew. Who went away
// leaves the place free.
func TestFeedSlow(t *testing.T) {
	f := &feed{}
	f.tell(Change{Kind: Watching})
	slow := f.join()
	for range 2 * maxUnheard {
		f.tell(Change{Kind: ListChanged})
	}
	told := 0
	if err := f.follow(t.Context(), slow, func(Change) { told++ }); err == nil || told != maxUnheard {
		t.Errorf("one who is slow is told %d changes, then %v", told, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	again := f.join()
	cancel()
	for { // what waits already may be told first
		err := f.follow(ctx, again, func(Change) {})
		if errors.Is(err, context.Canceled) || wire.FromError(err).Reason != "" {
			break
		}
	}
	if f.join() == nil {
		t.Error("who went away is listening still")
	}
}
