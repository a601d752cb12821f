package daemon

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"slices"

	"subjectbroker/audit"
	"subjectbroker/audit/verify"
	"subjectbroker/grants"
	"subjectbroker/proto/place"
	"subjectbroker/proto/wire"
	"subjectbroker/vault"
)

// examination is what was found in a home that no daemon holds. Looking changes
// nothing.
type examination struct {
	settings  fileConfig
	vault     *vault.Vault // open read-only; the caller closes it
	keys      []keyFault   // why the machine's own key sources did not open it
	alone     bool         // one of them did
	contents  error        // why not every content is what its record says
	memory    memoryFound
	memoryErr error            // why not every entry of the memory is as it was written
	again     []knowledgeEntry // entries of the memory that the log says were forgotten, without their content
	state     vault.State
	inForce   *state
	restored  *restoredRow // nil unless the vault came from a backup and was not accepted yet
	log       foundLog
	head      *keptHead // kept outside the home; nil: none
	headErr   error     // why it could not be read, or is of another vault or log
	keyErr    error     // why the signing key does not fit the log
}

func (x *examination) close() error {
	if x.vault == nil {
		return nil
	}
	return x.vault.Close()
}

// foundLog is what the log's files say.
type foundLog struct {
	files   int
	report  verify.Report
	genesis string
	hashes  map[uint64]string // of the entries that somebody remembers
	keyID   string            // of the key that signs next
	applied uint64            // highest generation that was applied
	pending uint64            // generation of an intent without an end; 0: none
	effects []verify.Entry    // what was applied or intended above the vault's generation, up to keptEffects
	forgot  []string          // entries of the memory that were forgotten above it
	beyond  int               // how many those are
	newest  verify.Entry

	aside     []string // folders of older logs that were set aside
	halfAside bool     // setting the log aside was interrupted
}

// keptEffects is how many effects that a vault lacks are told one by one.
const keptEffects = 200

// openedVault opens and unlocks the vault of a home read-only, and verifies it
// with every content: a content that is damaged is in x.contents.
func (o *Offline) openedVault(ctx context.Context, x *examination) error {
	file := place.VaultFile(o.Home)
	if fresh, err := vault.Fresh(file); err != nil {
		return err
	} else if fresh {
		return fault(wire.VaultMissing, "%s holds no vault yet", o.Home)
	}
	v, err := vault.OpenLocked(vault.Config{File: file, ReadOnly: true, Now: o.Now})
	if err != nil {
		return err
	}
	x.vault = v
	if x.keys, err = o.unlock(ctx, v); err != nil {
		return err
	}
	x.alone = v.UnlockedBy() != slotPassphrase && v.UnlockedBy() != slotRecovery
	tell := o.progress("vault")
	if x.contents = v.Verify(true, func(done, total int) { tell(int64(done), int64(total)) }); x.contents != nil {
		if err := v.Verify(false, nil); err != nil {
			return err
		}
	}
	x.state = v.State()
	if x.inForce, err = load(v, map[string]uint64{}); err != nil {
		return err
	}
	if err := x.inForce.recount(x.state.Meters, nil); err != nil {
		return err
	}
	if x.memory, x.memoryErr = examineMemory(v, x.inForce.tenants, o.progress("memory")); x.memoryErr != nil && !errors.Is(x.memoryErr, vault.ErrIntegrity) {
		return x.memoryErr
	}
	x.restored, err = readRestored(v)
	return err
}

