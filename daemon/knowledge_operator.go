package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"

	"google.golang.org/grpc"

	"subjectbroker/daemon/memory"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
	"subjectbroker/vault"
)

// exportPiece is how many bytes of an export go into one message, and a line more.
const exportPiece = 256 << 10

// ForgetKnowledge takes the content of entries out of the vault, whose file is then
// written anew without it, and out of the index.
func (o operator) ForgetKnowledge(ctx context.Context, req *operatorv1.ForgetKnowledgeRequest) (*operatorv1.ForgetKnowledgeResponse, error) {
	d := o.d
	ids := req.GetEntryIds()
	if len(ids) == 0 || len(ids) > wire.MaxForget {
		return nil, refuse("1 to %d entries are forgotten at once", wire.MaxForget)
	}
	for _, id := range ids {
		if !isEntryID(id) {
			return nil, errEntryID()
		}
	}
	if err := d.awaitMemory(ctx); err != nil {
		return nil, err
	}
	d.changing.mu.Lock()
	defer d.changing.mu.Unlock()
	response := &operatorv1.ForgetKnowledgeResponse{}
	oldest := d.clock.now()
	err := d.mutateLocked(ctx, func(st *state) (change, error) {
		ix, err := st.knowledge.use()
		if err != nil {
			return change{}, err
		}
		var all []string
		for _, id := range ids {
			chain := ix.History(id)
			if chain == nil && req.GetPresentOnly() {
				continue
			}
			if chain == nil {
				return change{}, &wire.Error{Reason: wire.InvalidArgument, Message: "there is no entry " + id}
			}
			all = append(all, id)
			at := slices.IndexFunc(chain, func(v memory.Version) bool { return v.ID == id })
			if req.GetHistory() {
				for _, older := range chain[at+1:] {
					all = append(all, older.ID)
				}
			}
		}
		slices.Sort(all)
		all = slices.Compact(all)
		now := d.clock.now().UnixMilli()
		rows := map[string][]byte{}
		of := map[string][]string{} // entries by tenant
		c := change{}
		err = d.vault.View(func(tx *vault.Tx) error {
			for _, id := range all {
				e, err := readEntry(tx, id)
				if err != nil {
					return err
				}
				if e.Forgotten != 0 {
					continue
				}
				if rows[id], err = encodeEntry(e.tombstone(now)); err != nil {
					return err
				}
				if captured := time.UnixMilli(e.Created); captured.Before(oldest) {
					oldest = captured
				}
				of[e.Tenant] = append(of[e.Tenant], id)
				record := o.entry(ctx, kindMemoryForget)
				record.ResourceID, record.Tenants = id, []string{e.Tenant}
				c.effects = append(c.effects, record)
				response.EntryIds = append(response.EntryIds, id)
			}
			return nil
		})
		if err != nil {
			return change{}, err
		}
		c.write = func(tx *vault.Tx) error {
			for id, row := range rows {
				if err := tx.Put(bucketKnowledge, id, row); err != nil {
					return err
				}
			}
			return tx.Put(bucketDaemon, rowPurge, []byte{1})
		}
		c.restrict = func(st *state) {
			for tenant, entries := range of {
				st.knowledge.cut(tenant, entries...)
			}
		}
		forgotten := slices.Clone(response.EntryIds)
		c.permit = func(st *state) {
			st.knowledge.note(func(k *knowledge) {
				for _, id := range forgotten {
					k.forget(id)
				}
			})
		}
		return c, nil
	})
	if err != nil {
		return nil, err
	}
	switch {
	case len(response.EntryIds) > 0:
	case req.GetPresentOnly():
		return response, nil
	default:
		return nil, refuse("nothing is left of these entries")
	}
	_, _ = d.state().knowledge.use() // out of the index before the answer
	if response.Overwritten, err = d.purgeNow(ctx, "it was forgotten"); err != nil {
		return nil, err
	}
	response.Backups, response.Kept, err = d.copiesSince(oldest)
	return response, err
}

// copiesSince are the copies of the vault that hold what was in it at a time: the
// backups that were made since, in words, and the files that recoveries have kept.
func (d *Daemon) copiesSince(since time.Time) (backups, kept []string, err error) {
	if backups, err = d.backupNames(since); err == nil {
		kept, err = keptVaults(d.home)
	}
	return backups, kept, err
}

