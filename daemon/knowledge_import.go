package daemon

import (
	"bytes"
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"google.golang.org/grpc"

	"subjectbroker/grants"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
	"subjectbroker/vault"
)

// knowledgeLine is one entry as it is exported and imported:
//
//	{"id":…,"tenant":…,"kind":…,"title":…,"text":…,"tags":[…],"created":…,"subject":…,"supersedes":…}
//
// created is in Unix milliseconds. Imported are those and nothing else; all but kind
// and title may be missing, and tenant where the import names one. An entry that
// supersedes another comes after it.
type knowledgeLine struct {
	ID         string   `json:"id,omitempty"`
	Tenant     string   `json:"tenant,omitempty"`
	Kind       string   `json:"kind"`
	Title      string   `json:"title"`
	Text       string   `json:"text,omitempty"`
	Tags       []string `json:"tags,omitempty"`
	Created    int64    `json:"created,omitempty"`
	Subject    string   `json:"subject,omitempty"`
	Supersedes string   `json:"supersedes,omitempty"`

	at uint64 // where it stands in an import
}

// entry is what the line says, without its id and what it supersedes: these may be
// others here. now is in Unix milliseconds; nothing was captured after it.
func (l *knowledgeLine) entry(now int64) knowledgeEntry {
	return knowledgeEntry{
		Tenant: l.Tenant, Kind: l.Kind, Title: l.Title, Text: l.Text, Tags: l.Tags,
		Created: min(cmp.Or(l.Created, now), now), Subject: l.Subject,
	}
}

// importing is one import that is going on.
type importing struct {
	o      operator
	tenant string
	dry    bool
	lines  uint64
	count  [fates]uint64     // of them that say something
	ids    map[string]string // those of the file that became others
	would  imported          // what all pieces of a dry run add
}

// maxImportIDs is how many ids of one import may become others.
const maxImportIDs = maxEntries

// ImportKnowledge adds entries, a message of lines in one change. What is there
// already, as a current entry that says the same, is not added again: an import that
// was broken off is begun anew.
func (o operator) ImportKnowledge(stream grpc.BidiStreamingServer[operatorv1.ImportKnowledgeRequest, operatorv1.ImportKnowledgeResponse]) error {
	if err := o.d.meets(stream.Context(), fixed(whenRaised), nil); err != nil { // agents read it
		return err
	}
	im := importing{o: o, ids: map[string]string{}, would: newImported()}
	for first := true; ; first = false {
		req, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := o.d.awaitMemory(stream.Context()); err != nil {
			return err
		}
		if first {
			im.tenant, im.dry = req.GetTenant(), req.GetDryRun()
		}
		if err := im.piece(stream.Context(), req.GetLines()); err != nil {
			return err
		}
		if err := stream.Send(&operatorv1.ImportKnowledgeResponse{Lines: im.lines, Added: im.count[isAdded], Existed: im.count[isThere], Forgotten: im.count[wasForgotten]}); err != nil {
			return err
		}
	}
}

// piece takes in lines, all or none, and clears them.
func (im *importing) piece(ctx context.Context, lines []byte) error {
	defer clear(lines)
	if len(lines) > wire.MaxImportPiece {
		return refuse("at most %d KiB of lines in one message", wire.MaxImportPiece>>10)
	}
	var parsed []knowledgeLine
	for line := range bytes.Lines(lines) {
		im.lines++
		line = bytes.TrimSpace(line)
		if len(line) == 0 {
			continue
		}
		one, err := parseLine(line)
		if err == nil {
			err = im.check(&one)
		}
		if err != nil {
			return refuse("line %d: %v", im.lines, err)
		}
		one.at = im.lines
		parsed = append(parsed, one)
	}
	return im.o.d.mutate(ctx, func(st *state) (change, error) { return im.plan(ctx, st, parsed) })
}

