package daemon

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"subjectbroker/audit"
	"subjectbroker/audit/verify"
	"subjectbroker/grants"
	"subjectbroker/proto/place"
	"subjectbroker/proto/wire"
	"subjectbroker/vault"
	"subjectbroker/vault/keysource"
)

// Recover accepts what a start refuses, for `sbd recover`: a restored backup, a
// vault older than its log, a log that is missing, damaged or older than the
// vault or than the head outside remembers, and a slot key that is lost. It says
// what is wrong and what will be lost, asks, keeps the originals, and writes
// what it did into the log. Killed between any two steps, it finishes when it is
// run again. Where nothing is wrong it changes nothing.
//
// A vault that is damaged cannot be recovered. Errors are *Fault.
func Recover(ctx context.Context, o Offline) error {
	return offlineFault(o.recover(ctx))
}

func (o *Offline) recover(ctx context.Context) error {
	if err := checkHome(o.Home); err != nil {
		return err
	}
	if err := notRestoring(o.Home); err != nil {
		return err
	}
	x := &examination{}
	var err error
	if x.settings, err = readConfig(o.Home); err != nil {
		return err
	}
	lock, err := lockHome(o.Home)
	if err != nil {
		return err
	}
	defer lock.Close()
	defer o.forgetSecret()
	p, err := o.diagnose(ctx, x)
	if err = errors.Join(err, x.close()); err != nil {
		return unrecoverable(err)
	}
	for _, line := range p.lines {
		o.say("%s", line)
	}
	if p.nothing() {
		o.say("nothing is wrong: nothing was changed")
		return nil
	}
	switch yes, err := o.Person.Confirm("Go on?"); {
	case err != nil:
		return err
	case !yes:
		return errDeclined
	}
	r := &recovery{Offline: o, plan: p}
	return r.run(ctx, x)
}

// unrecoverable says of a vault that cannot be read what helps instead.
func unrecoverable(err error) error {
	f := asFault(err)
	switch f.Code {
	case wire.VaultMissing, wire.VaultDamaged, wire.IntegrityFailed:
		f.Err = fmt.Errorf("%w; a vault that is missing or damaged cannot be recovered: move the home away and restore a backup with sbd restore FILE --home DIR", f.Err)
	}
	return f
}

// plan is what a recovery will do. Its order is that of recovery.run.
type plan struct {
	at    time.Time
	lines []string

	setAside bool          // the log that is there
	begin    *audit.Origin // a new log begins; nil: the one that is there goes on
	cause    string        // of vault.accept; empty: there is nothing to accept
	above    uint64        // the accepted generation is above this one
	spent    []grants.Grant
	moveHead bool
	newSlot  string // kind of a new key slot, instead of one whose key is lost; empty: none
}

func (p *plan) nothing() bool { return p.cause == "" && p.newSlot == "" && !p.moveHead }

func (p *plan) note(format string, args ...any) {
	p.lines = append(p.lines, fmt.Sprintf(format, args...))
}

// Causes of vault.accept.
const (
	causeRestored    = "RESTORED"
	causeLogLost     = "LOG_SET_ASIDE"
	causeVaultOlder  = "VAULT_OLDER"
	causeHeadOlder   = "OLDER_THAN_HEAD"
	causeHeadOutside = "HEAD_OUTDATED"
)

// diagnose finds out what is wrong, and plans what to do about it.
func (o *Offline) diagnose(ctx context.Context, x *examination) (*plan, error) {
	p := &plan{at: o.clockNow()}
	if err := o.openedVault(ctx, x); err != nil {
		return nil, err
	}
	if err := o.examineLog(ctx, x); err != nil {
		return nil, err
	}
	if x.headErr != nil && asFault(x.headErr).Code != wire.RollbackDetected {
		return nil, x.headErr // a mistake in the configuration
	}
	broken, older, behind := x.broken(o.Home), x.older(), x.behind()
	switch {
	case broken == nil, asFault(broken).Code == wire.AuditDamaged, asFault(broken).Code == wire.RollbackDetected:
	default:
		return nil, broken // a mode or an owner, which is not for us to mend
	}
	p.keys(x, o.KeySource)
	switch {
	case x.restored != nil:
		p.restored(x)
	case broken != nil:
		p.logLost(x, broken)
	case behind != nil && x.follows():
		p.headOutside(x)
		if older != nil {
			p.vaultOlder(x, older)
		}
	case behind != nil:
		p.headOlder(x, behind)
	case older != nil:
		p.vaultOlder(x, older)
	}
	if p.nothing() {
		for _, line := range x.tidy() {
			p.note("%s", line)
		}
	}
	return p, nil
}

