package launch

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What an agent's tools run finds no socket of the broker, wherever it lies.
func TestNoBroker(t *testing.T) {
	asEach(t, func(t *testing.T, w *world) {
		moved := filepath.Join(w.base, "other", "sockets")
		for _, dir := range []string{moved, filepath.Join(moved, "broker"), filepath.Join(moved, "operator")} {
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.Lchown(dir, w.uid, w.uid); err != nil {
				t.Fatal(err)
			}
		}
		w.listen(filepath.Join(moved, "broker", "broker.sock"))
		for _, shape := range shapes {
			for socketDir, socket := range map[string]string{"": filepath.Join(w.broker, "run", "broker", "broker.sock"), moved: filepath.Join(moved, "broker", "broker.sock")} {
				for _, hidden := range []bool{false, true} {
					cfg := w.config()
					shape.change(&cfg)
					cfg.SocketDir, cfg.NoBroker = socketDir, hidden
					said, code := output(t, w.launch(cfg, "sh", "-c", "echo came here; test -S "+socket))
					if !strings.Contains(said, "came here") || (code != 0) != hidden {
						t.Errorf("%s, hidden %v, %s: %d %s", shape.name, hidden, socket, code, said)
					}
				}
			}
		}
	})
}
