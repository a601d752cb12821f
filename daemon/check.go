package daemon

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"

	"subjectbroker/audit/verify"
	"subjectbroker/proto/place"
	"subjectbroker/proto/wire"
	"subjectbroker/vault"
)

// Check verifies config, vault and log offline and read-only, for `sbd check`.
// The lines say what was verified, also when something later was not.
func Check(ctx context.Context, cfg Config) (lines []string, err error) {
	c := &checker{cfg: cfg}
	err = c.run(ctx)
	if err != nil {
		return c.lines, asFault(err)
	}
	return c.lines, nil
}

type checker struct {
	cfg   Config
	lines []string
}

func (c *checker) say(format string, args ...any) {
	c.lines = append(c.lines, fmt.Sprintf(format, args...))
}

func (c *checker) run(ctx context.Context) error {
	home := c.cfg.Home
	if err := checkHome(home); err != nil {
		return err
	}
	if _, err := readConfig(home); err != nil {
		return err
	}
	c.say("config: ok")
	if err := idle(home); err != nil {
		return err
	}
	if fresh, err := vault.Fresh(place.VaultFile(home)); err != nil {
		return err
	} else if fresh {
		return fault(wire.VaultMissing, "%s holds no vault yet", home)
	}
	v, err := vault.OpenLocked(vault.Config{File: place.VaultFile(home), ReadOnly: true, Now: c.cfg.Now})
	if err != nil {
		return err
	}
	defer v.Close()
	keys, err := sourceOf(v.KeyKind(), home, c.cfg.keychild())
	if err != nil {
		return err
	}
	if err := v.UnlockWith(ctx, keys); err != nil {
		return err
	}
	if err := v.Verify(true, nil); err != nil {
		return err
	}
	state := v.State()
	c.say("vault: ok, generation %d, %d rows and every content", state.Generation, state.Count)
	return c.log(ctx, state)
}

// log verifies the log against what the vault remembers of it.
func (c *checker) log(ctx context.Context, state vault.State) error {
	known := state.Checkpoint
	if known == (vault.Checkpoint{}) {
		c.say("audit: the log has not begun")
		return nil
	}
	options := verify.Options{Expect: &verify.Point{Seq: known.Seq, Hash: hex.EncodeToString(known.Hash[:])}}
	report, err := verify.Dir(ctx, place.AuditDir(c.cfg.Home), options)
	if err != nil {
		return fault(wire.AuditDamaged, "%w", err)
	}
	if report.Fault != nil {
		return fault(wire.AuditDamaged, "%w", report.Fault)
	}
	// What start-up would say of an older vault beside this log.
	if _, err := (&reconciliation{applied: report.Applied}).compare(state.Generation); err != nil {
		return err
	}
	c.say("audit: ok, %d entries", report.Entries)
	return nil
}

// idle makes sure that no daemon holds the home.
func idle(home string) error {
	file, err := openPlain(place.LockFile(home))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fault(wire.HomeUnsafe, "%w", err)
	}
	defer file.Close()
	if err := unix.Flock(int(file.Fd()), unix.LOCK_SH|unix.LOCK_NB); err != nil {
		return fault(wire.AlreadyRunning, "an sbd holds %s: stop it before checking offline", home)
	}
	return nil
}