func (o *Offline) clockNow() time.Time {
	if o.Now != nil {
		return o.Now()
	}
	return time.Now()
}

// keys plans a new slot where no key source of this machine opens the vault.
func (p *plan) keys(x *examination, wanted string) {
	if x.alone {
		return
	}
	for _, k := range x.keys {
		p.note("found: the key slot %s does not open: %v", k.kind, k.err)
	}
	if len(x.keys) == 0 {
		p.note("found: the vault has no key slot of this machine")
	}
	p.newSlot = wanted
	if wanted == "" || wanted == "auto" {
		p.newSlot = keysource.KindFile
		if i := slices.IndexFunc(x.keys, keyFault.gone); i >= 0 {
			p.newSlot = x.keys[i].kind
		}
	}
	if hasSlot(x.vault, p.newSlot) {
		for _, k := range x.keys {
			p.note("lost: the key slot %s; copies of the vault that were made before still open with its key", k.kind)
		}
	}
	p.note("does: makes a new key slot %s for this machine", p.newSlot)
}

// restored plans to accept a backup.
func (p *plan) restored(x *examination) {
	r := x.restored
	p.note("found: the vault was restored from the backup %s of %s, generation %d", r.Backup, stamp(fromMillis(r.Created)), x.state.Generation)
	p.note("lost: whatever was changed after that, grants revoked since are in force again")
	p.accept(x, causeRestored)
	p.newLog(x, r.origin())
}

// logLost plans to begin a new log.
func (p *plan) logLost(x *examination, why error) {
	if x.begun(x.origin()) {
		p.note("found: a recovery was interrupted after it had begun this log")
		p.accept(x, causeLogLost)
		p.newLog(x, x.origin())
		return
	}
	p.note("found: %v", why)
	for _, path := range x.log.aside {
		p.note("found: an older log, set aside in %s", path)
	}
	switch fault := x.log.report.Fault; {
	case x.log.files == 0:
		p.note("lost: the log, as far as there is no copy of it")
	case fault != nil && !x.log.report.Unfinished():
		p.note("lost: the log as a whole from entry %d on; what can be read of it stays, and no longer proves anything", fault.Seq)
	default:
		p.note("lost: what the log held after entry %d; the vault has seen it up to entry %d", x.log.report.Last.Seq, x.state.Checkpoint.Seq)
	}
	p.effects(x)
	p.accept(x, causeLogLost)
	p.newLog(x, x.origin())
}

// vaultOlder plans to accept a vault that is older than its log, which goes on.
func (p *plan) vaultOlder(x *examination, why error) {
	p.note("found: %v", why)
	p.effects(x)
	p.accept(x, causeVaultOlder)
	p.note("does: goes on in the same log; the vault gets generation %d", p.above+1)
}

// headOlder plans to accept a vault and a log that are both older than a head
// that was kept outside.
func (p *plan) headOlder(x *examination, why error) {
	p.note("found: %v", why)
	p.note("lost: whatever was done between entry %d of the log, of %s, and entry %d, which was kept outside at %s; grants revoked in between are in force again",
		x.log.report.Last.Seq, stamp(x.log.newest.Timestamp), x.head.Seq, x.head.Timestamp)
	p.effects(x)
	p.accept(x, causeHeadOlder)
	p.newLog(x, x.origin())
}

// headOutside plans to end a recovery that began this log but did not come to
// move the old head away.
func (p *plan) headOutside(x *examination) {
	p.note("found: %s is of the log that this one follows, and whose end was accepted", x.settings.head.file)
	p.accept(x, causeHeadOutside)
	p.moveHead = true
}

// accept plans the mutation that accepts.
func (p *plan) accept(x *examination, cause string) {
	p.cause = cause
	p.above = max(x.state.Generation, x.log.highest())
}

