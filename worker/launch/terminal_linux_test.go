package launch

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"subjectbroker/worker/workertest"
)

// screen is a terminal with a shell in it, driven by what it shows. Nothing
// sleeps: whoever waits for words gets them or the test ends.
type screen struct {
	t      *testing.T
	master *os.File
	shell  *exec.Cmd

	mu    sync.Mutex
	shown bytes.Buffer
	news  chan struct{}
	read  int // how much has been waited for
}

// person starts an interactive shell of w's uid on a terminal of its own.
func person(t *testing.T, w *world) *screen {
	t.Helper()
	master, slave, err := openTestTerminal(w.uid)
	if err != nil {
		t.Fatal(err)
	}
	defer slave.Close()
	shell := w.command("bash", "--norc", "--noprofile", "--noediting", "-i")
	shell.Stdin, shell.Stdout, shell.Stderr = slave, slave, slave
	shell.SysProcAttr.Setsid, shell.SysProcAttr.Setctty = true, true
	if err := shell.Start(); err != nil {
		t.Fatal(err)
	}
	s := &screen{t: t, master: master, shell: shell, news: make(chan struct{}, 1)}
	read := make(chan struct{})
	go func() {
		defer close(read)
		buffer := make([]byte, 4096)
		for {
			n, err := master.Read(buffer)
			s.mu.Lock()
			s.shown.Write(buffer[:n])
			s.mu.Unlock()
			select {
			case s.news <- struct{}{}:
			default:
			}
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		shell.Process.Kill()
		shell.Wait()
		master.Close()
		<-read
	})
	s.wait("$ ")
	return s
}

func openTestTerminal(uid int) (master, slave *os.File, err error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		return nil, nil, err
	}
	peer, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		return nil, nil, errno
	}
	slave = os.NewFile(peer, "slave")
	if err := unix.Fchown(int(peer), uid, -1); err != nil {
		return nil, nil, err
	}
	if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 80}); err != nil {
		return nil, nil, err
	}
	return os.NewFile(uintptr(fd), "master"), slave, nil
}

func (s *screen) typed(keys string) {
	s.t.Helper()
	if _, err := s.master.WriteString(keys); err != nil {
		s.t.Fatal(err)
	}
}

// wait waits for words that were not waited for yet.
func (s *screen) wait(words string) {
	s.t.Helper()
	s.until(words)
}

// until is wait, and returns what came before the words.
func (s *screen) until(words string) string {
	s.t.Helper()
	late := time.After(patience)
	for {
		s.mu.Lock()
		at := bytes.Index(s.shown.Bytes()[s.read:], []byte(words))
		if at >= 0 {
			before := string(s.shown.Bytes()[s.read : s.read+at])
			s.read += at + len(words)
			s.mu.Unlock()
			return before
		}
		rest := s.shown.String()[s.read:]
		s.mu.Unlock()
		select {
		case <-s.news:
		case <-late:
			s.t.Fatalf("%q was never shown; shown was %q", words, rest)
		}
	}
}

// cooked checks that the terminal is a shell's. What it types is no answer.
func (s *screen) cooked() {
	s.t.Helper()
	s.typed("stty -a | grep -o -e '.icano[n]'; echo here-$((1+1))\n")
	if modes := s.until("here-2"); !strings.Contains(modes, " icanon") || strings.Contains(modes, "-icanon") {
		s.t.Errorf("the terminal is not as it was: %q", modes)
	}
}

// script leaves a launch of a script in $W/name, to be typed as a short line.
func (s *screen) script(w *world, name, content string) {
	s.t.Helper()
	cfg := w.config()
	cfg.Sandbox = w.sandbox
	cmd := w.launch(cfg, "bash", "-c", content)
	var line string
	for _, pair := range cmd.Env {
		if value, ok := strings.CutPrefix(pair, caseEnv+"="); ok {
			line = value
		}
	}
	path := filepath.Join(w.work, name)
	text := fmt.Sprintf("#!/bin/bash\nexport %s='%s'\nexec %s run\n", caseEnv, strings.ReplaceAll(line, "'", `'\''`), w.program)
	if err := workertest.WriteProgram(path, []byte(text)); err != nil {
		s.t.Fatal(err)
	}
	if err := os.Lchown(path, w.uid, w.uid); err != nil {
		s.t.Fatal(err)
	}
}

