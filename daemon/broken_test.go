package daemon

import (
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"subjectbroker/proto/place"
)

// ServeBroken serves both sockets of a daemon that has no vault and no log, so
// that whatever looks at them panics. It returns the directory of the sockets.
func ServeBroken(t *testing.T, logger *slog.Logger) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "sb")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	d := newDaemon(Config{Home: dir, Logger: logger}, fileConfig{})
	var tasks sync.WaitGroup
	t.Cleanup(tasks.Wait)
	for path, s := range map[string]*server{place.BrokerSocket(dir): d.newBrokerServer(), place.OperatorSocket(dir): d.newOperatorServer()} {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		listener, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		tasks.Go(func() { s.run(listener, make(chan error, 1)) })
		t.Cleanup(s.stop)
	}
	t.Cleanup(d.endLife)
	return dir
}
