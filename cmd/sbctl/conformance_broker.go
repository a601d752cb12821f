package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"subjectbroker/cmd/sbctl/internal/stdiomcp"
	"subjectbroker/proto/place"
	"subjectbroker/proto/wire"
	"subjectbroker/worker"
)

// Subjects and content of the examination. The other one may read everything,
// the worker only what every subject may.
const (
	subjectWorker = "worker"
	subjectOther  = "other"

	docShared = "shared" // both
	docHidden = "hidden" // the other one alone
	docOnce   = "once"   // the worker, once
	docBound  = "bound"  // the worker, from a launch
	docLater  = "later"  // the worker, until it is taken back
)

const profileNarrow = "narrow"

const conformancePolicy = `version: 1
profiles:
  narrow: {subject: worker, tools: [read_resource, list_resources], caps: ["read:shared"]}
  foreign: {subject: other, tools: [read_resource, list_resources]}
`

// racers are how many clients race for one use.
const racers = 8

// brokerLayer is what the broker decides and what it writes down.
type brokerLayer struct {
	*conformance
	genesis         string
	markers         map[string][]byte
	worker, other   *stdiomcp.Client
	allowed, denied int // reads that were answered
}

// brokerLayer makes the checks of the broker.
func (c *conformance) brokerLayer(ctx context.Context) (err error) {
	c.progress("checking the broker")
	b := &brokerLayer{conformance: c, markers: map[string][]byte{}}
	if err := b.furnish(ctx); err != nil {
		return err
	}
	if b.worker, err = c.shim(ctx, subjectWorker); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.worker.Close()) }()
	if b.other, err = c.shim(ctx, subjectOther); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.other.Close()) }()
	for _, part := range []func(context.Context) error{
		b.authorised, b.hidden, b.forged, b.ceilings, b.oneUse, b.revoked, b.explained, b.tiers, b.log, b.locked,
	} {
		if err := part(ctx); err != nil {
			return err
		}
	}
	return nil
}

// furnish puts content in and says who may have it.
func (b *brokerLayer) furnish(ctx context.Context) error {
	genesis, err := b.must(ctx, "init", "-q")
	if err != nil {
		return err
	}
	b.genesis = strings.TrimSpace(genesis)
	for _, name := range []string{docShared, docHidden, docOnce, docBound, docLater} {
		b.markers[name] = []byte("marker-" + name + "-" + rand.Text() + "\n")
		path := filepath.Join(b.dir, "in", name)
		if err := os.WriteFile(path, b.markers[name], 0o600); err != nil {
			return err
		}
		if _, err := b.must(ctx, "secret", "put", name, "--kind", "text", "--from-file", path, "-q"); err != nil {
			return err
		}
	}
	policy := filepath.Join(b.dir, "in", "policy.yaml")
	if err := os.WriteFile(policy, []byte(conformancePolicy), 0o600); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"subject", "add", subjectWorker, "-q"},
		{"subject", "add", subjectOther, "-q"},
		{"apply", "-f", policy, "-q", "--yes"},
		{"grant", subjectOther, "*", "-q"},
		{"grant", subjectWorker, docShared, docLater, "-q"},
		{"grant", subjectWorker, docOnce, "--uses", "1", "-q"},
		{"grant", subjectWorker, docBound, "--tier", tierBound, "-q"},
	} {
		if _, err := b.must(ctx, args...); err != nil {
			return err
		}
	}
	return nil
}

// read reads over MCP and keeps count.
func (b *brokerLayer) read(shim *stdiomcp.Client, name string) (reading, error) {
	r, err := read(shim, name)
	if err == nil {
		b.count(r.Decision == decisionAllow)
	}
	return r, err
}

func (b *brokerLayer) count(allowed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if allowed {
		b.allowed++
	} else {
		b.denied++
	}
}

// holds says whether r is the content of name, byte for byte.
func (b *brokerLayer) holds(r reading, name string) bool {
	return r.Decision == decisionAllow && bytes.Equal(r.bytes(), b.markers[name])
}

func list(shim *stdiomcp.Client) ([]string, error) {
	var found struct{ Resources []string }
	err := shim.Tool("list_resources", map[string]any{}, &found)
	return found.Resources, err
}

