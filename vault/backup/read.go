package backup

import (
	"crypto/hmac"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Reader reads a backup from front to back. It is not safe for concurrent use.
type Reader struct {
	manifest Manifest
	payload  *opener
	order    sequence
	left     int64 // of the current part
	err      error // what ended it; sticks
}

// Read opens a backup and reads its manifest. unwrap gets what [Config.Wrap] returned and returns the key of the file, which is
// wiped here.
//
// Errors: ErrNotBackup, ErrVersion, ErrDamaged; those of unwrap and of reading.
func Read(r io.Reader, unwrap func(stanzas []byte) (key []byte, err error)) (*Reader, error) {
	b := &Reader{}
	if err := b.open(r, unwrap); err != nil {
		b.Close()
		return nil, fmt.Errorf("reading backup: %w", err)
	}
	return b, nil
}

func (b *Reader) open(r io.Reader, unwrap func([]byte) ([]byte, error)) error {
	stanzas, header, err := readHeader(r)
	if err != nil {
		return err
	}
	var mac [macSize]byte
	if err := readFull(r, mac[:]); err != nil {
		return err
	}
	fileKey, err := unwrap(stanzas)
	if err != nil {
		return fmt.Errorf("unwrapping its key: %w", err)
	}
	defer clear(fileKey)
	if len(fileKey) != keySize || !hmac.Equal(mac[:], headerMAC(fileKey, header)) {
		return fmt.Errorf("%w: its header is not the one it was sealed with", ErrDamaged)
	}
	b.payload = newOpener(r, chunkKey(fileKey, mac[:]))
	part, err := b.readPart()
	if err != nil {
		return noEOF(err)
	}
	if part.Name != manifestPart || part.Size > manifestLimit {
		return fmt.Errorf("%w: it has no manifest", ErrDamaged)
	}
	p := make([]byte, part.Size)
	if err := readFull(b.payload, p); err != nil {
		return err
	}
	if b.manifest, err = decodeManifest(p); err != nil {
		return fmt.Errorf("%w: manifest: %w", ErrDamaged, err)
	}
	b.order.audit = b.manifest.Audit
	return nil
}

// readHeader returns the stanzas, and all bytes up to their end.
func readHeader(r io.Reader) (stanzas, header []byte, err error) {
	header = make([]byte, len(magic)+4)
	switch n, err := io.ReadFull(r, header); {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		if strings.HasPrefix(string(header[:n]), magic) {
			return nil, nil, fmt.Errorf("%w: it ends early", ErrDamaged)
		}
	case err != nil:
		return nil, nil, err
	}
	if !strings.HasPrefix(string(header), magic) {
		if rest, ok := strings.CutPrefix(string(header), magicPrefix); ok && rest[0] >= '1' && rest[0] <= '9' {
			return nil, nil, fmt.Errorf("%w: a newer version of sbd wrote it", ErrVersion)
		}
		return nil, nil, ErrNotBackup
	}
	n := binary.BigEndian.Uint32(header[len(magic):])
	if n == 0 || n > stanzasLimit {
		return nil, nil, fmt.Errorf("%w: its wrapped key has %d bytes", ErrDamaged, n)
	}
	stanzas = make([]byte, n)
	if err := readFull(r, stanzas); err != nil {
		return nil, nil, err
	}
	return stanzas, append(header, stanzas...), nil
}

// Manifest returns the first part.
func (b *Reader) Manifest() Manifest { return b.manifest }

// Next goes on to the next part, reading over what is left of the current one. It returns io.EOF when the backup is complete, with
// nothing behind it.
//
// Errors: ErrDamaged; those of reading. They stick.
func (b *Reader) Next() (Part, error) {
	if _, err := io.Copy(io.Discard, b); err != nil {
		return Part{}, err
	}
	if b.err != nil {
		return Part{}, b.err
	}
	part, err := b.readPart()
	switch {
	case errors.Is(err, io.EOF):
		if end := b.order.end(); end != nil {
			err = fmt.Errorf("%w: %w", ErrDamaged, end)
		}
	case err == nil:
		if out := b.order.next(part); out != nil {
			err = fmt.Errorf("%w: %w", ErrDamaged, out)
		}
	}
	if err != nil {
		return Part{}, b.end(err)
	}
	b.left = part.Size
	return part, nil
}

// Read reads the content of the current part; io.EOF is its end.
func (b *Reader) Read(p []byte) (int, error) {
	switch {
	case b.left == 0:
		return 0, io.EOF
	case b.err != nil:
		return 0, b.err
	}
	n, err := b.payload.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	if err != nil {
		return n, b.end(noEOF(err))
	}
	return n, nil
}

// Close wipes the key. It does not close what is read from.
func (b *Reader) Close() {
	if b.payload != nil {
		clear(b.payload.key[:])
	}
	if b.err == nil {
		b.err = errors.New("reading backup: it is closed")
	}
}

// end remembers what ended the backup.
func (b *Reader) end(err error) error {
	if !errors.Is(err, io.EOF) {
		err = fmt.Errorf("reading backup: %w", err)
	}
	b.err = err
	return err
}

// readPart reads the head of a part; io.EOF when the payload ends before it.
func (b *Reader) readPart() (Part, error) {
	var size [1]byte
	if _, err := io.ReadFull(b.payload, size[:]); err != nil {
		return Part{}, err
	}
	head := make([]byte, int(size[0])+8)
	if err := readFull(b.payload, head); err != nil {
		return Part{}, err
	}
	name, n := string(head[:size[0]]), binary.BigEndian.Uint64(head[size[0]:])
	if n > sizeLimit {
		return Part{}, fmt.Errorf("%w: a part of %d bytes", ErrDamaged, n)
	}
	return Part{Name: name, Size: int64(n)}, nil
}

// readFull reads all of p; that there is less is damage.
func readFull(r io.Reader, p []byte) error {
	_, err := io.ReadFull(r, p)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = io.EOF
	}
	return noEOF(err)
}

// noEOF turns an end where there must be more into damage.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: it ends early", ErrDamaged)
	}
	return err
}
