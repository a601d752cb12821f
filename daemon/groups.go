package daemon

import (
	"bufio"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

// Files that say which uid belongs to which group. Other sources of accounts are
// not asked: sbd is static, and a group that guards a socket should not come
// from the network.
const (
	passwdFile = "/etc/passwd"
	groupFile  = "/etc/group"
)

// accounts are the users and groups of the machine. The kernel knows numbers
// only, so groups that share a number are one.
type accounts struct {
	names   map[uint32]string // first name of each uid
	uids    map[string]uint32
	primary map[uint32][]uint32 // uids whose primary group it is, by gid
	groups  []group
}

type group struct {
	name    string
	gid     uint32
	members []string
}

// readAccounts reads the two files. Lines that are malformed, or belong to
// another source of accounts, are skipped.
func readAccounts(passwd, groups string) (*accounts, error) {
	a := &accounts{names: map[uint32]string{}, uids: map[string]uint32{}, primary: map[uint32][]uint32{}}
	err := eachRecord(passwd, 7, func(fields []string) {
		uid, uidOK := parseID(fields[2])
		gid, gidOK := parseID(fields[3])
		if !uidOK || !gidOK {
			return
		}
		if _, named := a.names[uid]; !named {
			a.names[uid] = fields[0]
		}
		if _, known := a.uids[fields[0]]; !known {
			a.uids[fields[0]] = uid
		}
		a.primary[gid] = append(a.primary[gid], uid)
	})
	if err != nil {
		return nil, err
	}
	err = eachRecord(groups, 4, func(fields []string) {
		gid, ok := parseID(fields[2])
		if !ok {
			return
		}
		g := group{name: fields[0], gid: gid}
		for name := range strings.SplitSeq(fields[3], ",") {
			if name = strings.TrimSpace(name); name != "" {
				g.members = append(g.members, name)
			}
		}
		a.groups = append(a.groups, g)
	})
	return a, err
}

// eachRecord calls fn with the fields of every line that has that many.
func eachRecord(path string, fields int, fn func([]string)) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		parts := strings.Split(lines.Text(), ":")
		if len(parts) == fields && parts[0] != "" && !strings.HasPrefix(parts[0], "#") && !strings.HasPrefix(parts[0], "+") && !strings.HasPrefix(parts[0], "-") {
			fn(parts)
		}
	}
	return lines.Err()
}

func parseID(text string) (uint32, bool) {
	id, err := strconv.ParseUint(text, 10, 32)
	return uint32(id), err == nil
}

// members are the uids that have a gid, rising. listed says that the group names
// them, and does not only come with them; strangers are names of nobody.
func (a *accounts) members(gid uint32) (uids []uint32, listed bool, strangers []string) {
	uids = slices.Clone(a.primary[gid])
	for _, g := range a.groups {
		if g.gid != gid {
			continue
		}
		for _, name := range g.members {
			listed = true
			if uid, known := a.uids[name]; known {
				uids = append(uids, uid)
			} else {
				strangers = append(strangers, name)
			}
		}
	}
	slices.Sort(uids)
	return slices.Compact(uids), listed, strangers
}

// listed are the uids that have a gid beside their own.
func (a *accounts) listed(gid uint32) []uint32 {
	uids, _, _ := a.members(gid)
	return slices.DeleteFunc(uids, func(uid uint32) bool { return slices.Contains(a.primary[gid], uid) })
}

// groupOf finds the group whose members are exactly uids, among those that usable
// says sbd can give a socket to; owner may be one of them or not, because a
// socket's owner needs no group. A group that names its members goes before one
// that only is somebody's own.
func (a *accounts) groupOf(uids []uint32, owner uint32, usable func(gid uint32) bool) (gid uint32, ok bool) {
	want := without(uids, owner)
	best := 0
	for _, g := range a.groups {
		if g.gid == 0 || !usable(g.gid) {
			continue
		}
		members, listed, strangers := a.members(g.gid)
		if len(strangers) > 0 || !slices.Equal(without(members, owner), want) {
			continue
		}
		rank := 1
		if listed {
			rank = 2
		}
		if rank > best {
			best, gid = rank, g.gid
		}
	}
	return gid, best > 0
}

// without is a sorted copy of uids that lacks one of them.
func without(uids []uint32, one uint32) []uint32 {
	rest := slices.DeleteFunc(slices.Clone(uids), func(uid uint32) bool { return uid == one })
	slices.Sort(rest)
	return slices.Compact(rest)
}

// recipe says which group is missing and how to make it. here is the group that
// the socket's directory has, and named the name that such a group has in the
// documentation.
func (a *accounts) recipe(uids []uint32, owner, here uint32, named string) string {
	want := without(uids, owner)
	var names, nameless []string
	for _, uid := range want {
		if name, ok := a.names[uid]; ok {
			names = append(names, name)
		} else {
			nameless = append(nameless, strconv.FormatUint(uint64(uid), 10))
		}
	}
	if len(nameless) > 0 {
		return "no account has uid " + strings.Join(nameless, ", ") + ": make it first, for example useradd --uid " + nameless[0] + " NAME"
	}
	if name, ok := a.names[owner]; ok && owner != 0 {
		names = append(names, name) // or it could not give the group a socket
	}
	if gid, ok := a.groupOf(uids, owner, func(gid uint32) bool { return slices.Contains(a.listed(gid), owner) }); ok {
		return fmt.Sprintf("sbd was started before it was a member of group %d: start it again", gid)
	}
	what := fmt.Sprintf("no group of sbd's has exactly uid %s as members", joinUIDs(want))
	if mended := a.mended(here, named); mended != "" {
		return what + ": gpasswd --members " + strings.Join(names, ",") + " " + mended
	}
	return what + ": groupadd --users " + strings.Join(names, ",") + " " + named + ", then start sbd again"
}

// mended is the group that is there already and only has other members: the
// directory's, unless that is root's or somebody's own, or the documented one.
func (a *accounts) mended(here uint32, named string) string {
	for _, g := range a.groups {
		if g.gid == here && here != 0 && len(a.primary[here]) == 0 {
			return g.name
		}
	}
	for _, g := range a.groups {
		if g.name == named {
			return named
		}
	}
	return ""
}

func joinUIDs(uids []uint32) string {
	words := make([]string, 0, len(uids))
	for _, uid := range uids {
		words = append(words, strconv.FormatUint(uint64(uid), 10))
	}
	return strings.Join(words, ", ")
}
