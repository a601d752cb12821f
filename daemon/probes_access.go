package daemon

import operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"

// accessProbes say who gets in, for doctor.
func (d *Daemon) accessProbes() []*operatorv1.Probe {
	probes := []*operatorv1.Probe{{
		Name: "operator-guard", Status: "ok",
		Summary: "while a shim is connected, the process that started it and what that starts are no operators; this stops eager agents and is no boundary: " +
			"a process of this uid that wants to can have itself started by something else",
	}}
	switch {
	case d.guard.off:
		probes[0].Status = "warn"
		probes[0].Summary = "operatorGuard is off in config.yaml: an agent that finds sbctl is an operator"
	case !d.guard.on():
		probes[0].Status = "warn"
		probes[0].Summary = "agents are not told from persons on this platform: an agent that finds sbctl is an operator"
	}
	if d.locked() {
		return probes
	}
	for _, at := range []door{brokerDoor, operatorDoor} {
		uids := d.wantedUIDs(at)
		open := d.doors.openFor(at)
		if len(uids) == 0 && !open.shared {
			continue
		}
		p := &operatorv1.Probe{Name: string(at) + "-socket", Status: "ok", Summary: "the " + string(at) + " socket is open for uid " + joinUIDs(without(open.uids, d.doors.own)) + " and no others"}
		if to, err := d.audienceFor(at, uids); err != nil {
			p.Status, p.Summary = "fail", err.Error()
		} else if !to.same(open) {
			p.Status, p.Summary, p.Fix = "fail", "the "+string(at)+" socket is not open for uid "+joinUIDs(uids), "sbctl service restart"
		}
		probes = append(probes, p)
	}
	return probes
}
