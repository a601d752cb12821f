package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"subjectbroker/cmd/sbctl/internal/ui"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

type statusCmd struct{}

// Help is the manual of status.
func (statusCmd) Help() string {
	return `The exit code is 0 whenever the daemon answers, locked or not. What is wrong is
said in words: why the vault is not unlocked, why the log cannot be written.

Examples:
  sbctl status
  sbctl status -o json`
}

type statusView struct {
	Version       string    `json:"version"`
	API           uint32    `json:"api"`
	PID           int32     `json:"pid"`
	Started       string    `json:"started"`
	Platform      string    `json:"platform"`
	Home          string    `json:"home"`
	SocketDir     string    `json:"socketDir"`
	Vault         string    `json:"vault"`
	VaultState    string    `json:"vaultState"`
	VaultCause    string    `json:"vaultCause,omitempty"`
	KeySource     string    `json:"keySource"`
	Generation    uint64    `json:"generation"`
	Rows          uint64    `json:"rows"`
	AuditState    string    `json:"auditState"`
	AuditCause    string    `json:"auditCause,omitempty"`
	AuditDir      string    `json:"auditDir"`
	Seq           uint64    `json:"seq"`
	Genesis       string    `json:"genesis"`
	ClockRollback bool      `json:"clockRollback"`
	Resources     uint32    `json:"resources"`
	Subjects      uint32    `json:"subjects"`
	Grants        uint32    `json:"grants"`
	MaxContent    uint64    `json:"maxContent"`
	Runs          []runView `json:"runs"`

	Launches  []launchView `json:"launches"`
	Operators []uint32     `json:"operators"`
	Profiles  uint32       `json:"profiles"`

	Approvals        uint32   `json:"approvals"`
	Approvable       bool     `json:"approvable"`
	Servers          uint32   `json:"servers"`
	UntrustedServers []string `json:"untrustedServers"`

	MemoryRead   uint64 `json:"memoryRead"`   // entries, while the memory is being read
	MemoryToRead uint64 `json:"memoryToRead"` // 0: it is ready, or the vault is locked
	Entries      uint64 `json:"memoryEntries"`
	MemoryCause  string `json:"memoryCause,omitempty"` // why it is not used
	Tenants      uint32 `json:"tenants"`

	Slots      []slotView `json:"slots"`
	RewrapLeft uint64     `json:"rewrapLeft"`
	HeadSeq    uint64     `json:"headSeq"`
	HeadCause  string     `json:"headCause,omitempty"`
	Warnings   []string   `json:"warnings"`
}

