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

// A run can be had before it is watched by those who need no more.
func TestFreshRun(t *testing.T) {
	k, err := NewKeeper(Config{Subject: "worker"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	run := &Run{ID: "run", over: make(chan struct{})}
	got := make(chan *Run, 1)
	go func() {
		run, _ := k.Fresh(context.Background())
		got <- run
	}()
	<-k.kick
	k.mu.Lock()
	k.begun++
	k.mu.Unlock()
	k.hand(run)
	if fresh := <-got; fresh != run || k.Current() != nil {
		t.Errorf("fresh is %v, and what is watched %v", fresh, k.Current())
	}
	k.settle(run, nil)
	if watched, err := k.Run(context.Background()); watched != run || err != nil {
		t.Errorf("watched is %v, %v", watched, err)
	}
	k.forget()
	if k.fresh != nil {
		t.Error("it can be had when it has ended")
	}
}