// newLog plans to begin a log that says what it follows.
func (p *plan) newLog(x *examination, origin *audit.Origin) {
	p.begin = origin
	p.moveHead = x.head != nil
	if p.spent = x.limited(); len(p.spent) > 0 {
		p.note("lost: how often these grants were used; they count as used up, grant them again where they are still wanted:")
		for _, g := range p.spent {
			p.note("      %s: %s %s, %d uses at most", g.ID, g.Subject, g.Pattern, g.Uses)
		}
	}
	p.setAside = x.log.halfAside || x.log.files > 0 && !x.begun(origin)
	if p.setAside {
		p.note("keeps: the log, in a folder aside-%s beside the new one", p.at.UTC().Format(suffixTime))
	}
	p.note("keeps: the vault as it is, in vault.db.before-%s", p.at.UTC().Format(suffixTime))
	if p.moveHead {
		p.note("keeps: %s, as %s.before-%s", x.settings.head.file, x.settings.head.file, p.at.UTC().Format(suffixTime))
	}
	p.note("does: begins a new log, with a new genesis fingerprint, whose first entry names entry %d of the old one", origin.Seq)
}

// effects lists what the log tells of that the vault does not have.
func (p *plan) effects(x *examination) {
	if x.log.beyond == 0 {
		return
	}
	p.note("lost: what these entries of the log tell of; what they took away is in force again:")
	for _, e := range x.log.effects {
		p.note("      %s", effectLine(e))
	}
	if more := x.log.beyond - len(x.log.effects); more > 0 {
		p.note("      and %d more", more)
	}
}

func effectLine(e verify.Entry) string {
	line := fmt.Sprintf("entry %d, %s: %s", e.Seq, stamp(e.Timestamp), e.Kind)
	for _, word := range []string{e.SubjectID, e.ResourceID, e.Capability, e.GrantID} {
		if word != "" {
			line += " " + word
		}
	}
	return line
}

// origin is the newest entry that is known of the log that is there, or was.
func (x *examination) origin() *audit.Origin {
	known := x.state.Checkpoint
	o := &audit.Origin{Cause: audit.WasSetAside, Seq: known.Seq, Hash: known.Hash}
	take := func(seq uint64, hash string) {
		if seq > o.Seq {
			o.Seq = seq
			_, _ = hex.Decode(o.Hash[:], []byte(hash)) // 64 digits: verify and parseHead have seen them
		}
	}
	l := &x.log
	whole := l.report.Fault == nil || l.report.Unfinished()
	if l.files > 0 && whole && l.contains(known.Seq, hex.EncodeToString(known.Hash[:]), "") == nil {
		take(l.report.Last.Seq, l.report.Last.Hash)
	}
	if x.head != nil && x.head.Vault == x.vault.ID() {
		take(x.head.Seq, x.head.Hash)
	}
	return o
}

// begun reports whether the log that is there is the one which an interrupted
// recovery began: nothing was accepted in it yet, and it follows what origin
// says, or more.
func (x *examination) begun(origin *audit.Origin) bool {
	report := &x.log.report
	o := report.Origin
	return o != nil && !x.log.halfAside && (report.Fault == nil || report.Unfinished()) && x.log.applied == 0 && x.keyErr == nil &&
		o.Cause == origin.Cause && o.Last.Seq >= origin.Seq && report.VaultID == x.vault.ID()
}

// follows reports whether the log says that it follows the one whose head was
// kept outside.
func (x *examination) follows() bool {
	o := x.log.report.Origin
	return o != nil && x.head.Genesis != x.log.genesis && o.Last.Seq >= x.head.Seq
}

// recovery carries a plan out.
type recovery struct {
	*Offline
	*plan
	d *Daemon
}

