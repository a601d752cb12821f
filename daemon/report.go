package daemon

import (
	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	"subjectbroker/proto/wire"
)

// report says what holds for a run: only what was probed, never what is
// configured.
func (d *Daemon) report(r *run) *brokerv1.ReportResponse {
	state, _ := d.auditHealth()
	return &brokerv1.ReportResponse{
		DaemonVersion: d.version, Platform: platform(), Api: wire.API, Subject: r.subject, RunId: r.id, Tier: r.tier.String(), Profile: r.profile.Name,
		KeySource: d.vault.KeyKind(), AuditState: state,
		Covered: []string{
			"The subject is bound to this connection and cannot be chosen by a request.",
			"Everything that is not granted is denied.",
			"No content is released before its audit entry is durable.",
			"Content is sealed at rest.",
		},
		NotProvided: []string{
			"Separation from a hostile process of the same user: it could claim another subject, or read the key, without any entry.",
			"Approval by a person: what needs it is denied.",
			"Use of a credential without showing it.",
		},
	}
}
