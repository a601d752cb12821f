package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"subjectbroker/cmd/sbctl/internal/ui"
	"subjectbroker/proto/place"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

type doctorCmd struct {
	ConfirmClock bool `help:"Say that the wall clock is right: ends CLOCK_ROLLBACK."`
}

// Help is the manual of doctor.
func (doctorCmd) Help() string {
	return `Tries what this machine, the daemon and the agents' configurations really hold,
and for each thing that is wrong names the command that mends it. Which tiers hold
is found out by building an empty tree of each kind. Tokens that stand in an
agent's configuration in clear are named by file and setting, never by value, and
so are MCP servers that an agent starts beside sb-mcp, where nobody judges them.

Works without a daemon, and then says so. The exit code is 1 when a probe fails; a
warning is no failure.

A wall clock that stands behind the newest entry of the log makes timed grants
count as expired; when the clock is right, --confirm-clock says so.

Examples:
  sbctl doctor
  sbctl doctor --confirm-clock`
}

// Results of a probe.
const (
	probeOK   = "ok"
	probeWarn = "warn"
	probeFail = "fail"
)

// probe is one thing that was tried and what came of it.
type probe struct {
	Name    string `json:"name"`
	Status  string `json:"status"`
	Summary string `json:"summary"`
	Fix     string `json:"fix,omitempty"`
}

func passed(name, format string, args ...any) probe {
	return probe{Name: name, Status: probeOK, Summary: fmt.Sprintf(format, args...)}
}

// Run probes.
func (c doctorCmd) Run(ctx context.Context, a *app) error {
	if c.ConfirmClock {
		return a.confirmClock(ctx)
	}
	places, err := a.places()
	if err != nil {
		return err
	}
	probes := a.probeHomes(ctx, places.Home)
	probes = append(probes, probeSockets(places.Home, places.SocketDir)...)
	probes = append(probes, a.probeService(ctx)...)
	tiers := probeTiers(ctx, places)
	probes = append(probes, excused(probeMachine(ctx), tiers)...)
	asked := a.probeDaemon(ctx, tiers)
	probes = append(append(probes, tiers...), asked...)
	probes = append(probes, a.probeAgents(ctx)...)
	for i := range probes {
		if probes[i].Fix == startService && slices.Contains(probes, noService) {
			probes[i].Fix = "sbctl service install" // what is not installed does not start
		}
		probes[i].Fix = a.located(probes[i].Fix)
	}
	list := ui.List{Head: []string{"PROBE", "RESULT", "FOUND", "FIX"}, Items: probes}
	failed := false
	for _, p := range probes {
		list.IDs = append(list.IDs, p.Name)
		list.Rows = append(list.Rows, []string{p.Name, p.Status, p.Summary, p.Fix})
		failed = failed || p.Status == probeFail
	}
	if err := a.out.List(list); err != nil {
		return err
	}
	if failed {
		return exitCode(wire.ExitFailed)
	}
	return nil
}

type clockView struct {
	Now string `json:"now"`
}

func (a *app) confirmClock(ctx context.Context) error {
	got, err := call(ctx, a, "confirming the clock", &operatorv1.ConfirmClockRequest{}, operatorv1.OperatorServiceClient.ConfirmClock)
	if err != nil {
		return err
	}
	return a.out.Object(ui.Object{
		ID:     ui.Stamp(got.GetNow()),
		Fields: []ui.Field{{Name: "clock", Value: a.out.Clock(got.GetNow())}},
		Value:  clockView{ui.Stamp(got.GetNow())},
	})
}

// probeDaemon asks the daemon, and judges what it says of itself. Tiers that
// subjects demand and that do not hold become failures.
func (a *app) probeDaemon(ctx context.Context, tiers []probe) []probe {
	s, err := a.status(ctx, "asking the daemon")
	if failed, ok := errors.AsType[*failure](err); ok {
		return []probe{{"daemon", probeFail, failed.what, failed.hint}}
	}
	if err != nil {
		return []probe{{"daemon", probeFail, err.Error(), ""}}
	}
	probes := []probe{
		passed("daemon", "sbd %s answers, pid %d", s.GetVersion(), s.GetPid()),
		probeVersion(s), probeVault(s), probeAudit(s), probeClock(s), probeHead(s),
	}
	if len(s.GetSlots()) > 0 {
		probes = append(probes, passed("slots", "%s", strings.Join(slotKinds(s.GetSlots()), ", ")), probeRecovery(s.GetSlots()), probeKeySource(s))
	}
	if left := s.GetRewrapLeft(); left > 0 {
		probes = append(probes, probe{"rewrap", probeWarn, rewrapLeftWords(left) + ", and rewrapped in the background", "sbctl key show"})
	}
	for _, p := range s.GetProbes() {
		switch name := p.GetName(); {
		case name == keySourceProbe && len(s.GetSlots()) > 0: // of one slot; ours is of all
		case strings.HasPrefix(name, demandsPrefix): // beside the tier
		case name == tierSeparate:
			probes = append(probes, probe{"tier " + name, p.GetStatus(), p.GetSummary(), p.GetFix()})
		default:
			probes = append(probes, probe{name, p.GetStatus(), p.GetSummary(), p.GetFix()})
		}
	}
	demanded(tiers, s)
	probes = append(probes, a.probeOperator(ctx, s)...)
	probes = append(probes, probeShims(s)...)
	probes = append(probes, probeParents(s.GetRuns(), parentOf)...)
	if s.GetVaultState() == "unlocked" {
		probes = append(probes, a.probeServers(ctx, s)...)
	}
	none := slices.ContainsFunc(s.GetProbes(), func(p *operatorv1.Probe) bool { return p.GetName() == "files" })
	if s.GetVaultState() == "unlocked" && !none {
		probes = append(probes, a.probeFiles(ctx)) // which is an entry in the log
	}
	return probes
}

