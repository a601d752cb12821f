// Package agents writes the broker's shim into the configuration of an AI
// agent, and takes it out again. It protects the rest of that configuration,
// which belongs to the operator: nothing but the broker's own entry is touched,
// a file it cannot read exactly as the agent would is refused as it is, and
// removing the entry gives back the bytes that were there before.
//
// It does not create subjects, talk to the daemon, start the shim or use a
// terminal; its caller does. What it writes is no secret: an entry names a
// program, a subject and perhaps a home.
package agents

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"subjectbroker/cmd/sbctl/internal/agents/textedit"
	"subjectbroker/proto/place"
)

// Agent is an AI agent whose configuration is known.
type Agent string

// The agents that can be connected.
const (
	Claude   Agent = "claude"
	Codex    Agent = "codex"
	Gemini   Agent = "gemini"
	OpenCode Agent = "opencode"
)

// All returns the known agents, in the order of the documentation.
func All() []Agent { return []Agent{Claude, Codex, Gemini, OpenCode} }

// ParseAgent is the agent called name. The error lists those there are.
func ParseAgent(name string) (Agent, error) {
	for _, agent := range All() {
		if string(agent) == name {
			return agent, nil
		}
	}
	return "", fmt.Errorf("unknown agent %q: want claude, codex, gemini or opencode", name)
}

// Title is the agent's name as its maker writes it.
func (a Agent) Title() string {
	s, _ := specOf(a)
	return s.title
}

// Scope says which of an agent's configurations is meant.
type Scope string

// Scopes. User holds for the operator everywhere, Project in one directory.
const (
	User    Scope = "user"
	Project Scope = "project"
)

// Sentinels, for exit codes.
var (
	ErrInvalid   = errors.New("refused input")         // Config, or a file that its agent could not read either
	ErrConflict  = errors.New("entry is not ours")     // an entry of our name that this package would not have written
	ErrNotFound  = errors.New("not connected")         // nothing to disconnect
	ErrUnsafe    = errors.New("file is not safe")      // foreign owner, not a regular file, more than one name
	ErrConcurred = errors.New("file changed meantime") // somebody else wrote it while we did; nothing was written
)

// Config says whom to connect to what.
type Config struct {
	Agent   Agent  // required
	Subject string // required to connect; Disconnect without one takes every entry of ours
	Scope   Scope  // "": User

	Shim      string // absolute path of sb-mcp; required to connect
	Home      string // broker's home, absolute; "" or the default home: not written into the entry
	SocketDir string // broker's socket directory, absolute; "" or the one below Home: not written

	UserHome   string // absolute; "": HOME, else the password database
	ProjectDir string // absolute; required for Project. For List and warnings: the project that is looked at too
	// Getenv reads the variables by which an operator moves an agent's
	// configuration (CLAUDE_CONFIG_DIR, CODEX_HOME, GEMINI_CLI_HOME,
	// XDG_CONFIG_HOME, OPENCODE_CONFIG). nil: none is set.
	Getenv func(string) string

	DryRun bool // compute everything, write nothing
}

// Result tells what was done, or with DryRun what would be.
type Result struct {
	Agent    Agent
	Scope    Scope
	File     string   // the file that was written, links followed
	Names    []string // of the entries written or removed; one when connecting
	Subject  string
	Before   []byte // nil: there was no file
	After    []byte // nil: the file was, or would be, removed
	Changed  bool
	Diff     string   // unified; "" when nothing changed. Strings that are not ours are masked
	Snippet  string   // connecting: a whole file with nothing but the entry, for a person to paste
	Warnings []string // one sentence each
}

