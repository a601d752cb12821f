package daemon

import (
	"context"
	"errors"
	"os"
	"runtime"

	"subjectbroker/grants"
	"subjectbroker/proto/place"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
	"subjectbroker/vault"
	"subjectbroker/vault/keysource"
)

// Status answers whenever the daemon runs. It writes no entry.
func (o operator) Status(ctx context.Context, _ *operatorv1.StatusRequest) (*operatorv1.StatusResponse, error) {
	d := o.d
	mode, cause := d.locking.get()
	vaultState := d.vault.State()
	s := &operatorv1.StatusResponse{
		Version: d.version, Api: wire.API, Pid: int32(os.Getpid()), Started: millis(d.started), Home: d.home, SocketDir: d.socketDir,
		VaultState: d.locking.word(), KeySource: d.keySource(), VaultId: d.vault.ID(),
		Generation: vaultState.Generation, Rows: vaultState.Count, AuditDir: place.AuditDir(d.home), MaxContent: uint64(d.maxContent),
		Platform: platform(), Probes: d.probes(),
	}
	if mode != unlocked {
		s.VaultCause = cause
	}
	s.Slots = slotMessages(d.vault.Slots())
	_, s.RewrapLeft, _ = d.upkeep.progress()
	s.HeadSeq, s.HeadCause = d.heads.status()
	s.AuditState, s.AuditCause = d.auditHealth()
	if log := d.log(); log != nil {
		head := log.Head()
		s.AuditSeq, s.AuditGenesis = head.Seq, head.Genesis
	}
	at := d.clock.read()
	s.ClockRollback = at.behind
	st := d.state()
	st.mu.RLock()
	uid := callerOf(ctx).UID
	s.Tenants = uint32(len(st.tenants))
	s.Resources, s.Subjects, s.Profiles = uint32(st.count(uid)), uint32(len(st.set.Subjects())), uint32(len(st.set.Profiles()))
	for g := range st.set.Each() {
		if st.grantState(g, at) == grants.Active && !st.namesHidden(uid, g.Pattern) {
			s.Grants++
		}
	}
	st.mu.RUnlock()
	if st.open {
		s.KnowledgeIndexed, s.KnowledgeToIndex = st.knowledge.progress()
		if fault := st.knowledge.failed(); fault != nil {
			s.KnowledgeCause = fault.Error()
		} else if s.KnowledgeToIndex == 0 {
			s.KnowledgeEntries = uint64(st.knowledge.entries())
		}
	}
	for _, r := range d.runs.list(false) {
		s.Runs = append(s.Runs, r.message(uid))
	}
	s.Operators = d.doors.operators
	s.Approvals, s.Approvable = d.approvals.pending(sees(uid)), d.approvable()
	s.Launches = d.launchMessages(uid, false)
	s.Servers, s.UntrustedServers = d.serversAdded(), d.untrustedServers()
	return s, nil
}

// keySource is the kind of the first slot that opens without a person, if there
// is one.
func (d *Daemon) keySource() string {
	for _, slot := range d.vault.Slots() {
		if slotSummaries[slot.Kind] != "" {
			return slot.Kind
		}
	}
	return d.vault.KeyKind()
}

func platform() string { return runtime.GOOS + "/" + runtime.GOARCH }

// auditHealth is the log's state in words.
func (d *Daemon) auditHealth() (state, cause string) {
	log := d.log()
	if log == nil {
		return "failing", "not open: the vault was not unlocked since sbd started"
	}
	if ok, cause := log.Health(); !ok {
		return "failing", cause
	} else if cause != "" {
		return "ok", cause
	}
	return "ok", ""
}

// ConfirmClock takes the wall clock at its word.
func (o operator) ConfirmClock(ctx context.Context, _ *operatorv1.ConfirmClockRequest) (*operatorv1.ConfirmClockResponse, error) {
	o.d.changing.mu.Lock()
	defer o.d.changing.mu.Unlock()
	if err := o.d.needStill(ctx, o.d.state()); err != nil {
		return nil, err
	}
	// It gives timed grants back, so its entry comes first.
	if err := o.d.account(ctx, operatorv1.OperatorService_ConfirmClock_FullMethodName, nil); err != nil {
		return nil, err
	}
	now := o.d.clock.confirm()
	o.d.hub.listChanged()
	return &operatorv1.ConfirmClockResponse{Now: millis(now)}, nil
}

