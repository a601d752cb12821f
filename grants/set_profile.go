package grants

import (
	"fmt"
	"maps"
	"slices"
)

// PutProfile adds a profile, or replaces the one of that name. Its subject must
// be in the set ([ErrNoSubject]), a profile of that name must not be another
// subject's ([ErrOtherSubject]), and each tool that it lists must be built in or
// in the set ([ErrNoTool]). Nothing changes on error.
func (s *Set) PutProfile(p Profile) error {
	if err := p.Validate(); err != nil {
		return err
	}
	if _, ok := s.holders[p.Subject]; !ok {
		return fmt.Errorf("%w: %s", ErrNoSubject, p.Subject)
	}
	if was, ok := s.profiles[p.Name]; ok && was.Subject != p.Subject {
		return fmt.Errorf("%w: %s", ErrOtherSubject, was.Subject)
	}
	for _, name := range p.Tools {
		if _, ok := s.tools[name]; !ok && !IsBuiltin(name) {
			return fmt.Errorf("%w: %s", ErrNoTool, name)
		}
	}
	s.profiles[p.Name] = p.canonical()
	return nil
}

// RemoveProfile removes the profile of that name and returns it.
func (s *Set) RemoveProfile(name string) (Profile, bool) {
	p, ok := s.profiles[name]
	delete(s.profiles, name)
	return p, ok
}

// Profile returns the profile of that name.
func (s *Set) Profile(name string) (Profile, bool) {
	p, ok := s.profiles[name]
	return p, ok
}

// Profiles returns all profiles, sorted by name.
func (s *Set) Profiles() []Profile { return byName(s.profiles) }

// ProfilesOf returns the profiles of a subject, sorted by name.
func (s *Set) ProfilesOf(subject string) []Profile {
	return slices.DeleteFunc(s.Profiles(), func(p Profile) bool { return p.Subject != subject })
}

// Ceiling returns the ceiling of a run that opens under that profile now.
func (s *Set) Ceiling(profile string) (*Ceiling, bool) {
	p, ok := s.profiles[profile]
	if !ok {
		return nil, false
	}
	return NewCeiling(p, s.Tools()), true
}

// PutTool adds a tool, or replaces the one of that name.
func (s *Set) PutTool(t Tool) error {
	if err := t.Validate(); err != nil {
		return err
	}
	s.tools[t.Name] = t.canonical()
	return nil
}

// RemoveTool removes the tool of that name and returns it. Profiles that list it
// stay; in a ceiling made from one the tool adds nothing any more.
func (s *Set) RemoveTool(name string) (Tool, bool) {
	t, ok := s.tools[name]
	delete(s.tools, name)
	return t, ok
}

// Tool returns the tool of that name. Built-in tools are not in a set.
func (s *Set) Tool(name string) (Tool, bool) {
	t, ok := s.tools[name]
	return t, ok
}

// Tools returns all tools, sorted by name.
func (s *Set) Tools() []Tool { return byName(s.tools) }

func byName[T any](of map[string]T) []T {
	list := make([]T, 0, len(of))
	for _, name := range slices.Sorted(maps.Keys(of)) {
		list = append(list, of[name])
	}
	return list
}