func TestJobControl(t *testing.T) {
	asEach(t, func(t *testing.T, w *world) {
		s := person(t, w)
		s.script(w, "job", `echo begin; n=0; while read -r line; do n=$((n+1)); echo "got-$n:$line"; test "$line" = end && exit 6; done`)
		s.typed("./job; echo code=$?\n")
		s.wait("begin")
		s.typed("one\n")
		s.wait("got-1:one")
		for i := range 3 {
			s.typed("\x1a")
			s.wait("Stopped")
			s.wait("$ ")
			s.cooked()
			s.wait("$ ")
			s.typed("fg\n")
			s.typed(fmt.Sprintf("again%d\n", i))
			s.wait(fmt.Sprintf(":again%d", i))
		}
		s.typed("end\n")
		s.wait(":end")
		s.wait("$ ") // after `fg` the rest of the first line is gone, as with every job
		s.typed("echo code=$((0+$?))\n")
		s.wait("code=6")
	})
}

// A terminal is given back as it was, when the command stops and when it ends.
// bash would do that itself; sh, where it is not bash, leaves it as it finds it.
func TestTerminalIsRestored(t *testing.T) {
	asEach(t, func(t *testing.T, w *world) {
		s := person(t, w)
		s.script(w, "job", `echo begin; while read -r line; do echo "got:$line"; test "$line" = end && exit 6; done`)
		s.typed("exec sh -i\n")
		s.typed("echo shell-$((1+1))\n")
		s.wait("shell-2")
		s.wait("$ ")
		s.typed("./job; echo code=$?\n")
		s.wait("begin")
		for i := range 2 {
			s.typed("\x1a")
			s.wait("Stopped")
			s.wait("$ ")
			s.cooked()
			s.typed("fg; echo code=$((0+$?))\n")
			s.typed(fmt.Sprintf("again%d\n", i))
			s.wait(fmt.Sprintf("got:again%d", i))
		}
		s.typed("end\n")
		s.wait("got:end")
		s.wait("code=6")
		s.cooked()
	})
}

func TestKeysAndSize(t *testing.T) {
	asEach(t, func(t *testing.T, w *world) {
		s := person(t, w)
		s.script(w, "keys", `trap 'echo interrupted' INT; test -t 0 && test -t 1 && test -t 2 && echo terminal; stty size; tty; while :; do read -r line && echo "got:$line"; test "$line" = end && exit 6; done`)
		s.typed("./keys; echo code=$?\n")
		s.wait("terminal")
		s.wait("24 80")
		s.wait("/dev/pts/0") // the tree's first
		// A shell that is just about to read hears of it after the line.
		s.typed("\x03")
		s.typed("\n")
		s.wait("interrupted")
		s.typed("end\n")
		s.wait("got:end")
		s.wait("code=6")
		s.wait("$ ")
		s.cooked()
	})
}

// A shell sees that the command was ended by Ctrl-C: its loop ends with it, an
// interactive shell's and that of a script, which the terminal tells otherwise.
func TestInterruptEndsALoop(t *testing.T) {
	asEach(t, func(t *testing.T, w *world) {
		s := person(t, w)
		s.script(w, "nap", `echo begin; exec sleep 600`)
		s.script(w, "heeds", `trap 'echo heeded; exit 7' INT; echo begin; while :; do sleep 0.1; done`)
		loop := "for i in 1 2 3; do ./nap; echo after-$((i+1)); done"
		for _, line := range []string{loop, "bash -c '" + loop + "'"} {
			s.typed(line + "\n")
			s.wait("begin")
			s.typed("\x03")
			if shown := s.until("$ "); strings.Contains(shown, "after-2") {
				t.Errorf("%s went on: %q", line, shown)
			}
			s.typed("echo code=$((0+$?))\n")
			s.wait("code=130")
			s.wait("$ ")
			s.cooked()
			s.wait("$ ")
		}
		// A command that heeds the signal and ends by itself ends no loop.
		s.typed("for i in 1 2; do ./heeds; echo code$i=$((0+$?)); done\n")
		for i := range 2 {
			s.wait("begin")
			s.typed("\x03")
			s.wait(fmt.Sprintf("code%d=7", i+1))
		}
	})
}

