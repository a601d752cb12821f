package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"subjectbroker/grants"
	"subjectbroker/vault"
)

// memoryFound is what a look at the memory of a vault that no daemon holds has found.
type memoryFound struct {
	entries   int // that have a content, superseded ones too
	forgotten int
}

// chained is what an entry says of its place.
type chained struct{ tenant, supersedes string }

// examineMemory decodes every row of the memory and follows every chain, as a start
// would. What is wrong is an ErrIntegrity that names the first such entry, by id.
func examineMemory(v *vault.Vault, tenants map[string]grants.Tenant, progress func(done, total int64)) (found memoryFound, err error) {
	places := map[string]chained{}
	err = v.View(func(tx *vault.Tx) error {
		total, err := tx.Count(bucketKnowledge)
		if err != nil {
			return err
		}
		return tx.Each(bucketKnowledge, func(id string, row []byte) error {
			e, err := decodeEntry(id, row)
			if err != nil {
				return err
			}
			if why := e.wrong(row, tenants); why != "" {
				return fmt.Errorf("%w: knowledge row %s: %s", vault.ErrIntegrity, id, why)
			}
			if places[id] = (chained{e.Tenant, e.Supersedes}); e.Forgotten == 0 {
				found.entries++
			} else {
				found.forgotten++
			}
			progress(int64(len(places)), int64(total))
			return nil
		})
	})
	if err == nil {
		err = checkChains(places)
	}
	return found, err
}

// wrong is what cannot be in a row that was written here; empty: nothing.
func (e *knowledgeEntry) wrong(row []byte, tenants map[string]grants.Tenant) string {
	if _, ok := tenants[e.Tenant]; !ok {
		return "its tenant is not there"
	}
	if !isEntryID(e.ID) {
		return "its id is none"
	}
	if e.Forgotten != 0 {
		if left, err := encodeEntry(e.tombstone(e.Forgotten)); err != nil || !bytes.Equal(left, row) {
			return "it was forgotten, and there is something left of it"
		}
		return ""
	}
	ordered := *e
	if err := ordered.check(); err != nil {
		return err.Error()
	}
	if !slices.Equal(ordered.Tags, e.Tags) {
		return "its tags are in no order"
	}
	return ""
}

// checkChains refuses entries that take the place of one that is not there, that is of
// another tenant, or that another has taken, and chains without an end.
func checkChains(places map[string]chained) error {
	newer := make(map[string]string, len(places))
	wrong := func(id, why string) error {
		return fmt.Errorf("%w: knowledge row %s: %s", vault.ErrIntegrity, id, why)
	}
	ids := make([]string, 0, len(places))
	for id := range places {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range ids {
		of := places[id].supersedes
		if of == "" {
			continue
		}
		switch older, known := places[of]; {
		case !known:
			return wrong(id, "what it supersedes is not there")
		case older.tenant != places[id].tenant:
			return wrong(id, "what it supersedes is of another tenant")
		case newer[of] != "":
			return wrong(id, "what it supersedes was superseded by another")
		}
		newer[of] = id
	}
	// Each has one older and one newer at most: what no first one leads to goes round.
	for _, id := range ids {
		if places[id].supersedes == "" {
			for at := id; at != ""; at = newer[at] {
				delete(places, at)
			}
		}
	}
	for _, id := range ids {
		if _, round := places[id]; round {
			return wrong(id, "it supersedes itself, or a newer version of itself")
		}
	}
	return nil
}

// stillThere are those of some entries that a vault has with their content, without
// it, by id. Of one that is damaged nothing is known.
func stillThere(v *vault.Vault, ids []string) (there []knowledgeEntry, err error) {
	err = v.View(func(tx *vault.Tx) error {
		for _, id := range slices.Compact(slices.Sorted(slices.Values(ids))) {
			e, err := readEntry(tx, id)
			switch {
			case err == nil && e.Forgotten == 0:
				there = append(there, e.tombstone(0))
			case err != nil && !errors.Is(err, vault.ErrNotFound) && !errors.Is(err, vault.ErrIntegrity):
				return err
			}
		}
		return nil
	})
	return there, err
}

// forgetAgain takes the content of entries out that had been forgotten before an older
// vault took the place of the one that knew. What is left of it in the file the next
// start purges.
func forgetAgain(tx *vault.Tx, again []knowledgeEntry, at int64) error {
	if len(again) == 0 {
		return nil
	}
	graves := make([]knowledgeEntry, len(again))
	for i := range again {
		graves[i] = again[i].tombstone(at)
	}
	if err := putEntries(tx, graves); err != nil {
		return err
	}
	return tx.Put(bucketDaemon, rowPurge, []byte{1})
}
