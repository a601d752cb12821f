package keysource

import (
	"bytes"
	"context"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"subjectbroker/vault"
)

const (
	// Service is the name under which items are kept; the account is the vault's ID.
	Service = "subject-broker"

	// maxReply is far more than a reply has.
	maxReply = 64 << 10
	// killDelay is how long after the kill a child's pipes may stay open.
	killDelay = time.Second
)

// Command starts the process that talks to the keychain: this program again, with arguments that lead to Child.
type Command struct {
	Path string // absolute
	Args []string
}

// Keychain is a key source that keeps keys in the Secret Service (Linux) or the login keychain (macOS). The library for that
// knows no time-out, panics on replies it does not expect and reports success for items that were never stored. So each call
// is a child process of its own, killed with its whole group when timeout is over for the operation, and what was
// stored counts when another child has read it back.
//
// vault.ErrKeyUnavailable means that the keychain answered and has no such item. Everything else that can be wrong (no session
// bus, nobody answering, a locked collection, a dismissed prompt, a crash) is vault.ErrKeyNotAnswering.
func Keychain(command Command, timeout time.Duration) vault.KeySource {
	return &keychain{command: command, timeout: timeout}
}

type keychain struct {
	command Command
	timeout time.Duration
}

// request and reply are the two lines that cross the pipes to and from the child.
type request struct {
	Op      string        `json:"op"` // get, set, remove
	Account string        `json:"account"`
	Key     []byte        `json:"key,omitempty"` // set only
	Timeout time.Duration `json:"timeout"`       // after which the child ends itself
}

type reply struct {
	Status string `json:"status"`           // ok, not-found, unavailable
	Key    []byte `json:"key,omitempty"`    // get only; as long as it was stored
	Reason string `json:"reason,omitempty"` // unavailable only, for people
}

const (
	opGet    = "get"
	opSet    = "set"
	opRemove = "remove"

	statusOK          = "ok"
	statusNotFound    = "not-found"
	statusUnavailable = "unavailable"
)

func (k *keychain) Kind() string { return KindKeychain }

func (k *keychain) Load(ctx context.Context, vaultID string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, k.timeout)
	defer cancel()
	return k.load(ctx, vaultID)
}

func (k *keychain) load(ctx context.Context, vaultID string) ([]byte, error) {
	r, err := k.call(ctx, request{Op: opGet, Account: vaultID})
	if err != nil {
		return nil, err
	}
	if len(r.Key) != keySize {
		clear(r.Key)
		return nil, fmt.Errorf("%w: the keychain's item is not a key", vault.ErrWrongKey)
	}
	return r.Key, nil
}

func (k *keychain) Store(ctx context.Context, vaultID string, key []byte) error {
	if len(key) != keySize {
		return fmt.Errorf("%w: a key has %d bytes", vault.ErrInvalid, keySize)
	}
	ctx, cancel := context.WithTimeout(ctx, k.timeout)
	defer cancel()
	same, err := k.holds(ctx, vaultID, key)
	switch {
	case err == nil && same:
		return nil
	case err == nil, errors.Is(err, vault.ErrWrongKey):
		return fmt.Errorf("%w: keychain item %s", vault.ErrKeyExists, vaultID)
	case !errors.Is(err, vault.ErrKeyUnavailable):
		return err
	}
	if _, err := k.call(ctx, request{Op: opSet, Account: vaultID, Key: key}); err != nil {
		return err
	}
	same, err = k.holds(ctx, vaultID, key)
	switch {
	case errors.Is(err, vault.ErrKeyUnavailable), err == nil && !same:
		return fmt.Errorf("%w: the keychain reported success and stored nothing; was its prompt dismissed?", vault.ErrKeyNotAnswering)
	case err != nil:
		return fmt.Errorf("reading back: %w", err)
	}
	return nil
}

