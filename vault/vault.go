package vault

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// Limits on content, in bytes.
const (
	DefaultMaxContent = 1 << 20
	HardMaxContent    = 4 << 20
)

// Buckets and rows with a meaning of their own.
const (
	bucketMeta     = "meta"
	bucketSlots    = "slots"
	bucketKeyring  = "keyring"
	bucketState    = "state"
	bucketRecords  = "resources"
	bucketContents = "contents"

	rowFormat  = "format"
	rowVaultID = "vaultID"
	rowKeyring = "keyring"
	rowState   = "state"

	formatNumber = 1
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

	// step is called between the steps of Create by tests that crash there.
	step func(name string)
}

// KeySource keeps one 32-byte slot key outside the vault, which wraps the root key. Calls may block until their context
// ends, and end soon after it; they need not be safe for concurrent use.
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
	if c.step == nil {
		c.step = func(string) {}
	}
	return nil
}

// Vault is an open vault file. Its methods are safe for concurrent use.
type Vault struct {
	cfg  Config
	id   string
	kind string // of the first slot

	// life is held for reading by everything that uses store or keys, and for writing by whatever changes them. A function
	// running inside must not take it again: with a writer waiting between the two, both would wait for ever.
	life  sync.RWMutex
	store rowStore // nil after a failed Reopen
	slots []slotRow
	keys  *keyset // nil while locked

	unlocking sync.Mutex // one unlock attempt at a time; before life
	attempts  atomic.Uint64
	attempt   error      // what the last one came to; guarded by unlocking
	mutating  sync.Mutex // one mutation or checkpoint at a time; after life
	stopping  atomic.Int32

	locked atomic.Bool
	pool   sync.Pool // *scratch

	mu     sync.Mutex // guards what follows; innermost
	failed error
	closed bool
	known  bool // state is of this file
	state  stateRow
	digest [32]byte
}

type slotRow struct {
	name, kind string
	n          uint32
	value      []byte
}

// Open opens an existing vault, unlocks it and verifies that every row outside contents is what the vault last wrote.
//
// Errors: ErrMissing, ErrDamaged, ErrIntegrity, ErrSchema, ErrInUse, the key's errors; see each.
func Open(ctx context.Context, cfg Config) (*Vault, error) {
	if err := cfg.check(true); err != nil {
		return nil, fmt.Errorf("opening vault: %w", err)
	}
	v, err := OpenLocked(cfg)
	if err != nil {
		return nil, err
	}
	if err := v.Unlock(ctx); err != nil {
		return nil, and(err, v.Close())
	}
	return v, nil
}

// OpenLocked opens an existing vault without its key. The file's structure is checked, its rows are not.
func OpenLocked(cfg Config) (*Vault, error) {
	if err := cfg.check(false); err != nil {
		return nil, fmt.Errorf("opening vault: %w", err)
	}
	v := &Vault{cfg: cfg, pool: sync.Pool{New: func() any { return newScratch() }}}
	v.locked.Store(true)
	if err := v.attach(); err != nil {
		return nil, fmt.Errorf("opening vault: %w", err)
	}
	return v, nil
}

// attach opens the file and reads what is readable without a key. The caller holds life, or owns v alone.
func (v *Vault) attach() error {
	store, err := openBolt(v.cfg.File, v.cfg.ReadOnly)
	if err != nil {
		return err
	}
	if err := v.readMeta(store); err != nil {
		return and(err, store.close())
	}
	v.store = store
	return nil
}

