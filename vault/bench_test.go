package vault_test

import (
	"fmt"
	"testing"

	"subjectbroker/vault"
	"subjectbroker/vault/vaulttest"
)

// filled makes a vault with n resources of 100 bytes and returns its configuration.
func filled(b *testing.B, n int) vault.Config {
	b.Helper()
	cfg := vaulttest.Config(b)
	v, err := vault.Create(b.Context(), cfg)
	if err != nil {
		b.Fatal(err)
	}
	content := make([]byte, 100)
	for from := 0; from < n; from += 10000 {
		err = v.Mutate(&vaulttest.Journal{}, func(tx *vault.Tx) error {
			for i := from; i < min(n, from+10000); i++ {
				if _, err := tx.PutContent(resource(i), vault.KindText, content); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			b.Fatal(err)
		}
	}
	if err := v.Close(); err != nil {
		b.Fatal(err)
	}
	return cfg
}

func resource(i int) string { return fmt.Sprintf("resource-%06d", i) }

func benchmarkStart(b *testing.B, n int) {
	cfg := filled(b, n)
	for b.Loop() {
		v, err := vault.Open(b.Context(), cfg)
		if err != nil {
			b.Fatal(err)
		}
		seen := 0
		err = v.View(func(tx *vault.Tx) error {
			return tx.Records(func(vault.Record) error { seen++; return nil })
		})
		if err != nil || seen != n {
			b.Fatal(seen, err)
		}
		if err := v.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// What a daemon does at its start: check the file, add up all rows, open every record.
func BenchmarkStart1e3(b *testing.B) { benchmarkStart(b, 1e3) }
func BenchmarkStart1e5(b *testing.B) { benchmarkStart(b, 1e5) }

func benchmarkContent(b *testing.B, n int) {
	v, err := vault.Open(b.Context(), filled(b, n))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { v.Close() })
	i := 0
	for b.Loop() {
		i = (i + 7919) % n
		err := v.View(func(tx *vault.Tx) error {
			content, _, err := tx.Content(resource(i), 0)
			content.Wipe()
			return err
		})
		if err != nil {
			b.Fatal(err)
		}
	}
}

// What one acquire costs here: a transaction, the record, the content.
func BenchmarkContent1e2(b *testing.B) { benchmarkContent(b, 1e2) }
func BenchmarkContent1e5(b *testing.B) { benchmarkContent(b, 1e5) }

func BenchmarkContent1MiB(b *testing.B) {
	cfg := vaulttest.Config(b)
	v, err := vault.Create(b.Context(), cfg)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { v.Close() })
	vaulttest.Put(b, v, "big", vault.KindBinary, string(make([]byte, vault.DefaultMaxContent)))
	b.SetBytes(vault.DefaultMaxContent)
	for b.Loop() {
		err := v.View(func(tx *vault.Tx) error {
			content, _, err := tx.Content("big", 0)
			content.Wipe()
			return err
		})
		if err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkOpenRow(b *testing.B) {
	v := vaulttest.New(b)
	err := v.Mutate(&vaulttest.Journal{}, func(tx *vault.Tx) error { return tx.Put("grants", "g", make([]byte, 256)) })
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	err = v.View(func(tx *vault.Tx) error {
		for b.Loop() {
			if _, err := tx.Get("grants", "g"); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
}

func BenchmarkMutate(b *testing.B) {
	v := vaulttest.New(b)
	j := &vaulttest.Journal{}
	for b.Loop() {
		err := v.Mutate(j, func(tx *vault.Tx) error { return tx.Put("grants", "g", make([]byte, 256)) })
		if err != nil {
			b.Fatal(err)
		}
	}
}

func benchmarkRewrap(b *testing.B, n int) {
	v, err := vault.Open(b.Context(), filled(b, n))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { v.Close() })
	for b.Loop() {
		b.StopTimer()
		rotate(b, v)
		b.StartTimer()
		if _, rows := rewrapAll(b, v, 256); rows != 2*n+1 {
			b.Fatalf("%d rows", rows)
		}
	}
}

// What a rotation takes until the older key is gone: resources with their contents, as the daemon does it.
func BenchmarkRewrap1e3(b *testing.B) { benchmarkRewrap(b, 1e3) }
func BenchmarkRewrap1e5(b *testing.B) { benchmarkRewrap(b, 1e5) }