// parseLine reads one line, of which every reader has to see the same: no member
// stands twice, or in another case, and nothing is replaced in silence.
func parseLine(line []byte) (one knowledgeLine, err error) {
	if len(line) > wire.MaxImportLine {
		return one, fmt.Errorf("it is longer than %d KiB", wire.MaxImportLine>>10)
	}
	if !utf8.Valid(line) {
		return one, errors.New("it is not UTF-8")
	}
	if bytes.HasPrefix(line, []byte("\ufeff")) {
		return one, errors.New("it begins with a byte order mark: write the file as UTF-8 without one")
	}
	if !wire.WholeText(line) {
		return one, errors.New("it has half of a surrogate pair, which is no character")
	}
	members := map[string]any{
		"id": &one.ID, "tenant": &one.Tenant, "kind": &one.Kind, "title": &one.Title, "text": &one.Text, "tags": &one.Tags,
		"created": &one.Created, "subject": &one.Subject, "supersedes": &one.Supersedes,
	}
	decoder := json.NewDecoder(bytes.NewReader(line))
	if begin, err := decoder.Token(); err != nil || begin != json.Delim('{') {
		return one, errors.New("it is no object of JSON, each on a line of its own")
	}
	said := map[string]bool{}
	for decoder.More() {
		token, err := decoder.Token()
		key, ok := token.(string)
		switch {
		case err != nil || !ok:
			return one, errors.New("it is no object of JSON, each on a line of its own")
		case members[key] == nil:
			return one, errors.New("it has a member that there is not: there are " + strings.Join(slices.Sorted(maps.Keys(members)), ", "))
		case said[key]:
			return one, fmt.Errorf("%s stands twice", key)
		}
		said[key] = true
		if decoder.Decode(members[key]) != nil {
			return one, fmt.Errorf("%s is not of its type", key)
		}
	}
	if _, err := decoder.Token(); err != nil {
		return one, errors.New("it is no object of JSON, each on a line of its own")
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return one, errors.New("there is something after the object")
	}
	return one, nil
}

func (im *importing) check(one *knowledgeLine) error {
	if one.Tenant == "" {
		one.Tenant = im.tenant
	}
	e := knowledgeEntry{Kind: one.Kind, Title: one.Title, Text: one.Text, Tags: one.Tags}
	switch err := e.check(); {
	case err != nil:
		return err
	case grants.CheckName(one.Tenant) != nil:
		return errors.New("it names no tenant, and the import names none")
	case one.Subject != "" && grants.CheckName(one.Subject) != nil:
		return errors.New("subject is no name")
	case one.Created < 0:
		return errors.New("created is before 1970")
	case one.ID != "" && !isEntryID(one.ID), one.Supersedes != "" && !isEntryID(one.Supersedes):
		return errors.New("an id has 16 letters and digits")
	}
	one.Tags = e.Tags
	return nil
}

// become is the id of an entry that has none in the file, or whose own is another
// entry's here: the same each time, so that an import that is begun anew finds it, also
// where it was superseded or forgotten since. Whoever sees it learns nothing of what
// the entry says: it depends on a key of the vault.
func (im *importing) become(id string, digest entryDigest) string {
	key := *im.o.d.correlate.Load()
	mac := hmac.New(sha256.New, key[:])
	for _, part := range [][]byte{[]byte("sb/memory/import/v1"), []byte(id), digest[:]} {
		mac.Write([]byte{byte(len(part))})
		mac.Write(part)
	}
	sum := mac.Sum(nil)
	for i, b := range sum[:16] {
		sum[i] = entryIDLetters[b%32]
	}
	return string(sum[:16])
}

// plan is the change that adds what is not there. An error ends the import.
func (im *importing) plan(ctx context.Context, st *state, lines []knowledgeLine) (change, error) {
	d := im.o.d
	if err := d.needAuth(ctx, st, whenRaised); err != nil {
		return change{}, err
	}
	ix, err := st.knowledge.use()
	if err != nil {
		return change{}, err
	}
	m := &merge{
		tenants: st.tenants, present: st.knowledge, index: ix, these: im.would, ids: im.ids, become: im.become, now: d.clock.now().UnixMilli(),
	}
	if !im.dry { // what the pieces before have added is present
		m.these = newImported()
	}
	added, count, err := m.all(lines)
	if err != nil {
		return change{}, err
	}
	if st.knowledge.entries()+len(m.these.tenants) > maxEntries {
		return change{}, refuse("there can be at most %d entries", maxEntries)
	}
	if len(added) > 0 && st.knowledge.full() {
		return change{}, refuse("the index of the memory takes as much as it may, %d MiB", maxIndex>>20)
	}
	for what, n := range count {
		im.count[what] += n
	}
	if len(added) == 0 || im.dry {
		return change{}, nil
	}
	return im.change(ctx, added), nil
}

// change adds entries, and says so in the log for each tenant.
func (im *importing) change(ctx context.Context, added []knowledgeEntry) change {
	c := change{
		write: func(tx *vault.Tx) error { return putEntries(tx, added) },
		permit: func(st *state) {
			st.knowledge.note(func(k *knowledge) {
				for _, e := range added {
					k.add(e)
				}
			})
		},
	}
	counts := map[string]uint64{}
	for _, e := range added {
		counts[e.Tenant]++
	}
	for _, tenant := range slices.Sorted(maps.Keys(counts)) {
		record := im.o.entry(ctx, kindMemoryImport)
		record.Tenants, record.Count = []string{tenant}, counts[tenant]
		c.effects = append(c.effects, record)
	}
	return c
}
