package grants

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestCheckTool(t *testing.T) {
	long := strings.Repeat("x", maxName)
	for _, name := range []string{
		"github/create_issue", "a/b", "a/b/c", "a.b-c_d/E", "a/.hidden", "a/b:c", long + "/" + long[1:],
		"read_resource", "list_resources", "explain_decision", "capability_report",
	} {
		if err := CheckTool(name); err != nil {
			t.Errorf("CheckTool(%q): %v", name, err)
		}
	}
	for _, name := range []string{
		"", "/", "a/", "/b", "create_issue", "read_resource ", "Read_resource", "a b/c", "a/b c", "a/*", "-a/b", "a:b/c",
		long + "x/b", long + "/" + long, "a/b\n", "a/\u00e9",
	} {
		if err := CheckTool(name); err == nil {
			t.Errorf("CheckTool(%q) accepts it", name)
		}
	}
}

func TestApprovals(t *testing.T) {
	for _, a := range []Approval{ApprovalAuto, ApprovalAlways, ApprovalNever} {
		if got, err := ParseApproval(a.String()); err != nil || got != a {
			t.Errorf("ParseApproval(%q) = %v, %v", a, got, err)
		}
	}
	for _, bad := range []string{"", "Always", "yes", " auto"} {
		if _, err := ParseApproval(bad); err == nil {
			t.Errorf("ParseApproval(%q) accepts it", bad)
		}
	}
	if _, err := Approval(3).MarshalText(); err == nil || Approval(3).String() != "" {
		t.Error("an approval that is none has a name")
	}
}

func many[T any](n int, of func(int) T) []T {
	list := make([]T, n)
	for i := range list {
		list[i] = of(i)
	}
	return list
}

func TestRefusedProfilesAndTools(t *testing.T) {
	with := func(change func(*Profile)) Profile {
		p := profile("read_resource")
		change(&p)
		return p
	}
	names := func(n int) []string { return many(n, func(i int) string { return fmt.Sprintf("a/t%d", i) }) }
	patterns := func(n int) []Pattern {
		return many(n, func(i int) Pattern { return pattern(fmt.Sprintf("read:r%d", i)) })
	}
	for name, p := range map[string]Profile{
		"no name":               with(func(p *Profile) { p.Name = "" }),
		"a malformed name":      with(func(p *Profile) { p.Name = "a/b" }),
		"no subject":            with(func(p *Profile) { p.Subject = "" }),
		"a malformed tool":      profile("create_issue"),
		"a tool twice":          profile("a/b", "read_resource", "a/b"),
		"too many tools":        profile(names(maxTools + 1)...),
		"a pattern not parsed":  with(func(p *Profile) { p.Caps = []Pattern{{}} }),
		"caps twice":            profile("read_resource").capped("read:a", "read:b", "read:a"),
		"too many caps":         with(func(p *Profile) { p.Caps = patterns(maxCaps + 1) }),
		"an approval of none":   profile("read_resource").approving(3),
		"a malformed owner":     with(func(p *Profile) { p.Owner = "a b" }),
		"a year of five digits": with(func(p *Profile) { p.Created = noon.AddDate(9000, 0, 0) }),
	} {
		if err := p.Validate(); err == nil {
			t.Errorf("a profile with %s is accepted", name)
		}
		if _, err := EncodeProfile(p); err == nil {
			t.Errorf("a profile with %s is encoded", name)
		}
	}
	for name, tool := range map[string]Tool{
		"no name":               {},
		"a built-in name":       {Name: "read_resource"},
		"no server":             {Name: "/create_issue"},
		"a pattern not parsed":  {Name: "a/b", Requires: []Pattern{{Read, "doc", true}}},
		"a requirement twice":   tool("a/b", "read:a", "read:a"),
		"too many requirements": {Name: "a/b", Requires: patterns(maxRequires + 1)},
		"a malformed owner":     {Name: "a/b", Owner: "a b"},
	} {
		if err := tool.Validate(); err == nil {
			t.Errorf("a tool with %s is accepted", name)
		}
		if _, err := EncodeTool(tool); err == nil {
			t.Errorf("a tool with %s is encoded", name)
		}
		if NewSet().PutTool(tool) == nil {
			t.Errorf("a set takes a tool with %s", name)
		}
	}
	full := profile(names(maxTools)...)
	full.Caps = patterns(maxCaps)
	if err := full.Validate(); err != nil {
		t.Errorf("exactly as many as are allowed: %v", err)
	}
	if err := (&Tool{Name: "a/b", Requires: patterns(maxRequires)}).Validate(); err != nil {
		t.Errorf("exactly as many as are allowed: %v", err)
	}
}