func (b *brokerLayer) authorised(context.Context) error {
	r, err := b.read(b.worker, docShared)
	if err != nil {
		return err
	}
	b.expect(layerBroker, "read.authorised", b.holds(r, docShared), "a subject reads what it was granted, byte for byte: %s %s", r.Decision, r.ReasonCode)
	listed, err := list(b.worker)
	if err != nil {
		return err
	}
	want := []string{docLater, docOnce, docShared}
	b.expect(layerBroker, "list.authorised", slices.Equal(listed, want), "a subject lists what it may read now and nothing else: %s", strings.Join(listed, ", "))
	mine, err := b.read(b.other, docHidden)
	if err != nil {
		return err
	}
	theirs, err := b.read(b.worker, docHidden)
	if err != nil {
		return err
	}
	b.expect(layerBroker, "authority.per-subject", b.holds(mine, docHidden) && theirs.Decision == "deny" && theirs.Content == nil,
		"two subjects of one uid ask for the same thing: one is answered %s, the other %s", mine.Decision, theirs.Decision)
	return nil
}

func (b *brokerLayer) hidden(context.Context) error {
	raw, err := b.worker.Call("resources/list", map[string]any{})
	if err != nil {
		return err
	}
	listed, err := list(b.worker)
	if err != nil {
		return err
	}
	b.expect(layerBroker, "hidden.list", !slices.Contains(listed, docHidden) && !bytes.Contains(raw, []byte(docHidden)) && bytes.Contains(raw, []byte(docShared)),
		"what a subject may not read is in no list, neither of the tool nor of MCP's resources")
	forbidden, err := b.read(b.worker, docHidden)
	if err != nil {
		return err
	}
	b.expect(layerBroker, "hidden.read", forbidden.Decision == "deny" && forbidden.Content == nil, "it cannot be read either: %s %s", forbidden.Decision, forbidden.ReasonCode)
	unknown, err := b.read(b.worker, "no-such-thing")
	if err != nil {
		return err
	}
	b.expect(layerBroker, "hidden.alike", forbidden == unknown, "what exists and what does not are denied alike")
	raw, err = b.worker.Call("resources/read", map[string]any{"uri": "sb://resource/" + docHidden})
	b.count(false)
	b.expect(layerBroker, "hidden.resource", err != nil && len(raw) == 0, "nor is it read as a resource of MCP")
	return nil
}

// forged claims to be somebody else in everything that an agent can write.
func (b *brokerLayer) forged(ctx context.Context) error {
	forged := map[string]any{"subject": subjectOther, "subjectId": subjectOther, "runId": "0", "profile": "foreign", "user": "root"}
	arguments := map[string]any{"resourceId": docHidden}
	for name, value := range forged {
		arguments[name] = value
	}
	entries, err := b.entries(ctx, "--kind", "acquire")
	if err != nil {
		return err
	}
	raw, err := b.worker.Call("tools/call", map[string]any{"name": "read_resource", "arguments": arguments})
	b.expect(layerBroker, "forged.arguments", !bytes.Contains(raw, b.mark(docHidden)), "another subject's name in a tool's arguments gives nothing: %s", outcome(raw, err))
	raw, err = b.worker.Call("tools/call", map[string]any{"name": "read_resource", "arguments": map[string]any{"resourceId": docHidden}, "_meta": forged})
	b.expect(layerBroker, "forged.meta", !bytes.Contains(raw, b.mark(docHidden)) && bytes.Contains(raw, []byte(wire.AccessDenied)), "nor does it in the metadata of a call: %s", outcome(raw, err))
	path, err := sibling("sb-mcp")
	if err != nil {
		return err
	}
	liar, err := stdiomcp.Start(ctx, stdiomcp.Config{Command: path, Args: []string{"--subject", subjectWorker}, Env: b.environment(), Stderr: b.stderr, Name: subjectOther})
	if err != nil {
		return err
	}
	defer func() { _ = liar.Close() }()
	r, err := read(liar, docHidden)
	if err != nil {
		return err
	}
	b.expect(layerBroker, "forged.client-info", r.Decision == "deny" && r.Content == nil, "nor as the name that a client gives itself: %s %s", r.Decision, r.ReasonCode)
	after, err := b.entries(ctx, "--kind", "acquire")
	if err != nil {
		return err
	}
	// What is malformed is refused before anything is asked, and then is no read.
	b.denied += len(after) - len(entries)
	who := true
	for _, entry := range after[len(entries):] {
		who = who && entry.SubjectID == subjectWorker && entry.Decision == "deny"
	}
	b.expect(layerBroker, "forged.logged", who && len(after) > len(entries), "the log has each of these as the worker's own, denied (%s)", count(len(after)-len(entries), "entry"))
	return nil
}

