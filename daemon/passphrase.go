package daemon

import (
	"bytes"
	"crypto/rand"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"

	"golang.org/x/crypto/argon2"

	"subjectbroker/vault"
)

// Rows of what knows the operator. Both are sealed like every other row.
//
//	operator/passphrase  {"v":1,"salt":16 bytes,"passes":…,"memory":KiB,"threads":…,"hash":32 bytes}    bytes in base64
//	operator/attempts    {"v":1,"wrong":…,"at":ms,"bootId":…,"bootAt":ns}                               there after a wrong try
//
//	hash = Argon2id(passphrase, salt, passes, memory, threads, 32)
const (
	bucketOperator = "operator"
	rowPassphrase  = "passphrase"
	rowAttempts    = "attempts"
)

// What a try costs, as that of a passphrase slot of the vault.
const (
	passphrasePasses  = 3
	passphraseMemory  = 64 << 10 // KiB
	passphraseThreads = 4
)

// verifier tells the operator's passphrase from others. It opens nothing: the
// vault is open when it is asked.
type verifier struct {
	V       int    `json:"v"`
	Salt    []byte `json:"salt"`
	Passes  uint32 `json:"passes"`
	Memory  uint32 `json:"memory"`
	Threads uint8  `json:"threads"`
	Hash    []byte `json:"hash"`
}

func newVerifier(passphrase []byte) verifier {
	v := verifier{V: 1, Salt: make([]byte, 16), Passes: passphrasePasses, Memory: passphraseMemory, Threads: passphraseThreads}
	_, _ = rand.Read(v.Salt) // never fails: crypto/rand ends the process instead
	v.Hash = v.hash(passphrase)
	return v
}

func (v verifier) hash(passphrase []byte) []byte {
	defer debug.FreeOSMemory() // the library leaves what it was made in as it is
	return argon2.IDKey(passphrase, v.Salt, v.Passes, v.Memory, v.Threads, 32)
}

// matches takes as long for a wrong passphrase as for the right one.
func (v verifier) matches(passphrase []byte) bool {
	got := v.hash(passphrase)
	defer clear(got)
	return subtle.ConstantTimeCompare(got, v.Hash) == 1
}

// sane refuses numbers that would make a try cost nothing or everything.
func (v verifier) sane() bool {
	return v.V == 1 && len(v.Salt) == 16 && len(v.Hash) == 32 && v.Passes >= 1 && v.Passes <= 16 &&
		v.Memory >= 1<<10 && v.Memory <= 256<<10 && v.Threads >= 1 && v.Threads <= 16
}

func decodeVerifier(raw []byte) (verifier, error) {
	var v verifier
	if err := decodeRow(raw, &v); err != nil {
		return verifier{}, err
	}
	if !v.sane() {
		return verifier{}, errors.New("its numbers are none that are written")
	}
	return v, nil
}

// decodeRow reads a row as this version writes it, and no other.
func decodeRow(raw []byte, row any) error {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(row); err != nil {
		return err
	}
	if again, err := json.Marshal(row); err != nil || !bytes.Equal(again, raw) {
		return errors.New("it is not what this version writes")
	}
	return nil
}

// recognition is what the vault knows of the operator.
type recognition struct {
	verifier *verifier // nil: no passphrase is set
	attempts attempts
}

// recognise reads it. It fails with vault.ErrLocked while the vault is locked.
func (d *Daemon) recognise() (recognition, error) {
	return recogniseIn(d.vault)
}

func recogniseIn(v *vault.Vault) (recognition, error) {
	var r recognition
	err := v.View(func(tx *vault.Tx) error {
		switch raw, err := tx.Get(bucketOperator, rowPassphrase); {
		case errors.Is(err, vault.ErrNotFound):
			return nil
		case err != nil:
			return err
		default:
			known, err := decodeVerifier(raw)
			if err != nil {
				return fmt.Errorf("%w: the row of the operator's passphrase: %v", vault.ErrIntegrity, err)
			}
			r.verifier = &known
		}
		switch raw, err := tx.Get(bucketOperator, rowAttempts); {
		case errors.Is(err, vault.ErrNotFound):
			return nil
		case err != nil:
			return err
		default:
			if r.attempts, err = decodeAttempts(raw); err != nil {
				return fmt.Errorf("%w: the row of wrong passphrases: %v", vault.ErrIntegrity, err)
			}
		}
		return nil
	})
	return r, err
}

// putRow writes a row of what knows the operator; nil removes it.
func putRow(tx *vault.Tx, name string, value any) error {
	if value == nil {
		if err := tx.Delete(bucketOperator, name); err != nil && !errors.Is(err, vault.ErrNotFound) {
			return err
		}
		return nil
	}
	raw, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return tx.Put(bucketOperator, name, raw)
}
