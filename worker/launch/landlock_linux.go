package launch

import (
	"errors"
	"fmt"
	"os"

	"github.com/landlock-lsm/go-landlock/landlock"
	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"
)

const (
	// landlockRefer is the ABI from which renaming between directories can be allowed.
	landlockRefer = 2
	// landlockScopes is the ABI from which sockets without a path can be cut off.
	landlockScopes = 6
)

// LandlockABI is the version that this kernel speaks, 0 when it has none.
func LandlockABI() int {
	version, err := ll.LandlockGetABIVersion()
	if err != nil || version < 0 {
		return 0
	}
	return version
}

// scopes cut a tree off from sockets without a path, and from signalling what
// is outside. The second only matters where there is no pid namespace.
var scopes = landlock.ScopedSet(ll.ScopeAbstractUnixSocket | ll.ScopeSignal)

// ruleset makes the rules for the command, as it sees the paths. -1: none are
// needed, or none are possible where none were promised.
func (v *view) ruleset(abi int) (fd int, err error) {
	config := landlock.Config{Scoped: scopes}
	var rules []landlock.Rule
	if v.sandbox {
		if err := lacking(Config{Sandbox: true, NoNet: true}, abi, outermost, nil); err != nil {
			return -1, err
		}
		config.HandledAccessFS = landlock.V7.HandledAccessFS
		rules = v.landlockRules(abi)
	} else if abi < landlockScopes {
		return -1, nil
	}
	fd, _, err = config.BestEffort().NewRulesetFD(rules...)
	if err == nil && fd < 0 {
		err = errors.New("no rules came of it")
	}
	if err != nil {
		return -1, fmt.Errorf("making Landlock rules: %w", err)
	}
	return fd, nil
}

func (v *view) landlockRules(abi int) []landlock.Rule {
	writable := func(paths ...string) landlock.FSRule {
		rule := landlock.RWDirs(paths...).IgnoreIfMissing()
		if abi >= landlockRefer {
			rule = rule.WithRefer()
		}
		return rule
	}
	rules := []landlock.Rule{
		landlock.PathAccess(ll.AccessFSReadDir, "/"), // nothing is there but what is named below
		landlock.RODirs("/run").IgnoreIfMissing(),
		landlock.RWDirs("/dev").WithIoctlDev(),
		landlock.RWDirs("/proc"), // modes and read-only mounts say what may be written
		writable("/dev/shm", v.runtimeDir, "/run/lock"),
	}
	if v.broker != "" {
		rules = append(rules, landlock.RODirs(v.broker).IgnoreIfMissing())
	}
	for _, p := range v.places {
		switch p.kind {
		case readOnly:
			if info, err := os.Stat(p.path); err == nil && !info.IsDir() {
				rules = append(rules, landlock.ROFiles(p.path))
				continue
			}
			rules = append(rules, landlock.RODirs(p.path).IgnoreIfMissing())
		case readWrite, ownDir:
			rules = append(rules, writable(p.path))
		case link:
		}
	}
	return rules
}

// restrictThread puts the calling thread, and what it starts, under a ruleset.
// Other threads of this process stay as they are.
func restrictThread(fd int) error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("giving up new privileges: %w", err)
	}
	if fd < 0 {
		return nil
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(fd), 0, 0); errno != 0 {
		return fmt.Errorf("applying Landlock rules: %w", errno)
	}
	return nil
}