// Connect writes the entry for Subject. Doing it again changes nothing.
//
// Errors: ErrInvalid, ErrConflict, ErrUnsafe, ErrConcurred, or what the file
// system says; the text names the file, and the line where there is one.
func Connect(_ context.Context, cfg Config) (Result, error) {
	s, err := cfg.settle(true)
	if err != nil {
		return Result{}, err
	}
	want := s.entry()
	res := Result{Agent: cfg.Agent, Scope: s.scope, Subject: cfg.Subject}
	f, err := openFile(s.file())
	if err != nil {
		return res, err
	}
	res.File, res.Before = f.path, f.before
	doc, err := s.spec.parse(f.path, f.before, s.ProjectDir)
	if err != nil {
		return res, err
	}
	entry, err := choose(doc.entries(), cfg.Subject, f.path)
	if err != nil {
		return res, err
	}
	name := entry.name
	res.Names = []string{name}
	res.Snippet = string(s.spec.fresh(name, want))

	var edits []textedit.Edit
	switch {
	case f.before == nil:
		res.After = s.spec.fresh(name, want)
		edits = []textedit.Edit{{Insert: string(res.After)}}
	case entry.found == nil:
		edits, err = doc.insert(name, want)
	default:
		edits, err = doc.set(*entry.found, want)
	}
	if err != nil {
		return res, err
	}
	if f.before != nil {
		res.After = textedit.Apply(f.before, edits...)
	}
	from := f.path
	if f.before == nil {
		from = textedit.Nowhere
	}
	res.Diff = textedit.Diff(from, f.path, f.before, mask, edits...)
	res.Changed = res.Diff != ""
	if err := s.prove(f.path, res.After, name, want); err != nil {
		return res, err
	}
	if entry.found != nil && entry.found.off {
		res.Warnings = append(res.Warnings, fmt.Sprintf("%s has the entry %q switched off", s.spec.title, name))
	}
	res.Warnings = append(res.Warnings, s.warnings(name)...)
	if !res.Changed || cfg.DryRun {
		return res, nil
	}
	return res, f.write(res.After, s.newFileMode())
}

// Disconnect takes the entry of Subject out, or all of ours if Subject is
// empty. A file that Connect made, and that holds nothing else, is removed.
//
// Errors: as Connect, and ErrNotFound.
func Disconnect(_ context.Context, cfg Config) (Result, error) {
	s, err := cfg.settle(false)
	if err != nil {
		return Result{}, err
	}
	res := Result{Agent: cfg.Agent, Scope: s.scope, Subject: cfg.Subject}
	f, err := openFile(s.file())
	if err != nil {
		return res, err
	}
	res.File, res.Before = f.path, f.before
	if f.before == nil {
		return res, fmt.Errorf("%w: %s does not exist", ErrNotFound, f.path)
	}
	res.After = f.before
	var hunks []string
	gone := false
	for {
		doc, err := s.spec.parse(f.path, res.After, s.ProjectDir)
		if err != nil {
			return res, err
		}
		var mine *entry
		for _, e := range doc.entries() {
			if e.ours() && (cfg.Subject == "" || e.subject() == cfg.Subject) {
				mine = &e
				break
			}
		}
		if mine == nil {
			break
		}
		edits, empty, err := doc.remove(mine.name)
		if err != nil {
			return res, err
		}
		to := f.path
		if empty {
			to = textedit.Nowhere
		}
		hunks = append(hunks, textedit.Diff(f.path, to, res.After, mask, edits...))
		res.After = textedit.Apply(res.After, edits...)
		res.Names = append(res.Names, mine.name)
		if gone = empty; gone {
			break
		}
	}
	if len(res.Names) == 0 {
		if cfg.Subject != "" {
			return res, fmt.Errorf("%w: %s has no entry of ours for subject %q", ErrNotFound, f.path, cfg.Subject)
		}
		return res, fmt.Errorf("%w: %s has no entry of ours", ErrNotFound, f.path)
	}
	res.Changed, res.Diff = true, strings.Join(hunks, "")
	if gone {
		res.After = nil
	}
	if cfg.DryRun {
		return res, nil
	}
	if gone {
		return res, f.remove()
	}
	return res, f.write(res.After, s.newFileMode())
}

// ShimArgs are the arguments an agent starts the shim with, for the caller's
// own `sb-mcp check`.
func ShimArgs(cfg Config) []string {
	args := []string{"--subject", cfg.Subject}
	if isHome, err := place.DefaultHome(); cfg.Home != "" && (err != nil || filepath.Clean(cfg.Home) != isHome) {
		args = append(args, "--home", cfg.Home)
	}
	if cfg.SocketDir != "" {
		home := cfg.Home
		if home == "" {
			home, _ = place.DefaultHome()
		}
		if filepath.Clean(cfg.SocketDir) != filepath.Join(home, "run") {
			args = append(args, "--socket", cfg.SocketDir)
		}
	}
	return args
}

// setup is a Config that has been checked.
type setup struct {
	Config
	spec   spec
	scope  Scope
	getenv func(string) string
}

var names = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

// IsName says whether a subject, or a resource after Scheme, may be called name.
func IsName(name string) bool { return names.MatchString(name) }

