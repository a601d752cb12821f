package vault

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
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

// Vault is an open vault file. Its methods are safe for concurrent use.
type Vault struct {
	cfg Config
	id  string

	// mutating is held by whatever writes rows, one at a time. It comes before life, so that who holds it can change the
	// store while nobody waits for it inside of life.
	mutating sync.Mutex
	// life is held for reading by everything that uses store or keys, and for writing by whatever changes them. A function
	// running inside must not take it again: with a writer waiting between the two, both would wait for ever.
	life  sync.RWMutex
	store rowStore // nil after a failed Reopen
	keys  *keyset  // nil while locked
	doubt *doubt   // nil unless a change of keys may or may not be in the file

	rekeying   sync.Mutex // one change of slots at a time, its key sources included; before mutating
	rewrapping sync.Mutex // one call of Rewrap at a time; before mutating
	pass       *pass      // of Rewrap; guarded by rewrapping
	unlocking  sync.Mutex // one unlock attempt at a time; before life
	attempts   atomic.Uint64
	attempt    error  // what the last one came to; guarded by unlocking
	attempted  string // kind of its source; guarded by unlocking
	stopping   atomic.Int32

	locked atomic.Bool
	pool   sync.Pool // *scratch

	mu     sync.Mutex // guards what follows; innermost
	failed error
	closed bool
	known  bool // state is of this file
	state  stateRow
	digest [32]byte
	slots  []slotRow
	about  about
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
	v.setSlots(slots)
	if v.id == "" {
		// Read without a lock by ID, so never written again.
		v.id = string(id)
	}
	return nil
}

// ID returns the vault's ID, 32 lower-case hex digits. While the vault was never unlocked it is what the file claims.
func (v *Vault) ID() string { return v.id }

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

// Interrupt ends what takes as long as the vault is large, Compact, Snapshot, Rewrap and Verify, with ErrLocked, and whatever of
// it is begun before resume is called, for who is about to Lock or Close and must not wait for it. It never waits.
func (v *Vault) Interrupt() (resume func()) {
	v.stopping.Add(1)
	return func() { v.stopping.Add(-1) }
}

// Close wipes the keys and closes the file, after running transactions. A second Close does nothing.
func (v *Vault) Close() error {
	defer v.Interrupt()()
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
