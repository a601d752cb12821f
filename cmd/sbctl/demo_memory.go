package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"subjectbroker/cmd/sbctl/internal/stdiomcp"
)

type demoMemoryCmd struct {
	Unprotected bool `help:"Grant both agents every tenant: the checks then fail, and show what scopes are there for."`
	Keep        bool `help:"Keep the temporary home afterwards."`
}

// Help is the manual of demo memory.
func (demoMemoryCmd) Help() string {
	return `Starts a daemon in a temporary home with three tenants, and two agents that share a
memory as far as they were granted. One notes a decision and replaces it: a search
says which version is true, what it replaced and when. It asks for the other's
tenant: the whole request is refused, and told to nobody but the operator as what it
is. The other tenant grows, and no score changes. An entry is forgotten, and neither
vault nor index hold it. Each is checked.

Examples:
  sbctl demo memory
  sbctl demo memory --unprotected`
}

// memoryForReal says how to go on.
const memoryForReal = `
For real:
  sbctl tenant add NAME
  sbctl grant SUBJECT memory.read:NAME memory.write:NAME
  sbctl connect claude --subject SUBJECT    its agent finds the tools by itself
  sbctl memory import FILE --tenant NAME
  sbctl why                                 when one is refused
`

// Run demonstrates.
func (c demoMemoryCmd) Run(ctx context.Context, a *app) error {
	return demonstrate(ctx, a, c.Keep, memoryForReal, func(d *demo, genesis string) error {
		m := &memoryDemo{demo: d, marker: "zq" + strings.ToLower(rand.Text()), unprotected: c.Unprotected}
		return m.tell(genesis)
	})
}

// memoryDemo is the story of two agents and three tenants.
type memoryDemo struct {
	*demo
	marker      string // a word that stands in one entry only
	unprotected bool   // both agents reach everything
	alice, bob  *stdiomcp.Client
	friday      string // the entry that was replaced
	tuesday     string // the one that took its place
	heard       strings.Builder
}

func (m *memoryDemo) tell(genesis string) (err error) {
	if err := m.prepare(); err != nil {
		return err
	}
	m.title("Two agents connect, each through a shim of its own (stdio MCP)")
	if m.alice, err = m.shim("alice"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.alice.Close()) }()
	if m.bob, err = m.shim("bob"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.bob.Close()) }()
	return m.play([]act{
		{"A decision, and the one that took its place", m.replaced},
		{"A request that names somebody else's tenant", m.foreign},
		{"Why, for the operator", m.told},
		{"The other tenant grows", m.grows},
		{"Out, and in again", m.carried},
		{"Forgotten", m.forgotten},
		{"Every request is an entry, and the log verifies", func() error { return m.proof(genesis) }},
	})
}

func (m *memoryDemo) prepare() error {
	m.title("Three tenants: alice has acme, bob has globex, and both have shared")
	steps := [][]string{
		{"tenant", "add", "acme", "-q"}, {"tenant", "add", "globex", "-q"}, {"tenant", "add", "shared", "-q"},
		{"subject", "add", "alice", "-q"}, {"subject", "add", "bob", "-q"},
		{"grant", "alice", "memory.read:acme", "memory.write:acme", "memory.read:shared", "-q"},
		{"grant", "bob", "memory.read:globex", "memory.write:globex", "memory.read:shared", "memory.write:shared", "-q"},
	}
	if m.unprotected {
		steps = append(steps, []string{"grant", "alice", "memory.read:*", "memory.write:*", "-q"}, []string{"grant", "bob", "memory.read:*", "memory.write:*", "-q"})
	}
	for _, args := range append(steps, []string{"tenant", "list"}) {
		if _, err := m.must(args...); err != nil {
			return err
		}
	}
	return nil
}

// recallAnswer is what the tools of the memory answer, all of them.
type recallAnswer struct {
	Decision         string
	ReasonCode       string
	RequestedTenants []string
	AllowedTenants   []string
	Tenants          json.RawMessage
	Total            int
	Hits             []struct {
		Entry    recallEntry
		Score    float64
		Matched  string
		Replaced []struct{ EntryID, Title, Replaced string }
	}
	Entry   recallEntry
	Entries []recallEntry

	raw string
}

