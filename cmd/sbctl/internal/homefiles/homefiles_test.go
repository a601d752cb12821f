package homefiles

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// ours and theirs are what a home may hold.
var (
	ours = []string{
		"vault.db", "vault.db.new", "vault.db.schema1", "vault.db.compact", "vault.db.part", "vault.db.before-20260131T120000Z", "vault.db.before-20260131T120000Z.part",
		"secret.key", "secret.key.new", "audit.key",
		"audit.key.new", "config.yaml", "lock", "restoring/vault.db", "restoring/vault.db.schema1", "restoring/audit/00000001.jsonl",
		"audit/00000001.jsonl", "audit/00000002.pruned", "audit/00000003.pruning", "audit/00000003.pruned.tmp", "audit/00000004.jsonl.torn-512",
		"audit/00000004.torn-512.1", "audit/selftest.tmp", "audit/aside-20260131T120000Z/00000001.jsonl",
		"audit/aside-20260131T120000Z.part/00000002.jsonl", "restored/audit/00000001.jsonl", "scratch-123/vault.db", "scratch-123/audit/x",
	}
	theirs = []string{
		"notes.txt", "vault.db~", "Vault.db", "vault.dbx", "secret.keys", "audit/notes", "audit/1.jsonl", "audit/00000001.jsonl~",
		"audit/aside-mine/00000001.jsonl", "audit/selftest.tmp.x", "restored/notes", "restoring/notes", "run/other", "run/broker/notes", "mine/vault.db",
		"lock.old", "config.yaml.bak", "run/broker/broker.sock", // a file where a socket belongs
	}
)

func populate(t *testing.T, names []string) string {
	t.Helper()
	home := t.TempDir()
	for _, name := range names {
		path := filepath.Join(home, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return home
}

func TestKnown(t *testing.T) {
	home := populate(t, append(slices.Clone(ours), theirs...))
	files, err := Scan(home)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range files {
		if f.Known && !f.Dir {
			got = append(got, f.Name)
		}
	}
	want := slices.Clone(ours)
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("known (-want +got):\n%s", diff)
	}
	if _, err := Remove(home, files); err != nil {
		t.Error(err)
	}
	for _, name := range ours {
		if _, err := os.Lstat(filepath.Join(home, name)); !os.IsNotExist(err) {
			t.Errorf("%s is still there: %v", name, err)
		}
	}
	for _, name := range theirs {
		if text, err := os.ReadFile(filepath.Join(home, name)); err != nil || string(text) != name {
			t.Errorf("%s was touched: %q, %v", name, text, err)
		}
	}
}

// A home that holds nothing else goes with what is in it.
func TestHomeGoes(t *testing.T) {
	home := filepath.Join(t.TempDir(), "h")
	if err := os.MkdirAll(filepath.Join(home, "run", "operator"), 0o700); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", filepath.Join(home, "run", "operator", "operator.sock"))
	if err != nil {
		t.Fatal(err)
	}
	listener.(*net.UnixListener).SetUnlinkOnClose(false)
	_ = listener.Close()
	if err := os.WriteFile(filepath.Join(home, "audit.key"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	files, err := Scan(home)
	if err != nil {
		t.Fatal(err)
	}
	gone, err := Remove(home, files)
	if diff := cmp.Diff([]string{".", "audit.key", "run", "run/operator", "run/operator/operator.sock"}, gone); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if files, err := Scan(home); err != nil || files != nil {
		t.Errorf("a home that is not there: %v, %v", files, err)
	}
}

// Links are neither followed nor ours, wherever they lead.
func TestLinks(t *testing.T) {
	outside := populate(t, []string{"vault.db", "00000001.jsonl"})
	home := populate(t, []string{"audit.key", "lock"})
	for from, to := range map[string]string{"vault.db": "vault.db", "audit": ".", "scratch-1": "."} {
		if err := os.Symlink(filepath.Join(outside, to), filepath.Join(home, from)); err != nil {
			t.Fatal(err)
		}
	}
	files, err := Scan(home)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Remove(home, files); err != nil {
		t.Error(err)
	}
	for _, path := range []string{filepath.Join(outside, "vault.db"), filepath.Join(outside, "00000001.jsonl"), filepath.Join(home, "audit")} {
		if _, err := os.Stat(path); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
	if _, err := os.Lstat(filepath.Join(home, "lock")); !os.IsNotExist(err) {
		t.Errorf("control: lock is still there: %v", err)
	}
}

// A directory that is no home loses nothing, whatever the names in it.
func TestNoHome(t *testing.T) {
	home := populate(t, []string{"config.yaml", "lock", "audit/notes", "scratch-1/x"})
	files, err := Scan(home)
	if err != nil {
		t.Fatal(err)
	}
	if gone, err := Remove(home, files); gone != nil || err != nil {
		t.Errorf("removed %v: %v", gone, err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(home, link); err != nil {
		t.Fatal(err)
	}
	if _, err := Scan(link); !errors.Is(err, ErrNoDir) {
		t.Errorf("a link to a home: %v", err)
	}
}

// The evidence goes last, so that an interrupted removal can be repeated.
func TestEvidenceGoesLast(t *testing.T) {
	home := populate(t, []string{"vault.db", "config.yaml", "lock", "audit.key", "audit/00000001.jsonl"})
	files, err := Scan(home)
	if err != nil {
		t.Fatal(err)
	}
	for n := range files {
		left := files[:n] // as Remove leaves them when it is stopped
		evident := slices.ContainsFunc(left, func(f File) bool { return evidence.MatchString(f.Name) })
		plain := slices.ContainsFunc(left, func(f File) bool { return !f.Dir && !evidence.MatchString(f.Name) })
		if plain && !evident {
			t.Errorf("left without evidence: %v", left)
		}
	}
}