func (r *recovery) run(ctx context.Context, x *examination) (err error) {
	r.d = newDaemon(r.Config, x.settings)
	if r.cause != "" {
		if err := r.keepVault(); err != nil {
			return err
		}
	}
	r.reached("kept")
	if err := r.open(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	if err := r.openLog(x); err != nil {
		return err
	}
	r.reached("opened")
	if r.cause != "" {
		if err := r.accept(ctx); err != nil {
			return err
		}
	}
	r.reached("accepted")
	if r.moveHead {
		if err := r.keepHead(x.settings.head.file); err != nil {
			return err
		}
	}
	r.reached("moved")
	if r.newSlot != "" {
		if err := r.machineSlot(ctx, r.d.vault, r.newSlot, r.slotJournal(ctx)); err != nil {
			return err
		}
	}
	r.reached("done")
	r.say("done: sbd starts again")
	return nil
}

// open opens the vault for writing.
func (r *recovery) open(ctx context.Context) error {
	v, err := vault.OpenLocked(vault.Config{File: place.VaultFile(r.Home), Now: r.Now, MaxContent: r.d.maxContent})
	if err != nil {
		return err
	}
	r.d.vault = v
	if _, err := r.unlock(ctx, v); err != nil {
		return errors.Join(err, v.Close())
	}
	return nil
}

func (r *recovery) close() error {
	var err error
	if log := r.d.log(); log != nil {
		err = log.Close()
	}
	return errors.Join(err, r.d.vault.Close())
}

// openLog opens the log that goes on, or sets it aside and begins a new one.
func (r *recovery) openLog(x *examination) error {
	if r.begin == nil {
		return r.goOn()
	}
	dir := place.AuditDir(r.Home)
	fresh := r.setAside || x.log.files == 0
	if r.setAside {
		path, err := audit.SetAside(dir, r.at)
		if err != nil {
			return err
		}
		if path != "" {
			r.say("kept: the old log, in %s", path)
		}
		r.reached("set aside")
	}
	if fresh {
		// The old segments are verified with public keys; the private one could
		// only make more of them.
		if err := overwrite(place.AuditKey(r.Home)); err != nil {
			return err
		}
		r.reached("key removed")
	}
	if err := r.openAudit(audit.Config{Fresh: true, Origin: r.begin}); err != nil {
		return err
	}
	r.d.clock.raise(x.log.newest.Timestamp)
	if fresh {
		r.say("new log: its genesis fingerprint is %s; note it", r.d.log().Head().Genesis)
		return nil
	}
	return r.endIntents()
}

// goOn opens the log as a start does, except that it may know more than the vault.
func (r *recovery) goOn() error {
	known := r.d.vault.State().Checkpoint
	if err := r.openAudit(audit.Config{Known: audit.Position(known), Fresh: known == vault.Checkpoint{}}); err != nil {
		return err
	}
	if r.cause == causeVaultOlder {
		return r.endIntents()
	}
	_, err := r.d.reconcile(r.d.log())
	return err
}

func (r *recovery) openAudit(config audit.Config) error {
	seal, err := r.d.vault.AuditSealKey()
	if err != nil {
		return err
	}
	defer seal.Wipe()
	config.Dir, config.KeyFile, config.SealKey = place.AuditDir(r.Home), place.AuditKey(r.Home), seal
	config.VaultID, config.SegmentSize, config.Now, config.Logger = r.d.vault.ID(), r.d.segmentSize, r.d.clock.now, r.Logger
	log, _, err := audit.Open(config)
	if err != nil {
		return err
	}
	r.d.ledger.Store(log)
	return nil
}

// endIntents says of changes that were intended and are not in the vault that
// they were not made. It leaves r.above above whatever the log names.
func (r *recovery) endIntents() error {
	var pending []audit.Entry
	err := r.d.log().Replay(audit.Position{}, func(e audit.Entry, _ audit.Position) error {
		r.above = max(r.above, e.Generation)
		switch e.Kind {
		case audit.OpIntent:
			pending = append(pending, audit.Entry{Kind: audit.OpNotApplied, Generation: e.Generation, Digest: e.Digest})
		case audit.OpApplied, audit.OpNotApplied:
			pending = nil
		}
		return nil
	})
	if err != nil || len(pending) == 0 {
		return err
	}
	return r.d.recordAll(pending[:1])
}

// accept makes what is there the vault that counts.
func (r *recovery) accept(ctx context.Context) error {
	marks, err := r.marks()
	if err != nil {
		return err
	}
	r.reached("marked")
	e := r.entry(kindVaultAccept)
	e.Cause = r.cause
	j := &offlineJournal{journal: journal{ctx: ctx, d: r.d, change: change{effects: []*audit.Entry{e}}, st: newState()}, reached: r.reached}
	err = r.d.vault.Accept(j, r.above+1, marks, func(tx *vault.Tx) error {
		if err := tx.Delete(bucketDaemon, rowRestored); err != nil && !errors.Is(err, vault.ErrNotFound) {
			return err
		}
		return nil
	})
	if err != nil {
		return err
	}
	r.say("accepted: the vault is at generation %d", r.d.vault.State().Generation)
	return nil
}

// marks are what the vault will remember of the log, and how often grants were
// used: exactly, when the log tells; else those with a limit are used up.
func (r *recovery) marks() (vault.Marks, error) {
	state := r.d.vault.State()
	durable, _ := r.d.log().Durable()
	marks := vault.Marks{Checkpoint: vault.Checkpoint(durable), Uses: map[string]uint64{}}
	r.d.clock.raise(state.HighWater)
	if r.begin == nil {
		follow := reconciliation{uses: state.Uses}
		if follow.uses == nil {
			follow.uses = map[string]uint64{}
		}
		err := r.d.log().Replay(audit.Position(state.UsesAt), func(e audit.Entry, _ audit.Position) error {
			r.d.clock.raise(e.Timestamp)
			// A grant that was granted again after the vault's moment was not, in
			// this vault: its old uses go on counting.
			if e.Kind != kindGrantCreate || e.Generation <= state.Generation {
				follow.follow(e)
			}
			return nil
		})
		if err != nil {
			return marks, err
		}
		marks.Uses = follow.uses
	}
	for _, g := range r.spent {
		marks.Uses[g.ID] = max(g.Uses, state.Uses[g.ID])
	}
	marks.HighWater = r.d.clock.mark()
	marks.BootID, _ = r.d.clock.boot()
	return marks, nil
}

// slotJournal makes the journals of changes of the vault's slots.
func (r *recovery) slotJournal(ctx context.Context) func(kind audit.Kind, slot string) vault.Journal {
	return func(kind audit.Kind, slot string) vault.Journal {
		e := r.entry(kind)
		e.KeyID = slot
		return &offlineJournal{journal: journal{ctx: ctx, d: r.d, change: change{effects: []*audit.Entry{e}}, st: newState()}, reached: r.reached}
	}
}

// entry is one of what the operator did with sbd itself.
func (r *recovery) entry(kind audit.Kind) *audit.Entry {
	return &audit.Entry{
		Kind: kind, Peer: &audit.Peer{UID: uint32(os.Geteuid()), PID: int32(os.Getpid())},
		Decision: decisionAllow, ReasonCode: string(wire.Allowed),
	}
}

// offlineJournal is journal with the places where a test dies.
type offlineJournal struct {
	journal
	reached func(step string)
}

// Intent implements vault.Journal.
func (j *offlineJournal) Intent(generation uint64, digest [32]byte) (vault.Checkpoint, error) {
	position, err := j.journal.Intent(generation, digest)
	j.reached("intended")
	return position, err
}

// Applied implements vault.Journal.
func (j *offlineJournal) Applied(generation uint64, digest [32]byte) error {
	j.reached("committed")
	return j.journal.Applied(generation, digest)
}

// keepVault copies the vault beside itself, unless an earlier attempt has.
func (r *recovery) keepVault() error {
	file := place.VaultFile(r.Home)
	sum, err := sumFile(file)
	if err != nil {
		return err
	}
	kept, err := filepath.Glob(file + keptInfix + "*")
	if err != nil {
		return err
	}
	for _, path := range kept {
		if other, err := sumFile(path); err == nil && other == sum {
			return nil
		}
	}
	path, err := freeName(file, r.at)
	if err != nil {
		return err
	}
	if err := copyDurably(file, path); err != nil {
		return fmt.Errorf("keeping the vault: %w", err)
	}
	r.say("kept: the vault as it was, in %s", path)
	return nil
}

// keepHead moves the head that was kept outside out of the way of the new one.
func (r *recovery) keepHead(path string) error {
	to, err := freeName(path, r.at)
	if err != nil {
		return err
	}
	switch err := os.Rename(path, to); {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("moving the old head away: %w", err)
	}
	r.say("kept: the old head, in %s", to)
	return syncFolder(filepath.Dir(path))
}

// keptInfix is between the name of a file and the time at which it was moved
// out of the way.
const keptInfix = ".before-"

// freeName is a name beside path that says when it was moved there.
func freeName(path string, at time.Time) (string, error) {
	for ; ; at = at.Add(time.Second) {
		name := path + keptInfix + at.UTC().Format(suffixTime)
		if _, err := os.Lstat(name); errors.Is(err, fs.ErrNotExist) {
			return name, nil
		} else if err != nil {
			return "", err
		}
	}
}