// Run shows the status.
func (statusCmd) Run(ctx context.Context, a *app) error {
	s, err := a.status(ctx, "asking for the status")
	if err != nil {
		return err
	}
	err = a.out.Object(ui.Object{
		ID: s.GetVaultId(),
		Fields: []ui.Field{
			{Name: "daemon", Value: fmt.Sprintf("sbd %s, API %d, pid %d, started %s", s.GetVersion(), s.GetApi(), s.GetPid(), a.out.When(s.GetStarted()))},
			{Name: "home", Value: s.GetHome()},
			{Name: "sockets", Value: s.GetSocketDir()},
			{Name: "vault", Value: stateAndCause(s.GetVaultState(), s.GetVaultCause()) + fmt.Sprintf(", generation %d", s.GetGeneration())},
			{Name: "key source", Value: s.GetKeySource()},
			{Name: "slots", Value: strings.Join(slotKinds(s.GetSlots()), ", ")},
			{Name: "rewrap", Value: rewrapLeftWords(s.GetRewrapLeft())},
			{Name: "audit", Value: stateAndCause(s.GetAuditState(), s.GetAuditCause()) + fmt.Sprintf(", entry %d, in %s", s.GetAuditSeq(), s.GetAuditDir())},
			{Name: "genesis", Value: s.GetAuditGenesis()},
			{Name: "head", Value: headWords(s)},
			{Name: "clock", Value: a.clockWords(s)},
			{Name: "policy", Value: policyWords(s)},
			{Name: "memory", Value: memoryWords(s)},
			{Name: "runs", Value: runsWords(s)},
			{Name: "waiting", Value: a.waitingWords(s)},
			{Name: "operators", Value: operatorsWords(s.GetOperators())},
			{Name: "warning", Value: a.recoveryWords(s.GetSlots())},
		},
		Value: statusView{
			Version: s.GetVersion(), API: s.GetApi(), PID: s.GetPid(), Started: ui.Stamp(s.GetStarted()), Platform: s.GetPlatform(),
			Home: s.GetHome(), SocketDir: s.GetSocketDir(), Vault: s.GetVaultId(), VaultState: s.GetVaultState(), VaultCause: s.GetVaultCause(),
			KeySource: s.GetKeySource(), Generation: s.GetGeneration(), Rows: s.GetRows(), AuditState: s.GetAuditState(),
			AuditCause: s.GetAuditCause(), AuditDir: s.GetAuditDir(), Seq: s.GetAuditSeq(), Genesis: s.GetAuditGenesis(),
			ClockRollback: s.GetClockRollback(), Resources: s.GetResources(), Subjects: s.GetSubjects(), Grants: s.GetGrants(),
			MaxContent: s.GetMaxContent(), Runs: viewRuns(s.GetRuns()), Slots: viewSlots(s.GetSlots()), RewrapLeft: s.GetRewrapLeft(),
			HeadSeq: s.GetHeadSeq(), HeadCause: s.GetHeadCause(), Warnings: a.statusWarnings(s),
			Launches:  viewLaunches(s.GetLaunches(), s.GetRuns()),
			Approvals: s.GetApprovals(), Approvable: s.GetApprovable(), Servers: s.GetServers(), UntrustedServers: append([]string{}, s.GetUntrustedServers()...),
			Operators: append([]uint32{}, s.GetOperators()...), Profiles: s.GetProfiles(),
			MemoryRead: s.GetKnowledgeIndexed(), MemoryToRead: s.GetKnowledgeToIndex(),
			Entries: s.GetKnowledgeEntries(), MemoryCause: s.GetKnowledgeCause(), Tenants: s.GetTenants(),
		},
	})
	if err != nil {
		return err
	}
	if err := a.out.Section("Runs", runHead, a.runRows(s.GetRuns(), s.GetLaunches())); err != nil {
		return err
	}
	a.tellUnproven(s.GetLaunches())
	return nil
}

// status asks the daemon what it knows of itself.
func (a *app) status(ctx context.Context, doing string) (*operatorv1.StatusResponse, error) {
	return call(ctx, a, doing, &operatorv1.StatusRequest{}, operatorv1.OperatorServiceClient.Status)
}

// unlockedStatus is the status, unless the vault is not unlocked.
func (a *app) unlockedStatus(ctx context.Context, doing string) (*operatorv1.StatusResponse, error) {
	s, err := a.status(ctx, doing)
	if err != nil {
		return nil, err
	}
	if s.GetVaultState() != "unlocked" {
		what := stateAndCause("the vault is "+s.GetVaultState(), s.GetVaultCause())
		return nil, &failure{code: wire.VaultLocked, doing: doing, what: what, hint: unlockHint(s), exit: wire.ExitUnavailable}
	}
	return s, nil
}

// unlockHint is the command that opens the vault: where its own key does not
// come, what a person has.
func unlockHint(s *operatorv1.StatusResponse) string {
	switch {
	case s.GetVaultState() == "failed":
		return "sbctl doctor"
	case s.GetVaultState() == "locked":
		return "sbctl unlock"
	case hasSlot(s.GetSlots(), slotPassphrase):
		return "sbctl unlock --passphrase"
	case hasSlot(s.GetSlots(), slotRecovery):
		return "sbctl unlock --recovery-code"
	}
	return "sbctl unlock"
}

// contentLimit is the largest content that the daemon takes, in bytes.
func contentLimit(s *operatorv1.StatusResponse) uint64 {
	if limit := s.GetMaxContent(); limit > 0 && limit <= wire.HardMaxContent {
		return limit
	}
	return wire.HardMaxContent
}

func stateAndCause(state, cause string) string {
	if cause == "" {
		return state
	}
	return state + ": " + cause
}

func (a *app) clockWords(s *operatorv1.StatusResponse) string {
	if s.GetClockRollback() {
		return string(wire.ClockRollback) + ": the wall clock is behind the log; timed grants count as expired until " + a.paste("doctor", "--confirm-clock")
	}
	return ""
}

