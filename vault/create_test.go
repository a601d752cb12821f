package vault_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"subjectbroker/vault"
	"subjectbroker/vault/keysource"
	"subjectbroker/vault/vaulttest"
)

// In a child process these name the directory of a first start and the step to die at.
const (
	crashDir  = "VAULT_TEST_CRASH_DIR"
	crashStep = "VAULT_TEST_CRASH_STEP"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(vault.MemoryDir); dir != "" {
		os.Exit(vault.MemoryChild(dir))
	}
	if dir := os.Getenv(crashDir); dir != "" {
		if op := os.Getenv(crashOp); op != "" {
			os.Exit(crashingChange(dir, op, os.Getenv(crashStep)))
		}
		os.Exit(crashingStart(dir, os.Getenv(crashStep)))
	}
	os.Exit(m.Run())
}

// steps of a first start with a key file, in their order.
var steps = []string{"cleaned", "created", "filled", "written", "before Store", "stored", "renamed", "synced", "before Commit", "committed", "done"}

func homeConfig(dir string) vault.Config {
	return vault.Config{File: filepath.Join(dir, "vault.db"), Keys: keysource.File(filepath.Join(dir, "secret.key"))}
}

// crashingStart makes a vault and kills itself at one step, without any chance to clean up.
func crashingStart(dir, at string) int {
	die := func(step string) {
		if step == at {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}
	cfg := homeConfig(dir)
	cfg.Keys = dyingKeys{cfg.Keys, die}
	vault.OnStep(&cfg, die)
	if _, err := vault.Create(context.Background(), cfg); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	die("done")
	return 0
}

type dyingKeys struct {
	vault.KeySource
	die func(string)
}

func (k dyingKeys) Store(ctx context.Context, id string, key []byte) error {
	k.die("before Store")
	return k.KeySource.Store(ctx, id, key)
}

func (k dyingKeys) Commit(ctx context.Context, id string) error {
	k.die("before Commit")
	return k.KeySource.(vault.Committer).Commit(ctx, id)
}

func listing(t testing.TB, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// startAgain is what a daemon does: open what is there, make what may be made.
func startAgain(ctx context.Context, cfg vault.Config) (v *vault.Vault, created bool, err error) {
	fresh, err := vault.Fresh(cfg.File)
	switch {
	case err != nil:
		return nil, false, err
	case fresh:
		v, err = vault.Create(ctx, cfg)
		return v, true, err
	}
	v, err = vault.Open(ctx, cfg)
	return v, false, err
}

// P8: a first start that is killed at any step leaves no vault or a good one.
func TestFirstStartKilled(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for i, step := range steps {
		t.Run(step, func(t *testing.T) {
			dir := t.TempDir()
			cmd := exec.Command(self)
			cmd.Env = append(os.Environ(), crashDir+"="+dir, crashStep+"="+step)
			out, err := cmd.CombinedOutput()
			exit, ok := errors.AsType[*exec.ExitError](err)
			if !ok || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
				t.Fatalf("the child ended with %v: %s", err, out)
			}
			t.Logf("left: %v", listing(t, dir))
			checkStart(t, dir, i >= slices.Index(steps, "renamed"))
		})
	}
}

func checkStart(t *testing.T, dir string, wantVault bool) {
	t.Helper()
	v, created, err := startAgain(t.Context(), homeConfig(dir))
	if err != nil {
		t.Fatal(err)
	}
	if created == wantVault {
		t.Errorf("created a vault: %v, though one was there: %v", created, wantVault)
	}
	vaulttest.Put(t, v, "a", vault.KindText, "x")
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"secret.key", "vault.db"}, listing(t, dir)); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
	for _, name := range []string{"secret.key", "vault.db"} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.Mode() != 0o600 {
			t.Errorf("%s has mode %v, %v", name, info.Mode(), err)
		}
	}
	v, created, err = startAgain(t.Context(), homeConfig(dir))
	if err != nil || created {
		t.Fatalf("the next start: created %v, %v", created, err)
	}
	if got, err := read(t, v, "a", 0); err != nil || got != "x" {
		t.Errorf("content %q, %v", got, err)
	}
	_ = v.Close()
}

// What a power cut may leave of files that were not synced yet: a piece, or nothing.
func TestFirstStartCut(t *testing.T) {
	for name, left := range map[string]map[string]int{
		"nothing":                   {},
		"an empty vault.db.new":     {"vault.db.new": 0},
		"a piece of vault.db.new":   {"vault.db.new": 5000},
		"an empty secret.key.new":   {"vault.db.new": 5000, "secret.key.new": 0},
		"a piece of secret.key.new": {"vault.db.new": 5000, "secret.key.new": 7},
		"secret.key.new alone":      {"secret.key.new": 32},
		"audit.key.new":             {"audit.key.new": 100},
		"all of them":               {"vault.db.new": 8192, "secret.key.new": 32, "audit.key.new": 100},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for file, size := range left {
				spit(t, filepath.Join(dir, file), make([]byte, size))
			}
			checkStart(t, dir, false)
		})
	}
}

