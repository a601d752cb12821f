package launch

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"subjectbroker/worker/workertest"
)

// patience bounds whatever a test waits for; it is used up only by failures.
const patience = 30 * time.Second

// caseEnv carries an asked to the program that stands in for sbctl run.
const caseEnv = "LAUNCH_TEST_CASE"

// asked is one run of that program.
type asked struct {
	Config  Config
	Command Command
	PIDFile string // where to say who F is
	KillAt  string // the tree is killed when this file is there
}

func TestMain(m *testing.M) {
	// syscall.Exit, because os.Exit sleeps for a second under the race detector.
	if handled, code := Main(os.Args); handled {
		syscall.Exit(code)
	}
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "run":
			syscall.Exit(standIn())
		case "calls":
			syscall.Exit(tryCalls())
		case "starve":
			syscall.Exit(starve())
		case "connect":
			syscall.Exit(connect(os.Args[2], os.Args[3]))
		}
	}
	code := m.Run()
	os.RemoveAll(program.dir)
	os.Exit(code)
}

// standIn does what sbctl run does, without a daemon.
func standIn() int {
	var a asked
	if err := json.Unmarshal([]byte(os.Getenv(caseEnv)), &a); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	// sbctl is undumpable, and stays so.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	started, dumpable := make(chan struct{}), make(chan bool)
	go func() {
		ever := false
		for {
			is, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
			ever = ever || err != nil || is != 0
			select {
			case <-started:
				dumpable <- ever
				return
			default:
			}
		}
	}()
	tree, err := Start(context.Background(), a.Config)
	close(started)
	if <-dumpable {
		fmt.Fprintln(os.Stderr, "it was dumpable for a moment")
		return 2
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "start:", err)
		return 2
	}
	defer tree.Kill()
	if a.PIDFile != "" {
		if err := os.WriteFile(a.PIDFile, []byte(strconv.Itoa(tree.PID())), 0o600); err != nil {
			return 2
		}
	}
	if err := tree.Go(a.Command); err != nil {
		fmt.Fprintln(os.Stderr, "go:", err)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return 127
		case errors.Is(err, fs.ErrPermission):
			return 126
		}
		return 2
	}
	if a.KillAt != "" {
		for {
			if _, err := os.Stat(a.KillAt); err == nil {
				tree.Kill()
				return 0
			}
			time.Sleep(time.Millisecond)
		}
	}
	code, err := tree.Wait()
	if err != nil {
		fmt.Fprintln(os.Stderr, "wait:", err)
	}
	if sig := tree.Died(); sig != 0 {
		tree.DieOf(sig)
	}
	return code
}

// connect says whether somebody listens.
func connect(network, address string) int {
	conn, err := net.DialTimeout(network, address, 5*time.Second)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	conn.Close()
	fmt.Println("connected")
	return 0
}

// program is a copy of this test that every uid can execute.
var program struct {
	once sync.Once
	dir  string
	path string
	err  error
}

func programPath(t *testing.T) string {
	t.Helper()
	program.once.Do(func() {
		program.err = func() error {
			self, err := os.Executable()
			if err != nil {
				return err
			}
			content, err := os.ReadFile(self)
			if err != nil {
				return err
			}
			if program.dir, err = os.MkdirTemp("", "sblaunch"); err != nil {
				return err
			}
			if err := os.Chmod(program.dir, 0o755); err != nil {
				return err
			}
			program.path = filepath.Join(program.dir, "launch.test")
			return workertest.WriteProgram(program.path, content)
		}()
	})
	if program.err != nil {
		t.Fatal(program.err)
	}
	return program.path
}

// world is a person with a broker's home and things around it.
type world struct {
	t       *testing.T
	uid     int
	base    string // all of it
	home    string // HOME
	broker  string // the broker's home
	work    string
	program string
	env     []string
	open    []*os.File // what its processes happen to have open
	sandbox bool       // what a person starts is sandboxed
}

const secret = "the-content-of-the-key"

// asEach runs a test as uid 0, where this is it, and as an ordinary uid.
func asEach(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	uids := []int{os.Geteuid()}
	if uids[0] == 0 {
		uids = append(uids, 1001)
	}
	for _, uid := range uids {
		t.Run("uid"+strconv.Itoa(uid), func(t *testing.T) {
			t.Parallel()
			test(t, newWorld(t, uid))
		})
	}
}

