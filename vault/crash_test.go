package vault_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"subjectbroker/vault"
	"subjectbroker/vault/keysource"
	"subjectbroker/vault/vaulttest"
)

// crashOp names, in a child process, the change of keys to make; crashStep is the number of the moment to die at.
const crashOp = "VAULT_TEST_CRASH_OP"

// chainSource passes a key file for a keychain.
type chainSource struct{ vault.KeySource }

func (chainSource) Kind() string { return "keychain" }

func (c chainSource) Commit(ctx context.Context, id string) error {
	return c.KeySource.(vault.Committer).Commit(ctx, id)
}

// homeSources are the two places for keys in a home.
func homeSources(dir string) []vault.KeySource {
	return []vault.KeySource{
		keysource.File(filepath.Join(dir, "secret.key")),
		chainSource{keysource.File(filepath.Join(dir, "chain.key"))},
	}
}

// changes of keys, each of which may be killed at any moment and made again. What is done already is fine.
var changes = map[string]struct {
	prepare, do func(ctx context.Context, v *vault.Vault, j vault.Journal, sources []vault.KeySource) error
}{
	"rotate": {do: func(_ context.Context, v *vault.Vault, j vault.Journal, _ []vault.KeySource) error {
		return second(v.Rotate(j))
	}},
	"rewrap": {prepare: prepareRotation, do: func(_ context.Context, v *vault.Vault, j vault.Journal, _ []vault.KeySource) error {
		for {
			if _, left, err := v.Rewrap(j, 4); err != nil || left == 0 {
				return err
			}
		}
	}},
	"rekey": {prepare: prepareSlots, do: func(ctx context.Context, v *vault.Vault, j vault.Journal, sources []vault.KeySource) error {
		return v.Rekey(ctx, j, sources)
	}},
	"add passphrase": {do: func(_ context.Context, v *vault.Vault, j vault.Journal, _ []vault.KeySource) error {
		return unless(second(v.AddPassphrase(j, vault.Secret(phrase))), vault.ErrSlotExists)
	}},
	"replace recovery": {prepare: prepareSlots, do: func(ctx context.Context, v *vault.Vault, j vault.Journal, sources []vault.KeySource) error {
		_, _, err := v.AddRecovery(ctx, j, publicOf(seed('s')), sources)
		return err
	}},
	"move to the keychain": {do: func(ctx context.Context, v *vault.Vault, j vault.Journal, sources []vault.KeySource) error {
		if err := unless(second(v.AddSlot(ctx, j, sources[1])), vault.ErrSlotExists); err != nil {
			return err
		}
		return removeFile(ctx, v, j, sources)
	}},
	"migrate": {do: func(_ context.Context, v *vault.Vault, j vault.Journal, _ []vault.KeySource) error {
		return second(v.Migrate(j))
	}},
}

// removeFile removes the slot of the key file, and then the file.
func removeFile(ctx context.Context, v *vault.Vault, j vault.Journal, sources []vault.KeySource) error {
	if err := unless(v.RemoveSlot(ctx, j, "file", sources), vault.ErrNoSlot); err != nil {
		return err
	}
	return unless(sources[0].Remove(ctx, v.ID()), vault.ErrKeyUnavailable)
}

func unless(err, fine error) error {
	if errors.Is(err, fine) {
		return nil
	}
	return err
}

func prepareRotation(_ context.Context, v *vault.Vault, j vault.Journal, _ []vault.KeySource) error {
	return second(v.Rotate(j))
}

func prepareSlots(ctx context.Context, v *vault.Vault, j vault.Journal, sources []vault.KeySource) error {
	_, errChain := v.AddSlot(ctx, j, sources[1])
	_, errPhrase := v.AddPassphrase(j, vault.Secret(phrase))
	_, _, errCode := v.AddRecovery(ctx, j, publicOf(seed('r')), nil)
	return errors.Join(errChain, errPhrase, errCode)
}

