//go:build linux

package faults

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"subjectbroker/daemon/daemontest"
	"subjectbroker/proto/place"
	"subjectbroker/proto/wire"
	"subjectbroker/worker/client"
)

// P7: twenty start at once, in a fresh home and then in that of the one that was
// just killed. One serves, the others say that the home is busy.
func TestTwentyAtOnce(t *testing.T) {
	t.Parallel()
	s := keepScore(t, "twenty daemons at once")
	home := daemontest.NewHome(t)
	const rivals = 20
	for range rounds(t, 3) {
		codes := make(chan int, rivals)
		pids := map[int]bool{}
		for range rivals {
			cmd := daemontest.Command(t, home, "--home", home, "--key-source", "file", "--log", "json")
			must(t, cmd.Start())
			pids[cmd.Process.Pid] = true
			go func() {
				_ = cmd.Wait()
				codes <- cmd.ProcessState.ExitCode()
			}()
		}
		s.add(starts, rivals)
		for range rivals - 1 {
			equal(t, "exit code of all but one", <-codes, wire.ExitBusy)
		}
		lock, err := os.ReadFile(place.LockFile(home))
		must(t, err)
		pid, err := strconv.Atoi(strings.TrimSpace(string(lock)))
		must(t, err)
		if !pids[pid] {
			t.Fatalf("the lock names process %d, which is none of ours", pid)
		}
		must(t, syscall.Kill(pid, syscall.SIGKILL))
		s.add(kills, 1)
		<-codes
	}
	w := newWorld(t, s, nil, daemontest.Options{Home: home})
	w.populate()
	equal(t, "afterwards", w.access("worker", "note"), hello)
}

// P7, P25: files are removed, replaced or changed under a running daemon while
// many read and one writes. It stops, or refuses; it never goes on in a file
// that nobody will find, and a second daemon never serves beside it.
func TestReplacedFiles(t *testing.T) {
	t.Parallel()
	s := keepScore(t, "files replaced under a running daemon while many read and one writes")
	copyOver := func(path string) error { // another file with the same content
		raw, err := os.ReadFile(path)
		return errors.Join(err, os.Rename(path, path+".away"), os.WriteFile(path, raw, 0o600))
	}
	back := func(path string) error { return os.Rename(path+".away", path) }
	away := func(path string) error { return os.Rename(path, path+".away") }
	for _, c := range []struct {
		file        string
		how         string
		spoil, mend func(path string) error
		stops       bool // else it refuses until it is mended
	}{
		{"vault.db", "replaced", copyOver, back, true},
		{"vault.db", "moved away", away, back, true},
		{"lock", "replaced", copyOver, back, true},
		{"lock", "removed", os.Remove, nil, true},
		{"audit/00000001.jsonl", "replaced", copyOver, back, false},
		{"audit/00000001.jsonl", "moved away", away, back, false},
		{"audit/00000001.jsonl", "made a link", func(p string) error { return errors.Join(away(p), os.Symlink(p+".away", p)) }, back, false},
		{"audit/00000001.jsonl", "made a FIFO", func(p string) error { return errors.Join(away(p), syscall.Mkfifo(p, 0o600)) }, back, false},
		{"audit", "moved away", away, back, false},
	} {
		t.Run(c.file+" "+c.how, func(t *testing.T) {
			w := newWorld(t, s, nil, daemontest.Options{Spoiled: true})
			crowd := gather(w)
			crowd.begin(4)
			path := filepath.Join(w.Home, c.file)
			must(t, c.spoil(path))
			s.add(changed, 1)
			if c.stops {
				code, said := w.Wait()
				crowd.end()
				if code == wire.ExitDone {
					t.Errorf("exit %d: %s", code, said)
				}
				if c.mend != nil {
					must(t, c.mend(path))
				}
				w.Start()
			} else {
				w.restored(func() error { // until it has noticed
					if w.Status().GetAuditState() == "failing" {
						return nil
					}
					return errors.New("the log counts as good")
				})
				crowd.turn() // what was on its way is not of this time
				reads, _ := crowd.sofar()
				content := w.access("crowd", "note")
				if content == hello {
					s.lost(t, "content was released while the log is %s", c.how)
				}
				crowd.end()
				if after, _ := crowd.sofar(); after != reads {
					s.lost(t, "%d contents were released while the log is %s", after-reads, c.how)
				}
				must(t, c.mend(path))
				w.serves()
				w.crash(false)
			}
			crowd.audit()
			crowd.close()
		})
	}
}

// audit.key and the sockets are changed under a running daemon.
func TestReplacedKeyAndSockets(t *testing.T) {
	t.Parallel()
	s := keepScore(t, "signing key and sockets replaced under a running daemon")
	w := newWorld(t, s, nil, daemontest.Options{})
	c := gather(w)

	// A rotation needs the key's file: without it there is none, and what is open
	// goes on being signed.
	key := place.AuditKey(w.Home)
	must(t, os.Rename(key, key+".away"))
	s.add(changed, 1)
	c.begin(3)
	w.Signal(syscall.SIGHUP)
	equal(t, "with the key's file away", w.access("crowd", "note") != "", true)
	c.end()
	must(t, os.Rename(key+".away", key))
	w.crash(false)
	c.audit()

	// Somebody else at the socket's path: no client talks to him, and whoever is
	// connected stays served.
	run := w.Open("crowd")
	socket := place.BrokerSocket(w.SocketDir)
	must(t, os.Remove(socket))
	liar, err := net.Listen("unix", socket)
	must(t, err)
	must(t, os.Chmod(socket, 0o600))
	s.add(changed, 1)
	_, reason := run.Read("note")
	equal(t, "who is connected", reason, wire.Allowed)
	_, err = client.Broker(t.Context(), w.Places)
	if reason := daemontest.Reason(err); reason == wire.Allowed {
		s.lost(t, "a client took a stranger for the daemon")
	}
	shim := exec.Command(program(t, "sb-mcp"), "check", "--subject", "crowd", "--home", w.Home)
	shim.Env = []string{"HOME=" + w.Home}
	code, _, said := daemontest.Exit(t, shim)
	if code == wire.ExitDone {
		s.lost(t, "the shim took a stranger for the daemon: %s", said)
	}
	must(t, liar.Close())
	w.crash(false)
	equal(t, "afterwards", w.access("crowd", "note"), hello)
	c.audit()
	c.close()
}
