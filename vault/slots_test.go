package vault_test

import (
	"bytes"
	"context"
	"crypto/ecdh"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	bolt "go.etcd.io/bbolt"

	"subjectbroker/vault"
	"subjectbroker/vault/vaulttest"
)

const phrase = "correct horse battery staple"

// person is what somebody remembers or has on paper.
func person() (passphrase, code vault.KeySource) {
	return vault.Passphrase(vault.Secret(phrase)), vault.Recovery(seed('r'))
}

func seed(fill byte) vault.Secret { return bytes.Repeat([]byte{fill}, 32) }

// publicOf is the public key of the code with that seed.
func publicOf(seed vault.Secret) []byte {
	private, err := ecdh.X25519().NewPrivateKey(seed)
	if err != nil {
		panic(err)
	}
	return private.PublicKey().Bytes()
}

// everySlot makes a vault with a slot of each kind and some rows. sources are those of its keys, the file's first.
func everySlot(t testing.TB) (cfg vault.Config, v *vault.Vault, sources []vault.KeySource) {
	t.Helper()
	cfg = vaulttest.Config(t)
	vault.CheapPassphrases(&cfg)
	v, err := vault.Create(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { v.Close() })
	mutate(t, v, put("a", vault.KindText, "content of a"))
	mutate(t, v, row("grants", "g", "allow"))
	chain := &vaulttest.Keys{As: "keychain"}
	if _, err := v.AddSlot(t.Context(), &vaulttest.Journal{}, chain); err != nil {
		t.Fatal(err)
	}
	if _, err := v.AddPassphrase(&vaulttest.Journal{}, vault.Secret(phrase)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := v.AddRecovery(t.Context(), &vaulttest.Journal{}, publicOf(seed('r')), nil); err != nil {
		t.Fatal(err)
	}
	return cfg, v, []vault.KeySource{cfg.Keys, chain}
}

// opensWith locks the vault and opens it with each source.
func opensWith(t testing.TB, v *vault.Vault, sources ...vault.KeySource) {
	t.Helper()
	for _, src := range sources {
		v.Lock()
		if err := v.UnlockWith(t.Context(), src); err != nil {
			t.Fatalf("%s: %v", src.Kind(), err)
		}
		if got := v.UnlockedBy(); got != src.Kind() {
			t.Errorf("unlocked by %q instead of %q", got, src.Kind())
		}
	}
	if got, err := read(t, v, "a", 0); err != nil || got != "content of a" {
		t.Errorf("content is %q, %v", got, err)
	}
	if err := v.Verify(true, nil); err != nil {
		t.Error(err)
	}
}

// A vault opens with each of its slots, before and after a rekey, and in another process.
func TestEverySlotOpens(t *testing.T) {
	cfg, v, sources := everySlot(t)
	want := []vault.Slot{
		{Name: "1.file", Kind: "file", N: 1}, {Name: "2.keychain", Kind: "keychain", N: 2},
		{Name: "3.passphrase", Kind: "passphrase", N: 3}, {Name: "4.recovery", Kind: "recovery", N: 4},
	}
	if diff := cmp.Diff(want, v.Slots()); diff != "" {
		t.Errorf("slots (-want +got):\n%s", diff)
	}
	passphrase, code := person()
	all := []vault.KeySource{sources[0], sources[1], passphrase, code}
	opensWith(t, v, all...)
	// The rekey is given neither passphrase nor code.
	if err := v.Rekey(t.Context(), &vaulttest.Journal{}, sources); err != nil {
		t.Fatal(err)
	}
	for _, src := range all {
		if err := v.TestSlot(t.Context(), src); err != nil {
			t.Errorf("testing %s: %v", src.Kind(), err)
		}
	}
	opensWith(t, v, all...)
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	locked, err := vault.OpenLocked(vault.Config{File: cfg.File})
	if err != nil {
		t.Fatal(err)
	}
	defer locked.Close()
	if diff := cmp.Diff(want, locked.Slots()); diff != "" {
		t.Errorf("slots of a locked vault (-want +got):\n%s", diff)
	}
	if got := locked.UnlockedBy() + locked.KeyMemory(); got != "" {
		t.Errorf("a locked vault says %q", got)
	}
	opensWith(t, locked, all...)
}

// A wrong secret is a wrong key, and changes nothing.
func TestWrongSecrets(t *testing.T) {
	_, v, _ := everySlot(t)
	wrong := map[string]vault.KeySource{
		"passphrase":    vault.Passphrase(vault.Secret(phrase + " ")),
		"no passphrase": vault.Passphrase(nil),
		"code":          vault.Recovery(seed('s')),
		"short seed":    vault.Recovery(seed('r')[:31]),
		"long seed":     vault.Recovery(append(seed('r'), 0)),
		"no seed":       vault.Recovery(nil),
		"file":          fixedKey(seed('x')),
	}
	for name, src := range wrong {
		if err := v.TestSlot(t.Context(), src); !errors.Is(err, vault.ErrWrongKey) {
			t.Errorf("testing with a wrong %s: %v", name, err)
		} else {
			oneLine(t, err)
		}
	}
	v.Lock()
	for name, src := range wrong {
		if err := v.UnlockWith(t.Context(), src); !errors.Is(err, vault.ErrWrongKey) {
			t.Errorf("unlocking with a wrong %s: %v", name, err)
		}
	}
	if !v.Locked() {
		t.Error("it is open")
	}
}

func TestSlotsThatCannotBe(t *testing.T) {
	cfg, v, sources := everySlot(t)
	before, rows := v.State(), slurp(t, cfg.File)
	j := &vaulttest.Journal{}
	for name, test := range map[string]struct {
		do   func() error
		want error
	}{
		"a second file": {func() error { return second(v.AddSlot(t.Context(), j, &vaulttest.Keys{})) }, vault.ErrSlotExists},
		"a second passphrase": {func() error {
			return second(v.AddPassphrase(j, vault.Secret("another")))
		}, vault.ErrSlotExists},
		"a passphrase for a source": {func() error {
			return second(v.AddSlot(t.Context(), j, vault.Passphrase(vault.Secret("x"))))
		}, vault.ErrInvalid},
		"a short public key": {func() error {
			_, _, err := v.AddRecovery(t.Context(), j, make([]byte, 31), sources)
			return err
		}, vault.ErrInvalid},
		"a public key of low order": {func() error {
			_, _, err := v.AddRecovery(t.Context(), j, make([]byte, 32), sources)
			return err
		}, vault.ErrInvalid},
		"removing what is not there": {func() error { return v.RemoveSlot(t.Context(), j, "sms", sources) }, vault.ErrNoSlot},
		"rekeying without the keychain": {func() error {
			return v.Rekey(t.Context(), j, sources[:1])
		}, vault.ErrKeySource},
		"rekeying with a wrong key": {func() error {
			return v.Rekey(t.Context(), j, []vault.KeySource{fixedKey(seed('x')), sources[1]})
		}, vault.ErrWrongKey},
		"removing with a wrong key": {func() error {
			return v.RemoveSlot(t.Context(), j, "recovery", []vault.KeySource{fixedKey(seed('x')), sources[1]})
		}, vault.ErrWrongKey},
		"replacing the code without sources": {func() error {
			_, _, err := v.AddRecovery(t.Context(), j, publicOf(seed('s')), nil)
			return err
		}, vault.ErrKeySource},
		"no journal": {func() error { return second(v.Rotate(nil)) }, vault.ErrInvalid},
	} {
		err := test.do()
		if !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", name, err, test.want)
		} else {
			oneLine(t, err)
		}
	}
	sources[1].(*vaulttest.Keys).Fail(vault.ErrKeyNotAnswering)
	if err := v.Rekey(t.Context(), j, sources); !errors.Is(err, vault.ErrKeyNotAnswering) {
		t.Errorf("rekeying while the keychain is silent: %v", err)
	}
	if diff := cmp.Diff(before, v.State()); diff != "" || len(j.Calls()) != 0 || !bytes.Equal(rows, slurp(t, cfg.File)) {
		t.Errorf("something was changed: %v %s", j.Calls(), diff)
	}
	v.Lock()
	for name, do := range map[string]func() error{
		"Rotate":        func() error { return second(v.Rotate(j)) },
		"Rekey":         func() error { return v.Rekey(t.Context(), j, sources) },
		"Rewrap":        func() error { _, _, err := v.Rewrap(j, 10); return err },
		"AddPassphrase": func() error { return second(v.AddPassphrase(j, vault.Secret("x"))) },
		"AddSlot":       func() error { return second(v.AddSlot(t.Context(), j, &vaulttest.Keys{})) },
		"AddRecovery": func() error {
			_, _, err := v.AddRecovery(t.Context(), j, publicOf(seed('s')), sources)
			return err
		},
		"RemoveSlot":  func() error { return v.RemoveSlot(t.Context(), j, "recovery", sources) },
		"TestSlot":    func() error { return v.TestSlot(t.Context(), sources[0]) },
		"Migrate":     func() error { return second(v.Migrate(j)) },
		"WrapFileKey": func() error { return second(v.WrapFileKey(make([]byte, 32))) },
	} {
		if err := do(); !errors.Is(err, vault.ErrLocked) {
			t.Errorf("%s of a locked vault: %v", name, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

// A slot that is removed opens nothing any more, not even if its row is put back; the last one stays.
func TestRemovedSlot(t *testing.T) {
	passphrase, code := person()
	for _, kind := range []string{"file", "keychain", "passphrase", "recovery"} {
		t.Run(kind, func(t *testing.T) {
			cfg, v, sources := everySlot(t)
			others := []vault.KeySource{}
			var removed vault.KeySource
			for _, src := range []vault.KeySource{sources[0], sources[1], passphrase, code} {
				if src.Kind() == kind {
					removed = src
				} else {
					others = append(others, src)
				}
			}
			name := ""
			for _, s := range v.Slots() {
				if s.Kind == kind {
					name = s.Name
				}
			}
			// What was there before the removal opens a copy made before, and nothing else.
			if keys, ok := removed.(*vaulttest.Keys); ok {
				removed = fixedKind{keys.Only(), kind}
			}
			before := copyOf(t, cfg)
			if err := v.RemoveSlot(t.Context(), &vaulttest.Journal{}, kind, sources); err != nil {
				t.Fatal(err)
			}
			if len(v.Slots()) != 3 {
				t.Errorf("left: %v", v.Slots())
			}
			opensWith(t, v, others...)
			v.Lock()
			if err := v.UnlockWith(t.Context(), removed); !errors.Is(err, vault.ErrNoSlot) || !errors.Is(err, vault.ErrKeySource) {
				t.Errorf("unlocking with what is removed: %v", err)
			}
			if err := v.Close(); err != nil {
				t.Fatal(err)
			}
			var old []byte
			tamper(t, before, func(tx *bolt.Tx) { old = stored(tx, "slots", name) })
			tamper(t, cfg, func(tx *bolt.Tx) { store(t, tx, "slots", name, old) })
			back, err := vault.OpenLocked(vault.Config{File: cfg.File})
			if err != nil {
				t.Fatal(err)
			}
			defer back.Close()
			if err := back.UnlockWith(t.Context(), removed); !errors.Is(err, vault.ErrIntegrity) {
				t.Errorf("with its row put back: %v", err)
			}
			if err := back.UnlockWith(t.Context(), others[0]); !errors.Is(err, vault.ErrIntegrity) {
				t.Errorf("with its row put back, by another slot: %v", err)
			}
			earlier, err := vault.OpenLocked(before)
			if err != nil {
				t.Fatal(err)
			}
			defer earlier.Close()
			opensWith(t, earlier, removed)
		})
	}
}

// fixedKind is a key that is not kept anywhere.
type fixedKind struct {
	fixedKey
	kind string
}

func (k fixedKind) Kind() string { return k.kind }

// copyOf copies the file of a vault in which nothing is going on.
func copyOf(t testing.TB, cfg vault.Config) vault.Config {
	t.Helper()
	to := vaulttest.Config(t)
	spit(t, to.File, slurp(t, cfg.File))
	return vault.Config{File: to.File}
}

func TestLastSlotStays(t *testing.T) {
	cfg := vaulttest.Config(t)
	vault.CheapPassphrases(&cfg)
	v, err := vault.Create(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	vaulttest.Check(t, v)
	if err := v.RemoveSlot(t.Context(), &vaulttest.Journal{}, "file", []vault.KeySource{cfg.Keys}); !errors.Is(err, vault.ErrLastSlot) {
		t.Errorf("says %v", err)
	}
	// A vault that only a person opens is one, too.
	if _, err := v.AddPassphrase(&vaulttest.Journal{}, vault.Secret(phrase)); err != nil {
		t.Fatal(err)
	}
	if err := v.RemoveSlot(t.Context(), &vaulttest.Journal{}, "file", []vault.KeySource{cfg.Keys}); err != nil {
		t.Fatal(err)
	}
	if v.KeyKind() != "passphrase" {
		t.Errorf("the first slot is %s", v.KeyKind())
	}
	if err := v.RemoveSlot(t.Context(), &vaulttest.Journal{}, "passphrase", nil); !errors.Is(err, vault.ErrLastSlot) {
		t.Errorf("says %v", err)
	}
	if err := v.Rekey(t.Context(), &vaulttest.Journal{}, nil); err != nil {
		t.Error(err)
	}
	v.Lock()
	passphrase, _ := person()
	if err := v.UnlockWith(t.Context(), passphrase); err != nil {
		t.Error(err)
	}
	slot, err := v.AddSlot(t.Context(), &vaulttest.Journal{}, cfg.Keys)
	if err != nil || slot.Name != "3.file" {
		t.Errorf("added %v, %v", slot, err)
	}
	v.Lock()
	if err := v.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}

// A new recovery code shuts the old one out.
func TestRecoveryCodeIsReplaced(t *testing.T) {
	cfg, v, sources := everySlot(t)
	before := copyOf(t, cfg)
	slot, replaced, err := v.AddRecovery(t.Context(), &vaulttest.Journal{}, publicOf(seed('s')), sources)
	if err != nil || !replaced || slot.Kind != "recovery" {
		t.Fatalf("%v, %v, %v", slot, replaced, err)
	}
	if err := v.TestSlot(t.Context(), vault.Recovery(seed('r'))); !errors.Is(err, vault.ErrWrongKey) {
		t.Errorf("the old code: %v", err)
	}
	passphrase, code := person()
	opensWith(t, v, sources[0], sources[1], passphrase, vault.Recovery(seed('s')))
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	// The old slot put back holds the root key of then.
	var old []byte
	tamper(t, before, func(tx *bolt.Tx) { old = stored(tx, "slots", slot.Name) })
	tamper(t, cfg, func(tx *bolt.Tx) { store(t, tx, "slots", slot.Name, old) })
	back, err := vault.OpenLocked(vault.Config{File: cfg.File})
	if err != nil {
		t.Fatal(err)
	}
	defer back.Close()
	if err := back.UnlockWith(t.Context(), code); !errors.Is(err, vault.ErrIntegrity) {
		t.Errorf("the old code with its slot put back: %v", err)
	}
}

// A key that an interrupted attempt left is used, never written over.
func TestAddSlotAgain(t *testing.T) {
	cfg := vaulttest.Config(t)
	v, err := vault.Create(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	vaulttest.Check(t, v)
	chain := &vaulttest.Keys{As: "keychain"}
	refuse := &vaulttest.Journal{OnIntent: func(uint64, [32]byte) error { return errCrash }}
	if _, err := v.AddSlot(t.Context(), refuse, chain); !errors.Is(err, errCrash) {
		t.Fatalf("says %v", err)
	}
	left := chain.Only()
	if len(v.Slots()) != 1 {
		t.Errorf("slots: %v", v.Slots())
	}
	if _, err := v.AddSlot(t.Context(), &vaulttest.Journal{}, chain); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(left, chain.Only()) {
		t.Error("it made another key")
	}
	v.Lock()
	if err := v.UnlockWith(t.Context(), chain); err != nil {
		t.Error(err)
	}
}

// An attempt with the keychain does not decide about a passphrase that waits for it.
func TestUnlockDoesNotShareSecrets(t *testing.T) {
	_, v, sources := everySlot(t)
	v.Lock()
	asked, answer := make(chan struct{}), make(chan struct{})
	slow := waitingKeys{sources[1], func() { close(asked); <-answer }}
	sources[1].(*vaulttest.Keys).Fail(vault.ErrKeyNotAnswering)
	first := make(chan error)
	go func() { first <- v.UnlockWith(t.Context(), slow) }()
	<-asked
	_, code := person()
	wrong, right := make(chan error), make(chan error)
	go func() { wrong <- v.UnlockWith(t.Context(), vault.Recovery(seed('s'))) }()
	close(answer)
	if err := <-first; !errors.Is(err, vault.ErrKeyNotAnswering) {
		t.Errorf("the keychain: %v", err)
	}
	if err := <-wrong; !errors.Is(err, vault.ErrWrongKey) {
		t.Errorf("the wrong code: %v", err)
	}
	go func() { right <- v.UnlockWith(t.Context(), code) }()
	if err := <-right; err != nil {
		t.Errorf("the right code: %v", err)
	}
}

type waitingKeys struct {
	vault.KeySource
	wait func()
}

func (k waitingKeys) Load(ctx context.Context, id string) ([]byte, error) {
	k.wait()
	return k.KeySource.Load(ctx, id)
}
