package daemon

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"time"

	"subjectbroker/audit"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
	"subjectbroker/vault"
	"subjectbroker/vault/keysource"
)

// Kinds of slot that a person opens.
const (
	slotPassphrase = "passphrase"
	slotRecovery   = "recovery"
)

// Limits on a passphrase, in bytes. The lower one only keeps accidents out.
const (
	minPassphrase = 8
	maxPassphrase = 1024
)

// keySize is the size of a slot key, a recovery seed and its public key, in bytes.
const keySize = 32

func slotMessage(s vault.Slot) *operatorv1.KeySlot {
	return &operatorv1.KeySlot{Name: s.Name, Kind: s.Kind}
}

func slotMessages(slots []vault.Slot) []*operatorv1.KeySlot {
	messages := make([]*operatorv1.KeySlot, 0, len(slots))
	for _, s := range slots {
		messages = append(messages, slotMessage(s))
	}
	return messages
}

// secretSource is the source of a slot that a person opens: its secret came
// with the request.
func (d *Daemon) secretSource(kind string, secret []byte) (vault.KeySource, error) {
	switch kind {
	case slotPassphrase:
		if len(secret) > maxPassphrase {
			return nil, refuse("a passphrase has at most %d bytes", maxPassphrase)
		}
		return vault.Passphrase(secret), nil
	case slotRecovery:
		if len(secret) != keySize {
			return nil, refuse("this is not what a recovery code stands for")
		}
		return vault.Recovery(secret), nil
	}
	return nil, refuse("a slot that a secret opens is passphrase or recovery")
}

// ShowKeys describes the keys without anything of them.
func (o operator) ShowKeys(context.Context, *operatorv1.ShowKeysRequest) (*operatorv1.ShowKeysResponse, error) {
	d := o.d
	if err := d.needUnlocked(); err != nil {
		return nil, err
	}
	newest, old := d.vault.Terms()
	done, left, cause := d.upkeep.progress()
	return &operatorv1.ShowKeysResponse{
		VaultId: d.vault.ID(), Schema: d.vault.Schema(), Term: newest, OldTerms: old,
		Slots: slotMessages(d.vault.Slots()), UnlockedBy: d.vault.UnlockedBy(), Memory: d.vault.KeyMemory(),
		RewrapDone: done, RewrapTotal: done + left, RewrapCause: cause,
	}, nil
}

