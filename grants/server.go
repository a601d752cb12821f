package grants

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

const (
	maxServerName = 32   // bytes in the name of a server
	maxCommand    = 256  // words in a command
	maxWord       = 8192 // bytes in a word of a command, in a value of env and headers, and in a url
	maxVariables  = 256  // entries in env, and in headers
	maxVariable   = 128  // bytes in the name of a variable or a header
)

var (
	errServerName = errors.New("a server is named by 1 to 32 lower-case letters, digits or '-' and starts with a letter or digit")
	errURL        = errors.New("url is https, or http to this machine, without a user, a password or a fragment")
	errExpansion  = errors.New("'${' begins ${secret:NAME} and nothing else")
)

// Server is an MCP server behind the broker. One that is only wrapped has neither
// command nor url.
type Server struct {
	Name    string            `json:"name"`
	Command []string          `json:"command,omitempty"` // program and arguments, at most 256
	Cwd     string            `json:"cwd,omitempty"`     // absolute, of the command; empty: a fresh empty folder
	URL     string            `json:"url,omitempty"`     // of a server that speaks Streamable HTTP
	Env     map[string]string `json:"env,omitempty"`     // of the command; values may hold ${secret:NAME}
	Headers map[string]string `json:"headers,omitempty"` // of each request to the url, likewise

	Hosted       bool      `json:"hosted,omitempty"`      // it was added: the daemon has it run
	ObserveUntil time.Time `json:"observeUntil,omitzero"` // until then its rules only log; zero: they are in force
	Created      time.Time `json:"created,omitzero"`
	Owner        string    `json:"owner,omitempty"` // owner of the document that declared it; empty: no document did
	By           *uint32   `json:"by,omitempty"`    // operator who said last how it is run: only that one's personal secrets are given to it; nil: the daemon's own uid
}

// CheckServer returns an error unless name fits ^[a-z0-9][a-z0-9-]{0,31}$.
func CheckServer(name string) error {
	if len(name) == 0 || len(name) > maxServerName || name[0] == '-' {
		return errServerName
	}
	for i := range len(name) {
		if c := name[i]; c != '-' && (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return errServerName
		}
	}
	return nil
}

// Validate returns an error that names the field that is wrong, and never repeats a
// value: somebody may have written a secret there.
func (s *Server) Validate() error {
	if err := CheckServer(s.Name); err != nil {
		return err
	}
	if err := s.checkKind(); err != nil {
		return err
	}
	if err := checkVariables("env", s.Env, checkVariable); err != nil {
		return err
	}
	if err := checkVariables("headers", s.Headers, checkHeader); err != nil {
		return err
	}
	if err := checkTime("observeUntil", s.ObserveUntil); err != nil {
		return err
	}
	return checkStored(s.Owner, s.Created)
}

// checkKind checks what says how the server is reached.
func (s *Server) checkKind() error {
	switch {
	case len(s.Command) > 0 && s.URL != "":
		return errors.New("a server has either command or url, not both")
	case s.Hosted && len(s.Command) == 0 && s.URL == "":
		return errors.New("a server needs either command or url")
	case !s.Hosted && (len(s.Command) > 0 || s.URL != ""):
		return errors.New("a server that is only wrapped has neither command nor url")
	case len(s.Command) == 0 && (s.Cwd != "" || len(s.Env) > 0):
		return errors.New("cwd and env belong to a command")
	case s.URL == "" && len(s.Headers) > 0:
		return errors.New("headers belong to a url")
	case len(s.Command) > maxCommand:
		return fmt.Errorf("command has at most %d words", maxCommand)
	case len(s.Command) > 0 && s.Command[0] == "":
		return errors.New("command begins with a program")
	case s.Cwd != "" && (!path.IsAbs(s.Cwd) || path.Clean(s.Cwd) != s.Cwd || !isText(s.Cwd)):
		return errors.New("cwd is an absolute, clean path")
	}
	for _, word := range s.Command {
		if !isText(word) {
			return fmt.Errorf("a word of command is at most %d bytes of UTF-8 text without NUL", maxWord)
		}
		if strings.Contains(word, "${secret:") {
			return errors.New("a secret does not go into command, which other processes can see: put it into env or headers")
		}
	}
	if s.URL != "" {
		return CheckURL(s.URL)
	}
	return nil
}

// CheckURL returns an error unless text is the url of a server: https, or http to a
// loopback address or localhost, without user, password and fragment.
func CheckURL(text string) error {
	u, err := url.Parse(text)
	if err != nil || !isText(text) || strings.ContainsAny(text, " \\") || strings.Contains(text, "${") || u.Hostname() == "" || u.User != nil || u.Fragment != "" || strings.HasSuffix(text, "#") {
		return errURL
	}
	switch u.Scheme {
	case "https":
		return nil
	case "http":
		ip, err := netip.ParseAddr(u.Hostname())
		if u.Hostname() == "localhost" || err == nil && ip.Unmap().IsLoopback() {
			return nil
		}
	}
	return errURL
}

