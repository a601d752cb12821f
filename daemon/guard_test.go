package daemon

import (
	"errors"
	"testing"

	"subjectbroker/daemon/peer"
)

// proc is one process of a line: the first is the youngest.
func proc(pid int32, exe, command string) peer.Process {
	return peer.Process{PID: pid, Start: uint64(pid), Name: exe, Exe: "/usr/bin/" + exe, Command: command, Session: 3}
}

// terminal makes a process the leader of a terminal's session.
func terminal(p peer.Process) peer.Process {
	p.Session, p.TTY = p.PID, 34816
	return p
}

func calling(p peer.Process, name string) peer.Process {
	p.Name = name
	return p
}

// Whoever started a shim is found behind what only stands in between, and nobody
// is taken for an agent who is a person or a service manager.
func TestAgentOfAShim(t *testing.T) {
	shim, first := proc(90, "sb-mcp", "sb-mcp --subject worker"), proc(1, "init", "/sbin/init")
	person := terminal(proc(5, "bash", "-bash"))
	for name, tc := range map[string]struct {
		line []peer.Process // without the shim and the first process
		want int32          // 0: nobody
	}{
		"at once":                         {[]peer.Process{proc(20, "claude", "claude"), person}, 20},
		"through a shell":                 {[]peer.Process{proc(30, "sh", "sh -c sb-mcp"), proc(20, "claude", "claude"), person}, 20},
		"through many shells":             {[]peer.Process{proc(32, "bash", "bash x.sh"), proc(31, "dash", "sh -c"), proc(30, "zsh", "zsh -c x"), proc(20, "codex", "codex"), person}, 20},
		"through npx":                     {[]peer.Process{proc(31, "sh", "sh -c sb-mcp"), proc(30, "node", "node /usr/bin/npx -y sb-mcp"), proc(20, "gemini", "gemini")}, 20},
		"through npx-cli.js":              {[]peer.Process{proc(30, "node", "/usr/bin/node --no-warnings /usr/lib/node_modules/npm/bin/npx-cli.js sb-mcp"), proc(20, "opencode", "opencode")}, 20},
		"npm under its own name":          {[]peer.Process{calling(proc(30, "node", "npm exec sb-mcp"), "npm exec sb-mcp"), proc(20, "agent", "agent")}, 20},
		"through env":                     {[]peer.Process{proc(30, "env", "env A=b sb-mcp"), proc(20, "agent", "agent")}, 20},
		"an agent that is a script":       {[]peer.Process{proc(20, "node", "node /opt/agent/main.js"), person}, 20},
		"an agent in node with options":   {[]peer.Process{proc(20, "node", "node --inspect /opt/agent/npx/main.js"), person}, 20},
		"a shell without a terminal":      {[]peer.Process{proc(30, "bash", "bash"), proc(20, "agent", "agent"), person}, 20},
		"by sbctl for an agent":           {[]peer.Process{proc(31, "sbctl", "sbctl connect claude"), proc(30, "bash", "bash -c sbctl"), proc(20, "claude", "claude"), person}, 20},
		"by sbctl for a person":           {[]peer.Process{proc(31, "sbctl", "sbctl connect claude"), person}, 0},
		"by a person":                     {[]peer.Process{person}, 0},
		"by a script of a person":         {[]peer.Process{proc(30, "bash", "bash check.sh"), person}, 0},
		"by a service manager":            {[]peer.Process{proc(30, "systemd", "/usr/lib/systemd/systemd --user")}, 0},
		"by the first process":            {nil, 0},
		"through shells by nobody else":   {[]peer.Process{proc(30, "sh", "sh -c sb-mcp")}, 0},
		"a command given on a terminal":   {[]peer.Process{terminal(proc(30, "bash", "bash -lc sb-mcp")), proc(20, "codex", "codex"), person}, 20},
		"a script on a terminal":          {[]peer.Process{terminal(proc(30, "bash", "bash run.sh")), proc(20, "codex", "codex"), person}, 20},
		"a terminal in an editor":         {[]peer.Process{terminal(proc(30, "bash", "/bin/bash --init-file /opt/editor/integration.sh")), proc(20, "editor", "editor")}, 0},
		"a terminal with a login shell":   {[]peer.Process{calling(terminal(proc(30, "zsh", "-zsh")), "zsh"), proc(20, "editor", "editor")}, 0},
		"a name that only looks like one": {[]peer.Process{proc(20, "bashful", "bashful"), person}, 20},
	} {
		line := append(append([]peer.Process{shim}, tc.line...), first)
		got, found := agentOf(line)
		if found != (tc.want != 0) || got.PID != tc.want {
			t.Errorf("%s: process %d (%v), want %d", name, got.PID, found, tc.want)
		}
	}
}

