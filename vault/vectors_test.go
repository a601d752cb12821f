package vault

import (
	"bytes"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/crypto/nacl/secretbox"

	"subjectbroker/vault/regfile"
)

var update = flag.Bool("update", false, "write testdata/vectors.json anew")

// vectors are everything a second implementation needs to check itself: with the keys and nonces below, each value follows from the
// package comment. Bytes are hex; stored values are text.
type vectors struct {
	VaultID string `json:"vaultID"`
	LP      []struct {
		Fields []hexBytes `json:"fields"`
		Bytes  hexBytes   `json:"bytes"`
	} `json:"lp"`
	Rows []struct {
		Bucket    string   `json:"bucket"`
		Name      string   `json:"name"`
		Term      uint32   `json:"term"`
		Key       hexBytes `json:"key"`
		RowKey    hexBytes `json:"rowKey"`
		Nonce     hexBytes `json:"nonce"`
		Plaintext hexBytes `json:"plaintext"`
		Stored    string   `json:"stored"`
	} `json:"rows"`
	Slot struct { // s1
		Name    string   `json:"name"`
		SlotKey hexBytes `json:"slotKey"`
		RootKey hexBytes `json:"rootKey"`
		WrapKey hexBytes `json:"wrapKey"`
		Check   hexBytes `json:"check"`
		Nonce   hexBytes `json:"nonce"`
		Stored  string   `json:"stored"`
	} `json:"slot"`
	Sealed  []sealedVector `json:"sealedSlots"`
	Stanzas stanzaVector   `json:"stanzas"`
	Keyring struct {
		Set         hexBytes            `json:"setKey"`
		Publish     hexBytes            `json:"publishKey"`
		AuditSeal   hexBytes            `json:"auditSealKey"`
		Correlation hexBytes            `json:"correlationKey"`
		Backup      hexBytes            `json:"backupKey"`
		Data        map[string]hexBytes `json:"dataKeys"`
		Plaintext   hexBytes            `json:"plaintext"`
		Schema1     hexBytes            `json:"plaintextSchema1"`
	} `json:"keyring"`
	State struct {
		State     State    `json:"state"`
		Acc       hexBytes `json:"acc"`
		Plaintext hexBytes `json:"plaintext"`
	} `json:"state"`
	Records []struct {
		Record    Record   `json:"record"`
		Plaintext hexBytes `json:"plaintext"`
	} `json:"records"`
	Leaves []struct {
		Bucket string   `json:"bucket"`
		Name   string   `json:"name"`
		Stored string   `json:"stored"`
		Leaf   hexBytes `json:"leaf"`
	} `json:"leaves"`
	Acc        hexBytes `json:"acc"`
	Generation uint64   `json:"generation"`
	Digest     hexBytes `json:"digest"`
}

type hexBytes []byte

func (h hexBytes) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, h), nil }

func (h *hexBytes) UnmarshalText(p []byte) (err error) {
	*h, err = hex.DecodeString(string(p))
	return err
}

// pattern is n bytes that cannot be mistaken for zeros or for each other.
func pattern(start byte, n int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = start + byte(i)
	}
	return p
}

const vectorID = "000102030405060708090a0b0c0d0e0f"

func vectorKeyring() *keyring {
	k := oldVectorKeyring()
	k.schema, k.backup = 2, pattern(0x48, 32)
	k.recipients = []recipient{sealedVectors()[0].recipient(), sealedVectors()[1].recipient()}
	return k
}

// oldVectorKeyring is of schema 1.
func oldVectorKeyring() *keyring {
	return &keyring{
		vaultID: vectorID, schema: 1,
		set: pattern(0x10, 32), publish: pattern(0x20, 32), auditSeal: pattern(0x30, 32), correlation: pattern(0x40, 32),
		data: []dataKey{{1, pattern(0x50, 32)}, {3, pattern(0x60, 32)}},
	}
}

func encoded(k *keyring) []byte { return k.appendTo(nil) }

func vectorKeys() *keyset {
	k, err := newKeyset(pattern(0x70, 32), vectorKeyring())
	if err != nil {
		panic(err)
	}
	return k
}

func vectorRecords() []Record {
	at := time.Date(2026, 3, 1, 12, 0, 0, 1234, time.UTC)
	return []Record{
		{Name: "declared", Type: TypeSealed, Kind: KindSecret, Created: at, Updated: at},
		{
			Name: "design-doc", Type: TypeSealed, Kind: KindText, Note: "größer", Domain: "work", Owner: "laptop",
			Created: at, Updated: at.Add(time.Hour), ByUID: 1000,
			Versions: []Version{
				{N: 1, Size: 5, At: at, Pin: [32]byte(pattern(0x80, 32))},
				{N: 2, Size: 1 << 20, At: at.Add(time.Hour), Pin: [32]byte(pattern(0x90, 32))},
				{N: 3, Size: 5, At: at.Add(2 * time.Hour), RevertedFrom: 1, Pin: [32]byte(pattern(0xa0, 32))},
			},
		},
		{
			Name: "readme", Type: TypeFile, Kind: KindFile, Created: at, Updated: at,
			File: &regfile.Pin{
				Path: "/srv/README.md", Mode: regfile.Content, Dev: 2049, Ino: 77, Size: 1234, MTime: 5, CTime: 6, UID: 1000,
				SHA256: [32]byte(pattern(0xb0, 32)),
				Dirs:   []regfile.DirPin{{Dev: 2049, Ino: 2, UID: 0}, {Dev: 2049, Ino: 12, UID: 1000}},
			},
		},
	}
}

