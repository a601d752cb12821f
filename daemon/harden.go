package daemon

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"subjectbroker/proto/place"
	"subjectbroker/proto/wire"
)

// CheckEnv refuses to run with an SB_* variable other than those that name a
// place: no secret and no setting travels in the environment.
func CheckEnv(environ []string) error {
	for _, pair := range environ {
		name, _, _ := strings.Cut(pair, "=")
		if strings.HasPrefix(name, "SB_") && name != place.EnvHome && name != place.EnvSocket {
			return fault(wire.ConfigInvalid, "the environment variable %s is not known: only %s and %s are", name, place.EnvHome, place.EnvSocket)
		}
	}
	return nil
}

// CleanEnv returns environ without the variables that could make our libraries
// print what crosses a socket, leave a core, or load foreign code, and whether
// anything had to go.
func CleanEnv(environ []string) (clean []string, changed bool) {
	clean = slices.DeleteFunc(slices.Clone(environ), func(pair string) bool {
		name, _, _ := strings.Cut(pair, "=")
		return name == "GODEBUG" || name == "GOTRACEBACK" || name == "GOCOVERDIR" ||
			strings.HasPrefix(name, "GRPC_") || strings.HasPrefix(name, "LD_") || strings.HasPrefix(name, "DYLD_")
	})
	return clean, len(clean) != len(environ)
}

// Reexec replaces the process by itself with environ. It returns only on error.
func Reexec(environ []string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	return reexec(self, os.Args, environ)
}

// KeepInherited keeps what this process has inherited open, beside its standard
// streams, from its children: ours are marked as they are opened, and what is found
// here was left open by whoever started us. It is for a daemon, which has children
// of others; what only mends may be given a secret on a descriptor.
func KeepInherited() {
	const usual = 1024 // are the most that a process may have open
	open, err := os.ReadDir("/dev/fd")
	if err != nil {
		for fd := 3; fd < usual; fd++ {
			syscall.CloseOnExec(fd)
		}
	}
	for _, entry := range open {
		if fd, err := strconv.Atoi(entry.Name()); err == nil && fd > 2 {
			syscall.CloseOnExec(fd)
		}
	}
}
