package screen

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"
)

func shown() *Model {
	m := &Model{}
	m.Show(State{
		Title: "sbd 1, vault unlocked",
		Runs: []Run{{ID: "aaa", Subject: "worker"}, {ID: "bbb", Subject: "other"},
			{ID: "lll", Subject: "coder", Attested: "launched", Launch: true}, {ID: "ccc", Subject: "coder", Attested: "launch", Within: true}},
		Denials: []Denial{{Subject: "worker", Capability: "read:x", Cause: "NO_GRANT", Count: 2}, {Subject: "other", Capability: "read:y", Cause: "NO_GRANT"}},
		Recent:  []string{"1 acquire", "2 acquire"},
	})
	return m
}

func press(m *Model, keys ...Key) (last Action) {
	for _, key := range keys {
		last = m.Press(key)
	}
	return last
}

func TestKeys(t *testing.T) {
	for _, test := range []struct {
		name string
		keys []Key
		want Action
	}{
		{"quit", []Key{"q"}, Action{Verb: Quit}},
		{"interrupt", []Key{CtrlC}, Action{Verb: Quit}},
		{"end the first run", []Key{"e", "y"}, Action{Verb: End, RunID: "aaa", Subject: "worker"}},
		{"end the second run", []Key{Down, "e", "y"}, Action{Verb: End, RunID: "bbb", Subject: "other"}},
		{"end a launch", []Key{Down, Down, "e", "y"}, Action{Verb: End, RunID: "lll", Subject: "coder", Launch: true}},
		{"end a run of a launch", []Key{Down, Down, Down, "e", "y"}, Action{Verb: End, RunID: "ccc", Subject: "coder"}},
		{"past the end stays at the end", []Key{Down, Down, Down, Down, Down, "e", "y"}, Action{Verb: End, RunID: "ccc", Subject: "coder"}},
		{"grant what was denied", []Key{Tab, "g", "y"}, Action{Verb: Grant, Subject: "worker", Capability: "read:x"}},
		{"deny it", []Key{Tab, "j", "d", "Y"}, Action{Verb: Deny, Subject: "other", Capability: "read:y"}},
		{"disable a run's subject", []Key{"x", "y"}, Action{Verb: Disable, Subject: "worker"}},
		{"disable a denial's subject", []Key{Tab, "j", "x", "y"}, Action{Verb: Disable, Subject: "other"}},
		{"anything but y is a no", []Key{"x", "n"}, Action{}},
		{"enter is a no", []Key{"x", "q"}, Action{}},
		{"an answered question is gone", []Key{"x", "n", "y"}, Action{}},
		{"granting needs a denial", []Key{"g", "y"}, Action{}},
		{"open a session", []Key{"u"}, Action{Verb: Unlock}},
		{"unknown keys do nothing", []Key{"z", "?"}, Action{}},
	} {
		if diff := cmp.Diff(test.want, press(shown(), test.keys...), cmpopts.IgnoreUnexported(Action{})); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", test.name, diff)
		}
	}
}

// Ending a session is asked about, opening one is not: that asks by itself.
func TestSessionKey(t *testing.T) {
	m := shown()
	m.Show(State{Session: true})
	if got := m.Press("u"); got.Verb != None || !strings.Contains(strings.Join(m.View(200, 40), "\n"), "end the operator's session? y/n") {
		t.Errorf("u does %v at once", got)
	}
	if got := m.Press("y"); got.Verb != Lock {
		t.Errorf("y does %v", got)
	}
}

// A list that changes under a person must not change what a key does.
func TestSelectionStaysOnTheSameThing(t *testing.T) {
	m := shown()
	press(m, Down)
	m.Show(State{Runs: []Run{{ID: "new", Subject: "n"}, {ID: "aaa", Subject: "worker"}, {ID: "bbb", Subject: "other"}}})
	if got := press(m, "e", "y"); got.RunID != "bbb" {
		t.Errorf("after a new run the selection is on %s", got.RunID)
	}
	m.Show(State{})
	if got := press(m, "e", "y"); got.Verb != None {
		t.Errorf("an empty list gives %v", got)
	}
}

// A question names what it was asked about, also when the list has moved since.
func TestQuestionIsAboutWhatItSays(t *testing.T) {
	m := shown()
	press(m, Tab, "g")
	view := strings.Join(m.View(200, 40), "\n")
	if !strings.Contains(view, "grant worker read:x for an hour? y/n") {
		t.Errorf("no question in\n%s", view)
	}
	m.Show(State{Denials: []Denial{{Subject: "evil", Capability: "read:all"}}})
	if got := m.Press("y"); got.Subject != "worker" || got.Capability != "read:x" {
		t.Errorf("y did %v", got)
	}
}