func newWorld(t *testing.T, uid int) *world {
	t.Helper()
	base, err := os.MkdirTemp("", "sb")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(base) })
	if err := os.Chmod(base, 0o755); err != nil {
		t.Fatal(err)
	}
	w := &world{
		t: t, uid: uid, base: base, home: filepath.Join(base, "home"), work: filepath.Join(base, "home", "work"), program: programPath(t),
	}
	w.broker = filepath.Join(w.home, ".state", "broker")
	for _, dir := range []string{w.work, filepath.Join(w.broker, "run", "broker"), filepath.Join(w.broker, "run", "operator"), filepath.Join(w.base, "other")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{filepath.Join(w.broker, "secret.key"), filepath.Join(w.home, "diary")} {
		if err := os.WriteFile(path, []byte(secret+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	w.listen(filepath.Join(w.broker, "run", "broker", "broker.sock"))
	w.listen(filepath.Join(w.broker, "run", "operator", "operator.sock"))
	err = filepath.WalkDir(base, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || path == base {
			return err
		}
		return os.Lchown(path, uid, uid)
	})
	if err != nil {
		t.Fatal(err)
	}
	w.env = []string{
		"PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME=" + w.home, "LANG=C", "PS1=$ ", "BASH_SILENCE_DEPRECATION_WARNING=1",
		"B=" + w.broker, "W=" + w.work, "P=" + w.program, "BASE=" + base, "TERM=dumb",
	}
	return w
}

// listen accepts whoever connects to a socket, until the test ends.
func (w *world) listen(address string) {
	w.t.Helper()
	listener, err := net.Listen("unix", address)
	if err != nil {
		w.t.Fatal(err)
	}
	if !strings.HasPrefix(address, "@") {
		if err := os.Lchown(address, w.uid, w.uid); err != nil {
			w.t.Fatal(err)
		}
	}
	accept(w.t, listener)
}

func accept(t *testing.T, listener net.Listener) {
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			conn.Close()
		}
	}()
}

// config of a launch in this world.
func (w *world) config() Config {
	return Config{Home: w.broker, Environ: w.env, Workspace: w.work, Readable: []string{w.program}, Subject: "worker"}
}

// command runs args outside any tree, as this world's uid.
func (w *world) command(args ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	w.t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir = w.work
	cmd.Env = w.env
	cmd.ExtraFiles = w.open
	cmd.WaitDelay = 5 * time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if w.uid != os.Geteuid() {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(w.uid), Gid: uint32(w.uid)}
	}
	return cmd
}

// launch is command in a tree.
func (w *world) launch(cfg Config, args ...string) *exec.Cmd {
	return w.ask(asked{Config: cfg, Command: Command{Argv: args, Env: w.env}})
}

func (w *world) ask(a asked) *exec.Cmd {
	w.t.Helper()
	content, err := json.Marshal(a)
	if err != nil {
		w.t.Fatal(err)
	}
	cmd := w.command(w.program, "run")
	cmd.Env = append(cmd.Env, caseEnv+"="+string(content))
	return cmd
}

// output runs cmd and returns all that it says, and its exit code as a shell has
// it: 128 and the number of the signal that ended it.
func output(t *testing.T, cmd *exec.Cmd) (string, int) {
	t.Helper()
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, out.String())
	}
	status := cmd.ProcessState.Sys().(syscall.WaitStatus)
	switch {
	case !status.Signaled():
		return out.String(), status.ExitStatus()
	case status.Signal() == syscall.SIGKILL: // its time is over
		t.Fatalf("%v: %v\n%s", cmd.Args, err, out.String())
	}
	return out.String(), 128 + int(status.Signal())
}

// outsider is a process of this world's uid outside any tree.
func (w *world) outsider(args ...string) *exec.Cmd {
	w.t.Helper()
	cmd := w.command(args...)
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return cmd
}

type shape struct {
	name   string
	change func(*Config)
}

var shapes = []shape{
	{"bound", func(*Config) {}},
	{"sandbox", func(cfg *Config) { cfg.Sandbox = true }},
}

