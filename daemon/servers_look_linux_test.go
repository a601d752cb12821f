package daemon_test

import (
	"os"
	"path/filepath"
	"testing"

	"subjectbroker/daemon/daemontest"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// What a look needs is judged again after it has waited for the server: a tier that
// was raised meanwhile counts.
func TestLookIsJudgedAfterTheWait(t *testing.T) {
	for name, raise := range map[string]bool{"a tier is raised meanwhile": true, "nothing happens": false} {
		t.Run(name, func(t *testing.T) {
			d := hosting(t)
			d.AddSubject("worker")
			d.Authenticate()
			dir := t.TempDir()
			note, file := filepath.Join(dir, "note"), filepath.Join(dir, "go")
			addServer(t, d, "late", &operatorv1.Server{Command: []string{"note=" + note, "await=" + file}})
			other := anotherOperator(t, d) // without a session
			looked := make(chan error, 1)
			go func() {
				_, err := other.GetServer(t.Context(), &operatorv1.GetServerRequest{Name: "late", Refresh: true})
				looked <- err
			}()
			eventually(t, "it was started", func() bool { return len(starts(t, note)) == 1 })
			if raise {
				setTier(d, "worker", "bound")
			}
			must(t, os.WriteFile(file, nil, 0o600))
			want := wire.Allowed
			if raise {
				want = wire.AccessDenied
			}
			equal(t, "the look", daemontest.Reason(<-looked), want)
		})
	}
}
