package grants

import "strings"

// LikeCall reports whether a tool, SERVER/tool, is one that a subject's grants or the
// declared tools speak of, but for the case of its letters, while none of them speaks
// of it as it is written. Where nobody has said what a server offers, it may be that
// one: some servers do not mind case.
func (s *Set) LikeCall(subject, tool string) bool {
	if _, declared := s.tools[tool]; declared {
		return false
	}
	like, exact := false, false
	for name := range s.tools {
		like = like || strings.EqualFold(name, tool)
	}
	if h, ok := s.holders[subject]; ok {
		h.actions[Call].each(func(g *Grant) {
			object := tool
			if g.Pattern.Prefix {
				if g.Effect != Deny || len(tool) < len(g.Pattern.Object) {
					return // a pattern that allows is about what is written so
				}
				object = tool[:len(g.Pattern.Object)]
			}
			switch {
			case object == g.Pattern.Object:
				exact = exact || !g.Pattern.Prefix
			case strings.EqualFold(object, g.Pattern.Object):
				like = true
			}
		})
	}
	return like && !exact
}