// Every attack is a script that succeeds without the protection, which is
// checked first, and fails with it.
func TestAttacks(t *testing.T) {
	tests := []struct {
		name   string
		script string
		root   bool // only uid 0 can do it outside
		only   string
		noNet  bool
	}{
		{name: "the key", script: `cat "$B/secret.key"`},
		{name: "through a symbolic link", script: `ln -sfn "$B" "$W/way" && cat "$W/way/secret.key"`},
		{name: "through a hard link", script: `ln -f "$B/secret.key" "$W/hard" && cat "$W/hard"`},
		{name: "through dots", script: `cat "$W/../.state/./broker/secret.key"`},
		{name: "through another process's root", script: `cat "/proc/$OUTSIDER/root$B/secret.key"`},
		{name: "through another process's working directory", script: `cat "/proc/$OUTSIDER/cwd/../.state/broker/secret.key"`},
		{name: "after moving the directory above", script: `mv "$HOME/.state" "$HOME/.moved" && r=0; cat "$HOME/.moved/broker/secret.key" || r=1; mv "$HOME/.moved" "$HOME/.state"; exit $r`},
		{name: "through a directory that the caller left open", script: `cat /proc/self/fd/3/secret.key`},
		{name: "another process", script: `kill -0 "$OUTSIDER"`},
		{name: "another process's environment", script: `tr '\\0' ' ' < "/proc/$OUTSIDER/environ" | grep -q HOME=`},
		{name: "the operator's socket", script: `"$P" connect unix "$B/run/operator/operator.sock"`},
		{name: "the agent that a variable names", script: `"$P" connect unix "$SSH_AUTH_SOCK"`},
		{name: "the session bus", script: `"$P" connect unix "$BASE/bus"`},
		{name: "tmux", script: `"$P" connect unix "/tmp/tmux-$UIDN/sb$PPID_OF_TEST"`},
		{name: "a socket without a path", script: `"$P" connect unix "$ABSTRACT"`},
		{name: "an order to the kernel", script: `v=$(cat /proc/sys/vm/swappiness) && echo "$v" > /proc/sys/vm/swappiness`, root: true},
		{name: "a setting of the kernel", script: `v=$(cat /sys/kernel/mm/ksm/sleep_millisecs) && echo "$v" > /sys/kernel/mm/ksm/sleep_millisecs`, root: true},
		{name: "a device in an odd place", script: `head -c 1 "$BASE/device" && cat "$BASE/device" | head -c 1 | wc -c | grep -q 1`, root: true},
		{name: "another mount of the home", script: `cat "$ALIAS/secret.key"`, root: true},
		{name: "a file outside the workspace", script: `cat "$HOME/diary"`, only: "sandbox"},
		{name: "writing outside the workspace", script: `echo x > "$BASE/other/file"`, only: "sandbox"},
		{name: "the network outside", script: `"$P" connect tcp "$TCP"`, noNet: true},
	}
	asEach(t, func(t *testing.T, w *world) {
		outsider := w.outsider("sleep", "300")
		open, err := os.Open(w.broker)
		if err != nil {
			t.Fatal(err)
		}
		defer open.Close()
		w.open = []*os.File{open}
		agent, abstract, tmux := filepath.Join(w.base, "agent"), "@sb-launch-"+filepath.Base(w.base), "/tmp/tmux-"+strconv.Itoa(w.uid)
		w.listen(agent)
		w.listen(filepath.Join(w.base, "bus"))
		w.listen(abstract)
		if err := os.Mkdir(tmux, 0o700); err == nil {
			os.Lchown(tmux, w.uid, w.uid)
		}
		server := filepath.Join(tmux, "sb"+strconv.Itoa(os.Getpid()))
		os.Remove(server)
		w.listen(server)
		tcp, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		accept(t, tcp)
		alias := filepath.Join(w.base, "alias")
		if w.uid == 0 {
			if err := os.Mkdir(alias, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := syscall.Mount(w.home, alias, "", syscall.MS_BIND, ""); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { syscall.Unmount(alias, syscall.MNT_DETACH) })
			if err := syscall.Mknod(filepath.Join(w.base, "device"), syscall.S_IFCHR|0o600, 1<<8|5); err != nil { // zero
				t.Fatal(err)
			}
		}
		w.env = append(w.env,
			"OUTSIDER="+strconv.Itoa(outsider.Process.Pid), "SSH_AUTH_SOCK="+agent, "DBUS_SESSION_BUS_ADDRESS=unix:path="+filepath.Join(w.base, "bus")+",guid=1",
			"TMUX_TMPDIR="+w.base, "UIDN="+strconv.Itoa(w.uid), "PPID_OF_TEST="+strconv.Itoa(os.Getpid()), "ABSTRACT="+abstract, "TCP="+tcp.Addr().String(), "ALIAS="+alias+"/.state/broker",
		)
		for _, noNet := range []bool{false, true} {
			var scripts []script
			for _, test := range tests {
				if (test.root && w.uid != 0) || test.noNet != noNet {
					continue
				}
				if strings.HasPrefix(test.name, "a socket without") && LandlockABI() < landlockScopes {
					t.Log("suite left out: sockets without a path: Landlock ABI 6 is missing")
					continue
				}
				scripts = append(scripts, script{test.name, test.script})
			}
			for name, result := range runAll(t, w.command("sh", "-c", together(scripts))) {
				if result.code != 0 {
					t.Errorf("%s: the control does not work: %d %s", name, result.code, result.said)
				}
			}
			for _, shape := range shapes {
				os.Remove(filepath.Join(w.work, "hard"))
				cfg := w.config()
				cfg.NoNet = noNet
				shape.change(&cfg)
				results := runAll(t, w.launch(cfg, "sh", "-c", together(scripts)))
				for _, test := range tests {
					result, made := results[test.name]
					if test.only != "" && test.only != shape.name || !made && !slices.ContainsFunc(scripts, func(s script) bool { return s.name == test.name }) {
						continue
					}
					if !made || result.code == 0 || strings.Contains(result.said, secret) {
						t.Errorf("%s, %s: made %v, it worked: %s", test.name, shape.name, made, result.said)
					}
				}
			}
		}
	})
}

// script is one of many that run one after the other, each in a shell of its own.
type script struct{ name, text string }

// together makes one script of many, which says what came of each.
func together(scripts []script) string {
	var all strings.Builder
	for _, s := range scripts {
		fmt.Fprintf(&all, "( %s\n) 2>&1\nprintf '\\n==%%s==%%d==\\n' %q $?\n", s.text, s.name)
	}
	all.WriteString("exit 0\n")
	return all.String()
}

type result struct {
	code int
	said string
}

// runAll runs what together made.
func runAll(t *testing.T, cmd *exec.Cmd) map[string]result {
	t.Helper()
	said, code := output(t, cmd)
	if code != 0 {
		t.Fatalf("%d: %s", code, said)
	}
	results := map[string]result{}
	rest := said
	for {
		before, after, found := strings.Cut(rest, "\n==")
		if !found {
			return results
		}
		line, after, _ := strings.Cut(after, "\n")
		name, number, _ := strings.Cut(strings.TrimSuffix(line, "=="), "==")
		code, err := strconv.Atoi(number)
		if err != nil {
			t.Fatalf("%q in %s", line, said)
		}
		results[name] = result{code, before}
		rest = "\n" + after
	}
}