// outcome is an answer of a shim in a few words.
func outcome(raw json.RawMessage, err error) string {
	var answer struct {
		StructuredContent struct{ Decision, ReasonCode string }
	}
	switch {
	case err != nil:
		return "the call is refused"
	case json.Unmarshal(raw, &answer) == nil && answer.StructuredContent.ReasonCode != "":
		return strings.TrimSpace(answer.StructuredContent.Decision + " " + answer.StructuredContent.ReasonCode)
	}
	return "denied"
}

// mark is the part of the content of name that stands in it alone.
func (b *brokerLayer) mark(name string) []byte { return bytes.TrimSpace(b.markers[name]) }

func (b *brokerLayer) ceilings(ctx context.Context) error {
	narrow, err := b.shim(ctx, subjectWorker, "--profile", profileNarrow)
	if err != nil {
		return err
	}
	defer func() { _ = narrow.Close() }()
	inside, err := b.read(narrow, docShared)
	if err != nil {
		return err
	}
	outside, err := b.read(narrow, docLater)
	if err != nil {
		return err
	}
	b.expect(layerBroker, "ceiling.profile", b.holds(inside, docShared) && outside.Decision == "deny" && outside.Content == nil,
		"a profile's run reads what its ceiling and the grants hold, and not what the grants alone hold: %s, %s", inside.Decision, outside.Decision)
	foreign, err := b.shim(ctx, subjectWorker, "--profile", "foreign")
	if err != nil {
		return err
	}
	defer func() { _ = foreign.Close() }()
	r, err := read(foreign, docShared)
	if err != nil {
		return err
	}
	b.expect(layerBroker, "ceiling.foreign", r.Decision != decisionAllow && r.Content == nil, "another subject's profile opens no run: %s %s", r.Decision, r.ReasonCode)
	return nil
}

// oneUse races clients for the last use of a grant.
func (b *brokerLayer) oneUse(ctx context.Context) error {
	var runs []*worker.Run
	defer func() {
		for _, run := range runs {
			run.Close()
		}
	}()
	for range racers {
		run, err := worker.Open(ctx, worker.Config{Places: b.places(), Subject: subjectWorker, Version: version})
		if err != nil {
			return err
		}
		runs = append(runs, run)
	}
	start := make(chan struct{})
	var wait sync.WaitGroup
	var mu sync.Mutex
	won, content := 0, true
	for _, run := range runs {
		wait.Go(func() {
			<-start
			got, err := run.Acquire(ctx, docOnce)
			b.count(err == nil)
			if err == nil {
				mu.Lock()
				defer mu.Unlock()
				won++
				content = content && bytes.Equal(got.Bytes, b.markers[docOnce])
			}
		})
	}
	close(start)
	wait.Wait()
	b.expect(layerBroker, "grant.one-use", won == 1 && content, "%d clients race for a grant of one use: %d got it", racers, won)
	return nil
}

// revoked takes authority back in every way, under runs that are open.
func (b *brokerLayer) revoked(ctx context.Context) error {
	before, err := b.read(b.worker, docLater)
	if err != nil {
		return err
	}
	run, err := worker.Open(ctx, worker.Config{Places: b.places(), Subject: subjectWorker, Version: version})
	if err != nil {
		return err
	}
	defer run.Close()
	changes := follow(ctx, run)
	if !next(changes, worker.Watching) {
		return errors.New("watching a run: nothing is told")
	}
	if _, err := b.must(ctx, "revoke", subjectWorker, docLater, "-q"); err != nil {
		return err
	}
	told := next(changes, worker.ListChanged)
	listed, err := list(b.worker)
	if err != nil {
		return err
	}
	b.expect(layerBroker, "revocation.list", told && !slices.Contains(listed, docLater), "open runs are told at once that their lists have changed, and it is in none")
	after, err := b.read(b.worker, docLater)
	if err != nil {
		return err
	}
	b.expect(layerBroker, "revocation.next-call", b.holds(before, docLater) && after.Decision == "deny" && after.Content == nil,
		"a revoked grant is worthless for the next call of an open run: %s, then %s", before.Decision, after.Decision)
	entries, err := b.entries(ctx, "--kind", "acquire")
	if err != nil {
		return err
	}
	if _, err := b.must(ctx, "subject", "disable", subjectWorker, "-q", "--yes"); err != nil {
		return err
	}
	_, refused := run.Acquire(ctx, docShared)
	since, err := b.entries(ctx, "--kind", "acquire")
	if err != nil {
		return err
	}
	cut := next(changes, worker.RunEnded)
	b.denied += len(since) - len(entries) // a run that has ended asks for nothing: its refusal is no read
	if _, err := b.must(ctx, "subject", "enable", subjectWorker, "-q", "--yes"); err != nil {
		return err
	}
	b.expect(layerBroker, "revocation.stream", cut, "its stream is cut, with the word that the run has ended")
	b.expect(layerBroker, "revocation.disabled", refused != nil, "the open run of a subject that is disabled ends at once, and reads nothing any more")
	return nil
}

