// Package keysource keeps the slot key of a vault outside of it: in a file of its own, or in the desktop's keychain.
//
// It protects the key from other users of the machine, from being overwritten, and the daemon from key stores that hang,
// crash or claim to have stored what they did not. It protects nothing from a hostile process of the same user, which can
// read the file, and can ask the keychain as well as we can.
package keysource

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"time"

	"subjectbroker/vault"
)

// Kinds of key source.
const (
	KindFile     = "file"
	KindKeychain = "keychain"
)

// Time-outs for one use of a keychain: with nobody there, and with a person who may have to type a password.
const (
	Timeout            = 5 * time.Second
	InteractiveTimeout = 60 * time.Second
)

const keySize = 32

// Auto chooses the key source for a new vault: the keychain if within Timeout it stores a probe, gives it back and forgets it,
// else the file. why is what was wrong with the keychain, nil when it was chosen.
func Auto(ctx context.Context, keychain, file vault.KeySource) (chosen vault.KeySource, why error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	probe := make([]byte, keySize)
	rand.Read(probe)
	// The name cannot be a vault's: those are hex alone.
	account := "probe-" + hex.EncodeToString(probe[:8])
	if err := keychain.Store(ctx, account, probe); err != nil {
		return file, err
	}
	if err := keychain.Remove(ctx, account); err != nil {
		return file, err
	}
	return keychain, nil
}
