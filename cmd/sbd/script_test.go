package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
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

	"github.com/rogpeppe/go-internal/testscript"

	"subjectbroker/proto/recovery"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/worker/client"
)

// patience bounds what must happen; it is not what is asserted.
const patience = 30 * time.Second

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"sbd": main})
}

// TestScripts runs sbd as its user does. $SB_HOME is a short path that does not
// exist yet, below $TOP, which is the test's own.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Setup: func(env *testscript.Env) error {
			top, err := os.MkdirTemp("", "sb") // a socket's path is short; $WORK is not always
			if err != nil {
				return err
			}
			d := &served{}
			env.Defer(func() {
				d.kill()
				_ = os.RemoveAll(top)
			})
			env.Values["served"] = d
			env.Setenv("TOP", top)
			env.Setenv("HOME", top)
			env.Setenv("SB_HOME", filepath.Join(top, "h"))
			return nil
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"serve":  serveCommand,
			"halt":   haltCommand,
			"says":   saysCommand,
			"ends":   endsCommand,
			"signal": signalCommand,
			"exits":  exitsCommand,
			"put":    putCommand,
			"config": configCommand,
			"code":   codeCommand,
			"backup": backupCommand,
			"mode":   modeCommand,
			"files":  filesCommand,
			"fifo":   fifoCommand,
			"flip":   flipCommand,
		},
		Condition: func(name string) (bool, error) {
			if name == "root" {
				return os.Geteuid() == 0, nil
			}
			return false, fmt.Errorf("unknown condition %s", name)
		},
	})
}

// served is the daemon that serves in the background of a script.
type served struct {
	cmd   *exec.Cmd
	said  *transcript
	ended chan struct{}
}

// transcript is what sbd says, line by line.
type transcript struct {
	mu    sync.Mutex
	text  strings.Builder
	waits map[string]chan struct{} // closed when a line contains the text
}

func (tr *transcript) add(line string) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	fmt.Fprintln(&tr.text, line)
	for text, seen := range tr.waits {
		if strings.Contains(line, text) {
			close(seen)
			delete(tr.waits, text)
		}
	}
}

// contains returns a channel that is closed once a line contains text.
func (tr *transcript) contains(text string) <-chan struct{} {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	seen := tr.waits[text]
	if seen == nil {
		seen = make(chan struct{})
		if strings.Contains(tr.text.String(), text) {
			close(seen)
		} else {
			tr.waits[text] = seen
		}
	}
	return seen
}

func (tr *transcript) String() string {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return tr.text.String()
}

func (d *served) kill() {
	if d.cmd != nil {
		_ = d.cmd.Process.Kill()
		<-d.ended
		d.cmd = nil
	}
}

func of(ts *testscript.TestScript) *served {
	d, ok := ts.Value("served").(*served)
	if !ok {
		ts.Fatalf("no daemon")
	}
	return d
}

// serveCommand starts sbd with the file key source, and returns when it serves:
//
//	serve [ARG…]
func serveCommand(ts *testscript.TestScript, _ bool, args []string) {
	d := of(ts)
	if d.cmd != nil {
		ts.Fatalf("it serves already")
	}
	cmd := exec.Command("sbd", append([]string{"--key-source", "file", "--log", "json"}, args...)...)
	cmd.Env = []string{"PATH=" + ts.Getenv("PATH"), "HOME=" + ts.Getenv("HOME"), "SB_HOME=" + ts.Getenv("SB_HOME")}
	path, err := lookPath("sbd", ts.Getenv("PATH"))
	ts.Check(err)
	cmd.Path, cmd.Err = path, nil
	stderr, err := cmd.StderrPipe()
	ts.Check(err)
	ts.Check(cmd.Start())
	d.cmd, d.said, d.ended = cmd, &transcript{waits: map[string]chan struct{}{}}, make(chan struct{})
	go func(said *transcript, ended chan struct{}) {
		defer close(ended)
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			said.add(lines.Text())
		}
		_ = cmd.Wait()
	}(d.said, d.ended)
	saysCommand(ts, false, []string{`"msg":"serving"`})
}

// saysCommand waits until the daemon says something: says TEXT
func saysCommand(ts *testscript.TestScript, _ bool, args []string) {
	d := of(ts)
	if d.cmd == nil || len(args) != 1 {
		ts.Fatalf("usage: says TEXT, while it serves")
	}
	select {
	case <-d.said.contains(args[0]):
	case <-d.ended:
		ts.Fatalf("sbd ended: %s", d.said)
	case <-time.After(patience):
		ts.Fatalf("sbd does not say %s", args[0])
	}
}

