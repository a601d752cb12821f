package audit

import (
	"context"
	"crypto/rand"
	"os"
	"path/filepath"
	"testing"
)

const testVault = "00112233445566778899aabbccddeeff"

func testConfig(t testing.TB) Config {
	t.Helper()
	home := t.TempDir()
	if err := os.Chmod(home, 0o700); err != nil {
		t.Fatal(err)
	}
	seal := make([]byte, 32)
	_, _ = rand.Read(seal)
	return Config{
		Dir: filepath.Join(home, "audit"), KeyFile: filepath.Join(home, "audit.key"),
		SealKey: seal, VaultID: testVault, Fresh: true,
	}
}

func acquired() Entry {
	return Entry{
		Kind: Acquire, RunID: "abcdefghjk", SubjectID: "worker", Tier: "cooperative", ResourceID: "design-doc",
		Version: 1, Action: "read", GrantID: "abcdefghjk", Decision: "allow", ReasonCode: "ALLOWED", Bytes: new(int64(1024)),
	}
}

func TestSmoke(t *testing.T) {
	cfg := testConfig(t)
	l, rec, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Log(rec)
	for range 5 {
		if _, err := l.Record(context.Background(), acquired()); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Rotate(); err != nil {
		t.Fatal(err)
	}
	pos, err := l.Record(context.Background(), acquired())
	if err != nil {
		t.Fatal(err)
	}
	t.Log(pos)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	b, _ := os.ReadFile(filepath.Join(cfg.Dir, "00000001.jsonl"))
	t.Logf("%s", b)
	cfg.Fresh = false
	cfg.Known = pos
	l, rec, err = Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Log(rec, l.Head())
	n := 0
	if err := l.Replay(Position{}, func(e Entry, p Position) error { n++; return nil }); err != nil {
		t.Fatal(err)
	}
	t.Log(n)
	l.Close()
}
