// Package daemontest runs a real daemon for tests: real vault, real log, real
// sockets, in a home of its own that is gone when the test ends.
//
// Start runs the daemon inside the test's process, Launch runs the program sbd
// as a child, for what only a process can show: signals, exit codes, kill -9.
// Both give the same Daemon with the same helpers. A helper that does not get
// what it asks for ends the test; where a refusal is what the test is about,
// call the client itself.
//
// When the test ends the daemon is stopped, and what it leaves behind must
// hold: it stopped cleanly, the log verifies with every signature up to the
// newest entry that was answered, the vault verifies with every content, and no
// goroutine is left.
//
// It is for tests only: the key lies in a file beside the vault.
package daemontest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"

	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/worker/client"
)

// Patience is how long a helper waits for something that must happen. It is
// long because machines are slow, and never part of what a test asserts.
const Patience = 30 * time.Second

// Options say what differs from a plain daemon in a new home. The zero value is
// a plain daemon.
type Options struct {
	// Home is where the daemon lives; empty: a new temporary one. One that is
	// given stays when the test ends.
	Home string
	// SocketDir is the directory of the sockets; empty: run below the home.
	SocketDir string
	// Config is the text of config.yaml.
	Config string
	// Guard leaves the guard against eager agents on. It is off otherwise: a test
	// is shim, agent and operator in one process.
	Guard bool
	// Operators are uids that are operators beside the daemon's own.
	Operators []uint32
	// KeySource is auto, keychain or file; empty: file.
	KeySource string
	// WaitKey makes the daemon start locked when the key source does not answer.
	WaitKey bool
	// Spoiled says that the test damages the home: what the daemon leaves behind
	// is not looked at.
	Spoiled bool

	// Now is the daemon's clock; nil: time.Now. Only for Start.
	Now func() time.Time
	// Boot is its boot clock; nil: the machine's. Only for Start.
	Boot func() (id string, since time.Duration)
	// ApprovalWait is how long a gated read waits for a person; 0: 25 s. Only for
	// Start.
	ApprovalWait time.Duration
	// AuditWait is how long it waits for the disk of its log; 0: Patience, which
	// is longer than sbd waits, since a machine where much is tested at once has slow
	// disks. Only for Start.
	AuditWait time.Duration
	// HostProgram is what runs servers, in the place of sb-mcp; empty: none. Only for
	// Start.
	HostProgram string
	// Keychild is the program that is asked for the keychain; empty: one that is
	// not there. Only for Start.
	Keychild string

	// Args are more arguments and Env more variables. Only for Launch.
	Args, Env []string
	// Files are open in sbd from descriptor 3 on. Only for Launch.
	Files []*os.File
	// Wrap is a command that runs sbd, such as setpriv with its arguments. It
	// must become sbd by exec. Only for Launch.
	Wrap []string
}

// Daemon is a daemon that runs, or did. Its methods are for the test's own
// goroutine, except where they say otherwise.
type Daemon struct {
	client.Places
	t       testing.TB
	options Options
	start   func(*Daemon) engine
	running engine

	mu       sync.Mutex
	operator *grpc.ClientConn
	conns    []*grpc.ClientConn
	messages *Output
	genesis  string
}

// engine is how a daemon runs.
type engine interface {
	// stop stops it cleanly and returns its exit code.
	stop() int
	// kill ends it as a crash would.
	kill()
	// ended is closed when it has ended.
	ended() <-chan struct{}
	// code is its exit code once it has ended, and fault what it said.
	code() int
	fault() string
}

// Start runs a plain daemon in this process.
func Start(t testing.TB) *Daemon {
	t.Helper()
	return StartWith(t, Options{})
}

// StartWith runs a daemon in this process.
func StartWith(t testing.TB, options Options) *Daemon {
	t.Helper()
	return begin(t, options, startInside)
}

// Launch runs the program sbd. See Main.
func Launch(t testing.TB, options Options) *Daemon {
	t.Helper()
	return begin(t, options, launch)
}

func begin(t testing.TB, options Options, start func(*Daemon) engine) *Daemon {
	t.Helper()
	if options.KeySource == "" {
		options.KeySource = "file"
	}
	home := options.Home
	if home == "" {
		home = NewHome(t)
	}
	d := &Daemon{
		Places: client.Places{Home: home, SocketDir: options.SocketDir}, t: t, options: options, start: start, messages: &Output{},
	}
	if d.SocketDir == "" {
		d.SocketDir = filepath.Join(home, "run")
	}
	if config := options.config(); config != "" {
		if err := writeConfig(home, config); err != nil {
			t.Fatal(err)
		}
	}
	d.running = start(d)
	t.Cleanup(d.finish)
	d.noteGenesis()
	return d
}

// config is the text of config.yaml.
func (o Options) config() string {
	config := o.Config
	if !o.Guard {
		config = NoGuard + config
	}
	if len(o.Operators) > 0 {
		config += fmt.Sprintf("operators: %s\n", strings.ReplaceAll(fmt.Sprint(o.Operators), " ", ", "))
	}
	return config
}

