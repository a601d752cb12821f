package daemon_test

import (
	"bytes"
	"os"
	"testing"

	"subjectbroker/daemon/daemontest"
	"subjectbroker/proto/place"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

// A slot that is removed and added again has a new key, also when a kill kept
// the old one from being removed: it may be why the slot went.
func TestSlotKeyThatWasLeft(t *testing.T) {
	t.Parallel()
	for name, file := range map[string]func(home string) string{
		"whole":       place.KeyFile,
		"provisional": func(home string) string { return place.KeyFile(home) + ".new" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := daemontest.Start(t)
			addRecovery(t, d)
			seen, err := os.ReadFile(place.KeyFile(d.Home))
			must(t, err)
			_, err = d.Operator().RemoveSlot(t.Context(), &operatorv1.RemoveSlotRequest{Kind: "file"})
			must(t, err)
			must(t, os.WriteFile(file(d.Home), seen, 0o600))
			_, err = d.Operator().AddSlot(t.Context(), &operatorv1.AddSlotRequest{Kind: "file"})
			must(t, err)
			now, err := os.ReadFile(place.KeyFile(d.Home))
			must(t, err)
			if bytes.Equal(now, seen) {
				t.Error("the key that was left opens the vault")
			}
			if _, err := os.Lstat(place.KeyFile(d.Home) + ".new"); !os.IsNotExist(err) {
				t.Errorf("the provisional file: %v", err)
			}
			_, err = d.Operator().AddSlot(t.Context(), &operatorv1.AddSlotRequest{Kind: "file"})
			if err == nil {
				t.Error("a second one was added")
			}
			again, err := os.ReadFile(place.KeyFile(d.Home))
			must(t, err)
			equal(t, "the key after a refusal", string(again), string(now))
			d.Restart()
		})
	}
}
