package vault

import (
	"bytes"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestPRFIsHMACAndHKDF(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		key := rapid.SliceOfN(rapid.Byte(), 0, 64).Draw(t, "key")
		msg := rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "msg")
		p, s := newPRF(key), newScratch()
		var got [32]byte
		s.mac(&got, p, msg)
		m := hmac.New(sha256.New, key)
		m.Write(msg)
		if want := m.Sum(nil); !bytes.Equal(got[:], want) {
			t.Fatalf("mac is %x, want %x", got, want)
		}
		s.expand(&got, p, bytes.Clone(msg))
		want, err := hkdf.Expand(sha256.New, key, string(msg), 32)
		if err != nil || !bytes.Equal(got[:], want) {
			t.Fatalf("expand is %x, want %x, %v", got, want, err)
		}
	})
}

func TestAccIsASumModulo(t *testing.T) {
	modulus := new(big.Int).Lsh(big.NewInt(1), 256)
	rapid.Check(t, func(t *rapid.T) {
		leaf := rapid.Custom(func(t *rapid.T) [32]byte {
			// Extremes carry through every limb.
			if rapid.Bool().Draw(t, "extreme") {
				return [32]byte(bytes.Repeat([]byte{rapid.SampledFrom([]byte{0, 1, 0xff}).Draw(t, "fill")}, 32))
			}
			return [32]byte(rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, "leaf"))
		})
		var a acc
		sum := new(big.Int)
		for _, l := range rapid.SliceOfN(leaf, 1, 20).Draw(t, "leaves") {
			n := new(big.Int).SetBytes(l[:])
			if rapid.Bool().Draw(t, "subtract") {
				a, sum = a.sub(l), sum.Sub(sum, n)
			} else {
				a, sum = a.add(l), sum.Add(sum, n)
			}
			sum.Mod(sum, modulus)
		}
		got := a.bytes()
		if want := sum.FillBytes(make([]byte, 32)); !bytes.Equal(got[:], want) {
			t.Fatalf("acc is %x, want %x", got, want)
		}
		if accFrom(got) != a {
			t.Fatal("acc does not survive its encoding")
		}
	})
}

func TestParseRowRefuses(t *testing.T) {
	box := pattern(1, boxOverhead+1) // 41 bytes: base64 with one padding character
	good := string(appendRow(nil, 7, box))
	b64 := base64.StdEncoding.EncodeToString(box)
	if !strings.HasSuffix(b64, "=") {
		t.Fatal("the cases below need padding")
	}
	for name, stored := range map[string]string{
		"empty":             "",
		"no version":        "7:" + b64,
		"other version":     "v2:7:" + b64,
		"upper case":        "V1:7:" + b64,
		"no term":           "v1:" + b64,
		"empty term":        "v1::" + b64,
		"leading zero":      "v1:07:" + b64,
		"sign":              "v1:+7:" + b64,
		"negative":          "v1:-7:" + b64,
		"hex":               "v1:0x7:" + b64,
		"space":             "v1: 7:" + b64,
		"too big":           "v1:4294967296:" + b64,
		"far too big":       "v1:18446744073709551623:" + b64,
		"underscore":        "v1:1_0:" + b64,
		"LF inside":         "v1:7:" + b64[:8] + "\n" + b64[8:],
		"CR LF inside":      "v1:7:" + b64[:8] + "\r\n" + b64[8:],
		"LF at the end":     good + "\n",
		"LF before padding": good[:len(good)-1] + "\n=",
		"four LF":           "v1:7:" + b64[:8] + "\n\n\n\n" + b64[8:],
		"no padding":        strings.TrimRight(good, "="),
		"more padding":      good + "=",
		"stray bits":        "v1:7:" + strayBits(b64),
		"URL alphabet":      "v1:7:" + strings.Replace(b64, b64[:1], "-", 1),
		"trailing byte":     good + "A",
		"trailing space":    good + " ",
		"NUL":               good + "\x00",
		"short":             string(appendRow(nil, 7, box[:boxOverhead-1])),
		"nothing":           "v1:7:",
	} {
		if _, err := parseRow([]byte(stored), nil); !errors.Is(err, errEncoding) {
			t.Errorf("%s: %q gives %v", name, stored, err)
		}
	}
	for _, term := range []uint32{0, 1, 10, 4294967295} {
		row, err := parseRow(appendRow(nil, term, box), nil)
		if err != nil || row.term != term || !bytes.Equal(row.box, box) {
			t.Errorf("term %d: %+v, %v", term, row, err)
		}
	}
}

// strayBits sets a bit that the padding says is unused.
func strayBits(b64 string) string {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
	i := len(strings.TrimRight(b64, "=")) - 1
	return b64[:i] + string(alphabet[strings.IndexByte(alphabet, b64[i])|1]) + b64[i+1:]
}

