package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"subjectbroker/proto/place"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/worker/client"
	"subjectbroker/worker/launch"
	machine "subjectbroker/worker/probe"
)

// What doctor finds out about the machine: its kernel, and which tiers hold on it.

// machinePatience bounds what is tried on the machine, all of it.
const machinePatience = 10 * time.Second

// demandsPrefix begins the names of the daemon's probes that say which subjects
// demand a tier.
const demandsPrefix = "demands-"

// probeMachine shows the facts about this kernel, and about where this process
// stands on it.
func probeMachine(ctx context.Context) []probe {
	ctx, cancel := context.WithTimeout(ctx, machinePatience)
	defer cancel()
	var probes []probe
	for _, fact := range machine.Here(ctx) {
		probes = append(probes, judgeFact(fact, setting))
	}
	return probes
}

// surroundings are facts that outside a launch are as they should be, held or
// not.
var surroundings = []string{"pidns", "network"}

func judgeFact(fact machine.Probe, setting func(name string) string) probe {
	p := probe{fact.ID, probeOK, fact.Words, ""}
	switch {
	case fact.Status == machine.Unknown:
		p.Status, p.Summary = probeWarn, "could not be tried: "+strings.TrimSuffix(fact.Tried+": "+fact.Words, ": ")
	case fact.Status != machine.Held && !slices.Contains(surroundings, fact.ID):
		p.Status, p.Fix = probeWarn, fixOf(fact.ID, setting)
	}
	return p
}

// restriction is the fact that AppArmor keeps user namespaces from programs that
// have no profile.
const restriction = "userns.apparmor"

// excused are facts without a warning about what does not keep launches from this
// program: it has its profile, or needs none.
func excused(facts, tiers []probe) []probe {
	built := slices.ContainsFunc(tiers, func(p probe) bool { return p.Name == "tier "+tierBound && p.Status == probeOK })
	for i := range facts {
		if p := &facts[i]; built && p.Name == restriction && p.Status == probeWarn {
			p.Status, p.Fix = probeOK, ""
			p.Summary += "; tier " + tierBound + " holds all the same"
		}
	}
	return facts
}

// setting is a setting of the kernel, "" where it has none of that name.
func setting(name string) string {
	value, err := os.ReadFile(filepath.Join("/proc/sys", strings.ReplaceAll(name, ".", "/")))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(value))
}

// installProfile allows user namespaces to sbctl, where the restriction is to stay.
const installProfile = "install -m 644 packaging/apparmor/sbctl /etc/apparmor.d/sbctl && apparmor_parser -r /etc/apparmor.d/sbctl"

// fixOf is the command that changes what is behind a fact, if a command can. None
// makes the machine weaker than the fact itself asks for: swap is to be encrypted,
// and taking it away may end programs.
func fixOf(id string, setting func(name string) string) string {
	if id == restriction {
		return installProfile
	}
	for _, s := range []struct{ id, name, wrong, right string }{
		{"userns", "user.max_user_namespaces", "0", "15000"},
		{"userns", "kernel.unprivileged_userns_clone", "0", "1"},
		{"ptrace", "kernel.yama.ptrace_scope", "0", "1"},
	} {
		if s.id == id && setting(s.name) == s.wrong {
			return "sysctl -w " + s.name + "=" + s.right
		}
	}
	return ""
}