func (k *keychain) holds(ctx context.Context, vaultID string, key []byte) (bool, error) {
	got, err := k.load(ctx, vaultID)
	defer clear(got)
	return subtle.ConstantTimeCompare(got, key) == 1, err
}

func (k *keychain) Remove(ctx context.Context, vaultID string) error {
	ctx, cancel := context.WithTimeout(ctx, k.timeout)
	defer cancel()
	_, err := k.call(ctx, request{Op: opRemove, Account: vaultID})
	return err
}

// call runs one child. A reply that says not-found or unavailable becomes an error.
func (k *keychain) call(ctx context.Context, req request) (reply, error) {
	if deadline, ok := ctx.Deadline(); ok {
		req.Timeout = time.Until(deadline)
	}
	out, err := k.run(ctx, req)
	defer clear(out)
	if err != nil {
		return reply{}, err
	}
	var r reply
	dec := json.NewDecoder(bytes.NewReader(out))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&r); err != nil {
		return reply{}, fmt.Errorf("%w: its reply makes no sense", vault.ErrKeyNotAnswering)
	}
	switch r.Status {
	case statusOK:
		return r, nil
	case statusNotFound:
		return reply{}, fmt.Errorf("%w: no keychain item %s", vault.ErrKeyUnavailable, req.Account)
	case statusUnavailable:
		return reply{}, fmt.Errorf("%w: %s", vault.ErrKeyNotAnswering, printable(r.Reason))
	}
	return reply{}, fmt.Errorf("%w: its reply makes no sense", vault.ErrKeyNotAnswering)
}

func (k *keychain) run(ctx context.Context, req request) ([]byte, error) {
	in, err := json.Marshal(req)
	if err != nil {
		return nil, err
	}
	defer clear(in)
	var out limited
	cmd := exec.CommandContext(ctx, k.command.Path, k.command.Args...)
	cmd.Env = childEnv()
	cmd.Stdin, cmd.Stdout = bytes.NewReader(in), &out
	// A group of its own: whatever the child starts, the kill ends it, too; and a Ctrl-C in our terminal is ours alone.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = killDelay
	err = cmd.Run()
	switch {
	case ctx.Err() != nil && errors.Is(ctx.Err(), context.DeadlineExceeded):
		return out.data, fmt.Errorf("%w: no answer in time", vault.ErrKeyNotAnswering)
	case ctx.Err() != nil:
		return out.data, fmt.Errorf("%w: %w", vault.ErrKeyNotAnswering, ctx.Err())
	case err != nil:
		// Standard error is not shown: a crash prints what it likes.
		return out.data, fmt.Errorf("%w: the keychain's helper failed: %w", vault.ErrKeyNotAnswering, err)
	}
	return out.data, nil
}

// childEnv is what finding the session bus and the login keychain takes. There is no PATH on purpose: without a bus the
// library would start one with dbus-launch.
func childEnv() []string {
	env := []string{}
	for _, name := range []string{"HOME", "USER", "LOGNAME", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS"} {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	return env
}

// limited keeps maxReply bytes. More than that ends the reading, and with it a child that goes on writing.
type limited struct {
	data []byte
}

func (l *limited) Write(p []byte) (int, error) {
	if len(p) > maxReply-len(l.data) {
		return 0, errors.New("too long a reply")
	}
	l.data = append(l.data, p...)
	return len(p), nil
}

// printable makes one short line of what another program said.
func printable(s string) string {
	b := []byte(s[:min(len(s), 200)])
	for i, c := range b {
		if c < ' ' || c > '~' {
			b[i] = '?'
		}
	}
	return string(b)
}

// decodeItem undoes encodeItem; whatever is not one of ours comes back empty.
func decodeItem(item string) []byte {
	key, err := base64.StdEncoding.Strict().DecodeString(item)
	if err != nil {
		return nil
	}
	return key
}

// encodeItem is how a key is kept: keychains are made for text.
func encodeItem(key []byte) string { return base64.StdEncoding.EncodeToString(key) }
