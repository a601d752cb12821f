package policy

import (
	"errors"
	"fmt"
	"path"
	"strings"

	"subjectbroker/grants"
	"subjectbroker/grants/rules"
)

// Document is what a document says or, as the current state that it is compared
// with, what the daemon holds.
type Document struct {
	// Owner names what [Plan] may prune: things that carry the same owner.
	Owner string

	Resources map[string]Resource // by name
	Subjects  map[string]Subject  // by name

	// Profiles and Tools use no time of creation when they come from [Parse],
	// which sorts their lists.
	Profiles map[string]grants.Profile // by name
	Tools    map[string]grants.Tool    // by name

	// Servers and Policies likewise use no time of creation. A server's observeUntil is
	// no part of a document.
	Servers  map[string]grants.Server // by name
	Policies map[Pair]rules.Policy

	// Tenants likewise use no time of creation.
	Tenants map[string]grants.Tenant // by name

	// Grants use no ID, clock of the boot or time of creation when they come
	// from [Parse], which sorts them by subject, capability and effect.
	Grants []grants.Grant
}

// Kinds of sealed content.
const (
	KindText   = "text"
	KindSecret = "secret"
	KindBinary = "binary"
)

// Pins of registered files.
const (
	PinContent = "content"
	PinPath    = "path"
)

// DomainPersonal is the one domain beside the empty one.
const DomainPersonal = "personal"

// Resource is sealed content, with Kind, or a registered file, with File and
// Pin. What it leaves empty is left alone where the resource exists already.
type Resource struct {
	Kind   string
	File   string // absolute, or below "${home}/" until [Document.Expand]
	Pin    string // PinContent or PinPath
	SHA256 string // what the file must have, lower-case hex; empty: whatever it has
	Domain string // empty or DomainPersonal
	Note   string
	Owner  string // of the document that declared it; Parse fills in its own
}

// Subject is a subject. What it leaves out is left alone where the subject
// exists already; a new one is enabled and cooperative.
type Subject struct {
	UID     *uint32     // nil: not said
	MinTier grants.Tier // none: not said
	Enabled *bool       // nil: not said
	Owner   string      // of the document that declared it; Parse fills in its own
}

// FromSubject describes a subject in full, as a part of the current state.
func FromSubject(s grants.Subject) Subject {
	described := Subject{UID: s.UID, MinTier: max(s.MinTier, grants.Cooperative), Owner: s.Owner}
	if s.Disabled {
		described.Enabled = new(bool)
	}
	return described
}

// ApplyTo sets what s says on to, and leaves the rest of it alone.
func (s Subject) ApplyTo(to *grants.Subject) {
	if s.UID != nil {
		to.UID = s.UID
	}
	if s.MinTier != 0 {
		to.MinTier = s.MinTier
	}
	if s.Enabled != nil {
		to.Disabled = !*s.Enabled
	}
}

// homePrefix stands for the operator's own home directory, so that a document
// can travel to another machine.
const homePrefix = "${home}/"

// Expand puts home, an absolute clean path, in the place of ${home}. Where no
// file is below ${home} it does not matter what home is.
func (d *Document) Expand(home string) error {
	for name, r := range d.Resources {
		rest, ok := strings.CutPrefix(r.File, homePrefix)
		if !ok {
			continue
		}
		if !path.IsAbs(home) || path.Clean(home) != home {
			return errors.New("the folder that ${home} stands for must be an absolute, clean path")
		}
		r.File = path.Join(home, rest)
		d.Resources[name] = r
	}
	return nil
}

// Fold is the reverse of Expand: it writes ${home} for home wherever a file lies
// below it. An empty home changes nothing.
func (d *Document) Fold(home string) {
	if home == "" {
		return
	}
	for name, r := range d.Resources {
		if rest, ok := strings.CutPrefix(r.File, strings.TrimSuffix(home, "/")+"/"); ok {
			r.File = homePrefix + rest
			d.Resources[name] = r
		}
	}
}

func (r *Resource) check() error {
	switch {
	case r.Kind == "" && r.File == "":
		return errors.New("a resource needs either kind or file")
	case r.Kind != "" && r.File != "":
		return errors.New("a resource has either kind or file, not both")
	case r.File == "" && (r.Pin != "" || r.SHA256 != ""):
		return errors.New("pin and sha256 belong to a file")
	case r.File != "" && r.Pin != PinContent && r.Pin != PinPath:
		return errors.New("pin is content or path")
	case r.Kind != "" && r.Kind != KindText && r.Kind != KindSecret && r.Kind != KindBinary:
		return errors.New("kind is text, secret or binary")
	case r.Domain != "" && r.Domain != DomainPersonal:
		return errors.New("domain is personal, or left out")
	case r.SHA256 != "" && !isSHA256(r.SHA256):
		return errors.New("sha256 is 64 lower-case hexadecimal digits")
	case r.SHA256 != "" && r.Pin != PinContent:
		return errors.New("sha256 needs pin: content")
	}
	if r.File != "" {
		if err := checkFile(r.File); err != nil {
			return err
		}
	}
	return grants.CheckNote(r.Note)
}

func (s *Subject) check() error {
	if s.UID != nil {
		if err := grants.CheckUID(*s.UID); err != nil {
			return err
		}
	}
	if s.MinTier == 0 {
		return nil
	}
	_, err := grants.ParseMinTier(s.MinTier.String())
	return err
}

// maxPath is PATH_MAX of Linux without its NUL.
const maxPath = 4095

func checkFile(file string) error {
	absolute := file
	if rest, ok := strings.CutPrefix(file, homePrefix); ok {
		absolute = "/" + rest
	}
	switch {
	case !path.IsAbs(absolute) || path.Clean(absolute) != absolute || absolute == "/":
		return errors.New("file is an absolute, clean path, or one below ${home}/")
	case strings.Contains(absolute, "${home}"):
		return errors.New("${home} stands only at the beginning of file")
	case len(file) > maxPath || strings.ContainsFunc(file, isControl):
		return fmt.Errorf("file is at most %d bytes without control characters", maxPath)
	}
	return nil
}

func isControl(r rune) bool { return r < ' ' || 0x7f <= r && r < 0xa0 }

func isSHA256(s string) bool {
	const digits = "0123456789abcdef"
	return len(s) == 64 && strings.Trim(s, digits) == ""
}
