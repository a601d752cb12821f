package grants

import (
	"errors"
	"unicode"
	"unicode/utf8"
)

const (
	maxName = 128  // bytes in the name of a subject, a resource or an owner
	maxNote = 1024 // bytes in a note
	maxID   = 32   // bytes in the id of a grant
)

// The errors of the checks do not repeat what they refuse: a malformed name may
// be anything, a secret pasted into the wrong field included.
var (
	errName = errors.New("a name is 1 to 128 letters, digits, '.', '_' or '-' and starts with a letter or digit")
	errNote = errors.New("a note is at most 1024 bytes of UTF-8 text on one line")
	errID   = errors.New("a grant id is 1 to 32 lower-case letters")
)

// CheckName returns an error unless name fits ^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$,
// the rule for names of subjects, resources and owners.
func CheckName(name string) error {
	if len(name) == 0 || len(name) > maxName || !isAlphanumeric(name[0]) {
		return errName
	}
	for i := range len(name) {
		if !isNameByte(name[i]) {
			return errName
		}
	}
	return nil
}

// CheckNote returns an error unless note is a text for people: valid UTF-8, at
// most 1024 bytes, no control characters and so one line. Empty is allowed.
func CheckNote(note string) error {
	if len(note) > maxNote || !utf8.ValidString(note) {
		return errNote
	}
	for _, r := range note {
		if unicode.IsControl(r) || r == '\u2028' || r == '\u2029' {
			return errNote
		}
	}
	return nil
}

func checkID(id string) error {
	if len(id) == 0 || len(id) > maxID {
		return errID
	}
	for i := range len(id) {
		if id[i] < 'a' || id[i] > 'z' {
			return errID
		}
	}
	return nil
}

func isAlphanumeric(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}

func isNameByte(c byte) bool {
	return isAlphanumeric(c) || c == '.' || c == '_' || c == '-'
}
