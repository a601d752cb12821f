package audit

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// KeyIDs opens a file of signing keys and returns which keys it holds, spelled
// as the log's keyId spells them. It changes nothing.
//
// Errors: ErrDamaged when the file is missing or does not open, ErrUnsafe.
func KeyIDs(path, vaultID string, sealKey []byte) ([]string, error) {
	f, err := osFolder(filepath.Dir(path)).open(filepath.Base(path), os.O_RDONLY)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%w: the signing key %s is missing", ErrDamaged, path)
	}
	if err != nil {
		return nil, err
	}
	k := &keyFile{file: f, vault: vaultID}
	defer k.close()
	copy(k.seal[:], sealKey)
	if err := k.load(); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrDamaged, path, err)
	}
	var ids []string
	for _, key := range k.slots {
		if key != nil {
			ids = append(ids, keyID(key.Public().(ed25519.PublicKey)))
		}
	}
	return ids, nil
}
