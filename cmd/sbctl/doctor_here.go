package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"subjectbroker/cmd/sbctl/internal/service"
	"subjectbroker/proto/place"
)

// What doctor finds out by itself, without a daemon.

// probeHomes looks at the home where we expect it, or where the daemon says that
// it has it.
func (a *app) probeHomes(ctx context.Context, expected string) []probe {
	s, err := a.status(ctx, "asking the daemon")
	if err != nil || s.GetHome() == "" || filepath.Clean(s.GetHome()) == filepath.Clean(expected) {
		return probeHome(expected)
	}
	info, err := os.Lstat(s.GetHome())
	if err == nil {
		if stat, ok := info.Sys().(*syscall.Stat_t); ok && int(stat.Uid) == os.Geteuid() {
			return probeHome(s.GetHome())
		}
	}
	return []probe{passed("home", "%s, says the daemon; it is another account's and was not looked at", s.GetHome())}
}

// probeHome looks at the home and the files in it that nobody else may read.
func probeHome(home string) []probe {
	info, err := os.Lstat(home)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return []probe{{"home", probeWarn, home + " does not exist: the daemon makes it when it starts", startService}}
	case err != nil:
		return []probe{{"home", probeFail, err.Error(), ""}}
	case !info.IsDir():
		return []probe{{"home", probeFail, home + " is not a directory", ""}}
	case info.Mode().Perm() != 0o700:
		return []probe{{"home", probeFail, fmt.Sprintf("%s has mode %04o, want 0700", home, info.Mode().Perm()), "chmod 700 " + shellQuote(home)}}
	}
	probes := []probe{passed("home", "%s", home)}
	for _, path := range []string{place.VaultFile(home), place.KeyFile(home), place.AuditKey(home)} {
		if p, found := probeFile(path); found {
			probes = append(probes, p)
		}
	}
	return probes
}

// probeFile finds what is wrong with a file that must be ours alone.
func probeFile(path string) (p probe, found bool) {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return probe{}, false
	}
	if err != nil {
		return probe{"home", probeFail, err.Error(), ""}, true
	}
	stat, _ := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.Mode().IsRegular():
		return probe{"home", probeFail, path + " is not a regular file", ""}, true
	case info.Mode().Perm() != 0o600:
		return probe{"home", probeFail, fmt.Sprintf("%s has mode %04o, want 0600", path, info.Mode().Perm()), "chmod 600 " + shellQuote(path)}, true
	case stat != nil && int(stat.Uid) != os.Geteuid():
		return probe{"home", probeFail, fmt.Sprintf("%s belongs to uid %d", path, stat.Uid), ""}, true
	case stat != nil && stat.Nlink > 1:
		return probe{"home", probeFail, path + " has more than one name", ""}, true
	}
	return probe{}, false
}

var noService = passed("service", "not installed: the daemon runs as long as whoever starts it lets it")

// probeService asks the service manager. Running without one is no fault.
func (a *app) probeService(ctx context.Context) []probe {
	config, err := a.serviceConfig()
	if err != nil {
		return []probe{{"service", probeWarn, err.Error(), ""}}
	}
	s, err := service.Inspect(ctx, config)
	switch {
	case err != nil:
		return []probe{{"service", probeWarn, err.Error(), ""}}
	case !s.Installed:
		return []probe{noService}
	case s.State == "failed":
		return []probe{{"service", probeFail, "failed", "sbctl service logs"}}
	case len(s.Warnings) > 0:
		return []probe{{"service", probeWarn, strings.Join(s.Warnings, "; "), "sbctl service status"}}
	}
	return []probe{passed("service", "%s, %s", s.Manager, s.State)}
}
