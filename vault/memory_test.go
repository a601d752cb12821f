package vault

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
)

// MemoryDir names, in a child process, the directory of the vault that MemoryChild uses.
const MemoryDir = "VAULT_TEST_MEMORY_DIR"

// planted is what the control plants and looks for. It must not stand in the program itself.
func planted() []byte {
	sum := sha256.Sum256([]byte("planted"))
	return sum[:]
}

// MemoryChild uses a vault in every way that touches keys, says so, and waits at each stage to be looked at.
func MemoryChild(dir string) int {
	stage := func(name string) {
		for range 3 {
			runtime.GC()
		}
		fmt.Println(name)
		_, _ = io.ReadFull(os.Stdin, make([]byte, 1))
	}
	v, err := useVault(dir)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	stage("unlocked in " + v.KeyMemory())
	control := planted()
	stage("planted")
	clear(control)
	v.Lock()
	stage("locked")
	runtime.KeepAlive(control)
	return 0
}

// useVault leaves the vault unlocked by its key file.
func useVault(dir string) (*Vault, error) {
	ctx, src := context.Background(), memoryFile(filepath.Join(dir, "key"))
	cfg := Config{File: filepath.Join(dir, "vault.db"), Keys: src, cost: cost{passes: 1, memory: 1 << 10, threads: 1}}
	v, err := Open(ctx, cfg)
	if err != nil {
		return nil, err
	}
	j := quietJournal{}
	for _, step := range []func() error{
		func() error { _, err := v.AddPassphrase(j, Secret("passphrase")); return err },
		func() error { return v.TestSlot(ctx, Passphrase(Secret("passphrase"))) },
		func() error { _, err := v.Rotate(j); return err },
		func() error { return v.Rekey(ctx, j, []KeySource{src}) },
		func() error {
			return v.Mutate(j, func(tx *Tx) error {
				for i := range 500 {
					if err := tx.Put("grants", fmt.Sprint(i), []byte("allow")); err != nil {
						return err
					}
				}
				_, err := tx.PutContent("a", KindText, []byte("x"))
				return err
			})
		},
		func() error { v.Lock(); return v.UnlockWith(ctx, Passphrase(Secret("passphrase"))) },
		func() error { v.Lock(); return v.Unlock(ctx) },
		func() error { return v.Verify(true, nil) },
		func() error { _, err := v.WrapFileKey(make([]byte, keySize)); return err },
		func() error { return v.Reopen() },
	} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return v, nil
}

// memoryFile is a key file without rules.
type memoryFile string

func (f memoryFile) Kind() string                                 { return "file" }
func (f memoryFile) Load(context.Context, string) ([]byte, error) { return os.ReadFile(string(f)) }
func (f memoryFile) Store(_ context.Context, _ string, k []byte) error {
	return os.WriteFile(string(f), k, 0o600)
}
func (f memoryFile) Remove(context.Context, string) error { return os.Remove(string(f)) }
