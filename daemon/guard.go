package daemon

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"subjectbroker/daemon/peer"
)

// guard keeps eager agents from the operator's socket. While a shim is
// connected, the process that started it, an agent, and whatever that starts
// itself are refused there, and so an agent that finds sbctl in its PATH does not
// grant itself what it was denied. It is no boundary: a process of the same uid
// can leave its tree, or have a shell on a terminal do what it wants.
type guard struct {
	off  bool
	walk func(pid int32, enough func(peer.Process) bool) ([]peer.Process, error)

	mu     sync.Mutex
	agents map[*peer.Peer]peer.ProcessKey // by the shims that are connected; the zero key: a person started it
}

func newGuard(off bool) *guard {
	return &guard{off: off, walk: walk, agents: map[*peer.Peer]peer.ProcessKey{}}
}

// on reports whether the guard keeps anybody off.
func (g *guard) on() bool { return !g.off && guardable }

// joins remembers a peer that asks for a run, and who started it, until it
// leaves: an agent whose runs ended is no operator as long as its shim is there.
// It reports false when nobody can tell who started it.
func (g *guard) joins(p *peer.Peer) bool {
	if !g.on() || p.Class != peer.Plain || g.knows(p) {
		return true
	}
	line, err := g.walk(p.PID, func(above peer.Process) bool {
		return above.PID != p.PID && (trusted(above) || !starter(above))
	})
	agent, found := agentOf(line)
	if err != nil && !found && !slices.ContainsFunc(line, trusted) {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if !p.Left() {
		g.agents[p] = agent
	}
	return true
}

func (g *guard) knows(p *peer.Peer) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, known := g.agents[p]
	return known
}

// leaves forgets a peer that has left.
func (g *guard) leaves(p *peer.Peer) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.agents, p)
}

// passes reports whether a peer may be the operator now. A walk that does not
// come out is walked again; one that never does is refused, unless it met
// somebody trusted before.
func (g *guard) passes(p *peer.Peer) bool {
	agents := g.started()
	if len(agents) == 0 {
		return true
	}
	line, err := g.walk(p.PID, trusted)
	return !under(line, agents) && (err == nil || slices.ContainsFunc(line, trusted))
}

// started are the processes that started the shims that are connected.
func (g *guard) started() []peer.ProcessKey {
	g.mu.Lock()
	defer g.mu.Unlock()
	var agents []peer.ProcessKey
	for _, agent := range g.agents {
		if agent != (peer.ProcessKey{}) && !slices.Contains(agents, agent) {
			agents = append(agents, agent)
		}
	}
	return agents
}

// walk is peer.AncestryTo, again when a parent ended meanwhile. What it could see
// comes with its error.
func walk(pid int32, enough func(peer.Process) bool) (line []peer.Process, err error) {
	for range 5 {
		if line, err = peer.AncestryTo(pid, enough); err == nil || errors.Is(err, peer.ErrPlatform) {
			break
		}
	}
	return line, err
}

// agentOf is the process that started a shim: the first of its ancestors that
// does more than start another program. false: a person or a service manager
// did. The line begins with the shim.
func agentOf(line []peer.Process) (peer.ProcessKey, bool) {
	for i, p := range line {
		switch {
		case i == 0:
		case trusted(p):
			return peer.ProcessKey{}, false
		case !starter(p):
			return p.Key(), true
		}
	}
	return peer.ProcessKey{}, false
}

// under reports whether one of agents is in the line of a process, or is that
// process, with nobody trusted in between.
func under(line []peer.Process, agents []peer.ProcessKey) bool {
	for _, p := range line {
		switch {
		case trusted(p):
			return false
		case slices.ContainsFunc(agents, func(a peer.ProcessKey) bool { return a.PID == p.PID && a.Start == p.Start }):
			return true
		}
	}
	return false
}

// trusted is where a walk ends: at the first process, at a service manager, and
// at a shell that a person types into.
func trusted(p peer.Process) bool {
	return p.PID == 1 || serviceManagers[p.Name] || interactive(p)
}

var serviceManagers = map[string]bool{"systemd": true, "launchd": true}

// shells, by the names of their programs.
var shells = map[string]bool{
	"sh": true, "bash": true, "dash": true, "ash": true, "ksh": true, "mksh": true, "zsh": true, "fish": true, "busybox": true, "nu": true, "tcsh": true, "csh": true,
}

// starters are programs that do nothing but start another one.
var starters = map[string]bool{
	"env": true, "npx": true, "npm": true, "pnpm": true, "pnpx": true, "yarn": true, "bunx": true, "uvx": true, "nice": true, "nohup": true, "setsid": true,
	"timeout": true, "stdbuf": true, "script": true, "unshare": true, "setpriv": true, "direnv": true, "mise": true, "sudo": true, "su": true, "doas": true, "runuser": true, "sbctl": true,
}

// engines run programs whose names are their first argument.
var engines = map[string]bool{"node": true, "nodejs": true, "bun": true, "deno": true}

// programOf is the name of the program that a process runs, without the dash of
// a login shell.
func programOf(p peer.Process) string {
	if p.Exe != "" {
		name := filepath.Base(strings.TrimSuffix(p.Exe, " (deleted)"))
		if shells[name] || engines[name] || starters[name] {
			return name
		}
	}
	return strings.TrimPrefix(p.Name, "-")
}

// interactive reports that a process is a shell that leads the session of a
// terminal and reads what is typed there: no command and no script was given to
// it. An agent that starts one gets past the guard.
func interactive(p peer.Process) bool {
	if p.Session != p.PID || p.TTY == 0 || !shells[programOf(p)] {
		return false
	}
	words := strings.Fields(p.Command)
	operand := false // of the option before
	for _, word := range words[min(1, len(words)):] {
		long := strings.HasPrefix(word, "--")
		switch {
		case operand:
			operand = false
		case word == "--init-command" || word == "-C": // fish, and what follows is a command line
			return true
		case operands[word]:
			operand = true
		case programOf(p) == "busybox" && shells[word]:
		case !strings.HasPrefix(word, "-") && !strings.HasPrefix(word, "+"):
			return false
		case !long && strings.Contains(word, "c"), word == "--command":
			return false
		}
	}
	return true
}

// operands are options of shells that take the next word.
var operands = map[string]bool{"--init-file": true, "--rcfile": true, "-o": true, "+o": true, "-O": true, "+O": true}

// starter reports that a process only stands between an agent and what that
// started.
func starter(p peer.Process) bool {
	name := programOf(p)
	if shells[name] || starters[name] {
		return true
	}
	if strings.HasPrefix(p.Name, "npm ") || strings.HasPrefix(p.Name, "npx ") { // how npm calls itself
		return true
	}
	if !engines[name] {
		return false
	}
	for _, word := range strings.Fields(p.Command)[min(1, len(strings.Fields(p.Command))):] {
		if strings.HasPrefix(word, "-") {
			continue
		}
		script := strings.TrimSuffix(strings.TrimSuffix(filepath.Base(word), ".js"), ".cjs")
		return starters[strings.TrimSuffix(script, "-cli")]
	}
	return false
}