type recallEntry struct {
	EntryID, Tenant, Title, Text, SubjectID, Created string
	Forgotten                                        bool
}

// call calls a tool of the memory, as an agent sees it.
func (m *memoryDemo) call(name string, agent *stdiomcp.Client, tool string, arguments map[string]any) (recallAnswer, error) {
	m.say("  %s: %s %s\n", name, tool, mustJSON(arguments))
	var raw json.RawMessage
	if err := agent.Tool(tool, arguments, &raw); err != nil {
		return recallAnswer{}, err
	}
	if name == "alice" {
		m.heard.Write(raw)
	}
	got := recallAnswer{raw: string(raw)}
	if err := json.Unmarshal(raw, &got); err != nil {
		return got, fmt.Errorf("reading what %s answers: %w", tool, err)
	}
	switch {
	case got.Decision != decisionAllow:
		m.say("    %s\n", got.raw)
	case len(got.Hits) > 0:
		for _, hit := range got.Hits {
			m.say("    %.3f %s: %s\n", hit.Score, hit.Entry.Tenant, hit.Entry.Title)
		}
	case tool == "search_knowledge":
		m.say("    nothing\n")
	}
	return got, nil
}

// capture adds an entry and returns its id.
func (m *memoryDemo) capture(name string, agent *stdiomcp.Client, arguments map[string]any) (string, error) {
	got, err := m.call(name, agent, "capture_knowledge", arguments)
	if err == nil && got.Decision != decisionAllow {
		err = fmt.Errorf("capturing: %s", got.ReasonCode)
	}
	return got.Entry.EntryID, err
}

func (m *memoryDemo) search(query string, tenants ...string) (recallAnswer, error) {
	arguments := map[string]any{"query": query}
	if len(tenants) > 0 {
		arguments["tenants"] = tenants
	}
	return m.call("alice", m.alice, "search_knowledge", arguments)
}

func (m *memoryDemo) replaced() (err error) {
	m.friday, err = m.capture("alice", m.alice, map[string]any{"tenant": "acme", "kind": "decision", "title": "Deploy day", "text": "We deploy on Friday."})
	if err != nil {
		return err
	}
	m.tuesday, err = m.capture("alice", m.alice, map[string]any{
		"tenant": "acme", "kind": "decision", "title": "Deploy day moved", "text": "We deploy on Tuesday.", "supersedes": m.friday,
	})
	if err != nil {
		return err
	}
	if _, err := m.capture("bob", m.bob, map[string]any{"tenant": "shared", "kind": "note", "title": "Who may deploy", "text": "Whoever is on call."}); err != nil {
		return err
	}
	if _, err := m.capture("bob", m.bob, map[string]any{"tenant": "globex", "kind": "note", "title": "Globex deploys by hand", "text": "The deploy key is in the safe."}); err != nil {
		return err
	}
	got, err := m.search("deploy day")
	if err != nil {
		return err
	}
	m.expect("current", len(got.Hits) > 0 && got.Hits[0].Entry.EntryID == m.tuesday && !strings.Contains(got.raw, "on Friday"), "the current version is found, and the old one is no hit")
	if len(got.Hits) == 0 {
		return nil
	}
	was := got.Hits[0].Replaced
	m.expect("replaced", len(was) == 1 && was[0].EntryID == m.friday && was[0].Title == "Deploy day" && was[0].Replaced != "", "it says what it replaced, and when")
	m.expect("captured", got.Hits[0].Entry.SubjectID == "alice" && got.Hits[0].Entry.Created != "", "and who captured it, and when")
	if got, err = m.search("friday"); err != nil {
		return err
	}
	m.expect("matched", len(got.Hits) == 1 && got.Hits[0].Entry.EntryID == m.tuesday && got.Hits[0].Matched == m.friday, "where only the old version fits, the answer is the one that is true now, and says so")
	if got, err = m.call("alice", m.alice, "history", map[string]any{"entryId": m.tuesday}); err != nil {
		return err
	}
	m.expect("history", len(got.Entries) == 2 && got.Entries[1].Text == "We deploy on Friday.", "the history has both")
	return nil
}

