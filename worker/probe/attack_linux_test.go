package probe

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// A number is a process only together with its start: in another pid namespace it
// is somebody else's.
func TestProcessIsKnownByItsStart(t *testing.T) {
	own := Process{PID: os.Getpid(), Start: StartOf(os.Getpid())}
	if own.Start == 0 {
		t.Fatal("this process has no start")
	}
	for _, test := range []struct {
		name  string
		other Process
		want  Status
	}{
		{"itself", own, NotHeld},
		{"another of its number", Process{own.PID, own.Start + 1}, Held},
		{"none", Process{1 << 30, own.Start}, Held},
	} {
		found := Escapes(t.Context(), Bait{Guarded: map[string]Process{"daemon": test.other}})
		at := slices.IndexFunc(found, func(p Probe) bool { return p.ID == "daemon.signal" })
		if at < 0 || found[at].Status != test.want {
			t.Errorf("%s: %+v, want %s", test.name, found, test.want)
		}
	}
}

// Without protection what lies there is reached, and nothing is left there or
// changed. What is missing is not reached.
func TestEscapesReachWhatIsThere(t *testing.T) {
	above, dir := filepath.Join(t.TempDir(), "above"), t.TempDir()
	home := filepath.Join(above, "home")
	if err := os.MkdirAll(filepath.Join(home, "run", "broker"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"secret.key", "vault.db", "config.yaml"} {
		if err := os.WriteFile(filepath.Join(home, name), []byte("content"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	found := Escapes(t.Context(), Bait{Home: home, Above: above, AboveID: IDOf(above), Dir: dir, File: filepath.Join(home, "missing")})
	for _, p := range found {
		want := NotHeld
		if p.ID == "home.log" || p.ID == "files" { // there is none
			want = Held
		}
		if p.Status != want || p.Tried == "" || p.Words == "" {
			t.Errorf("%+v, want %s", p, want)
		}
	}
	if len(found) < 11 {
		t.Errorf("only %d were tried", len(found))
	}
	for path, want := range map[string]int{dir: 0, filepath.Dir(above): 1, home: 4, filepath.Join(home, "run", "broker"): 0} {
		if left, err := os.ReadDir(path); err != nil || len(left) != want {
			t.Errorf("%s: %v %v", path, left, err)
		}
	}
}

// A directory of the same path that is not the one outside is not moved: a
// sandbox has its own.
func TestAnotherDirectoryIsNotMoved(t *testing.T) {
	above := filepath.Join(t.TempDir(), "above")
	if err := os.Mkdir(above, 0o700); err != nil {
		t.Fatal(err)
	}
	own := IDOf(above)
	for _, test := range []struct {
		name string
		id   FileID
		want Status
	}{
		{"itself", own, NotHeld},
		{"another", FileID{own.Device, own.Inode + 1}, Held},
		{"on another device", FileID{own.Device + 1, own.Inode}, Held},
	} {
		found := Escapes(t.Context(), Bait{Above: above, AboveID: test.id})
		if len(found) != 1 || found[0].ID != "home.parent" || found[0].Status != test.want {
			t.Errorf("%s: %+v, want %s", test.name, found, test.want)
		}
	}
	if IDOf(above) != own || IDOf(above+".moved") != (FileID{}) {
		t.Error("it is not where it was")
	}
}
