//go:build linux

package faults

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"testing"

	"golang.org/x/crypto/nacl/secretbox"

	"subjectbroker/daemon/daemontest"
	"subjectbroker/proto/place"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
	"subjectbroker/vault"
	"subjectbroker/vault/keysource"
)

// history is a log of several segments as lines, and what its operator kept of it
// elsewhere.
type history struct {
	segments [][][]byte
	genesis  string
	vault    string
	head     string // SEQ:HASH
}

// written lets a real daemon write a log of three segments and returns it with
// the stopped world.
func written(t *testing.T, s *score) (*world, history) {
	t.Helper()
	w := newWorld(t, s, nil, daemontest.Options{Spoiled: true})
	w.populate()
	for n := range 3 {
		if n > 0 {
			must(t, w.rotate())
		}
		for range 2 {
			equal(t, "reading", w.access("worker", "note"), hello)
		}
		w.Put("note", hello)
	}
	head, err := w.Operator().AuditHead(t.Context(), &operatorv1.AuditHeadRequest{})
	must(t, err)
	h := history{genesis: head.GetGenesis(), vault: head.GetVaultId()}
	w.Stop()
	names, err := filepath.Glob(filepath.Join(place.AuditDir(w.Home), "*.jsonl"))
	must(t, err)
	slices.Sort(names)
	for _, name := range names {
		raw, err := os.ReadFile(name)
		must(t, err)
		h.segments = append(h.segments, slices.Collect(bytes.Lines(raw)))
	}
	newest := h.segments[len(h.segments)-1]
	line := newest[len(newest)-1]
	h.head = fmt.Sprintf("%s:%x", seqField.FindSubmatch(line)[1], sha256.Sum256(line))
	return w, h
}

// P24: histories that somebody made up, each judged by sbctl audit verify as a
// stranger would run it: with the genesis, and, where the end is what was
// changed, with a head that was kept.
func TestForgedHistories(t *testing.T) {
	t.Parallel()
	s := keepScore(t, "forged histories shown to sbctl audit verify")
	w, h := written(t, s)
	_, foreign := written(t, s)
	sbctl := program(t, "sbctl")
	judge := func(name string, segments [][][]byte, want int, args ...string) {
		t.Helper()
		dir := t.TempDir()
		for i, lines := range segments {
			if lines != nil {
				write(t, filepath.Join(dir, fmt.Sprintf("%08d.jsonl", i+1)), string(bytes.Join(lines, nil)))
			}
		}
		cmd := exec.Command(sbctl, append([]string{"audit", "verify", "--genesis", h.genesis, dir}, args...)...)
		cmd.Env = []string{"HOME=" + dir}
		code, stdout, stderr := daemontest.Exit(t, cmd)
		if code != want {
			s.lost(t, "%s: exit %d instead of %d: %s%s", name, code, want, stdout, stderr)
		}
		if want == wire.ExitIntegrity {
			s.add(forged, 1)
		}
	}
	judge("the history itself", h.segments, wire.ExitDone, "--expect", h.head)

	today, last := todaysKey(t, w.Home, h.vault), len(h.segments)-1
	if today == nil {
		t.Fatal("the key of the open segment was not found")
	}
	// with is the history with another segment.
	with := func(segment int, lines [][]byte) [][][]byte {
		out := slices.Clone(h.segments)
		out[segment] = lines
		return out
	}
	// The control of the forger's tools: today's key signs the open segment so that
	// nobody can tell. That is what it is for.
	judge("the open segment, signed again by its own key", with(last, resign(h.segments[last-1], h.segments[last], today, h.vault, last+1, false)), wire.ExitDone)

	for segment, lines := range h.segments {
		for index, line := range lines {
			at := fmt.Sprintf("segment %d, line %d", segment+1, index+1)
			judge("dropped: "+at, with(segment, slices.Delete(slices.Clone(lines), index, index+1)), wire.ExitIntegrity, "--expect", h.head)
			judge("repeated: "+at, with(segment, slices.Insert(slices.Clone(lines), index, line)), wire.ExitIntegrity)
			if sigField.Match(line) {
				judge("signature stripped: "+at, with(segment, replaced(lines, index, sigField.ReplaceAll(line, []byte("}\n")))), wire.ExitIntegrity)
			}
			if segment == last && index > 0 {
				judge("cut off at "+at, with(segment, lines[:index]), wire.ExitIntegrity, "--expect", h.head)
			}
			if i := bytes.Index(line, []byte(`"worker"`)); i >= 0 {
				edited := replaced(lines, index, bytes.Replace(line, []byte(`"worker"`), []byte(`"walker"`), 1))
				judge("edited: "+at, with(segment, edited), wire.ExitIntegrity)
				var before [][]byte
				if segment > 0 {
					before = h.segments[segment-1]
				}
				if segment < last {
					judge("edited and signed again with today's key: "+at, with(segment, resign(before, edited, today, h.vault, segment+1, false)), wire.ExitIntegrity)
					judge("edited and signed with today's key as its own: "+at, with(segment, resign(before, edited, today, h.vault, segment+1, true)), wire.ExitIntegrity)
				} else {
					judge("edited and signed again with today's key, against a kept head: "+at, with(segment, resign(before, edited, today, h.vault, segment+1, false)), wire.ExitIntegrity, "--expect", h.head)
				}
			}
		}
		at := fmt.Sprintf("segment %d", segment+1)
		stripped := make([][]byte, len(lines))
		for i, line := range lines {
			stripped[i] = sigField.ReplaceAll(line, []byte("}\n"))
		}
		judge("every signature stripped: "+at, with(segment, stripped), wire.ExitIntegrity)
		judge("foreign: "+at, with(segment, foreign.segments[segment]), wire.ExitIntegrity)
		judge("empty file: "+at, with(segment, [][]byte{}), wire.ExitIntegrity)
		if segment < last {
			judge("missing: "+at, with(segment, nil), wire.ExitIntegrity)
		} else {
			judge("missing: "+at, with(segment, nil), wire.ExitIntegrity, "--expect", h.head)
		}
	}
	judge("somebody else's history", foreign.segments, wire.ExitIntegrity)
	judge("nothing", nil, wire.ExitIntegrity)
	judge("the whole history made anew with today's key", remade(h, today), wire.ExitIntegrity)
}