// examineLog reads the log beside the vault, and the head outside.
func (o *Offline) examineLog(ctx context.Context, x *examination, more ...*verify.Point) error {
	dir := place.AuditDir(o.Home)
	files, err := logFiles(dir)
	if err != nil {
		return err
	}
	x.log.files = len(files)
	if x.log.aside, err = named(dir, "aside-", "Z"); err != nil {
		return err
	}
	parts, err := named(dir, "aside-", ".part")
	if err != nil {
		return err
	}
	x.log.halfAside = len(parts) > 0
	x.head, x.headErr = newHeadKeeper(x.settings.head, o.Now).kept(x.vault.ID(), dir)
	if x.head == nil && x.settings.head.file != "" {
		x.head, _ = readHead(x.settings.head.file) // for what it says, not for what it proves
	}
	if len(files) == 0 {
		return nil
	}
	if err := checkLogFiles(dir, files); err != nil {
		return err
	}
	x.log.report, err = verify.Dir(ctx, dir, verify.Options{Progress: o.progress("log")})
	if err != nil {
		return fault(wire.AuditDamaged, "%w", err)
	}
	if err := x.log.read(ctx, dir, x, more); err != nil {
		return err
	}
	if x.again, err = stillThere(x.vault, x.log.forgot); err != nil {
		return err
	}
	x.keyErr = x.keyFits(o.Home)
	return nil
}

// checkLogFiles refuses what the log would refuse to open: what others can write
// is not ours to judge.
func checkLogFiles(dir string, files []string) error {
	if err := checkDir(dir, 0o700); err != nil {
		return fault(wire.AuditUnsafe, "%w", err)
	}
	for _, path := range files {
		if err := checkFile(path, 0o600); err != nil {
			return fault(wire.AuditUnsafe, "%w", err)
		}
	}
	return nil
}