// What an agent starts is refused with it, up to the next person.
func TestUnderAnAgent(t *testing.T) {
	first, person := proc(1, "init", "init"), terminal(proc(5, "bash", "-bash"))
	agent := proc(20, "claude", "claude")
	for name, tc := range map[string]struct {
		line []peer.Process
		want bool
	}{
		"itself":                        {[]peer.Process{agent, person, first}, true},
		"what it starts":                {[]peer.Process{proc(40, "sbctl", "sbctl"), agent, person, first}, true},
		"in a shell":                    {[]peer.Process{proc(41, "sbctl", "sbctl"), proc(40, "bash", "bash -c sbctl"), agent, person, first}, true},
		"far below":                     {[]peer.Process{proc(43, "sbctl", "sbctl"), proc(42, "make", "make"), proc(41, "sh", "sh -c make"), proc(40, "python3", "python3"), agent, first}, true},
		"in a session without terminal": {[]peer.Process{proc(41, "sbctl", "sbctl"), {PID: 40, Start: 40, Name: "bash", Exe: "/bin/bash", Command: "bash", Session: 40}, agent, first}, true},
		"with a command on a terminal":  {[]peer.Process{proc(41, "sbctl", "sbctl"), terminal(proc(40, "bash", "bash -c sbctl")), agent, first}, true},
		"its parent":                    {[]peer.Process{person, first}, false},
		"its sibling":                   {[]peer.Process{proc(21, "sbctl", "sbctl"), person, first}, false},
		"a terminal in it":              {[]peer.Process{proc(41, "sbctl", "sbctl"), terminal(proc(40, "bash", "bash -i")), agent, person, first}, false},
		"a service manager in it":       {[]peer.Process{proc(41, "sbctl", "sbctl"), proc(40, "systemd", "systemd --user"), agent, first}, false},
		"a later process of its number": {[]peer.Process{proc(41, "sbctl", "sbctl"), {PID: 20, Start: 77, Name: "other", Exe: "/bin/other"}, first}, false},
	} {
		if got := under(tc.line, []peer.ProcessKey{agent.Key()}); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

// A walk that fails lets nobody pass who was not shown to be a person's: no shim
// becomes one whose starter nobody knows, and while there is a shim no operator
// whose ancestors nobody knows is one. What a walk has seen before it failed counts.
func TestGuardWithoutAnswers(t *testing.T) {
	broken := errors.New("/proc hides it")
	shim, asker, agent, person := proc(90, "sb-mcp", "sb-mcp"), proc(40, "sbctl", "sbctl"), proc(20, "claude", "claude"), terminal(proc(5, "bash", "-bash"))
	for name, tc := range map[string]struct {
		shim, asker   []peer.Process
		err           error
		joins, passes bool
	}{
		"nothing is seen":                 {nil, nil, broken, false, true},
		"only what starts others is seen": {[]peer.Process{shim, proc(30, "sh", "sh -c sb-mcp")}, nil, broken, false, true},
		"an agent is seen":                {[]peer.Process{shim, agent}, nil, broken, true, false},
		"an agent, and it asks":           {[]peer.Process{shim, agent}, []peer.Process{asker, agent}, broken, true, false},
		"an agent, and a person asks":     {[]peer.Process{shim, agent}, []peer.Process{asker, person}, broken, true, true},
		"a person is seen":                {[]peer.Process{shim, person}, nil, broken, true, true},
		"everything, and a stranger asks": {[]peer.Process{shim, agent, person}, []peer.Process{asker, person}, nil, true, true},
		"everything, and the agent asks":  {[]peer.Process{shim, agent, person}, []peer.Process{asker, agent, person}, nil, true, false},
		"everything, and nobody is above": {[]peer.Process{shim, proc(30, "sh", "sh")}, []peer.Process{asker}, nil, true, true},
	} {
		g := newGuard(false)
		walks := 0
		g.walk = func(pid int32, _ func(peer.Process) bool) ([]peer.Process, error) {
			walks++
			if pid == shim.PID {
				return tc.shim, tc.err
			}
			return tc.asker, tc.err
		}
		p := &peer.Peer{PID: shim.PID, Class: peer.Plain}
		if got := g.joins(p); got != tc.joins {
			t.Errorf("%s: the shim joins: %v, want %v", name, got, tc.joins)
		}
		if got := g.passes(&peer.Peer{PID: asker.PID, Class: peer.Plain}); got != tc.passes {
			t.Errorf("%s: the asker passes: %v, want %v", name, got, tc.passes)
		}
		if before := walks; tc.joins && (!g.joins(p) || walks != before) {
			t.Errorf("%s: the same shim was walked again", name)
		}
		g.leaves(p)
		if !g.passes(&peer.Peer{PID: asker.PID, Class: peer.Plain}) {
			t.Errorf("%s: the asker is refused after the shim has left", name)
		}
		p.Leave()
		if g.joins(p); len(g.agents) != 0 {
			t.Errorf("%s: a shim that has left is remembered", name)
		}
	}
}
