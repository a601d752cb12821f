package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"subjectbroker/audit"
	"subjectbroker/audit/verify"
)

// measureVerify has a log of acquires, written by the real writer.
func measureVerify(ctx context.Context, s *settings) ([]figure, error) {
	entries := s.pick(1_000_000, 50_000)
	dir := filepath.Join(s.dir, "log", "audit")
	genesis, err := writeLog(ctx, dir, entries)
	if err != nil {
		return nil, fmt.Errorf("writing a log: %w", err)
	}
	segments, err := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	if err != nil {
		return nil, err
	}
	var plain, each, hashes samples
	for range s.pick(3, 2) {
		if err := timed(&hashes, func() error { return hashAll(segments) }); err != nil {
			return nil, err
		}
		if err := timed(&plain, func() error { return verified(ctx, dir, verify.Options{Genesis: genesis}) }); err != nil {
			return nil, err
		}
		if err := timed(&each, func() error { return verified(ctx, dir, verify.Options{Genesis: genesis, AllSignatures: true}) }); err != nil {
			return nil, err
		}
	}
	rate := perSecond(entries, plain.at(0.01))
	return []figure{{
		name:  fmt.Sprintf("entries verified a second, of %d", entries),
		got:   fmt.Sprintf("%.0f", rate),
		limit: "150000 a second", ratio: rate / 150_000, bound: 1, atLeast: true,
	}, {
		name:  "the same",
		got:   ms(plain.at(0.01)),
		limit: "reading and hashing the same bytes " + ms(hashes.at(0.01)),
		ratio: float64(plain.at(0.01)) / float64(hashes.at(0.01)),
	}, {
		name:  "with every signature",
		got:   fmt.Sprintf("%.0f a second", perSecond(entries, each.at(0.01))),
		limit: "the same without " + ms(plain.at(0.01)),
		ratio: float64(each.at(0.01)) / float64(plain.at(0.01)),
	}}, nil
}

// verified insists on a log that is whole and anchored.
func verified(ctx context.Context, dir string, options verify.Options) error {
	report, err := verify.Dir(ctx, dir, options)
	if err != nil {
		return err
	}
	if code := report.ExitCode(); code != 0 {
		return fmt.Errorf("the log that was just written does not verify: exit code %d", code)
	}
	return nil
}

// writeLog writes n entries in batches as large as they come and returns the
// log's genesis.
func writeLog(ctx context.Context, dir string, n int) (genesis string, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	key, id := make([]byte, 32), make([]byte, 16)
	_, _ = rand.Read(key)
	_, _ = rand.Read(id)
	log, _, err := audit.Open(audit.Config{
		Dir: dir, KeyFile: filepath.Join(filepath.Dir(dir), "audit.key"), SealKey: key,
		VaultID: hex.EncodeToString(id), Fresh: true, WaitLimit: time.Minute,
	})
	if err != nil {
		return "", err
	}
	var last audit.Ticket
	for i := range n {
		last, err = log.Append(func(uint64, time.Time) (audit.Entry, error) { return acquired(i), nil })
		if err != nil {
			return "", err
		}
		if i%64 == 63 { // as many as ask at once
			if err := last.Wait(ctx); err != nil {
				return "", err
			}
		}
	}
	if err := last.Wait(ctx); err != nil {
		return "", err
	}
	genesis = log.Head().Genesis
	return genesis, log.Close()
}

func acquired(i int) audit.Entry {
	bytes := int64(1024)
	return audit.Entry{
		Kind: audit.Acquire, RunID: "kfqwmzptcx", SubjectID: subject, Tier: "cooperative",
		Peer: &audit.Peer{UID: 1000, PID: 4242}, ShimVersion: "bench",
		ResourceID: fmt.Sprintf("project.docs.r%07d", i), Version: 1, Action: "read", GrantID: "mvhzrkqypd",
		Decision: "allow", ReasonCode: "ALLOWED", Disclosed: "yes", Bytes: &bytes,
	}
}

func hashAll(files []string) error {
	for _, name := range files {
		content, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		sha256.Sum256(content)
	}
	return nil
}
