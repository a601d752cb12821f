package daemon

import (
	"fmt"
	"slices"
	"strings"

	"subjectbroker/grants"
	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	"subjectbroker/proto/wire"
)

// report says what holds for a run: only what was probed, never what is
// configured. Agents read it: it names no command, path or cause.
func (d *Daemon) report(r *run) *brokerv1.ReportResponse {
	state, _ := d.auditHealth()
	m := &brokerv1.ReportResponse{
		DaemonVersion: d.version, Platform: platform(), Api: wire.API, Subject: r.subject, RunId: r.id, Tier: r.tier.String(), Profile: r.profile.Name,
		KeySource: d.vault.KeyKind(), AuditState: state,
		Covered: []string{
			"The subject is bound to this connection and cannot be chosen by a request.",
			"Everything that is not granted is denied.",
			"No content is released before its audit entry is durable.",
			"Content is sealed at rest.",
		},
	}
	if r.profile.Name != "" {
		m.Covered = append(m.Covered, "What no tool of the profile needs is denied, whatever was granted.")
	}
	covered, notProvided := boundaries(r.tier)
	m.Covered = append(m.Covered, covered...)
	m.NotProvided = append(notProvided,
		"Rules around servers that an agent starts itself, through the broker or past it: it could start them without.",
	)
	if d.approvable() {
		m.Covered = append(m.Covered, "What needs a person waits for one, and only an authenticated operator can answer.")
	} else {
		m.NotProvided = append(m.NotProvided, "Approval by a person: nobody can give it, and what needs it is denied.")
	}
	d.reportMemory(r, m)
	return m
}

// mostReported is how many tenants a report names.
const mostReported = 16

// reportMemory says what the run may do with the shared memory now.
func (d *Daemon) reportMemory(r *run, m *brokerv1.ReportResponse) {
	st, at := d.state(), d.clock.read()
	var may []string
	for _, one := range []struct {
		action grants.Action
		words  string
	}{{grants.MemoryRead, "read "}, {grants.MemoryWrite, "add to "}} {
		tenants, _ := st.scope(r.asker(), one.action, nil, at)
		if len(tenants) == 0 || !slices.ContainsFunc(memoryTools[one.action], r.ceiling.Lists) {
			continue
		}
		said := strings.Join(tenants[:min(len(tenants), mostReported)], ", ")
		if more := len(tenants) - mostReported; more > 0 {
			said += fmt.Sprintf(" and %d more", more)
		}
		may = append(may, one.words+said)
	}
	if len(may) == 0 {
		m.NotProvided = append(m.NotProvided, "The shared memory: this run may neither read a tenant of it nor add to one.")
		return
	}
	m.Covered = append(m.Covered, "Of the shared memory this run may "+strings.Join(may, "; ")+"; a request that names another tenant is refused whole.")
	m.NotProvided = append(m.NotProvided, "The truth of what stands in the shared memory: an entry says who captured it, and nobody checks it.")
	if _, err := st.knowledge.use(); err != nil {
		m.NotProvided = append(m.NotProvided, "Answers from the shared memory at this moment: it is being read, or cannot be.")
	}
}

// boundaries is what holds, and what does not, between a run of that tier and the
// other processes of the machine.
func boundaries(tier grants.Tier) (covered, notProvided []string) {
	const (
		tree  = "Every process of this launch is this subject, whatever it claims, and ends with the launch."
		apart = "The broker's files, its keys and its log, the operator's verbs and the processes outside of this launch are out of reach."
		files = "Other files: what is left in them may be read or run by somebody outside of this launch."
	)
	switch tier {
	case grants.Cooperative:
	case grants.Keyed:
		return []string{"The agent key is judged again at each request, and this run ends with it."}, []string{
			"Knowledge of who asks: whoever holds the agent key is this subject.",
			"Separation from a hostile process of the account under which the broker runs: it could claim another subject, or read the key of the vault, without any entry.",
		}
	case grants.Bound:
		return []string{tree, apart}, []string{files}
	case grants.Sandboxed:
		return []string{tree, apart, "No file outside of the workspace can be changed, and none but the system's can be read."},
			[]string{"The files of the workspace: what is left in them may be read or run by somebody outside of this launch."}
	case grants.Separate:
		return []string{"This subject runs under an account of its own: the kernel keeps it from the broker's files, keys and processes."},
			[]string{"Separation of the processes of this account from each other: all of them are this subject."}
	}
	return nil, []string{"Separation from a hostile process of the same user: it could claim another subject, or read the key, without any entry."}
}