func (v *Vault) readMeta(store rowStore) error {
	tx, err := store.begin(false)
	if err != nil {
		return err
	}
	defer tx.rollback()
	format, err := tx.get(bucketMeta, rowFormat)
	if err != nil {
		return err
	}
	if n, ok := parseDecimal(format); !ok || n == 0 {
		return fmt.Errorf("%w: no format number", ErrDamaged)
	} else if n > formatNumber {
		return fmt.Errorf("%w: the vault has format %d, this program knows %d", ErrSchema, n, formatNumber)
	}
	id, err := tx.get(bucketMeta, rowVaultID)
	if err != nil {
		return err
	}
	if !validVaultID(string(id)) {
		return fmt.Errorf("%w: no vault ID", ErrDamaged)
	}
	if v.id != "" && v.id != string(id) {
		return fmt.Errorf("%w: the file now holds vault %s", ErrReplaced, id)
	}
	slots, err := readSlots(tx)
	if err != nil {
		return err
	}
	for _, row := range [][2]string{{bucketKeyring, rowKeyring}, {bucketState, rowState}} {
		stored, err := tx.get(row[0], row[1])
		if err != nil {
			return err
		}
		if stored == nil {
			return fmt.Errorf("%w: no %s row", ErrDamaged, row[1])
		}
	}
	v.slots = slots
	if v.id == "" {
		// Read without a lock by ID and KeyKind, so never written again.
		v.id, v.kind = string(id), slots[0].kind
	}
	return nil
}

// readSlots returns all slots, the first one, which the vault was made with, at the front.
func readSlots(tx rowTx) ([]slotRow, error) {
	var slots []slotRow
	var b batch
	for after := ""; ; after = b.names[len(b.names)-1] {
		if err := tx.scan(bucketSlots, after, &b); err != nil {
			return nil, err
		}
		if len(b.names) == 0 {
			break
		}
		for i, name := range b.names {
			n, kind, err := parseSlotName(name)
			if err != nil {
				return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
			}
			s := slotRow{name: name, kind: kind, n: n, value: append([]byte(nil), b.value(i)...)}
			slots = append(slots, s)
			if n < slots[0].n {
				slots[0], slots[len(slots)-1] = slots[len(slots)-1], slots[0]
			}
		}
	}
	if len(slots) == 0 {
		return nil, fmt.Errorf("%w: no key slot", ErrDamaged)
	}
	return slots, nil
}

// ID returns the vault's ID, 32 lower-case hex digits. While the vault was never unlocked it is what the file claims.
func (v *Vault) ID() string { return v.id }

// KeyKind returns the kind of key source the vault was made with: what the file claims, as for ID.
func (v *Vault) KeyKind() string { return v.kind }

// Unlock fetches the key from Config.Keys and verifies everything again. It does nothing when the vault is unlocked.
// Concurrent calls make one attempt: the others wait for it. On error the vault stays locked.
func (v *Vault) Unlock(ctx context.Context) error { return v.UnlockWith(ctx, v.cfg.Keys) }

// UnlockWith is Unlock with another source, which must be of a kind the vault has a slot for: ErrKeySource.
func (v *Vault) UnlockWith(ctx context.Context, keys KeySource) error {
	if err := v.unlock(ctx, keys); err != nil {
		return fmt.Errorf("unlocking vault: %w", err)
	}
	return nil
}

func (v *Vault) unlock(ctx context.Context, source KeySource) error {
	if source == nil {
		return fmt.Errorf("%w: no key source", ErrInvalid)
	}
	before := v.attempts.Load()
	v.unlocking.Lock()
	defer v.unlocking.Unlock()
	if v.locked.Load() && v.attempts.Load() != before {
		return v.attempt // made while this call waited
	}
	v.attempt = v.tryUnlock(ctx, source)
	v.attempts.Add(1)
	return v.attempt
}

func (v *Vault) tryUnlock(ctx context.Context, source KeySource) error {
	if !v.locked.Load() {
		return nil
	}
	slot, err := v.slotFor(source.Kind())
	if err != nil {
		return err
	}
	// The source may take its time, so nothing is held that Close needs.
	slotKey, err := source.Load(ctx, v.id)
	if err != nil {
		return err
	}
	defer clear(slotKey)
	root, err := unwrapRoot(slot.value, slotKey, v.id, slot.name, slot.kind)
	if err != nil {
		return err
	}

	v.life.Lock()
	defer v.life.Unlock()
	if err := v.usable(); err != nil {
		clear(root)
		return err
	}
	keys, err := v.load(root)
	if err != nil {
		return err
	}
	// Only now is the key known to be right, and only a right key may change anything.
	if c, ok := source.(Committer); ok && !v.cfg.ReadOnly {
		if err := c.Commit(ctx, v.id); err != nil {
			keys.wipe()
			return err
		}
	}
	v.keys = keys
	v.locked.Store(false)
	return nil
}

