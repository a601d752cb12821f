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
	for _, pair := range environ {
		name, _, ok := strings.Cut(pair, "=")
		if ok && (slices.Contains(passed, name) || slices.Contains(keep, name) || strings.HasPrefix(name, "LC_")) {
			env = append(env, pair)
		}
	}
	return lastWins(append(env, added...))
}

// lastWins leaves one value of each variable. Programs differ in which of two
// they take.
func lastWins(environ []string) []string {
	seen := map[string]bool{}
	var env []string
	for _, pair := range slices.Backward(environ) {
		name, _, _ := strings.Cut(pair, "=")
		if !seen[name] {
			seen[name] = true
			env = append(env, pair)
		}
	}
	slices.Reverse(env)
	return env
}
