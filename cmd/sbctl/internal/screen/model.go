// Package screen is the live screen of sbctl watch: what is shown, what is
// selected, and what a key means. Model and view are pure; only terminal.go
// touches a terminal, and only the caller talks to the daemon.
//
// It protects from slips: every key that changes something asks first, and
// says what it will do. What is approved is shown whole before a yes counts, however
// small the screen is. It shows nothing that was not made printable.
package screen

import "fmt"

// Item is one line of the top pane: a request that waits for a person, or something
// about a server that a person has to look at.
type Item struct {
	// ID is that of a request; empty for a server.
	ID string
	// Subject asks, or is kept from calling.
	Subject string
	// What is asked for: SERVER/tool or a capability; of a server, its name.
	What string
	// Text is the arguments of a request, or what is the matter with a server.
	Text string
	// Left is how long the request lives; empty for a server.
	Left string
	// Lines say everything about a request, one thing each.
	Lines []string
	// Digest stands for the arguments that Lines show.
	Digest string
	// Lasts says that an answer may hold for an hour.
	Lasts bool
	// Why says why an answer may not, or what to do about a server.
	Why string
}

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
	// Items are what waits for a person, the most urgent first.
	Items []Item
	// Standing are answers that hold for more than one call, a line for each.
	Standing []string
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
	None        Verb = iota
	Quit             // leave
	Refresh          // ask the daemon again
	Deny             // deny Subject the Capability
	Grant            // grant Subject the Capability for an hour
	Disable          // disable Subject
	End              // end the run or the launch
	Unlock           // take the operator's passphrase and open a session
	Lock             // end the operator's session
	Approve          // approve the request once
	ApproveHour      // approve it and the same for an hour
	Refuse           // refuse the request
)

// Action is a verb and what it is about.
type Action struct {
	Verb                       Verb
	Subject, Capability, RunID string
	// Launch says that RunID is that of a launch.
	Launch bool
	// ApprovalID is the request, and Digest what was shown of it.
	ApprovalID, Digest string

	what string   // that is asked for
	card []string // that is shown with the question; nil: the question says it all
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
	case Approve:
		return fmt.Sprintf("approve %s of %s once?", a.what, a.Subject)
	case ApproveHour:
		return fmt.Sprintf("approve %s of %s for an hour?", a.what, a.Subject)
	case Refuse:
		return fmt.Sprintf("refuse %s of %s?", a.what, a.Subject)
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

// pane is one of the lists. From the last one goes on to the first: what waits for a
// person is shown above the runs.
type pane int

const (
	runsPane pane = iota
	denialsPane
	itemsPane
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
	touched bool // by a person
	emptied bool // the pane that a person was in has gone, and they went nowhere else

	// Of the card that is shown with a question, as of the last View:
	width int // that it was folded to
	top   int // its first line on the screen
	page  int // lines of it on the screen
	rows  int // lines of it
	seen  int // lines from the first one on that were on the screen
}

// Show replaces what the daemon said. The selection stays on the same thing
// when it is still there: a list that moves must not move a person's finger.
func (m *Model) Show(state State) {
	run, hasRun := m.run()
	denial, hasDenial := m.denial()
	item, hasItem := m.item()
	m.state = state
	if hasItem && !m.touched { // what came first on the screen is not what a person has chosen
		m.cursors[itemsPane] = 0
	}
	if hasItem && m.touched {
		for i, one := range state.Items {
			if one.ID == item.ID && one.Subject == item.Subject && one.What == item.What {
				m.cursors[itemsPane] = i
			}
		}
	}
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
	switch {
	case m.focus == itemsPane && len(state.Items) == 0:
		m.focus, m.emptied = runsPane, true // the pane is not shown
	case (!m.touched || m.emptied) && len(state.Items) > 0:
		m.focus, m.emptied = itemsPane, false
	}
}

// Press says what a key means now.
func (m *Model) Press(key Key) Action {
	m.Message = ""
	m.touched = true
	if asked := m.asked; asked != nil {
		return m.answer(*asked, key)
	}
	switch key {
	case "q", CtrlC, Escape:
		return Action{Verb: Quit}
	case "r":
		return Action{Verb: Refresh}
	case Up, "k":
		m.emptied = false
		m.cursors[m.focus] = max(0, m.cursors[m.focus]-1)
	case Down, "j":
		m.emptied = false
		m.cursors[m.focus] = max(0, min(m.cursors[m.focus]+1, m.length(m.focus)-1))
	case Tab:
		m.emptied = false
		if m.focus = (m.focus + 1) % panes; m.focus == itemsPane && len(m.state.Items) == 0 {
			m.focus = runsPane
		}
	case "a":
		m.ask(m.onItem(Approve))
	case "d":
		if m.focus == itemsPane {
			m.ask(m.onItem(Refuse))
			break
		}
		m.ask(m.onDenial(Deny))
	case "g":
		if m.focus == itemsPane {
			m.ask(m.onItem(ApproveHour))
			break
		}
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

// answer says what a key means while a question is open. A card is looked through
// before a yes to it counts.
func (m *Model) answer(asked Action, key Key) Action {
	last := max(0, m.rows-m.page)
	if asked.card != nil {
		switch key {
		case Down, "j":
			m.top = min(m.top+1, last)
			return Action{}
		case Up, "k":
			m.top = max(m.top-1, 0)
			return Action{}
		case "y", "Y":
			if asked.Verb != Refuse && m.seen < m.rows {
				m.top = min(m.seen, last)
				m.Message = "there was more: see it first"
				return Action{}
			}
		default: // as for every question
		}
	}
	m.asked = nil
	if key == "y" || key == "Y" {
		return asked
	}
	m.Message = "nothing was changed"
	return Action{}
}

func (m *Model) ask(action Action, why string) {
	if action.Verb == None {
		m.Message = why
		return
	}
	m.asked = &action
	m.top, m.page, m.seen, m.rows = 0, 0, 0, len(action.card)
}

// onItem is an answer to the selected request, wherever the cursor is.
func (m *Model) onItem(verb Verb) (Action, string) {
	item, ok := m.item()
	switch {
	case !ok:
		return Action{}, "nothing waits for an answer"
	case item.ID == "":
		return Action{}, item.Why
	case verb == ApproveHour && !item.Lasts:
		return Action{}, item.Why
	}
	return Action{
		Verb: verb, ApprovalID: item.ID, Digest: item.Digest, Subject: item.Subject, what: item.What, card: item.Lines,
	}, ""
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
	switch m.focus {
	case itemsPane:
		item, _ := m.item()
		subject = item.Subject
	case denialsPane:
		denial, _ := m.denial()
		subject = denial.Subject
	default:
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

func (m *Model) item() (Item, bool) {
	if at := m.cursors[itemsPane]; at < len(m.state.Items) {
		return m.state.Items[at], true
	}
	return Item{}, false
}

func (m *Model) length(p pane) int {
	switch p {
	case runsPane:
		return len(m.state.Runs)
	case itemsPane:
		return len(m.state.Items)
	default:
		return len(m.state.Denials)
	}
}
