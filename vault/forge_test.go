package vault_test

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"

	"subjectbroker/vault"
	"subjectbroker/vault/vaulttest"
)

// What somebody can do to slots and keyring who can write to the file and knows old states of it, and how it is found.
func TestForgedSlots(t *testing.T) {
	cfg, v, sources := everySlot(t)
	passphrase, code := person()
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	old := map[[2]string][]byte{}
	tamper(t, cfg, func(tx *bolt.Tx) {
		for _, place := range [][2]string{{"keyring", "keyring"}, {"slots", "1.file"}, {"slots", "3.passphrase"}, {"slots", "4.recovery"}} {
			old[place] = stored(tx, place[0], place[1])
		}
	})
	v = open(t, cfg)
	rotate(t, v)
	if err := v.Rekey(t.Context(), &vaulttest.Journal{}, sources); err != nil {
		t.Fatal(err)
	}
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	// A vault of somebody else, who put the same passphrase and code on it.
	otherCfg, other, _ := everySlot(t)
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	var foreign map[string][]byte
	tamper(t, otherCfg, func(tx *bolt.Tx) {
		foreign = map[string][]byte{
			"3.passphrase": stored(tx, "slots", "3.passphrase"), "4.recovery": stored(tx, "slots", "4.recovery"),
			"keyring": stored(tx, "keyring", "keyring"),
		}
	})
	putBack := func(places ...[2]string) func(t *testing.T, tx *bolt.Tx) {
		return func(t *testing.T, tx *bolt.Tx) {
			for _, p := range places {
				store(t, tx, p[0], p[1], old[p])
			}
		}
	}
	set := func(name string, value []byte) func(t *testing.T, tx *bolt.Tx) {
		return func(t *testing.T, tx *bolt.Tx) { store(t, tx, "slots", name, value) }
	}
	for name, test := range map[string]struct {
		forge func(t *testing.T, tx *bolt.Tx)
		by    vault.KeySource
		want  error
	}{
		"nothing": {func(*testing.T, *bolt.Tx) {}, code, nil},
		// The keyring of an older term, alone and with the slot that opens it.
		"old keyring":              {putBack([2]string{"keyring", "keyring"}), sources[0], vault.ErrIntegrity},
		"old keyring and slot":     {putBack([2]string{"keyring", "keyring"}, [2]string{"slots", "1.file"}), sources[0], vault.ErrIntegrity},
		"old keyring and code":     {putBack([2]string{"keyring", "keyring"}, [2]string{"slots", "4.recovery"}), code, vault.ErrIntegrity},
		"old slot":                 {putBack([2]string{"slots", "1.file"}), sources[0], vault.ErrIntegrity},
		"old slot, by another":     {putBack([2]string{"slots", "1.file"}), sources[1], vault.ErrIntegrity},
		"old passphrase slot":      {putBack([2]string{"slots", "3.passphrase"}), passphrase, vault.ErrIntegrity},
		"foreign passphrase":       {set("3.passphrase", foreign["3.passphrase"]), passphrase, vault.ErrIntegrity},
		"foreign code":             {set("4.recovery", foreign["4.recovery"]), code, vault.ErrIntegrity},
		"foreign code, by another": {set("4.recovery", foreign["4.recovery"]), sources[0], vault.ErrIntegrity},
		"foreign keyring": {func(t *testing.T, tx *bolt.Tx) {
			store(t, tx, "keyring", "keyring", foreign["keyring"])
		}, code, vault.ErrIntegrity},
		"moved slot": {func(t *testing.T, tx *bolt.Tx) {
			store(t, tx, "slots", "5.recovery", stored(tx, "slots", "4.recovery"))
			_ = tx.Bucket([]byte("slots")).Delete([]byte("4.recovery"))
		}, code, vault.ErrIntegrity},
		"slot gone": {func(_ *testing.T, tx *bolt.Tx) {
			_ = tx.Bucket([]byte("slots")).Delete([]byte("4.recovery"))
		}, sources[0], vault.ErrIntegrity},
		"a file slot in place of the passphrase": {func(t *testing.T, tx *bolt.Tx) {
			store(t, tx, "slots", "3.file", stored(tx, "slots", "1.file"))
		}, sources[0], vault.ErrIntegrity},
		"a value of the other form": {func(t *testing.T, tx *bolt.Tx) {
			store(t, tx, "slots", "4.recovery", stored(tx, "slots", "1.file"))
		}, code, vault.ErrIntegrity},
		"an unknown kind": {set("5.sms", []byte("s1:sms:AAAA")), sources[0], vault.ErrDamaged},
	} {
		t.Run(name, func(t *testing.T) {
			forged := copyOf(t, cfg)
			tamper(t, forged, func(tx *bolt.Tx) { test.forge(t, tx) })
			v, err := vault.OpenLocked(forged)
			if err == nil {
				defer v.Close()
				err = v.UnlockWith(t.Context(), inMemory(test.by))
			}
			if !errors.Is(err, test.want) || (err != nil && test.want == nil) {
				t.Fatalf("opens with %v, want %v", err, test.want)
			}
			if err != nil {
				oneLine(t, err)
			}
		})
	}
}

