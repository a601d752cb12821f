package vault_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	bolt "go.etcd.io/bbolt"

	"subjectbroker/vault"
	"subjectbroker/vault/vaulttest"
)

// termsIn counts the rows of a closed vault by the term they are sealed under.
func termsIn(t testing.TB, cfg vault.Config) map[string]int {
	t.Helper()
	terms := map[string]int{}
	tamper(t, cfg, func(tx *bolt.Tx) {
		err := tx.ForEach(func(name []byte, b *bolt.Bucket) error {
			if string(name) == "meta" || string(name) == "slots" {
				return nil
			}
			return b.ForEach(func(_, value []byte) error {
				terms[strings.Split(string(value), ":")[1]]++
				return nil
			})
		})
		if err != nil {
			t.Fatal(err)
		}
	})
	return terms
}

func rotate(t testing.TB, v *vault.Vault) uint32 {
	t.Helper()
	term, err := v.Rotate(&vaulttest.Journal{})
	if err != nil {
		t.Fatal(err)
	}
	return term
}

// rewrapAll rewraps until nothing is left, and returns the number of mutations it took.
func rewrapAll(t testing.TB, v *vault.Vault, limit int) (mutations, rows int) {
	t.Helper()
	before := v.State().Generation
	for {
		done, left, err := v.Rewrap(&vaulttest.Journal{}, limit)
		if err != nil {
			t.Fatal(err)
		}
		if rows += done; left == 0 {
			return int(v.State().Generation - before), rows
		}
		if done == 0 {
			t.Fatalf("nothing was done and %d are left", left)
		}
	}
}

func TestRotateAndRewrap(t *testing.T) {
	cfg := build(t,
		put("a", vault.KindText, "first"), put("a", vault.KindText, "second"), put("b", vault.KindSecret, "other"),
		row("grants", "g", "allow"), row("grants", "h", "deny"), row("subjects", "s", "x"),
	)
	v := open(t, cfg)
	updated := func() (at []string) {
		err := v.View(func(tx *vault.Tx) error {
			return tx.Records(func(rec vault.Record) error {
				at = append(at, rec.Updated.String())
				return nil
			})
		})
		if err != nil {
			t.Fatal(err)
		}
		return at
	}
	times := updated()
	if term := rotate(t, v); term != 2 {
		t.Errorf("the new term is %d", term)
	}
	if newest, old := v.Terms(); newest != 2 || !slices.Equal(old, []uint32{1}) {
		t.Errorf("terms %d, %v", newest, old)
	}
	mutate(t, v, put("b", vault.KindSecret, "newer")) // content b/2 and the record are of term 2 now
	rotate(t, v)
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]int{"0": 1, "1": 7, "2": 2, "3": 1}, termsIn(t, cfg)); diff != "" {
		t.Errorf("terms in the file (-want +got):\n%s", diff)
	}

	v = open(t, cfg)
	done, left, err := v.Rewrap(&vaulttest.Journal{}, 2)
	if err != nil || done != 2 || left != 8 { // a version of a and its record; the keyring is the last
		t.Errorf("the first step: %d, %d, %v", done, left, err)
	}
	// Half way everything opens, in another process, too, which goes on.
	if err := v.Verify(true, nil); err != nil {
		t.Error(err)
	}
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	v = open(t, cfg)
	if mutations, rows := rewrapAll(t, v, 2); mutations < 3 || rows != 8 {
		t.Errorf("%d mutations for %d rows", mutations, rows)
	}
	if newest, old := v.Terms(); newest != 3 || len(old) != 0 {
		t.Errorf("terms %d, %v", newest, old)
	}
	if got, err := read(t, v, "a", 1); got != "first" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if diff := cmp.Diff(times[0], updated()[0]); diff != "" {
		t.Errorf("it counts as a change: %s", diff)
	}
	// Nothing to do is nothing done.
	before := v.State()
	if done, left, err := v.Rewrap(&vaulttest.Journal{}, 2); done != 0 || left != 0 || err != nil {
		t.Errorf("again: %d, %d, %v", done, left, err)
	}
	if diff := cmp.Diff(before, v.State()); diff != "" {
		t.Errorf("again: %s", diff)
	}
	if err := v.Verify(true, nil); err != nil {
		t.Error(err)
	}
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]int{"0": 1, "3": 10}, termsIn(t, cfg)); diff != "" {
		t.Errorf("terms in the file (-want +got):\n%s", diff)
	}
}

