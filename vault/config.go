package vault

import (
	"context"
	"fmt"
	"path/filepath"
	"time"
)

// Config says where a vault is and where its key is.
type Config struct {
	// File is the absolute path of the vault. Required.
	File string
	// Keys holds the slot key. Required, except by OpenLocked: whoever must read the recorded kind first passes the source to
	// UnlockWith.
	Keys KeySource
	// Now is the clock for the times in records. Nil: time.Now.
	Now func() time.Time
	// MaxContent limits one content, in bytes; exactly the limit is allowed. 0: DefaultMaxContent. At most HardMaxContent.
	MaxContent int
	// ReadOnly opens the file without a right to write, and leaves the key file as it is. Other readers may have it open
	// too.
	ReadOnly bool

	// step is called between the steps of Create, and of changes of keys, by tests that crash there.
	step func(name string)
	// cost is that of new passphrases, which tests lower.
	cost cost
}

// KeySource keeps one 32-byte slot key outside the vault, which wraps the root key. Calls may block until their context
// ends, and end soon after it; they need not be safe for concurrent use. What a person keeps comes by Passphrase and Recovery.
type KeySource interface {
	// Kind is the word that the vault records: "keychain" or "file".
	Kind() string
	// Load returns the key stored for a vault; the caller wipes it. ErrKeyUnavailable if the source has none,
	// ErrKeyNotAnswering if it cannot say, ErrKeyFileUnsafe.
	Load(ctx context.Context, vaultID string) ([]byte, error)
	// Store keeps the key and has read it back when it returns. It never overwrites a different key: ErrKeyExists.
	Store(ctx context.Context, vaultID string, key []byte) error
	// Remove forgets the key. ErrKeyUnavailable if there is none.
	Remove(ctx context.Context, vaultID string) error
}

// Committer is implemented by key sources whose Store is provisional until the vault is in place. Commit is called after
// the vault exists, and after each unlock, when it finds the work done already; Load finds provisional keys too.
type Committer interface {
	Commit(ctx context.Context, vaultID string) error
}

func (c *Config) check(needKeys bool) error {
	switch {
	case c.File == "" || !filepath.IsAbs(c.File):
		return fmt.Errorf("%w: Config.File must be an absolute path", ErrInvalid)
	case needKeys && c.Keys == nil:
		return fmt.Errorf("%w: Config.Keys is required", ErrInvalid)
	case c.MaxContent < 0 || c.MaxContent > HardMaxContent:
		return fmt.Errorf("%w: Config.MaxContent must be at most %d", ErrInvalid, HardMaxContent)
	}
	if c.MaxContent == 0 {
		c.MaxContent = DefaultMaxContent
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.cost == (cost{}) {
		c.cost = newCost
	}
	if c.step == nil {
		c.step = func(string) {}
	}
	return nil
}