func vectorState() *stateRow {
	return &stateRow{
		generation: 42, count: 3, acc: accFrom([32]byte(pattern(0xc0, 32))),
		checkpoint: Checkpoint{Segment: 2, Seq: 1234, Hash: [32]byte(pattern(0xd0, 32))},
		usesAt:     Checkpoint{Segment: 1, Seq: 1000, Hash: [32]byte(pattern(0xe0, 32))},
		highWater:  time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), bootID: "5f0c2e6e-0000-4000-8000-1234567890ab",
		uses: map[string]uint64{"abcdefghjk": 3, "zzzz": 1 << 40},
	}
}

// reseal computes what seal does, with a given nonce, from nothing but the libraries.
func reseal(t *testing.T, key []byte, bucket, name string, term uint32, nonce, plaintext []byte) (rowKey []byte, stored string) {
	t.Helper()
	info := newLP(nil, 5).text("sb/row/v1").text(vectorID).text(bucket).text(name).u32(term)
	rowKey, err := hkdf.Expand(sha256.New, key, string(info), 32)
	if err != nil {
		t.Fatal(err)
	}
	box := secretbox.Seal(bytes.Clone(nonce), plaintext, (*[24]byte)(nonce), (*[32]byte)(rowKey))
	return rowKey, fmt.Sprintf("v1:%d:", term) + base64.StdEncoding.EncodeToString(box)
}

func makeVectors(t *testing.T) vectors {
	t.Helper()
	v := vectors{VaultID: vectorID, Generation: 42}
	for _, fields := range [][][]byte{{}, {{}}, {[]byte("a"), []byte("bc")}, {{0}, {}, pattern(1, 5)}} {
		b := newLP(nil, len(fields))
		var asHex []hexBytes
		for _, f := range fields {
			b = b.bytes(f)
			asHex = append(asHex, f)
		}
		v.LP = append(v.LP, struct {
			Fields []hexBytes `json:"fields"`
			Bytes  hexBytes   `json:"bytes"`
		}{asHex, hexBytes(b)})
	}
	for i, row := range []struct {
		bucket, name string
		term         uint32
		key          []byte
		plaintext    []byte
	}{
		{"keyring", "keyring", 0, pattern(0x70, 32), encoded(vectorKeyring())},
		{"grants", "abcdefghjk", 1, pattern(0x50, 32), []byte("{}")},
		{"contents", "design-doc/3", 3, pattern(0x60, 32), []byte("hello")},
		{"contents", "empty/1", 3, pattern(0x60, 32), nil},
	} {
		nonce := pattern(byte(i), 24)
		rowKey, stored := reseal(t, row.key, row.bucket, row.name, row.term, nonce, row.plaintext)
		v.Rows = append(v.Rows, struct {
			Bucket    string   `json:"bucket"`
			Name      string   `json:"name"`
			Term      uint32   `json:"term"`
			Key       hexBytes `json:"key"`
			RowKey    hexBytes `json:"rowKey"`
			Nonce     hexBytes `json:"nonce"`
			Plaintext hexBytes `json:"plaintext"`
			Stored    string   `json:"stored"`
		}{row.bucket, row.name, row.term, row.key, rowKey, nonce, row.plaintext, stored})
	}

	slotKey, root, nonce := pattern(0xf0, 32), pattern(0x70, 32), pattern(9, 24)
	v.Slot.Name, v.Slot.SlotKey, v.Slot.RootKey, v.Slot.Nonce = "1.file", slotKey, root, nonce
	for label, key := range map[string]*hexBytes{"sb/slot/wrap/v1": &v.Slot.WrapKey, "sb/slot/check/v1": &v.Slot.Check} {
		out, err := hkdf.Expand(sha256.New, slotKey, string(newLP(nil, 3).text(label).text(vectorID).text("1.file")), 32)
		if err != nil {
			t.Fatal(err)
		}
		*key = out
	}
	v.Sealed, v.Stanzas = sealedVectors(), makeStanzas(t)
	payload := append(bytes.Clone(v.Slot.Check), nonce...)
	payload = secretbox.Seal(payload, root, (*[24]byte)(nonce), (*[32]byte)(v.Slot.WrapKey))
	v.Slot.Stored = "s1:file:" + base64.StdEncoding.EncodeToString(payload)

	ring := vectorKeyring()
	v.Keyring.Set, v.Keyring.Publish, v.Keyring.AuditSeal, v.Keyring.Correlation = ring.set, ring.publish, ring.auditSeal, ring.correlation
	v.Keyring.Data = map[string]hexBytes{"1": ring.data[0].key, "3": ring.data[1].key}
	v.Keyring.Backup = ring.backup
	v.Keyring.Plaintext, v.Keyring.Schema1 = encoded(ring), encoded(oldVectorKeyring())

	state := vectorState()
	v.State.State = state.public([32]byte{})
	sum := state.acc.bytes()
	v.State.Acc, v.State.Plaintext = sum[:], state.encode()

	for _, rec := range vectorRecords() {
		v.Records = append(v.Records, struct {
			Record    Record   `json:"record"`
			Plaintext hexBytes `json:"plaintext"`
		}{rec, rec.encode(nil)})
	}

	var a acc
	for _, row := range v.Rows[:2] {
		sum := sha256.Sum256([]byte(row.Stored))
		m := hmac.New(sha256.New, ring.set)
		m.Write(newLP(nil, 5).text("sb/leaf/v1").text(vectorID).text(row.Bucket).text(row.Name).bytes(sum[:]))
		leaf := m.Sum(nil)
		a = a.add([32]byte(leaf))
		v.Leaves = append(v.Leaves, struct {
			Bucket string   `json:"bucket"`
			Name   string   `json:"name"`
			Stored string   `json:"stored"`
			Leaf   hexBytes `json:"leaf"`
		}{row.Bucket, row.Name, row.Stored, leaf})
	}
	accBytes := a.bytes()
	v.Acc = accBytes[:]
	m := hmac.New(sha256.New, ring.publish)
	m.Write(newLP(nil, 3).u64(42).u64(2).bytes(accBytes[:]))
	v.Digest = m.Sum(nil)
	return v
}