// A job in the background leaves the terminal alone, and takes it when it is
// fetched.
func TestBackground(t *testing.T) {
	asEach(t, func(t *testing.T, w *world) {
		s := person(t, w)
		s.script(w, "back", `echo begin; while read -r line; do echo "got:$line"; test "$line" = end && exit 6; done`)
		s.typed("./back &\n")
		s.wait("begin")
		s.cooked()
		s.typed("fg\n")
		s.typed("one\n")
		s.wait("got:one")
		s.typed("\x1a")
		s.wait("Stopped")
		s.typed("bg\n")
		s.typed("echo still-$((1+1))\n")
		s.wait("still-2")
		s.typed("fg\n")
		s.typed("end\n")
		s.wait("got:end")
	})
}

// A shell that edits its lines has the terminal in modes of its own while a job
// is started in the background; fetched, the job has those of a command.
func TestBackgroundOfAShellThatEdits(t *testing.T) {
	asEach(t, func(t *testing.T, w *world) {
		s := person(t, w)
		s.script(w, "plain", `echo begin; sed -u s/^/got-/; echo ended-$((1+1))`)
		s.typed("stty -icanon\n")
		s.typed("./plain &\n")
		s.wait("begin")
		s.typed("stty icanon\n")
		s.cooked()
		s.typed("fg\n")
		s.typed("one\n")
		s.wait("got-one")
		s.typed("\x04")
		s.wait("ended-2")
	})
}

// Landlock's rules about devices leave a sandbox its terminal.
func TestSandboxTerminal(t *testing.T) {
	asEach(t, func(t *testing.T, w *world) {
		w.sandbox = true
		s := person(t, w)
		s.script(w, "closed", `test -t 0 && stty size && stty -echo && stty echo; echo "tty $(tty)"; echo typed >/dev/tty; while read -r line; do echo "got:$line"; test "$line" = end && exit 6; done`)
		s.typed("./closed; echo code=$?\n")
		s.wait("24 80")
		s.wait("tty /dev/pts/0")
		s.wait("typed")
		s.typed("\x1a")
		s.wait("Stopped")
		s.wait("$ ")
		s.typed("fg\n")
		s.typed("end\n")
		s.wait("got:end")
		s.wait("$ ")
	})
}

func TestWindowSize(t *testing.T) {
	asEach(t, func(t *testing.T, w *world) {
		s := person(t, w)
		s.script(w, "size", `trap 'exit 6' INT; echo begin; while read -r line; do echo "size $(stty size);"; done`)
		s.typed("./size; echo code=$?\n")
		s.wait("begin")
		for i := range 3 {
			if err := unix.IoctlSetWinsize(int(s.fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 30, Col: uint16(100 + i)}); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the size is the same inside", func() bool {
				s.typed("\n")
				s.wait("size ")
				return s.until(";") == fmt.Sprintf("30 %d", 100+i)
			})
		}
		s.typed("\x03")
		s.wait("code=6")
	})
}

func (s *screen) fd() uintptr {
	var fd uintptr
	raw, err := s.master.SyscallConn()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := raw.Control(func(n uintptr) { fd = n }); err != nil {
		s.t.Fatal(err)
	}
	return fd
}

