package worker

import (
	"context"
	"testing"

	"subjectbroker/proto/wire"
)

// What an attempt found that was begun before somebody asked says nothing about
// the daemon of now: the answer is that of the next one.
func TestRunWaitsForItsOwnAttempt(t *testing.T) {
	k, err := NewKeeper(Config{Subject: "worker"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	begin := func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.begun++
	}
	begin()
	failed := make(chan error, 1)
	go func() {
		_, err := k.Run(context.Background())
		failed <- err
	}()
	<-k.kick
	k.settle(nil, wire.Deny(wire.BrokerUnavailable))
	<-k.kick // it asks again
	begin()
	k.settle(nil, wire.Deny(wire.VaultLocked))
	if err := <-failed; wire.FromError(err).Reason != wire.VaultLocked {
		t.Errorf("got %v, want what the second attempt found", err)
	}
}
