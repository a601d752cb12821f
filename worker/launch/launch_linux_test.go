package launch

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if handled, code := Main(os.Args); handled {
		os.Exit(code)
	}
	os.Exit(m.Run())
}

func TestSmoke(t *testing.T) {
	home, _ := os.MkdirTemp("", "sb")
	defer os.RemoveAll(home)
	os.MkdirAll(filepath.Join(home, "run/broker"), 0o700)
	os.MkdirAll(filepath.Join(home, "run/operator"), 0o700)
	os.WriteFile(filepath.Join(home, "secret.key"), []byte("x"), 0o600)
	for _, sandbox := range []bool{false, true} {
		out, _ := os.CreateTemp("", "out")
		defer os.Remove(out.Name())
		in, _ := os.Open("/dev/null")
		begin := time.Now()
		tree, err := Start(context.Background(), Config{Home: home, Sandbox: sandbox, Workspace: t.TempDir(), NoNet: sandbox, Stdin: in, Stdout: out, Stderr: out})
		if err != nil {
			t.Fatal(err)
		}
		t.Log("started", time.Since(begin))
		if err := tree.Go(Command{Argv: []string{"sh", "-c", "id; ls -la / " + home + " /run /dev; cat /proc/self/mountinfo /run/subject-broker/launch; ps ax; ip a; umount " + home + "; unshare -Urm umount " + home + "; exit 7"}, Env: []string{"PATH=/usr/bin:/bin"}}); err != nil {
			t.Fatal(err)
		}
		code, err := tree.Wait()
		t.Log(code, err, time.Since(begin))
		content, _ := os.ReadFile(out.Name())
		t.Log(string(bytes.TrimSpace(content)))
	}
}