// What a tree is for goes on working.
func TestInside(t *testing.T) {
	tests := []struct {
		name, script string
		only         string
		noNet        bool
	}{
		{name: "the broker's socket", script: `"$P" connect unix "$B/run/broker/broker.sock"`},
		{name: "the workspace", script: `echo x > "$W/written" && mv "$W/written" "$W/moved" && mkdir -p "$W/d" && mv "$W/moved" "$W/d/moved" && rm -r "$W/d"`},
		{name: "the uid", script: `test "$(id -u)" = "$UIDN"`},
		{name: "temporary files", script: `f=$(mktemp) && rm "$f"`},
		{name: "shared memory", script: `echo x > /dev/shm/x && rm /dev/shm/x`},
		{name: "devices", script: `head -c 1 /dev/urandom > /dev/null && ! test -e /dev/vda && ! test -e /dev/mem`},
		{name: "no other descriptors", script: `f=$(ls /proc/self/fd | tr '\n' ' '); echo "$f"; test "$f" = "0 1 2 3 "`},
		{name: "a namespace of its own", script: `test "$(ls /proc | grep -c '^[0-9]')" -le 6`},
		{name: "the home directory", script: `cat "$HOME/diary" && touch "$HOME/x" && rm "$HOME/x"`, only: "bound"},
		{name: "an empty home directory", script: `test -z "$(ls "$HOME")$(ls -A "$HOME" | grep -v .state)" || ls -A "$HOME" | grep -qx work`, only: "sandbox"},
		{name: "the whole root", script: `ls / | grep -q usr`},
		{name: "loopback alone", script: `grep -q 'lo:' /proc/net/dev && test "$(grep -c : /proc/net/dev)" = 1`, noNet: true},
		{name: "the marker", script: `grep -q '"subject":"worker"' /run/subject-broker/launch && ! echo x > /run/subject-broker/launch`},
		{name: "the working directory", script: `test "$(pwd)" = "$W"`},
		{name: "covers stay", script: `! umount "$B" && ! unshare -Urm umount "$B" && ! unshare -Urm umount -l "$B" && ! unshare -Urm mount --move "$B" /mnt && ! cat "$B/secret.key"`},
		{name: "covers stay in a copy", script: `mkdir -p "$W/copy"; ! unshare -Urm sh -c 'mount --bind "$HOME" "$W/copy" && cat "$W/copy/.state/broker/secret.key"'`},
		{name: "the first process is closed", script: `! ls /proc/1/root/ && ! cat /proc/1/environ && ! cat /proc/1/maps && ! nsenter -t 1 -U true && ! nsenter -t 1 -m true && ! nsenter -t 1 -p true && ! ls -l /proc/1/fd/`},
		// That it is there is seen by what it does: it reaps what is orphaned.
		{name: "the first process does not end by a signal from inside", script: `for n in 31 30 29 28 27 26 25 24 23 22 21 20 19 18 17 16 15 14 13 12 11 10 9 8 7 6 5 4 3 2 1 34 64; do
			kill -$n 1; o=$(sh -c 'true >/dev/null & echo $!'); while test -e "/proc/$o"; do :; done; done; echo all; test "$(cat /proc/1/comm)" != ""`},
		{name: "no capability over the tree", script: `test "$UIDN" = 0 || grep -q '^CapEff:.0000000000000000$' /proc/self/status; ! mount -t tmpfs none /mnt && ! ip link add dummy0 type dummy && ! hostname other`},
		{name: "mounts of its own", script: `unshare -Urm true`, only: "bound"},
		{name: "no mounts: Landlock is on", script: `! unshare -Urm true`, only: "sandbox"},
		{name: "the home stays empty", script: `! touch "$B/x" && ! rm "$B/run/broker/broker.sock" && ! touch "$B/run/broker/x"`},
	}
	asEach(t, func(t *testing.T, w *world) {
		w.env = append(w.env, "UIDN="+strconv.Itoa(w.uid), "ABI="+strconv.Itoa(LandlockABI()))
		for _, shape := range shapes {
			for _, noNet := range []bool{false, true} {
				var scripts []script
				for _, test := range tests {
					if (test.only == "" || test.only == shape.name) && test.noNet == noNet {
						scripts = append(scripts, script{test.name, test.script})
					}
				}
				cfg := w.config()
				cfg.NoNet = noNet
				shape.change(&cfg)
				results := runAll(t, w.launch(cfg, "sh", "-c", together(scripts)))
				for _, s := range scripts {
					if result, made := results[s.name]; !made || result.code != 0 {
						t.Errorf("%s, %s: %d %s", s.name, shape.name, result.code, result.said)
					}
				}
			}
		}
	})
}

func TestExitCodes(t *testing.T) {
	asEach(t, func(t *testing.T, w *world) {
		plain := filepath.Join(w.work, "plain")
		if err := os.WriteFile(plain, []byte("no program"), 0o644); err != nil {
			t.Fatal(err)
		}
		tests := []struct {
			args []string
			want int
		}{
			{[]string{"true"}, 0},
			{[]string{"sh", "-c", "exit 7"}, 7},
			{[]string{"sh", "-c", "kill -TERM $$"}, 128 + 15},
			{[]string{"sh", "-c", "kill -KILL $$"}, 128 + 9},
			{[]string{"no-such-program"}, 127},
			{[]string{w.work + "/no-such-program"}, 127},
			{[]string{plain}, 126},
		}
		for _, test := range tests {
			if said, code := output(t, w.launch(w.config(), test.args...)); code != test.want {
				t.Errorf("%v: %d, want %d: %s", test.args, code, test.want, said)
			}
		}
	})
}

