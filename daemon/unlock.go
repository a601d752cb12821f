package daemon

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"subjectbroker/audit"
	"subjectbroker/proto/place"
	"subjectbroker/proto/wire"
	"subjectbroker/vault"
	"subjectbroker/vault/keysource"
)

// Why the vault is locked.
const (
	lockedByOperator = "locked"
	lockedWaiting    = "waiting" // for the key source
	lockedFailed     = "failed"  // a write to it did; it is being reopened
	unlocked         = "unlocked"
)

// Pauses between attempts to unlock while the key source does not answer.
const (
	retryFirst = 2 * time.Second
	retryLast  = time.Minute
)

// lockState says why the vault is locked.
type lockState struct {
	mu    sync.Mutex
	mode  string
	cause string
	locks int // by the operator, so far
}

func (l *lockState) set(mode, cause string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mode, l.cause = mode, cause
	if mode == lockedByOperator {
		l.locks++
	}
}

// wait says why the key source is still waited for, unless the operator has
// locked: then only the operator opens.
func (l *lockState) wait(cause string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mode == lockedWaiting {
		l.cause = cause
	}
}

// relock takes back that the vault is unlocked.
func (l *lockState) relock(mode, cause string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mode == unlocked {
		l.mode, l.cause = mode, cause
	}
}

// byOperator counts how often the operator has locked.
func (l *lockState) byOperator() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.locks
}

func (l *lockState) get() (mode, cause string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mode, l.cause
}

func (l *lockState) waiting() bool {
	mode, _ := l.get()
	return mode == lockedWaiting
}

// word is the state of the vault for status.
func (l *lockState) word() string {
	mode, _ := l.get()
	return mode
}

// waitsForRecovery reports that the vault failed and nobody has locked it since.
func (l *lockState) waitsForRecovery() bool { return l.word() == lockedFailed }

// becomeFailed says that the vault stopped, unless the operator has locked it.
// It reports whether the vault counts as failed.
func (l *lockState) becomeFailed(cause string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mode != unlocked && l.mode != lockedFailed {
		return false
	}
	l.mode, l.cause = lockedFailed, cause
	return true
}

// openVault creates the vault at the first start, or opens the one there is, and
// unlocks it. Without its key it stays locked where the contract says so.
func (d *Daemon) openVault(ctx context.Context, cfg Config, settings fileConfig) error {
	file := place.VaultFile(d.home)
	fresh, err := vault.Fresh(file)
	if err != nil {
		return err
	}
	config := vault.Config{File: file, Now: d.clock.now, MaxContent: d.maxContent}
	if fresh {
		return d.createVault(ctx, cfg, settings, config)
	}
	if d.vault, err = vault.OpenLocked(config); err != nil {
		return err
	}
	err = d.unlock(ctx, d.sources(keysource.Timeout), nil)
	if errors.Is(err, errStaysLocked) {
		return nil
	}
	waits := errors.Is(err, vault.ErrKeyNotAnswering) && (cfg.WaitKey || os.Getenv("NOTIFY_SOCKET") != "")
	if waits || errors.Is(err, errNeedsPerson) {
		d.locking.set(lockedWaiting, err.Error())
		d.logger.Warn("starting locked", "why", err.Error())
		return nil
	}
	if err != nil && isKeyFault(err) {
		return hinted(d.vault, d.home, err)
	}
	return err
}

// sources are the stores of the vault's slots that open without a person, in
// the order in which they are tried. limit bounds one use of the keychain.
func (d *Daemon) sources(limit time.Duration) []vault.KeySource {
	return sourcesOf(d.vault, d.home, d.keychild, limit)
}

func sourcesOf(v *vault.Vault, home string, child keysource.Command, limit time.Duration) []vault.KeySource {
	var sources []vault.KeySource
	for _, slot := range v.Slots() {
		if source, err := sourceOf(slot.Kind, home, child, limit); err == nil { // else a person's
			sources = append(sources, source)
		}
	}
	return sources
}

// source is the store of slot keys of one kind; passphrase and recovery have none.
func (d *Daemon) source(kind string, limit time.Duration) (vault.KeySource, error) {
	return sourceOf(kind, d.home, d.keychild, limit)
}

