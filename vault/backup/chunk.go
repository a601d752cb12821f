package backup

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"golang.org/x/crypto/nacl/secretbox"
)

const (
	keySize     = 32
	macSize     = sha256.Size
	chunkSize   = 64 << 10
	sealedChunk = chunkSize + secretbox.Overhead

	macLabel   = "sb/backup/header/v1"
	chunkLabel = "sb/backup/chunks/v1"
)

// headerMAC binds a header to the key of its file.
func headerMAC(fileKey, header []byte) []byte {
	key := derive(fileKey, macLabel)
	defer clear(key[:])
	h := hmac.New(sha256.New, key[:])
	h.Write(header)
	return h.Sum(nil)
}

func chunkKey(fileKey, mac []byte) *[keySize]byte { return derive(fileKey, chunkLabel+string(mac)) }

// derive panics for nothing that input could bring about: one hash is always short enough.
func derive(fileKey []byte, info string) *[keySize]byte {
	p, err := hkdf.Expand(sha256.New, fileKey, info, keySize)
	if err != nil {
		panic("backup: HKDF: " + err.Error())
	}
	defer clear(p)
	return (*[keySize]byte)(append([]byte(nil), p...))
}

func nonce(number uint64, last bool) *[24]byte {
	var n [24]byte
	binary.BigEndian.PutUint64(n[:], number)
	if last {
		n[8] = 1
	}
	return &n
}

// sealer turns a payload into chunks. Only Close knows which one is the last, so a full one waits for more.
type sealer struct {
	dst    io.Writer
	key    *[keySize]byte
	number uint64
	plain  []byte
	sealed []byte
}

func newSealer(dst io.Writer, key *[keySize]byte) *sealer {
	return &sealer{dst: dst, key: key, plain: make([]byte, 0, chunkSize), sealed: make([]byte, 0, sealedChunk)}
}

func (s *sealer) Write(p []byte) (written int, err error) {
	for len(p) > 0 {
		if len(s.plain) == chunkSize {
			if err := s.seal(false); err != nil {
				return written, err
			}
		}
		n := min(len(p), chunkSize-len(s.plain))
		s.plain = append(s.plain, p[:n]...)
		p = p[n:]
		written += n
	}
	return written, nil
}

func (s *sealer) Close() error { return s.seal(true) }

func (s *sealer) seal(last bool) error {
	s.sealed = secretbox.Seal(s.sealed[:0], s.plain, nonce(s.number, last), s.key)
	s.number++
	s.plain = s.plain[:0]
	_, err := s.dst.Write(s.sealed)
	return err
}

// opener turns chunks into the payload. It gives out nothing of a chunk that does not open.
type opener struct {
	src    io.Reader
	key    *[keySize]byte
	number uint64
	sealed []byte // one chunk, and the byte that shows that another one follows
	ahead  int    // whether that byte is at the front of sealed
	last   bool
	buf    []byte
	plain  []byte // what is left of buf
}

func newOpener(src io.Reader, key *[keySize]byte) *opener {
	return &opener{src: src, key: key, sealed: make([]byte, sealedChunk+1), buf: make([]byte, 0, chunkSize)}
}

// Read returns io.EOF after the last chunk, and only then.
func (o *opener) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if len(o.plain) == 0 {
		if err := o.open(); err != nil {
			return 0, err
		}
	}
	n := copy(p, o.plain)
	o.plain = o.plain[n:]
	return n, nil
}

func (o *opener) open() error {
	if o.last {
		return io.EOF
	}
	n, err := io.ReadFull(o.src, o.sealed[o.ahead:])
	chunk := o.sealed[:min(o.ahead+n, sealedChunk)]
	switch {
	case err == nil:
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		o.last = true
	default:
		return err
	}
	// A last chunk of nothing would be a second way to write the same payload.
	if len(chunk) <= secretbox.Overhead {
		return fmt.Errorf("%w: it ends early", ErrDamaged)
	}
	plain, ok := secretbox.Open(o.buf[:0], chunk, nonce(o.number, o.last), o.key)
	if !ok {
		return fmt.Errorf("%w: chunk %d does not open", ErrDamaged, o.number)
	}
	o.plain = plain
	o.number++
	o.sealed[0], o.ahead = o.sealed[sealedChunk], 1
	return nil
}
