package vault

import (
	"fmt"
	"time"

	"subjectbroker/vault/regfile"
)

const recordLabel = "sb/record/v1"

// Types of a resource.
const (
	TypeSealed = "sealed" // bytes in the vault
	TypeFile   = "file"   // a registered file outside of it
)

// Kinds of a resource. Sealed ones are text, secret or binary, registered ones file.
const (
	KindText   = "text"
	KindSecret = "secret"
	KindBinary = "binary"
	KindFile   = "file"
)

// Record is what the vault knows about one resource, without its content.
type Record struct {
	Name     string
	Type     string // TypeSealed, TypeFile
	Kind     string
	Note     string
	Domain   string
	Owner    string
	Created  time.Time
	Updated  time.Time
	ByUID    uint32       // who wrote it last
	File     *regfile.Pin // registered files only
	Versions []Version    // oldest first; empty for a declared resource without content
}

// Version is one state of a sealed resource's content.
type Version struct {
	N            uint32 // from 1
	Size         uint64 // bytes of content
	At           time.Time
	RevertedFrom uint32   // the version whose content this repeats; 0: none
	Pin          [32]byte // SHA-256 of the stored value of the content row
}

// Newest returns the current version; false while there is no content.
func (r *Record) Newest() (Version, bool) {
	if len(r.Versions) == 0 {
		return Version{}, false
	}
	return r.Versions[len(r.Versions)-1], true
}

func (r *Record) version(n uint32) (Version, bool) {
	if n == 0 {
		return r.Newest()
	}
	if uint64(n) > uint64(len(r.Versions)) {
		return Version{}, false
	}
	return r.Versions[n-1], true
}

// check refuses records that could not have been written by this package.
func (r *Record) check() error {
	if err := checkResourceName(r.Name); err != nil {
		return err
	}
	switch r.Type {
	case TypeSealed:
		if r.Kind != KindText && r.Kind != KindSecret && r.Kind != KindBinary {
			return fmt.Errorf("%w: kind %q of a sealed resource", ErrInvalid, r.Kind)
		}
		if r.File != nil {
			return fmt.Errorf("%w: a sealed resource with a file", ErrInvalid)
		}
	case TypeFile:
		if r.Kind != KindFile {
			return fmt.Errorf("%w: kind %q of a registered file", ErrInvalid, r.Kind)
		}
		if r.File == nil || len(r.Versions) != 0 {
			return fmt.Errorf("%w: a registered file needs a pin and has no versions", ErrInvalid)
		}
	default:
		return fmt.Errorf("%w: type %q", ErrInvalid, r.Type)
	}
	for i, v := range r.Versions {
		if uint64(v.N) != uint64(i)+1 || v.RevertedFrom >= v.N {
			return fmt.Errorf("%w: version %d in place %d", ErrInvalid, v.N, i+1)
		}
	}
	return nil
}

func (r *Record) encode(buf []byte) []byte {
	b := newLP(buf[:0], 11+len(r.Versions)).text(recordLabel)
	b = b.text(r.Name).text(r.Type).text(r.Kind).text(r.Note).text(r.Domain).text(r.Owner)
	b = b.time(r.Created).time(r.Updated).u32(r.ByUID)
	if r.File == nil {
		b = b.bytes(nil)
	} else {
		b = b.pin(r.File)
	}
	for _, v := range r.Versions {
		var mark int
		b, mark = b.nest(5)
		b = b.u32(v.N).u64(v.Size).time(v.At).u32(v.RevertedFrom).bytes(v.Pin[:]).endNest(mark)
	}
	return b
}

func decodeRecord(p []byte) (Record, error) {
	r := readLP(p)
	r.label(recordLabel)
	rec := Record{
		Name: r.text(), Type: r.text(), Kind: r.text(), Note: r.text(), Domain: r.text(), Owner: r.text(),
		Created: r.time(), Updated: r.time(), ByUID: r.u32(),
	}
	rec.File = r.pin()
	if n := min(r.left, 1<<16); n > 0 && !r.bad {
		rec.Versions = make([]Version, 0, n)
	}
	for r.more() {
		n := r.nested()
		v := Version{N: n.u32(), Size: n.u64(), At: n.time(), RevertedFrom: n.u32(), Pin: n.hash()}
		if n.done() != nil {
			return Record{}, errEncoding
		}
		rec.Versions = append(rec.Versions, v)
	}
	if err := r.done(); err != nil {
		return Record{}, err
	}
	if err := rec.check(); err != nil {
		return Record{}, err
	}
	return rec, nil
}

func (b lp) pin(p *regfile.Pin) lp {
	b, mark := b.nest(9 + len(p.Dirs))
	b = b.text(p.Path).text(p.Mode).u64(p.Dev).u64(p.Ino).u64(p.Size)
	b = b.u64(uint64(p.MTime)).u64(uint64(p.CTime)).u32(p.UID).bytes(p.SHA256[:])
	for _, d := range p.Dirs {
		var m int
		b, m = b.nest(3)
		b = b.u64(d.Dev).u64(d.Ino).u32(d.UID).endNest(m)
	}
	return b.endNest(mark)
}

// pin reads an optional pin: an empty field is none.
func (r *lpReader) pin() *regfile.Pin {
	field := r.bytes()
	if r.bad || len(field) == 0 {
		return nil
	}
	n := readLP(field)
	p := &regfile.Pin{
		Path: n.text(), Mode: n.text(), Dev: n.u64(), Ino: n.u64(), Size: n.u64(),
		MTime: int64(n.u64()), CTime: int64(n.u64()), UID: n.u32(), SHA256: n.hash(),
	}
	for n.more() {
		m := n.nested()
		p.Dirs = append(p.Dirs, regfile.DirPin{Dev: m.u64(), Ino: m.u64(), UID: m.u32()})
		if m.done() != nil {
			n.bad = true
		}
	}
	if n.done() != nil {
		r.bad = true
	}
	return p
}