func TestProfilesOfASet(t *testing.T) {
	set := setOf(t)
	if err := set.PutSubject(Subject{Name: "boss"}); err != nil {
		t.Fatal(err)
	}
	ghost := profile("read_resource")
	ghost.Subject = "ghost"
	if err := set.PutProfile(ghost); !errors.Is(err, ErrNoSubject) {
		t.Errorf("PutProfile: %v, want ErrNoSubject", err)
	}
	if err := set.PutProfile(profile("github/create_issue")); !errors.Is(err, ErrNoTool) {
		t.Errorf("PutProfile: %v, want ErrNoTool", err)
	}
	for _, tool := range every {
		if err := set.PutTool(tool); err != nil {
			t.Fatal(err)
		}
	}
	put := func(name, subject string) {
		t.Helper()
		p := profile("shell/curl", "github/create_issue")
		p.Name, p.Subject = name, subject
		if err := set.PutProfile(p); err != nil {
			t.Fatal(err)
		}
	}
	put("coder", "worker")
	put("auditor", "worker")
	put("manager", "boss")
	stolen := profile()
	stolen.Subject = "boss"
	if err := set.PutProfile(stolen); !errors.Is(err, ErrOtherSubject) {
		t.Errorf("PutProfile under a name of another subject: %v, want ErrOtherSubject", err)
	}
	wantNames := func(what string, got []Profile, want ...string) {
		t.Helper()
		names := many(len(got), func(i int) string { return got[i].Name })
		if !slices.Equal(names, want) {
			t.Errorf("%s: %v, want %v", what, names, want)
		}
	}
	wantNames("Profiles", set.Profiles(), "auditor", "coder", "manager")
	wantNames("ProfilesOf", set.ProfilesOf("worker"), "auditor", "coder")
	if p, ok := set.Profile("coder"); !ok || p.Subject != "worker" || !slices.Equal(p.Tools, []string{"github/create_issue", "shell/curl"}) {
		t.Errorf("Profile: %+v, %v", p, ok)
	}
	if names := set.Tools(); len(names) != 3 || names[0].Name != "github/create_issue" || names[2].Name != "shell/curl" {
		t.Errorf("Tools: %+v", names)
	}
	if one, ok := set.Tool("notes/add"); !ok || len(one.Requires) != 2 {
		t.Errorf("Tool: %+v, %v", one, ok)
	}
	set.RemoveSubject("worker")
	wantNames("Profiles after their subject went", set.Profiles(), "manager")
	if err := set.PutSubject(Subject{Name: "worker"}); err != nil {
		t.Fatal(err)
	}
	wantNames("ProfilesOf a subject of the same name", set.ProfilesOf("worker"))
}

func TestUIDs(t *testing.T) {
	with := func(name string, uid uint32) Subject { return Subject{Name: name, UID: &uid} }
	set := setOf(t)
	for _, s := range []Subject{with("worker", 1001), with("boss", 1002), with("worker", 1001)} {
		if err := set.PutSubject(s); err != nil {
			t.Fatal(err)
		}
	}
	if err := set.PutSubject(with("guest", 1001)); !errors.Is(err, ErrUIDTaken) {
		t.Errorf("a uid of two subjects: %v, want ErrUIDTaken", err)
	}
	if err := set.PutSubject(with("boss", 1001)); !errors.Is(err, ErrUIDTaken) {
		t.Errorf("a uid of two subjects: %v, want ErrUIDTaken", err)
	}
	if _, ok := set.Subject("guest"); ok {
		t.Error("a refused subject is in the set")
	}
	of := func(uid uint32) string { s, _ := set.SubjectOf(uid); return s.Name }
	if of(1001) != "worker" || of(1002) != "boss" || of(1003) != "" || of(0) != "" {
		t.Errorf("1001 is %q, 1002 %q, 1003 %q, 0 %q", of(1001), of(1002), of(1003), of(0))
	}
	if err := set.PutSubject(with("worker", 1003)); err != nil {
		t.Fatal(err)
	}
	set.RemoveSubject("boss")
	if of(1001) != "" || of(1002) != "" || of(1003) != "worker" {
		t.Errorf("after a change and a removal 1001 is %q, 1002 %q, 1003 %q", of(1001), of(1002), of(1003))
	}
	if err := set.PutSubject(with("guest", 1001)); err != nil {
		t.Errorf("a uid that is free again: %v", err)
	}
	if err := set.PutSubject(Subject{Name: "guest"}); err != nil || of(1001) != "" {
		t.Errorf("a uid that was given up is %q, %v", of(1001), err)
	}

	for uid, says := range map[uint32]string{0: "root", 1<<32 - 1: "nobody's"} {
		if err := CheckUID(uid); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("CheckUID(%d): %v, want words with %q", uid, err, says)
		}
	}
	if err := CheckUID(1001); err != nil {
		t.Errorf("CheckUID: %v", err)
	}
	for _, uid := range []uint32{0, 1<<32 - 1} {
		if s := with("worker", uid); s.Validate() == nil {
			t.Errorf("a subject of uid %d is accepted", uid)
		}
	}
}
