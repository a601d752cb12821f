package vault

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

func FuzzParseSealedSlot(f *testing.F) {
	slot := newSlot(3, kindRecovery)
	to := sealedVectors()[1].recipient()
	value, err := sealedValue(slot, pattern(1, 32), &to, vectorID)
	if err != nil {
		f.Fatal(err)
	}
	payload, err := parseSlot(value, sealedPrefix, slot.Kind)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(payload[sha256.Size:])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, body []byte) {
		// The sum is anybody's to make, and would keep the fuzzer out.
		sum := slotSum(vectorID, slot.Name, body)
		row := slotRow{slot, appendSlot(nil, sealedPrefix, slot.Kind, append(sum[:], body...))}
		sealed, err := row.parseSealed(vectorID)
		if err != nil {
			return
		}
		if again := sealed.appendTo(newLP(nil, sealedFields)); !bytes.Equal(again, body) {
			t.Fatalf("%x re-encodes to %x", body, again)
		}
	})
}

func FuzzParseStanzas(f *testing.F) {
	v := must((&Vault{id: vectorID, keys: vectorKeys()}).WrapFileKey(pattern(1, 32)))
	f.Add(v[sha256.Size:])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, list []byte) {
		sum := sha256.Sum256(list)
		s, err := parseStanzas(append(sum[:], list...))
		if err != nil {
			return
		}
		b := newLP(nil, 4+len(s.sealed)).text(stanzasLabel).text(s.vaultID).bytes(s.check).bytes(s.box)
		for _, one := range s.sealed {
			nested, mark := b.nest(sealedFields)
			b = one.appendTo(nested).endNest(mark)
		}
		if !bytes.Equal(b, list) {
			t.Fatalf("%x re-encodes to %x", list, b)
		}
	})
}

// What is sealed for one place opens in no other.
func TestSealedIsBound(t *testing.T) {
	v := sealedVectors()[1]
	to := v.recipient()
	here := purpose{use: "slot", vaultID: vectorID, name: "3.recovery"}
	sealed, err := to.seal(pattern(1, 32), here)
	if err != nil {
		t.Fatal(err)
	}
	if key, err := sealed.open(v.Secret, here); err != nil || !bytes.Equal(key, pattern(1, 32)) {
		t.Fatalf("%x, %v", key, err)
	}
	for _, elsewhere := range []purpose{
		{"stanza", vectorID, "3.recovery"}, {"slot", vectorID[1:] + "0", "3.recovery"}, {"slot", vectorID, "4.recovery"},
	} {
		// The check is bound, too; whoever puts the right one there does not get further.
		moved := sealed
		if _, err := moved.open(v.Secret, elsewhere); err == nil {
			t.Errorf("%+v: opens", elsewhere)
		}
		moved.check = to.check(elsewhere)
		if _, err := moved.open(v.Secret, elsewhere); err == nil {
			t.Errorf("%+v with its check: opens", elsewhere)
		}
	}
	low := sealed
	low.ephemeral = make([]byte, publicSize)
	if _, err := low.open(v.Secret, here); err == nil {
		t.Error("a point of low order opens")
	}
}

// A source that holds a secret prints its kind.
func TestSourceIsRedacted(t *testing.T) {
	var log bytes.Buffer
	for _, src := range []KeySource{Passphrase(Secret("hunter2")), Recovery(Secret("hunter2"))} {
		slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "source", src, "sources", []KeySource{src})
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%d"} {
			fmt.Fprintf(&log, verb+"\n", src)
			fmt.Fprintf(&log, verb+"\n", struct{ S KeySource }{src})
		}
	}
	for _, trace := range []string{"hunter2", "68756e746572", "104 117", "68, 0x75"} {
		if strings.Contains(log.String(), trace) {
			t.Errorf("%q shows in %s", trace, log.String())
		}
	}
	if !strings.Contains(log.String(), "passphrase "+redacted) {
		t.Errorf("it does not say what it is: %s", log.String())
	}
}