// Where no grant helps none is asked about, and it is said why; denying stays.
func TestNoGrantWhereNoneHelps(t *testing.T) {
	m := shown()
	m.Show(State{Denials: []Denial{{Subject: "worker", Capability: "read:x", NoGrant: "a grant does not mend it"}}})
	press(m, Tab, "g")
	if view := strings.Join(m.View(200, 40), "\n"); !strings.Contains(view, "a grant does not mend it") {
		t.Errorf("no reason in\n%s", view)
	}
	if got := press(m, "y"); got.Verb != None {
		t.Errorf("y does %v", got)
	}
	if got := press(m, "d", "y"); got.Verb != Deny {
		t.Errorf("d and y do %v", got)
	}
}

// A launch stands above its runs, and what ends with it is said before.
func TestLaunchIsAGroup(t *testing.T) {
	m := shown()
	press(m, Down, Down, "e")
	view := strings.Join(m.View(200, 40), "\n")
	for _, want := range []string{"> lll ", "launched", "└ ccc ", "end launch lll of coder with all its processes? y/n"} {
		if !strings.Contains(view, want) {
			t.Errorf("no %q in\n%s", want, view)
		}
	}
}

func TestViewFits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &Model{}
		var state State
		for range rapid.IntRange(0, 30).Draw(t, "runs") {
			state.Runs = append(state.Runs, Run{ID: "id", Subject: rapid.String().Draw(t, "subject"), Command: "\x1b[31mred\n"})
		}
		for range rapid.IntRange(0, 30).Draw(t, "denials") {
			state.Denials = append(state.Denials, Denial{Subject: "s", Capability: rapid.String().Draw(t, "capability")})
		}
		for range rapid.IntRange(0, 5).Draw(t, "items") {
			state.Items = append(state.Items, Item{
				ID: rapid.SampledFrom([]string{"", "a"}).Draw(t, "id"), Subject: "s", What: rapid.String().Draw(t, "what"), Text: "\x1b[31mred\n", Left: "14m",
				Lines: rapid.SliceOf(rapid.String()).Draw(t, "lines"), Lasts: true,
			})
		}
		state.Recent = make([]string, rapid.IntRange(0, 30).Draw(t, "recent"))
		m.Show(state)
		for range rapid.IntRange(0, 10).Draw(t, "keys") {
			m.Press(rapid.SampledFrom([]Key{Up, Down, Tab, "a", "d", "x", "n"}).Draw(t, "key"))
		}
		width, height := rapid.IntRange(0, 200).Draw(t, "width"), rapid.IntRange(1, 60).Draw(t, "height")
		lines := m.View(width, height)
		if len(lines) > height {
			t.Fatalf("%d lines on a screen of %d", len(lines), height)
		}
		for _, line := range lines {
			if n := utf8.RuneCountInString(line); n > width {
				t.Fatalf("a line of %d on a screen of %d: %q", n, width, line)
			}
			if strings.ContainsAny(line, "\x1b\n\r") {
				t.Fatalf("a line the terminal would obey: %q", line)
			}
		}
	})
}

// waiting is a screen with two requests and a server above the rest.
func waiting() *Model {
	m := shown()
	state := m.state
	state.Items = []Item{
		{ID: "one", Subject: "worker", What: "github/create_issue", Text: `{"title":"x"}`, Left: "14m", Digest: "d1", Lasts: true,
			Lines: []string{"subject: worker", "what: github/create_issue", `arguments: {"title":"x"}`}},
		{ID: "two", Subject: "other", What: "read:payroll", Left: "3m", Why: "only once", Lines: []string{"what: read:payroll"}},
		{Subject: "coder", What: "github", Text: "killed by its policy", Why: "sbctl server restart github"},
	}
	m = &Model{}
	m.Show(state)
	return m
}

// Each key is pressed after the screen was drawn, as a person does.
func draw(m *Model, width, height int, keys ...Key) (last Action) {
	m.View(width, height)
	for _, key := range keys {
		last = m.Press(key)
		m.View(width, height)
	}
	return last
}

