package daemon

import (
	"cmp"
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	systemd "github.com/coreos/go-systemd/v22/daemon"

	"subjectbroker/audit"
	"subjectbroker/proto/place"
	"subjectbroker/proto/wire"
	"subjectbroker/vault"
	"subjectbroker/vault/keysource"
)

// stopLimit bounds a clean stop, so that it is over within 5 s.
const stopLimit = 3 * time.Second

// Config says where and how the daemon runs.
type Config struct {
	// Home is the absolute home. Required.
	Home string
	// SocketDir is the absolute directory of the sockets; empty: config.yaml's
	// word, else run below the home.
	SocketDir string
	// KeySource is auto, keychain or file; empty: config.yaml's word, else auto.
	// It counts only when a vault is created.
	KeySource string
	// WaitKey makes the daemon start locked when the key source does not answer.
	WaitKey bool
	// Self is the absolute path of sbd and KeychildArg the hidden argument that
	// leads it to Keychild: the keychain is asked in a process of its own, which
	// may hang or crash. Both required.
	Self, KeychildArg string
	// HostProgram is the absolute path of sb-mcp, which runs servers; empty: beside
	// Self.
	HostProgram string
	// Adopt says that the process is there for the daemon alone: what loses its
	// parent below it becomes its child, and is ended. Without it a server that
	// runs without namespaces may outlive its host, and pass for a person's program.
	Adopt bool
	// Version is shown to clients. Required.
	Version string
	// Logger takes metadata only. Required.
	Logger *slog.Logger
	// LogFormat is the format that the command line chose; empty: config.yaml
	// may choose one, through UseLogFormat.
	LogFormat string
	// UseLogFormat switches Logger to text or json; nil: it cannot be switched.
	UseLogFormat func(format string)
	// Now is the wall clock; nil: time.Now.
	Now func() time.Time
	// Boot is the boot clock, with the id of the boot; nil: the machine's.
	Boot func() (id string, since time.Duration)
	// ApprovalWait is how long a gated read waits for a person before its answer is
	// that one was asked; 0: 25 s.
	ApprovalWait time.Duration
	// AuditWait is how long an answer, and the stop, wait for the disk of the log; 0:
	// [audit.DefaultWaitLimit].
	AuditWait time.Duration
	// Ready is called once the sockets listen; nil: nothing.
	Ready func()
	// Stopping is called when the daemon begins to stop, with the reason, which
	// is nil when it was asked to; nil: nothing. What follows is over within 5 s
	// unless a disk hangs.
	Stopping func(reason error)
}

// Keychild is the main function of the process that asks the keychain.
func Keychild(stdin io.Reader, stdout io.Writer) int { return keysource.Child(stdin, stdout) }

func (c Config) keychild() keysource.Command {
	return keysource.Command{Path: c.Self, Args: []string{c.KeychildArg}}
}

func (c Config) hostProgram() string {
	if c.HostProgram != "" {
		return c.HostProgram
	}
	return filepath.Join(filepath.Dir(c.Self), "sb-mcp")
}

// Daemon is a running sbd.
type Daemon struct {
	home, socketDir string
	version         string
	logger          *slog.Logger
	maxContent      int
	segmentSize     int64
	started         time.Time

	clock    *clock
	vault    *vault.Vault
	keychild keysource.Command
	current  atomic.Pointer[state]
	ledger   atomic.Pointer[audit.Log]
	changing changing
	runs     *runs
	launches *launches
	hub      *hub
	hosts    *hosts
	offers   *offers
	budgets  budgets
	turns    *turns // of long requests about the memory
	share    shareLimits
	pace     capturePace
	captures *turns // at what changes: an operator waits for one of them, not for all
	keyUse   keyUse
	doors    *doors
	guard    *guard
	sessions *sessions
	relays   *relays
	calls    *callStats
	asks     asksCounted
	trying   sync.Mutex // held while a passphrase of the operator is judged

	approvals    *approvals
	approvalWait time.Duration // of a read; see Config

	auditWait time.Duration // see Config

	passwd, groups string // files that say who belongs to which group

	scratches  atomic.Int32             // copies of the vault that backups hold
	copying    sync.RWMutex             // held for reading while a backup reads the log, for writing by a prune
	charges    atomic.Uint64            // uses of limited grants so far
	unrecorded atomic.Uint64            // refusals while there was no log to write them to
	correlate  atomic.Pointer[[32]byte] // key of mask; a random one until the first unlock
	unlocking  sync.Mutex
	locking    lockState
	wanting    chan struct{} // somebody wants what a vault that waits for its key holds
	upkeep     *upkeep
	heads      *headKeeper

	life    context.Context //nolint:containedctx // ends when the daemon begins to stop, and with it what waits for the world outside
	endLife context.CancelFunc
	failed  chan error // first reason why it cannot go on
}