const vectorFile = "testdata/vectors.json"

// The golden file was written by the libraries' HKDF, HMAC and secretbox; the code under test must read and reproduce it.
func TestVectors(t *testing.T) {
	made, err := json.MarshalIndent(makeVectors(t), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	made = append(made, '\n')
	if *update {
		if err := os.WriteFile(vectorFile, made, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	golden, err := os.ReadFile(vectorFile)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(golden), string(made)); diff != "" {
		t.Fatalf("the format changed (-golden +made):\n%s", diff)
	}

	var v vectors
	if err := json.Unmarshal(golden, &v); err != nil {
		t.Fatal(err)
	}
	k, s := vectorKeys(), newScratch()
	for _, row := range v.Rows {
		p, ok := k.prf(row.Term)
		if !ok {
			t.Fatalf("no key for term %d", row.Term)
		}
		if got := s.rowKey(p, v.VaultID, row.Bucket, row.Name, row.Term); !bytes.Equal(got[:], row.RowKey) {
			t.Errorf("row key of %s/%s is %x, want %x", row.Bucket, row.Name, got[:], row.RowKey)
		}
		got, err := k.open(s, nil, row.Bucket, row.Name, []byte(row.Stored))
		if err != nil || !bytes.Equal(got, row.Plaintext) {
			t.Errorf("%s/%s opens to %x, %v, want %x", row.Bucket, row.Name, got, err, row.Plaintext)
		}
	}
	root, err := slotRow{newSlot(1, "file"), []byte(v.Slot.Stored)}.open(v.Slot.SlotKey, v.VaultID)
	if err != nil || !bytes.Equal(root, v.Slot.RootKey) {
		t.Errorf("slot opens to %x, %v, want %x", root, err, v.Slot.RootKey)
	}
	checkSealedVectors(t, v)
	for want, plain := range map[*keyring]hexBytes{vectorKeyring(): v.Keyring.Plaintext, oldVectorKeyring(): v.Keyring.Schema1} {
		ring, err := decodeKeyring(plain)
		if err != nil {
			t.Error(err)
			continue
		}
		if diff := cmp.Diff(want, ring, cmp.AllowUnexported(keyring{}, dataKey{}, recipient{}, derivation{}, cost{}), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("keyring (-want +got):\n%s", diff)
		}
	}
	state, err := decodeState(v.State.Plaintext)
	if err != nil {
		t.Error(err)
	} else if diff := cmp.Diff(vectorState(), state, cmp.AllowUnexported(stateRow{})); diff != "" {
		t.Errorf("state (-want +got):\n%s", diff)
	}
	for i, want := range vectorRecords() {
		got, err := decodeRecord(v.Records[i].Plaintext)
		if err != nil {
			t.Error(err)
		} else if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("record (-want +got):\n%s", diff)
		}
	}
	var sum acc
	for _, leaf := range v.Leaves {
		got := s.leaf(k.set, v.VaultID, leaf.Bucket, leaf.Name, []byte(leaf.Stored))
		if !bytes.Equal(got[:], leaf.Leaf) {
			t.Errorf("leaf of %s/%s is %x, want %x", leaf.Bucket, leaf.Name, got, leaf.Leaf)
		}
		sum = sum.add(got)
	}
	if got := sum.bytes(); !bytes.Equal(got[:], v.Acc) {
		t.Errorf("acc is %x, want %x", got, v.Acc)
	}
	if got := s.digest(k.publish, v.Generation, uint64(len(v.Leaves)), sum); !bytes.Equal(got[:], v.Digest) {
		t.Errorf("digest is %x, want %x", got, v.Digest)
	}
}