// Standard streams that are no terminal are the command's own.
func TestPipes(t *testing.T) {
	asEach(t, func(t *testing.T, w *world) {
		cmd := w.launch(w.config(), "sh", "-c", "cat; echo talk >&2; test ! -t 0; (: </dev/tty) 2>/dev/null && exit 9; exit 3")
		cmd.Stdin = strings.NewReader("a\x00b\r\n\x03\x1a")
		var out, talk bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &talk
		_ = cmd.Run()
		if code := cmd.ProcessState.ExitCode(); code != 3 || out.String() != "a\x00b\r\n\x03\x1a" || talk.String() != "talk\n" {
			t.Errorf("%d %q %q", code, out.String(), talk.String())
		}
	})
}

func TestSignals(t *testing.T) {
	asEach(t, func(t *testing.T, w *world) {
		for _, sig := range []struct {
			name   string
			number syscall.Signal
		}{
			{"TERM", syscall.SIGTERM}, {"INT", syscall.SIGINT}, {"HUP", syscall.SIGHUP}, {"QUIT", syscall.SIGQUIT}, {"USR1", syscall.SIGUSR1}, {"USR2", syscall.SIGUSR2},
		} {
			cmd := w.launch(w.config(), "sh", "-c", "trap 'echo got; exit 5' "+sig.name+"; echo ready; while :; do sleep 0.05; done")
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			lines := bufio.NewReader(out)
			if line, err := lines.ReadString('\n'); line != "ready\n" {
				t.Fatalf("%s: %q %v", sig.name, line, err)
			}
			if err := cmd.Process.Signal(sig.number); err != nil {
				t.Fatal(err)
			}
			rest, _ := io.ReadAll(lines)
			_ = cmd.Wait()
			if code := cmd.ProcessState.ExitCode(); code != 5 || !strings.Contains(string(rest), "got") {
				t.Errorf("%s: %d %q", sig.name, code, rest)
			}
		}
	})
}

// What the caller ignores, the command ignores.
func TestNohup(t *testing.T) {
	asEach(t, func(t *testing.T, w *world) {
		for _, test := range []struct{ trap, want string }{{"trap '' HUP; ", "alive"}, {"", ""}} {
			cmd := w.launch(w.config(), "sh", "-c", "kill -HUP $$; echo alive")
			cmd.Args = append([]string{"sh", "-c", test.trap + `exec "$@"`, "sh"}, cmd.Args...)
			cmd.Path = "/bin/sh"
			said, code := output(t, cmd)
			if strings.TrimSpace(said) != test.want || (code == 0) != (test.want != "") {
				t.Errorf("%q: %d %q", test.trap, code, said)
			}
		}
	})
}

// living lists processes whose command line has a word.
func living(word string) []int {
	paths, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	var found []int
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err == nil && bytes.Contains(content, []byte(word)) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			if pid != os.Getpid() {
				found = append(found, pid)
			}
		}
	}
	return found
}

// A process that escapes every other way of ending a tree: a session of its
// own, no parent, signals ignored.
func stubborn(word string) string {
	return `trap '' HUP INT TERM; setsid bash -c 'trap "" HUP INT TERM; echo ready; exec -a ` + word + ` sleep 300' </dev/null & exec -a ` + word + ` sleep 300`
}

func TestNothingIsLeft(t *testing.T) {
	ends := []struct {
		name string
		end  func(cmd *exec.Cmd, first int) error
	}{
		{"sbctl run is killed", func(cmd *exec.Cmd, _ int) error { return cmd.Process.Kill() }},
		{"the first process is killed", func(_ *exec.Cmd, first int) error { return syscall.Kill(first, syscall.SIGKILL) }},
	}
	asEach(t, func(t *testing.T, w *world) {
		before := mountsOf(t)
		for i, end := range ends {
			word := fmt.Sprintf("stubborn-%s-%d", filepath.Base(w.base), i)
			pidFile := filepath.Join(w.work, "pid")
			cmd := w.ask(asked{Config: w.config(), Command: Command{Argv: []string{"bash", "-c", stubborn(word)}, Env: w.env}, PIDFile: pidFile})
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
				t.Fatalf("%q %v", line, err)
			}
			eventually(t, "the process is there", func() bool { return len(living(word)) > 0 })
			content, err := os.ReadFile(pidFile)
			if err != nil {
				t.Fatal(err)
			}
			first, err := strconv.Atoi(string(content))
			if err != nil {
				t.Fatal(err)
			}
			if err := end.end(cmd, first); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			eventually(t, end.name+": nothing is left", func() bool { return len(living(word)) == 0 })
		}
		if after := mountsOf(t); after != before {
			t.Errorf("mounts outside: %d before, %d after", before, after)
		}
	})
}

