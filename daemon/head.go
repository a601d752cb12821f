package daemon

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"subjectbroker/audit"
	"subjectbroker/proto/wire"
)

// How often and how long the head is kept outside the home.
const (
	headPeriod        = time.Second // of the file, unless something changed
	headWait          = time.Second // an operator's answer waits for the file no longer
	headCommandPeriod = 5 * time.Second
	headCommandLimit  = 30 * time.Second
	headStopLimit     = time.Second // of the last push, when the daemon stops
)

// keptHead is the log's head as it is kept outside the home: one line of JSON.
type keptHead struct {
	Genesis   string `json:"genesis"`
	Vault     string `json:"vault"`
	Segment   uint32 `json:"segment"`
	Seq       uint64 `json:"seq"`
	Hash      string `json:"hash"`
	Sig       string `json:"sig"`
	Timestamp string `json:"timestamp"` // of the push
}

func newKeptHead(head audit.Head, at time.Time) keptHead {
	return keptHead{
		Genesis: head.Genesis, Vault: head.VaultID, Segment: head.Segment, Seq: head.Seq,
		Hash: hex.EncodeToString(head.Hash[:]), Sig: head.Signature, Timestamp: at.UTC().Format("2006-01-02T15:04:05.000Z"),
	}
}

func (h keptHead) line() []byte {
	line, _ := json.Marshal(h) // of strings and numbers: never fails
	return append(line, '\n')
}

// position is what the log must contain; nil for nil.
func (h *keptHead) position() *audit.Position {
	if h == nil {
		return nil
	}
	p := &audit.Position{Segment: h.Segment, Seq: h.Seq}
	_, _ = hex.Decode(p.Hash[:], []byte(h.Hash)) // parseHead has seen it
	return p
}

// parseHead reads the line strictly: what is damaged must not pass for absent.
func parseHead(raw []byte) (keptHead, error) {
	var h keptHead
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&h); err != nil {
		return keptHead{}, fmt.Errorf("it does not hold a head: %w", err)
	}
	if !bytes.Equal(h.line(), raw) {
		return keptHead{}, errors.New("it does not hold a head as sbd writes it")
	}
	for _, digits := range []struct {
		text string
		size int
	}{{h.Genesis, 64}, {h.Hash, 64}, {h.Vault, 32}} {
		decoded, err := hex.DecodeString(digits.text)
		if err != nil || len(digits.text) != digits.size || hex.EncodeToString(decoded) != digits.text {
			return keptHead{}, errors.New("it does not hold a head: a hash or an id is malformed")
		}
	}
	if h.Seq == 0 || h.Segment == 0 {
		return keptHead{}, errors.New("it does not hold a head: it names no entry")
	}
	return h, nil
}

const maxHeadSize = 4 << 10