// follow tells what happens to a run; the channel ends with its stream.
func follow(ctx context.Context, run *worker.Run) <-chan worker.ChangeKind {
	kinds := make(chan worker.ChangeKind, 64)
	go func() {
		defer close(kinds)
		_ = run.Watch(ctx, func(change worker.Change) { kinds <- change.Kind })
	}()
	return kinds
}

// next waits until a change of one kind is told.
func next(kinds <-chan worker.ChangeKind, want worker.ChangeKind) bool {
	late := time.NewTimer(patience)
	defer late.Stop()
	for {
		select {
		case kind, open := <-kinds:
			if !open || kind == want {
				return open
			}
		case <-late.C:
			return false
		}
	}
}

func (b *brokerLayer) explained(ctx context.Context) error {
	_, allowed, err := b.sbctl(ctx, "explain", subjectWorker, docShared)
	if err != nil {
		return err
	}
	said, denied, err := b.sbctl(ctx, "explain", subjectWorker, docHidden)
	if err != nil {
		return err
	}
	b.expect(layerBroker, "explain.agrees", allowed == 0 && denied == wire.ExitDenied && strings.Contains(said, string(causeNoGrant)),
		"the operator's explanation says what the subjects were answered, and why")
	return nil
}

// tiers asks as a plain process for what demands more, and for a report.
func (b *brokerLayer) tiers(context.Context) error {
	shim, err := b.shim(context.Background(), subjectWorker)
	if err != nil {
		return err
	}
	defer func() { _ = shim.Close() }()
	r, err := b.read(shim, docBound)
	if err != nil {
		return err
	}
	b.expect(layerBroker, "tier.demanded", r.Decision == "deny" && r.Content == nil, "a grant for bound runs gives a plain process nothing: %s %s", r.Decision, r.ReasonCode)
	report, err := reportOf(shim)
	if err != nil {
		return err
	}
	b.expect(layerBroker, "tier.reported", report.Tier == tierCooperative && len(report.NotProvided) > 0,
		"a plain process is told that its tier is %s, and %s that this does not provide", report.Tier, count(len(report.NotProvided), "thing"))
	return nil
}

// tierReport is what capability_report says of a run's tier.
type tierReport struct {
	SubjectID   string
	Tier        string
	Covered     []string
	NotProvided []string
}

func reportOf(shim *stdiomcp.Client) (r tierReport, err error) {
	err = shim.Tool("capability_report", map[string]any{}, &r)
	return r, err
}

// logEntry is what is read of an entry.
type logEntry struct {
	Kind, SubjectID, Tier, Decision, Cause, ResourceID string
}

// entries lists entries of the log.
func (c *conformance) entries(ctx context.Context, filter ...string) ([]logEntry, error) {
	said, err := c.must(ctx, append([]string{"audit", "list", "-o", "json"}, filter...)...)
	if err != nil {
		return nil, err
	}
	var found struct{ Items []logEntry }
	if err := json.Unmarshal([]byte(said), &found); err != nil {
		return nil, fmt.Errorf("reading the log: %w", err)
	}
	return found.Items, nil
}

