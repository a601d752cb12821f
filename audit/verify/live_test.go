package verify_test

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"subjectbroker/audit"
	"subjectbroker/audit/audittest"
	"subjectbroker/audit/verify"
)

// Verifying, and bundling, a log that is written, rotated and pruned meanwhile
// finds it intact, every time.
func TestWhileWriting(t *testing.T) {
	config := audittest.Config(t)
	config.SegmentSize = 20_000
	l := audittest.Open(t, config)
	var over atomic.Bool
	var round atomic.Int64 // how long the last one took
	var group sync.WaitGroup
	for range 3 {
		group.Go(func() {
			for !over.Load() {
				if _, err := l.Record(t.Context(), sample(2)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	group.Go(func() {
		// Seldom enough that a reader is not overtaken each time, however slow it is.
		for oldest := uint32(1); !over.Load(); time.Sleep(max(20*time.Millisecond, time.Duration(round.Load())/2)) {
			if at, _ := l.Durable(); at.Segment < oldest+8 {
				continue
			}
			if err := pruneOldest(l, config.Dir, oldest); err != nil {
				t.Error(err)
				return
			}
			oldest++
		}
	})
	newest := func() *verify.Head {
		head := l.Head()
		return &verify.Head{Genesis: head.Genesis, VaultID: head.VaultID, Seq: head.Seq, Hash: hex.EncodeToString(head.Hash[:])}
	}
	path := filepath.Join(t.TempDir(), "bundle.tar")
	rounds, pruned := 0, 0
	begun := time.Now()
	meanwhile := func() bool { // enough has happened, or never will
		at, _ := l.Durable()
		return rounds >= 5 && at.Segment >= 3 && pruned > 0 && time.Since(begun) > 3*time.Second || time.Since(begun) > time.Minute
	}
	for ; !meanwhile(); rounds++ {
		began := time.Now()
		head := newest()
		report, err := verify.Dir(t.Context(), config.Dir, verify.Options{Head: head, AllSignatures: rounds%2 == 0})
		if errors.Is(err, verify.ErrPruning) {
			continue
		}
		if err == nil && report.ExitCode() == verify.ExitUnproven && strings.Contains(strings.Join(report.Notes, "\n"), "pruned meanwhile") {
			continue // as it may be on a machine that stood still for so long
		}
		if err != nil || report.ExitCode() != verify.ExitProven || report.Last.Seq < head.Seq {
			t.Fatalf("round %d: %v, exit %d: %v", rounds, err, report.ExitCode(), &report)
		}
		pruned = len(report.Pruned)

		f, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		head = newest()
		if _, err = verify.WriteBundle(t.Context(), f, config.Dir, verify.BundleOptions{Head: head}); err != nil {
			f.Close()
			if errors.Is(err, verify.ErrPruning) {
				continue
			}
			t.Fatalf("round %d: %v", rounds, err)
		}
		f.Close()
		report = checkBundle(t, path, verify.Options{Genesis: head.Genesis})
		if report.ExitCode() != verify.ExitProven || report.Last.Seq != head.Seq {
			t.Fatalf("round %d: the bundle ends at %d, and was made at %d: %v", rounds, report.Last.Seq, head.Seq, &report)
		}
		round.Store(int64(time.Since(began)))
	}
	over.Store(true)
	group.Wait()
	at, _ := l.Durable()
	t.Logf("%d rounds, %d entries, %d segments, %d of them pruned", rounds, at.Seq, at.Segment, pruned)
	if at.Segment < 3 || pruned == 0 {
		t.Errorf("nothing happened meanwhile: %+v, %d pruned", at, pruned)
	}
}

// A rotation that goes on meanwhile is no missing segment, also for somebody who
// has nothing but the files.
func TestWhileRotating(t *testing.T) {
	config := audittest.Config(t)
	l := audittest.Open(t, config)
	genesis := l.Head().Genesis
	var over atomic.Bool
	var group sync.WaitGroup
	group.Go(func() {
		for !over.Load() {
			if err := l.Rotate(); err != nil {
				t.Error(err)
			}
			time.Sleep(10 * time.Millisecond) // more often, and the log outgrows its readers
		}
	})
	for round := 0; ; round++ {
		if at, _ := l.Durable(); round >= 20 && at.Segment > 10 {
			break
		}
		report, err := verify.Dir(t.Context(), config.Dir, verify.Options{Genesis: genesis})
		if err != nil || report.ExitCode() != verify.ExitProven && report.Torn == 0 {
			t.Errorf("round %d: %v, exit %d: %v", round, err, report.ExitCode(), &report)
		}
	}
	over.Store(true)
	group.Wait()
}

func pruneOldest(l *audit.Log, dir string, number uint32) error {
	content, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("%08d.jsonl", number)))
	if err != nil {
		return err
	}
	_, err = l.Prune([]audit.Copy{{Segment: number, SHA256: sha256.Sum256(content)}}, false)
	return err
}
