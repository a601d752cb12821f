package vault_test

import (
	"bytes"
	"context"
	"errors"
	"testing"

	bolt "go.etcd.io/bbolt"

	"subjectbroker/vault"
	"subjectbroker/vault/vaulttest"
)

// P2: a row moved to another name or bucket never opens.
func TestSwappedRows(t *testing.T) {
	fill := []func(*vault.Tx) error{
		put("a", vault.KindText, "content of a"), put("b", vault.KindText, "content of b"),
		put("a", vault.KindText, "second content of a"),
		row("grants", "g1", "one"), row("grants", "g2", "two"), row("subjects", "g1", "three"),
	}
	swap := func(bucket1, name1, bucket2, name2 string) func(t *testing.T, tx *bolt.Tx) {
		return func(t *testing.T, tx *bolt.Tx) {
			one, two := stored(tx, bucket1, name1), stored(tx, bucket2, name2)
			store(t, tx, bucket1, name1, two)
			store(t, tx, bucket2, name2, one)
		}
	}
	t.Run("contents", func(t *testing.T) {
		// Contents are judged when they are read: the rest goes on.
		for name, test := range map[string]struct {
			change    func(*testing.T, *bolt.Tx)
			bad, good string
			version   uint32
		}{
			"two resources": {change: swap("contents", "a/2", "contents", "b/1"), bad: "a", version: 0},
			"two versions":  {change: swap("contents", "a/1", "contents", "a/2"), bad: "a", version: 1, good: "b"},
			"gone": {change: func(t *testing.T, tx *bolt.Tx) {
				if err := tx.Bucket([]byte("contents")).Delete([]byte("b/1")); err != nil {
					t.Fatal(err)
				}
			}, bad: "b", good: "a"},
			"emptied": {change: func(t *testing.T, tx *bolt.Tx) { store(t, tx, "contents", "b/1", nil) }, bad: "b", good: "a"},
		} {
			t.Run(name, func(t *testing.T) {
				cfg := build(t, fill...)
				tamper(t, cfg, func(tx *bolt.Tx) { test.change(t, tx) })
				v := open(t, cfg)
				content, err := read(t, v, test.bad, test.version)
				if !errors.Is(err, vault.ErrIntegrity) || content != "" {
					t.Errorf("read %q, %v", content, err)
				}
				oneLine(t, err)
				if err := v.Verify(false, nil); err != nil {
					t.Errorf("verifying without contents: %v", err)
				}
				if err := v.Verify(true, nil); !errors.Is(err, vault.ErrIntegrity) {
					t.Errorf("verifying contents: %v", err)
				}
				if test.good == "" {
					return
				}
				if _, err := read(t, v, test.good, 0); err != nil {
					t.Errorf("reading the other: %v", err)
				}
			})
		}
	})
	// Everything else is judged before anything is served.
	for name, change := range map[string]func(*testing.T, *bolt.Tx){
		"records":          swap("resources", "a", "resources", "b"),
		"rows":             swap("grants", "g1", "grants", "g2"),
		"rows and buckets": swap("grants", "g1", "subjects", "g1"),
		"row gone":         func(_ *testing.T, tx *bolt.Tx) { _ = tx.Bucket([]byte("grants")).Delete([]byte("g1")) },
		"bucket gone":      func(_ *testing.T, tx *bolt.Tx) { _ = tx.DeleteBucket([]byte("grants")) },
		"row copied":       func(t *testing.T, tx *bolt.Tx) { store(t, tx, "grants", "g3", stored(tx, "grants", "g1")) },
		"row emptied":      func(t *testing.T, tx *bolt.Tx) { store(t, tx, "grants", "g1", nil) },
		"row in a new bucket": func(t *testing.T, tx *bolt.Tx) {
			if _, err := tx.CreateBucket([]byte("new")); err != nil {
				t.Fatal(err)
			}
			store(t, tx, "new", "g1", stored(tx, "grants", "g1"))
		},
		"slot added":   func(t *testing.T, tx *bolt.Tx) { store(t, tx, "slots", "2.file", stored(tx, "slots", "1.file")) },
		"state copied": func(t *testing.T, tx *bolt.Tx) { store(t, tx, "state", "state", stored(tx, "grants", "g1")) },
		"keyring":      func(t *testing.T, tx *bolt.Tx) { store(t, tx, "keyring", "keyring", stored(tx, "state", "state")) },
		"vault ID": func(t *testing.T, tx *bolt.Tx) {
			id := stored(tx, "meta", "vaultID")
			id[0] = "10"[id[0]&1] // another hex digit
			store(t, tx, "meta", "vaultID", id)
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := build(t, fill...)
			tamper(t, cfg, func(tx *bolt.Tx) { change(t, tx) })
			if name == "vault ID" {
				// The key in memory goes by the ID; a key file does not.
				cfg.Keys = anyKey{cfg.Keys.(*vaulttest.Keys)}
			}
			_, err := vault.Open(t.Context(), cfg)
			if !errors.Is(err, vault.ErrIntegrity) && !errors.Is(err, vault.ErrWrongKey) {
				t.Fatalf("opens with %v", err)
			}
			oneLine(t, err)
		})
	}
}

// anyKey answers with its one key, whatever vault is asked for.
type anyKey struct{ *vaulttest.Keys }

