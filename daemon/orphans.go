package daemon

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"subjectbroker/audit"
	"subjectbroker/proto/wire"
)

// Limits on how far back a start looks for runs that nobody ended: first a little,
// then ever more, until it meets the start before.
const (
	orphansFirst = 4096    // entries
	orphansMost  = 1 << 20 // entries
)

// actionStart marks the vault.open of a start: nothing is open then. A vault is
// opened again by an unlock, and after a failed write, with runs open.
const actionStart = "start"

// causeDaemonDied: the daemon did not live to end the run.
const causeDaemonDied = "DAEMON_DIED"

// endOrphans ends in the log the runs that were open when the last daemon died,
// before anybody can open another one. It reads the log back to the last time a
// vault was opened by a start: what was open then was ended by that one.
func (d *Daemon) endOrphans(log *audit.Log) error {
	orphans, whole, err := findOrphans(log)
	if err != nil {
		return err
	}
	if !whole {
		d.logger.Warn("the last start of sbd is too far back in the log: runs from before are not looked for", "entries", orphansMost)
	}
	var entries []audit.Entry
	for _, opened := range orphans {
		entries = append(entries, audit.Entry{
			Kind: kindRunEnd, LaunchID: opened.LaunchID, RunID: opened.RunID, SubjectID: opened.SubjectID, Tier: opened.Tier,
			ProfileID: opened.ProfileID, ReasonCode: string(wire.RunEnded), Cause: causeDaemonDied,
		})
	}
	if len(entries) == 0 {
		return nil
	}
	if err := d.recordAll(entries); err != nil {
		// A daemon whose log cannot be written starts and refuses everything; the
		// next start finds these runs again.
		d.logger.Warn("the log could not take the end of the runs of the last sbd", "runs", len(entries), "error", err)
	}
	return nil
}

// findOrphans returns the entries of runs that were opened and not ended since
// the last start, oldest first, and whether it has met that start.
func findOrphans(log *audit.Log) (orphans []audit.Entry, whole bool, err error) {
	return sinceStart(log, "run", func(open map[string]audit.Entry, e audit.Entry) {
		switch {
		case e.Kind == kindRunOpen && e.Decision == decisionAllow:
			open[e.RunID] = e
		case e.Kind == kindRunEnd:
			delete(open, e.RunID)
		}
	})
}

// sinceStart returns what entries of one family of kinds leave open since the last
// start, oldest first, and whether it has met that start. follow sees each of them,
// in order.
func sinceStart(log *audit.Log, family string, follow func(open map[string]audit.Entry, e audit.Entry)) (left []audit.Entry, whole bool, err error) {
	head, mark := log.Head().Seq, []byte(`"kind":"`+family+`.`)
	for back := uint64(orphansFirst); ; back = min(4*back, orphansMost) {
		from := uint64(1)
		if head > back {
			from = head - back
		}
		open := map[string]audit.Entry{}
		whole = from == 1
		err := log.Read(from, func(_ uint64, line []byte) error {
			if !bytes.Contains(line, mark) && !bytes.Contains(line, []byte(`"kind":"vault.`)) {
				return nil
			}
			var e audit.Entry
			if err := json.Unmarshal(line, &e); err != nil {
				return fmt.Errorf("an entry of kind %s: %w", family, err)
			}
			if (e.Kind == kindVaultOpen || e.Kind == kindVaultCreate) && e.Action == actionStart {
				clear(open)
				whole = true
			}
			follow(open, e)
			return nil
		})
		if err != nil && !errors.Is(err, audit.ErrNotFound) {
			return nil, false, fmt.Errorf("looking for what the last sbd left open: %w", err)
		}
		if whole || back == orphansMost {
			return slices.SortedFunc(maps.Values(open), func(a, b audit.Entry) int { return cmp.Compare(a.Seq, b.Seq) }), whole, nil
		}
	}
}