func (m *memoryDemo) foreign() error {
	got, err := m.search("deploy")
	if err != nil {
		return err
	}
	m.expect("granted", string(got.Tenants) == `["acme","shared"]`, "naming none is all that was granted, and nothing else: %s", got.Tenants)
	if got, err = m.search("deploy", "globex"); err != nil {
		return err
	}
	outside := func(got recallAnswer) bool { return got.ReasonCode == "TENANT_OUT_OF_SCOPE" && len(got.Hits) == 0 }
	m.expect("refused", outside(got), "a tenant that is somebody else's is refused")
	m.expect("loud", slices.Equal(got.RequestedTenants, []string{"globex"}) && slices.Equal(got.AllowedTenants, []string{"acme", "shared"}), "and the answer says so: what was asked for, and what is alice's own")
	unknown, err := m.search("deploy", "glabox")
	if err != nil {
		return err
	}
	m.expect("alike", outside(unknown) && unknown.raw == strings.ReplaceAll(got.raw, "globex", "glabox"), "one that does not exist is refused in the same words")
	if got, err = m.search("deploy", "acme", "globex"); err != nil {
		return err
	}
	m.expect("whole", outside(got), "beside one that is hers, the whole request is refused: it is never narrowed")
	if got, err = m.call("alice", m.alice, "capture_knowledge", map[string]any{"tenant": "shared", "kind": "note", "title": "I was here", "text": ""}); err != nil {
		return err
	}
	m.expect("write", outside(got) && slices.Equal(got.AllowedTenants, []string{"acme"}), "what she may read she may not write to")
	theirs, err := m.call("bob", m.bob, "search_knowledge", map[string]any{"query": "globex"})
	if err != nil || len(theirs.Hits) == 0 {
		return errors.Join(err, errors.New("bob does not find his own entry"))
	}
	id := theirs.Hits[0].Entry.EntryID
	if got, err = m.call("alice", m.alice, "read_entry", map[string]any{"entryId": id}); err != nil {
		return err
	}
	if unknown, err = m.call("alice", m.alice, "read_entry", map[string]any{"entryId": strings.Repeat("a", len(id))}); err != nil {
		return err
	}
	m.expect("entry", got.Decision == "deny" && got.raw == unknown.raw, "an entry of his looks like one that was never there")
	return nil
}

func (m *memoryDemo) told() error {
	said, _, err := m.sbctl("why", "alice", "memory.read:acme")
	if err != nil {
		return err
	}
	m.expect("why", strings.Contains(said, "TENANT_OUT_OF_SCOPE") && strings.Contains(said, "fix: sbctl grant alice memory.read:globex"), "the operator sees what was named, and what would let it through")
	_, err = m.must("denials", "--subject", "alice")
	return err
}

// grown is how many entries the other tenant gets.
const grown = 40

func (m *memoryDemo) grows() error {
	before, err := m.search("deploy")
	if err != nil {
		return err
	}
	var lines strings.Builder
	for i := range grown {
		fmt.Fprintf(&lines, `{"tenant":"globex","kind":"note","title":"deploy %d","text":"deploy deploy deploy"}`+"\n", i)
	}
	path := filepath.Join(m.dir, "globex.jsonl")
	if err := os.WriteFile(path, []byte(lines.String()), 0o600); err != nil {
		return err
	}
	said, err := m.must("memory", "import", path)
	if err != nil {
		return err
	}
	m.expect("imported", strings.Contains(said, fmt.Sprintf("added:          %d\n", grown)), "%s were brought into globex", count(grown, "entry"))
	after, err := m.search("deploy")
	if err != nil {
		return err
	}
	m.expect("scores", before.Total > 0 && before.raw == after.raw, "alice's answer is the same to the last digit")
	theirs, err := m.call("bob", m.bob, "knowledge_stats", map[string]any{})
	if err != nil {
		return err
	}
	m.expect("bob-sees", strings.Contains(theirs.raw, fmt.Sprintf(`"note":%d`, grown+1)), "and bob has them all")
	m.expect("never-heard", !strings.Contains(m.heard.String(), "by hand") && !strings.Contains(m.heard.String(), "deploy deploy"), "nothing that alice was told holds a word of globex")
	return nil
}

