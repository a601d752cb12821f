package clients

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestLaunchedAgents runs the agents as launches of a subject that may read the
// greeting, with a configuration that names one which may not: what they get,
// they get as the subject of the launch. The key for their model is handed over
// by the broker, and in nobody's environment but theirs.
func TestLaunchedAgents(t *testing.T) {
	h := newHouse(t)
	const key = "handed-over-by-the-broker"
	file := filepath.Join(h.home, "key.txt")
	if err := os.WriteFile(file, []byte(key), 0o600); err != nil {
		t.Fatal(err)
	}
	h.must(t, "sbctl", "secret", "put", "model.key", "--from-file", file, "--kind", "secret")
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	h.must(t, "sbctl", "subject", "add", "launched")
	h.must(t, "sbctl", "grant", "launched", "read:greeting")
	h.must(t, "sbctl", "subject", "add", "configured")
	for _, c := range clients() {
		t.Run(c.name, func(t *testing.T) {
			m := startModel(t)
			if c.prepare != nil {
				c.prepare(t, h, m)
			}
			h.must(t, "sbctl", "connect", c.name, "--subject", "configured")

			// The control: by itself it is the subject of its configuration.
			command, env := c.program(h), h.env(c.env(m)...)
			out, err := h.run(t, limit, env, command[0], append(command[1:], c.ask...)...)
			if err != nil || strings.Contains(out, greeting) || len(m.seen()) != 2 || !strings.Contains(m.seen()[1], "ACCESS_DENIED") {
				t.Fatalf("without a launch, its tools answered %q, and it said (%v):\n%s", m.seen(), err, out)
			}

			m.forget()
			run := []string{"run", "--subject", "launched"}
			handed := false
			for _, pair := range c.env(m) {
				name, _, _ := strings.Cut(pair, "=")
				if strings.HasSuffix(name, "_KEY") {
					run, handed = append(run, "--env", name+"=model.key"), true
				} else {
					run = append(run, "--keep-env", name)
				}
			}
			env = slices.DeleteFunc(env, func(pair string) bool { return strings.Contains(pair, "_KEY=") })
			run = append(append(append(run, "--"), command...), c.ask...)
			out, err = h.run(t, limit, env, filepath.Join(h.bin, "sbctl"), run...)
			m.check(t)
			if err != nil || !strings.Contains(out, greeting) || t.Failed() {
				t.Errorf("launched, it said (%v):\n%s", err, out)
			}
			if handed && !slices.Contains(m.keys, key) {
				t.Errorf("the model was shown the keys %q", m.keys)
			}
			h.ended(t, c)
			h.must(t, "sbctl", "disconnect", c.name)
		})
	}
	log := h.must(t, "sbctl", "audit", "list", "-o", "json")
	if !strings.Contains(log, "SUBJECT_MISMATCH") || strings.Contains(log, key) {
		t.Errorf("the log:\n%s", log)
	}
}

// ended looks for the newest launch: it was of the agent and has ended, and so
// have its runs, which were the launch's subject.
func (h *house) ended(t *testing.T, c client) {
	t.Helper()
	var listed struct {
		Items []struct {
			LaunchID, SubjectID, Tier, Attested, Ended string
			Resources                                  []string
		}
		Launches []struct {
			LaunchID, SubjectID, Tier, State, Command string
		}
	}
	if err := json.Unmarshal([]byte(h.must(t, "sbctl", "runs", "--all", "-o", "json")), &listed); err != nil {
		t.Fatal(err)
	}
	if len(listed.Launches) == 0 {
		t.Fatal("runs --all shows no launch")
	}
	launch := listed.Launches[len(listed.Launches)-1]
	program := regexp.QuoteMeta(filepath.Base(c.program(h)[0]))
	if launch.SubjectID != "launched" || launch.Tier != "bound" || launch.State != "ended" || !regexp.MustCompile(program).MatchString(launch.Command) {
		t.Errorf("its launch: %+v", launch)
	}
	read := false
	for _, run := range listed.Items {
		if run.LaunchID != launch.LaunchID {
			continue
		}
		if run.SubjectID != "launched" || run.Attested != "launch" || run.Ended == "" {
			t.Errorf("a run of its launch: %+v", run)
		}
		read = read || slices.Contains(run.Resources, "greeting")
	}
	if !read {
		t.Errorf("no run of its launch has read the greeting: %+v", listed.Items)
	}
}

// seen is what the broker's tools answered.
func (m *model) seen() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.results)
}

// forget begins a new conversation.
func (m *model) forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.tools, m.results, m.strange, m.keys = nil, nil, nil, nil
}