func probeVersion(s *operatorv1.StatusResponse) probe {
	if s.GetVersion() != version {
		return probe{"version", probeWarn, fmt.Sprintf("sbctl is %s, sbd is %s", version, s.GetVersion()), "sbctl service restart"}
	}
	return passed("version", "sbctl and sbd are %s", version)
}

func probeVault(s *operatorv1.StatusResponse) probe {
	if s.GetVaultState() == "unlocked" {
		return passed("vault", "unlocked, generation %d", s.GetGeneration())
	}
	return probe{"vault", probeFail, stateAndCause(s.GetVaultState(), s.GetVaultCause()), unlockHint(s)}
}

func probeAudit(s *operatorv1.StatusResponse) probe {
	if s.GetAuditState() == "ok" {
		return passed("audit", "entry %d is durable", s.GetAuditSeq())
	}
	return probe{"audit", probeFail, stateAndCause(s.GetAuditState(), s.GetAuditCause()), "sbctl status"}
}

func probeClock(s *operatorv1.StatusResponse) probe {
	if !s.GetClockRollback() {
		return passed("clock", "not behind the log")
	}
	return probe{"clock", probeFail, "behind the log: timed grants count as expired (" + string(wire.ClockRollback) + ")", "sbctl doctor --confirm-clock"}
}

// probeHead tells whether a matching older pair of vault and log would be noticed.
func probeHead(s *operatorv1.StatusResponse) probe {
	switch {
	case s.GetHeadCause() != "":
		return probe{"head", probeFail, "cannot be kept outside the home: " + s.GetHeadCause(), ""}
	case s.GetHeadSeq() > 0:
		return passed("head", "entry %d is kept outside the home", s.GetHeadSeq())
	}
	return passed("head", "not kept outside the home: vault and log put back together from one older moment would pass (config.yaml, audit: headFile)")
}

func probeRecovery(slots []*operatorv1.KeySlot) probe {
	if hasSlot(slots, slotRecovery) {
		return passed("recovery", "there is a recovery code")
	}
	return probe{"recovery", probeWarn, "there is no recovery code: if its key is lost, so is everything in the vault", "sbctl key recovery new"}
}

// keySourceProbe is what the daemon calls it, too.
const keySourceProbe = "key-source"

// probeKeySource says what the slots do not protect from. A key that lies beside
// what it opens makes every other slot no more than a convenience.
func probeKeySource(s *operatorv1.StatusResponse) probe {
	slots := s.GetSlots()
	if _, err := os.Lstat(place.KeyFile(s.GetHome())); hasSlot(slots, slotFile) && errors.Is(err, fs.ErrNotExist) {
		fix := "sbctl key recovery new" // first of all another way in, while the vault is open
		if hasSlot(slots, slotRecovery) || hasSlot(slots, slotPassphrase) {
			fix = "sbctl key slot rm file"
		}
		return probe{keySourceProbe, probeFail, "secret.key is missing: the daemon cannot open the vault by itself any more", fix}
	}
	switch {
	case hasSlot(slots, slotFile) && hasSlot(slots, slotKeychain):
		return probe{keySourceProbe, probeWarn, "the keychain adds nothing while secret.key beside the vault opens it too", "sbctl key slot rm file"}
	case hasSlot(slots, slotFile):
		return probe{keySourceProbe, probeWarn, "secret.key lies beside the vault: a copy of the whole home, or a process of your user, opens it", "sbctl key slot add keychain"}
	case hasSlot(slots, slotKeychain):
		return passed(keySourceProbe, "keychain: a copied disk does not open; a process of your user can ask the keychain as sbd does")
	}
	return passed(keySourceProbe, "only you open the vault, by passphrase or recovery code")
}

// probeShims warns about shims of another version than the daemon's.
func probeShims(s *operatorv1.StatusResponse) []probe {
	var probes []probe
	for _, r := range s.GetRuns() {
		if v := r.GetShimVersion(); v != "" && v != s.GetVersion() {
			probes = append(probes, probe{"shim", probeWarn,
				fmt.Sprintf("run %s of %s has a shim of version %s: restart its agent", r.GetRunId(), r.GetSubject(), v), ""})
		}
	}
	return probes
}

func (a *app) probeFiles(ctx context.Context) probe {
	files, err := a.checkFiles(ctx, "checking files", nil)
	if err != nil {
		return probe{"files", probeWarn, err.Error(), "sbctl resource status"}
	}
	changed := 0
	for _, f := range files {
		if f.GetState() != fileOK {
			changed++
		}
	}
	switch {
	case len(files) == 0:
		return passed("files", "none is registered")
	case changed > 0:
		return probe{"files", probeWarn, fmt.Sprintf("%d of %s not as pinned", changed, count(len(files), "registered file")), "sbctl resource status"}
	}
	return passed("files", "%s as pinned", count(len(files), "registered file"))
}