// state is what is in force; empty while the vault is locked.
func (d *Daemon) state() *state { return d.current.Load() }

// locked reports whether nothing is in force: the keys are out of memory, or
// what they open has not been read yet.
func (d *Daemon) locked() bool { return d.vault.Locked() || !d.state().open }

// log is the audit log; nil when the daemon started locked and was never unlocked.
func (d *Daemon) log() *audit.Log { return d.ledger.Load() }

// fail stops the daemon for a reason that it cannot mend.
func (d *Daemon) fail(err error) {
	select {
	case d.failed <- err:
	default:
	}
}

// Run starts the daemon, serves until ctx ends, and stops cleanly. What keeps it
// from starting or going on is a *Fault. SIGHUP on rotate closes the log's
// segment.
func Run(ctx context.Context, cfg Config, rotate <-chan os.Signal) error {
	if err := startAndServe(ctx, cfg, rotate); err != nil {
		return asFault(err)
	}
	return nil
}

func startAndServe(ctx context.Context, cfg Config, rotate <-chan os.Signal) error {
	d, lock, err := open(ctx, cfg)
	if err != nil {
		return err
	}
	defer lock.Close()
	defer d.close()
	socks, err := d.listenAll()
	if err != nil {
		return err
	}
	return d.serveUntil(ctx, cfg, socks, lock, rotate)
}

// open does everything that comes before the sockets.
func open(ctx context.Context, cfg Config) (_ *Daemon, _ *os.File, err error) {
	if err := openHome(cfg.Home); err != nil {
		return nil, nil, err
	}
	settings, err := readConfig(cfg.Home)
	if err != nil {
		return nil, nil, err
	}
	if cfg.LogFormat == "" && settings.log != "" && cfg.UseLogFormat != nil {
		cfg.UseLogFormat(settings.log)
	}
	lock, err := lockHome(cfg.Home)
	if err != nil {
		return nil, nil, err
	}
	if err := notRestoring(cfg.Home); err != nil {
		return nil, nil, errors.Join(err, lock.Close())
	}
	if err := sweepScratch(cfg.Home); err != nil {
		return nil, nil, errors.Join(fault(wire.HomeUnsafe, "%w", err), lock.Close())
	}
	d := newDaemon(cfg, settings)
	if err := checkPlaces(d.socketDir); err != nil {
		return nil, nil, errors.Join(err, lock.Close())
	}
	if _, err := d.audienceFor(operatorDoor, d.doors.operators); err != nil { // who is known before the vault is
		return nil, nil, errors.Join(fault(wire.SocketUnsafe, "%w", err), lock.Close())
	}
	if err := d.openVault(ctx, cfg, settings); err != nil {
		d.close()
		return nil, nil, errors.Join(err, lock.Close())
	}
	return d, lock, nil
}

// checkPlaces refuses a socket path that could not be listened on before
// anything is created.
func checkPlaces(socketDir string) error {
	for _, path := range []string{place.BrokerSocket(socketDir), place.OperatorSocket(socketDir)} {
		if err := place.CheckSocketPath(path); err != nil {
			return fault(wire.SocketUnsafe, "%w", err)
		}
		info, err := os.Lstat(path)
		if err == nil && info.Mode()&fs.ModeSocket == 0 {
			return fault(wire.SocketUnsafe, "%s exists and is not a socket", path)
		}
		if dir := filepath.Dir(path); err == nil {
			if err := checkDir(dir, 0o700); err != nil && checkDir(dir, audience{shared: true}.dirMode()) != nil {
				return fault(wire.SocketUnsafe, "%w", err)
			}
		}
	}
	return nil
}