// writeConfig writes config.yaml for whoever owns the home, so that it is still
// there when the power is cut.
func writeConfig(home, config string) error {
	path := filepath.Join(home, "config.yaml")
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		return err
	}
	info, err := os.Stat(home)
	if err != nil {
		return err
	}
	if stat := info.Sys().(*syscall.Stat_t); int(stat.Uid) != os.Geteuid() {
		if err := os.Chown(path, int(stat.Uid), int(stat.Gid)); err != nil {
			return err
		}
	}
	return errors.Join(syncFile(path), syncFile(home), syncFile(filepath.Dir(home)))
}

func syncFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// NoGuard is the line of config.yaml that turns the guard against eager agents
// off, for tests that start sbd themselves.
const NoGuard = "operatorGuard: false\n"

// NewHome is an empty home that is gone when the test ends. Its path is short,
// as a socket's must be.
func NewHome(t testing.TB) string {
	t.Helper()
	home, err := os.MkdirTemp("", "sb")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(home) })
	if home, err = filepath.EvalSymlinks(home); err != nil {
		t.Fatal(err)
	}
	return home
}

// Stop stops the daemon, with whoever is connected, and returns its exit code.
func (d *Daemon) Stop() int {
	d.t.Helper()
	defer d.hangUp()
	return d.running.stop()
}

// Kill ends the daemon as a crash would: at once, with nothing written. Only
// after Launch.
func (d *Daemon) Kill() {
	d.t.Helper()
	d.running.kill()
	d.hangUp()
}

// Start starts the daemon again in the same home.
func (d *Daemon) Start() {
	d.t.Helper()
	d.running = d.start(d)
}

// Restart stops the daemon and starts it again.
func (d *Daemon) Restart() {
	d.t.Helper()
	if code := d.Stop(); code != 0 {
		d.t.Fatalf("stopping: exit %d: %s", code, d.running.fault())
	}
	d.Start()
}

// Wait waits until the daemon has ended by itself and returns its exit code and
// the one line that it said.
func (d *Daemon) Wait() (code int, fault string) {
	d.t.Helper()
	select {
	case <-d.running.ended():
	case <-time.After(Patience):
		d.t.Fatal("the daemon goes on")
	}
	d.hangUp()
	return d.running.code(), d.running.fault()
}

// Messages is everything that the daemon logged on stderr so far.
func (d *Daemon) Messages() string { return d.messages.String() }

// Operator is the operator's client. It is safe for concurrent use.
func (d *Daemon) Operator() operatorv1.OperatorServiceClient {
	d.t.Helper()
	return operatorv1.NewOperatorServiceClient(d.OperatorConn())
}

// OperatorConn is the connection of Operator.
func (d *Daemon) OperatorConn() *grpc.ClientConn {
	d.t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.operator == nil {
		conn, err := client.Operator(d.t.Context(), d.Places)
		if err != nil {
			d.t.Fatalf("connecting as the operator: %v", err)
		}
		d.operator = conn
	}
	return d.operator
}

// Connect is a new connection of the worker plane. It ends with the daemon at
// the latest.
func (d *Daemon) Connect() *grpc.ClientConn {
	d.t.Helper()
	conn, err := client.Broker(d.t.Context(), d.Places)
	if err != nil {
		d.t.Fatalf("connecting as a worker: %v", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.conns = append(d.conns, conn)
	return conn
}

// Broker is a client of the worker plane on a connection of its own.
func (d *Daemon) Broker() brokerv1.BrokerServiceClient {
	d.t.Helper()
	return brokerv1.NewBrokerServiceClient(d.Connect())
}

func (d *Daemon) hangUp() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.operator != nil {
		d.conns = append(d.conns, d.operator)
		d.operator = nil
	}
	for _, conn := range d.conns {
		_ = conn.Close()
	}
	d.conns = nil
}

// noteGenesis remembers whose log this is, if the operator gets in and the vault
// is open.
func (d *Daemon) noteGenesis() {
	ctx, cancel := d.context()
	defer cancel()
	conn, err := client.Operator(ctx, d.Places)
	if err != nil {
		return
	}
	defer conn.Close()
	head, err := operatorv1.NewOperatorServiceClient(conn).AuditHead(ctx, &operatorv1.AuditHeadRequest{})
	if err == nil {
		d.genesis = head.GetGenesis()
	}
}

// finish stops the daemon if it runs, and looks at what it left.
func (d *Daemon) finish() {
	d.t.Helper()
	defer d.hangUp()
	select {
	case <-d.running.ended():
	default:
		if code := d.running.stop(); code != 0 && !d.options.Spoiled {
			d.t.Errorf("stopping: exit %d: %s", code, d.running.fault())
		}
	}
	if !d.options.Spoiled {
		d.Verify()
	}
	if d.t.Failed() {
		d.t.Logf("the daemon said:\n%s", d.Messages())
	}
}

// context bounds one call of a helper.
func (d *Daemon) context() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), Patience)
}
