// Package screen is the live screen of sbctl watch: what is shown, what is
// selected, and what a key means. Model and view are pure; only terminal.go
// touches a terminal, and only the caller talks to the daemon.
//
// It protects from slips: every key that changes something asks first, and
// says what it will do. It shows nothing that was not made printable.
package screen

import "fmt"

// Run is one line of the upper pane: a run, or a launch.
type Run struct {
	ID, Subject, Tier, Opened, Command string
	// Attested is how it is known who that is, in a word.
	Attested       string
	Reads, Denials uint64
	// Launch says that the line is a launch; its runs follow it.
	Launch bool
	// Within says that the run belongs to the launch above it.
	Within bool
}

// Denial is one line of the lower pane.
type Denial struct {
	Subject, Capability, Cause, Last string
	Count                            uint64
	// NoGrant says why a grant would not help; empty where one may.
	NoGrant string
}

// State is what the daemon said last.
type State struct {
	// Title says which daemon it is and how it is.
	Title string
	// Runs are the open launches and runs, each launch before its own.
	Runs []Run
	// Denials are groups of denials, newest first.
	Denials []Denial
	// Recent are the newest entries, oldest first.
	Recent []string
	// Session says that the operator has a session on this connection.
	Session bool
}

// Verb is what the person wants done.
type Verb int

// Verbs. The caller carries out everything but None.
const (
	None    Verb = iota
	Quit         // leave
	Refresh      // ask the daemon again
	Deny         // deny Subject the Capability
	Grant        // grant Subject the Capability for an hour
	Disable      // disable Subject
	End          // end the run or the launch
	Unlock       // take the operator's passphrase and open a session
	Lock         // end the operator's session
)

// Action is a verb and what it is about.
type Action struct {
	Verb                       Verb
	Subject, Capability, RunID string
	// Launch says that RunID is that of a launch.
	Launch bool
}

// Question is what the person is asked before the action is done.
func (a Action) Question() string {
	switch a.Verb {
	case Deny:
		return fmt.Sprintf("deny %s %s?", a.Subject, a.Capability)
	case Grant:
		return fmt.Sprintf("grant %s %s for an hour?", a.Subject, a.Capability)
	case Disable:
		return fmt.Sprintf("disable %s and end its runs?", a.Subject)
	case End:
		if a.Launch {
			return fmt.Sprintf("end launch %s of %s with all its processes?", a.RunID, a.Subject)
		}
		return fmt.Sprintf("end run %s of %s?", a.RunID, a.Subject)
	case Lock:
		return "end the operator's session?"
	default:
		return ""
	}
}

// Key is one key press.
type Key string

// Keys with names; every other key is its character.
const (
	Up     Key = "up"
	Down   Key = "down"
	Tab    Key = "tab"
	Escape Key = "escape"
	CtrlC  Key = "ctrl-c"
)

// pane is one of the two lists.
type pane int

const (
	runsPane pane = iota
	denialsPane
	panes
)

// Model is the screen between two key presses. The zero Model is an empty screen.
type Model struct {
	// Message is told in the last line until the next key.
	Message string

	state   State
	focus   pane
	cursors [panes]int
	asked   *Action
}

// Show replaces what the daemon said. The selection stays on the same thing
// when it is still there: a list that moves must not move a person's finger.
func (m *Model) Show(state State) {
	run, hasRun := m.run()
	denial, hasDenial := m.denial()
	m.state = state
	if hasRun {
		for i, r := range state.Runs {
			if r.ID == run.ID {
				m.cursors[runsPane] = i
			}
		}
	}
	if hasDenial {
		for i, d := range state.Denials {
			if d.Subject == denial.Subject && d.Capability == denial.Capability && d.Cause == denial.Cause {
				m.cursors[denialsPane] = i
			}
		}
	}
	for p := range m.cursors {
		m.cursors[p] = max(0, min(m.cursors[p], m.length(pane(p))-1))
	}
}

// Press says what a key means now.
func (m *Model) Press(key Key) Action {
	m.Message = ""
	if asked := m.asked; asked != nil {
		m.asked = nil
		if key == "y" || key == "Y" {
			return *asked
		}
		m.Message = "nothing was changed"
		return Action{}
	}
	switch key {
	case "q", CtrlC, Escape:
		return Action{Verb: Quit}
	case "r":
		return Action{Verb: Refresh}
	case Up, "k":
		m.cursors[m.focus] = max(0, m.cursors[m.focus]-1)
	case Down, "j":
		m.cursors[m.focus] = max(0, min(m.cursors[m.focus]+1, m.length(m.focus)-1))
	case Tab:
		m.focus = (m.focus + 1) % panes
	case "d":
		m.ask(m.onDenial(Deny))
	case "g":
		m.ask(m.onDenial(Grant))
	case "x":
		m.ask(m.onSubject())
	case "e":
		m.ask(m.onRun())
	case "u":
		if m.state.Session {
			m.ask(Action{Verb: Lock}, "")
			return Action{}
		}
		return Action{Verb: Unlock}
	}
	return Action{}
}

func (m *Model) ask(action Action, why string) {
	if action.Verb == None {
		m.Message = why
		return
	}
	m.asked = &action
}

func (m *Model) onDenial(verb Verb) (Action, string) {
	denial, ok := m.denial()
	if m.focus != denialsPane || !ok || denial.Subject == "" || denial.Capability == "" {
		return Action{}, "select a denial that names a subject and a capability"
	}
	if verb == Grant && denial.NoGrant != "" {
		return Action{}, denial.NoGrant
	}
	return Action{Verb: verb, Subject: denial.Subject, Capability: denial.Capability}, ""
}

func (m *Model) onSubject() (Action, string) {
	subject := ""
	if m.focus == denialsPane {
		denial, _ := m.denial()
		subject = denial.Subject
	} else {
		run, _ := m.run()
		subject = run.Subject
	}
	if subject == "" {
		return Action{}, "select something of a subject"
	}
	return Action{Verb: Disable, Subject: subject}, ""
}

func (m *Model) onRun() (Action, string) {
	run, ok := m.run()
	if m.focus != runsPane || !ok {
		return Action{}, "select a run"
	}
	return Action{Verb: End, RunID: run.ID, Subject: run.Subject, Launch: run.Launch}, ""
}

func (m *Model) run() (Run, bool) {
	if at := m.cursors[runsPane]; at < len(m.state.Runs) {
		return m.state.Runs[at], true
	}
	return Run{}, false
}

func (m *Model) denial() (Denial, bool) {
	if at := m.cursors[denialsPane]; at < len(m.state.Denials) {
		return m.state.Denials[at], true
	}
	return Denial{}, false
}

func (m *Model) length(p pane) int {
	if p == runsPane {
		return len(m.state.Runs)
	}
	return len(m.state.Denials)
}
