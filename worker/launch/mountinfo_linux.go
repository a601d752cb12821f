package launch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// mount is one line of mountinfo(5).
type mount struct {
	dev   string // major:minor
	root  string // which part of the file system, as a path in it
	point string // where
}

// mounts reads this process's mounts in the order in which they were made.
func mounts() ([]mount, error) {
	content, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("reading the mounts: %w", err)
	}
	var all []mount
	for line := range strings.Lines(string(content)) {
		fields := strings.Fields(line)
		if len(fields) < 5 {
			return nil, errors.New("a line of the mounts is not understood")
		}
		all = append(all, mount{dev: fields[2], root: unescape(fields[3]), point: unescape(fields[4])})
	}
	return all, nil
}

// unescape undoes the octal escapes of mountinfo.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// spot is a place in a file system, however many paths lead there.
type spot struct{ dev, path string }

// spotOf says where an absolute path without links lies.
func spotOf(all []mount, path string) spot {
	var best mount
	for _, m := range all {
		if within(path, m.point) && len(m.point) >= len(best.point) {
			best = m // of two on one point the later one is on top
		}
	}
	rel, err := filepath.Rel(best.point, path)
	if err != nil {
		rel = "."
	}
	return spot{best.dev, filepath.Join(best.root, rel)}
}

// aliases lists every other path that leads to path or into it: bind mounts of
// what is above it or below it, and other mounts of what is mounted in it.
func aliases(all []mount, path string) []string {
	secrets := []spot{spotOf(all, path)}
	for _, m := range all {
		if m.point != path && within(m.point, path) {
			secrets = append(secrets, spot{m.dev, m.root})
		}
	}
	var found []string
	for _, secret := range secrets {
		for _, m := range all {
			if m.dev != secret.dev || within(m.point, path) {
				continue
			}
			switch {
			case within(secret.path, m.root):
				rel, err := filepath.Rel(m.root, secret.path)
				if err != nil {
					continue
				}
				if other := filepath.Join(m.point, rel); !within(other, path) && spotOf(all, other) == secret {
					found = append(found, other)
				}
			case within(m.root, secret.path):
				found = append(found, m.point)
			}
		}
	}
	return found
}

// within reports whether path is dir or below it. Both are clean.
func within(path, dir string) bool {
	return path == dir || dir == "/" || strings.HasPrefix(path, dir+"/")
}
