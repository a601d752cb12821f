package grants

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
)

var (
	// ErrNoSubject is for a grant that names a subject that the set does not hold.
	ErrNoSubject = errors.New("no such subject")
	// ErrDuplicate is for a grant of a subject that already has one of this
	// pattern and effect, under another id.
	ErrDuplicate = errors.New("the subject has such a grant already")
	// ErrUIDTaken is for a subject with a uid that is another one's.
	ErrUIDTaken = errors.New("the uid is another subject's")
	// ErrNoTool is for a profile that lists a tool that is not declared.
	ErrNoTool = errors.New("no such tool")
	// ErrOtherSubject is for a profile whose name is that of one of another subject.
	ErrOtherSubject = errors.New("the profile is another subject's")
)

// Set holds subjects with their grants and profiles, and tools, indexed for
// [Decide]. Any number of goroutines may read and decide at once, none while one
// of them changes it.
type Set struct {
	holders map[string]*holder
	grants  map[string]*Grant // by id

	uids     map[uint32]string // of subjects that have one
	profiles map[string]Profile
	tools    map[string]Tool
}

// holder is a subject with what it was granted, one index per action.
type holder struct {
	subject Subject
	actions [actionCount]index
	held    int
}

// NewSet returns an empty set.
func NewSet() *Set {
	return &Set{
		holders: map[string]*holder{}, grants: map[string]*Grant{},
		uids: map[uint32]string{}, profiles: map[string]Profile{}, tools: map[string]Tool{},
	}
}

// PutSubject adds a subject, or replaces what is known of it and leaves its
// grants and profiles. A uid is of at most one subject ([ErrUIDTaken]). Nothing
// changes on error.
func (s *Set) PutSubject(subject Subject) error {
	if err := subject.Validate(); err != nil {
		return err
	}
	if subject.UID != nil {
		if other, taken := s.uids[*subject.UID]; taken && other != subject.Name {
			return fmt.Errorf("%w: %d is that of %s", ErrUIDTaken, *subject.UID, other)
		}
	}
	h, ok := s.holders[subject.Name]
	if !ok {
		h = &holder{}
		s.holders[subject.Name] = h
	}
	s.forgetUID(h)
	h.subject = subject
	if subject.UID != nil {
		s.uids[*subject.UID] = subject.Name
	}
	return nil
}

func (s *Set) forgetUID(h *holder) {
	if h.subject.UID != nil {
		delete(s.uids, *h.subject.UID)
	}
}

// RemoveSubject removes a subject and returns its grants, which go with it as its
// profiles do: a later subject of the same name inherits none.
func (s *Set) RemoveSubject(name string) []Grant {
	gone := s.GrantsOf(name)
	for i := range gone {
		delete(s.grants, gone[i].ID)
	}
	maps.DeleteFunc(s.profiles, func(_ string, p Profile) bool { return p.Subject == name })
	if h, ok := s.holders[name]; ok {
		s.forgetUID(h)
		delete(s.holders, name)
	}
	return gone
}

// Subject returns the subject of that name.
func (s *Set) Subject(name string) (Subject, bool) {
	if h, ok := s.holders[name]; ok {
		return h.subject, true
	}
	return Subject{}, false
}

// SubjectOf returns the subject whose uid this is.
func (s *Set) SubjectOf(uid uint32) (Subject, bool) {
	name, ok := s.uids[uid]
	if !ok {
		return Subject{}, false
	}
	return s.Subject(name)
}

// Subjects returns all subjects, sorted by name.
func (s *Set) Subjects() []Subject {
	subjects := make([]Subject, 0, len(s.holders))
	for _, name := range slices.Sorted(maps.Keys(s.holders)) {
		subjects = append(subjects, s.holders[name].subject)
	}
	return subjects
}

