package worker

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// scrubbed are the variables that make the libraries below us print what
// crosses the socket (http2debug shows every header), write a core, or change
// how they read a message.
var scrubbed = []string{"GODEBUG", "GOTRACEBACK", "GOCOVERDIR", "MCPGODEBUG"}

// scrubbedPrefixes are families of such variables.
var scrubbedPrefixes = []string{"GRPC_", "LD_", "DYLD_"}

// harmless is the one of a family that stays: container images set it for
// other languages, ours does not read it, and starting again would double the
// time that an agent waits for us.
const harmless = "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"

// CleanEnviron returns environ without the variables that could make this
// process leak or load foreign code, and whether anything had to go.
func CleanEnviron(environ []string) (clean []string, changed bool) {
	clean = slices.DeleteFunc(slices.Clone(environ), func(pair string) bool {
		name, _, _ := strings.Cut(pair, "=")
		if name == harmless {
			return false
		}
		return slices.Contains(scrubbed, name) || slices.ContainsFunc(scrubbedPrefixes, func(prefix string) bool {
			return strings.HasPrefix(name, prefix)
		})
	})
	return clean, len(clean) != len(environ)
}

// Harden makes the process fit to carry content: it starts again without the
// variables that CleanEnviron removes, because the runtime and the libraries
// have read them before main, and closes its memory to others of its uid where
// the platform can. It is called first in main; on success it has no effect on
// descriptors, arguments or the pid.
func Harden() error {
	if environ, changed := CleanEnviron(os.Environ()); changed {
		self, err := os.Executable()
		if err != nil {
			return fmt.Errorf("starting again with a clean environment: %w", err)
		}
		return fmt.Errorf("starting again with a clean environment: %w", reexec(self, os.Args, environ))
	}
	return closeMemory()
}