// The control: without a launch the same process survives.
func TestStubbornSurvivesOutside(t *testing.T) {
	w := newWorld(t, cmp.Or(os.Geteuid(), 1001))
	word := "stubborn-control-" + filepath.Base(w.base)
	cmd := w.command("bash", "-c", stubborn(word))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("%q %v", line, err)
	}
	eventually(t, "the process is there", func() bool { return len(living(word)) > 0 })
	cmd.Process.Kill()
	_ = cmd.Wait()
	left := living(word)
	if len(left) == 0 {
		t.Error("the process ended by itself: it proves nothing")
	}
	for _, pid := range left {
		syscall.Kill(pid, syscall.SIGKILL)
	}
}

func mountsOf(t *testing.T) int {
	t.Helper()
	all, err := mounts()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, m := range all {
		if strings.HasSuffix(m.point, "/broker") || strings.HasPrefix(m.point, "/run/subject-broker") {
			n++
		}
	}
	return n
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !is() {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// A launch inside a launch asks for more walls, never for other ones.
func TestNested(t *testing.T) {
	asEach(t, func(t *testing.T, w *world) {
		sandbox := w.config()
		sandbox.Sandbox = true
		noNet := w.config()
		noNet.NoNet = true
		narrow := sandbox
		narrow.Workspace = filepath.Join(w.work, "part")
		if err := os.MkdirAll(narrow.Workspace, 0o700); err != nil {
			t.Fatal(err)
		}
		os.Lchown(narrow.Workspace, w.uid, w.uid)
		if err := os.WriteFile(filepath.Join(w.work, "whole"), nil, 0o666); err != nil {
			t.Fatal(err)
		}
		os.Lchown(filepath.Join(w.work, "whole"), w.uid, w.uid)
		tests := []struct {
			name         string
			outer, inner Config
			script       string
		}{
			{"bound in bound", w.config(), w.config(), `cat "$HOME/diary" && ! cat "$B/secret.key" && "$P" connect unix "$B/run/broker/broker.sock"`},
			{"a sandbox in bound", w.config(), sandbox, `! cat "$HOME/diary" && echo x > "$W/whole" && ! cat "$B/secret.key" && "$P" connect unix "$B/run/broker/broker.sock"`},
			{"no network in bound", w.config(), noNet, `test "$(grep -c : /proc/net/dev)" = 1 && cat "$HOME/diary"`},
			{"no network in a sandbox", sandbox, noNet, `test "$(grep -c : /proc/net/dev)" = 1 && ! cat "$HOME/diary" && echo x > "$W/whole"`},
			{"a narrower sandbox in a sandbox", sandbox, narrow, `! echo x > "$W/whole" && echo x > "$W/part/new" && ! cat "$HOME/diary"`},
			{"processes are cleared", w.config(), w.config(), `(setsid sleep 300 </dev/null >/dev/null 2>&1 &); true`},
		}
		for _, test := range tests {
			inner, err := json.Marshal(asked{Config: test.inner, Command: Command{Argv: []string{"sh", "-c", test.script}, Env: w.env}})
			if err != nil {
				t.Fatal(err)
			}
			cmd := w.ask(asked{Config: test.outer, Command: Command{
				Argv: []string{"sh", "-c", `"$P" run; r=$?; n=$(cat /proc/[0-9]*/comm 2>/dev/null | grep -c sleep); test "$n" = 0 || echo "left: $n"; exit $r`},
				Env:  append(w.env, caseEnv+"="+string(inner)),
			}})
			if said, code := output(t, cmd); code != 0 || strings.Contains(said, "left:") {
				t.Errorf("%s: %d %s", test.name, code, said)
			}
		}
	})
}

// Without a pid namespace of its own a tree is ended by its first process, which
// must live to do that.
func TestKillNested(t *testing.T) {
	asEach(t, func(t *testing.T, w *world) {
		for _, shape := range shapes { // in a sandbox a tree never has one, as uid 0 nowhere
			ready := filepath.Join(w.work, "ready")
			outer := w.config()
			shape.change(&outer)
			inner, err := json.Marshal(asked{Config: w.config(), KillAt: ready, Command: Command{
				Argv: []string{"sh", "-c", `trap '' TERM HUP; (setsid sleep 301 </dev/null >/dev/null 2>&1 &); touch "$W/ready"; sleep 302`}, Env: w.env,
			}})
			if err != nil {
				t.Fatal(err)
			}
			cmd := w.ask(asked{Config: outer, Command: Command{
				Argv: []string{"sh", "-c", `"$P" run; r=$?; n=$(cat /proc/[0-9]*/comm 2>/dev/null | grep -c sleep); test "$n" = 0 || echo "left: $n"; exit $r`},
				Env:  append(w.env, caseEnv+"="+string(inner)),
			}})
			if said, code := output(t, cmd); code != 0 || strings.Contains(said, "left:") {
				t.Errorf("%s: %d %s", shape.name, code, said)
			}
			os.Remove(ready)
		}
	})
}

// Sockets that are made after a launch has begun are hidden where their
// directory is known beforehand, also when it was not there.
func TestDoorsMadeLater(t *testing.T) {
	asEach(t, func(t *testing.T, w *world) {
		for _, dir := range []string{".ssh", ".emacs.d/server"} {
			path := filepath.Join(w.home, dir)
			if err := os.MkdirAll(path, 0o700); err != nil {
				t.Fatal(err)
			}
			os.Lchown(path, w.uid, w.uid)
			os.Lchown(filepath.Dir(path), w.uid, w.uid)
		}
		w.env = append(w.env, "TMUX_TMPDIR="+w.base)
		os.Lchown(w.base, w.uid, w.uid)
		uid := strconv.Itoa(w.uid)
		grounds := []string{filepath.Join(w.home, ".ssh", "agent"), filepath.Join(w.base, "tmux-"+uid)}
		if w.uid == os.Geteuid() {
			cfg := w.config()
			if err := Check(t.Context(), cfg); err != nil {
				t.Fatal(err)
			}
			for _, path := range grounds {
				if _, err := os.Stat(path); err == nil {
					t.Errorf("a mere check made %s", path)
				}
			}
		}
		cmd := w.launch(w.config(), "sh", "-c", `echo ready; read -r all; for one in $all; do "$P" connect unix "$one" && echo "reached: $one"; done; "$P" connect unix "$B/run/broker/broker.sock"`)
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewReader(out)
		if line, err := lines.ReadString('\n'); line != "ready\n" {
			t.Fatalf("%q %v", line, err)
		}
		doors := []string{filepath.Join(w.home, ".emacs.d", "server", "server")}
		for _, dir := range append(grounds, "/tmp/tmux-"+uid, "/tmp/zellij-"+uid, "/tmp/emacs"+uid, "/tmp/.X11-unix", "/tmp/.ICE-unix") {
			doors = append(doors, filepath.Join(dir, filepath.Base(w.base)))
		}
		for _, door := range doors {
			w.listen(door)
			if said, code := output(t, w.command(w.program, "connect", "unix", door)); code != 0 {
				t.Errorf("%s: the control does not work: %s", door, said)
			}
		}
		fmt.Fprintln(in, strings.Join(doors, " "))
		rest, _ := io.ReadAll(lines)
		if err := cmd.Wait(); err != nil || strings.Contains(string(rest), "reached:") {
			t.Errorf("%v %s", err, rest)
		}
	})
}

// What the first process is told: no credential, and paths as they are.
func TestSetup(t *testing.T) {
	path := "/home/\xff\xfe"
	given := setup{
		Config: Config{Home: path + "/h", SocketDir: path + "/s", Homes: []string{path + "/o"}, Workspace: path + "/w", Readable: []string{path}, Sandbox: true, NoNet: true, Tasks: 400, Environ: []string{"TOKEN=" + secret}},
		Around: surroundings{Home: path, RuntimeDir: path + "/r", TmuxDir: path + "/t", Sockets: []string{path + "/a"}, AbstractBus: true},
		Nested: oldProc, Trial: true, Mark: Marker{Subject: "worker"}, Outer: Marker{Subject: "outer"},
	}
	text, err := json.Marshal(given)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), secret) {
		t.Errorf("the environment travels: %s", text)
	}
	var got setup
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	given.Config.Environ, given.Config.Subject = nil, "worker"
	if diff := gocmp.Diff(given, got); diff != "" {
		t.Error(diff)
	}
	if around := surroundingsOf([]string{"TOKEN=" + secret, "HOME=/h"}); strings.Contains(fmt.Sprint(around), secret) {
		t.Errorf("%v", around)
	}
}