// createVault makes the first vault and the log's genesis.
func (d *Daemon) createVault(ctx context.Context, cfg Config, settings fileConfig, config vault.Config) error {
	if err := d.heads.unused(); err != nil {
		return err
	}
	choice := cfg.KeySource
	if choice == "" {
		choice = settings.keySource
	}
	var err error
	if choice == "" || choice == "auto" {
		var why error
		config.Keys, why = keysource.Auto(ctx, keysource.Keychain(cfg.keychild(), keysource.Timeout), keysource.File(place.KeyFile(d.home)))
		if why != nil {
			d.logger.Info("the keychain cannot be used, the key is kept in a file", "why", why.Error())
		}
	} else {
		config.Keys, err = d.source(choice, keysource.Timeout)
	}
	if err != nil {
		return err
	}
	if d.vault, err = vault.Create(ctx, config); err != nil {
		return err
	}
	return d.enter(false)
}

// sourceOf is the store of slot keys of a kind.
func sourceOf(kind, home string, child keysource.Command, limit time.Duration) (vault.KeySource, error) {
	switch kind {
	case keysource.KindKeychain:
		return keysource.Keychain(child, limit), nil
	case keysource.KindFile:
		return keysource.File(place.KeyFile(home)), nil
	}
	return nil, fault(wire.ConfigInvalid, "the key source %s is not known: want auto, keychain or file", kind)
}

// unlock opens the vault with the first of sources that can, verifies everything
// and puts it in force. Concurrent calls make one attempt at a time. A vault that the
// operator locked, in this life of the daemon or before, opens only by the
// operator, whose entry is then given; else errStaysLocked.
func (d *Daemon) unlock(ctx context.Context, sources []vault.KeySource, operator *audit.Entry) error {
	d.unlocking.Lock()
	defer d.unlocking.Unlock()
	if !d.locked() {
		return d.proved(ctx, sources)
	}
	mode, cause := d.locking.get()
	locks := d.locking.byOperator()
	if err := d.openSlot(ctx, sources); err != nil {
		return err
	}
	// The key source may have taken its time: a lock that was asked for
	// meanwhile stands.
	d.changing.mu.Lock()
	defer d.changing.mu.Unlock()
	err := fmt.Errorf("%w again while the key was fetched", vault.ErrLocked)
	if d.locking.byOperator() == locks {
		err = d.enter(operator != nil)
	}
	if err == nil && d.state().marked {
		err = d.mark(ctx, *operator, false)
	}
	if err != nil {
		d.putInForce(newState())
		d.vault.Lock()
		d.locking.relock(mode, cause)
	}
	return err
}

// proved refuses a wrong secret also for a vault that is open already: whoever
// gave it would take it for the right one, and the log would, too.
func (d *Daemon) proved(ctx context.Context, sources []vault.KeySource) error {
	for _, source := range sources {
		if source.Kind() == slotPassphrase || source.Kind() == slotRecovery {
			return d.vault.TestSlot(ctx, source)
		}
	}
	return nil
}

// errNeedsPerson: no slot of the vault opens by itself.
var errNeedsPerson = fmt.Errorf("%w: only a passphrase or the recovery code opens this vault", vault.ErrKeyNotAnswering)

// openSlot unlocks the vault with the first source that can. What is wrong with
// the first one is told, unless another only needs time.
func (d *Daemon) openSlot(ctx context.Context, sources []vault.KeySource) error {
	failed := error(errNeedsPerson)
	for i, source := range sources {
		err := d.vault.UnlockWith(ctx, source)
		if err == nil {
			return nil
		}
		if i == 0 || errors.Is(err, vault.ErrKeyNotAnswering) && !errors.Is(failed, vault.ErrKeyNotAnswering) {
			failed = err
		}
	}
	return failed
}

// errStaysLocked: the operator locked the vault before the daemon was started.
var errStaysLocked = fmt.Errorf("%w by the operator, before sbd was started", vault.ErrLocked)

// mark remembers in the vault that the operator has locked it, or that no more,
// so that a restart opens nothing. The caller holds changing.mu.
func (d *Daemon) mark(ctx context.Context, e audit.Entry, locked bool) error {
	if err := d.settle(); err != nil {
		return err
	}
	return d.commit(ctx, d.state(), change{
		effects: []*audit.Entry{&e},
		write: func(tx *vault.Tx) error {
			if locked {
				return tx.Put(bucketDaemon, rowLocked, []byte{1})
			}
			return tx.Delete(bucketDaemon, rowLocked)
		},
	})
}

