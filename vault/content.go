package vault

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"strconv"
)

// checkResourceName enforces ^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$, byte by byte.
func checkResourceName(name string) error {
	ok := name != "" && len(name) <= 128
	for i := 0; ok && i < len(name); i++ {
		switch c := name[i]; {
		case c >= 'A' && c <= 'Z', c >= 'a' && c <= 'z', c >= '0' && c <= '9':
		case i > 0 && (c == '.' || c == '_' || c == '-'):
		default:
			ok = false
		}
	}
	if !ok {
		return fmt.Errorf("%w: name of a resource", ErrInvalid)
	}
	return nil
}

// contentRow names the row of one version. Names of resources have no slash.
func contentRow(name string, n uint32) string {
	return name + "/" + strconv.FormatUint(uint64(n), 10)
}

// Record returns what is known of a resource. ErrNotFound, ErrIntegrity.
func (t *Tx) Record(name string) (Record, error) {
	if err := checkResourceName(name); err != nil {
		return Record{}, err
	}
	plain, err := t.get(bucketRecords, name)
	if err != nil {
		return Record{}, err
	}
	return openRecord(name, plain)
}

func openRecord(name string, plain []byte) (Record, error) {
	rec, err := decodeRecord(plain)
	if err == nil && rec.Name != name {
		err = errors.New("it is another resource's")
	}
	if err != nil {
		return Record{}, fmt.Errorf("record of %s: %w: %w", name, ErrIntegrity, err)
	}
	return rec, nil
}

// Records calls fn with every record, sorted by name, until fn returns an error, which it returns.
func (t *Tx) Records(fn func(Record) error) error {
	return scanRows(t, bucketRecords, openRecord, func(_ string, rec Record) error { return fn(rec) })
}

// Declare makes a sealed resource without content. An existing one of the same kind is returned as it is; ErrKindChanged
// otherwise, unless it has no content yet and takes the new kind.
func (t *Tx) Declare(name, kind string) (Record, error) {
	if err := t.writable(); err != nil {
		return Record{}, err
	}
	old, err := t.Record(name)
	if err == nil && old.Type == TypeSealed && old.Kind == kind {
		return old, nil
	}
	rec, err := t.sealedRecord(name, kind)
	if err != nil {
		return Record{}, err
	}
	err = t.writeRecord(&rec)
	return rec, err
}

// PutContent makes a resource, or the next version of an existing one, from content, which it neither keeps nor wipes.
// ErrTooLarge, ErrKindChanged, ErrInvalid.
func (t *Tx) PutContent(name, kind string, content []byte) (Record, error) {
	rec, err := t.sealedRecord(name, kind)
	if err != nil {
		return Record{}, err
	}
	return t.addVersion(&rec, content, 0)
}

// Revert makes the next version from the content of version n. ErrNotFound, ErrNoContent, ErrIntegrity.
func (t *Tx) Revert(name string, n uint32) (Record, error) {
	if err := t.writable(); err != nil {
		return Record{}, err
	}
	rec, err := t.Record(name)
	if err != nil {
		return Record{}, err
	}
	if n == 0 {
		return Record{}, fmt.Errorf("%s: %w: there is no version 0", name, ErrNoContent)
	}
	content, _, err := t.ContentOf(rec, n)
	if err != nil {
		return Record{}, err
	}
	defer content.Wipe()
	return t.addVersion(&rec, content, n)
}

// PutRecord stores what a record says beside content: note, domain, owner, who, the kind while there is no content, and of a
// registered file its pin. Versions and the time of creation stay as they are, the time of change is set. It is also how
// registered files are made. ErrKindChanged, ErrInvalid.
func (t *Tx) PutRecord(rec Record) error {
	old, err := t.Record(rec.Name)
	switch {
	case errors.Is(err, ErrNotFound):
		rec.Created, rec.Versions = t.v.cfg.Now(), nil
	case err != nil:
		return err
	case old.Type != rec.Type || (len(old.Versions) > 0 && old.Kind != rec.Kind):
		return fmt.Errorf("%s is %s %s: %w", rec.Name, old.Type, old.Kind, ErrKindChanged)
	default:
		rec.Created, rec.Versions = old.Created, old.Versions
	}
	return t.writeRecord(&rec)
}