// slotFor returns the first slot of a kind.
func (v *Vault) slotFor(kind string) (slotRow, error) {
	v.life.RLock()
	defer v.life.RUnlock()
	if err := v.usable(); err != nil {
		return slotRow{}, err
	}
	for _, slot := range v.slots {
		if slot.kind == kind {
			return slot, nil
		}
	}
	return slotRow{}, fmt.Errorf("%w: it was made with %q, not %q", ErrKeySource, v.kind, kind)
}

// load opens the keyring with the root key, which it takes over, and verifies the rows. The caller holds life for writing.
func (v *Vault) load(root []byte) (*keyset, error) {
	tx, err := v.store.begin(false)
	if err != nil {
		clear(root)
		return nil, err
	}
	defer tx.rollback()
	keys, err := openKeyring(tx, root, v.id)
	if err != nil {
		return nil, err
	}
	s := v.scratch()
	defer v.pool.Put(s)
	row, err := keys.openState(s, tx)
	if err == nil {
		err = v.verifyRows(tx, keys, row)
	}
	if err != nil {
		keys.wipe()
		return nil, err
	}
	digest := s.digest(keys.publish, row.generation, row.count, row.acc)
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.known {
		// What this process acknowledged must still be there. Without a failed commit nothing else can be, either.
		switch {
		case row.generation < v.state.generation:
			err = fmt.Errorf("%w: from %d to %d", ErrRollback, v.state.generation, row.generation)
		case row.generation == v.state.generation && digest != v.digest:
			err = fmt.Errorf("%w: generation %d has other rows than before", ErrIntegrity, row.generation)
		}
		if err != nil {
			keys.wipe()
			return nil, err
		}
	}
	v.state, v.digest, v.known = *row, digest, true
	return keys, nil
}

// openKeyring takes over root: it is wiped on error.
func openKeyring(tx rowTx, root []byte, vaultID string) (*keyset, error) {
	keys, err := func() (*keyset, error) {
		stored, err := tx.get(bucketKeyring, rowKeyring)
		if err != nil {
			return nil, err
		}
		// The row key needs the vault's ID and the root key only, so a keyring of nothing else opens the real one.
		bare := &keyset{ring: &keyring{vaultID: vaultID}, rootPRF: newPRF(root)}
		defer bare.rootPRF.wipe()
		plain, err := bare.open(newScratch(), nil, bucketKeyring, rowKeyring, stored)
		if err != nil {
			return nil, err
		}
		defer clear(plain)
		ring, err := decodeKeyring(plain)
		switch {
		case errors.Is(err, ErrSchema):
			return nil, err
		case err != nil:
			return nil, fmt.Errorf("keyring: %w: %w", ErrIntegrity, err)
		case ring.vaultID != vaultID:
			ring.wipe()
			return nil, fmt.Errorf("keyring: %w: it belongs to another vault", ErrIntegrity)
		}
		return newKeyset(root, ring), nil
	}()
	if err != nil {
		clear(root)
	}
	return keys, err
}

// Lock wipes the keys. It waits for running transactions, and stops a running Verify.
func (v *Vault) Lock() {
	v.stopping.Add(1)
	defer v.stopping.Add(-1)
	v.life.Lock()
	defer v.life.Unlock()
	v.wipe()
}

// wipe forgets the keys; the caller holds life for writing.
func (v *Vault) wipe() {
	if v.keys != nil {
		v.keys.wipe()
		v.keys = nil
	}
	v.locked.Store(true)
}

// Locked reports whether the keys are out of memory. It never waits.
func (v *Vault) Locked() bool { return v.locked.Load() }