// enter goes from an unlocked vault to serving: log, reconciliation, state.
// Until it has returned, the vault still counts as locked. The caller holds
// changing.mu, or nothing else runs yet. Unless the operator asked for it, a
// vault that the operator has locked is not entered: errStaysLocked.
func (d *Daemon) enter(operator bool) error {
	starting := d.log() == nil
	if restored, err := readRestored(d.vault); err != nil {
		return err
	} else if restored != nil {
		return restored.refusal()
	}
	if err := d.openLog(); err != nil {
		return err
	}
	if err := d.settle(); err != nil {
		return err
	}
	known, err := d.reconcile(d.log())
	if err != nil {
		return err
	}
	if starting {
		if err := errors.Join(d.endOrphanCards(d.log()), d.endOrphans(d.log())); err != nil {
			return err
		}
	}
	st, err := load(d.vault, known.uses)
	if err != nil {
		return err
	}
	if err := st.recount(known.meters, known.calls); err != nil {
		return err
	}
	st.meters.read = d.clock.read
	d.keyUse.learn(known.keys)
	if st.marked && !operator {
		d.locking.set(lockedByOperator, "locked by the operator, before sbd was started")
		return errStaysLocked
	}
	key, err := d.vault.CorrelationKey()
	if err != nil {
		return err
	}
	defer key.Wipe()
	kept := [32]byte(key) // a copy: key is wiped
	d.correlate.Store(&kept)
	vaultState := d.vault.State()
	d.clock.raise(vaultState.HighWater)
	if n := d.unrecorded.Swap(0); n > 0 {
		err := d.note(audit.Entry{Kind: audit.Suppressed, Decision: decisionDeny, ReasonCode: string(wire.VaultLocked), Count: n})
		if err != nil {
			d.unrecorded.Add(n) // the next unlock tries again
		}
	}
	e := audit.Entry{Kind: kindVaultOpen, Generation: vaultState.Generation, Digest: vaultState.Digest, Decision: decisionAllow, ReasonCode: string(wire.Allowed)}
	if vaultState.Checkpoint == (vault.Checkpoint{}) {
		e.Kind = kindVaultCreate
	}
	if starting {
		e.Action = actionStart
	}
	// A daemon whose log cannot be written still starts: it refuses everything,
	// and its status says why. An unlock without an entry does not count.
	if err := d.note(e); err != nil && (!starting || e.Kind == kindVaultCreate) {
		return fmt.Errorf("recording that the vault is open: %w", err)
	}
	d.adopt(st)
	d.putInForce(st)
	d.locking.set(unlocked, "")
	d.checkpointLocked()
	d.followSubjects()
	d.hub.listChanged()
	d.migrate()
	d.upkeep.wake()
	return nil
}

// migrate brings a vault of an older schema to this one. Until that is done the
// vault is served, but its keys do not change. The caller holds changing.mu.
func (d *Daemon) migrate() {
	err := d.mutateLocked(d.life, func(*state) (change, error) {
		c := change{}
		if d.vault.Outdated() {
			c.effects = []*audit.Entry{{Kind: kindVaultMigrate, Decision: decisionAllow, ReasonCode: string(wire.Allowed)}}
			c.commit = func(j vault.Journal) error {
				_, err := d.vault.Migrate(j)
				return err
			}
		}
		return c, nil
	})
	if err != nil {
		d.logger.Error("bringing the vault to the present schema; sbd goes on without", "error", err)
	}
}

// note writes an entry of the daemon's own; a log that cannot take it says so in
// its health, and nothing is released meanwhile.
func (d *Daemon) note(e audit.Entry) error {
	_, err := d.log().RecordOperator(context.Background(), e)
	return err
}

