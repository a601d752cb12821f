//go:build linux

package faults

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"subjectbroker/audit/verify"
	"subjectbroker/daemon"
	"subjectbroker/daemon/daemontest"
	"subjectbroker/proto/place"
	"subjectbroker/proto/wire"
	"subjectbroker/vault"
	"subjectbroker/vault/keysource"
	"subjectbroker/vault/vaulttest"
)

// P4, P6: a bit flips in every byte of a small vault that the daemon wrote. What
// sbd check does either refuses it, in one line with a code for damage, or every
// content is right. The daemon itself is asked now and then, and never serves
// anything else than what was put.
func TestFlippedVault(t *testing.T) {
	t.Parallel()
	s := keepScore(t, "a bit flipped in every byte of a small vault")
	w := newWorld(t, s, nil, daemontest.Options{Spoiled: true})
	w.populate()
	w.Stop()
	path := place.VaultFile(w.Home)
	whole, err := os.ReadFile(path)
	must(t, err)
	image := bytes.Clone(whole)
	refused, asked := 0, 0
	for at := range image {
		if image[at] == 0 && at%64 != 0 && bytes.Count(image[at/512*512:][:512], []byte{0}) == 512 {
			continue // of wide empty stretches a few
		}
		image[at] ^= 1 << (at % 8)
		must(t, overwrite(path, image))
		s.add(flips, 1)
		bad := w.offline(t, asked%8 == 0)
		if bad {
			refused++
		}
		if asked++; asked%400 == 1 {
			w.online(t, s, bad)
		}
		image[at] ^= 1 << (at % 8)
		if t.Failed() {
			t.Fatalf("at byte %d of %d", at, len(image))
		}
	}
	must(t, overwrite(path, whole))
	if refused == 0 || w.offline(t, true) {
		t.Errorf("%d flips were refused, or the vault itself is", refused)
	}
	t.Logf("%d bytes, %d flips refused", len(image), refused)
}

// offline reads the content, and does what sbd check does if asked to. It reports
// whether the home was refused.
func (w *world) offline(t *testing.T, check bool) (refused bool) {
	t.Helper()
	v, err := vault.OpenLocked(vault.Config{File: place.VaultFile(w.Home), ReadOnly: true})
	if err == nil {
		defer v.Close()
		err = v.UnlockWith(context.Background(), keysource.File(place.KeyFile(w.Home)))
	}
	if err == nil {
		must(t, v.View(func(tx *vault.Tx) error {
			content, _, err := tx.Content("note", 0)
			if err != nil {
				damaged(t, err)
			} else if string(content) != hello {
				w.lost(t, "the content is %q", content)
			}
			return nil
		}))
		err = v.Verify(true, nil)
	}
	if err != nil {
		damaged(t, err)
		if strings.Contains(err.Error(), "\n") {
			t.Errorf("more than one line: %v", err)
		}
	}
	if check {
		said := daemon.Check(context.Background(), daemon.Offline{Config: w.config(), Say: func(string) {}}, "")
		fault, typed := errors.AsType[*daemon.Fault](said)
		switch {
		case err != nil && said == nil:
			t.Errorf("sbd check passes what does not verify: %v", err)
		case said != nil && (!typed || wire.Exit(fault.Code) != wire.ExitIntegrity && wire.Exit(fault.Code) != wire.ExitUnavailable):
			t.Errorf("sbd check: %v", said)
		}
		return said != nil
	}
	return err != nil
}

func (w *world) config() daemon.Config {
	return daemon.Config{
		Home: w.Home, Self: "/nonexistent/sbd", KeychildArg: "keysource-child", Version: "faults", Logger: slog.New(slog.DiscardHandler),
	}
}

// online starts the daemon on what is there. It ends with the code for damage,
// or serves what was put, or refuses.
func (w *world) online(t *testing.T, s *score, bad bool) {
	t.Helper()
	kept := daemontest.Copy(t, w.Home, "vault.db", "audit", "audit.key")
	defer daemontest.Restore(t, kept)
	if !starved(t, w.Home) {
		if !bad {
			t.Error("sbd check passes what sbd refuses")
		}
		return
	}
	w.Start()
	if got := w.access("worker", "note"); got != hello && got != string(wire.IntegrityFailed) && got != string(wire.VaultLocked) {
		s.lost(t, "the daemon serves %q", got)
	}
	w.Kill()
}

// overwrite changes a file in place.
func overwrite(path string, content []byte) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	return errors.Join(err, file.Close())
}