// P5: a vault that is gone is not made again, and nothing is written.
func TestVaultIsGone(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, dir string){
		"removed": func(t *testing.T, dir string) { remove(t, dir, "vault.db") },
		"emptied": func(t *testing.T, dir string) { spit(t, filepath.Join(dir, "vault.db"), nil) },
		"emptied, key gone": func(t *testing.T, dir string) {
			spit(t, filepath.Join(dir, "vault.db"), nil)
			remove(t, dir, "secret.key")
		},
		"key replaced by a link": func(t *testing.T, dir string) {
			remove(t, dir, "vault.db")
			remove(t, dir, "secret.key")
			if err := os.Symlink("/nowhere", filepath.Join(dir, "secret.key")); err != nil {
				t.Fatal(err)
			}
		},
		"only the audit key is left": func(t *testing.T, dir string) {
			remove(t, dir, "vault.db")
			remove(t, dir, "secret.key")
			spit(t, filepath.Join(dir, "audit.key"), []byte("x"))
		},
		"only a log is left": func(t *testing.T, dir string) {
			remove(t, dir, "vault.db")
			remove(t, dir, "secret.key")
			if err := os.Mkdir(filepath.Join(dir, "audit"), 0o700); err != nil {
				t.Fatal(err)
			}
			spit(t, filepath.Join(dir, "audit", "00000001.jsonl"), []byte("{}\n"))
		},
		"removed, but vault.db.new is there": func(t *testing.T, dir string) {
			if err := os.Rename(filepath.Join(dir, "vault.db"), filepath.Join(dir, "vault.db.new")); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			v, err := vault.Create(t.Context(), homeConfig(dir))
			if err != nil {
				t.Fatal(err)
			}
			if err := v.Close(); err != nil {
				t.Fatal(err)
			}
			change(t, dir)
			before := listing(t, dir)
			for what, start := range map[string]func() error{
				"Fresh":  func() error { _, err := vault.Fresh(filepath.Join(dir, "vault.db")); return err },
				"Create": func() error { _, err := vault.Create(t.Context(), homeConfig(dir)); return err },
				"Open":   func() error { _, err := vault.Open(t.Context(), homeConfig(dir)); return err },
			} {
				if err := start(); !errors.Is(err, vault.ErrMissing) {
					t.Errorf("%s says %v", what, err)
				} else {
					oneLine(t, err)
				}
			}
			if diff := cmp.Diff(before, listing(t, dir)); diff != "" {
				t.Errorf("written (-want +got):\n%s", diff)
			}
		})
	}
}

func remove(t *testing.T, dir, name string) {
	t.Helper()
	if err := os.Remove(filepath.Join(dir, name)); err != nil {
		t.Fatal(err)
	}
}

func TestFreshHome(t *testing.T) {
	dir := t.TempDir()
	// An empty audit directory is fresh, one that is a file system of its own too.
	if err := os.MkdirAll(filepath.Join(dir, "audit", "lost+found"), 0o700); err != nil {
		t.Fatal(err)
	}
	spit(t, filepath.Join(dir, "config.yaml"), []byte("log: json\n"))
	spit(t, filepath.Join(dir, "lock"), nil)
	v, err := vault.Create(t.Context(), homeConfig(dir))
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	if _, err := vault.Create(t.Context(), homeConfig(dir)); !errors.Is(err, vault.ErrExists) {
		t.Errorf("a second Create says %v", err)
	}
}

// P9: a wrong or missing key changes nothing.
func TestWrongKey(t *testing.T) {
	for name, test := range map[string]struct {
		change func(t *testing.T, key string)
		want   error
	}{
		"missing":  {func(t *testing.T, key string) { remove(t, filepath.Dir(key), "secret.key") }, vault.ErrKeyUnavailable},
		"another":  {func(t *testing.T, key string) { spit(t, key, make([]byte, 32)) }, vault.ErrWrongKey},
		"one bit":  {func(t *testing.T, key string) { p := slurp(t, key); p[31] ^= 1; spit(t, key, p) }, vault.ErrWrongKey},
		"31 bytes": {func(t *testing.T, key string) { spit(t, key, slurp(t, key)[:31]) }, vault.ErrKeyFileUnsafe},
		"33 bytes": {func(t *testing.T, key string) { spit(t, key, append(slurp(t, key), 0)) }, vault.ErrKeyFileUnsafe},
		"empty":    {func(t *testing.T, key string) { spit(t, key, nil) }, vault.ErrKeyFileUnsafe},
		"wrong and provisional": {func(t *testing.T, key string) {
			spit(t, key+".new", make([]byte, 32))
			remove(t, filepath.Dir(key), "secret.key")
		}, vault.ErrWrongKey},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			cfg := homeConfig(dir)
			v, err := vault.Create(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			vaulttest.Put(t, v, "a", vault.KindText, "x")
			if err := v.Close(); err != nil {
				t.Fatal(err)
			}
			test.change(t, filepath.Join(dir, "secret.key"))
			before, names := slurp(t, cfg.File), listing(t, dir)
			_, err = vault.Open(t.Context(), cfg)
			if !errors.Is(err, test.want) {
				t.Fatalf("opens with %v, want %v", err, test.want)
			}
			oneLine(t, err)
			if !slices.Equal(before, slurp(t, cfg.File)) || !slices.Equal(names, listing(t, dir)) {
				t.Error("something was changed")
			}
		})
	}
}

// A key source that fails leaves no vault.
func TestCreateWithoutKey(t *testing.T) {
	for _, fault := range []error{vault.ErrKeyNotAnswering, vault.ErrKeyExists} {
		cfg := vaulttest.Config(t)
		keys := cfg.Keys.(*vaulttest.Keys)
		keys.Fail(fault)
		if _, err := vault.Create(t.Context(), cfg); !errors.Is(err, fault) {
			t.Errorf("Create says %v, want %v", err, fault)
		}
		if names := listing(t, filepath.Dir(cfg.File)); len(names) != 0 {
			t.Errorf("left: %v", names)
		}
		keys.Fail(nil)
		v, err := vault.Create(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		_ = v.Close()
	}
}
