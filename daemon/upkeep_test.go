package daemon

import (
	"log/slog"
	"testing"
	"time"

	"subjectbroker/vault/keysource"
)

// Why upkeep stood still is forgotten when it went through, though nothing was
// left to rewrap.
func TestUpkeepThatWentThrough(t *testing.T) {
	config := Config{Home: t.TempDir(), Logger: slog.New(slog.DiscardHandler), KeySource: keysource.KindFile}
	d := newDaemon(config, fileConfig{})
	t.Cleanup(d.close)
	if err := d.openVault(t.Context(), config, fileConfig{}); err != nil {
		t.Fatal(err)
	}
	d.upkeep.stands("a purge had no space")
	d.upkeep.wake()
	ended := make(chan struct{})
	go func() { defer close(ended); d.keepUp() }()
	cause := "unknown"
	for deadline := time.Now().Add(20 * time.Second); cause != "" && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		_, _, cause = d.upkeep.progress()
	}
	if cause != "" {
		t.Errorf("it still stands because %s", cause)
	}
	d.endLife()
	<-ended
}