// inMemory takes a key out of a source that goes by the vault's ID.
func inMemory(src vault.KeySource) vault.KeySource {
	if keys, ok := src.(*vaulttest.Keys); ok {
		return fixedKind{keys.Only(), keys.Kind()}
	}
	return src
}

// Every damaged byte of a slot that a person opens is told from a wrong secret.
func TestDamagedSlots(t *testing.T) {
	cfg, v, _ := everySlot(t)
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	_, code := person()
	var value []byte
	tamper(t, cfg, func(tx *bolt.Tx) { value = stored(tx, "slots", "4.recovery") })
	for i := 0; i < len(value); i += 7 {
		damaged := copyOf(t, cfg)
		changed := append([]byte(nil), value...)
		changed[i] ^= 1
		tamper(t, damaged, func(tx *bolt.Tx) { store(t, tx, "slots", "4.recovery", changed) })
		v, err := vault.OpenLocked(damaged)
		if err != nil {
			t.Fatal(err)
		}
		if err := v.UnlockWith(t.Context(), code); !errors.Is(err, vault.ErrIntegrity) || errors.Is(err, vault.ErrWrongKey) {
			t.Errorf("with byte %d changed: %v", i, err)
		}
		_ = v.Close()
	}
}

// What a forged slot asks for is never computed: the numbers are judged first. It would take gigabytes, or for ever.
func TestForgedCost(t *testing.T) {
	cfg, v, _ := everySlot(t)
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	passphrase, _ := person()
	for name, numbers := range map[string][3]uint32{
		"4 TiB": {1, 1<<32 - 1, 1}, "512 MiB": {1, 512 << 10, 1}, "no memory": {1, 0, 1}, "for ever": {1<<32 - 1, 8 << 10, 1},
		"17 passes": {17, 8 << 10, 1}, "no pass": {0, 8 << 10, 1}, "no thread": {1, 8 << 10, 0}, "256 threads": {1, 8 << 10, 256},
		"17 threads": {1, 8 << 10, 17},
	} {
		t.Run(name, func(t *testing.T) {
			forged := copyOf(t, cfg)
			tamper(t, forged, func(tx *bolt.Tx) {
				store(t, tx, "slots", "3.passphrase", withCost(t, v.ID(), "3.passphrase", stored(tx, "slots", "3.passphrase"), numbers))
			})
			v, err := vault.OpenLocked(forged)
			if err != nil {
				t.Fatal(err)
			}
			defer v.Close()
			if err := v.UnlockWith(t.Context(), passphrase); !errors.Is(err, vault.ErrIntegrity) {
				t.Errorf("says %v", err)
			}
		})
	}
	// Control: numbers that may be are tried, and give another key.
	forged := copyOf(t, cfg)
	tamper(t, forged, func(tx *bolt.Tx) {
		store(t, tx, "slots", "3.passphrase", withCost(t, v.ID(), "3.passphrase", stored(tx, "slots", "3.passphrase"), [3]uint32{2, 8 << 10, 1}))
	})
	weak, err := vault.OpenLocked(forged)
	if err != nil {
		t.Fatal(err)
	}
	defer weak.Close()
	if err := weak.UnlockWith(t.Context(), passphrase); !errors.Is(err, vault.ErrWrongKey) {
		t.Errorf("with other numbers: %v", err)
	}
}

// withCost forges the numbers of a passphrase slot, with a sum that is right.
func withCost(t *testing.T, vaultID, name string, value []byte, numbers [3]uint32) []byte {
	t.Helper()
	prefix, text, _ := strings.Cut(string(value), ":passphrase:")
	payload, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	body := payload[32:]
	// lp(lp(kind, salt, …), …): two counts, three lengths, kind and salt come before the numbers.
	at := 4 + 4 + 4 + 4 + len("passphrase") + 4 + 16
	for _, n := range numbers {
		binary.BigEndian.PutUint32(body[at+4:], n)
		at += 8
	}
	sum := vault.SlotSum(vaultID, name, body)
	return []byte(prefix + ":passphrase:" + base64.StdEncoding.EncodeToString(append(sum[:], body...)))
}