// isText reports whether s may stand in a command, an environment or a url.
func isText(s string) bool {
	return len(s) <= maxWord && utf8.ValidString(s) && !strings.ContainsRune(s, 0)
}

func checkVariables(what string, all map[string]string, check func(name string) error) error {
	if len(all) > maxVariables {
		return fmt.Errorf("%s: at most %d entries", what, maxVariables)
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if err := check(name); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		value := all[name]
		if !isText(value) || what == "headers" && strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) {
			return fmt.Errorf("%s: the value of %s is at most %d bytes of UTF-8 text without control characters", what, name, maxWord)
		}
		if _, err := pieces(value); err != nil {
			return fmt.Errorf("%s: the value of %s: %w", what, name, err)
		}
	}
	return nil
}

// checkVariable refuses what no shell could set, and what is for the broker's own
// programs or would change how programs are loaded.
func checkVariable(name string) error {
	ok := len(name) > 0 && len(name) <= maxVariable && (name[0] < '0' || name[0] > '9')
	for i := range len(name) {
		ok = ok && (isAlphanumeric(name[i]) || name[i] == '_')
	}
	switch {
	case !ok:
		return errors.New("a name is 1 to 128 letters, digits or '_' and does not start with a digit")
	case strings.HasPrefix(name, "SB_"):
		return errors.New("names that start with SB_ are the broker's own")
	}
	return nil
}

func checkHeader(name string) error {
	ok := len(name) > 0 && len(name) <= maxVariable
	for i := range len(name) {
		ok = ok && (isAlphanumeric(name[i]) || strings.IndexByte("!#$%&'*+-.^_`|~", name[i]) >= 0)
	}
	if !ok {
		return errors.New("a name is 1 to 128 letters, digits or one of !#$%&'*+-.^_`|~")
	}
	return nil
}

// canonical is the form in which s is stored.
func (s *Server) canonical() Server {
	c := *s
	c.ObserveUntil, c.Created = s.ObserveUntil.UTC(), s.Created.UTC()
	return c
}

// Secrets returns the resources that the values of env and headers name, sorted,
// each once.
func (s *Server) Secrets() []string {
	var names []string
	for _, all := range []map[string]string{s.Env, s.Headers} {
		for _, value := range all {
			found, _ := pieces(value)
			for _, p := range found {
				if p.secret {
					names = append(names, p.text)
				}
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Expand puts secrets in the place of each ${secret:NAME} in a value of env or
// headers. Nothing else is expanded, and what lookup returns is not looked into.
func Expand(value string, lookup func(name string) ([]byte, error)) ([]byte, error) {
	found, err := pieces(value)
	if err != nil {
		return nil, err
	}
	var expanded []byte
	for _, p := range found {
		content := []byte(p.text)
		if p.secret {
			if content, err = lookup(p.text); err != nil {
				clear(expanded)
				return nil, err
			}
		}
		grown := slices.Concat(expanded, content)
		clear(expanded) // append would leave copies behind
		expanded = grown
	}
	return expanded, nil
}

// piece is a part of a value: text, or the name of a secret.
type piece struct {
	text   string
	secret bool
}

func pieces(value string) ([]piece, error) {
	var found []piece
	for {
		before, rest, more := strings.Cut(value, "${")
		if before != "" {
			found = append(found, piece{text: before})
		}
		if !more {
			return found, nil
		}
		reference, after, closed := strings.Cut(rest, "}")
		name, ok := strings.CutPrefix(reference, "secret:")
		if !closed || !ok || CheckName(name) != nil {
			return nil, errExpansion
		}
		found = append(found, piece{name, true})
		value = after
	}
}

type serverRow struct {
	V int `json:"v"`
	Server
}

// EncodeServer returns the row that [DecodeServer] reads. The same server gives the
// same bytes.
func EncodeServer(s Server) ([]byte, error) {
	if err := s.Validate(); err != nil {
		return nil, fmt.Errorf("encoding server: %w", err)
	}
	return json.Marshal(serverRow{rowVersion, s.canonical()})
}

// DecodeServer reads a row of [EncodeServer] and nothing else: what would not be
// written byte for byte the same is refused.
func DecodeServer(row []byte) (Server, error) {
	var decoded serverRow
	return decodeRow("server", row, &decoded, &decoded.Server, EncodeServer)
}
