//go:build linux

package faults

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"subjectbroker/daemon/daemontest"
	"subjectbroker/proto/place"
	"subjectbroker/proto/recovery"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// P12: sbd recover and sbd restore die before each of their steps, every other
// time with their disk. Done again they get through, and then sbd serves what had been
// answered before, as far as it was not said to be lost.
func TestRepairsAtEachStep(t *testing.T) {
	t.Parallel()
	s := keepScore(t, "recover and restore, dying before each step")
	for _, c := range []struct {
		name   string
		damage func(t *testing.T, home string, old map[string][]byte)
	}{
		{"an older vault", func(t *testing.T, _ string, old map[string][]byte) { daemontest.Restore(t, old) }},
		{"no log", func(t *testing.T, home string, _ map[string][]byte) { must(t, os.RemoveAll(place.AuditDir(home))) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, s, nil, daemontest.Options{Spoiled: true})
			w.populate()
			w.Stop()
			old := daemontest.Copy(t, w.Home, "vault.db")
			w.Start()
			w.Put("later", hello)
			w.Stop()
			c.damage(t, w.Home, old)
			repair(t, s, func(d *disk) { d.run("cp", "-a", w.Home, d.home()) }, nil, "recover", "--yes")
		})
	}
	t.Run("restore", func(t *testing.T) {
		w := newWorld(t, s, nil, daemontest.Options{})
		w.populate()
		code := recovery.New()
		must(t, w.addSlot(code))
		file := filepath.Join(t.TempDir(), "backup")
		w.backup(file)
		repair(t, s, func(*disk) {}, []byte(code.Text()+"\n"), "restore", file, "--slot", "recovery", "--recovery-code-fd", "3", "--key-source", "file")
	})
}

// backup writes a backup to a file.
func (w *world) backup(path string) {
	w.t.Helper()
	stream, err := w.Operator().Backup(w.t.Context(), &operatorv1.BackupRequest{Name: path})
	must(w.t, err)
	var all []byte
	for {
		piece, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		must(w.t, err)
		all = append(all, piece.GetChunk()...)
	}
	must(w.t, os.WriteFile(path, all, 0o600))
}

// repair lets an offline verb of sbd die at its first step, its second, and so
// on, each time in a home that prepare makes on a disk of its own, and does it
// again until it is through.
func repair(t *testing.T, s *score, prepare func(*disk), secret []byte, verb string, args ...string) {
	t.Helper()
	for n, through := 1, false; !through && !t.Failed(); n++ {
		t.Run("", func(t *testing.T) {
			d := newDisk(t, 16)
			prepare(d)
			d.run("sync", "-f", d.dir)
			command := func(verb string, args ...string) *exec.Cmd {
				cmd := daemontest.Command(t, d.home(), append([]string{verb, "--home", d.home()}, args...)...)
				if secret != nil {
					reader, writer, err := os.Pipe()
					must(t, err)
					_, err = writer.Write(secret)
					must(t, errors.Join(err, writer.Close()))
					t.Cleanup(func() { _ = reader.Close() })
					cmd.ExtraFiles = []*os.File{reader}
				}
				return cmd
			}
			dying := command(verb, args...)
			var said daemontest.Output
			dying.Stdout, dying.Stderr = &said, &said
			stepper := launchUnder(t, dying, n)
			_ = dying.Wait()
			if !stepper.end() {
				through = true
				equal(t, "exit code: "+said.String(), dying.ProcessState.ExitCode(), wire.ExitDone)
				t.Logf("%s has %d steps: %s", verb, n-1, stepper.story())
			} else if s.add(kills, 1); n%2 == 0 {
				s.add(cuts, 1)
				d.cut()
				d.remount()
			}
			if !through {
				code, stdout, stderr := daemontest.Exit(t, command(verb, args...))
				// The last step of restore may have been made; then there is a home.
				if code != wire.ExitDone && (verb != "restore" || !strings.Contains(stderr, "empty home")) {
					t.Errorf("at step %d (%s): done again: exit %d: %s%s", n, stepper.story(), code, stdout, stderr)
				}
			}
			if verb == "restore" {
				code, stdout, stderr := daemontest.Exit(t, command("recover", "--yes"))
				equal(t, "accepting: exit code: "+stdout+stderr, code, wire.ExitDone)
			}
			w := newWorld(t, s, d, daemontest.Options{})
			if got := w.access("worker", "note"); got != hello {
				s.lost(t, "%s at step %d: the note reads %q", verb, n, got)
			}
			w.Put("note", "again")
			s.add(answers, 1)
		})
	}
}
