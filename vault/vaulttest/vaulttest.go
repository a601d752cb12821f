// Package vaulttest makes real vaults in temporary directories for tests, with keys in memory and a journal that remembers.
package vaulttest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"

	"subjectbroker/vault"
)

// New makes an empty, unlocked vault. When the test ends it must verify, contents included, unless it was closed or is locked;
// then it is closed.
func New(t testing.TB) *vault.Vault {
	t.Helper()
	v, err := vault.Create(t.Context(), Config(t))
	if err != nil {
		t.Fatalf("creating a vault: %v", err)
	}
	Check(t, v)
	return v
}

// Config is a configuration for a vault that does not exist yet, in a directory of its own, with keys in memory.
func Config(t testing.TB) vault.Config {
	t.Helper()
	return vault.Config{File: filepath.Join(t.TempDir(), "vault.db"), Keys: &Keys{}}
}

// Check verifies and closes a vault when the test ends.
func Check(t testing.TB, v *vault.Vault) {
	t.Helper()
	t.Cleanup(func() {
		err := v.Verify(true, nil)
		if err != nil && !errors.Is(err, vault.ErrLocked) && !errors.Is(err, vault.ErrClosed) {
			t.Errorf("after the test: %v", err)
		}
		if err := v.Close(); err != nil {
			t.Errorf("after the test: %v", err)
		}
	})
}

// Put stores content under a name in a mutation of its own.
func Put(t testing.TB, v *vault.Vault, name, kind, content string) vault.Record {
	t.Helper()
	var rec vault.Record
	err := v.Mutate(&Journal{}, func(tx *vault.Tx) (err error) {
		rec, err = tx.PutContent(name, kind, []byte(content))
		return err
	})
	if err != nil {
		t.Fatalf("putting %s: %v", name, err)
	}
	return rec
}

// Keys is a key source in memory. The zero value is empty and ready; it is safe for concurrent use.
type Keys struct {
	// As is the kind it passes for; empty: file.
	As string

	mu   sync.Mutex
	keys map[string][]byte
	err  error
}

var _ vault.KeySource = (*Keys)(nil)

// Fail makes every later call return err; nil ends it.
func (k *Keys) Fail(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.err = err
}

// Only returns the one key that is stored, and fails the program if there are more or none.
func (k *Keys) Only() []byte {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.keys) != 1 {
		panic(fmt.Sprintf("vaulttest: %d keys", len(k.keys)))
	}
	for _, key := range k.keys {
		return bytes.Clone(key)
	}
	return nil
}

// Kind implements vault.KeySource.
func (k *Keys) Kind() string {
	if k.As != "" {
		return k.As
	}
	return "file"
}

// Load implements vault.KeySource.
func (k *Keys) Load(_ context.Context, vaultID string) ([]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.err != nil {
		return nil, k.err
	}
	key, ok := k.keys[vaultID]
	if !ok {
		return nil, vault.ErrKeyUnavailable
	}
	return bytes.Clone(key), nil
}

// Store implements vault.KeySource.
func (k *Keys) Store(_ context.Context, vaultID string, key []byte) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.err != nil {
		return k.err
	}
	if old, ok := k.keys[vaultID]; ok && !bytes.Equal(old, key) {
		return vault.ErrKeyExists
	}
	if k.keys == nil {
		k.keys = map[string][]byte{}
	}
	k.keys[vaultID] = bytes.Clone(key)
	return nil
}

// Remove implements vault.KeySource.
func (k *Keys) Remove(_ context.Context, vaultID string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.err != nil {
		return k.err
	}
	if _, ok := k.keys[vaultID]; !ok {
		return vault.ErrKeyUnavailable
	}
	delete(k.keys, vaultID)
	return nil
}

// Journal remembers what a vault said to it, as "intent 7", "applied 7". The zero value is ready.
type Journal struct {
	mu    sync.Mutex
	calls []string
	// OnIntent and OnApplied, if set, run in the calls and may fail them.
	OnIntent, OnApplied func(generation uint64, digest [32]byte) error
}

var _ vault.Journal = (*Journal)(nil)

// Intent implements vault.Journal. The position is made up: the generation is the sequence number.
func (j *Journal) Intent(generation uint64, digest [32]byte) (vault.Checkpoint, error) {
	j.note(fmt.Sprintf("intent %d", generation))
	if j.OnIntent != nil {
		if err := j.OnIntent(generation, digest); err != nil {
			return vault.Checkpoint{}, err
		}
	}
	return vault.Checkpoint{Segment: 1, Seq: generation, Hash: digest}, nil
}

// Applied implements vault.Journal.
func (j *Journal) Applied(generation uint64, digest [32]byte) error {
	j.note(fmt.Sprintf("applied %d", generation))
	if j.OnApplied != nil {
		return j.OnApplied(generation, digest)
	}
	return nil
}

func (j *Journal) note(call string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.calls = append(j.calls, call)
}

// Calls returns what was called so far.
func (j *Journal) Calls() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return append([]string(nil), j.calls...)
}
