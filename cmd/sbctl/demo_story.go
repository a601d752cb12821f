package main

import (
	"bytes"
	"cmp"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"subjectbroker/cmd/sbctl/internal/stdiomcp"
)

// notes is a document with text that is not ASCII.
const notes = "Grüße aus Zürich — 設計メモ: der Schlüssel bleibt im Tresor.\nΤέλος.\n"

// documents are what the demonstration hands out, by name.
type documents struct {
	readme, notes, key, logo []byte
	readmePath               string
}

// tell runs the whole story.
func (d *demo) tell(document, genesis string) (err error) {
	docs, err := d.putDocuments(document)
	if err != nil {
		return err
	}
	if err := d.grantThem(); err != nil {
		return err
	}
	d.title("Two agents connect, each through its own shim (stdio MCP)")
	orchestrator, err := d.shim("orchestrator")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, orchestrator.Close()) }()
	worker, err := d.shim("worker")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, worker.Close()) }()
	for _, act := range []func() error{
		func() error { return d.lists(orchestrator, worker) },
		func() error { return d.allowed(orchestrator, worker, docs) },
		func() error { return d.denied(worker) },
		d.why,
		func() error { return d.revoked(worker) },
		func() error { return d.proof(genesis) },
		func() error { return d.sealed(docs) },
	} {
		if err := act(); err != nil {
			return err
		}
	}
	return nil
}

func (d *demo) putDocuments(document string) (documents, error) {
	d.title("Real documents: a README, text that is not ASCII, a private key, a binary")
	docs := documents{notes: []byte(notes), logo: make([]byte, 4096)}
	if _, err := rand.Read(docs.logo); err != nil {
		return docs, err
	}
	docs.logo[0] = 0xff // never UTF-8
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return docs, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return docs, err
	}
	docs.key = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	if docs.readmePath, docs.readme, err = d.readme(document); err != nil {
		return docs, err
	}
	for name, content := range map[string][]byte{"notes.txt": docs.notes, "deploy.pem": docs.key, "logo.bin": docs.logo} {
		if err := os.WriteFile(filepath.Join(d.dir, name), content, 0o600); err != nil {
			return docs, err
		}
	}
	_, code, err := d.sbctl("secret", "put", "deploy-key", "--from-file", filepath.Join(d.dir, "deploy.pem"), "-q")
	if err != nil {
		return docs, err
	}
	d.expect("key-needs-kind", code == 2, "a private key is not taken for a document by oversight")
	for _, args := range [][]string{
		{"resource", "add", "readme", "--file", docs.readmePath, "-q"},
		{"secret", "put", "notes", "--from-file", filepath.Join(d.dir, "notes.txt"), "-q"},
		{"secret", "put", "logo", "--from-file", filepath.Join(d.dir, "logo.bin"), "-q"},
		{"secret", "put", "deploy-key", "--kind", "secret", "--from-file", filepath.Join(d.dir, "deploy.pem"), "-q"},
		{"resource", "list"},
	} {
		if _, err := d.must(args...); err != nil {
			return docs, err
		}
	}
	return docs, nil
}

// readme is the document of the person, or one that stands in for it.
func (d *demo) readme(document string) (path string, content []byte, err error) {
	if document == "" {
		document = "README.md"
		if _, err := os.Stat(document); errors.Is(err, fs.ErrNotExist) {
			document = filepath.Join(d.dir, "README.md")
			if err := os.WriteFile(document, []byte("# A project\n\nIts agents read this through the broker.\n"), 0o600); err != nil {
				return "", nil, err
			}
		}
	}
	if path, err = filepath.Abs(document); err != nil {
		return "", nil, err
	}
	if path, err = filepath.EvalSymlinks(path); err != nil {
		return "", nil, err
	}
	content, err = os.ReadFile(path)
	return path, content, err
}

func (d *demo) grantThem() error {
	d.title("Who may read what")
	for _, args := range [][]string{
		{"subject", "add", "orchestrator", "-q"},
		{"subject", "add", "worker", "-q"},
		{"grant", "orchestrator", "readme", "notes", "logo", "-q"},
		{"grant", "orchestrator", "deploy-key", "--disclose", "--uses", "1", "-q"},
		{"grant", "worker", "readme", "--ttl", "2h", "-q"},
		{"grants"},
	} {
		if _, err := d.must(args...); err != nil {
			return err
		}
	}
	return nil
}

func (d *demo) lists(orchestrator, worker *stdiomcp.Client) error {
	for _, agent := range []struct {
		name string
		shim *stdiomcp.Client
		want []string
	}{
		{"orchestrator", orchestrator, []string{"deploy-key", "logo", "notes", "readme"}},
		{"worker", worker, []string{"readme"}},
	} {
		var list struct{ Resources []string }
		if err := agent.shim.Tool("list_resources", map[string]any{}, &list); err != nil {
			return err
		}
		d.expect("list-"+agent.name, slices.Equal(list.Resources, agent.want), "%s lists %s", agent.name, strings.Join(list.Resources, ", "))
	}
	return nil
}

