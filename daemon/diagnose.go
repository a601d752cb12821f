package daemon

import (
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"time"

	"subjectbroker/audit"
	"subjectbroker/audit/verify"
	"subjectbroker/grants"
	"subjectbroker/grants/rules"
	"subjectbroker/proto/wire"
	"subjectbroker/vault/keysource"
)

// plan is what a recovery will do. Its order is that of recovery.run.
type plan struct {
	at    time.Time
	lines []string

	keepVault bool          // in a copy
	setAside  bool          // the log that is there
	begin     *audit.Origin // a new log begins; nil: the one that is there goes on
	cause     string        // of vault.accept; empty: there is nothing to accept
	above     uint64        // the accepted generation is above this one
	spent     []grants.Grant
	counting  []rules.Policy   // whose budgets and numbers of calls count as used up
	answers   []consent        // that stand, and do not any more
	again     []knowledgeEntry // of the memory, whose content is taken out once more
	moveHead  bool
	newSlot   string // kind of a new key slot, instead of one whose key is lost; empty: none
	forget    bool   // the operator's passphrase
}

func (p *plan) nothing() bool { return p.cause == "" && p.newSlot == "" && !p.moveHead && !p.forget }

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
	if o.ForgetPassphrase {
		if err := p.passphrase(x); err != nil {
			return nil, err
		}
	}
	for _, damage := range []error{x.contents, x.memoryErr} {
		if damage == nil {
			continue
		}
		if p.nothing() {
			return nil, damage
		}
		p.note("found: %v; that stays as it is: see sbd check", damage)
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
	p.note("found: the vault was restored from the backup %s of %s", r.Backup, stamp(fromMillis(r.Created)))
	p.note("lost: whatever was changed after that; grants and agent keys that were revoked since are in force again, and tenants that were removed are there again")
	if x.memory.entries > 0 {
		p.note("lost: what was forgotten of the memory after that; its content is in this vault again: where there is a log of then, sbctl memory forget --log DIR forgets it here, too")
	}
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
		p.note("lost: the log, as far as there is no copy of it; where its folder is a mount, mount it and start again")
	case fault != nil && !x.log.report.Unfinished():
		p.note("lost: the log as a whole from entry %d on; what can be read of it stays, and no longer proves anything", fault.Seq)
	case x.log.pruned(x.state.Checkpoint.Seq), x.log.pruned(x.state.UsesAt.Seq):
		p.note("lost: whatever was done after entry %d, of which the log has no more than was not pruned; grants and agent keys revoked since are in force again", x.state.UsesAt.Seq)
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
	p.note("lost: whatever was done between entry %d of the log, of %s, and entry %d, which was kept outside at %s; grants and agent keys revoked in between are in force again",
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
	noted := p.cause != ""
	p.cause = cause
	p.answers = slices.SortedFunc(maps.Values(x.inForce.consents), func(a, b consent) int { return cmp.Compare(a.id, b.id) })
	if n := len(p.answers); n > 0 && !noted { // some may have been taken back since
		p.note("lost: %d standing approvals; a person is asked again", n)
	}
	p.above = max(x.state.Generation, x.log.highest())
	if cause != causeRestored && !p.keepVault { // a backup is still there
		p.keepVault = true
		p.note("keeps: the vault as it is, in vault.db%s%s", keptInfix, p.at.UTC().Format(suffixTime))
	}
}

// newLog plans to begin a log that says what it follows.
func (p *plan) newLog(x *examination, origin *audit.Origin) {
	p.begin = origin
	p.moveHead = x.head != nil
	if p.spent = x.limited(); len(p.spent) > 0 {
		p.note("lost: how often these grants were used; they count as used up, grant them again where they are still wanted:")
		for _, g := range p.spent {
			p.note("      %s: %s %s, %d uses", g.ID, g.Subject, g.Pattern, g.Uses)
		}
	}
	p.counting = slices.DeleteFunc(x.inForce.sortedPolicies(), func(one rules.Policy) bool {
		return one.Rules.Limits.Budget == nil && one.Rules.Limits.MaxToolCalls == nil
	})
	if len(p.counting) > 0 {
		p.note("lost: what these policies have counted; their budgets and numbers of calls count as used up, begin anew where they are still wanted, with sbctl policy reset:")
		for _, one := range p.counting {
			p.note("      %s around %s", one.Subject, one.Server)
		}
	}
	p.setAside = x.log.halfAside || x.log.files > 0 && !x.begun(origin)
	if p.setAside {
		p.note("keeps: the log, in a folder aside-%s beside the new one", p.at.UTC().Format(suffixTime))
	}
	if p.moveHead {
		p.note("keeps: %s, as %s%s%s", x.settings.head.file, x.settings.head.file, keptInfix, p.at.UTC().Format(suffixTime))
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
	if p.again = x.again; len(p.again) > 0 {
		p.note("does: forgets %d entries of the memory once more; the vault that is kept still holds them", len(p.again))
	}
}

func effectLine(e verify.Entry) string {
	line := fmt.Sprintf("entry %d, %s: %s", e.Seq, stamp(e.Timestamp), e.Kind)
	for _, word := range append([]string{e.SubjectID, e.ResourceID, e.Capability, e.GrantID, e.KeyID}, e.Tenants...) {
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
