package grants

import (
	"errors"
	"strings"
)

// Action is what a subject may do with an object. The list is closed.
type Action uint8

// Actions. The zero Action is none and never granted.
const (
	Read        Action = iota + 1 // content is handed to the subject
	Use                           // content is used for the subject, who does not see it
	Call                          // a tool of another server is called
	Reach                         // something outside the broker is reached, by the host's own tools
	MemoryRead                    // entries of a tenant are read
	MemoryWrite                   // entries of a tenant are written

	actionCount = int(MemoryWrite) + 1
)

var actionNames = [actionCount]string{
	Read: "read", Use: "use", Call: "call", Reach: "reach",
	MemoryRead: "memory.read", MemoryWrite: "memory.write",
}

// String returns the action's name; empty for none.
func (a Action) String() string {
	if int(a) < actionCount {
		return actionNames[a]
	}
	return ""
}

// NamesResource reports whether the action's objects are names of resources.
func (a Action) NamesResource() bool { return a == Read || a == Use }

// NamesTenant reports whether the action's objects are names of tenants.
func (a Action) NamesTenant() bool { return a == MemoryRead || a == MemoryWrite }

// maxObject is the longest object in bytes. Names are shorter; tools and
// addresses may need the room.
const maxObject = 256

var (
	errAction  = errors.New("an action is one of read, use, call, reach, memory.read, memory.write")
	errObject  = errors.New("an object of call and reach is 1 to 256 letters, digits, '.', '_', '-', '/' or ':' and starts with a letter or digit")
	errPattern = errors.New("'*' stands only at the end, right after one of ':' '/' '.' '-' '_'")
)

// Capability is the name of one thing that a subject may do: action:object. It
// is a name, not a token; knowing it gives nothing.
type Capability struct {
	Action Action
	Object string
}

// String returns action:object.
func (c Capability) String() string { return c.Action.String() + ":" + c.Object }

// ParseCapability parses action:object. Without a colon, s is an object of
// read. The objects of read, use and memory are names ([CheckName]).
func ParseCapability(s string) (Capability, error) {
	action, object, err := splitAction(s)
	if err != nil {
		return Capability{}, err
	}
	if err := checkObject(action, object); err != nil {
		return Capability{}, err
	}
	return Capability{action, object}, nil
}

// Pattern matches capabilities of one action: one exact object, or, when Prefix
// is set, every object that starts with Object. It is judged when asked, so it
// covers objects that come later.
type Pattern struct {
	Action Action
	Object string
	Prefix bool
}

// ParsePattern parses action:object, where object may end in one '*' right
// after ':' '/' '.' '-' or '_': "read:*" and "read:docs.*", but not
// "read:doc*". Without a colon, s is for read.
func ParsePattern(s string) (Pattern, error) {
	action, object, err := splitAction(s)
	if err != nil {
		return Pattern{}, err
	}
	object, prefix := strings.CutSuffix(object, "*")
	p := Pattern{action, object, prefix}
	return p, p.check()
}

// String returns the text that [ParsePattern] reads, action always included.
func (p Pattern) String() string {
	s := p.Action.String() + ":" + p.Object
	if p.Prefix {
		s += "*"
	}
	return s
}

// MarshalText returns [Pattern.String].
func (p Pattern) MarshalText() ([]byte, error) {
	return []byte(p.String()), p.check()
}

// UnmarshalText parses as [ParsePattern] does.
func (p *Pattern) UnmarshalText(text []byte) error {
	parsed, err := ParsePattern(string(text))
	if err == nil {
		*p = parsed
	}
	return err
}

// Matches reports whether c is one of the capabilities that p names.
func (p Pattern) Matches(c Capability) bool {
	if p.Action != c.Action {
		return false
	}
	if p.Prefix {
		return strings.HasPrefix(c.Object, p.Object)
	}
	return p.Object == c.Object
}

// Covers reports whether p matches every capability that q matches.
func (p Pattern) Covers(q Pattern) bool {
	if q.Prefix && !p.Prefix {
		return false
	}
	return p.Matches(Capability{q.Action, q.Object})
}

// Overlaps reports whether some capability is matched by p and by q.
func (p Pattern) Overlaps(q Pattern) bool { return p.Covers(q) || q.Covers(p) }

func (p Pattern) check() error {
	switch {
	case p.Action == 0 || p.Action.String() == "":
		return errAction
	case strings.Contains(p.Object, "*"):
		return errPattern
	case !p.Prefix:
		return checkObject(p.Action, p.Object)
	case p.Object == "":
		return nil // "read:*": the '*' follows the colon of the action
	case !endsAtSeparator(p.Object):
		return errPattern
	}
	return checkObject(p.Action, p.Object)
}

// endsAtSeparator reports whether a pattern's prefix may end where s ends.
func endsAtSeparator(s string) bool {
	switch s[len(s)-1] {
	case ':', '/', '.', '-', '_':
		return true
	}
	return false
}

func splitAction(s string) (Action, string, error) {
	name, object, found := strings.Cut(s, ":")
	if !found {
		return Read, s, nil
	}
	for a := Read; int(a) < actionCount; a++ {
		if actionNames[a] == name {
			return a, object, nil
		}
	}
	return 0, "", errAction
}

func checkObject(a Action, object string) error {
	if a != Call && a != Reach {
		return CheckName(object)
	}
	if len(object) == 0 || len(object) > maxObject || !isAlphanumeric(object[0]) {
		return errObject
	}
	for i := range len(object) {
		if c := object[i]; !isNameByte(c) && c != '/' && c != ':' {
			return errObject
		}
	}
	return nil
}