// Only the first process says how the command ended: a code that it ends with
// by itself, as the runtime's 2, is not the command's.
func TestCode(t *testing.T) {
	seven := 7
	for _, test := range []struct {
		script string
		told   *int
		code   int
		ended  error
	}{
		{"exit 7", &seven, 7, nil},
		{"exit 2", nil, 1, ErrEnded},
		{"exit 0", nil, 1, ErrEnded},
		{"kill -KILL $$", nil, 128 + 9, ErrEnded},
	} {
		cmd := exec.Command("sh", "-c", test.script)
		_ = cmd.Run()
		tree := &Tree{state: cmd.ProcessState, ended: test.told}
		if code, err := tree.code(); code != test.code || !errors.Is(err, test.ended) {
			t.Errorf("%s: %d %v, want %d %v", test.script, code, err, test.code, test.ended)
		}
	}
}

func TestWorkspaceIsRefused(t *testing.T) {
	w := newWorld(t, os.Geteuid())
	way := filepath.Join(w.base, "way")
	if err := os.Symlink(w.broker, way); err != nil {
		t.Fatal(err)
	}
	up := filepath.Join(w.base, "up")
	if err := os.Symlink(w.home, up); err != nil {
		t.Fatal(err)
	}
	odd := filepath.Join(w.base, "other", "\xff")
	if err := os.Mkdir(odd, 0o700); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		workspace string
		refused   bool
	}{
		{odd, true},
		{w.broker, true},
		{w.home, true},
		{filepath.Join(w.broker, "run"), true},
		{filepath.Join(w.broker, "run", "broker"), true},
		{way, true},
		{up, true},
		{filepath.Join(way, "run"), true},
		{"/", true},
		{"/proc", true},
		{"/dev/shm", true},
		{filepath.Join(w.broker, "secret.key"), true},
		{w.work, false},
		{filepath.Join(w.base, "other"), false},
		{filepath.Join(w.base, "other") + "/../other/.", false},
	}
	for _, test := range tests {
		cfg := w.config()
		cfg.Sandbox, cfg.Workspace, cfg.Readable = true, test.workspace, nil
		_, err := Describe(cfg)
		if errors.Is(err, ErrRefused) != test.refused || err != nil && !test.refused {
			t.Errorf("%s: %v, want refused %v", test.workspace, err, test.refused)
		}
		if err := Check(t.Context(), cfg); errors.Is(err, ErrRefused) != test.refused || err != nil && !test.refused {
			t.Errorf("starting with %s: %v, want refused %v", test.workspace, err, test.refused)
		}
	}
	cfg := w.config()
	for _, readable := range []string{w.broker, filepath.Join(w.broker, "run"), way, "/"} {
		cfg.Sandbox, cfg.Readable = true, []string{readable}
		if _, err := Describe(cfg); !errors.Is(err, ErrRefused) {
			t.Errorf("reading %s: %v", readable, err)
		}
	}
}