func newDaemon(cfg Config, settings fileConfig) *Daemon {
	d := &Daemon{
		home: cfg.Home, socketDir: cfg.SocketDir, version: cfg.Version, logger: cfg.Logger,
		maxContent: settings.maxContent, segmentSize: settings.segmentSize,
		clock: newClock(cfg.Now, cfg.Boot), runs: newRuns(), launches: newLaunches(), hub: newHub(), keychild: cfg.keychild(),
		wanting: make(chan struct{}, 1), failed: make(chan error, 1),
	}
	d.life, d.endLife = context.WithCancel(context.Background())
	d.upkeep = newUpkeep()
	d.heads = newHeadKeeper(settings.head, d.clock.now)
	d.hosts, d.offers = newHosts(d, cfg.hostProgram(), cfg.Adopt), newOffers()
	d.turns, d.captures = newLongTurns(), newTurns(1)
	d.share = settings.share.orDefault()
	d.approvals, d.approvalWait = newApprovals(), cmp.Or(cfg.ApprovalWait, approvalWait)
	d.auditWait = cmp.Or(cfg.AuditWait, audit.DefaultWaitLimit)
	d.relays, d.calls = newRelays(), newCallStats(d.clock.now)
	d.doors, d.guard, d.sessions = newDoors(settings.operators), newGuard(settings.noGuard), newSessions()
	d.passwd, d.groups = passwdFile, groupFile
	if d.socketDir == "" {
		d.socketDir = settings.socketDir
	}
	if d.socketDir == "" {
		d.socketDir = filepath.Join(d.home, "run")
	}
	if d.maxContent == 0 {
		d.maxContent = wire.DefaultMaxContent
	}
	d.started = d.clock.now()
	d.current.Store(newState())
	d.correlate.Store(randomKey())
	return d
}

// serveUntil serves on both sockets until ctx ends or something fails.
func (d *Daemon) serveUntil(ctx context.Context, cfg Config, socks *sockets, lock *os.File, rotate <-chan os.Signal) error {
	brokerServer, operatorServer := d.newBrokerServer(), d.newOperatorServer()
	served := make(chan error, 2)
	var tasks sync.WaitGroup
	tasks.Go(func() { brokerServer.run(socks.broker, served) })
	tasks.Go(func() { operatorServer.run(socks.operator, served) })
	tasks.Go(func() { d.tend(lock, rotate) })
	tasks.Go(d.keepUp)
	tasks.Go(d.hosts.watch)
	tasks.Go(d.tendApprovals)
	d.heads.start(d.life, d.log)
	if d.locking.waiting() {
		tasks.Go(d.retryUnlock)
	}
	_, _ = systemd.SdNotify(false, systemd.SdNotifyReady)
	if cfg.Ready != nil {
		cfg.Ready()
	}
	d.logger.Info("serving", "home", d.home, "sockets", d.socketDir, "vault", d.locking.word())
	var err error
	select {
	case <-ctx.Done():
	case err = <-served:
	case err = <-d.failed:
	}
	if cfg.Stopping != nil {
		cfg.Stopping(err)
	}
	_, _ = systemd.SdNotify(false, systemd.SdNotifyStopping)
	d.endLife()
	d.vault.Interrupt() // for good: a purge or a backup does not hold up the stop
	d.stop(brokerServer, operatorServer)
	tasks.Wait()
	return err
}

// stop answers or refuses what is in flight and ends every run.
func (d *Daemon) stop(servers ...*server) {
	d.voidCards(causeStopped) // before the runs end by themselves
	var done sync.WaitGroup
	for _, s := range servers {
		done.Go(s.stop)
	}
	done.Go(d.hosts.close)
	done.Wait()
	d.voidCards(causeStopped)
	if err := d.endRuns(wire.BrokerUnavailable, "DAEMON_STOPPED", func(*run) bool { return true }); err != nil {
		d.logger.Warn("the log could not take the end of every run")
	}
}

// close writes the last checkpoint and closes vault and log.
func (d *Daemon) close() {
	d.endLife()
	d.relays.tasks.Wait() // calls that are still being judged have their entries before the log is closed
	d.launches.close()
	if log := d.log(); log != nil {
		if d.vault != nil && !d.locked() {
			d.suppressed(d.clock.now())
			_ = d.record(context.Background(), audit.Entry{Kind: kindVaultClose, Decision: decisionAllow, ReasonCode: string(wire.Allowed)})
			d.checkpoint()
		}
		if err := log.Close(); err != nil {
			d.logger.Warn("closing the audit log", "error", err)
		}
		d.heads.stop(log.Head())
	}
	if d.vault != nil {
		if err := d.vault.Close(); err != nil {
			d.logger.Warn("closing the vault", "error", err)
		}
	}
}