// reading is what read_resource answers.
type reading struct {
	Decision   string
	ReasonCode string
	Content    *string
	Encoding   string
}

func (r reading) bytes() []byte {
	switch {
	case r.Content == nil:
		return nil
	case r.Encoding == "base64":
		content, _ := base64.StdEncoding.DecodeString(*r.Content)
		return content
	}
	return []byte(*r.Content)
}

func read(shim *stdiomcp.Client, name string) (r reading, err error) {
	err = shim.Tool("read_resource", map[string]any{"resourceId": name}, &r)
	return r, err
}

func (d *demo) allowed(orchestrator, worker *stdiomcp.Client, docs documents) error {
	d.title("Allowed: byte for byte, after the entry is on disk")
	for _, ask := range []struct {
		subject string
		shim    *stdiomcp.Client
		name    string
		want    []byte
	}{
		{"worker", worker, "readme", docs.readme},
		{"orchestrator", orchestrator, "notes", docs.notes},
		{"orchestrator", orchestrator, "logo", docs.logo},
		{"orchestrator", orchestrator, "deploy-key", docs.key},
	} {
		r, err := read(ask.shim, ask.name)
		if err != nil {
			return err
		}
		d.expect("allow-"+ask.name, r.Decision == decisionAllow && bytes.Equal(r.bytes(), ask.want),
			"%s reads %s: %s %s, %s as stored", ask.subject, ask.name, r.Decision, r.ReasonCode, count(len(r.bytes()), "byte"))
	}
	r, err := read(orchestrator, "deploy-key")
	if err != nil {
		return err
	}
	d.expect("single-use", r.Decision != decisionAllow && r.Content == nil, "orchestrator reads deploy-key again: %s %s, it was granted once", r.Decision, r.ReasonCode)
	return nil
}

func (d *demo) denied(worker *stdiomcp.Client) error {
	d.title("Denied: what exists and what does not look the same")
	forbidden, err := read(worker, "notes")
	if err != nil {
		return err
	}
	unknown, err := read(worker, "no-such-thing")
	if err != nil {
		return err
	}
	d.expect("deny", forbidden.Decision == "deny" && forbidden.Content == nil, "worker reads notes: %s %s", forbidden.Decision, forbidden.ReasonCode)
	d.expect("deny-alike", forbidden == unknown, "worker reads no-such-thing: %s %s, the same answer", unknown.Decision, unknown.ReasonCode)
	return nil
}

func (d *demo) why() error {
	d.title("The operator sees the true cause, and what would mend it")
	said, err := d.must("why", "worker", "notes")
	if err != nil {
		return err
	}
	d.expect("why", strings.Contains(said, string(causeNoGrant)) && strings.Contains(said, "fix: sbctl grant worker read:notes"), "the cause is told to the operator alone")
	return nil
}

func (d *demo) revoked(worker *stdiomcp.Client) error {
	d.title("A revocation takes effect at once, on the open connection")
	if _, err := d.must("revoke", "worker", "readme", "-q"); err != nil {
		return err
	}
	r, err := read(worker, "readme")
	if err != nil {
		return err
	}
	d.expect("revoke", r.Decision == "deny" && r.Content == nil, "worker reads readme: %s %s", r.Decision, r.ReasonCode)
	return nil
}

func (d *demo) proof(genesis string) error {
	d.title("Every decision is an entry, and the log verifies")
	said, err := d.must("audit", "list", "--kind", "acquire")
	if err != nil {
		return err
	}
	entries := strings.Count(said, "acquire")
	d.expect("entries", entries == 8, "%d reads were asked for, %s", 8, count(entries, "entry"))
	said, code, err := d.sbctl("audit", "verify", "--genesis", genesis)
	if err != nil {
		return err
	}
	d.expect("verify", code == 0 && strings.Contains(said, "intact"), "the log is intact, held against the fingerprint from the beginning")
	return nil
}

// sealed looks for the sealed documents in every file of the home.
func (d *demo) sealed(docs documents) error {
	d.title("Nothing sealed lies on disk in clear")
	markers := map[string][]byte{"notes": docs.notes[:24], "deploy-key": docs.key[32:72], "logo": docs.logo[:32]}
	found, files, err := searchFiles(d.home, markers)
	if err != nil {
		return err
	}
	d.expect("sealed", len(found) == 0, "%s searched for the documents, found: %s", count(files, "file"), cmp.Or(strings.Join(found, ", "), "nothing"))
	return nil
}