func TestKeysOfWhatWaits(t *testing.T) {
	for _, test := range []struct {
		name string
		keys []Key
		want Action
		said string
	}{
		{"approve", []Key{"a", "y"}, Action{Verb: Approve, ApprovalID: "one", Digest: "d1", Subject: "worker"}, ""},
		{"approve the second", []Key{"j", "a", "Y"}, Action{Verb: Approve, ApprovalID: "two", Subject: "other"}, ""},
		{"for an hour", []Key{"g", "y"}, Action{Verb: ApproveHour, ApprovalID: "one", Digest: "d1", Subject: "worker"}, ""},
		{"not for an hour", []Key{"j", "g", "y"}, Action{}, ""},
		{"refuse", []Key{"d", "y"}, Action{Verb: Refuse, ApprovalID: "one", Digest: "d1", Subject: "worker"}, ""},
		{"anything but y is a no", []Key{"a", "x"}, Action{}, "nothing was changed"},
		{"enter is a no", []Key{"a", "q"}, Action{}, "nothing was changed"},
		{"disable who asks", []Key{"x", "y"}, Action{Verb: Disable, Subject: "worker"}, ""},
		{"disable whose server was killed", []Key{"j", "j", "x", "y"}, Action{Verb: Disable, Subject: "coder"}, ""},
		{"a server is not approved by a key", []Key{"j", "j", "a"}, Action{}, "sbctl server restart github"},
		{"nor for an hour", []Key{"j", "j", "g"}, Action{}, "sbctl server restart github"},
		{"the other lists are below", []Key{Tab, "e", "y"}, Action{Verb: End, RunID: "aaa", Subject: "worker"}, ""},
		{"and the keys mean there what they did", []Key{Tab, Tab, "g", "y"}, Action{Verb: Grant, Subject: "worker", Capability: "read:x"}, ""},
		{"denials can be denied", []Key{Tab, Tab, "d", "y"}, Action{Verb: Deny, Subject: "worker", Capability: "read:x"}, ""},
		{"round and round", []Key{Tab, Tab, Tab, "d", "y"}, Action{Verb: Refuse, ApprovalID: "one", Digest: "d1", Subject: "worker"}, ""},
		{"a from wherever", []Key{Tab, "a", "y"}, Action{Verb: Approve, ApprovalID: "one", Digest: "d1", Subject: "worker"}, ""},
	} {
		m := waiting()
		got := draw(m, 80, 24, test.keys...)
		if diff := cmp.Diff(test.want, got, cmpopts.IgnoreUnexported(Action{})); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", test.name, diff)
		}
		if test.said != "" && m.Message != test.said {
			t.Errorf("%s: said %q, want %q", test.name, m.Message, test.said)
		}
	}
}

// What is approved is on the screen with the question, and stays what it was when
// something else takes its place.
func TestApprovedIsWhatWasShown(t *testing.T) {
	for _, size := range [][2]int{{80, 24}, {40, 24}, {40, 12}} {
		m := waiting()
		draw(m, size[0], size[1], "a")
		view := strings.Join(m.View(size[0], size[1]), "")
		for _, want := range []string{"worker", "github/create_issue", `{"title":"x"}`, "once? y/n"} {
			if !strings.Contains(view, want) {
				t.Errorf("%v: no %q in\n%s", size, want, view)
			}
		}
		m.Show(State{Items: []Item{{ID: "evil", Subject: "evil", What: "bank/pay", Lines: []string{"a lot"}, Digest: "d9"}}})
		if got := m.Press("y"); got.ApprovalID != "one" || got.Digest != "d1" {
			t.Errorf("%v: y did %v", size, got)
		}
	}
}

// Nothing is approved by somebody who cannot have seen all of it.
func TestLongArgumentsAreSeenFirst(t *testing.T) {
	long := waiting()
	state := long.state
	state.Items[0].Lines = []string{"arguments: " + strings.Repeat("padding ", 200), "the end"}
	m := &Model{}
	m.Show(state)
	if got := draw(m, 40, 20, "a", "y"); got.Verb != None {
		t.Fatalf("approved before it was seen: %v", got)
	}
	if m.asked == nil {
		t.Fatal("the question is gone")
	}
	pages := 0
	for ; draw(m, 40, 20, "y").Verb == None; pages++ {
		if m.asked == nil || pages > 100 {
			t.Fatalf("no end after %d pages", pages)
		}
	}
	if pages < 1 {
		t.Errorf("%d pages", pages)
	}
	// The control: on a large screen it is one page, and refusing needs no reading.
	m = &Model{}
	m.Show(state)
	if got := draw(m, 200, 60, "a", "y"); got.Verb != Approve {
		t.Errorf("on a large screen y does %v", got)
	}
	m = &Model{}
	m.Show(state)
	if got := draw(m, 40, 20, "d", "y"); got.Verb != Refuse {
		t.Errorf("refusing does %v", got)
	}
	// A screen that became wider has other lines.
	m = &Model{}
	m.Show(state)
	draw(m, 10, 20, "a", "j", "j", "j")
	if got := m.Press("y"); got.Verb != None {
		t.Errorf("y does %v", got)
	}
	m.View(400, 5)
	if m.seen > m.page {
		t.Errorf("%d lines count as seen on a screen of %d", m.seen, m.page)
	}
}