// statusWarnings are what a program should show to a person.
func (a *app) statusWarnings(s *operatorv1.StatusResponse) []string {
	warnings := []string{}
	for _, words := range []string{a.recoveryWords(s.GetSlots()), a.clockWords(s)} {
		if words != "" {
			warnings = append(warnings, words)
		}
	}
	if cause := s.GetHeadCause(); cause != "" {
		warnings = append(warnings, "the head is not kept outside the home: "+cause)
	}
	return warnings
}

// memoryWords say how far the memory was read, and then how much there is of it;
// nothing where there is no tenant.
func memoryWords(s *operatorv1.StatusResponse) string {
	switch {
	case s.GetKnowledgeCause() != "":
		return "not used: " + s.GetKnowledgeCause()
	case s.GetKnowledgeToIndex() == 0 && s.GetTenants() == 0:
		return ""
	case s.GetKnowledgeToIndex() == 0:
		return fmt.Sprintf("ready, %s of %s", count(s.GetKnowledgeEntries(), "entry"), count(s.GetTenants(), "tenant"))
	}
	return fmt.Sprintf("being read: %d of %s; until then agents are told to come again", s.GetKnowledgeIndexed(), count(s.GetKnowledgeToIndex(), "entry"))
}

func rewrapLeftWords(left uint64) string {
	if left == 0 {
		return ""
	}
	return fmt.Sprintf("%s still sealed with an old key", count(left, "row"))
}

// waitingWords say what waits for a person: requests, and servers.
func (a *app) waitingWords(s *operatorv1.StatusResponse) string {
	var words []string
	if n := s.GetApprovals(); n > 0 {
		words = append(words, count(n, "request")+" for approval: "+a.paste("approvals"))
	}
	for _, name := range s.GetUntrustedServers() {
		words = append(words, "server "+name+" offers what is not trusted: "+a.paste("server", "diff", name))
	}
	return strings.Join(words, "; ")
}

// headWords says whether the head is kept outside the home; empty when that is
// not configured.
func headWords(s *operatorv1.StatusResponse) string {
	switch {
	case s.GetHeadCause() != "" && s.GetHeadSeq() > 0:
		return fmt.Sprintf("failing since entry %d: %s", s.GetHeadSeq(), s.GetHeadCause())
	case s.GetHeadCause() != "":
		return "failing: " + s.GetHeadCause()
	case s.GetHeadSeq() > 0:
		return fmt.Sprintf("entry %d is kept outside the home", s.GetHeadSeq())
	}
	return ""
}

// policyWords says how much is in force; of a vault that is not unlocked nobody
// knows.
func policyWords(s *operatorv1.StatusResponse) string {
	if s.GetVaultState() != "unlocked" {
		return ""
	}
	words := fmt.Sprintf("%s, %s, %s", count(s.GetResources(), "resource"), count(s.GetSubjects(), "subject"), count(s.GetGrants(), "grant"))
	if s.GetProfiles() > 0 {
		words += ", " + count(s.GetProfiles(), "profile")
	}
	return words
}

// runsWords says how many runs and launches are open.
func runsWords(s *operatorv1.StatusResponse) string {
	words := fmt.Sprintf("%d open", len(s.GetRuns()))
	if launches := len(s.GetLaunches()); launches == 1 {
		words += ", 1 launch"
	} else if launches > 1 {
		words += fmt.Sprintf(", %d launches", launches)
	}
	return words
}

// operatorsWords names the other uids that administer; empty when there is none.
func operatorsWords(uids []uint32) string {
	if len(uids) == 0 {
		return ""
	}
	return "also uid " + uidList(uids)
}