// Lock wipes keys and policy.
func (o operator) Lock(ctx context.Context, _ *operatorv1.LockRequest) (*operatorv1.LockResponse, error) {
	if err := o.d.lock(ctx, *o.entry(ctx, kindVaultLock), "locked by the operator"); err != nil {
		return nil, err
	}
	return &operatorv1.LockResponse{}, nil
}

// Unlock asks the stores of slot keys, with time for a person at a prompt, or
// takes what the operator brought.
func (o operator) Unlock(ctx context.Context, req *operatorv1.UnlockRequest) (*operatorv1.UnlockResponse, error) {
	d := o.d
	sources := d.sources(keysource.InteractiveTimeout)
	if slot := req.GetSlot(); slot != "" {
		source, err := d.secretSource(slot, req.GetSecret())
		if err != nil {
			return nil, err
		}
		sources = []vault.KeySource{source}
	}
	e := o.entry(ctx, kindVaultUnlock)
	if err := d.unlock(ctx, sources, e); err != nil {
		if errors.Is(err, vault.ErrNoSlot) {
			return nil, keyWords(err)
		}
		f := asFault(err)
		d.logger.Warn("unlocking", "code", f.Code, "error", f.Err)
		return nil, &wire.Error{Reason: f.Code, Message: f.Err.Error()}
	}
	return &operatorv1.UnlockResponse{}, nil
}

// Panic disables every subject, then locks. It does as much as it can: a log
// that cannot be written does not keep it from locking.
func (o operator) Panic(ctx context.Context, _ *operatorv1.PanicRequest) (*operatorv1.PanicResponse, error) {
	d := o.d
	response := &operatorv1.PanicResponse{Runs: uint32(len(d.runs.list(false)))}
	err := d.mutate(ctx, func(st *state) (change, error) {
		var after []grants.Subject
		c := change{}
		for _, s := range st.set.Subjects() {
			if s.Disabled {
				continue
			}
			s.Disabled = true
			after = append(after, s)
			response.Subjects = append(response.Subjects, s.Name)
			e := o.entry(ctx, kindSubjectDisable)
			e.SubjectID = s.Name
			c.effects = append(c.effects, e)
		}
		c.write = func(tx *vault.Tx) error {
			for _, s := range after {
				if err := putSubject(tx, s); err != nil {
					return err
				}
			}
			return nil
		}
		c.restrict = func(st *state) {
			for _, s := range after {
				st.mustPutSubject(s)
			}
		}
		return c, nil
	})
	if err != nil && refusal(err).Reason == wire.VaultLocked {
		err = nil // locked already, so nothing is served; the subjects stay as they are
	}
	err = errors.Join(err, d.lock(ctx, *o.entry(ctx, kindVaultLock), "locked by panic"))
	accountFor(ctx)
	if log := d.log(); log != nil {
		if _, noteErr := log.RecordOperator(ctx, *o.entry(ctx, kindOperatorPanic)); noteErr != nil {
			err = errors.Join(err, noteErr)
		}
	}
	return response, err
}

// probes are what the daemon finds out about its own process, for doctor.
func (d *Daemon) probes() []*operatorv1.Probe {
	probes := processProbes()
	if d.locking.waiting() {
		probes = append(probes, &operatorv1.Probe{Name: "key", Status: "fail", Summary: "the key source does not answer", Fix: "sbctl unlock"})
	}
	for _, slot := range d.vault.Slots() {
		if summary := slotSummaries[slot.Kind]; summary != "" {
			probes = append(probes, &operatorv1.Probe{Name: "key-source", Status: "ok", Summary: summary})
		}
	}
	if st := d.state(); st.open {
		if fault := st.knowledge.failed(); fault != nil {
			probes = append(probes, &operatorv1.Probe{Name: "shared-memory", Status: "fail", Summary: "it is not used: " + fault.Error()})
		}
		probes = append(probes, d.shareProbes(st.knowledge)...)
	}
	return append(append(probes, d.policyProbes()...), d.accessProbes()...)
}

// slotSummaries say what the slots that open by themselves protect from.
var slotSummaries = map[string]string{
	keysource.KindKeychain: "a key is in the OS keychain, which any process of this uid can ask",
	keysource.KindFile:     "a key is in a file beside the vault, which any process of this uid, and whoever copies the home, can read",
}