func (m *memoryDemo) carried() error {
	path := filepath.Join(m.dir, "all.jsonl")
	if _, err := m.must("memory", "export", path, "--history"); err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	m.expect("private", info.Mode().Perm() == 0o600, "an export is for its owner alone, as all of it is in clear")
	said, err := m.must("memory", "import", path)
	if err != nil {
		return err
	}
	m.expect("idempotent", strings.Contains(said, "added:          0\n"), "what is there is not added again")
	return os.Remove(path)
}

func (m *memoryDemo) forgotten() error {
	id, err := m.capture("alice", m.alice, map[string]any{"tenant": "acme", "kind": "note", "title": "A name", "text": "It is " + m.marker + "."})
	if err != nil {
		return err
	}
	got, err := m.search(m.marker)
	if err != nil {
		return err
	}
	m.expect("there", len(got.Hits) == 1, "what is to be forgotten is found")
	vault := filepath.Join(m.home, "vault.db")
	sealed, err := sealedEntry(vault, id)
	if err != nil {
		return err
	}
	if _, err := m.must("memory", "forget", id, "--yes", "-q"); err != nil {
		return err
	}
	file, err := os.ReadFile(vault)
	if err != nil {
		return err
	}
	m.expect("not-in-vault", !bytes.Contains(file, sealed), "its sealed bytes are not in the vault's file any more")
	if got, err = m.search(m.marker); err != nil {
		return err
	}
	m.expect("not-in-index", got.Decision == decisionAllow && len(got.Hits) == 0, "the word that stood in it finds nothing")
	if got, err = m.call("alice", m.alice, "read_entry", map[string]any{"entryId": id}); err != nil {
		return err
	}
	m.expect("tombstone", got.Entry.Forgotten && got.Entry.Text == "" && got.Entry.Title == "", "what is left says that there was an entry")
	// The index is made anew from the vault.
	if _, err := m.must("lock"); err != nil {
		return err
	}
	locked, err := m.search("deploy")
	m.expect("locked", err == nil && locked.Decision != decisionAllow && len(locked.Hits) == 0, "locked, the memory answers nothing")
	if _, err := m.must("unlock"); err != nil {
		return err
	}
	if _, code, err := m.stage.sbctl(m.ctx, "memory", "export", "-q"); err != nil || code != 0 { // waits until it was read
		return errors.Join(err, fmt.Errorf("exporting: exit code %d", code))
	}
	if got, err = m.search("deploy day"); err != nil {
		return err
	}
	m.expect("again", len(got.Hits) > 0 && got.Hits[0].Entry.EntryID == m.tuesday && len(got.Hits[0].Replaced) == 1, "unlocked, it knows which version is true")
	if got, err = m.search(m.marker); err != nil {
		return err
	}
	m.expect("still-forgotten", got.Decision == decisionAllow && len(got.Hits) == 0, "and not what was forgotten")
	return nil
}

// sealedBytes is how much of a sealed row is looked for.
const sealedBytes = 100

// sealedEntry is the beginning of an entry's sealed row, as it lies in the vault.
func sealedEntry(vault, id string) ([]byte, error) {
	file, err := os.ReadFile(vault)
	if err != nil {
		return nil, err
	}
	at := bytes.Index(file, []byte(id+"v1:"))
	if at < 0 || at+len(id)+sealedBytes > len(file) {
		return nil, fmt.Errorf("the row of %s is not in the vault", id)
	}
	return bytes.Clone(file[at+len(id) : at+len(id)+sealedBytes]), nil
}

func (m *memoryDemo) proof(genesis string) error {
	said, code, err := m.stage.sbctl(m.ctx, "audit", "list", "--kind", "memory.*", "--subject", "alice", "-o", "json")
	if err != nil || code != 0 {
		return errors.Join(err, fmt.Errorf("reading the log: exit code %d", code))
	}
	m.expect("recorded", strings.Count(said, `"TENANT_OUT_OF_SCOPE"`) >= 4 && strings.Contains(said, "memory.capture"), "each request is in the log, with the tenants that it was about")
	return m.intact(genesis, "titles and texts", map[string][]byte{"a text": []byte("We deploy on"), "what was forgotten": []byte(m.marker), "a title": []byte("Deploy day moved")})
}