func FuzzParseRow(f *testing.F) {
	f.Add([]byte("v1:1:"))
	f.Add(appendRow(nil, 1, pattern(0, boxOverhead)))
	f.Add(appendRow(nil, 4294967295, pattern(0, 100)))
	f.Add(append(appendRow(nil, 12, pattern(0, 100)), '\n'))
	f.Fuzz(func(t *testing.T, stored []byte) {
		row, err := parseRow(stored, nil)
		if err != nil {
			return
		}
		if again := appendRow(nil, row.term, row.box); !bytes.Equal(again, stored) {
			t.Fatalf("%q re-encodes to %q", stored, again)
		}
		if n := plainLen(len(stored)); n < len(row.box)-boxOverhead {
			t.Fatalf("%q may have %d bytes, has %d", stored, n, len(row.box)-boxOverhead)
		}
	})
}

func FuzzParseSlot(f *testing.F) {
	f.Add(keyedValue(newSlot(1, "file"), pattern(1, 32), pattern(2, 32), vectorID))
	f.Add([]byte("s1:file:"))
	f.Fuzz(func(t *testing.T, value []byte) {
		payload, err := parseSlot(value, keyedPrefix, "file")
		if err != nil {
			return
		}
		if again := appendSlot(nil, keyedPrefix, "file", payload); !bytes.Equal(again, value) {
			t.Fatalf("%q re-encodes to %q", value, again)
		}
	})
}

func FuzzDecodeKeyring(f *testing.F) {
	f.Add(encoded(vectorKeyring()))
	f.Add(encoded(newKeyring(vectorID)))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, p []byte) {
		ring, err := decodeKeyring(p)
		if err != nil {
			return
		}
		if again := encoded(ring); !bytes.Equal(again, p) {
			t.Fatalf("%x re-encodes to %x", p, again)
		}
	})
}

// A state row with meters is the second form; one without stays the first, which
// builds of before meters read.
func TestStateWithMeters(t *testing.T) {
	with := vectorState()
	with.meters = []byte("counted")
	plain, more := vectorState().encode(), with.encode()
	if !bytes.Contains(plain, []byte("sb/state/v1")) || !bytes.Contains(more, []byte("sb/state/v2")) {
		t.Error("the labels do not say which form it is")
	}
	for _, state := range []*stateRow{vectorState(), with} {
		got, err := decodeState(state.encode())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(state, got, cmp.AllowUnexported(stateRow{})); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	empty := bytes.Replace(more, []byte("\x00\x00\x00\x07counted"), []byte("\x00\x00\x00\x00"), 1)
	for name, p := range map[string][]byte{
		"meters under the first label": bytes.Replace(more, []byte("sb/state/v2"), []byte("sb/state/v1"), 1),
		"empty ones":                   empty,
		"a third label":                bytes.Replace(more, []byte("sb/state/v2"), []byte("sb/state/v3"), 1),
	} {
		if _, err := decodeState(p); err == nil {
			t.Errorf("%s: decoded", name)
		}
	}
	if bytes.Equal(empty, more) {
		t.Error("nothing was cut out")
	}
}

func FuzzDecodeState(f *testing.F) {
	f.Add(vectorState().encode())
	withMeters := vectorState()
	withMeters.meters = []byte("counted")
	f.Add(withMeters.encode())
	f.Add((&stateRow{}).encode())
	f.Fuzz(func(t *testing.T, p []byte) {
		state, err := decodeState(p)
		if err != nil {
			return
		}
		if again := state.encode(); !bytes.Equal(again, p) {
			t.Fatalf("%x re-encodes to %x", p, again)
		}
	})
}

func FuzzDecodeRecord(f *testing.F) {
	for _, rec := range vectorRecords() {
		f.Add(rec.encode(nil))
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		rec, err := decodeRecord(p)
		if err != nil {
			return
		}
		if again := rec.encode(nil); !bytes.Equal(again, p) {
			t.Fatalf("%x re-encodes to %x", p, again)
		}
	})
}

func FuzzParseSlotName(f *testing.F) {
	f.Add("1.file")
	f.Add("12.keychain")
	f.Add("01.file")
	f.Fuzz(func(t *testing.T, name string) {
		slot, err := parseSlotName(name)
		if err == nil && newSlot(slot.N, slot.Kind) != slot {
			t.Fatalf("%q re-encodes to %q", name, newSlot(slot.N, slot.Kind).Name)
		}
	})
}