func (k anyKey) Load(context.Context, string) ([]byte, error) { return k.Only(), nil }

// P3: older rows put back, alone and together, are noticed.
func TestOlderRows(t *testing.T) {
	type place struct{ bucket, name string }
	for name, test := range map[string]struct {
		rows []place
		want error // nil: opens, because a whole older moment can only be told from outside
	}{
		"a row":                {[]place{{"grants", "g"}}, vault.ErrIntegrity},
		"a record":             {[]place{{"resources", "a"}}, vault.ErrIntegrity},
		"the state":            {[]place{{"state", "state"}}, vault.ErrIntegrity},
		"row and state":        {[]place{{"grants", "g"}, {"state", "state"}}, vault.ErrIntegrity},
		"record and content":   {[]place{{"resources", "a"}, {"contents", "a/1"}}, vault.ErrIntegrity},
		"everything but state": {[]place{{"grants", "g"}, {"resources", "a"}, {"contents", "a/1"}}, vault.ErrIntegrity},
		"everything":           {[]place{{"grants", "g"}, {"resources", "a"}, {"contents", "a/1"}, {"state", "state"}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := build(t, func(tx *vault.Tx) error {
				return errors.Join(row("grants", "g", "allow")(tx), put("a", vault.KindText, "old")(tx))
			})
			old := map[place][]byte{}
			tamper(t, cfg, func(tx *bolt.Tx) {
				for _, p := range test.rows {
					old[p] = stored(tx, p.bucket, p.name)
				}
			})
			v := open(t, cfg)
			mutate(t, v, func(tx *vault.Tx) error {
				return errors.Join(row("grants", "g", "deny")(tx), tx.Remove("a"), put("a", vault.KindText, "new")(tx))
			})
			if err := v.Close(); err != nil {
				t.Fatal(err)
			}
			tamper(t, cfg, func(tx *bolt.Tx) {
				for p, value := range old {
					store(t, tx, p.bucket, p.name, value)
				}
			})
			v, err := vault.Open(t.Context(), cfg)
			if !errors.Is(err, test.want) {
				t.Fatalf("opens with %v, want %v", err, test.want)
			}
			if err != nil {
				return
			}
			defer v.Close()
			// This is what the daemon compares with its log.
			if got := v.State(); got.Generation != 1 || got.Checkpoint.Seq != 1 {
				t.Errorf("state %+v does not show that it is old", got)
			}
		})
	}
}

// An older content under a resource that was made anew.
func TestOlderContentOfAnotherLife(t *testing.T) {
	cfg := build(t, put("a", vault.KindText, "first life"))
	var old []byte
	tamper(t, cfg, func(tx *bolt.Tx) { old = stored(tx, "contents", "a/1") })
	v := open(t, cfg)
	mutate(t, v, func(tx *vault.Tx) error { return tx.Remove("a") })
	mutate(t, v, put("a", vault.KindText, "second life"))
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	tamper(t, cfg, func(tx *bolt.Tx) { store(t, tx, "contents", "a/1", old) })
	if content, err := read(t, open(t, cfg), "a", 0); !errors.Is(err, vault.ErrIntegrity) {
		t.Fatalf("read %q, %v", content, err)
	}
}

// Content nobody's record names is harmless, and verify tells.
func TestStrayContent(t *testing.T) {
	cfg := build(t, put("a", vault.KindText, "x"))
	tamper(t, cfg, func(tx *bolt.Tx) { store(t, tx, "contents", "zz/1", stored(tx, "contents", "a/1")) })
	v := open(t, cfg)
	if err := v.Verify(true, nil); !errors.Is(err, vault.ErrIntegrity) {
		t.Fatalf("verifies with %v", err)
	}
}

// Every bit of every stored value: what is not refused is not changed.
func TestFlippedValues(t *testing.T) {
	cfg := build(t, put("a", vault.KindText, "content"), row("grants", "g", "value"))
	type place struct{ bucket, name string }
	values := map[place][]byte{}
	tamper(t, cfg, func(tx *bolt.Tx) {
		_ = tx.ForEach(func(bucket []byte, b *bolt.Bucket) error {
			return b.ForEach(func(name, value []byte) error {
				values[place{string(bucket), string(name)}] = bytes.Clone(value)
				return nil
			})
		})
	})
	if len(values) < 7 {
		t.Fatalf("only %d rows", len(values))
	}
	cfg.Keys = anyKey{cfg.Keys.(*vaulttest.Keys)}
	flips := 0
	for p, value := range values {
		for i := range value {
			changed := bytes.Clone(value)
			changed[i] ^= 1 << (i % 8)
			flips++
			tamper(t, cfg, func(tx *bolt.Tx) { store(t, tx, p.bucket, p.name, changed) })
			v, err := vault.Open(t.Context(), cfg)
			if err == nil {
				err = v.Verify(true, nil)
				v.Close()
			}
			if err == nil {
				t.Fatalf("%s/%s: a flip in byte %d of %q goes unnoticed", p.bucket, p.name, i, value)
			}
			oneLine(t, err)
		}
		tamper(t, cfg, func(tx *bolt.Tx) { store(t, tx, p.bucket, p.name, value) })
	}
	t.Logf("%d flips", flips)
	open(t, cfg)
}