// A row of a term that was dropped does not open: what a thief of the old keys could write is as good as damage.
func TestDroppedTermOpensNothing(t *testing.T) {
	cfg := build(t, put("a", vault.KindText, "old"), row("grants", "g", "allow"))
	before := copyOf(t, cfg)
	v := open(t, cfg)
	rotate(t, v)
	rewrapAll(t, v, 100)
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	for _, place := range [][2]string{{"grants", "g"}, {"state", "state"}, {"contents", "a/1"}, {"keyring", "keyring"}} {
		t.Run(place[0], func(t *testing.T) {
			forged := copyOf(t, cfg)
			forged.Keys = cfg.Keys
			var old []byte
			tamper(t, before, func(tx *bolt.Tx) { old = stored(tx, place[0], place[1]) })
			tamper(t, forged, func(tx *bolt.Tx) { store(t, tx, place[0], place[1], old) })
			v, err := vault.Open(t.Context(), forged)
			if place[0] == "contents" {
				if err != nil {
					t.Fatal(err)
				}
				_, err = read(t, v, "a", 0)
				_ = v.Close()
			}
			if !errors.Is(err, vault.ErrIntegrity) {
				t.Fatalf("says %v", err)
			}
			oneLine(t, err)
		})
	}
}

// One damaged content does not keep the others from being rewrapped; its term stays, and is not dropped over it.
func TestRewrapGoesAroundDamage(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, tx *bolt.Tx){
		"swapped": func(t *testing.T, tx *bolt.Tx) { store(t, tx, "contents", "b/1", stored(tx, "contents", "a/1")) },
		"orphan":  func(t *testing.T, tx *bolt.Tx) { store(t, tx, "contents", "x/1", stored(tx, "contents", "a/1")) },
		"version": func(t *testing.T, tx *bolt.Tx) { store(t, tx, "contents", "b/2", stored(tx, "contents", "a/1")) },
		"no name": func(t *testing.T, tx *bolt.Tx) { store(t, tx, "contents", "b", stored(tx, "contents", "a/1")) },
	} {
		t.Run(name, func(t *testing.T) {
			cfg := build(t, put("a", vault.KindText, "a"), put("b", vault.KindText, "b"), put("c", vault.KindText, "c"))
			tamper(t, cfg, func(tx *bolt.Tx) { change(t, tx) })
			v := open(t, cfg)
			rotate(t, v)
			for range 2 {
				var err error
				var left int
				for range 10 {
					if _, left, err = v.Rewrap(&vaulttest.Journal{}, 1); err != nil {
						break
					}
				}
				if !errors.Is(err, vault.ErrIntegrity) || left != 2 {
					t.Errorf("%d left, %v", left, err)
				}
				if newest, old := v.Terms(); newest != 2 || !slices.Equal(old, []uint32{1}) {
					t.Errorf("terms %d, %v", newest, old)
				}
			}
			if got, err := read(t, v, "c", 0); got != "c" || err != nil {
				t.Errorf("%q, %v", got, err)
			}
			if name != "swapped" {
				return
			}
			mutate(t, v, func(tx *vault.Tx) error { return tx.Remove("b") })
			rewrapAll(t, v, 10)
			if err := v.Verify(true, nil); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestRewrapRefusesNoLimit(t *testing.T) {
	v := vaulttest.New(t)
	if _, _, err := v.Rewrap(&vaulttest.Journal{}, 0); !errors.Is(err, vault.ErrInvalid) {
		t.Errorf("says %v", err)
	}
}

// A mutation that is not recorded or refused leaves a pass that goes on.
func TestRewrapAfterFaults(t *testing.T) {
	fill := []func(*vault.Tx) error{}
	for i := range 10 {
		fill = append(fill, row("grants", fmt.Sprint(i), "allow"))
	}
	v := open(t, build(t, fill...))
	rotate(t, v)
	refuse := &vaulttest.Journal{OnIntent: func(uint64, [32]byte) error { return errCrash }}
	forget := &vaulttest.Journal{OnApplied: func(uint64, [32]byte) error { return errCrash }}
	for range 3 {
		if done, left, err := v.Rewrap(refuse, 2); done != 0 || left < 1 || !errors.Is(err, errCrash) {
			t.Errorf("refused: %d, %d, %v", done, left, err)
		}
		if done, _, err := v.Rewrap(forget, 2); done != 2 || !errors.Is(err, vault.ErrNotRecorded) {
			t.Errorf("not recorded: %d, %v", done, err)
		}
	}
	if _, rows := rewrapAll(t, v, 3); rows != 5 {
		t.Errorf("%d rows were left", rows)
	}
	if err := v.Verify(true, nil); err != nil {
		t.Error(err)
	}
	// The last mutation, which drops the old term, is refused and not recorded like any other.
	rotate(t, v)
	for {
		if _, left, err := v.Rewrap(&vaulttest.Journal{}, 4); err != nil || left == 1 {
			break
		}
	}
	if _, left, err := v.Rewrap(refuse, 4); left != 1 || !errors.Is(err, errCrash) {
		t.Errorf("refused: %d, %v", left, err)
	}
	if _, old := v.Terms(); len(old) != 1 {
		t.Errorf("old terms %v", old)
	}
	if _, _, err := v.Rewrap(forget, 4); !errors.Is(err, vault.ErrNotRecorded) {
		t.Errorf("not recorded: %v", err)
	}
	if _, old := v.Terms(); len(old) != 0 {
		t.Errorf("old terms %v", old)
	}
}

// Rewrapping goes on beside readers, writers, rotations, rekeys, locks and checkpoints, and loses nothing.
func TestRewrapBesideEverything(t *testing.T) {
	cfg := build(t)
	v := open(t, cfg)
	const writers, rounds = 3, 12
	ctx, stop := context.WithCancel(t.Context())
	var work, background sync.WaitGroup
	name := func(w int) string { return fmt.Sprintf("r%d", w) }
	ok := func(what string, err error) bool {
		if err != nil && !errors.Is(err, vault.ErrLocked) && !errors.Is(err, vault.ErrBusy) {
			t.Errorf("%s: %v", what, err)
		}
		return err == nil
	}
	for w := range writers {
		mutate(t, v, put(name(w), vault.KindText, "0"))
		work.Go(func() {
			for i := 1; i <= rounds; {
				if ok("putting", v.Mutate(&vaulttest.Journal{}, put(name(w), vault.KindText, fmt.Sprint(i)))) {
					i++
				} else {
					time.Sleep(time.Millisecond)
				}
			}
		})
	}
	// A pause is for the others: a change of keys waits for a moment without readers.
	loop := func(fn func()) {
		background.Go(func() {
			for ctx.Err() == nil {
				fn()
				time.Sleep(5 * time.Millisecond)
			}
		})
	}
	for range 2 {
		loop(func() {
			ok("reading", v.View(func(tx *vault.Tx) error {
				return tx.Records(func(rec vault.Record) error {
					for _, ver := range rec.Versions {
						if content, _, err := tx.Content(rec.Name, ver.N); err != nil || string(content) != fmt.Sprint(ver.N-1) {
							return fmt.Errorf("%s version %d is %s, %w", rec.Name, ver.N, content, err)
						}
					}
					return nil
				})
			}))
		})
	}
	loop(func() { _, _, err := v.Rewrap(&vaulttest.Journal{}, 3); ok("rewrapping", err) })
	loop(func() { ok("rotating", second(v.Rotate(&vaulttest.Journal{}))) })
	loop(func() { ok("rekeying", v.Rekey(ctx, &vaulttest.Journal{}, []vault.KeySource{cfg.Keys})) })
	loop(func() { ok("checkpoint", v.WriteCheckpoint(vault.Marks{BootID: "b"})) })
	loop(func() {
		v.Lock()
		ok("unlocking", v.Unlock(t.Context()))
	})
	loop(func() { v.Slots(); v.Terms(); v.KeyKind(); v.UnlockedBy() })
	work.Wait()
	stop()
	background.Wait()
	if err := v.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	rewrapAll(t, v, 10)
	if err := v.Verify(true, nil); err != nil {
		t.Error(err)
	}
	for w := range writers {
		if got, err := read(t, v, name(w), 0); err != nil || got != fmt.Sprint(rounds) {
			t.Errorf("%s is %q, %v", name(w), got, err)
		}
	}
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	if terms := termsIn(t, cfg); len(terms) != 2 {
		t.Errorf("terms in the file: %v", terms)
	}
}
