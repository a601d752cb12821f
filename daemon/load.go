package daemon

import (
	"context"
	"fmt"
	"slices"
	"time"

	"subjectbroker/audit"
	"subjectbroker/grants"
	"subjectbroker/proto/wire"
	"subjectbroker/vault"
)

// Buckets of the vault that the daemon's own rows live in.
const (
	bucketSubjects = "subjects"
	bucketGrants   = "grants"
	bucketRevoked  = "revoked"
)

// load reads what is in force from the vault. uses counts how often grants were
// used; the state keeps it.
func load(v *vault.Vault, uses map[string]uint64) (*state, error) {
	st := newState()
	st.open, st.uses = true, uses
	err := v.View(func(tx *vault.Tx) error {
		if err := tx.Records(func(r vault.Record) error { st.catalog[r.Name] = factsOf(r); return nil }); err != nil {
			return err
		}
		if err := tx.Each(bucketSubjects, func(name string, row []byte) error {
			s, err := grants.DecodeSubject(row)
			if err != nil || s.Name != name {
				return fmt.Errorf("%w: subject row %s: %v", vault.ErrIntegrity, name, err)
			}
			return st.set.PutSubject(s)
		}); err != nil {
			return err
		}
		if err := tx.Each(bucketGrants, func(id string, row []byte) error {
			g, err := grants.DecodeGrant(row)
			if err != nil || g.ID != id {
				return fmt.Errorf("%w: grant row %s: %v", vault.ErrIntegrity, id, err)
			}
			return st.set.PutGrant(g)
		}); err != nil {
			return err
		}
		return tx.Each(bucketRevoked, func(id string, row []byte) error {
			e, err := decodeEnded(row)
			if err != nil {
				return fmt.Errorf("%w: revoked row %s: %v", vault.ErrIntegrity, id, err)
			}
			st.ended = append(st.ended, e)
			return nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("loading what is in force: %w", err)
	}
	st.names = make([]string, 0, len(st.catalog))
	for name := range st.catalog {
		st.names = append(st.names, name)
	}
	slices.Sort(st.names)
	slices.SortStableFunc(st.ended, func(a, b endedGrant) int { return a.Revoked.Compare(b.Revoked) })
	return st, nil
}

// reconciliation is what the log says that the vault may not know yet.
type reconciliation struct {
	uses    map[string]uint64
	intent  *audit.Entry // newest op.intent that has no end
	applied uint64       // highest generation that was applied
}

// follow takes one entry of the log's tail into account. The number of a use
// stands in its entry, so taking an entry twice changes nothing; a grant that
// was granted again counts anew.
func (r *reconciliation) follow(e audit.Entry) {
	switch e.Kind {
	case audit.OpIntent:
		r.intent = &e
	case audit.OpApplied:
		r.applied = max(r.applied, e.Generation)
		r.intent = nil
	case audit.OpNotApplied:
		r.intent = nil
	case kindGrantCreate:
		delete(r.uses, e.GrantID)
	case audit.Acquire:
		if e.Decision == decisionAllow && e.GrantID != "" && e.Count > 0 {
			r.uses[e.GrantID] = max(r.uses[e.GrantID], e.Count)
		}
	}
}

// reconcile compares vault and log at start and after unlock: a vault older
// than anything that was applied is a rollback; an intent without an end gets
// the end that the vault shows. It returns how often grants were used.
func (d *Daemon) reconcile(log *audit.Log) (map[string]uint64, error) {
	vaultState := d.vault.State()
	r := reconciliation{uses: vaultState.Uses}
	if r.uses == nil {
		r.uses = map[string]uint64{}
	}
	last := time.Time{}
	err := log.Replay(audit.Position(vaultState.UsesAt), func(e audit.Entry, _ audit.Position) error {
		r.follow(e)
		last = e.Timestamp
		return nil
	})
	if err != nil {
		return nil, err
	}
	d.clock.raise(last)
	generation := vaultState.Generation
	if r.applied > generation {
		return nil, fault(wire.RollbackDetected, "the vault is at generation %d, the log has applied %d: an older vault was put in place", generation, r.applied)
	}
	if r.intent == nil {
		return r.uses, nil
	}
	end := audit.Entry{Kind: audit.OpNotApplied, Generation: r.intent.Generation, Digest: r.intent.Digest}
	switch r.intent.Generation {
	case generation:
		end.Kind = audit.OpApplied
	case generation + 1:
	default:
		return nil, fault(wire.RollbackDetected, "the vault is at generation %d, the log intends %d", generation, r.intent.Generation)
	}
	if _, err := log.RecordOperator(context.Background(), end); err != nil {
		return nil, err
	}
	return r.uses, nil
}