// readHead reads a head file; nil when there is none.
func readHead(path string) (*keptHead, error) {
	file, err := openPlain(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	raw, err := io.ReadAll(io.LimitReader(file, maxHeadSize))
	if err != nil {
		return nil, err
	}
	h, err := parseHead(raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &h, nil
}

// headKeeper keeps the log's newest head outside the home, so that a vault and
// a log that are put back together are noticed. Best effort: what does not work
// is told by status, and stops nothing.
type headKeeper struct {
	places headPlaces
	now    func() time.Time
	kick   chan struct{} // something changed
	tasks  sync.WaitGroup

	mu      sync.Mutex
	wanted  uint64 // seq that the newest change ended with
	file    outlet
	command outlet
	moved   chan struct{} // closed after each attempt to write the file
}

// outlet is one of the two ways out.
type outlet struct {
	seq   uint64 // newest that was kept
	cause string // why the last attempt failed; empty when it did not
}

func newHeadKeeper(places headPlaces, now func() time.Time) *headKeeper {
	return &headKeeper{places: places, now: now, kick: make(chan struct{}, 1), moved: make(chan struct{})}
}

// unused refuses a file that holds a head before the vault is made whose head it
// shall hold.
func (k *headKeeper) unused() error {
	if k.places.file == "" {
		return nil
	}
	if _, err := os.Lstat(k.places.file); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return fault(wire.ConfigInvalid, "audit.headFile: %w", err)
	}
	return fault(wire.ConfigInvalid, "audit.headFile: %s is there already, and this vault is not: choose another file", k.places.file)
}

// kept is the head that the log must contain; nil when none is kept. A head of
// another vault is a mistake in the configuration, one of another log of this
// vault is a rollback.
func (k *headKeeper) kept(vaultID, auditDir string) (*keptHead, error) {
	if k.places.file == "" {
		return nil, nil
	}
	h, err := readHead(k.places.file)
	if err != nil {
		return nil, fault(wire.ConfigInvalid, "audit.headFile: %w", err)
	}
	if h == nil {
		return nil, nil
	}
	if h.Vault != vaultID {
		return nil, fault(wire.ConfigInvalid, "audit.headFile: %s is of vault %s, and this is vault %s: choose another file", k.places.file, h.Vault, vaultID)
	}
	genesis, err := logGenesis(auditDir)
	if err != nil {
		return nil, err
	}
	if genesis != "" && genesis != h.Genesis {
		return nil, fault(wire.RollbackDetected, "%s is of a log that began with %s, and this one began with %s: another log was put in place", k.places.file, h.Genesis, genesis)
	}
	return h, nil
}

// start keeps the head until ctx ends.
func (k *headKeeper) start(ctx context.Context, log func() *audit.Log) {
	if k.places.file != "" {
		k.tasks.Go(func() { k.tendFile(ctx, log) })
	}
	if len(k.places.command) > 0 {
		k.tasks.Go(func() { k.tendCommand(ctx, log) })
	}
}

func (k *headKeeper) tendFile(ctx context.Context, log func() *audit.Log) {
	tick := time.NewTicker(headPeriod)
	defer tick.Stop()
	for {
		if log := log(); log != nil {
			k.toFile(log.Head())
		}
		select {
		case <-ctx.Done():
			return
		case <-k.kick:
		case <-tick.C:
		}
	}
}

func (k *headKeeper) tendCommand(ctx context.Context, log func() *audit.Log) {
	tick := time.NewTicker(headCommandPeriod)
	defer tick.Stop()
	for {
		if log := log(); log != nil {
			k.toCommand(ctx, log.Head(), headCommandLimit)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// changed says that a change of the vault is in the log up to that entry.
func (k *headKeeper) changed(seq uint64) {
	if k.places.file == "" {
		return
	}
	k.mu.Lock()
	k.wanted = max(k.wanted, seq)
	k.mu.Unlock()
	select {
	case k.kick <- struct{}{}:
	default:
	}
}

// wait waits until the file holds what changed last, or could not be written;
// but not for long, because a place outside may be slow.
func (k *headKeeper) wait(ctx context.Context) {
	if k.places.file == "" {
		return
	}
	timer := time.NewTimer(headWait)
	defer timer.Stop()
	for {
		k.mu.Lock()
		there, moved := k.file.seq >= k.wanted || k.file.cause != "", k.moved
		k.mu.Unlock()
		if there {
			return
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return
		case <-timer.C:
			return
		}
	}
}

func (k *headKeeper) toFile(head audit.Head) {
	k.mu.Lock()
	done := k.file.seq >= head.Seq && k.file.cause == ""
	k.mu.Unlock()
	if done {
		return
	}
	// Others may read it: it is there to be copied, and holds nothing secret.
	err := writeDurably(k.places.file, 0o644, bytes.NewReader(newKeptHead(head, k.now()).line()))
	k.mu.Lock()
	defer k.mu.Unlock()
	k.file.tell("headFile", head.Seq, err)
	close(k.moved)
	k.moved = make(chan struct{})
}

func (k *headKeeper) toCommand(ctx context.Context, head audit.Head, limit time.Duration) {
	k.mu.Lock()
	done := k.command.seq >= head.Seq && k.command.cause == ""
	k.mu.Unlock()
	if done {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := runHeadCommand(ctx, k.places.command, newKeptHead(head, k.now()).line())
	k.mu.Lock()
	defer k.mu.Unlock()
	k.command.tell("headCommand", head.Seq, err)
}

func (o *outlet) tell(name string, seq uint64, err error) {
	if err != nil {
		o.cause = fmt.Sprintf("%s: %v", name, err)
		return
	}
	o.seq, o.cause = seq, ""
}

// status is the newest sequence number that is kept outside the home, and why
// something is not kept, in words.
func (k *headKeeper) status() (seq uint64, cause string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	cause = k.file.cause
	if k.command.cause != "" {
		if cause != "" {
			cause += "; "
		}
		cause += k.command.cause
	}
	return max(k.file.seq, k.command.seq), cause
}

// stop pushes the last head, for a moment: nobody waits longer for the world
// outside. start's context has ended.
func (k *headKeeper) stop(head audit.Head) {
	if k.places.none() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), headStopLimit)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		k.tasks.Wait()
		var last sync.WaitGroup
		if k.places.file != "" {
			last.Go(func() { k.toFile(head) })
		}
		if len(k.places.command) > 0 {
			last.Go(func() { k.toCommand(ctx, head, headStopLimit) })
		}
		last.Wait()
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// runHeadCommand gives a head to a program of the operator's, on stdin. It gets
// no more of our environment than a path, and its own process group, which is
// killed as a whole when the time is over.
func runHeadCommand(ctx context.Context, command []string, line []byte) error {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin"}
	cmd.Dir = "/"
	cmd.Stdin = bytes.NewReader(line)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	if ctx.Err() != nil {
		return errors.New("it took too long and was killed")
	}
	return err
}