func (b *brokerLayer) log(ctx context.Context) error {
	entries, err := b.entries(ctx, "--kind", "acquire")
	if err != nil {
		return err
	}
	allowed := 0
	for _, entry := range entries {
		if entry.Decision == decisionAllow {
			allowed++
		}
	}
	b.expect(layerBroker, "log.counts", allowed == b.allowed && len(entries)-allowed == b.denied,
		"reads that were allowed: %d, entries for them: %d; denied: %d, entries: %d", b.allowed, allowed, b.denied, len(entries)-allowed)
	inLog, files, err := b.search(place.AuditDir(b.home))
	if err != nil {
		return err
	}
	b.expect(layerBroker, "log.metadata-only", files > 0 && len(inLog) == 0, "no content is in the log (%s searched)%s", count(files, "file"), foundWords(inLog))
	inHome, files, err := b.search(b.home)
	if err != nil {
		return err
	}
	control, _, err := b.search(filepath.Join(b.dir, "in"))
	if err != nil {
		return err
	}
	b.expect(layerBroker, "vault.sealed", files > 0 && len(inHome) == 0 && len(control) == len(b.markers),
		"no content is in clear anywhere in the home (%s searched; the same search finds all of it in the files that it came from)%s", count(files, "file"), foundWords(inHome))
	said, code, err := b.sbctl(ctx, "audit", "verify", "--genesis", b.genesis)
	if err != nil {
		return err
	}
	b.expect(layerBroker, "log.verifies", code == 0 && strings.Contains(said, "intact"), "the log is intact, held against the fingerprint from the beginning")
	return b.forgedLog(ctx)
}

func foundWords(found []string) string {
	if len(found) == 0 {
		return ""
	}
	return "; found: " + strings.Join(found, ", ")
}

// search looks for the content in the files below dir.
func (b *brokerLayer) search(dir string) (found []string, files int, err error) {
	marks := map[string][]byte{}
	for name := range b.markers {
		marks[name] = b.mark(name)
	}
	return searchFiles(dir, marks)
}

// forgedLog changes one denial of a copy of the log into something else.
func (b *brokerLayer) forgedLog(ctx context.Context) error {
	dir := filepath.Join(b.dir, "in", "log")
	if err := os.CopyFS(dir, os.DirFS(place.AuditDir(b.home))); err != nil {
		return err
	}
	_, genuine, err := b.sbctl(ctx, "audit", "verify", "--genesis", b.genesis, dir)
	if err != nil {
		return err
	}
	segments, err := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	if err != nil {
		return err
	}
	changed := false
	for _, path := range segments {
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		forged := bytes.Replace(content, []byte(`"decision":"deny"`), []byte(`"decision":"allow"`), 1)
		if changed = !bytes.Equal(forged, content); changed {
			if err := os.WriteFile(path, forged, 0o600); err != nil {
				return err
			}
			break
		}
	}
	_, code, err := b.sbctl(ctx, "audit", "verify", "--genesis", b.genesis, dir)
	if err != nil {
		return err
	}
	b.expect(layerBroker, "log.tampering", changed && genuine == 0 && code == wire.ExitIntegrity, "a copy of the log verifies, and does not after one word of it was changed (exit codes %d and %d)", genuine, code)
	return os.RemoveAll(dir)
}

