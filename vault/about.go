package vault

import "slices"

// about is what may be told of the keys. It is kept apart from them, so that who asks never waits for who changes them.
type about struct {
	newest     uint32
	old        []uint32
	schema     uint32
	memory     string
	unlockedBy string
}

// aboutKeys describes keys; nil stands for a locked vault.
func aboutKeys(keys *keyset, unlockedBy string) about {
	if keys == nil {
		return about{}
	}
	a := about{newest: keys.newest, schema: keys.ring.schema, memory: keys.mem.kind, unlockedBy: unlockedBy}
	for _, d := range keys.ring.data[:len(keys.ring.data)-1] {
		a.old = append(a.old, d.term)
	}
	return a
}

// install puts keys into force, nil locks. The caller holds life for writing.
func (v *Vault) install(keys *keyset, unlockedBy string) {
	if v.keys != nil && v.keys != keys {
		v.keys.wipe()
	}
	v.keys = keys
	v.mu.Lock()
	defer v.mu.Unlock()
	v.about = aboutKeys(keys, unlockedBy)
	v.locked.Store(keys == nil)
}

func (v *Vault) setSlots(slots []slotRow) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.slots = slots
}

func (v *Vault) slotRows() []slotRow {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.slots
}

func (v *Vault) describe() about {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.about
}

// Slots returns the vault's slots in the order in which they are tried. It never waits. While the vault was never
// unlocked it is what the file claims.
func (v *Vault) Slots() []Slot {
	rows := v.slotRows()
	slots := make([]Slot, len(rows))
	for i, row := range rows {
		slots[i] = row.Slot
	}
	return slots
}

// KeyKind returns the kind of the first slot; see Slots.
func (v *Vault) KeyKind() string { return v.slotRows()[0].Kind }

// Terms returns the term of the data key that seals rows, and the older terms that still open some, rising. While the
// vault is locked there are none. It never waits.
func (v *Vault) Terms() (newest uint32, old []uint32) {
	a := v.describe()
	return a.newest, slices.Clone(a.old)
}

// Schema returns the version of what is inside the vault, 0 while it is locked. Migrate raises it. It never waits.
func (v *Vault) Schema() uint32 { return v.describe().schema }

// KeyMemory tells where the keys lie: "memfd_secret", "mlock", or "ordinary" memory where neither could be had; empty
// while the vault is locked. It never waits.
func (v *Vault) KeyMemory() string { return v.describe().memory }

// UnlockedBy returns the kind of the slot the vault was unlocked with, empty while it is locked. It never waits.
func (v *Vault) UnlockedBy() string { return v.describe().unlockedBy }
