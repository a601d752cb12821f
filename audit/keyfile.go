package audit

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/crypto/nacl/secretbox"
)

// audit.key holds the signing keys of the open segment and, while it is being
// handed over, of the next one. It is overwritten in place so that an old key
// does not stay behind in freed blocks (best effort: a copy-on-write medium or
// a flash translation layer keeps what it likes).
//
//	     0  "sb/audit.key/v1\n"  16 bytes, then zeros
//	  4096  slot 0               then zeros
//	  8192  slot 1               then zeros up to 12288
//
//	slot   all zero when empty, else  nonce 24 ‖ secretbox(seal key, plain)
//	plain  vault id 32 hex digits ‖ Ed25519 seed 32
//
// Each slot has a block of its own: tearing the write of one cannot harm the
// other. Which key is whose segment's is not written here; the log says it
// (keyId of segment.opened and key.handover).
const (
	keyFileMagic = "sb/audit.key/v1\n"
	keyFileSize  = 3 * keySlotSize
	keySlotSize  = 4096
	nonceSize    = 24
	sealedSize   = nonceSize + secretbox.Overhead + vaultDigits + ed25519.SeedSize
)

type keyFile struct {
	file  *osFile
	vault string
	seal  [32]byte
	slots [2]ed25519.PrivateKey // nil when empty
}

// createKeyFile writes a new file that holds key, replacing what is there: it
// is called only while no log exists. The key of one that was set aside is
// overwritten first, so that nobody can go on with that log.
func createKeyFile(path, vault string, seal []byte, key ed25519.PrivateKey) (*keyFile, error) {
	temporary := path + ".new"
	if err := os.Remove(temporary); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	dir := osFolder(filepath.Dir(path))
	f, err := dir.open(filepath.Base(temporary), os.O_RDWR|os.O_CREATE|os.O_EXCL)
	if err != nil {
		return nil, err
	}
	k := &keyFile{file: f, vault: vault}
	copy(k.seal[:], seal)
	content := make([]byte, keyFileSize)
	copy(content, keyFileMagic)
	_, err = f.WriteAt(content, 0)
	if err == nil {
		err = k.put(0, key)
	}
	if err == nil {
		forget(path)
		err = os.Rename(temporary, path)
	}
	if err == nil {
		f.path = path
		err = syncFolder(string(dir))
	}
	if err != nil {
		k.close()
		return nil, err
	}
	return k, nil
}

// forget overwrites the keys in the file at path, as far as it is one.
func forget(path string) {
	f, err := osFolder(filepath.Dir(path)).open(filepath.Base(path), os.O_RDWR)
	if err != nil {
		return
	}
	defer f.Close()
	if size, err := f.Inspect(); err == nil && size == keyFileSize {
		_, _ = f.WriteAt(make([]byte, 2*keySlotSize), keySlotSize)
		_ = f.Sync()
	}
}

// openKeyFile opens and unseals the file.
func openKeyFile(path, vault string, seal []byte) (*keyFile, error) {
	f, err := osFolder(filepath.Dir(path)).open(filepath.Base(path), os.O_RDWR)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%w: the signing key %s is missing", ErrDamaged, path)
	}
	if err != nil {
		return nil, err
	}
	k := &keyFile{file: f, vault: vault}
	copy(k.seal[:], seal)
	if err := k.load(); err != nil {
		k.close()
		return nil, fmt.Errorf("%w: %s: %w", ErrDamaged, path, err)
	}
	return k, nil
}

func (k *keyFile) load() error {
	content := make([]byte, keyFileSize+1)
	n, err := k.file.ReadAt(content, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if n != keyFileSize || !bytes.HasPrefix(content, []byte(keyFileMagic)) {
		return errors.New("not a key file")
	}
	var bad error
	for i := range k.slots {
		slot := content[(i+1)*keySlotSize:][:sealedSize]
		if bytes.Count(slot, []byte{0}) == len(slot) {
			continue
		}
		plain, ok := secretbox.Open(nil, slot[nonceSize:], (*[nonceSize]byte)(slot), &k.seal)
		if !ok || string(plain[:vaultDigits]) != k.vault {
			bad = fmt.Errorf("slot %d does not open", i)
			continue
		}
		k.slots[i] = ed25519.NewKeyFromSeed(plain[vaultDigits:])
		clear(plain)
	}
	// One torn slot is what a power cut leaves; the other one then has the key.
	if k.slots[0] == nil && k.slots[1] == nil {
		return errors.Join(errors.New("it holds no key"), bad)
	}
	return nil
}

// find returns the slot that holds the private key of public.
func (k *keyFile) find(public ed25519.PublicKey) (slot int, ok bool) {
	for i, key := range k.slots {
		if key != nil && bytes.Equal(key[ed25519.SeedSize:], public) {
			return i, true
		}
	}
	return 0, false
}

// put seals key into slot; on the disk when it returns nil.
func (k *keyFile) put(slot int, key ed25519.PrivateKey) error {
	var nonce [nonceSize]byte
	_, _ = rand.Read(nonce[:]) // never fails
	plain := append([]byte(k.vault), key.Seed()...)
	sealed := secretbox.Seal(nonce[:], plain, &nonce, &k.seal)
	clear(plain)
	if err := k.write(slot, sealed); err != nil {
		return fmt.Errorf("writing the signing key: %w", err)
	}
	k.slots[slot] = bytes.Clone(key)
	return nil
}

// zero overwrites slot and wipes its key from memory.
func (k *keyFile) zero(slot int) error {
	clear(k.slots[slot])
	k.slots[slot] = nil
	if err := k.write(slot, make([]byte, sealedSize)); err != nil {
		return fmt.Errorf("overwriting the old signing key: %w", err)
	}
	return nil
}

func (k *keyFile) write(slot int, sealed []byte) error {
	// A key written into a file that is no longer at its path would be lost at
	// the next start, and the log with it.
	if _, err := k.file.Inspect(); err != nil {
		return err
	}
	if _, err := k.file.WriteAt(sealed, int64(slot+1)*keySlotSize); err != nil {
		return err
	}
	return k.file.Sync()
}

func (k *keyFile) close() {
	for _, key := range k.slots {
		clear(key)
	}
	clear(k.seal[:])
	k.file.Close()
}