// Any change of a stored value, and any other place for it, is refused.
func TestRowOpensUnchangedAndInItsPlaceOnly(t *testing.T) {
	k, s := vectorKeys(), newScratch()
	plain := []byte("the plaintext")
	stored, err := k.seal(s, "grants", "abc", k.newest, plain)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := k.open(s, nil, "grants", "abc", stored); err != nil || !bytes.Equal(got, plain) {
		t.Fatalf("opens to %q, %v", got, err)
	}
	for i := range stored {
		for bit := range 8 {
			changed := bytes.Clone(stored)
			changed[i] ^= 1 << bit
			if got, err := k.open(s, nil, "grants", "abc", changed); !errors.Is(err, ErrIntegrity) || got != nil {
				t.Fatalf("with bit %d of byte %d changed: %q, %v", bit, i, got, err)
			}
		}
		if _, err := k.open(s, nil, "grants", "abc", stored[:i]); !errors.Is(err, ErrIntegrity) {
			t.Fatalf("cut to %d bytes: %v", i, err)
		}
	}
	other := vectorKeys()
	other.ring.vaultID = strings.Repeat("0", 32)
	for name, open := range map[string]func() ([]byte, error){
		"another name":   func() ([]byte, error) { return k.open(s, nil, "grants", "abd", stored) },
		"another bucket": func() ([]byte, error) { return k.open(s, nil, "grant", "sabc", stored) },
		"another vault":  func() ([]byte, error) { return other.open(s, nil, "grants", "abc", stored) },
		"another term": func() ([]byte, error) {
			return k.open(s, nil, "grants", "abc", bytes.Replace(stored, []byte("v1:3:"), []byte("v1:1:"), 1))
		},
		"no such term": func() ([]byte, error) {
			return k.open(s, nil, "grants", "abc", bytes.Replace(stored, []byte("v1:3:"), []byte("v1:2:"), 1))
		},
	} {
		if got, err := open(); !errors.Is(err, ErrIntegrity) || got != nil {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	// The root key seals the keyring alone, and nothing else seals the keyring.
	root, err := k.seal(s, "grants", "abc", rootTerm, plain)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := k.open(s, nil, "grants", "abc", root); !errors.Is(err, ErrIntegrity) {
		t.Errorf("a row sealed by the root key: %v", err)
	}
	ring, err := k.seal(s, bucketKeyring, rowKeyring, k.newest, plain)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := k.open(s, nil, bucketKeyring, rowKeyring, ring); !errors.Is(err, ErrIntegrity) {
		t.Errorf("a keyring sealed by a data key: %v", err)
	}
}

func TestOldTermsOpen(t *testing.T) {
	k, s := vectorKeys(), newScratch()
	stored, err := k.seal(s, "grants", "abc", 1, []byte("old"))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := k.open(s, nil, "grants", "abc", stored); err != nil || string(got) != "old" {
		t.Fatalf("%q, %v", got, err)
	}
	if k.newest != 3 {
		t.Fatalf("the newest term is %d", k.newest)
	}
}

func TestSlot(t *testing.T) {
	root, key := pattern(1, 32), pattern(2, 32)
	slot := slotRow{Slot: newSlot(1, "file")}
	slot.value = keyedValue(slot.Slot, root, key, vectorID)
	got, err := slot.open(key, vectorID)
	if err != nil || !bytes.Equal(got, root) {
		t.Fatalf("%x, %v", got, err)
	}
	for name, test := range map[string]struct {
		key  []byte
		id   string
		n    uint32
		want error
	}{
		"wrong key":     {pattern(3, 32), vectorID, 1, ErrWrongKey},
		"short key":     {key[:31], vectorID, 1, ErrWrongKey},
		"no key":        {nil, vectorID, 1, ErrWrongKey},
		"other vault":   {key, strings.Repeat("0", 32), 1, ErrWrongKey},
		"other slot":    {key, vectorID, 2, ErrWrongKey},
		"right as rain": {key, vectorID, 1, nil},
	} {
		moved := slotRow{newSlot(test.n, "file"), slot.value}
		if _, err := moved.open(test.key, test.id); !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", name, err, test.want)
		}
	}
	check := len(keyedPrefix) + len("file:") + 4*checkSize/3
	for i := range slot.value {
		changed := slotRow{slot.Slot, bytes.Clone(slot.value)}
		changed.value[i] ^= 1
		_, err := changed.open(key, vectorID)
		// In the check a change looks like another key; behind it, with the right key, it is damage.
		if err == nil || (i > check+1 && !errors.Is(err, ErrIntegrity)) {
			t.Fatalf("with byte %d changed: %v", i, err)
		}
	}
}

func TestKeyringRefuses(t *testing.T) {
	newer := vectorKeyring()
	newer.schema = 3
	if _, err := decodeKeyring(encoded(newer)); !errors.Is(err, ErrSchema) {
		t.Errorf("newer schema: %v", err)
	}
	withMore := newLP(nil, 4).text(keyringLabel).text(vectorID).u32(9).text("what a newer version needs")
	if _, err := decodeKeyring(withMore); !errors.Is(err, ErrSchema) {
		t.Errorf("newer schema with other fields: %v", err)
	}
	for name, change := range map[string]func(*keyring){
		"schema 0":      func(k *keyring) { k.schema = 0 },
		"bad ID":        func(k *keyring) { k.vaultID = strings.ToUpper(strings.Repeat("a", 32)) },
		"short ID":      func(k *keyring) { k.vaultID = "00" },
		"short key":     func(k *keyring) { k.publish = k.publish[:31] },
		"no data key":   func(k *keyring) { k.data = nil },
		"term 0":        func(k *keyring) { k.data[0].term = 0 },
		"term twice":    func(k *keyring) { k.data[1].term = 1 },
		"terms falling": func(k *keyring) { k.data[0].term = 9 },

		"recipient twice":      func(k *keyring) { k.recipients[1] = k.recipients[0] },
		"recipients falling":   func(k *keyring) { k.recipients[0], k.recipients[1] = k.recipients[1], k.recipients[0] },
		"another kind":         func(k *keyring) { k.recipients[1].kind = "sms" },
		"a kind with a key":    func(k *keyring) { k.recipients[0].kind = "file" },
		"short salt":           func(k *keyring) { k.recipients[0].salt = pattern(0, 15) },
		"no salt":              func(k *keyring) { k.recipients[0].salt = nil },
		"salted code":          func(k *keyring) { k.recipients[1].salt = pattern(0, 16) },
		"costly code":          func(k *keyring) { k.recipients[1].cost = newCost },
		"free passphrase":      func(k *keyring) { k.recipients[0].cost = cost{} },
		"short public key":     func(k *keyring) { k.recipients[1].public = pattern(0, 31) },
		"no backup key":        func(k *keyring) { k.backup = nil },
		"schema 1 with a list": func(k *keyring) { k.schema = 1; k.data[0].key = nil },
	} {
		k := vectorKeyring()
		change(k)
		if _, err := decodeKeyring(encoded(k)); !errors.Is(err, errEncoding) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestRecordRefuses(t *testing.T) {
	for name, change := range map[string]func(*Record){
		"no name":            func(r *Record) { r.Name = "" },
		"slash":              func(r *Record) { r.Name = "a/b" },
		"leading dot":        func(r *Record) { r.Name = ".a" },
		"long name":          func(r *Record) { r.Name = strings.Repeat("a", 129) },
		"newline":            func(r *Record) { r.Name = "a\n" },
		"no type":            func(r *Record) { r.Type = "" },
		"no kind":            func(r *Record) { r.Kind = "" },
		"file kind":          func(r *Record) { r.Kind = KindFile },
		"versions of a file": func(r *Record) { r.Type, r.Kind, r.File = TypeFile, KindFile, vectorRecords()[2].File },
		"pin of a secret":    func(r *Record) { r.File = vectorRecords()[2].File },
		"gap":                func(r *Record) { r.Versions[1].N = 3 },
		"from the future":    func(r *Record) { r.Versions[1].RevertedFrom = 2 },
	} {
		rec := vectorRecords()[1]
		change(&rec)
		if _, err := decodeRecord(rec.encode(nil)); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// Everything that can print a value prints a secret as [redacted].
func TestSecretIsRedacted(t *testing.T) {
	const marker = "hunter2"
	secret := Secret(marker)
	holder := struct{ S Secret }{secret}
	var log bytes.Buffer
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "secret", secret, "holder", holder)
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "secret", secret, "holder", holder)
	asJSON, err := json.Marshal(holder)
	if err != nil {
		t.Fatal(err)
	}
	out := log.String() + string(asJSON)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%c", "%08b"} {
		for _, v := range []any{secret, &secret, holder, &holder, []Secret{secret}, map[string]Secret{"k": secret}} {
			out += fmt.Sprintf(verb, v)
		}
	}
	for _, trace := range []string{marker, fmt.Sprintf("%x", marker), fmt.Sprintf("%X", marker), fmt.Sprint([]byte(marker)), base64.StdEncoding.EncodeToString([]byte(marker))} {
		if strings.Contains(out, trace) {
			t.Errorf("%q shows in %q", trace, out)
		}
	}
	secret.Wipe()
	if diff := cmp.Diff(make([]byte, len(marker)), []byte(secret)); diff != "" {
		t.Errorf("after Wipe: %s", diff)
	}
}
