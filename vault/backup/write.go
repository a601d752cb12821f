package backup

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

const (
	magicPrefix = "subjectbroker backup "
	magic       = magicPrefix + "1\n"

	stanzasLimit = 64 << 10
)

// Config says what goes into a backup. All of it is required.
type Config struct {
	// Wrap seals the 32-byte key of the file for everyone who shall open it; it must not keep the key. What it returns, 1 byte
	// to 64 KiB, is readable in the file.
	Wrap func(key []byte) (stanzas []byte, err error)
	// Manifest is the first part; whether it promises the log must agree with Parts.
	Manifest Manifest
	// Parts are the others: the vault, then the files of the log in rising order, if at all.
	Parts []Source
}

// Source is where a part comes from.
type Source struct {
	Part
	// Open returns the content, Size bytes of it at least; what is behind them, as in a log that is growing, is not read. It is called
	// when the part's turn comes, and the reader is closed before the next one.
	Open func() (io.ReadCloser, error)
}

// Write writes a backup in one pass. It neither syncs nor closes w.
//
// Errors: ErrInvalid for a part or manifest that cannot be, found before anything is written, and for content that ends before its
// Size; those of Wrap, Open, reading and writing. What was written so far is no backup then.
func Write(w io.Writer, c Config) error {
	if err := write(w, c); err != nil {
		return fmt.Errorf("writing backup: %w", err)
	}
	return nil
}

func write(w io.Writer, c Config) error {
	if c.Wrap == nil {
		return fmt.Errorf("%w: Config.Wrap is required", ErrInvalid)
	}
	manifest, err := c.Manifest.encode()
	if err != nil {
		return err
	}
	order := sequence{audit: c.Manifest.Audit}
	for _, p := range c.Parts {
		if err := order.next(p.Part); err != nil {
			return err
		}
	}
	if err := order.end(); err != nil {
		return err
	}
	fileKey := make([]byte, keySize)
	defer clear(fileKey)
	rand.Read(fileKey) // never fails: the program ends instead
	stanzas, err := c.Wrap(fileKey)
	if err != nil {
		return fmt.Errorf("wrapping its key: %w", err)
	}
	return seal(w, fileKey, stanzas, manifest, c.Parts)
}

// seal writes what was checked, with a key that is wrapped.
func seal(w io.Writer, fileKey, stanzas, manifest []byte, parts []Source) error {
	if len(stanzas) == 0 || len(stanzas) > stanzasLimit {
		return fmt.Errorf("%w: its wrapped key has %d bytes", ErrInvalid, len(stanzas))
	}
	header := append([]byte(magic), binary.BigEndian.AppendUint32(nil, uint32(len(stanzas)))...)
	header = append(header, stanzas...)
	mac := headerMAC(fileKey, header)
	if _, err := w.Write(append(header, mac...)); err != nil {
		return err
	}
	key := chunkKey(fileKey, mac)
	defer clear(key[:])
	s := newSealer(w, key)
	if err := writePart(s, Part{manifestPart, int64(len(manifest))}, manifest); err != nil {
		return err
	}
	for _, p := range parts {
		if err := copyPart(s, p); err != nil {
			return fmt.Errorf("%s: %w", p.Name, err)
		}
	}
	return s.Close()
}

// writePart writes the head of a part, and what is there of its content.
func writePart(s *sealer, p Part, content []byte) error {
	head := append([]byte{byte(len(p.Name))}, p.Name...)
	head = binary.BigEndian.AppendUint64(head, uint64(p.Size))
	_, err := s.Write(append(head, content...))
	return err
}

func copyPart(s *sealer, p Source) (err error) {
	if err := writePart(s, p.Part, nil); err != nil {
		return err
	}
	r, err := p.Open()
	if err != nil {
		return err
	}
	defer func() {
		if closeErr := r.Close(); err == nil {
			err = closeErr
		}
	}()
	n, err := io.CopyN(s, r, p.Size)
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: it has %d bytes instead of %d", ErrInvalid, n, p.Size)
	}
	return err
}
