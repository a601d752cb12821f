package daemon

import (
	"context"

	"subjectbroker/audit"
	"subjectbroker/vault"
)

// passphrase plans to forget the operator's passphrase, if one is set.
func (p *plan) passphrase(x *examination) error {
	known, err := recogniseIn(x.vault)
	if err != nil {
		return err
	}
	if known.verifier == nil {
		p.note("found: no operator passphrase is set")
		return nil
	}
	p.forget = true
	p.note("found: an operator passphrase is set")
	p.note("lost: it; until another one is set nobody is authenticated by a passphrase, and verbs that need that are refused")
	p.note("does: forgets the operator passphrase and the wrong tries")
	return nil
}

// forgetPassphrase removes what knows the operator.
func (r *recovery) forgetPassphrase(ctx context.Context) error {
	e := r.entry(kindOperatorPassphrase)
	e.Action = "forget"
	j := &offlineJournal{journal: journal{ctx: ctx, d: r.d, change: change{effects: []*audit.Entry{e}}, st: newState()}, reached: r.reached}
	err := r.d.vault.Mutate(j, func(tx *vault.Tx) error {
		if err := putRow(tx, rowAttempts, nil); err != nil {
			return err
		}
		return putRow(tx, rowPassphrase, nil)
	})
	if err != nil {
		return err
	}
	r.say("forgotten: the operator passphrase; sbctl operator set-passphrase sets another one")
	return nil
}
