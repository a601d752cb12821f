package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
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
	bucketBackups  = "backups"
	bucketDaemon   = "daemon"
)

// Rows of bucketDaemon.
const (
	rowLocked = "locked" // there while the operator keeps the vault locked
	rowPurge  = "purge"  // there from a removal that must leave nothing behind to the compaction that sees to it
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
		if err := errors.Join(st.loadTools(tx), st.loadProfiles(tx), st.loadLaunches(tx), st.loadServers(tx), st.loadPolicies(tx), st.loadConsents(tx), st.loadTenants(tx), st.loadAgentKeys(tx)); err != nil {
			return err
		}
		if err := tx.Each(bucketGrants, func(id string, row []byte) error {
			g, err := grants.DecodeGrant(row)
			if err != nil || g.ID != id {
				return fmt.Errorf("%w: grant row %s: %v", vault.ErrIntegrity, id, err)
			}
			if g.GrantedBy == nil { // older than operators of another uid
				own := uint32(os.Geteuid())
				g.GrantedBy = &own
			}
			return st.set.PutGrant(g)
		}); err != nil {
			return err
		}
		switch _, err := tx.Get(bucketDaemon, rowLocked); {
		case err == nil:
			st.marked = true
		case !errors.Is(err, vault.ErrNotFound):
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
	meters  []byte           // what the vault remembers of calls
	calls   []*meterEvent    // and what the log tells since
	intents []audit.Entry    // of the newest mutation that has no end
	keys    map[string]int64 // when agent keys were used, as the log tells
	applied uint64           // highest generation that was applied
}

// follow takes one entry of the log's tail into account. The number of a use
// stands in its entry, so taking an entry twice changes nothing; a grant that
// was granted again counts anew.
func (r *reconciliation) follow(e audit.Entry) {
	if event := meterEventOf(e); event != nil {
		r.calls = append(r.calls, event)
	}
	r.followKey(e)
	switch e.Kind {
	case audit.OpIntent:
		if len(r.intents) > 0 && r.intents[0].Generation != e.Generation {
			r.intents = nil
		}
		r.intents = append(r.intents, e)
	case audit.OpApplied:
		r.applied = max(r.applied, e.Generation)
		r.intents = nil
	case audit.OpNotApplied:
		r.intents = nil
	case kindGrantCreate:
		delete(r.uses, e.GrantID)
		wipeGrants(r.calls, e.GrantID)
	case audit.Acquire:
		if e.Decision == decisionAllow && e.GrantID != "" && e.Count > 0 {
			r.uses[e.GrantID] = max(r.uses[e.GrantID], e.Count)
		}
	case kindApprovalRun:
		if e.Count > 0 {
			r.uses[e.ApprovalID] = max(r.uses[e.ApprovalID], e.Count)
		}
	case kindApprovalVoid, kindApprovalExpire:
		if e.Generation > 0 { // of an answer that stood, and not of a request: nothing counts it any more
			delete(r.uses, e.ApprovalID)
		}
	}
}

// compare holds the log's tail against a vault of that generation: a vault older
// than anything that was applied is a rollback. It returns the entries that the
// log lacks: an intent without an end gets the end that the vault shows.
func (r *reconciliation) compare(generation uint64) ([]audit.Entry, error) {
	if r.applied > generation {
		return nil, fault(wire.RollbackDetected, "the vault is at generation %d, the log has applied %d: an older vault was put in place", generation, r.applied)
	}
	if len(r.intents) == 0 {
		return nil, nil
	}
	end := audit.Entry{Kind: audit.OpNotApplied, Generation: r.intents[0].Generation, Digest: r.intents[0].Digest}
	switch end.Generation {
	case generation + 1:
		return []audit.Entry{end}, nil
	case generation:
		var entries []audit.Entry
		for _, intent := range r.intents {
			effect := intent
			effect.Kind, effect.Action, effect.Digest = audit.Kind(intent.Action), "", audit.Hash{}
			entries = append(entries, effect)
			r.follow(effect)
		}
		end.Kind = audit.OpApplied
		return append(entries, end), nil
	}
	return nil, fault(wire.RollbackDetected, "the vault is at generation %d, the log intends %d", generation, end.Generation)
}

// reconcile compares vault and log at start and after unlock, and completes the
// log. It returns how often grants were used, and what was counted of calls.
func (d *Daemon) reconcile(log *audit.Log) (*reconciliation, error) {
	vaultState := d.vault.State()
	r := &reconciliation{uses: vaultState.Uses, meters: vaultState.Meters}
	var err error
	if r.keys, err = storedKeyUse(vaultState.Meters); err != nil {
		return nil, err
	}
	if r.uses == nil {
		r.uses = map[string]uint64{}
	}
	last := time.Time{}
	err = log.Replay(audit.Position(vaultState.UsesAt), func(e audit.Entry, _ audit.Position) error {
		r.follow(e)
		last = e.Timestamp
		return nil
	})
	if errors.Is(err, audit.ErrNotFound) { // what a start needs is never pruned
		return nil, fault(wire.RollbackDetected, "the log does not hold entry %d, from which the vault counts uses: an older vault was put in place", vaultState.UsesAt.Seq)
	}
	if err != nil {
		return nil, err
	}
	d.clock.raise(last)
	missing, err := r.compare(vaultState.Generation)
	if err != nil || len(missing) == 0 {
		return r, err
	}
	return r, d.recordAll(missing)
}

// endedRow is the stored form of an ended grant.
type endedRow struct {
	Grant    json.RawMessage `json:"grant"`
	Revoked  int64           `json:"revoked"`            // Unix milliseconds
	Personal *uint32         `json:"personal,omitempty"` // uid
}

func encodeEnded(e endedGrant) ([]byte, error) {
	row, err := grants.EncodeGrant(e.Grant)
	if err != nil {
		return nil, err
	}
	return json.Marshal(endedRow{row, e.Revoked.UnixMilli(), e.Personal})
}

func decodeEnded(raw []byte) (endedGrant, error) {
	var row endedRow
	if err := json.Unmarshal(raw, &row); err != nil {
		return endedGrant{}, err
	}
	g, err := grants.DecodeGrant(row.Grant)
	return endedGrant{g, fromMillis(row.Revoked), row.Personal}, err
}
