package screen

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
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
		if diff := cmp.Diff(test.want, press(shown(), test.keys...)); diff != "" {
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
		state.Recent = make([]string, rapid.IntRange(0, 30).Draw(t, "recent"))
		m.Show(state)
		for range rapid.IntRange(0, 10).Draw(t, "keys") {
			m.Press(rapid.SampledFrom([]Key{Up, Down, Tab, "d", "x", "n"}).Draw(t, "key"))
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