// PutGrant adds a grant, or replaces the one with the same id. Its subject must
// be in the set ([ErrNoSubject]) and must not have its pattern and effect under
// another id ([ErrDuplicate]; [Set.Find] tells which). Nothing changes on error.
func (s *Set) PutGrant(g Grant) error {
	if err := g.Validate(); err != nil {
		return err
	}
	h, ok := s.holders[g.Subject]
	if !ok {
		return fmt.Errorf("%w: %s", ErrNoSubject, g.Subject)
	}
	if same, ok := s.Find(g.Subject, g.Pattern, g.Effect); ok && same.ID != g.ID {
		return fmt.Errorf("%w: %s", ErrDuplicate, same.ID)
	}
	s.RemoveGrant(g.ID)
	s.grants[g.ID] = &g
	h.actions[g.Pattern.Action].put(&g)
	h.held++
	return nil
}

// RemoveGrant removes the grant with that id and returns it.
func (s *Set) RemoveGrant(id string) (Grant, bool) {
	g, ok := s.grants[id]
	if !ok {
		return Grant{}, false
	}
	h := s.holders[g.Subject]
	h.actions[g.Pattern.Action].remove(g)
	h.held--
	delete(s.grants, id)
	return *g, true
}

// Grant returns the grant with that id.
func (s *Set) Grant(id string) (Grant, bool) {
	if g, ok := s.grants[id]; ok {
		return *g, true
	}
	return Grant{}, false
}

// Find returns the one grant of that subject, pattern and effect.
func (s *Set) Find(subject string, p Pattern, e Effect) (Grant, bool) {
	if h, ok := s.holders[subject]; ok && int(p.Action) < actionCount {
		if g := h.actions[p.Action].get(p).of(e); g != nil {
			return *g, true
		}
	}
	return Grant{}, false
}

// GrantsOf returns the grants of a subject, sorted by capability and effect.
func (s *Set) GrantsOf(subject string) []Grant {
	h, ok := s.holders[subject]
	if !ok {
		return nil
	}
	found := make([]Grant, 0, h.held)
	for i := range h.actions {
		h.actions[i].each(func(g *Grant) { found = append(found, *g) })
	}
	return sorted(found)
}

// All returns every grant, sorted by subject, capability and effect.
func (s *Set) All() []Grant {
	return s.filter(func(*Grant) bool { return true })
}

// Matching returns the grants that match the name of a resource for reading or
// using it, whatever their conditions and effect, sorted as [Set.All] sorts.
func (s *Set) Matching(resource string) []Grant {
	return s.filter(func(g *Grant) bool {
		return g.Pattern.Action.NamesResource() && g.Pattern.Matches(Capability{g.Pattern.Action, resource})
	})
}

// Exact returns the grants that name exactly this resource, for reading or
// using it. They end with the resource; patterns stay.
func (s *Set) Exact(resource string) []Grant { return s.exact(resource, Read, Use) }

// ExactTenant returns the grants that name exactly this tenant. They end with it;
// patterns stay.
func (s *Set) ExactTenant(tenant string) []Grant { return s.exact(tenant, MemoryRead, MemoryWrite) }

func (s *Set) exact(object string, actions ...Action) []Grant {
	var found []Grant
	for _, h := range s.holders {
		for _, action := range actions {
			pair := h.actions[action].get(Pattern{Action: action, Object: object})
			for _, effect := range []Effect{Allow, Deny} {
				if g := pair.of(effect); g != nil {
					found = append(found, *g)
				}
			}
		}
	}
	return sorted(found)
}

// Each yields every grant in no order, without the copy and the sorting of
// [Set.All].
func (s *Set) Each() iter.Seq[Grant] {
	return func(yield func(Grant) bool) {
		for _, g := range s.grants {
			if !yield(*g) {
				return
			}
		}
	}
}

func (s *Set) filter(keep func(*Grant) bool) []Grant {
	var found []Grant
	for _, g := range s.grants {
		if keep(g) {
			found = append(found, *g)
		}
	}
	return sorted(found)
}

func sorted(found []Grant) []Grant {
	SortGrants(found)
	return found
}

// SortGrants sorts a list by subject, capability and effect.
func SortGrants(list []Grant) {
	slices.SortFunc(list, func(a, b Grant) int {
		return cmp.Or(
			strings.Compare(a.Subject, b.Subject),
			strings.Compare(a.Pattern.String(), b.Pattern.String()),
			cmp.Compare(a.Effect, b.Effect),
		)
	})
}