// locked locks the vault and unlocks it again.
func (b *brokerLayer) locked(ctx context.Context) error {
	if _, err := b.must(ctx, "lock", "-q"); err != nil {
		return err
	}
	run, err := worker.Open(ctx, worker.Config{Places: b.places(), Subject: subjectWorker, Version: version})
	if err == nil {
		_, err = run.Acquire(ctx, docShared)
		run.Close()
	}
	if _, unlocked := b.must(ctx, "unlock", "-q"); unlocked != nil {
		return unlocked
	}
	b.expect(layerBroker, "lock", err != nil, "a locked vault gives nothing")
	for deadline := time.Now().Add(patience); ; {
		r, err := read(b.worker, docShared)
		if err != nil {
			return err
		}
		if b.holds(r, docShared) || time.Now().After(deadline) {
			b.expect(layerBroker, "lock.undone", b.holds(r, docShared), "after unlocking an agent's shim goes on by itself: %s %s", r.Decision, r.ReasonCode)
			return nil
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// passphrasePause is how long at least no passphrase is taken after a wrong one.
const passphrasePause = time.Second

// authenticated has the operator known by a passphrase, and a subject that must
// be in a launch. It comes last: from here on the examination would need it.
func (c *conformance) authenticated(ctx context.Context, supported bool) error {
	c.progress("authenticating the operator")
	passphrase := rand.Text()
	for _, args := range [][]string{
		{"operator", "set-passphrase", "--passphrase-fd", "3", "-q"},
		{"subject", "set", subjectWorker, "--min-tier", tierBound, "--passphrase-fd", "3", "-q"},
	} {
		if output, code, err := c.sbctlWith(ctx, passphrase, args...); err != nil || code != 0 {
			return fmt.Errorf("sbctl %s: exit code %d: %w: %s", strings.Join(args, " "), code, err, oneLine(output))
		}
	}
	grant := []string{"grant", subjectWorker, docHidden, "-q"}
	_, without, err := c.sbctl(ctx, grant...)
	if err != nil {
		return err
	}
	_, with, err := c.sbctlWith(ctx, passphrase, append(grant, "--passphrase-fd", "3")...)
	if err != nil {
		return err
	}
	path, err := sibling("sb-mcp")
	if err != nil {
		return err
	}
	check := exec.CommandContext(ctx, path, "check", "--subject", subjectWorker)
	check.Env = c.environment()
	err = check.Run()
	exit, refused := errors.AsType[*exec.ExitError](err)
	if err != nil && !refused {
		return err
	}
	plain := 0
	if refused {
		plain = exit.ExitCode()
	}
	bound := 0
	if supported {
		if _, bound, err = c.sbctlWith(ctx, passphrase, "run", "--subject", subjectWorker, "--passphrase-fd", "3", "--", path, "check", "--subject", subjectWorker); err != nil {
			return err
		}
	}
	c.expect(layerBroker, "tier.minimum", plain == wire.ExitDenied && bound == 0, "a plain process opens no run for a subject that must be in a launch%s: exit codes %d and %d",
		map[bool]string{true: ", and a launch does"}[supported], plain, bound)
	if err := c.oneConnection(ctx, passphrase, grant); err != nil {
		return err
	}
	began := time.Now()
	_, wrong, err := c.sbctlWith(ctx, "not "+passphrase, append(grant, "--passphrase-fd", "3")...)
	if err != nil {
		return err
	}
	_, next, err := c.sbctlWith(ctx, passphrase, append(grant, "--passphrase-fd", "3")...)
	if err != nil {
		return err
	}
	took := time.Since(began)
	c.expect(layerBroker, "operator.passphrase", without == wire.ExitDenied && with == 0 && wrong == wire.ExitDenied,
		"once a subject must be in a launch, a process of the operator's uid grants nothing without the operator's passphrase, something with it, and nothing with a wrong one: exit codes %d, %d and %d", without, with, wrong)
	c.expect(layerBroker, "operator.pause", took >= passphrasePause, "after a wrong passphrase the right one is not taken at once, but after a pause: %s, exit code %d", took.Round(time.Millisecond), next)
	return nil
}

// oneConnection opens a session and has another process of the same uid do what
// only the session may.
func (c *conformance) oneConnection(ctx context.Context, passphrase string, needy []string) error {
	console := exec.CommandContext(ctx, c.self, "console", "--passphrase-fd", "3")
	console.Env, console.WaitDelay = c.environment(), stopPatience
	console.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // the person's terminal is not for it to ask on
	typed, err := console.StdinPipe()
	if err != nil {
		return err
	}
	said, err := console.StdoutPipe()
	if err != nil {
		return err
	}
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}
	defer read.Close()
	console.ExtraFiles = []*os.File{read}
	_, err = write.WriteString(passphrase) // a pipe holds more than that
	if err = errors.Join(err, write.Close()); err != nil {
		return err
	}
	if err := console.Start(); err != nil {
		return err
	}
	inside := ""
	if _, err = fmt.Fprintln(typed, strings.Join(needy, " ")); err == nil {
		inside, _ = bufio.NewReader(said).ReadString('\n') // what it does is answered with an id
	}
	var outside int
	if err == nil {
		_, outside, err = c.sbctl(ctx, needy...)
	}
	_ = typed.Close()
	_ = console.Wait() // it ends as its last line did
	if err != nil {
		return err
	}
	c.expect(layerBroker, "operator.session", inside != "" && outside == wire.ExitDenied,
		"while a session is open, its own connection grants (%t) and another process of the operator's uid does not: exit code %d", inside != "", outside)
	return nil
}

// finalLog verifies the log after everything.
func (c *conformance) finalLog(ctx context.Context) error {
	said, code, err := c.sbctl(ctx, "audit", "verify")
	if err != nil {
		return err
	}
	c.expect(layerBroker, "log.end", code == 0 && strings.Contains(said, "intact"), "after all attacks the log is still intact")
	return nil
}
