package vault

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// Outdated reports whether there is something for Migrate to do. False while locked.
func (v *Vault) Outdated() bool { s := v.Schema(); return s != 0 && s < schema }

// Migrate brings a vault of an older schema to the present one: first a copy of the file is made beside it, FILE.schema1, then
// one mutation. A vault of the present schema is left alone: false. So is one whose migration was interrupted at any step;
// calling Migrate again does all of it. Whatever else changes keys or slots migrates, too.
//
// Errors: those of Mutate.
func (v *Vault) Migrate(j Journal) (migrated bool, err error) {
	if !v.Outdated() {
		v.life.RLock()
		defer v.life.RUnlock()
		return false, v.open()
	}
	if err := v.mutateKeys(j, func(*keyChange) error { return nil }); err != nil {
		return false, fmt.Errorf("migrating vault: %w", err)
	}
	return true, nil
}

// keepOld copies the file, of which no transaction runs. A copy that is there is of an attempt that came to nothing.
func (v *Vault) keepOld(schema uint32) error {
	if err := copyFile(v.cfg.File, v.keptFile(schema), v.cfg.step); err != nil {
		return fmt.Errorf("keeping a copy: %w", err)
	}
	return nil
}

// keptFile names the copy of a vault of an older schema.
func (v *Vault) keptFile(schema uint32) string {
	return v.cfg.File + ".schema" + strconv.FormatUint(uint64(schema), 10)
}

// copyFile makes a durable copy of mode 0600 that replaces what was there.
func copyFile(from, to string, step func(string)) error {
	temp := to + newSuffix
	if err := removeIfThere(temp); err != nil {
		return err
	}
	in, err := os.OpenFile(from, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	step("copying")
	_, err = io.Copy(out, in)
	if err == nil {
		// The umask may have taken bits of our own.
		err = out.Chmod(0o600)
	}
	if err == nil {
		err = out.Sync()
	}
	if err = and(err, out.Close()); err != nil {
		return and(err, removeIfThere(temp))
	}
	step("copied")
	if err := os.Rename(temp, to); err != nil {
		return and(err, removeIfThere(temp))
	}
	step("kept")
	return syncDir(filepath.Dir(to))
}