// P24: a bit flips in every byte of a small log. Every single one is found.
func TestFlippedLog(t *testing.T) {
	t.Parallel()
	s := keepScore(t, "a bit flipped in every byte of a small log")
	w := newWorld(t, s, nil, daemontest.Options{Spoiled: true})
	w.populate()
	must(t, w.rotate())
	equal(t, "reading", w.access("worker", "note"), hello)
	w.Stop()
	dir := t.TempDir()
	options := verify.Options{Genesis: w.Fingerprint(), AllSignatures: true}
	kept := daemontest.Copy(t, w.Home, "audit")
	for path, raw := range kept {
		must(t, os.WriteFile(filepath.Join(dir, filepath.Base(path)), raw, 0o600))
	}
	report, err := verify.Dir(t.Context(), dir, options)
	must(t, err)
	equal(t, "the log itself", report.ExitCode(), wire.ExitDone)
	for path, raw := range kept {
		path = filepath.Join(dir, filepath.Base(path))
		for at := range raw {
			bit := byte(1) << (at % 8)
			raw[at] ^= bit
			must(t, overwrite(path, raw))
			s.add(flips, 1)
			if report, err := verify.Dir(t.Context(), dir, options); err != nil || report.Fault == nil {
				s.lost(t, "%s: a flip at byte %d is not found: %v", filepath.Base(path), at, err)
			}
			raw[at] ^= bit
		}
		must(t, overwrite(path, raw))
	}
}

// P6: pages of a large vault are filled with noise, zeros or each other. Refused,
// or what can be read is right.
func TestSpoiledPages(t *testing.T) {
	t.Parallel()
	s := keepScore(t, "pages of a large vault spoiled")
	home := daemontest.NewHome(t)
	v, err := vault.Create(t.Context(), vault.Config{File: place.VaultFile(home), Keys: keysource.File(place.KeyFile(home))})
	must(t, err)
	const rows = 4000
	must(t, v.Mutate(&vaulttest.Journal{}, func(tx *vault.Tx) error {
		for n := range rows {
			name := fmt.Sprintf("r%05d", n)
			if _, err := tx.PutContent(name, vault.KindText, []byte(name)); err != nil {
				return err
			}
		}
		return nil
	}))
	must(t, v.Close())
	path := place.VaultFile(home)
	whole, err := os.ReadFile(path)
	must(t, err)
	size := os.Getpagesize()
	refused := 0
	for range rounds(t, 60) {
		image := bytes.Clone(whole)
		for range 1 + rand.IntN(3) {
			page := image[rand.IntN(len(image)/size)*size:][:size]
			switch rand.IntN(4) {
			case 0:
				noise(page)
			case 1:
				clear(page)
			case 2:
				noise(page[16:48]) // the header stays
			case 3:
				copy(page, image[rand.IntN(len(image)/size)*size:][:size])
			}
			s.add(pages, 1)
		}
		must(t, overwrite(path, image))
		if !readable(t, s, home, rows) {
			refused++
		}
	}
	must(t, overwrite(path, whole))
	if !readable(t, s, home, rows) || refused == 0 {
		t.Errorf("the vault itself is refused, or none of the others: %d", refused)
	}
}

func noise(p []byte) {
	for i := range p {
		p[i] = byte(rand.Uint32())
	}
}

// spoiledGeneration is that of the vault of TestSpoiledPages: one change.
const spoiledGeneration = 1

// readable reads some of the rows of a vault, and reports whether it verifies.
func readable(t *testing.T, s *score, home string, rows int) bool {
	t.Helper()
	v, err := vault.OpenLocked(vault.Config{File: place.VaultFile(home), ReadOnly: true})
	if err == nil {
		defer v.Close()
		err = v.UnlockWith(t.Context(), keysource.File(place.KeyFile(home)))
	}
	if err != nil {
		damaged(t, err)
		return false
	}
	if v.State().Generation != spoiledGeneration {
		return false // the older of the two meta pages leads to the state before, which the log of a daemon tells
	}
	must(t, v.View(func(tx *vault.Tx) error {
		for n := rand.IntN(40); n < rows; n += 40 {
			name := fmt.Sprintf("r%05d", n)
			content, _, err := tx.Content(name, 0)
			if err != nil {
				damaged(t, err)
			} else if string(content) != name {
				s.lost(t, "%s reads %q", name, content)
			}
		}
		return nil
	}))
	if err := v.Verify(true, nil); err != nil {
		damaged(t, err)
		return false
	}
	return true
}

func damaged(t *testing.T, err error) {
	t.Helper()
	for _, sentinel := range []error{vault.ErrDamaged, vault.ErrIntegrity, vault.ErrMissing, vault.ErrSchema, vault.ErrWrongKey, vault.ErrKeyUnavailable} {
		if errors.Is(err, sentinel) {
			return
		}
	}
	t.Errorf("refused with %v", err)
}
