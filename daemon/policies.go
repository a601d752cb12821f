package daemon

import (
	"errors"
	"io/fs"
	"path/filepath"
	"strings"

	"subjectbroker/grants/rules"
)

// bucketPolicies holds one row for each policy, named SUBJECT/SERVER.
const bucketPolicies = "policies"

// policyKey says whose calls a policy judges, and of which server.
type policyKey struct{ subject, server string }

// row is the name of the policy's row. Neither part can hold a slash.
func (k policyKey) row() string { return k.subject + "/" + k.server }

// policyOf returns the policy around a server for a subject; nil: there is none,
// and nothing is limited. It takes mu.
func (s *state) policyOf(subject, server string) *rules.Compiled {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.policyLocked(subject, server)
}

// policyLocked is policyOf for callers that hold mu or changing.mu.
func (s *state) policyLocked(subject, server string) *rules.Compiled {
	return s.policies[policyKey{subject, server}]
}

// resolvePath resolves the links of an absolute path as far as it exists; what does
// not exist is left as it is. What cannot be looked into is an error.
func resolvePath(path string) (string, error) {
	rest := ""
	for {
		resolved, err := filepath.EvalSymlinks(path)
		if err == nil {
			return filepath.Join(resolved, rest), nil
		}
		parent, last := filepath.Split(strings.TrimRight(path, "/"))
		if last == "" || !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		path, rest = parent, filepath.Join(last, rest)
	}
}