// backupNames are the backups since a time, in words.
func (d *Daemon) backupNames(since time.Time) ([]string, error) {
	known, err := d.backups(since)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, one := range known {
		names = append(names, strings.TrimSpace(fmt.Sprintf("%s %s of %s", one.GetId(), one.GetName(), time.UnixMilli(one.GetCreated()).UTC().Format(time.RFC3339))))
	}
	return names, nil
}

// withoutDirections writes the characters that change the direction of what follows as
// escapes, which mean the same: a line that is shown on a terminal stands in the order
// in which it is.
func withoutDirections(line []byte) []byte {
	if !bytes.ContainsFunc(line, isDirection) {
		return line
	}
	var b bytes.Buffer
	for _, r := range string(line) {
		if isDirection(r) {
			fmt.Fprintf(&b, `\u%04x`, r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.Bytes()
}

func isDirection(r rune) bool { return unicode.Is(unicode.Bidi_Control, r) }

// ExportKnowledge writes entries, the oldest first, so that what supersedes comes
// after what it does.
func (o operator) ExportKnowledge(req *operatorv1.ExportKnowledgeRequest, stream grpc.ServerStreamingServer[operatorv1.ExportKnowledgeResponse]) error {
	d, ctx := o.d, stream.Context()
	if err := d.meets(ctx, fixed(whenRaised), nil); err != nil { // it discloses
		return err
	}
	if err := d.awaitMemory(ctx); err != nil {
		return err
	}
	st := d.state()
	if _, err := st.knowledge.use(); err != nil {
		return err
	}
	if len(req.GetTenants()) > maxTenants {
		return refuse("at most %d tenants are named", maxTenants)
	}
	tenants := slices.Compact(slices.Sorted(slices.Values(req.GetTenants())))
	st.mu.RLock()
	for _, name := range tenants {
		if _, err := st.knownTenant(name); err != nil {
			st.mu.RUnlock()
			return err
		}
	}
	if len(tenants) == 0 {
		tenants = slices.Sorted(maps.Keys(st.tenants))
	}
	st.mu.RUnlock()
	list := st.knowledge.list(tenants, req.GetHistory())
	record := func(named []string) error {
		e := o.entry(ctx, kindMemoryExport)
		e.Tenants, e.Count, e.Disclosed = named, uint64(len(list)), disclosedYes
		if len(tenants) > len(named) {
			e.Count = uint64(len(st.knowledge.list(named, req.GetHistory())))
		}
		return d.record(ctx, *e)
	}
	entries := slices.Collect(slices.Chunk(tenants, wire.MaxTenantsNamed)) // as many as an entry has room for
	if len(entries) == 0 {
		entries = [][]string{nil}
	}
	for _, named := range entries {
		if err := record(named); err != nil {
			return err
		}
	}
	var out bytes.Buffer
	total := uint64(len(list))
	send := func() error {
		err := stream.Send(&operatorv1.ExportKnowledgeResponse{Lines: bytes.Clone(out.Bytes()), Total: total})
		clear(out.Bytes())
		out.Reset()
		return err
	}
	for len(list) > 0 { // the vault is not held while the operator takes it
		batch := list[:min(len(list), 256)]
		list = list[len(batch):]
		var lines []knowledgeLine
		err := d.rows(tenants, batch, func(e knowledgeEntry) error {
			if e.Forgotten == 0 {
				lines = append(lines, knowledgeLine{
					ID: e.ID, Tenant: e.Tenant, Kind: e.Kind, Title: e.Title, Text: e.Text, Tags: e.Tags, Created: e.Created, Subject: e.Subject, Supersedes: e.Supersedes,
				})
			}
			return nil
		})
		if err != nil {
			return err
		}
		for _, line := range lines {
			encoded, err := json.Marshal(line)
			if err != nil {
				return err
			}
			out.Write(append(withoutDirections(encoded), '\n'))
			if out.Len() >= exportPiece {
				if err := send(); err != nil {
					return err
				}
			}
		}
	}
	return send()
}
