package vault

import "fmt"

// Snapshot writes the vault as it is at one moment to a new file of mode 0600, and returns the state of that moment. It reads
// and writes beside mutations, which it does not stop; only one that would make the file outgrow its mapping waits. The copy holds every row as it is stored and no row that was deleted
// or replaced, opens with the same keys, and is durable when Snapshot returns. Contents are copied as they are: Verify tells
// whether they are good.
//
// Errors: ErrLocked, also when Lock, Close or Interrupt came in between; ErrFailed, ErrClosed; ErrIntegrity and ErrDamaged for what it read; else
// of writing, fs.ErrExist for a path where something is. No file is left behind then. Destroy removes a copy that has served.
func (v *Vault) Snapshot(path string) (State, error) {
	var state State
	err := v.View(func(tx *Tx) error {
		row, err := v.keys.openState(tx.s, tx.rows)
		if err != nil {
			return err
		}
		store, err := v.copyTo(path, tx.rows, row)
		if err != nil {
			return err
		}
		state = row.public(tx.s.digest(v.keys.publish, row.generation, row.count, row.acc))
		if err := store.close(); err != nil {
			return and(err, removeIfThere(path))
		}
		return nil
	})
	if err != nil {
		return State{}, fmt.Errorf("copying vault: %w", err)
	}
	return state, nil
}
