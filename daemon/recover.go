package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"subjectbroker/audit"
	"subjectbroker/grants/rules"
	"subjectbroker/proto/place"
	"subjectbroker/proto/wire"
	"subjectbroker/vault"
)

// Recover accepts what a start refuses, for `sbd recover`: a restored backup, a
// vault older than its log, a log that is missing, damaged or older than the
// vault or than the head outside remembers, and a slot key that is lost. It says
// what is wrong and what will be lost, asks, keeps the originals, and writes
// what it did into the log. Killed between any two steps, it finishes when it is
// run again. Where nothing is wrong it changes nothing.
//
// A vault that is damaged cannot be recovered. What is wrong with the home is a
// *Fault.
func Recover(ctx context.Context, o Offline) error {
	return offlineFault(o.recover(ctx))
}

func (o *Offline) recover(ctx context.Context) error {
	if err := checkHome(o.Home); err != nil {
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
	if err := notRestoring(o.Home); err != nil {
		return err
	}
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

// recovery carries a plan out.
type recovery struct {
	*Offline
	*plan
	d *Daemon
}

func (r *recovery) run(ctx context.Context, x *examination) (err error) {
	r.d = newDaemon(r.Config, x.settings)
	if r.keepVault {
		if err := r.copyVault(); err != nil {
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
	if r.forget {
		if err := r.forgetPassphrase(ctx); err != nil {
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
	if err := r.openAudit(audit.Config{Fresh: true, Origin: r.begin}); err != nil {
		return err
	}
	r.d.clock.raise(x.log.newest.Timestamp)
	if fresh {
		r.say("new log: its genesis fingerprint is %s; note it", r.d.log().Head().Genesis)
		return nil
	}
	return r.endIntents(audit.Position{})
}

// goOn opens the log as a start does, except that it may know more than the vault.
func (r *recovery) goOn() error {
	known := r.d.vault.State().Checkpoint
	if err := r.openAudit(audit.Config{Known: audit.Position(known), Fresh: known == vault.Checkpoint{}}); err != nil {
		return err
	}
	if r.cause == causeVaultOlder {
		return r.endIntents(audit.Position(known))
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
	config.WaitLimit = r.d.auditWait
	log, _, err := audit.Open(config)
	if err != nil {
		return err
	}
	r.d.ledger.Store(log)
	return nil
}

// endIntents says of the change that was intended last, and is not in the vault,
// that it was not made. Nothing before that position can lack its end. It leaves
// r.above not below whatever the log names.
func (r *recovery) endIntents(after audit.Position) error {
	var pending []audit.Entry
	err := r.d.log().Replay(after, func(e audit.Entry, _ audit.Position) error {
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
	effects := []*audit.Entry{e}
	for _, c := range r.answers {
		e := r.entry(kindApprovalVoid)
		e.Decision, e.ReasonCode, e.Cause = decisionDeny, string(wire.ApprovalDenied), r.cause
		effects = append(effects, c.entry(*e))
		delete(marks.Uses, c.id)
	}
	for _, one := range r.again {
		e := r.entry(kindMemoryForget)
		e.ResourceID, e.Tenants, e.Cause = one.ID, []string{one.Tenant}, r.cause
		effects = append(effects, e)
	}
	void := withdrawal(r.answers, effects)
	j := &offlineJournal{journal: journal{ctx: ctx, d: r.d, change: change{effects: effects}, st: newState()}, reached: r.reached}
	err = r.d.vault.Accept(j, r.above+1, marks, func(tx *vault.Tx) error {
		if err := tx.Delete(bucketDaemon, rowRestored); err != nil && !errors.Is(err, vault.ErrNotFound) {
			return err
		}
		return errors.Join(void.write(tx), forgetAgain(tx, r.again, millis(r.d.clock.now())))
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
	marks := vault.Marks{Checkpoint: vault.Checkpoint(durable), Uses: map[string]uint64{}, Meters: state.Meters}
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
		if marks.Meters, err = keepEvents(state.Meters, follow.calls); err != nil {
			return marks, err
		}
	}
	if r.begin != nil {
		var err error
		if marks.Meters, err = usedUp(state.Meters, r.counting, r.at); err != nil {
			return marks, err
		}
	}
	for _, g := range r.spent {
		marks.Uses[g.ID] = max(g.Uses, state.Uses[g.ID])
	}
	marks.HighWater = r.d.clock.mark()
	marks.BootID, _ = r.d.clock.boot()
	return marks, nil
}

// usedUp are meters of which nobody knows what was counted since: of each policy with
// such limits the budget and the calls of every session, also of the one outside of
// launches, count as used up. What stopped a session or a server stays. Windows of time
// pass by themselves.
func usedUp(raw []byte, policies []rules.Policy, at time.Time) ([]byte, error) {
	row, err := decodeMeters(raw)
	if err != nil {
		return nil, fmt.Errorf("%w: what was counted of calls: %v", vault.ErrIntegrity, err)
	}
	row.V = 1
	row.Events = slices.DeleteFunc(row.Events, func(e storedEvent) bool {
		return e.What != string(rune(meterKill)) && e.What != string(rune(meterStop))
	})
	for i := range policies {
		p := &policies[i]
		n := slices.IndexFunc(row.Tallies, func(t storedTally) bool { return t.Subject == p.Subject && t.Server == p.Server })
		if n < 0 {
			n = len(row.Tallies)
			row.Tallies = append(row.Tallies, storedTally{Subject: p.Subject, Server: p.Server})
		}
		if err := row.Tallies[n].useUp(p, at); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(row.Tallies, func(a, b storedTally) int { return strings.Compare(a.Subject+"/"+a.Server, b.Subject+"/"+b.Server) })
	return row.encode(), nil
}

// useUp is usedUp for one policy.
func (t *storedTally) useUp(p *rules.Policy, at time.Time) error {
	limits := &p.Rules.Limits
	if limits.Budget != nil {
		t.Spent = max(t.Spent, limits.Budget.Max)
	}
	if limits.MaxToolCalls == nil {
		return nil
	}
	if !slices.ContainsFunc(t.Sessions, func(s storedSession) bool { return s.Launch == "" }) {
		t.Sessions = slices.Insert(t.Sessions, 0, storedSession{Idle: at.UnixMilli(), Meter: (&rules.Meter{}).Append(nil)})
	}
	for i := range t.Sessions {
		s := &t.Sessions[i]
		meter, err := rules.ParseMeter(s.Meter)
		if err != nil {
			return fmt.Errorf("%w: what was counted of calls: %v", vault.ErrIntegrity, err)
		}
		if s.Limits != p.LimitsVersion() {
			meter = &rules.Meter{KilledBy: meter.KilledBy}
		}
		meter.Calls = max(meter.Calls, *limits.MaxToolCalls)
		s.Limits, s.Meter = p.LimitsVersion(), meter.Append(nil)
		if s.Launch == "" {
			s.Idle = at.UnixMilli()
		}
	}
	return nil
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

// copyVault copies the vault beside itself, unless an earlier attempt has.
func (r *recovery) copyVault() error {
	file := place.VaultFile(r.Home)
	sum, err := sumFile(file)
	if err != nil {
		return err
	}
	kept, err := keptVaults(r.Home)
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

// keptVaults are the copies of the vault that recoveries have kept.
func keptVaults(home string) ([]string, error) {
	return named(home, filepath.Base(place.VaultFile(home))+keptInfix, "")
}

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