// Remove forgets a resource: its record and every version. The sealed bytes stay in free pages of the file until they are
// written over. ErrNotFound.
func (t *Tx) Remove(name string) error {
	if err := checkResourceName(name); err != nil {
		return err
	}
	if err := t.del(bucketRecords, name); err != nil {
		return err
	}
	return t.removePrefix(bucketContents, name+"/")
}

// Content opens one version of a sealed resource; 0 is the newest. The caller wipes it.
//
// Errors: ErrNotFound; ErrNoContent for a version that does not exist; ErrTooLarge, found before anything is opened; ErrIntegrity
// for a row that is missing, is not the pinned one, or does not open.
func (t *Tx) Content(name string, version uint32) (Secret, Version, error) {
	rec, err := t.Record(name)
	if err != nil {
		return nil, Version{}, err
	}
	return t.ContentOf(rec, version)
}

// ContentOf is Content for a record that this transaction returned, which is
// not opened again.
func (t *Tx) ContentOf(rec Record, n uint32) (Secret, Version, error) {
	ver, ok := rec.version(n)
	if !ok {
		return nil, Version{}, fmt.Errorf("%s: %w", rec.Name, ErrNoContent)
	}
	if ver.Size > uint64(t.v.cfg.MaxContent) {
		return nil, Version{}, fmt.Errorf("%s: %w: %d bytes", rec.Name, ErrTooLarge, ver.Size)
	}
	row := contentRow(rec.Name, ver.N)
	stored, err := t.rows.get(bucketContents, row)
	if err != nil {
		return nil, Version{}, err
	}
	content, err := t.keys.openContent(t.s, row, stored, ver)
	return content, ver, err
}

// openContent opens a content row after comparing it with its pin.
func (k *keyset) openContent(s *scratch, row string, stored []byte, ver Version) (Secret, error) {
	var flaw string
	switch {
	case stored == nil:
		flaw = "it is missing"
	case sha256.Sum256(stored) != ver.Pin:
		flaw = "it is not the one its record names"
	}
	if flaw != "" {
		return nil, fmt.Errorf("row %s/%s: %w: %s", bucketContents, row, ErrIntegrity, flaw)
	}
	content, err := k.open(s, make([]byte, 0, plainLen(len(stored))), bucketContents, row, stored)
	if err != nil {
		return nil, err
	}
	if uint64(len(content)) != ver.Size {
		clear(content)
		return nil, fmt.Errorf("row %s/%s: %w: %d bytes instead of %d", bucketContents, row, ErrIntegrity, len(content), ver.Size)
	}
	return content, nil
}

// sealedRecord returns the record to write content of this kind to: the existing one or a new one, not stored yet.
func (t *Tx) sealedRecord(name, kind string) (Record, error) {
	if err := t.writable(); err != nil {
		return Record{}, err
	}
	rec, err := t.Record(name)
	switch {
	case errors.Is(err, ErrNotFound):
		rec = Record{Name: name, Type: TypeSealed, Kind: kind, Created: t.v.cfg.Now()}
		return rec, rec.check()
	case err != nil:
		return Record{}, err
	case rec.Type != TypeSealed || (rec.Kind != kind && len(rec.Versions) > 0):
		return Record{}, fmt.Errorf("%s is %s %s: %w", name, rec.Type, rec.Kind, ErrKindChanged)
	}
	rec.Kind = kind
	return rec, rec.check()
}

func (t *Tx) addVersion(rec *Record, content []byte, from uint32) (Record, error) {
	if len(content) > t.v.cfg.MaxContent {
		return Record{}, fmt.Errorf("%s: %w: %d bytes", rec.Name, ErrTooLarge, len(content))
	}
	if len(rec.Versions) >= math.MaxUint32 {
		return Record{}, fmt.Errorf("%s: %w: too many versions", rec.Name, ErrInvalid)
	}
	n := uint32(len(rec.Versions)) + 1
	stored, err := t.putStored(bucketContents, contentRow(rec.Name, n), content)
	if err != nil {
		return Record{}, err
	}
	rec.Versions = append(rec.Versions, Version{
		N: n, Size: uint64(len(content)), At: t.v.cfg.Now(), RevertedFrom: from, Pin: sha256.Sum256(stored),
	})
	err = t.writeRecord(rec)
	return *rec, err
}

func (t *Tx) writeRecord(rec *Record) error {
	rec.Updated = t.v.cfg.Now()
	if err := rec.check(); err != nil {
		return err
	}
	return t.put(bucketRecords, rec.Name, rec.encode(nil))
}
