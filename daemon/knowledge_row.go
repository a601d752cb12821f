package daemon

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"subjectbroker/daemon/memory"
	"subjectbroker/proto/wire"
	"subjectbroker/vault"
)

// bucketKnowledge holds one row for each entry of the governed memory, by its id:
//
//	{"v":1,"id":…,"tenant":…,"kind":…,"title":…,"text":…,"tags":[…],
//	 "created":…,"subject":…,"run":…,"launch":…,"key":…,      who captured it, when, and under what
//	 "supersedes":…,"forgotten":…}
//
// Times are Unix milliseconds; what is empty is left out. A forgotten entry keeps
// its id, tenant, kind, created, supersedes and when it was forgotten.
const bucketKnowledge = "knowledge"

// Limits of all entries.
const (
	// maxEntries is how many entries there may be in all tenants: what is searched is
	// in memory.
	maxEntries = 1_000_000
	// maxIndex is about how many bytes of memory the index may take: entries of many
	// different words take more of it than their texts have.
	maxIndex = 2 << 30
)

// Kinds of entries.
var entryKinds = wire.EntryKinds()

// knowledgeEntry is one entry.
type knowledgeEntry struct {
	V          int      `json:"v"`
	ID         string   `json:"id"`
	Tenant     string   `json:"tenant"`
	Kind       string   `json:"kind"`
	Title      string   `json:"title,omitempty"`
	Text       string   `json:"text,omitempty"`
	Tags       []string `json:"tags,omitempty"`
	Created    int64    `json:"created"`
	Subject    string   `json:"subject,omitempty"`
	Run        string   `json:"run,omitempty"`
	Launch     string   `json:"launch,omitempty"`
	Key        string   `json:"key,omitempty"`
	Supersedes string   `json:"supersedes,omitempty"`
	Forgotten  int64    `json:"forgotten,omitempty"`
}

// wrongField is an error of check: which field is wrong, and what it has to be, which
// repeats nothing of what it is.
type wrongField struct{ field, rule string }

func (w *wrongField) Error() string { return w.rule }

func wrong(field, format string, args ...any) error {
	return &wrongField{field, fmt.Sprintf(format, args...)}
}

// check returns a wrongField, or nil. It puts the tags in order.
func (e *knowledgeEntry) check() error {
	switch {
	case !slices.Contains(entryKinds, e.Kind):
		return wrong("kind", "kind is one of %s", strings.Join(entryKinds, ", "))
	case len(e.Title) > wire.MaxEntryTitle || !plainLine(e.Title) || !strings.ContainsFunc(e.Title, seen):
		return wrong("title", "title is one line of 1 to %d bytes, with something to see", wire.MaxEntryTitle)
	case len(e.Text) > wire.MaxEntryText || !plainText(e.Text):
		return wrong("text", "text is UTF-8 without control characters, at most %d KiB", wire.MaxEntryText>>10)
	case len(e.Tags) > wire.MaxEntryTags:
		return wrong("tags", "there are at most %d tags", wire.MaxEntryTags)
	case e.Supersedes != "" && !isEntryID(e.Supersedes):
		return wrong("supersedes", "supersedes is the id of an entry")
	}
	for _, tag := range e.Tags {
		if len(tag) > wire.MaxEntryTag || !plainLine(tag) || !strings.ContainsFunc(tag, seen) {
			return wrong("tags", "a tag is one line of 1 to %d bytes, with something to see", wire.MaxEntryTag)
		}
	}
	e.Tags = slices.Compact(slices.Sorted(slices.Values(e.Tags)))
	if len(e.Tags) == 0 {
		e.Tags = nil
	}
	return nil
}

// plainLine is text without anything that is no character of a line.
func plainLine(text string) bool {
	return utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return unicode.IsControl(r) || r == '\u2028' || r == '\u2029' })
}

// seen reports whether a character shows something by itself.
func seen(r rune) bool { return visible(r) && !unicode.IsSpace(r) && !unicode.IsMark(r) }

// plainText is text with lines and tabs.
func plainText(text string) bool {
	return utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool {
		return unicode.IsControl(r) && r != '\n' && r != '\t' && r != '\r'
	})
}

// entryIDLetters are those of an id of 16, from which it is drawn.
const entryIDLetters = "abcdefghijklmnopqrstuvwxyz234567"

func newEntryID() string {
	random := make([]byte, 16)
	_, _ = rand.Read(random) // never fails: crypto/rand ends the process instead
	for i, b := range random {
		random[i] = entryIDLetters[b%32]
	}
	return string(random)
}

func isEntryID(id string) bool {
	return len(id) == 16 && strings.Trim(id, entryIDLetters) == ""
}

// digest stands for what an entry says: the same in the same tenant is the same entry.
func (e *knowledgeEntry) digest() (sum entryDigest) {
	h := sha256.New()
	for _, part := range append([]string{e.Tenant, e.Kind, e.Title, e.Text}, e.Tags...) {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(part)))
		h.Write(n[:])
		h.Write([]byte(part))
	}
	copy(sum[:], h.Sum(nil))
	return sum
}

// entryDigest is half of a SHA-256, which is enough for what is no secret and no
// proof.
type entryDigest [16]byte

// indexed is what the index takes in of it.
func (e *knowledgeEntry) indexed() memory.Entry {
	return memory.Entry{
		ID: e.ID, Tenant: e.Tenant, Kind: e.Kind, Title: e.Title, Text: e.Text, Tags: e.Tags,
		Created: e.Created, Supersedes: e.Supersedes, Forgotten: e.Forgotten != 0,
	}
}

// tombstone is what stays of it.
func (e *knowledgeEntry) tombstone(at int64) knowledgeEntry {
	return knowledgeEntry{
		V: 1, ID: e.ID, Tenant: e.Tenant, Kind: e.Kind, Created: e.Created, Supersedes: e.Supersedes, Forgotten: at,
	}
}

func encodeEntry(e knowledgeEntry) ([]byte, error) {
	e.V = 1
	return json.Marshal(e)
}

// putEntries writes the rows of entries.
func putEntries(tx *vault.Tx, entries []knowledgeEntry) error {
	for _, e := range entries {
		row, err := encodeEntry(e)
		if err == nil {
			err = tx.Put(bucketKnowledge, e.ID, row)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// decodeEntry reads a row of encodeEntry and nothing else.
func decodeEntry(id string, row []byte) (knowledgeEntry, error) {
	e, err := parseEntry(row)
	if err == nil && e.ID != id {
		err = errOtherRow
	}
	if err != nil {
		return e, fmt.Errorf("%w: knowledge row %s: %v", vault.ErrIntegrity, id, err)
	}
	return e, nil
}
