package daemon

import (
	"context"
	"strings"

	"subjectbroker/grants"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

// hiddenName stands where the name of a resource would, that does not exist for the
// operator who looks.
const hiddenName = "[hidden]"

// unnamedServer takes from a message about a server the names of those of its secrets
// that do not exist for an operator. The caller holds mu.
func (s *state) unnamedServer(uid uint32, server grants.Server, m *operatorv1.Server) {
	hidden := s.hiddenSecrets(uid, server)
	if len(hidden) == 0 {
		return
	}
	m.Env, m.Headers = withoutNames(m.GetEnv(), hidden), withoutNames(m.GetHeaders(), hidden)
	for _, p := range m.GetProcesses() {
		p.Cause = withoutSecrets(p.GetCause(), hidden)
	}
}

// unnamedWords are words of wordsOf about a server for the operator who calls.
func (d *Daemon) unnamedWords(ctx context.Context, server grants.Server, words string) string {
	st := d.state()
	st.mu.RLock()
	defer st.mu.RUnlock()
	return withoutSecrets(words, st.hiddenSecrets(callerOf(ctx).UID, server))
}

// hiddenSecrets are those of a server's secrets that do not exist for an operator. The
// caller holds mu.
func (s *state) hiddenSecrets(uid uint32, server grants.Server) []string {
	var hidden []string
	for _, name := range server.Secrets() {
		if s.hidden(uid, name) {
			hidden = append(hidden, name)
		}
	}
	return hidden
}

// withoutSecrets are words of wordsOf without the names.
func withoutSecrets(words string, hidden []string) string {
	for _, name := range hidden {
		words = strings.ReplaceAll(words, "the secret "+name, "the secret "+hiddenName)
	}
	return words
}

// withoutNames are variables or headers with the names of secrets left out.
func withoutNames(values map[string]string, hidden []string) map[string]string {
	shown := make(map[string]string, len(values))
	for key, value := range values {
		for _, name := range hidden {
			value = strings.ReplaceAll(value, "${secret:"+name+"}", "${secret:"+hiddenName+"}")
		}
		shown[key] = value
	}
	return shown
}
