package daemon

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"subjectbroker/proto/wire"
)

// While a restore runs, the home is held, not one in which a restore was
// interrupted: it must not be run again.
func TestBesideARestore(t *testing.T) {
	home := t.TempDir()
	if err := os.Chmod(home, 0o700); err != nil {
		t.Fatal(err)
	}
	lock, err := lockHome(home)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(home, restoringMarker), 0o700); err != nil {
		t.Fatal(err)
	}
	config := Config{Home: home, Logger: slog.New(slog.DiscardHandler)}
	verbs := map[string]func() error{
		"sbd":         func() error { return Run(t.Context(), config, nil) },
		"sbd recover": func() error { return Recover(t.Context(), Offline{Config: config, Say: func(string) {}}) },
		"sbd check":   func() error { return Check(t.Context(), Offline{Config: config, Say: func(string) {}}, "") },
	}
	for _, want := range []wire.Reason{wire.AlreadyRunning, wire.VaultMissing} {
		for verb, run := range verbs {
			if f := asFault(run()); f.Code != want {
				t.Errorf("%s: %v, want %s", verb, f, want)
			}
		}
		if err := lock.Close(); err != nil && want == wire.AlreadyRunning {
			t.Fatal(err)
		}
	}
}
