package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"syscall"

	"subjectbroker/proto/place"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

// probeOperator says how the operator is told from agents, and what needs it.
func (a *app) probeOperator(ctx context.Context, s *operatorv1.StatusResponse) []probe {
	state, err := a.operatorState(ctx, "asking about the operator")
	if err != nil {
		return []probe{{"operator", probeWarn, oneLine(err.Error()), ""}}
	}
	return judgeOperator(state, s.GetVaultState(), demands(s))
}

// demands are the tiers above cooperative that subjects demand, and by whom.
func demands(s *operatorv1.StatusResponse) []string {
	var all []string
	for _, p := range s.GetProbes() {
		if tier, isDemand := strings.CutPrefix(p.GetName(), demandsPrefix); isDemand {
			all = append(all, tier+" "+p.GetSummary())
		}
	}
	return all
}

// vault is the vault's state: unless it is unlocked, nobody knows whether there is a passphrase.
func judgeOperator(state *operatorv1.GetOperatorResponse, vault string, demands []string) []probe {
	const setPassphrase = "sbctl operator set-passphrase"
	uids := uidList(state.GetOperators())
	others := uids != ""
	p := passed("operator", "a passphrase is set: what raises a subject's minimum tier asks for it")
	switch {
	case !state.GetPassphrase() && !others:
		p = probe{"operator", probeWarn, "no passphrase is set: any process of your uid can do what sbctl can, and no subject's minimum tier can be raised", setPassphrase}
	case !state.GetPassphrase():
		p = passed("operator", "no passphrase is set; the uid %s is an operator by itself, and what raises a subject's minimum tier needs it", uids)
	case others:
		p.Summary += "; the uid " + uids + " is an operator without it"
	}
	switch {
	case vault != "unlocked" && !state.GetPassphrase():
		p = passed("operator", "whether a passphrase is set is not known: the vault is %s", vault)
	case len(demands) > 0:
		p.Summary += "; as " + strings.Join(demands, ", and ") + ", so do disclosing and granting verbs, and launches of such subjects"
		if !state.GetPassphrase() && !others {
			p.Status, p.Summary = probeFail, "no passphrase is set, and "+strings.Join(demands, ", and ")+": nothing that discloses or grants can be done, and no launch of such a subject be started"
		}
	case p.Status == probeOK:
		p.Summary += "; nothing else asks, as no subject demands more than cooperative"
	}
	guard := passed("guard", "on: an agent that has a shim, and what it starts, is refused at the operator's socket; it stops accidents and is no boundary: a process that wants to can leave its ancestors")
	if !state.GetGuard() {
		guard = probe{"guard", probeWarn, "off (config.yaml, operatorGuard): an eager agent may run sbctl as you do; even when on it is no boundary", ""}
	}
	probes := []probe{p, guard}
	if wait := state.GetWaitMs(); wait > 0 {
		probes = append(probes, probe{"operator", probeWarn, "wrong passphrases were tried: the next try has to wait", "sbctl audit list --kind operator.auth"})
	}
	return probes
}

// probeSockets looks at who can reach the two sockets.
func probeSockets(home, socketDir string) []probe {
	var probes []probe
	inHome := strings.HasPrefix(socketDir+"/", home+"/")
	for _, socket := range []struct{ name, path string }{
		{"socket broker", place.BrokerSocket(socketDir)}, {"socket operator", place.OperatorSocket(socketDir)},
	} {
		if p, found := judgeSocket(socket.name, socket.path, inHome); found {
			probes = append(probes, p)
		}
	}
	if len(probes) == 0 {
		return []probe{{"sockets", probeWarn, "there is none in " + socketDir + ": no daemon has made them", startService}}
	}
	return probes
}

func judgeSocket(name, path string, inHome bool) (p probe, found bool) {
	dir := filepath.Dir(path)
	above, err := os.Lstat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return probe{}, false
	}
	if err != nil {
		return probe{name, probeWarn, err.Error(), ""}, true
	}
	stat, _ := above.Sys().(*syscall.Stat_t)
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return probe{}, false
	case errors.Is(err, fs.ErrPermission) && stat != nil:
		return passed(name, "%s: for uid %d and the members of group %s, of which you are none; its socket was not looked at", path, stat.Uid, groupName(stat.Gid)), true
	case err != nil:
		return probe{name, probeWarn, err.Error(), ""}, true
	case !above.IsDir() || info.Mode().Type() != fs.ModeSocket || stat == nil:
		return probe{name, probeFail, path + " is not a socket in a directory", "sbctl service restart"}, true
	}
	switch modes := fmt.Sprintf("%04o %04o", above.Mode().Perm(), info.Mode().Perm()); {
	case modes == "0700 0600":
		return passed(name, "%s: for uid %d alone", path, stat.Uid), true
	case modes == "0750 0660" && !inHome:
		return passed(name, "%s: for uid %d and the members of group %s", path, stat.Uid, groupName(stat.Gid)), true
	case modes == "0750 0660":
		return probe{name, probeFail, path + " is for a group, and lies in the home: config.yaml, socketDir", "sbctl service restart"}, true
	default:
		return probe{name, probeFail, fmt.Sprintf("%s has modes %s, want 0700 and 0600, or 0750 and 0660 for a group", path, modes), "sbctl service restart"}, true
	}
}

// foreignDaemon is the uid that the sockets belong to, if it is not ours.
func foreignDaemon(socketDir string) (uid uint32, foreign bool) {
	info, err := os.Stat(filepath.Dir(place.OperatorSocket(socketDir)))
	if err != nil {
		return 0, false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || int(stat.Uid) == os.Geteuid() {
		return 0, false
	}
	return stat.Uid, true
}

// groupName is a group's name, or its number where it has none.
func groupName(gid uint32) string {
	number := fmt.Sprint(gid)
	if group, err := user.LookupGroupId(number); err == nil {
		return group.Name
	}
	return number
}