// P3: an older state of vault, log and key is put back while the daemon is down,
// and the daemon goes on from there. With only a part of it the daemon itself
// refuses; with all of it only what was kept elsewhere tells.
func TestOlderStates(t *testing.T) {
	t.Parallel()
	s := keepScore(t, "older states put back")
	sbctl := program(t, "sbctl")
	for _, parts := range [][]string{{"vault.db"}, {"audit"}, {"audit", "audit.key"}, {"vault.db", "audit", "audit.key"}} {
		t.Run(fmt.Sprint(parts), func(t *testing.T) {
			kept := filepath.Join(daemontest.NewHome(t), "head")
			w := newWorld(t, s, nil, daemontest.Options{Spoiled: true, Config: "audit: {headFile: " + kept + "}\n"})
			w.populate()
			w.Stop()
			old := daemontest.Copy(t, w.Home, parts...)
			w.Start()
			w.Revoke(w.Grant("worker", "read:other-*"))
			w.SetEnabled("worker", false) // answered: nobody may bring it back
			head, err := w.Operator().AuditHead(t.Context(), &operatorv1.AuditHeadRequest{})
			must(t, err)
			w.Kill()
			daemontest.Restore(t, old)
			s.add(forged, 1)
			code, _, said := daemontest.Exit(t, daemontest.Command(t, w.Home, "--home", w.Home))
			equal(t, "exit code: "+said, code, wire.ExitIntegrity)
			code, _, said = daemontest.Exit(t, daemontest.Command(t, w.Home, "check", "--home", w.Home))
			equal(t, "sbd check: exit code: "+said, code, wire.ExitIntegrity)

			// Without the head outside an older pair goes on; the operator's note tells.
			if len(parts) == 3 {
				must(t, os.Remove(filepath.Join(w.Home, "config.yaml")))
				w.Start()
				equal(t, "control: the older pair serves", w.access("worker", "note"), hello)
				w.Stop()
				cmd := exec.Command(sbctl, "audit", "verify", "--genesis", head.GetGenesis(), "--expect", fmt.Sprintf("%d:%s", head.GetSeq(), head.GetHash()), place.AuditDir(w.Home))
				cmd.Env = []string{"HOME=" + w.Home}
				code, stdout, stderr := daemontest.Exit(t, cmd)
				equal(t, "sbctl audit verify --expect: "+stdout+stderr, code, wire.ExitIntegrity)
			}
		})
	}
}

