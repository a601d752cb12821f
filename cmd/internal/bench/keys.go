package main

import (
	"context"
	"fmt"
	"time"

	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

// Numbers of the daemon that the figures below depend on.
const (
	checkpointEvery = 4096 // entries
	rewrapRows      = 256  // rows that one mutation rewraps
	rewrapSyncs     = 5    // of a mutation: two of the log, of the vault data and meta, and one to spare for the effect
)

// measureKeys rewraps every row after a rotate, and acquires meanwhile and with
// the checkpoint writer running.
func measureKeys(ctx context.Context, s *settings) ([]figure, error) {
	rows := s.pick(100_000, 5_000)
	b, err := s.brokerWith(ctx, "keys", rows)
	if err != nil {
		return nil, err
	}
	defer b.stop()
	session, err := b.open(ctx)
	if err != nil {
		return nil, err
	}
	defer session.close()
	disk, err := newAppender(b.home, entrySize)
	if err != nil {
		return nil, err
	}
	defer disk.close()
	conn, err := b.operator(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close()

	var syncs, checkpointed samples
	for range s.pick(3, 1) * checkpointEvery {
		if err := timed(&syncs, disk.once); err != nil {
			return nil, err
		}
		if err := timed(&checkpointed, func() error { return session.acquire(ctx, "small") }); err != nil {
			return nil, err
		}
	}

	var during samples
	took, err := rewrap(ctx, operatorv1.NewOperatorServiceClient(conn), func() error {
		return timed(&during, func() error { return session.acquire(ctx, "small") })
	})
	if err != nil {
		return nil, err
	}
	floor := time.Duration(rows/rewrapRows*rewrapSyncs) * syncs.p50()
	return []figure{{
		name:  fmt.Sprintf("acquire, a checkpoint every %d entries, p50", checkpointEvery),
		got:   ms(checkpointed.p50()),
		limit: "fdatasync " + ms(syncs.p50()), ratio: float64(checkpointed.p50()) / float64(syncs.p50()),
	}, {
		name:  "the same, p99",
		got:   ms(checkpointed.p99()),
		limit: "fdatasync " + ms(syncs.p99()), ratio: float64(checkpointed.p99()) / float64(syncs.p99()),
	}, {
		name:  fmt.Sprintf("rewrap of %d rows after a rotate", rows),
		got:   took.Round(time.Millisecond).String(),
		limit: fmt.Sprintf("%d fdatasyncs %s", rows/rewrapRows*rewrapSyncs, floor.Round(time.Millisecond)),
		ratio: float64(took) / float64(floor),
	}, {
		name:  "acquire meanwhile, p50",
		got:   ms(during.p50()),
		limit: "without " + ms(checkpointed.p50()), ratio: float64(during.p50()) / float64(checkpointed.p50()),
	}}, nil
}

// rewrap makes a new term and returns how long it took until no row was of an
// older one. It does meanwhile over and over.
func rewrap(ctx context.Context, operator operatorv1.OperatorServiceClient, meanwhile func() error) (time.Duration, error) {
	begin := time.Now()
	if _, err := operator.RotateKey(ctx, &operatorv1.RotateKeyRequest{}); err != nil {
		return 0, err
	}
	for {
		if err := meanwhile(); err != nil {
			return 0, err
		}
		status, err := operator.Status(ctx, &operatorv1.StatusRequest{})
		if err != nil {
			return 0, err
		}
		if status.GetRewrapLeft() == 0 {
			return time.Since(begin), nil
		}
	}
}