func lookPath(name, path string) (string, error) {
	for _, dir := range filepath.SplitList(path) {
		if full := filepath.Join(dir, name); isFile(full) {
			return full, nil
		}
	}
	return "", fmt.Errorf("no %s in PATH", name)
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// haltCommand stops the daemon with SIGTERM; it must exit 0.
func haltCommand(ts *testscript.TestScript, _ bool, _ []string) {
	signalCommand(ts, false, []string{"TERM"})
	endsCommand(ts, false, []string{"0"})
}

// endsCommand waits until the daemon has ended by itself and compares its exit
// code. What it said is in the file `said`.
func endsCommand(ts *testscript.TestScript, _ bool, args []string) {
	d := of(ts)
	if d.cmd == nil || len(args) != 1 {
		ts.Fatalf("usage: ends CODE, while it serves")
	}
	select {
	case <-d.ended:
	case <-time.After(patience):
		ts.Fatalf("sbd goes on")
	}
	code := d.cmd.ProcessState.ExitCode()
	d.cmd = nil
	ts.Check(os.WriteFile(ts.MkAbs("said"), []byte(d.said.String()), 0o600))
	if strconv.Itoa(code) != args[0] {
		ts.Fatalf("sbd ended with %d, want %s:\n%s", code, args[0], d.said)
	}
}

// signalCommand sends TERM, INT, HUP or KILL.
func signalCommand(ts *testscript.TestScript, _ bool, args []string) {
	signals := map[string]syscall.Signal{"TERM": syscall.SIGTERM, "INT": syscall.SIGINT, "HUP": syscall.SIGHUP, "KILL": syscall.SIGKILL}
	d := of(ts)
	if d.cmd == nil || len(args) != 1 || signals[args[0]] == 0 {
		ts.Fatalf("usage: signal TERM|INT|HUP|KILL, while it serves")
	}
	ts.Check(d.cmd.Process.Signal(signals[args[0]]))
}

// exitsCommand runs a command and compares its exit code: exits CODE COMMAND ARG…
func exitsCommand(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) < 2 {
		ts.Fatalf("usage: exits CODE COMMAND ARG…")
	}
	code := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		exited, ok := errors.AsType[*exec.ExitError](err)
		if !ok {
			ts.Fatalf("%v", err)
		}
		code = exited.ExitCode()
	}
	if strconv.Itoa(code) != args[0] {
		ts.Fatalf("exit %d, want %s", code, args[0])
	}
}

// operator calls the operator's service of the daemon that serves.
func operator(ts *testscript.TestScript, call func(context.Context, operatorv1.OperatorServiceClient) error) {
	home := ts.Getenv("SB_HOME")
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := client.Operator(ctx, client.Places{Home: home, SocketDir: filepath.Join(home, "run")})
	ts.Check(err)
	defer conn.Close()
	ts.Check(call(ctx, operatorv1.NewOperatorServiceClient(conn)))
}

// putCommand stores content as the operator: put NAME CONTENT
func putCommand(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: put NAME CONTENT")
	}
	operator(ts, func(ctx context.Context, o operatorv1.OperatorServiceClient) error {
		_, err := o.PutSecret(ctx, &operatorv1.PutSecretRequest{Name: args[0], Kind: "text", Content: []byte(args[1])})
		return err
	})
}

// codeCommand gives the vault a recovery code and writes it to a file, as a
// person would type it, and with a slip in front of it: code FILE
func codeCommand(ts *testscript.TestScript, _ bool, args []string) {
	code := recovery.New()
	operator(ts, func(ctx context.Context, o operatorv1.OperatorServiceClient) error {
		_, err := o.AddSlot(ctx, &operatorv1.AddSlotRequest{Kind: "recovery", Secret: code.PublicKey()})
		return err
	})
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte("00000\n"+strings.ToLower(code.Text())+"\n"), 0o600))
}

// backupCommand makes a backup: backup FILE
func backupCommand(ts *testscript.TestScript, _ bool, args []string) {
	var raw []byte
	operator(ts, func(ctx context.Context, o operatorv1.OperatorServiceClient) error {
		stream, err := o.Backup(ctx, &operatorv1.BackupRequest{})
		for err == nil {
			var part *operatorv1.BackupResponse
			part, err = stream.Recv()
			raw = append(raw, part.GetChunk()...)
		}
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return err
	})
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), raw, 0o600))
}

// configCommand writes config.yaml: config LINE
func configCommand(ts *testscript.TestScript, _ bool, args []string) {
	ts.Check(os.WriteFile(filepath.Join(ts.Getenv("SB_HOME"), "config.yaml"), []byte(strings.Join(args, " ")+"\n"), 0o600))
}

// modeCommand compares permissions: mode 0600 PATH…
func modeCommand(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) < 2 {
		ts.Fatalf("usage: mode PERMISSIONS PATH…")
	}
	for _, path := range args[1:] {
		info, err := os.Lstat(ts.MkAbs(path))
		ts.Check(err)
		if got := fmt.Sprintf("%04o", info.Mode().Perm()); got != args[0] {
			ts.Fatalf("%s has mode %s, want %s", path, got, args[0])
		}
	}
}

// filesCommand compares everything below a folder, by name: files DIR NAME…
func filesCommand(ts *testscript.TestScript, _ bool, args []string) {
	var found []string
	root := ts.MkAbs(args[0])
	ts.Check(filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if name, relErr := filepath.Rel(root, path); relErr == nil && name != "." {
			found = append(found, name)
		}
		return err
	}))
	if want := args[1:]; !slices.Equal(found, want) {
		ts.Fatalf("%s holds %v, want %v", args[0], found, want)
	}
}

// fifoCommand makes a FIFO.
func fifoCommand(ts *testscript.TestScript, _ bool, args []string) {
	ts.Check(syscall.Mkfifo(ts.MkAbs(args[0]), 0o600))
}

// flipCommand flips one byte of a file: flip PATH OFFSET, from the end when the
// offset is negative.
func flipCommand(ts *testscript.TestScript, _ bool, args []string) {
	raw, err := os.ReadFile(ts.MkAbs(args[0]))
	ts.Check(err)
	at, err := strconv.Atoi(args[1])
	ts.Check(err)
	if at < 0 {
		at += len(raw)
	}
	raw[at] ^= 1
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), raw, 0o600))
}
