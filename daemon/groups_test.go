package daemon

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func accountsOf(t *testing.T, passwd, groups string) *accounts {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"passwd": passwd, "group": groups} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	a, err := readAccounts(filepath.Join(dir, "passwd"), filepath.Join(dir, "group"))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

const somePasswd = `root:x:0:0::/root:/bin/sh
sb:x:900:900::/:/bin/false
alice:x:1000:1000::/:/bin/sh
worker:x:1001:1001::/:/bin/sh
other:x:1002:100::/:/bin/sh
malformed:x:many:1::/:/bin/sh
+nis
`

// Contract §2: one group of exactly these uids, however it comes by its members.
func TestGroupOfExactlyTheseUIDs(t *testing.T) {
	for name, tc := range map[string]struct {
		groups string
		uids   []uint32
		want   uint32 // 0: there is none
	}{
		"of two":                          {"g:x:50:worker,other\n", []uint32{1001, 1002}, 50},
		"in another order":                {"g:x:50:other,worker\n", []uint32{1001, 1002}, 50},
		"with the daemon's account":       {"g:x:50:worker,sb\n", []uint32{1001}, 50},
		"named twice":                     {"g:x:50:worker,worker\n", []uint32{1001}, 50},
		"one too few":                     {"g:x:50:worker\n", []uint32{1001, 1002}, 0},
		"one too many":                    {"g:x:50:worker,alice\n", []uint32{1001}, 0},
		"a name of nobody":                {"g:x:50:worker,ghost\n", []uint32{1001}, 0},
		"a primary group":                 {"users:x:100:\n", []uint32{1002}, 100},
		"a primary group with another":    {"users:x:100:worker\n", []uint32{1002}, 0},
		"members and primary together":    {"users:x:100:worker\n", []uint32{1001, 1002}, 100},
		"listed goes before primary":      {"worker:x:1001:\ng:x:50:worker\n", []uint32{1001}, 50},
		"two names of one number":         {"g:x:50:worker\nh:x:50:alice\n", []uint32{1001}, 0},
		"root's group":                    {"root:x:0:worker\n", []uint32{1001}, 0},
		"an empty one":                    {"g:x:50:\n", []uint32{1001}, 0},
		"lines that are none":             {"# g:x:50:worker\ng:x:fifty:worker\nh:x:51\n+:::\n", []uint32{1001}, 0},
		"one that sbd is not in":          {"g:x:60:worker\n", []uint32{1001}, 0},
		"an account's own":                {"other:x:1002:other\ng:x:50:other,worker\n", []uint32{1002}, 0},
		"another beside it":               {"f:x:60:worker\ng:x:50:worker\n", []uint32{1001}, 50},
		"its own number is nobody's name": {"g:x:50:1001\n", []uint32{1001}, 0},
	} {
		// These two are those that sbd is not in.
		gid, ok := accountsOf(t, somePasswd, tc.groups).groupOf(tc.uids, 900, func(gid uint32) bool { return gid != 60 && gid != 1002 })
		if ok != (tc.want != 0) || gid != tc.want {
			t.Errorf("%s: group %d (%v), want %d", name, gid, ok, tc.want)
		}
	}
}

func TestRecipes(t *testing.T) {
	a := accountsOf(t, somePasswd, "sb-subjects:x:50:alice\nagents:x:51:alice\nnew:x:52:other,sb\nsb:x:900:\n")
	for name, tc := range map[string]struct {
		uids  []uint32
		here  uint32 // the group of the directory
		named string
		want  string
	}{
		"a new group":                {[]uint32{1002, 1001}, 900, "sb-operators", "no group of sbd's has exactly uid 1001, 1002 as members: groupadd --users worker,other,sb sb-operators, then start sbd again"},
		"one that is there":          {[]uint32{1001}, 900, "sb-subjects", "no group of sbd's has exactly uid 1001 as members: gpasswd --members worker,sb sb-subjects"},
		"one of another name":        {[]uint32{1001}, 51, "sb-subjects", "gpasswd --members worker,sb agents"},
		"root's own":                 {[]uint32{1001}, 0, "sb-operators", "groupadd --users worker,sb sb-operators"},
		"with the daemon":            {[]uint32{900, 1001}, 50, "sb-subjects", "gpasswd --members worker,sb sb-subjects"},
		"one that sbd is not yet in": {[]uint32{1002}, 50, "sb-subjects", "sbd was started before it was a member of group 52: start it again"},
		"a uid without account":      {[]uint32{1001, 4242}, 50, "sb-subjects", "no account has uid 4242: make it first, for example useradd --uid 4242 NAME"},
	} {
		if got := a.recipe(tc.uids, 900, tc.here, tc.named); !strings.Contains(got, tc.want) {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
	if _, err := readAccounts(filepath.Join(t.TempDir(), "absent"), "/dev/null"); err == nil {
		t.Error("accounts are read from where there are none")
	}
	if members, _, _ := a.members(100); !slices.Equal(members, []uint32{1002}) {
		t.Errorf("members by primary group: %v", members)
	}
}
