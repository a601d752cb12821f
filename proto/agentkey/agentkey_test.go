package agentkey_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/big"
	"os"
	"regexp"
	"strings"
	"testing"

	"subjectbroker/proto/agentkey"
	"subjectbroker/proto/credential"
)

type vectors struct {
	Keys     []struct{ Random, Key, Hash string }
	TooLarge string
}

func readVectors(t testing.TB) vectors {
	t.Helper()
	raw, err := os.ReadFile("testdata/vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var v vectors
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatal(err)
	}
	if len(v.Keys) < 6 || v.TooLarge == "" {
		t.Fatal("the vectors are not all there")
	}
	return v
}

// The format is fixed: keys that were handed out have to stay keys.
func TestVectors(t *testing.T) {
	v := readVectors(t)
	for _, one := range v.Keys {
		var random [32]byte
		if _, err := hex.Decode(random[:], []byte(one.Random)); err != nil {
			t.Fatal(err)
		}
		if got := string(agentkey.Write(random)); got != one.Key {
			t.Errorf("the key of %s is %s, want %s", one.Random, got, one.Key)
		}
		if err := agentkey.Check([]byte(one.Key)); err != nil {
			t.Errorf("%s: %v", one.Key, err)
		}
		if hash := agentkey.Hash([]byte(one.Key)); hex.EncodeToString(hash[:]) != one.Hash {
			t.Errorf("the hash of %s is %x, want %s", one.Key, hash, one.Hash)
		}
	}
	if agentkey.Check([]byte(v.TooLarge)) == nil {
		t.Errorf("2^256 with its checksum passes: %s", v.TooLarge)
	}
}

func TestNew(t *testing.T) {
	pattern := regexp.MustCompile(`^ak_live_[0-9A-Za-z]{49}$`) // as it is documented
	seen := map[string]bool{}
	for range 200 {
		key := agentkey.New()
		if text := string(key); !pattern.MatchString(text) || len(text) != agentkey.Size || agentkey.Check(key) != nil || seen[text] {
			t.Fatalf("%s is no key, or not a new one", text)
		} else {
			seen[text] = true
		}
		if what, found := credential.Find(append([]byte("token: "), key...)); !found || what != "an agent key" {
			t.Fatalf("the detector takes a key for %q", what)
		}
		if spans := credential.Spans(append([]byte("x "), key...)); len(spans) != 1 || spans[0].End-spans[0].Begin != agentkey.Size {
			t.Fatalf("the detector hides %v of a key", spans)
		}
	}
}

func TestCheck(t *testing.T) {
	good := readVectors(t).Keys[6].Key
	for text, want := range map[string]bool{
		good:                                  true,
		"ak_live_" + strings.Repeat("0", 40):  true, // well-formed, nobody's
		"ak_live_" + strings.Repeat("z", 16):  true,
		"ak_live_" + strings.Repeat("z", 128): true,
		good + "0":                            true, // another length has no checksum
		"":                                    false,
		"ak_live_":                            false,
		"ak_live_" + strings.Repeat("z", 15):  false,
		"ak_live_" + strings.Repeat("z", 129): false,
		"ak_test_" + strings.Repeat("0", 40):  false,
		"AK_LIVE_" + good[8:]:                 false,
		"Bearer " + good:                      false,
		" " + good:                            false,
		good + "\n":                           false,
		good[:30] + "-" + good[31:]:           false,
		good[:30] + "\x00" + good[31:]:        false,
		good[:28] + "é" + good[30:]:           false,
		"ak_live_" + strings.Repeat("z", 49):  false, // too large a number, and its checksum
	} {
		if got := agentkey.Check([]byte(text)) == nil; got != want {
			t.Errorf("%q is well-formed: %v, want %v", text, got, want)
		}
	}
}

// One wrong character, and two neighbours that changed places, are found always.
func TestSlips(t *testing.T) {
	const digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	good := []byte(readVectors(t).Keys[7].Key)
	for i := range good {
		for _, c := range []byte(digits + "_-") {
			if slip := bytes.Clone(good); c != good[i] {
				if slip[i] = c; agentkey.Check(slip) == nil {
					t.Fatalf("%s passes", slip)
				}
			}
		}
		if i > 0 && good[i] != good[i-1] {
			slip := bytes.Clone(good)
			slip[i], slip[i-1] = slip[i-1], slip[i]
			if agentkey.Check(slip) == nil {
				t.Fatalf("%s passes", slip)
			}
		}
	}
}

func TestRedacted(t *testing.T) {
	key := agentkey.New()
	raw, _ := json.Marshal(struct{ K agentkey.Key }{key})
	text := fmt.Sprintf("%v %s %x %q %#v %p %+v %v", key, key, key, key, key, key, struct{ K agentkey.Key }{key}, key.LogValue()) + string(raw)
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("minted", "key", key)
	for _, said := range []string{text, log.String()} {
		if strings.Contains(said, string(key)) || strings.Contains(said, hex.EncodeToString(key)) || !strings.Contains(said, "[redacted]") {
			t.Errorf("the key is shown: %s", said)
		}
	}
	clone := bytes.Clone(key)
	if key.Wipe(); bytes.Equal(key, clone) || len(bytes.Trim(key, "\x00")) != 0 {
		t.Error("the key is still there")
	}
}

// What passes at our own length is what we write for its number.
func FuzzCheck(f *testing.F) {
	v := readVectors(f)
	for _, one := range v.Keys {
		f.Add([]byte(one.Key))
	}
	f.Add([]byte(v.TooLarge))
	f.Add([]byte("ak_live_" + strings.Repeat("0", 40)))
	f.Fuzz(func(t *testing.T, key []byte) {
		before := bytes.Clone(key)
		err := agentkey.Check(key)
		if !bytes.Equal(before, key) {
			t.Fatal("Check wrote to the key")
		}
		if err != nil || len(key) != agentkey.Size {
			return
		}
		// big.Int has its digits in another order: 0-9 a-z A-Z.
		swapped := bytes.Map(func(r rune) rune {
			switch {
			case 'a' <= r && r <= 'z':
				return r - 'a' + 'A'
			case 'A' <= r && r <= 'Z':
				return r - 'A' + 'a'
			}
			return r
		}, key[len(agentkey.Prefix):len(agentkey.Prefix)+43])
		n, ok := new(big.Int).SetString(string(swapped), 62)
		if !ok || n.BitLen() > 256 {
			t.Fatalf("%q passes", key)
		}
		var random [32]byte
		n.FillBytes(random[:])
		if again := agentkey.Write(random); !bytes.Equal(again, key) {
			t.Fatalf("%q is written as %q", key, []byte(again))
		}
	})
}