// read goes through the entries that verify has vouched for.
func (l *foundLog) read(ctx context.Context, dir string, x *examination, more []*verify.Point) error {
	l.genesis, l.hashes = l.report.Genesis, map[uint64]string{}
	wanted := map[uint64]bool{x.state.Checkpoint.Seq: true, x.state.UsesAt.Seq: true}
	if x.head != nil {
		wanted[x.head.Seq] = true
	}
	for _, p := range more {
		if p != nil {
			wanted[p.Seq] = true
		}
	}
	last := l.report.Last.Seq
	err := readLog(dir, func(line []byte, e verify.Entry) error {
		if e.Seq&1023 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		if e.Seq > last {
			return errEnough
		}
		if wanted[e.Seq] {
			l.hashes[e.Seq] = hashOf(line)
		}
		l.follow(e, x.state.Generation)
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) {
		return err
	}
	return nil
}

func (l *foundLog) follow(e verify.Entry, generation uint64) {
	l.newest = e
	switch audit.Kind(e.Kind) {
	case audit.SegmentOpened, audit.KeyHandover:
		l.keyID = e.KeyID
	case audit.OpIntent:
		l.pending = e.Generation
	case audit.OpApplied:
		l.applied, l.pending = max(l.applied, e.Generation), 0
	case audit.OpNotApplied:
		l.pending = 0
	default:
		if e.Generation > generation {
			if l.beyond++; len(l.effects) < keptEffects {
				l.effects = append(l.effects, e)
			}
			if audit.Kind(e.Kind) == kindMemoryForget {
				l.forgot = append(l.forgot, e.ResourceID)
			}
		}
	}
}

// highest is the highest generation that the log names.
func (l *foundLog) highest() uint64 { return max(l.applied, l.pending) }

// broken is why the log cannot be gone on with; nil when it can. The reasons are
// those of a start.
func (x *examination) broken(home string) error {
	dir, known, l := place.AuditDir(home), x.state.Checkpoint, &x.log
	switch {
	case l.halfAside:
		return fault(wire.AuditDamaged, "setting the log in %s aside was interrupted", dir)
	case l.files == 0 && known.Seq == 0:
		return nil // it has not begun
	case l.files == 0:
		code := wire.RollbackDetected
		if _, err := os.Lstat(dir); os.IsNotExist(err) {
			code = wire.AuditDamaged
		}
		return fault(code, "there is no log in %s, and the vault knows entry %d of one", dir, known.Seq)
	case l.report.Fault != nil && !l.report.Unfinished():
		return fault(wire.AuditDamaged, "%w", l.report.Fault)
	case l.report.VaultID != x.vault.ID():
		return fault(wire.AuditDamaged, "the log in %s is of vault %s, and this is vault %s", dir, l.report.VaultID, x.vault.ID())
	}
	if err := l.reaches(known); err != nil {
		return err
	}
	if err := l.reaches(x.state.UsesAt); err != nil {
		return err
	}
	return x.keyErr
}

// reaches is nil when the log holds a position that a start goes on from. What a
// start needs is never pruned, so that a vault which needs it is older.
func (l *foundLog) reaches(at vault.Checkpoint) error {
	if err := l.contains(at.Seq, hex.EncodeToString(at.Hash[:]), "the vault"); err != nil {
		return err
	}
	if l.pruned(at.Seq) {
		return fault(wire.RollbackDetected, "the vault knows entry %d of the log, whose segment was pruned since: an older vault was put in place", at.Seq)
	}
	return nil
}

// pruned reports whether an entry that somebody remembers is gone.
func (l *foundLog) pruned(seq uint64) bool {
	_, there := l.hashes[seq]
	return seq > 0 && seq <= l.report.Last.Seq && !there
}

// contains is nil when the log holds an entry that somebody remembers. One that
// was pruned cannot be compared.
func (l *foundLog) contains(seq uint64, hash, who string) error {
	found, there := l.hashes[seq]
	switch {
	case seq == 0:
		return nil
	case seq > l.report.Last.Seq:
		return fault(wire.RollbackDetected, "the log ends at entry %d, and %s knows entry %d", l.report.Last.Seq, who, seq)
	case there && found != hash:
		return fault(wire.RollbackDetected, "entry %d of the log is not the one that %s knows", seq, who)
	}
	return nil
}

// keyFits makes sure that the key the log names can be had.
func (x *examination) keyFits(home string) error {
	seal, err := x.vault.AuditSealKey()
	if err != nil {
		return err
	}
	defer seal.Wipe()
	ids, err := audit.KeyIDs(place.AuditKey(home), x.vault.ID(), seal)
	if err != nil {
		return err
	}
	if !slices.Contains(ids, x.log.keyID) {
		return fault(wire.AuditDamaged, "%s does not hold the key that signs the log", place.AuditKey(home))
	}
	return nil
}

// older is why the vault is older than its log; nil when it is not.
func (x *examination) older() error {
	r := reconciliation{applied: x.log.applied}
	if x.log.pending > 0 {
		r.intents = []audit.Entry{{Kind: audit.OpIntent, Generation: x.log.pending}}
	}
	_, err := r.compare(x.state.Generation)
	return err
}

// behind is why the log is not the one that the head outside is of, or is older;
// nil when it holds that head.
func (x *examination) behind() error {
	if x.headErr != nil || x.head == nil {
		return x.headErr
	}
	if x.log.files == 0 {
		if x.state.Checkpoint.Seq > 0 {
			return nil // broken says so
		}
		return fault(wire.RollbackDetected, "the log has not begun, and %s knows entry %d", x.settings.head.file, x.head.Seq)
	}
	return x.log.contains(x.head.Seq, x.head.Hash, x.settings.head.file)
}

// tidy says what the next start does about what a crash left; empty: nothing.
func (x *examination) tidy() []string {
	var lines []string
	if n := x.log.report.Torn; n > 0 {
		lines = append(lines, fmt.Sprintf("audit: %d bytes behind entry %d are of a commit that a crash cut off, and that nobody was answered about: the next start sets them aside", n, x.log.report.Last.Seq))
	}
	if x.log.report.Rotating {
		lines = append(lines, "audit: a new segment was about to begin: the next start begins it")
	}
	if x.log.pending > 0 {
		what := "was not made"
		if x.log.pending == x.state.Generation {
			what = "was made"
		}
		lines = append(lines, fmt.Sprintf("audit: the change to generation %d has no end in the log; it %s: the next start records that", x.log.pending, what))
	}
	return lines
}

// limited are the grants in force that end with a number of uses, by id.
func (x *examination) limited() []grants.Grant {
	found := slices.DeleteFunc(x.inForce.set.All(), func(g grants.Grant) bool { return g.Uses == 0 })
	slices.SortFunc(found, func(a, b grants.Grant) int { return cmp.Compare(a.ID, b.ID) })
	return found
}