var (
	prevField  = regexp.MustCompile(`"prev":"[0-9a-f]{64}"`)
	sigField   = regexp.MustCompile(`,"sig":"[^"]{88}"\}\n`)
	seqField   = regexp.MustCompile(`"seq":(\d+)`)
	keyIDField = regexp.MustCompile(`ed25519:[A-Za-z0-9+/]{43}=`)
)

func replaced(lines [][]byte, index int, line []byte) [][]byte {
	out := slices.Clone(lines)
	out[index] = line
	return out
}

// resign chains lines behind the last one of the segment before, and signs again
// what was signed, as whoever has a key can. asOwn also makes the lines name it.
func resign(before, lines [][]byte, key ed25519.PrivateKey, vaultID string, segment int, asOwn bool) [][]byte {
	out := slices.Clone(lines)
	var last []byte
	if len(before) > 0 {
		last = before[len(before)-1]
	}
	for i, line := range out {
		if asOwn {
			line = keyIDField.ReplaceAll(line, []byte("ed25519:"+base64.StdEncoding.EncodeToString(key.Public().(ed25519.PublicKey))))
		}
		if last != nil {
			hash := sha256.Sum256(last)
			line = prevField.ReplaceAll(line, []byte(`"prev":"`+hex.EncodeToString(hash[:])+`"`))
		}
		if at := sigField.FindIndex(line); at != nil {
			seq, _ := strconv.ParseUint(string(seqField.FindSubmatch(line)[1]), 10, 64)
			sum := sha256.Sum256(line[:at[0]])
			message := binary.BigEndian.AppendUint32(nil, 5)
			for _, field := range [][]byte{
				[]byte("sb/audit/sig/v1"), []byte(vaultID), binary.BigEndian.AppendUint32(nil, uint32(segment)),
				binary.BigEndian.AppendUint64(nil, seq), sum[:],
			} {
				message = append(binary.BigEndian.AppendUint32(message, uint32(len(field))), field...)
			}
			line = append(line[:at[0]:at[0]], `,"sig":"`+base64.StdEncoding.EncodeToString(ed25519.Sign(key, message))+"\"}\n"...)
		}
		out[i], last = line, line
	}
	return out
}

// remade is the whole history signed by one key.
func remade(h history, key ed25519.PrivateKey) [][][]byte {
	var out [][][]byte
	var before [][]byte
	for i, lines := range h.segments {
		before = resign(before, lines, key, h.vault, i+1, true)
		out = append(out, before)
	}
	return out
}

// todaysKey takes the signing key of the open segment out of audit.key, as a
// thief who has the vault open can. Its format is drawn in package audit.
func todaysKey(t *testing.T, home, vaultID string) ed25519.PrivateKey {
	t.Helper()
	v, err := vault.OpenLocked(vault.Config{File: place.VaultFile(home), ReadOnly: true})
	must(t, err)
	defer v.Close()
	must(t, v.UnlockWith(t.Context(), keysource.File(place.KeyFile(home))))
	seal, err := v.AuditSealKey()
	must(t, err)
	raw, err := os.ReadFile(place.AuditKey(home))
	must(t, err)
	const slotSize, nonceSize = 4096, 24
	const sealedSize = nonceSize + secretbox.Overhead + 32 + ed25519.SeedSize
	for slot := slotSize; slot < len(raw); slot += slotSize {
		plain, ok := secretbox.Open(nil, raw[slot+nonceSize:slot+sealedSize], (*[nonceSize]byte)(raw[slot:]), (*[32]byte)(seal))
		if ok && string(plain[:32]) == vaultID {
			return ed25519.NewKeyFromSeed(plain[32:])
		}
	}
	return nil
}
