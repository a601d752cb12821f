package daemon

import (
	"fmt"
	"strings"

	"subjectbroker/grants"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

// Names of the probes below; sbctl doctor knows the demands by theirs.
const (
	probeProfiles = "profiles"
	probeSeparate = "separate"
	probeFiles    = "files"    // only while there are none: looking at them is CheckFiles
	probeDemands  = "demands-" // and a tier
)

// mostNamed is how many names one probe lists.
const mostNamed = 5

// policyProbes are what is worth knowing about the subjects that are in force,
// for doctor: who demands which tier, who has a uid of its own, and whose runs
// have no ceiling although others' have one. Nil while the vault is locked.
func (d *Daemon) policyProbes() []*operatorv1.Probe {
	st := d.state()
	if d.locked() {
		return nil
	}
	st.mu.RLock()
	subjects, profiles := st.set.Subjects(), st.set.Profiles()
	files := 0
	for _, f := range st.catalog {
		if f.file {
			files++
		}
	}
	st.mu.RUnlock()
	probes := judgePolicy(subjects, profiles)
	if files == 0 {
		probes = append(probes, &operatorv1.Probe{Name: probeFiles, Status: "ok", Summary: "none is registered"})
	}
	return probes
}

func judgePolicy(subjects []grants.Subject, profiles []grants.Profile) []*operatorv1.Probe {
	has := map[string]bool{}
	for _, p := range profiles {
		has[p.Subject] = true
	}
	demands := map[grants.Tier][]string{}
	var with, without, separate []string
	for _, s := range subjects {
		demands[s.MinTier] = append(demands[s.MinTier], s.Name)
		if s.UID != nil {
			separate = append(separate, fmt.Sprintf("%s (uid %d)", s.Name, *s.UID))
		}
		switch {
		case has[s.Name]:
			with = append(with, s.Name)
		case !s.Disabled:
			without = append(without, s.Name)
		}
	}
	probes := []*operatorv1.Probe{{Name: probeProfiles, Status: "ok", Summary: "there is none: a run can use all that its subject was granted"}}
	switch {
	case len(with) > 0 && len(without) > 0:
		probes[0].Status, probes[0].Fix = "warn", "sbctl apply -f FILE"
		probes[0].Summary = fmt.Sprintf("%d, of %s; none of %s, whose runs have no ceiling", len(profiles), firstOf(with), firstOf(without))
	case len(with) > 0:
		probes[0].Summary = fmt.Sprintf("%d, of %s; a run that names none has no ceiling", len(profiles), firstOf(with))
	}
	for _, tier := range []grants.Tier{grants.Bound, grants.Sandboxed} {
		if names := demands[tier]; len(names) > 0 {
			probes = append(probes, &operatorv1.Probe{Name: probeDemands + tier.String(), Status: "ok", Summary: "demanded by " + firstOf(names)})
		}
	}
	p := &operatorv1.Probe{Name: probeSeparate, Status: "ok", Summary: "not set up: no subject has a uid of its own, so agents and sbd share one"}
	if len(separate) > 0 {
		p.Summary = "holds for " + firstOf(separate) + ": the kernel tells them from sbd"
	}
	return append(probes, p)
}

// firstOf lists the first of names, and says how many more there are.
func firstOf(names []string) string {
	if more := len(names) - mostNamed; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:mostNamed], ", "), more)
	}
	return strings.Join(names, ", ")
}
