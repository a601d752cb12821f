package launch

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
)

// What was made to be covered is gone with the last tree that covers it, unless
// somebody has used it; what was there before stays.
func TestGroundsAreTakenBack(t *testing.T) {
	asEach(t, func(t *testing.T, w *world) {
		w.env = append(w.env, "TMUX_TMPDIR="+w.base)
		os.Lchown(w.base, w.uid, w.uid)
		tmux, agent := filepath.Join(w.base, "tmux-"+strconv.Itoa(w.uid)), filepath.Join(w.home, ".ssh", "agent")
		mkdir := func(path string) {
			t.Helper()
			if err := os.MkdirAll(path, 0o700); err != nil {
				t.Fatal(err)
			}
			os.Lchown(path, w.uid, w.uid)
		}
		mkdir(filepath.Dir(agent))
		there := func(path string) bool {
			_, err := os.Lstat(path)
			return err == nil
		}
		begin := func() (end func()) {
			t.Helper()
			cmd := w.launch(w.config(), "sh", "-c", "echo ready; read -r x; test ! -e '"+tmux+"/in'")
			in, out := pipes(t, cmd)
			if line, err := out.ReadString('\n'); line != "ready\n" {
				t.Fatalf("%q %v", line, err)
			}
			return func() {
				t.Helper()
				in.Close()
				if err := cmd.Wait(); err != nil {
					t.Error(err)
				}
			}
		}
		first := begin()
		second := begin()
		if !there(tmux) || !there(agent) {
			t.Error("nothing was made to be covered")
		}
		first()
		if !there(tmux) || !there(agent) {
			t.Error("taken away from a tree that covers it")
		}
		if err := os.WriteFile(filepath.Join(tmux, "in"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		second() // and did not see what was made
		if !there(filepath.Join(tmux, "in")) || there(agent) {
			t.Errorf("afterwards: used %v, unused %v", there(tmux), there(agent))
		}
		os.Remove(filepath.Join(tmux, "in"))
		mkdir(agent)
		begin()()
		if !there(tmux) || !there(agent) {
			t.Error("what is a program's own was taken away")
		}
		os.Remove(tmux)
		os.Remove(agent)
		killed := w.launch(w.config(), "sh", "-c", "echo ready; read -r x")
		_, out := pipes(t, killed)
		out.ReadString('\n')
		killed.Process.Kill()
		killed.Wait()
		if !there(tmux) {
			t.Error("the control does not work: who is killed takes nothing back")
		}
		begin()()
		if there(tmux) || there(agent) {
			t.Error("what a killed one left is still there")
		}
	})
}

// pipes starts cmd and returns the ends of its input and output.
func pipes(t *testing.T, cmd *exec.Cmd) (io.Closer, *bufio.Reader) {
	t.Helper()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return in, bufio.NewReader(out)
}
