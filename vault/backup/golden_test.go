package backup

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files anew")

const (
	goldenFile = "testdata/golden.backup"
	// goldenLarge is the SHA-256 of a backup of several chunks with the same key.
	goldenLarge = "testdata/large.sha256"
)

// A backup of version 1, written once, reads for ever, and is written with the same bytes.
func TestGoldenBackup(t *testing.T) {
	key := make([]byte, keySize)
	for i := range key {
		key[i] = byte(i)
	}
	m, err := manifest().encode()
	if err != nil {
		t.Fatal(err)
	}
	write := func(parts []Source) []byte {
		var b bytes.Buffer
		if err := seal(&b, key, key, m, parts); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	image := write(small())
	sum := sha256.Sum256(write(sources(strings.Repeat("vault", 40000), "", strings.Repeat("log\n", 50000))))
	large := hex.EncodeToString(sum[:]) + "\n"
	if *update {
		for name, p := range map[string][]byte{goldenFile: image, goldenLarge: []byte(large)} {
			if err := os.WriteFile(name, p, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	golden, err := os.ReadFile(goldenFile)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(golden, image) {
		t.Error("it is written with other bytes now")
	}
	if want, err := os.ReadFile(goldenLarge); err != nil || string(want) != large {
		t.Errorf("the large one is %s, want %s, %v", large, want, err)
	}
	got, files, err := readAll(bytes.NewReader(golden))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(manifest(), got); diff != "" {
		t.Errorf("manifest (-want +got):\n%s", diff)
	}
	want := []file{{"vault.db", "the vault"}, {"audit/00000001.pruned", ""}, {"audit/00000002.jsonl", "{}\n{}\n"}, {"audit/00000010.jsonl", "{}\n"}}
	if diff := cmp.Diff(want, files); diff != "" {
		t.Errorf("parts (-want +got):\n%s", diff)
	}
}