// RotateKey makes a new term; keepUp rewraps the rows of older ones.
func (o operator) RotateKey(ctx context.Context, _ *operatorv1.RotateKeyRequest) (*operatorv1.RotateKeyResponse, error) {
	d, response := o.d, &operatorv1.RotateKeyResponse{}
	err := o.changeKeys(ctx, kindKeyRotate, "", func(j vault.Journal) (err error) {
		response.Term, err = d.vault.Rotate(j)
		if err == nil || errors.Is(err, vault.ErrNotRecorded) { // the term is there
			response.Rows = d.vault.State().Count
			d.upkeep.rewrapped(0, int(response.Rows)) // before upkeep can have rewrapped any
			d.upkeep.wake()
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return response, nil
}

// Rekey makes a new root key.
func (o operator) Rekey(ctx context.Context, _ *operatorv1.RekeyRequest) (*operatorv1.RekeyResponse, error) {
	keys, err := o.d.fetch(ctx, "")
	if err != nil {
		return nil, err
	}
	defer wipeFetched(keys)
	err = o.changeKeys(ctx, kindKeyRekey, "", func(j vault.Journal) error { return o.d.vault.Rekey(ctx, j, keys) })
	if err != nil {
		return nil, err
	}
	return &operatorv1.RekeyResponse{Slots: slotMessages(o.d.vault.Slots())}, nil
}

// AddSlot adds a way to the root key.
func (o operator) AddSlot(ctx context.Context, req *operatorv1.AddSlotRequest) (*operatorv1.AddSlotResponse, error) {
	d, kind, secret := o.d, req.GetKind(), req.GetSecret()
	var add func(vault.Journal) (vault.Slot, bool, error)
	switch kind {
	case keysource.KindKeychain, keysource.KindFile:
		source, err := d.readied(ctx, kind)
		if err != nil {
			return nil, err
		}
		add = func(j vault.Journal) (vault.Slot, bool, error) {
			if err := d.dropLeftKey(ctx, source); err != nil {
				return vault.Slot{}, false, err
			}
			slot, err := d.vault.AddSlot(ctx, j, source)
			return slot, false, err
		}
	case slotPassphrase:
		if len(secret) < minPassphrase || len(secret) > maxPassphrase || bytes.ContainsAny(secret, "\x00\r\n") {
			return nil, refuse("a passphrase has %d to %d bytes, and is one line", minPassphrase, maxPassphrase)
		}
		add = func(j vault.Journal) (vault.Slot, bool, error) {
			slot, err := d.vault.AddPassphrase(j, secret)
			return slot, false, err
		}
	case slotRecovery:
		if len(secret) != keySize {
			return nil, refuse("a recovery slot takes the public key of its code")
		}
		// Only replacing one is a rekey. The first one must not need the key that it
		// may have to stand in for.
		var keys []vault.KeySource
		if hasSlot(d.vault, slotRecovery) {
			var err error
			if keys, err = d.fetch(ctx, ""); err != nil {
				return nil, err
			}
		}
		defer wipeFetched(keys)
		add = func(j vault.Journal) (vault.Slot, bool, error) { return d.vault.AddRecovery(ctx, j, secret, keys) }
	default:
		return nil, unknownSlotKind()
	}
	response := &operatorv1.AddSlotResponse{}
	err := o.changeKeys(ctx, kindKeySlotAdd, kind, func(j vault.Journal) error {
		slot, replaced, err := add(j)
		response.Slot, response.Replaced = slotMessage(slot), replaced
		return err
	})
	if err != nil {
		return nil, err
	}
	return response, nil
}

// TestSlot proves that a slot opens the vault.
func (o operator) TestSlot(ctx context.Context, req *operatorv1.TestSlotRequest) (*operatorv1.TestSlotResponse, error) {
	d, kind := o.d, req.GetKind()
	if err := d.needUnlocked(); err != nil {
		return nil, err
	}
	slots := d.vault.Slots()
	at := slices.IndexFunc(slots, func(s vault.Slot) bool { return s.Kind == kind })
	if at < 0 {
		return nil, refuse("the vault has no such slot")
	}
	source, err := d.source(kind, keysource.InteractiveTimeout)
	if err != nil {
		source, err = d.secretSource(kind, req.GetSecret())
	}
	if err != nil {
		return nil, err
	}
	if err := d.vault.TestSlot(ctx, source); err != nil {
		return nil, keyWords(err)
	}
	return &operatorv1.TestSlotResponse{Slot: slotMessage(slots[at])}, nil
}

// RemoveSlot removes a slot, rekeys, and forgets the key that opened it.
func (o operator) RemoveSlot(ctx context.Context, req *operatorv1.RemoveSlotRequest) (*operatorv1.RemoveSlotResponse, error) {
	d, kind := o.d, req.GetKind()
	if !slices.Contains([]string{keysource.KindKeychain, keysource.KindFile, slotPassphrase, slotRecovery}, kind) {
		return nil, unknownSlotKind()
	}
	keys, err := d.fetch(ctx, kind)
	if err != nil {
		return nil, err
	}
	defer wipeFetched(keys)
	response := &operatorv1.RemoveSlotResponse{}
	err = o.changeKeys(ctx, kindKeySlotRemove, kind, func(j vault.Journal) error {
		err := d.vault.RemoveSlot(ctx, j, kind, keys)
		if err == nil || errors.Is(err, vault.ErrNotRecorded) { // the slot is gone
			response.KeyLeft = d.dropKey(ctx, kind) != nil
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	response.Slots = slotMessages(d.vault.Slots())
	backups, err := d.backups(time.Time{})
	if err != nil {
		return nil, err
	}
	for _, b := range backups {
		if slices.Contains(b.GetSlots(), kind) {
			response.Backups = append(response.Backups, b)
		}
	}
	return response, nil
}

// dropKey removes the stored key of a slot that is gone, before another change
// can store one for a slot that comes. The vault does not open with it any more:
// what is left is untidy, not open. A person's key is not stored.
func (d *Daemon) dropKey(ctx context.Context, kind string) error {
	source, err := d.source(kind, keysource.Timeout)
	if err != nil {
		return nil //nolint:nilerr // a person's
	}
	if err := source.Remove(ctx, d.vault.ID()); err != nil && !errors.Is(err, vault.ErrKeyUnavailable) {
		return err
	}
	return nil
}

// dropLeftKey removes the key file that a removal which was interrupted has left:
// it may be why its slot was removed. The keychain's item stays: a copy of the
// vault in another home of this machine may open with it.
func (d *Daemon) dropLeftKey(ctx context.Context, source vault.KeySource) error {
	if source.Kind() != keysource.KindFile || hasSlot(d.vault, source.Kind()) {
		return nil
	}
	return d.dropKey(ctx, source.Kind())
}

func unknownSlotKind() error {
	return refuse("a slot is keychain, file, passphrase or recovery")
}

// changeKeys makes one change of the vault's keys, with its entry.
func (o operator) changeKeys(ctx context.Context, kind audit.Kind, slot string, commit func(vault.Journal) error) error {
	err := o.d.mutate(ctx, func(*state) (change, error) {
		e := o.entry(ctx, kind)
		e.KeyID = slot
		return change{effects: []*audit.Entry{e}, commit: commit}, nil
	})
	return keyWords(err)
}

// keyWords turns the vault's refusals about keys into words for the operator.
func keyWords(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, vault.ErrSlotExists):
		return refuse("there is a slot of that kind already: remove it first")
	case errors.Is(err, vault.ErrNoSlot):
		return refuse("the vault has no such slot")
	case errors.Is(err, vault.ErrLastSlot):
		return refuse("the last slot cannot go: nothing would open the vault")
	}
	for _, sentinel := range []error{vault.ErrWrongKey, vault.ErrKeyUnavailable, vault.ErrKeyNotAnswering, vault.ErrKeyFileUnsafe} {
		if errors.Is(err, sentinel) {
			f := asFault(err)
			return &wire.Error{Reason: f.Code, Message: f.Err.Error()}
		}
	}
	return err
}

// fetchedKey is a slot key that was fetched already: a change of the keys rewraps
// slots, and nobody else should wait for a key store, or a person at its prompt,
// meanwhile.
type fetchedKey struct {
	vault.KeySource
	key vault.Secret
}

// Load returns a copy.
func (f fetchedKey) Load(context.Context, string) ([]byte, error) { return bytes.Clone(f.key), nil }

// fetch asks every store of slot keys but that of one kind, with time for a
// person. The caller wipes the keys.
func (d *Daemon) fetch(ctx context.Context, except string) ([]vault.KeySource, error) {
	if err := d.needUnlocked(); err != nil {
		return nil, err
	}
	var fetched []vault.KeySource
	for _, source := range d.sources(keysource.InteractiveTimeout) {
		if source.Kind() == except {
			continue
		}
		key, err := source.Load(ctx, d.vault.ID())
		if err != nil {
			wipeFetched(fetched)
			return nil, keyWords(err)
		}
		fetched = append(fetched, fetchedKey{source, key})
	}
	return fetched, nil
}

func wipeFetched(keys []vault.KeySource) {
	for _, k := range keys {
		if f, ok := k.(fetchedKey); ok {
			f.key.Wipe()
		}
	}
}

// readied is the store of slot keys of a kind, once it answers: a locked keychain
// asks its person now, not while a change is being made.
func (d *Daemon) readied(ctx context.Context, kind string) (vault.KeySource, error) {
	if err := d.needUnlocked(); err != nil {
		return nil, err
	}
	patient, err := d.source(kind, keysource.InteractiveTimeout)
	if err != nil {
		return nil, err
	}
	key, err := patient.Load(ctx, d.vault.ID())
	clear(key)
	if err != nil && !errors.Is(err, vault.ErrKeyUnavailable) {
		return nil, keyWords(err)
	}
	return d.source(kind, keysource.Timeout)
}
