package vault

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Root and data keys, and all that is made from them, are nowhere in a process but in its secret memory while the vault is
// unlocked, and nowhere at all when it is locked.
func TestMemory(t *testing.T) {
	dir := t.TempDir()
	cfg := Config{File: filepath.Join(dir, "vault.db"), Keys: memoryFile(filepath.Join(dir, "key"))}
	v, err := Create(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command(self)
	child.Env = append(os.Environ(), MemoryDir+"="+dir)
	child.Stderr = os.Stderr
	stdin, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = child.Process.Kill()
		_ = child.Wait()
	}()
	lines := bufio.NewScanner(stdout)
	next := func(want string) string {
		t.Helper()
		if !lines.Scan() || !strings.HasPrefix(lines.Text(), want) {
			t.Fatalf("the child says %q instead of %q", lines.Text(), want)
		}
		return lines.Text()
	}
	resume := func() {
		if _, err := stdin.Write([]byte{1}); err != nil {
			t.Fatal(err)
		}
	}

	said := next("unlocked")
	needles := keysOf(t, dir)
	t.Run("unlocked", func(t *testing.T) {
		if !strings.HasSuffix(said, memorySecret) {
			t.Skipf("suite left out: secret memory: %s", said)
		}
		for _, name := range scan(t, child.Process.Pid, needles) {
			t.Errorf("the %s lies in readable memory", name)
		}
	})
	resume()
	next("planted")
	if found := scan(t, child.Process.Pid, map[string][]byte{"control": planted()}); len(found) == 0 {
		t.Error("the scan does not find what is there")
	}
	resume()
	next("locked")
	for _, name := range scan(t, child.Process.Pid, needles) {
		t.Errorf("locked: the %s is still there", name)
	}
	resume()
}

// keysOf opens a copy of the vault and returns everything that must stay secret.
func keysOf(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	file, err := os.ReadFile(filepath.Join(dir, "vault.db"))
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{File: filepath.Join(t.TempDir(), "vault.db"), Keys: memoryFile(filepath.Join(dir, "key"))}
	if err := os.WriteFile(cfg.File, file, 0o600); err != nil {
		t.Fatal(err)
	}
	v, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	k := v.keys
	// The state of a hash is its marker, eight words, and what fills up a block.
	words := func(state []byte) []byte { return state[4:36] }
	needles := map[string][]byte{
		"root key": k.root, "set key": k.ring.set, "publish key": k.ring.publish, "audit key's key": k.ring.auditSeal,
		"correlation key": k.ring.correlation, "backup key": k.ring.backup,
		"root state": words(k.rootPRF.inner), "outer root state": words(k.rootPRF.outer), "set state": words(k.set.inner),
	}
	for _, d := range k.ring.data {
		needles[fmt.Sprintf("data key %d", d.term)] = d.key
		needles[fmt.Sprintf("state of data key %d", d.term)] = words(k.data[d.term].inner)
	}
	for name := range needles {
		needles[name] = bytes.Clone(needles[name])
	}
	return needles
}

// scan returns the names of the needles that can be read in the memory of a process.
func scan(t *testing.T, pid int, needles map[string][]byte) (found []string) {
	t.Helper()
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		t.Fatal(err)
	}
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	read := 0
	for line := range strings.Lines(string(maps)) {
		var from, to uint64
		var mode string
		if _, err := fmt.Sscanf(line, "%x-%x %s", &from, &to, &mode); err != nil {
			t.Fatal(err)
		}
		// What cannot be written holds no keys; file mappings of the vault hold what is sealed.
		if !strings.HasPrefix(mode, "rw") {
			continue
		}
		const step, overlap = 4 << 20, 64
		buf := make([]byte, step+overlap)
		for at := from; at < to; at += step {
			n, _ := mem.ReadAt(buf[:min(step+overlap, to-at)], int64(at))
			read += n
			for name, needle := range needles {
				if i := bytes.Index(buf[:n], needle); i >= 0 {
					found = append(found, fmt.Sprintf("%s (at %x of %s)", name, at+uint64(i), strings.TrimSpace(line)))
				}
			}
		}
	}
	if read < 1<<20 {
		t.Fatalf("only %d bytes could be read", read)
	}
	return found
}