// State returns what the vault last committed. It never waits, is zero until the first unlock, and stays after Lock.
func (v *Vault) State() State {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.state.public(v.digest)
}

// AuditSealKey returns a copy of the 32-byte key that seals audit.key; the caller wipes it. ErrLocked.
func (v *Vault) AuditSealKey() (Secret, error) {
	return v.copyKey(func(r *keyring) []byte { return r.auditSeal })
}

// CorrelationKey returns a copy of the 32-byte key for the hashes that stand for malformed names in the log; the caller
// wipes it. ErrLocked.
func (v *Vault) CorrelationKey() (Secret, error) {
	return v.copyKey(func(r *keyring) []byte { return r.correlation })
}

func (v *Vault) copyKey(which func(*keyring) []byte) (Secret, error) {
	v.life.RLock()
	defer v.life.RUnlock()
	if err := v.open(); err != nil {
		return nil, err
	}
	return append(Secret(nil), which(v.keys.ring)...), nil
}

// CheckFile tells whether the path still is the open file, regular and with a single link: ErrReplaced.
func (v *Vault) CheckFile() error {
	v.life.RLock()
	defer v.life.RUnlock()
	if err := v.usable(); err != nil {
		return err
	}
	return v.store.unchanged()
}

// Close wipes the keys and closes the file, after running transactions. A second Close does nothing.
func (v *Vault) Close() error {
	v.stopping.Add(1)
	defer v.stopping.Add(-1)
	v.life.Lock()
	defer v.life.Unlock()
	v.wipe()
	v.mu.Lock()
	closed := v.closed
	v.closed = true
	v.mu.Unlock()
	if closed || v.store == nil {
		return nil
	}
	if err := v.store.close(); err != nil {
		return fmt.Errorf("closing vault: %w", err)
	}
	return nil
}

// Reopen closes the file, opens it again and verifies it, which is the one way out of ErrFailed. Of a mutation whose
// commit failed either all or nothing is there afterwards: State tells.
//
// Errors: those of Open, and ErrRollback or ErrIntegrity when something acknowledged before is gone. The vault then stays failed;
// Reopen may be tried again.
func (v *Vault) Reopen() error {
	v.life.Lock()
	defer v.life.Unlock()
	if err := v.reopen(); err != nil {
		v.fail(err)
		return fmt.Errorf("reopening vault: %w", err)
	}
	v.mu.Lock()
	v.failed = nil
	v.mu.Unlock()
	return nil
}

func (v *Vault) reopen() error {
	v.mu.Lock()
	closed := v.closed
	v.mu.Unlock()
	if closed {
		return ErrClosed
	}
	if v.store != nil {
		// An error here is of a file that is given up anyway.
		_ = v.store.close()
		v.store = nil
	}
	// After a failed sync the page cache holds what the disk does not.
	dropCache(v.cfg.File)
	if err := v.attach(); err != nil {
		return err
	}
	if v.keys == nil {
		return nil
	}
	keys, err := v.load(append([]byte(nil), v.keys.root...))
	if err != nil {
		store := v.store
		v.store = nil
		return and(err, store.close())
	}
	v.keys.wipe()
	v.keys = keys
	return nil
}

// fail stops the vault: whatever memory and file disagree about must not be served.
func (v *Vault) fail(err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.failed == nil {
		v.failed = err
	}
}

// usable reports why the file cannot be used at all. Whoever goes on to use store holds life.
func (v *Vault) usable() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case v.closed:
		return ErrClosed
	case v.failed != nil:
		return fmt.Errorf("%w: %w", ErrFailed, v.failed)
	}
	return nil
}

// open reports why rows cannot be used. The caller holds life.
func (v *Vault) open() error {
	if err := v.usable(); err != nil {
		return err
	}
	if v.keys == nil {
		return ErrLocked
	}
	return nil
}

func (v *Vault) scratch() *scratch { return v.pool.Get().(*scratch) }

func formatValue() []byte { return strconv.AppendUint(nil, formatNumber, 10) }