// probeTiers builds a tree of each kind, with nothing in it, and so finds out
// which tiers this machine provides.
func probeTiers(ctx context.Context, places client.Places) []probe {
	probes := []probe{passed("tier "+tierCooperative, "holds, as everywhere: it keeps agents apart that behave; a hostile process of your uid can claim any subject, and read the home")}
	if marker, inside := launch.Inside(); inside {
		return append(probes, probe{"tier " + tierBound, probeWarn, fmt.Sprintf("this is inside a launch of %s: what a machine provides is seen from outside", marker.Subject), ""})
	}
	if uid, foreign := foreignDaemon(places.SocketDir); foreign {
		return append(probes, judgeForeign(uid)...)
	}
	ctx, cancel := context.WithTimeout(ctx, machinePatience)
	defer cancel()
	scratch, err := os.MkdirTemp("", "sbctl-doctor-")
	if err != nil {
		return append(probes, probe{"tier " + tierBound, probeWarn, "could not be tried: " + err.Error(), ""})
	}
	defer os.RemoveAll(scratch)
	if err := scratchPlaces(&places, scratch); err != nil {
		return append(probes, probe{"tier " + tierBound, probeWarn, "could not be tried: " + err.Error(), ""})
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return append(probes, probe{"tier " + tierBound, probeWarn, "could not be tried: " + err.Error(), ""})
	}
	defer null.Close()
	config := launch.Config{Home: places.Home, SocketDir: places.SocketDir, Stdin: null, Stdout: null, Stderr: null}
	probes = append(probes, judgeTier(tierBound, launch.Check(ctx, config),
		`holds: an empty tree was built in which the home, the operator's socket and other processes are covered; "sbctl conformance" attacks one`))
	config.Sandbox, config.Workspace = true, filepath.Join(scratch, "workspace")
	return append(probes, judgeTier(tierSandboxed, launch.Check(ctx, config),
		"holds: an empty tree was built that has its workspace and, to read, the system, with Landlock on top"))
}

// judgeForeign is what the tiers of launches come to with a daemon of another
// uid, whatever the machine provides.
func judgeForeign(uid uint32) []probe {
	why := fmt.Sprintf("not with this daemon: a launch needs sbctl and sbd under one uid, and it has uid %d", uid)
	return []probe{
		passed("tier "+tierBound, "%s; a subject with a uid of its own has what bound demands", why),
		{"tier " + tierSandboxed, probeWarn, why, ""},
	}
}

// scratchPlaces makes what a tree needs to see of a broker, where there is no
// broker yet.
func scratchPlaces(places *client.Places, scratch string) error {
	if err := os.Mkdir(filepath.Join(scratch, "workspace"), 0o700); err != nil {
		return err
	}
	_, noHome := os.Stat(places.Home)
	if _, noSockets := os.Stat(filepath.Dir(place.BrokerSocket(places.SocketDir))); noHome == nil && noSockets == nil {
		return nil
	}
	places.Home = filepath.Join(scratch, "home")
	places.SocketDir = filepath.Join(places.Home, "run")
	for _, socket := range []string{place.BrokerSocket(places.SocketDir), place.OperatorSocket(places.SocketDir)} {
		if err := os.MkdirAll(filepath.Dir(socket), 0o700); err != nil {
			return err
		}
	}
	return nil
}

func judgeTier(tier string, err error, holds string) probe {
	if err == nil {
		return passed("tier "+tier, "%s", holds)
	}
	missing, ok := errors.AsType[*launch.Unsupported](err)
	if !ok {
		return probe{"tier " + tier, probeWarn, "could not be tried: " + oneLine(err.Error()), ""}
	}
	summary := "does not hold, and is refused: " + oneLine(missing.Error())
	if missing.Hint != "" {
		summary += "; " + missing.Hint
	}
	return probe{"tier " + tier, probeWarn, summary, ""}
}

// demanded makes a tier that does not hold a failure, if the daemon says that a
// subject demands it. It takes what the daemon says out of its probes.
func demanded(tiers []probe, s *operatorv1.StatusResponse) {
	for _, p := range s.GetProbes() {
		tier, isDemand := strings.CutPrefix(p.GetName(), demandsPrefix)
		for i := range tiers {
			if isDemand && tiers[i].Name == "tier "+tier {
				tiers[i].Summary += "; " + p.GetSummary()
				if tiers[i].Status != probeOK {
					tiers[i].Status = probeFail
				}
			}
		}
	}
}