// A shell inside does its own job control, on a terminal that is not the
// caller's.
func TestShellInside(t *testing.T) {
	asEach(t, func(t *testing.T, w *world) {
		s := person(t, w)
		s.script(w, "inner", `exec bash --norc --noprofile --noediting -i`)
		s.typed("./inner; echo code=$?\n")
		s.typed("PS1='inside> '; echo ready-$((40+1))\n")
		s.wait("ready-41")
		s.wait("inside> ")
		s.typed("(echo go-$((1+1)); exec sleep 300)\n")
		s.wait("go-2")
		s.typed("\x1a")
		s.wait("Stopped")
		s.wait("inside> ")
		s.typed("kill -9 %1; wait %1; echo own-$((40+2))\n")
		s.wait("own-42")
		s.typed("suspend\n") // the whole shell, back to the one outside
		s.wait("Stopped")
		s.wait("$ ")
		s.typed("echo out-$((40+2))\n")
		s.wait("out-42")
		s.typed("fg\n")
		s.typed("echo in-$((40+3))\n")
		s.wait("in-43")
		s.typed("exec sh -c 'exit 9'\n") // exit would ask again for jobs that it takes for stopped
		s.wait("$ ")
	})
}

// In a pipeline the terminal is relayed for what is a terminal, and the rest is
// passed on.
func TestPartlyTerminal(t *testing.T) {
	asEach(t, func(t *testing.T, w *world) {
		s := person(t, w)
		s.script(w, "out", `test -t 0 && echo in-tty; test -t 1 || echo out-pipe; read -r line; echo "line:$line"`)
		s.typed("./out | tr a-z A-Z; echo codes=${PIPESTATUS[0]}\n")
		s.wait("IN-TTY")
		s.wait("OUT-PIPE")
		s.typed("hello\n")
		s.wait("LINE:HELLO")
		s.wait("codes=0")
		s.script(w, "in", `test -t 0 || echo in-pipe; test -t 1 && echo out-tty; cat`)
		s.typed("echo through | ./in; echo codes=${PIPESTATUS[1]}\n")
		s.wait("in-pipe")
		s.wait("out-tty")
		s.wait("through")
		s.wait("codes=0")
	})
}

// What the others of a pipeline write to the terminal looks as it does without a
// launch, and so does what comes from inside.
func TestPipelineWritesLines(t *testing.T) {
	asEach(t, func(t *testing.T, w *world) {
		s := person(t, w)
		s.script(w, "lines", `echo begin-out; echo begin-err >&2; read -r line; echo "out:$line"; echo "err:$line" >&2; echo last-out`)
		s.typed("./lines | cat; echo codes=${PIPESTATUS[0]}\n")
		s.wait("begin-")
		s.wait("begin-")
		s.typed("one\n")
		shown := s.until("codes=0")
		for _, line := range []string{"out:one\r\n", "err:one\r\n", "last-out\r\n"} {
			if !strings.Contains(shown, line) {
				t.Errorf("%q was not shown: %q", line, shown)
			}
		}
		if strings.Contains(shown, "\r\r") {
			t.Errorf("lines end twice: %q", shown)
		}
		s.cooked()
	})
}

// A pager at the end of a pipeline gets the keys; when it is done the command
// does.
func TestPagerReadsTheKeys(t *testing.T) {
	asEach(t, func(t *testing.T, w *world) {
		fifo := filepath.Join(w.work, "pager")
		if err := unix.Mkfifo(fifo, 0o666); err != nil {
			t.Fatal(err)
		}
		os.Lchown(fifo, w.uid, w.uid)
		s := person(t, w)
		s.script(w, "paged", `echo begin; read -r line; echo "line:$line"`)
		pager := `stty -icanon -echo </dev/tty; echo >pager; read -r first; echo first-$first; for i in 1 2 3 4 5 6; do echo key-$i-$(dd bs=1 count=1 status=none </dev/tty); done; stty icanon echo </dev/tty; cat`
		if err := os.WriteFile(filepath.Join(w.work, "pages"), []byte(pager), 0o644); err != nil {
			t.Fatal(err)
		}
		s.typed("(read -r x <pager; exec ./paged) | sh ./pages; echo codes=${PIPESTATUS[0]}\n")
		s.wait("first-begin")
		for i, key := range "abcdef" {
			s.typed(string(key))
			s.wait(fmt.Sprintf("key-%d-%c\r\n", i+1, key))
		}
		s.typed("last\n")
		s.wait("line:last\r\n")
		s.wait("codes=0")
		s.cooked()
	})
}

