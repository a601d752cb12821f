package backup

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"time"
)

// A key of a test is its own stanza, or it would be random.
func unwrapped(stanzas []byte) ([]byte, error) { return bytes.Clone(stanzas), nil }
func wrapped(key []byte) ([]byte, error)       { return bytes.Clone(key), nil }

func manifest() Manifest {
	return Manifest{
		ID: "2026-11-30-k3", Created: time.Date(2026, 11, 30, 10, 20, 30, 456e6, time.UTC), VaultID: strings.Repeat("0a", 16),
		Schema: 2, Generation: 41, Rows: 17, Seq: 9001, Head: strings.Repeat("1f", 32), Genesis: strings.Repeat("c0", 32), Audit: true,
	}
}

func source(name, content string) Source {
	return Source{Part{name, int64(len(content))}, func() (io.ReadCloser, error) {
		return io.NopCloser(strings.NewReader(content)), nil
	}}
}

func sources(contents ...string) []Source {
	names := []string{VaultPart, "audit/00000001.pruned", "audit/00000002.jsonl", "audit/00000010.jsonl"}
	var parts []Source
	for i, content := range contents {
		parts = append(parts, source(names[i], content))
	}
	return parts
}

func small() []Source { return sources("the vault", "", "{}\n{}\n", "{}\n") }

func container(t testing.TB, m Manifest, parts []Source) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := Write(&b, Config{Wrap: wrapped, Manifest: m, Parts: parts}); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

type file struct{ Name, Content string }

// readAll reads a whole backup.
func readAll(r io.Reader) (m Manifest, files []file, err error) {
	b, err := Read(r, unwrapped)
	if err != nil {
		return m, nil, err
	}
	defer b.Close()
	for {
		part, err := b.Next()
		if errors.Is(err, io.EOF) {
			return b.Manifest(), files, nil
		}
		if err != nil {
			return m, files, err
		}
		content, err := io.ReadAll(b)
		if err != nil {
			return m, files, err
		}
		files = append(files, file{part.Name, string(content)})
	}
}

func known(err error) bool {
	return errors.Is(err, ErrNotBackup) || errors.Is(err, ErrVersion) || errors.Is(err, ErrDamaged)
}

func oneLine(t testing.TB, err error) {
	t.Helper()
	if s := err.Error(); strings.ContainsAny(s, "\n\r") || len(s) > 300 {
		t.Errorf("not one short line: %q", s)
	}
}
