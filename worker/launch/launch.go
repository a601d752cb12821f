// Package launch starts a command in a tree of processes that is one subject:
// in user, pid, mount and IPC namespaces of its own, with the broker's home,
// the operator's socket and the other doors out of the tree covered.
//
// What it protects: the broker's home, key, vault and log, the operator socket
// and the processes outside, from every process of the tree, although they have
// the same uid. In a sandbox also all other files. The kernel keeps the walls:
// the command runs in a second user namespace, in which it can neither remove
// nor look below a cover, and everything in the pid namespace dies with its
// first process.
//
// What it does not do: it decides nothing and asks nobody. Whether a tree is a
// launch, and whose, is said by the daemon, which looks at the tree itself.
// A bound tree may still write whatever its uid may write, so it can leave files
// that somebody later runs outside.
//
// A tree is built in two steps, so that the daemon can look at it in between:
//
//	P  sbctl run            Start: F exists, has covered everything, and waits
//	F  pid 1 of the tree    the same program, recognised by Main
//	C  the command          Go: forked by F
//
// F is the leader of the tree's session, reaps what is orphaned, and ends when
// the command ends or when P is gone; either way nothing of the tree is left.
package launch

import (
	"errors"
	"fmt"
	"os"
)

// ErrRefused is in every error about a Config that must not be started, however
// well the platform could: a workspace that holds the broker's home, say.
var ErrRefused = errors.New("refused")

// ErrEnded says that the tree ended before the command did: its first process
// was killed.
var ErrEnded = errors.New("the launch ended")

// Unsupported says which piece this machine lacks. Nothing weaker was started.
type Unsupported struct {
	Piece string // what is missing, as a noun
	Hint  string // how a person may get it, a sentence; empty when there is no way
	Err   error  // what the kernel said; nil when nothing was tried
}

func (u *Unsupported) Error() string {
	if u.Err != nil {
		return fmt.Sprintf("this machine does not provide %s: %v", u.Piece, u.Err)
	}
	return fmt.Sprintf("this machine does not provide %s", u.Piece)
}

func (u *Unsupported) Unwrap() error { return u.Err }

// Config says what a tree may see. The zero value of a field is its default.
type Config struct {
	// Home of the broker, absolute. Required outside a launch. Inside one it may
	// be what the outer launch left of it.
	Home string
	// SocketDir holds broker/ and operator/. Empty means Home/run.
	SocketDir string
	// Homes are further homes of brokers to cover.
	Homes []string

	// Sandbox closes the view: see Describe.
	Sandbox bool
	// NoNet gives the tree a network of its own, with nothing but loopback.
	NoNet bool
	// NoBroker covers the broker's socket too: for what an agent's tools run, which
	// has nothing to ask there.
	NoBroker bool
	// Workspace is the directory that a sandbox may write. Empty means the
	// working directory. Unused without Sandbox.
	Workspace string
	// Readable are files and directories that a sandbox may read and execute
	// besides the system's: that of sb-mcp, that of the command. Unused without
	// Sandbox.
	Readable []string

	// Tasks is how many processes and threads the tree may have at once, where the
	// kernel counts them by user namespace (Linux 5.14; for uid 0 by pid namespace,
	// 6.14). When memory runs out a tree with a limit is the first to go. 0: no limit.
	Tasks int

	// Environ is the caller's environment; sockets that it names are covered.
	// Nil means os.Environ().
	Environ []string

	// Subject and Profile are written where Inside finds them. They decide
	// nothing.
	Subject, Profile string

	// Stdin, Stdout and Stderr are the command's; those that are terminals are
	// replaced by a terminal of the tree's own, which Wait relays. Nil means this
	// process's own.
	Stdin, Stdout, Stderr *os.File `json:"-"`
}

// Command is what a tree runs.
type Command struct {
	// Argv is the program and its arguments. A program without a slash is looked
	// up in the PATH of Env, inside the tree.
	Argv []string
	// Dir is the working directory, as seen inside. Empty means the caller's, or
	// a sandbox's workspace when the caller's is not visible there.
	Dir string
	// Env is the whole environment: see Environ. Of two values the later counts.
	Env []string
	// Handed is more of it, NAME=value each, in memory that the caller wipes: Go
	// makes no other copy in this process.
	Handed [][]byte
}

// Rule is one line of what a tree sees, for people: see Describe.
type Rule struct {
	Path   string `json:"path"`   // or what else it is about: "network", "processes"
	Access Access `json:"access"` // what the tree may do with it
	Why    string `json:"why"`    // a short sentence without a full stop
}

// Access is one of the words below.
type Access string

// What a tree may do with a place.
const (
	AccessHidden  Access = "hidden"     // covered by something empty
	AccessRead    Access = "read"       // read and execute
	AccessWrite   Access = "read-write" // the same as outside, as far as modes allow
	AccessOwn     Access = "own"        // the tree has its own, gone with it
	AccessOutside Access = "as outside" // nothing changed
)

// Marker is what the first process of a tree leaves for a program inside that
// wants to know where it is. It can be forged inside and proves nothing.
type Marker struct {
	Subject string `json:"subject"`
	Profile string `json:"profile,omitempty"`
	Sandbox bool   `json:"sandbox"`
	NoNet   bool   `json:"noNet"`
	// Workspace of a sandbox.
	Workspace string `json:"workspace,omitempty"`
}

// markerPath is where it lies.
const markerPath = "/run/subject-broker/launch"