// crashingChange makes a change in a home and kills itself at the moment with that number; it prints where that is.
func crashingChange(dir, op, at string) int {
	moment, err := strconv.Atoi(at)
	if err != nil {
		panic(err)
	}
	die := func(where string) {
		if moment--; moment == 0 {
			fmt.Print(where)
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}
	v, err := openHome(context.Background(), dir, func(cfg *vault.Config) { vault.OnStep(cfg, die) })
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	sources := homeSources(dir)
	for i := range sources {
		sources[i] = dyingSource{sources[i], die}
	}
	j := &vaulttest.Journal{
		OnIntent:  func(uint64, [32]byte) error { die("intent"); return nil },
		OnApplied: func(uint64, [32]byte) error { die("applied"); return nil },
	}
	die("begin")
	if err := changes[op].do(context.Background(), v, j, sources); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	die("end")
	return 0
}

// openHome opens a home with the first key that opens it.
func openHome(ctx context.Context, dir string, change func(*vault.Config)) (*vault.Vault, error) {
	cfg := vault.Config{File: filepath.Join(dir, "vault.db")}
	vault.CheapPassphrases(&cfg)
	change(&cfg)
	v, err := vault.OpenLocked(cfg)
	if err != nil {
		return nil, err
	}
	var errs error
	for _, src := range homeSources(dir) {
		err := v.UnlockWith(ctx, src)
		if err == nil {
			return v, nil
		}
		errs = errors.Join(errs, err)
	}
	_ = v.Close()
	return nil, errs
}

// dyingSource may die on both sides of each call.
type dyingSource struct {
	vault.KeySource
	die func(string)
}

func (k dyingSource) Load(ctx context.Context, id string) ([]byte, error) {
	k.die("before Load")
	return k.KeySource.Load(ctx, id)
}

func (k dyingSource) Store(ctx context.Context, id string, key []byte) error {
	k.die("before Store")
	defer k.die("after Store")
	return k.KeySource.Store(ctx, id, key)
}

func (k dyingSource) Remove(ctx context.Context, id string) error {
	k.die("before Remove")
	defer k.die("after Remove")
	return k.KeySource.Remove(ctx, id)
}

func (k dyingSource) Commit(ctx context.Context, id string) error {
	k.die("before Commit")
	defer k.die("after Commit")
	return k.KeySource.(vault.Committer).Commit(ctx, id)
}

// P12: a change of keys that is killed at any moment leaves a vault that opens with every slot it has, and can be made again.
func TestChangeOfKeysKilled(t *testing.T) {
	for op := range changes {
		t.Run(op, func(t *testing.T) {
			home := prepareHome(t, op)
			var where []string
			outcomes := map[string]bool{}
			for moment := 1; ; moment++ {
				dir := t.TempDir()
				for _, name := range listing(t, home) {
					spit(t, filepath.Join(dir, name), slurp(t, filepath.Join(home, name)))
				}
				at, killed := runCrash(t, dir, op, moment)
				if !killed {
					break
				}
				where = append(where, at)
				outcomes[checkHome(t, dir, op, at)] = true
			}
			t.Logf("killed at %s", strings.Join(where, ", "))
			if len(outcomes) < 2 || !slices.Contains(where, "intent") || !slices.Contains(where, "applied") {
				t.Errorf("the kills left always the same: %v", outcomes)
			}
		})
	}
}

func prepareHome(t *testing.T, op string) string {
	t.Helper()
	dir := t.TempDir()
	if op == "migrate" {
		spit(t, filepath.Join(dir, "vault.db"), slurp(t, schema1File))
		spit(t, filepath.Join(dir, "secret.key"), schema1Key(t))
		return dir
	}
	cfg := homeConfig(dir)
	vault.CheapPassphrases(&cfg)
	v, err := vault.Create(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		mutate(t, v, put("readme", vault.KindText, fmt.Sprint(i)))
		mutate(t, v, row("grants", fmt.Sprint(i), "allow"))
	}
	if prepare := changes[op].prepare; prepare != nil {
		if err := prepare(t.Context(), v, &vaulttest.Journal{}, homeSources(dir)); err != nil {
			t.Fatal(err)
		}
	}
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

func runCrash(t *testing.T, dir, op string, moment int) (where string, killed bool) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), crashDir+"="+dir, crashOp+"="+op, crashStep+"="+strconv.Itoa(moment))
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err == nil {
		return "", false
	}
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("the child ended with %v: %s", err, stderr.String())
	}
	return string(out), true
}

// checkHome opens what a kill left with every slot, and makes the change again. It describes what it found.
func checkHome(t *testing.T, dir, op, at string) (found string) {
	t.Helper()
	v, err := openHome(t.Context(), dir, func(*vault.Config) {})
	if err != nil {
		t.Fatalf("killed at %s, it does not open: %v", at, err)
	}
	defer v.Close()
	_, old := v.Terms()
	found = fmt.Sprintf("generation %d, schema %d, old terms %v, slots", v.State().Generation, v.Schema(), old)
	for _, slot := range v.Slots() {
		found += " " + slot.Name
	}
	if op == "migrate" && v.Schema() == 2 {
		copied := vault.Config{File: filepath.Join(dir, "vault.db.schema1"), Keys: fixedKey(schema1Key(t))}
		if kept := open(t, copied); kept.Schema() != 1 {
			t.Errorf("killed at %s, the copy has schema %d", at, kept.Schema())
		}
	}
	for _, again := range []bool{false, true} {
		if again {
			if err := changes[op].do(t.Context(), v, &vaulttest.Journal{}, homeSources(dir)); err != nil {
				t.Fatalf("killed at %s, again: %v", at, err)
			}
		}
		for _, slot := range v.Slots() {
			v.Lock()
			if err := unlockSlot(t, v, dir, slot.Kind); err != nil {
				t.Errorf("killed at %s, made again: %v, slot %s: %v", at, again, slot.Name, err)
			}
		}
		if err := v.Verify(true, nil); err != nil {
			t.Errorf("killed at %s, made again: %v: %v", at, again, err)
		}
	}
	if got, err := read(t, v, "readme", 1); err != nil || (got != "0" && got != "first") {
		t.Errorf("killed at %s: content %q, %v", at, got, err)
	}
	if op == "migrate" {
		left := slices.DeleteFunc(listing(t, dir), func(name string) bool { return strings.HasPrefix(name, "vault.db.schema1.new") })
		if diff := cmp.Diff([]string{"secret.key", "vault.db", "vault.db.schema1"}, left); diff != "" {
			t.Errorf("killed at %s, left (-want +got):\n%s", at, diff)
		}
	}
	return found
}

func unlockSlot(t *testing.T, v *vault.Vault, dir, kind string) error {
	t.Helper()
	passphrase, code := person()
	for _, src := range append(homeSources(dir), passphrase, code, vault.Recovery(seed('s'))) {
		if src.Kind() != kind {
			continue
		}
		err := v.UnlockWith(t.Context(), src)
		// There are two codes, the old and the new one.
		if err == nil || kind != "recovery" {
			return err
		}
	}
	if v.Locked() {
		return errors.New("no code opens it")
	}
	return nil
}
