package wrap

import (
	"fmt"
	"slices"
	"strings"
)

// always are the variables that a server gets without anybody asking for it.
var always = []string{"PATH", "HOME", "USER", "LANG", "TERM", "TMPDIR"}

// alwaysPrefix begins the names of the others: those of the locale.
const alwaysPrefix = "LC_"

// kept are the prefixes of names that no server gets: they are about this program
// and the one that it replaces.
var kept = []string{"SB_", "AGENT_BRAKE_"}

// CheckName says why a variable cannot be passed on.
func CheckName(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("the name is empty")
	case strings.ContainsAny(name, "=\x00"):
		return fmt.Errorf("%q is not the name of a variable; its value is taken from the environment", name)
	case slices.ContainsFunc(kept, func(prefix string) bool { return strings.HasPrefix(name, prefix) }):
		return fmt.Errorf("%s is not passed on to any server", name)
	}
	return nil
}

// Environ is the environment of a server: what every server gets of environ, and
// the variables in names, which CheckName has accepted, where they are set.
func Environ(environ, names []string) []string {
	var chosen []string
	for _, pair := range environ {
		name, _, found := strings.Cut(pair, "=")
		if !found || CheckName(name) != nil {
			continue
		}
		if slices.Contains(always, name) || strings.HasPrefix(name, alwaysPrefix) || slices.Contains(names, name) {
			chosen = append(chosen, pair)
		}
	}
	return chosen
}