func (cfg Config) settle(connecting bool) (*setup, error) {
	s := &setup{Config: cfg, scope: cfg.Scope, getenv: cfg.Getenv}
	known, ok := specOf(cfg.Agent)
	if !ok {
		_, err := ParseAgent(string(cfg.Agent))
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	s.spec = known
	if s.scope == "" {
		s.scope = User
	}
	if s.getenv == nil {
		s.getenv = func(string) string { return "" }
	}
	if s.UserHome == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return nil, fmt.Errorf("%w: finding your home directory: %w", ErrInvalid, err)
		}
		s.UserHome = home
	}
	if (connecting || cfg.Subject != "") && !IsName(cfg.Subject) {
		return nil, fmt.Errorf("%w: %q is no name for a subject: letters, digits, dot, underscore and dash, at most 128", ErrInvalid, cfg.Subject)
	}
	switch {
	case s.scope != User && s.scope != Project:
		return nil, fmt.Errorf("%w: scope %q: want user or project", ErrInvalid, s.scope)
	case s.scope == Project && !filepath.IsAbs(cfg.ProjectDir):
		return nil, fmt.Errorf("%w: Config.ProjectDir must be an absolute path for the project scope", ErrInvalid)
	case connecting && !filepath.IsAbs(cfg.Shim):
		return nil, fmt.Errorf("%w: Config.Shim must be the absolute path of sb-mcp", ErrInvalid)
	case cfg.Home != "" && !filepath.IsAbs(cfg.Home), cfg.SocketDir != "" && !filepath.IsAbs(cfg.SocketDir):
		return nil, fmt.Errorf("%w: Config.Home and Config.SocketDir must be absolute paths", ErrInvalid)
	}
	return s, nil
}

// file is where the agent keeps its configuration for this scope.
func (s *setup) file() string { return s.spec.file(s.scope, s.UserHome, s.ProjectDir, s.getenv) }

// entry is what the agent's configuration is to hold.
func (s *setup) entry() command { return command{program: s.Shim, args: ShimArgs(s.Config)} }

// newFileMode is for a file that does not exist yet: a project's is meant to be
// shared, a user's may come to hold tokens of other servers.
func (s *setup) newFileMode() os.FileMode {
	if s.scope == Project {
		return 0o644
	}
	return 0o600
}

// prove reads what is about to be written as the agent will, so that a fault in
// the editing never reaches the disk.
func (s *setup) prove(path string, after []byte, name string, want command) error {
	doc, err := s.spec.parse(path, after, s.ProjectDir)
	if err != nil {
		return fmt.Errorf("checking the edited text: %w", err)
	}
	for _, e := range doc.entries() {
		if e.name == name && e.command.equal(want) {
			return nil
		}
	}
	return fmt.Errorf("checking the edited text of %s: the entry %q is not in it", path, name)
}

// Names of entries. An agent shows them to its model as part of a tool's name,
// which must stay within 64 letters and allows few kinds of them.
const (
	entryName    = "subject-broker"
	longestShort = 26
)

var notInNames = regexp.MustCompile(`[^A-Za-z0-9-]`)

// nameFor is the entry's name where entryName belongs to another subject. A
// subject that does not fit is cut and told apart by a hash.
func nameFor(subject string) string {
	short := notInNames.ReplaceAllString(subject, "-")
	if short == subject && len(short) <= longestShort {
		return entryName + "-" + short
	}
	sum := sha256.Sum256([]byte(subject))
	return entryName + "-" + short[:min(len(short), 20)] + "-" + hex.EncodeToString(sum[:2])
}

// choice is the entry that Connect writes: found, or only its name.
type choice struct {
	name  string
	found *entry
}

// choose picks the entry of this subject, else the first free name.
func choose(entries []entry, subject, path string) (choice, error) {
	byName := map[string]entry{}
	for _, e := range entries {
		byName[e.name] = e
		if e.ours() && e.subject() == subject {
			return choice{e.name, &e}, nil
		}
	}
	for _, name := range []string{entryName, nameFor(subject)} {
		e, taken := byName[name]
		if !taken {
			return choice{name: name}, nil
		}
		if !e.ours() {
			return choice{}, fmt.Errorf("%w: %s:%d: the entry %q does not start sb-mcp for a subject; rename or remove it first", ErrConflict, path, e.line, name)
		}
	}
	return choice{}, fmt.Errorf("%w: %s: the entry %q belongs to another subject", ErrConflict, path, nameFor(subject))
}