// count is a number of things in words.
func count[N uint32 | uint64 | int](n N, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	if stem, ok := strings.CutSuffix(noun, "y"); ok {
		return fmt.Sprintf("%d %sies", n, stem)
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

type initCmd struct{}

// Help is the manual of init.
func (initCmd) Help() string {
	return `The daemon makes its vault and its log when it starts for the first time. init
asks it what to keep of that moment elsewhere: the fingerprint of the log's
first entry, against which the log can be verified later even when the daemon
is not believed.

On a terminal it also makes the recovery code, if there is none yet, and shows it
once: write it down, it opens the vault and its backups when everything else is
lost. It never appears in JSON nor on standard output; for a program, or without
a terminal, none is made, and "sbctl key recovery new" makes one later.

Examples:
  sbctl init
  sbctl audit verify --genesis FINGERPRINT`
}

type initView struct {
	Home      string     `json:"home"`
	Vault     string     `json:"vault"`
	KeySource string     `json:"keySource"`
	Protects  string     `json:"protects"`
	Genesis   string     `json:"genesis"`
	Slots     []slotView `json:"slots"`
	Recovery  bool       `json:"recovery"` // whether there is a recovery code
}

// Run prints what to keep.
func (initCmd) Run(ctx context.Context, a *app) error {
	const doing = "meeting the daemon"
	s, err := a.unlockedStatus(ctx, doing)
	if err != nil {
		return err
	}
	slots, codeErr := a.firstRecoveryCode(ctx, s.GetSlots())
	protects := keySourceProtects(weakestSource(s))
	recovery := hasSlot(slots, slotRecovery)
	err = a.out.Object(ui.Object{
		ID: s.GetAuditGenesis(),
		Fields: []ui.Field{
			{Name: "home", Value: s.GetHome()},
			{Name: "vault", Value: s.GetVaultId()},
			{Name: "key source", Value: s.GetKeySource()},
			{Name: "protects", Value: protects},
			{Name: "recovery", Value: recoveryState(recovery)},
			{Name: "genesis", Value: s.GetAuditGenesis()},
		},
		Value: initView{
			Home: s.GetHome(), Vault: s.GetVaultId(), KeySource: s.GetKeySource(), Protects: protects, Genesis: s.GetAuditGenesis(),
			Slots: viewSlots(slots), Recovery: recovery,
		},
	})
	if err != nil {
		return err
	}
	a.done("keep the genesis fingerprint outside this machine: with it \"sbctl audit verify --genesis\" proves where the log began")
	if codeErr == nil && !recovery {
		a.done("no recovery code was made: it is shown on a terminal only; make one with %s", a.paste("key", "recovery", "new"))
	}
	return codeErr
}

func recoveryState(exists bool) string {
	if exists {
		return "there is a recovery code"
	}
	return "none"
}

// firstRecoveryCode makes a recovery code when there is none and a person is
// there to see it, and returns the slots there are then.
func (a *app) firstRecoveryCode(ctx context.Context, slots []*operatorv1.KeySlot) ([]*operatorv1.KeySlot, error) {
	if hasSlot(slots, slotRecovery) || a.out.Format == ui.JSON || a.out.Quiet {
		return slots, nil
	}
	tty, err := a.tty()
	if err != nil {
		return slots, nil
	}
	defer func() { _ = tty.Close() }()
	added, err := a.addRecoveryCode(ctx, "making a recovery code", tty)
	if err != nil {
		return slots, err
	}
	return append(slices.Clone(slots), added.GetSlot()), nil
}

// weakestSource is the slot that decides what a thief needs: a key beside the
// vault, else one in a keychain, else a person's.
func weakestSource(s *operatorv1.StatusResponse) string {
	for _, kind := range []string{slotFile, slotKeychain} {
		if hasSlot(s.GetSlots(), kind) {
			return kind
		}
	}
	if len(s.GetSlots()) > 0 {
		return slotPassphrase
	}
	return s.GetKeySource()
}

// keySourceProtects says what a key source is good for, and what not.
func keySourceProtects(source string) string {
	switch source {
	case slotPassphrase:
		return "only you open the vault, with the passphrase or the recovery code; the daemon starts locked"
	case slotKeychain:
		return "the vault in a copied disk or backup is unreadable without the log-in that opens the keychain; a process of your own user can ask the keychain as sbd does"
	case slotFile:
		return "the vault is unreadable without secret.key, which lies beside it with mode 0600: whoever copies the whole home, or runs as your user, has both"
	}
	return ""
}

// fingerprintShort is the beginning of a fingerprint, for lines of text.
func fingerprintShort(fingerprint string) string {
	const shown = 16
	if len(fingerprint) <= shown {
		return fingerprint
	}
	return strings.ToLower(fingerprint[:shown]) + "…"
}
