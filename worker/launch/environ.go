package launch

import (
	"slices"
	"strings"
)

// passed are the variables that a command keeps from its caller. Nothing else
// goes in by itself: credentials live in variables, and many variables name
// sockets that are covered.
var passed = []string{
	"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "PWD", "TMPDIR",
	"TERM", "TERMINFO", "COLORTERM", "NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "COLUMNS", "LINES",
	"EDITOR", "VISUAL", "PAGER", "SB_HOME", "SB_SOCKET",
}

// Environ is the part of a caller's environment that goes into a tree, with the
// variables named in keep besides the usual ones, and then added ("NAME=value"),
// of which later ones win.
func Environ(environ, keep, added []string) []string {
	var env []string
	set := func(pair string) {
		name, _, _ := strings.Cut(pair, "=")
		env = slices.DeleteFunc(env, func(have string) bool { return strings.HasPrefix(have, name+"=") })
		env = append(env, pair)
	}
	for _, pair := range environ {
		name, _, ok := strings.Cut(pair, "=")
		if ok && (slices.Contains(passed, name) || slices.Contains(keep, name) || strings.HasPrefix(name, "LC_")) {
			set(pair)
		}
	}
	for _, pair := range added {
		set(pair)
	}
	return env
}