// A caller that stands in the home itself takes no one in there.
func TestCallerStandsInTheHome(t *testing.T) {
	asEach(t, func(t *testing.T, w *world) {
		const script = `cat secret.key || cat ./secret.key || cat /proc/self/cwd/secret.key || cat /proc/1/cwd/secret.key`
		control := w.command("sh", "-c", script)
		control.Dir = w.broker
		if said, code := output(t, control); code != 0 {
			t.Fatalf("the control does not work: %d %s", code, said)
		}
		for _, shape := range shapes {
			cfg := w.config()
			shape.change(&cfg)
			cmd := w.launch(cfg, "sh", "-c", "echo came here; "+script)
			cmd.Dir = w.broker
			if said, code := output(t, cmd); code == 0 || strings.Contains(said, secret) || !strings.Contains(said, "came here") {
				t.Errorf("%s: %d %s", shape.name, code, said)
			}
		}
	})
}

// What may be read can hold the broker's home; the home is covered in it.
func TestReadableAroundTheHome(t *testing.T) {
	asEach(t, func(t *testing.T, w *world) {
		cfg := w.config()
		cfg.Sandbox, cfg.Readable = true, []string{w.home, w.program}
		said, code := output(t, w.launch(cfg, "sh", "-c", `cat "$HOME/diary" && ! cat "$B/secret.key" && ! touch "$HOME/x" && touch "$W/x" && "$P" connect unix "$B/run/broker/broker.sock"`))
		if code != 0 {
			t.Errorf("%d %s", code, said)
		}
	})
}

// Where the kernel gives no user namespace the piece is named, and nothing
// weaker is started.
func TestUnsupported(t *testing.T) {
	asEach(t, func(t *testing.T, w *world) {
		cmd := w.launch(w.config(), "touch", filepath.Join(w.work, "started"))
		cmd.Args = append([]string{"unshare", "-Ur", "sh", "-c", `echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"`, "sh"}, cmd.Args...)
		path, err := exec.LookPath("unshare")
		if err != nil {
			t.Fatal(err)
		}
		cmd.Path = path
		said, code := output(t, cmd)
		if code != 2 || !strings.Contains(said, "this machine does not provide user namespaces") {
			t.Errorf("%d %s", code, said)
		}
		if _, err := os.Stat(filepath.Join(w.work, "started")); err == nil {
			t.Error("the command ran")
		}
	})
}

func TestStartIsBounded(t *testing.T) {
	w := newWorld(t, os.Geteuid())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if tree, err := Start(ctx, w.config()); err == nil {
		tree.Kill()
		t.Error("it started although its time was over")
	}
	cfg := w.config()
	cfg.Home = filepath.Join(w.base, "nothing")
	if err := Check(t.Context(), cfg); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a home: %v", err)
	}
}

func TestDescribe(t *testing.T) {
	w := newWorld(t, os.Geteuid())
	for _, shape := range shapes {
		cfg := w.config()
		shape.change(&cfg)
		rules, err := Describe(cfg)
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]Access{w.broker: AccessHidden, filepath.Join(w.broker, "run", "broker"): AccessRead, "/dev": AccessOwn}
		if cfg.Sandbox {
			want[w.work], want["/usr"], want["everything else"] = AccessWrite, AccessRead, AccessHidden
		} else {
			want["everything else"] = AccessOutside
		}
		have := map[string]Access{}
		for _, rule := range rules {
			have[rule.Path] = rule.Access
			if rule.Why == "" || strings.HasSuffix(rule.Why, ".") {
				t.Errorf("%s: %s says %q", shape.name, rule.Path, rule.Why)
			}
		}
		for path, access := range want {
			if have[path] != access {
				t.Errorf("%s: %s is %q, want %q", shape.name, path, have[path], access)
			}
		}
	}
}

func TestEnviron(t *testing.T) {
	have := Environ([]string{"PATH=/bin", "HOME=/h", "AWS_SECRET_ACCESS_KEY=x", "SSH_AUTH_SOCK=/s", "LC_ALL=C", "KEPT=1", "TERM=a"}, []string{"KEPT"}, []string{"TERM=b", "NEW=2"})
	if got, want := strings.Join(have, " "), "PATH=/bin HOME=/h LC_ALL=C KEPT=1 TERM=b NEW=2"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