// A request that comes or goes does not move the selection or the list that keys are
// about, once a person has begun.
func TestWhatWaitsDoesNotMoveAFinger(t *testing.T) {
	m := waiting()
	state := m.state
	draw(m, 80, 24, "j")
	state.Items = append([]Item{{ID: "zero", Subject: "z"}}, state.Items...)
	m.Show(state)
	if got := draw(m, 80, 24, "d", "y"); got.ApprovalID != "two" {
		t.Errorf("the selection went to %v", got)
	}
	m = shown()
	m.Press("j")
	m.Show(state)
	if got := draw(m, 80, 24, "e", "y"); got.RunID != "bbb" {
		t.Errorf("e does %v", got)
	}
	state.Items = nil
	m = waiting()
	m.Show(state)
	if got := draw(m, 80, 24, "a", "y"); got.Verb != None || len(m.View(80, 24)) == 0 {
		t.Errorf("a does %v when nothing waits", got)
	}
	if got := draw(m, 80, 24, "e", "y"); got.Verb != End {
		t.Errorf("e does %v when nothing waits any more", got)
	}
	// Who was in the pane before it went is there again when it comes back.
	m = waiting()
	items := m.state
	draw(m, 80, 24, "d", "n")
	m.Show(state)
	m.Show(items)
	if got := draw(m, 80, 24, "d", "y"); got.ApprovalID != "one" {
		t.Errorf("d does %v", got)
	}
	draw(m, 80, 24, "n")
	m.Show(state)
	draw(m, 80, 24, "j")
	m.Show(items)
	if got := draw(m, 80, 24, "e", "y"); got.RunID != "bbb" {
		t.Errorf("e does %v", got)
	}
}

// A phone shows what is needed to decide: who, what, and the keys.
func TestNarrowScreen(t *testing.T) {
	for _, width := range []int{40, 80} {
		lines := waiting().View(width, 24)
		view := strings.Join(lines, "\n")
		for _, want := range []string{"> worker", "github/create_issue", "14m", "killed by its policy", "a approve"} {
			if !strings.Contains(view, want) {
				t.Errorf("%d columns: no %q in\n%s", width, want, view)
			}
		}
		if strings.HasSuffix(lines[len(lines)-1], "…") {
			t.Errorf("%d columns: the keys do not fit: %s", width, lines[len(lines)-1])
		}
	}
}

func TestDecode(t *testing.T) {
	for _, test := range []struct {
		typed string
		want  []Key
	}{
		{"q", []Key{"q"}},
		{"\x1b[A\x1b[B", []Key{Up, Down}},
		{"\x1bOA", []Key{Up}},
		{"\x1b", []Key{Escape}},
		{"\x1b[1;5D", nil},
		{"\x1b[200~x", []Key{"x"}},
		{"\x1b[", nil},
		{"\t\x03", []Key{Tab, CtrlC}},
		{"ä", nil},
	} {
		if diff := cmp.Diff(test.want, decode(test.typed)); diff != "" {
			t.Errorf("%q: (-want +got)\n%s", test.typed, diff)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add("\x1b[A")
	f.Fuzz(func(t *testing.T, typed string) {
		for _, key := range decode(typed) {
			if key == "" {
				t.Fatal("an empty key")
			}
		}
	})
}

// Until a person has pressed a key the topmost of what waits is selected, whatever was
// drawn first.
func TestTheFirstThatWaitsIsSelected(t *testing.T) {
	server := Item{Subject: "eve", What: "wr", Text: "ended by its policy", Why: "restart it"}
	request := Item{ID: "kmpx", Subject: "eve", What: "desk/publish", Left: "15m", Lines: []string{"approval: kmpx"}}
	m := &Model{}
	m.Show(State{Items: []Item{server}})
	m.Show(State{Items: []Item{request, server}})
	m.View(80, 24)
	m.Press("a")
	m.View(80, 24)
	if got := m.Press("y"); got.Verb != Approve || got.ApprovalID != "kmpx" {
		t.Errorf("a and y do %+v", got)
	}
	m.Press(Down)
	m.Show(State{Items: []Item{{ID: "knew", Subject: "eve", What: "desk/publish"}, request, server}})
	if got := m.Press("a"); got.Verb != None || m.Message != "restart it" {
		t.Errorf("what a person has chosen is not selected any more: %+v, %q", got, m.Message)
	}
}

// Where there is little room, too, the arguments tell requests apart.
func TestRequestsOnASmallScreen(t *testing.T) {
	m := &Model{}
	m.Show(State{Items: []Item{
		{ID: "one", Subject: "eve", What: "abcdef/prog", Left: "15m", Text: `{"q":1}`}, {ID: "two", Subject: "eve", What: "abcdef/prog", Left: "15m", Text: `{"q":2}`},
	}})
	shown := strings.Join(m.View(60, 24), "\n")
	for _, want := range []string{`eve abcdef/prog 15m {"q":1}`, `eve abcdef/prog 15m {"q":2}`} {
		if !strings.Contains(shown, want) {
			t.Errorf("no %s in\n%s", want, shown)
		}
	}
}