// openLog opens the log at the first unlock; later ones find it open, because a
// lock keeps the head and the signing key.
func (d *Daemon) openLog() error {
	if d.log() != nil {
		return nil
	}
	seal, err := d.vault.AuditSealKey()
	if err != nil {
		return err
	}
	defer seal.Wipe()
	known := d.vault.State().Checkpoint
	kept, err := d.heads.kept(d.vault.ID(), place.AuditDir(d.home))
	if err != nil {
		return err
	}
	log, recovery, err := audit.Open(audit.Config{
		Dir: place.AuditDir(d.home), KeyFile: place.AuditKey(d.home), SealKey: seal, VaultID: d.vault.ID(),
		SegmentSize: d.segmentSize, Known: audit.Position(known), Fresh: known == (vault.Checkpoint{}),
		Expect: kept.position(), Now: d.clock.now, Logger: d.logger, Placed: d.asks.placed, WaitLimit: d.auditWait,
		// The next start replays from where the counters in the vault are exact.
		Keep: func() audit.Position { return audit.Position(d.vault.State().UsesAt) },
	})
	if err != nil {
		return err
	}
	if recovery.TornBytes > 0 {
		d.logger.Warn("the log had an unfinished end, which was set aside", "bytes", recovery.TornBytes)
	}
	d.ledger.Store(log)
	return nil
}

// retryUnlock asks a key source that did not answer again, ever more slowly, or
// as soon as somebody wants something: see wanted.
func (d *Daemon) retryUnlock() {
	for pause := retryFirst; d.locking.waiting(); pause = min(2*pause, retryLast) {
		// However much is wanted, there is a pause between two attempts.
		if !d.sleep(retryFirst, nil) || !d.sleep(pause-retryFirst, d.wanting) {
			return
		}
		if !d.locking.waiting() {
			return
		}
		err := d.unlock(d.life, d.sources(keysource.Timeout), nil)
		select {
		case <-d.wanting: // meant this attempt, too
		default:
		}
		switch {
		case err == nil:
			d.logger.Info("unlocked: the key source answered")
		case errors.Is(err, vault.ErrKeyNotAnswering):
			d.locking.wait(err.Error())
		case errors.Is(err, vault.ErrLocked): // by the operator, meanwhile
		default:
			d.fail(err)
			return
		}
	}
}

// sleep waits for a time or until woken, and reports false when the daemon
// stops.
func (d *Daemon) sleep(pause time.Duration, woken <-chan struct{}) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-d.life.Done():
		return false
	case <-timer.C:
	case <-woken:
	}
	return true
}

// wanted tells retryUnlock that a request met a vault that waits for its key.
// However many do, they cause one attempt.
func (d *Daemon) wanted() {
	select {
	case d.wanting <- struct{}{}:
	default:
	}
}

// lock wipes keys and policy and ends every run. The log stays open, so that
// refusals while locked are entries.
func (d *Daemon) lock(ctx context.Context, e audit.Entry, reason string) error {
	// Nothing is in force from here on, whatever the disk does to what follows.
	d.locking.set(lockedByOperator, reason)
	d.putInForce(newState())
	d.sessions.endAll()
	d.voidCards(causeVaultLocked)
	err := d.endRuns(wire.VaultLocked, "LOCKED", func(*run) bool { return true })
	d.hosts.lock()
	defer d.vault.Interrupt()() // a purge or a backup would keep the keys here until it is done
	d.changing.mu.Lock()
	defer d.changing.mu.Unlock()
	if o := d.changing.owed; o != nil {
		o.permit = nil // the vault has it, and is read again at the unlock
	}
	if !d.vault.Locked() {
		err = errors.Join(err, d.mark(ctx, e, true))
	}
	d.vault.Lock()
	return err
}

// reload reads what is in force again. Uses go on being counted meanwhile. The
// caller holds changing.mu.
func (d *Daemon) reload() error {
	st := d.state()
	if !st.open { // locked meanwhile
		return nil
	}
	fresh, err := load(d.vault, nil)
	if err != nil {
		return err
	}
	st.mu.Lock()
	st.set, st.catalog, st.names, st.ended, st.launches = fresh.set, fresh.catalog, fresh.names, fresh.ended, fresh.launches
	st.servers, st.pins, st.policies, st.consents = fresh.servers, fresh.pins, fresh.policies, fresh.consents
	st.keys, st.tenants = fresh.keys, fresh.tenants
	st.mu.Unlock()
	st.knowledge.stay()
	d.hub.listChanged()
	return nil
}

func randomKey() *[32]byte {
	var key [32]byte
	_, _ = rand.Read(key[:]) // never fails: crypto/rand ends the process instead
	return &key
}