// The caller's terminal cannot be reached from inside: neither opened nor given
// input.
func TestTerminalIsApart(t *testing.T) {
	asEach(t, func(t *testing.T, w *world) {
		s := person(t, w)
		s.script(w, "apart", `ls -l /proc/self/fd /proc/$$/fd | grep -o '/dev/pts/.*' | sort -u | tr '\n' ' '; echo; echo "count $(ls /dev/pts | grep -c '^[0-9]')"`)
		s.typed("./apart\n")
		s.wait("/dev/pts/0 \r\n")
		s.wait("count 1\r\n")
		s.wait("$ ")
	})
}

// A killed `sbctl run` on a terminal takes the tree along.
func TestTerminalNothingIsLeft(t *testing.T) {
	asEach(t, func(t *testing.T, w *world) {
		word := "onterminal-" + filepath.Base(w.base)
		s := person(t, w)
		s.script(w, "left", `exec -a `+word+` sleep 300`)
		s.typed("./left &\n")
		eventually(t, "it runs", func() bool { return len(living(word)) > 0 })
		s.typed("kill -9 %1\n")
		eventually(t, "nothing is left", func() bool { return len(livingNamed(word)) == 0 })
	})
}

// livingNamed lists processes whose first argument is word.
func livingNamed(word string) []int {
	var found []int
	for _, pid := range living(word) {
		content, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err == nil && bytes.HasPrefix(content, []byte(word)) {
			found = append(found, pid)
		}
	}
	return found
}

// When the caller's terminal goes away, that of the tree does too: a command
// that ignores the signal is told by its next write, and does not wait for ever
// for somebody who reads it.
func TestTerminalIsClosed(t *testing.T) {
	asEach(t, func(t *testing.T, w *world) {
		for _, test := range []struct{ name, keys, script string }{
			{"while it writes", "./closed\n", `trap '' HUP; echo begin; while echo xxxxxxxxxxxxxxxx; do :; done 2>/dev/null; touch "$W/ended"`},
			{"while it reads", "./closed\n", `trap '' HUP; echo begin; while read -r line; do :; done 2>/dev/null; touch "$W/ended"`},
			{"in the background", "./closed &\n", `trap '' HUP; echo begin; read -r line <"$W/fifo"; while echo xxxxxxxxxxxxxxxx; do :; done 2>/dev/null; touch "$W/ended"`},
		} {
			ended, fifo := filepath.Join(w.work, "ended"), filepath.Join(w.work, "fifo")
			if err := unix.Mkfifo(fifo, 0o666); err != nil {
				t.Fatal(err)
			}
			os.Lchown(fifo, w.uid, w.uid)
			s := person(t, w)
			s.script(w, "closed", test.script)
			s.typed(test.keys)
			s.wait("begin")
			s.master.Close()
			if test.name == "in the background" {
				if err := os.WriteFile(fifo, []byte("\n"), 0); err != nil {
					t.Fatal(err)
				}
			}
			eventually(t, test.name+": the command goes on", func() bool {
				_, err := os.Stat(ended)
				return err == nil
			})
			os.Remove(ended)
			os.Remove(fifo)
		}
	})
}

// A relay that could not begin has nothing to wait for.
func TestRelayThatDidNotBegin(t *testing.T) {
	w := newWorld(t, os.Geteuid())
	if said, code := output(t, w.command(w.program, "starve")); code != 0 || !strings.Contains(said, "finished after: relaying the terminal: ") {
		t.Errorf("%d %s", code, said)
	}
}

// starve begins a relay with a single descriptor left.
func starve() int {
	master, slave, err := openTestTerminal(os.Geteuid())
	if err != nil {
		fmt.Println(err)
		return 1
	}
	r := newRelay([3]*os.File{slave, slave, slave})
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 64, Max: 64}); err != nil {
		fmt.Println(err)
		return 1
	}
	last := -1
	for {
		fd, err := unix.Open(os.DevNull, unix.O_RDONLY, 0)
		if err != nil {
			break
		}
		last = fd
	}
	unix.Close(last)
	err = r.begin(master)
	if err == nil {
		return 1
	}
	r.finish()
	fmt.Println("finished after:", err)
	return 0
}
