package host

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	hostv1 "subjectbroker/proto/subjectbroker/host/v1"
	"subjectbroker/worker/launch"
)

// afterEnd is how long what a server wrote last may take to come out of its pipes
// once it has ended.
const afterEnd = time.Second

// What a server may have at once, where the kernel counts it: far more than one needs,
// and less than what brings a machine down.
const (
	maxTasks     = 2048 // processes and threads, of all that it starts
	maxFiles     = 8192 // open files of one process…
	defaultFiles = 1024 // …which it gets when it asks for them; before it has so many
)

// running is a process and what it started.
type running interface {
	// wait waits for the command and returns its exit code, -1 where it has none.
	// It is called once.
	wait() int
	// ask asks it to end (SIGTERM).
	ask()
	// kill ends all of it at once and returns when it is gone. It may be called
	// again, from any goroutine.
	kill()
}

// process is a link to a server that was started here.
type process struct {
	limit  int
	run    running
	folder *folder
	ends   [3]*os.File // our ends of its standard streams

	to      listener
	ended   chan struct{} // the command has
	over    chan struct{} // and all that it wrote was read
	code    int           // of it, once ended is closed
	left    int           // bytes of its input that it did not read, once ended is closed; -1: nobody knows
	wrote   atomic.Bool   // a whole message
	hushed  atomic.Bool   // it was ended because it closed its output
	endless atomic.Bool   // it was ended over a line without an end
	ending  sync.Once

	mu     sync.Mutex
	filled *sync.Cond // on queue, and shut
	queue  []outgoing
	size   int // of queue, in bytes
	shut   bool
}

// startProcess starts a command. The error is for a person; confinement is what holds, and what does not, for what runs.
func startProcess(ctx context.Context, start *hostv1.Start, limit int, alone bool) (made *process, confinement []string, err error) {
	p := &process{limit: limit, ended: make(chan struct{}), over: make(chan struct{})}
	p.filled = sync.NewCond(&p.mu)
	dir := start.GetCwd()
	if dir == "" {
		if p.folder, err = newFolder(); err != nil {
			return nil, nil, fmt.Errorf("a folder for the server: %w", err)
		}
		dir = p.folder.path
	}
	var theirs [3]*os.File
	defer func() {
		for _, file := range theirs {
			file.Close()
		}
		if err != nil {
			p.close()
		}
	}()
	for i := range theirs {
		read, write, err := os.Pipe()
		if err != nil {
			return nil, nil, err
		}
		if i == 0 {
			theirs[i], p.ends[i] = read, write
		} else {
			theirs[i], p.ends[i] = write, read
		}
	}
	p.run, err = startConfined(ctx, start, dir, theirs)
	if err == nil {
		return p, []string{"confined"}, nil
	}
	unsupported, ok := errors.AsType[*launch.Unsupported](err)
	if !ok || start.GetConfine() {
		return nil, nil, err
	}
	if p.run, err = startPlain(start, dir, theirs, alone); err != nil {
		return nil, nil, err
	}
	return p, []string{
		"not confined: this machine does not provide " + unsupported.Piece,
		"not confined: it can read and write all that this account can",
		"not confined: nothing bounds how many processes it starts",
		"not confined: what it starts in sessions of its own may outlive a host that is killed",
	}, nil
}

func (p *process) close() {
	for _, file := range p.ends {
		file.Close()
	}
	p.folder.remove()
}

func (p *process) begin(to listener) {
	p.to = to
	var reading sync.WaitGroup
	reading.Go(func() {
		p.readMessages()
		p.hush()
	})
	reading.Go(p.readLog)
	go p.write()
	go func() {
		p.code = p.run.wait()
		p.run.kill() // what it left behind
		p.left = unreadOf(p.ends[0])
		close(p.ended)
		read := make(chan struct{})
		go func() { reading.Wait(); close(read) }()
		select {
		case <-read:
		case <-time.After(afterEnd): // somebody has its streams who is not to be found
			p.ends[1].Close()
			p.ends[2].Close()
			<-read
		}
		p.shutQueue()
		close(p.over)
	}()
}

// hush ends a server that goes on without its output: it cannot answer any more.
func (p *process) hush() {
	go func() {
		p.within(closePatience)
		select {
		case <-p.ended:
		default:
			p.hushed.Store(true)
			p.run.kill()
		}
	}()
}

func (p *process) readMessages() {
	in := newLines(p.ends[1], p.limit)
	for {
		line, long, err := in.next()
		switch {
		case errors.Is(err, errEndless):
			p.to.cut(long)
			p.endless.Store(true)
			p.run.kill()
			return
		case err != nil:
			return
		case long != nil:
			p.to.cut(long)
		default:
			p.to.take(line)
		}
	}
}

// readLog passes on the first part of each line.
func (p *process) readLog() {
	in := bufio.NewReaderSize(p.ends[2], maxLog)
	for rest := false; ; {
		line, err := in.ReadSlice('\n')
		if len(line) > 0 && !rest {
			p.to.say(strings.TrimRight(string(line), "\r\n"))
		}
		rest = errors.Is(err, bufio.ErrBufferFull)
		if err != nil && !rest {
			return
		}
	}
}

// tookAll reports whether a server that has ended had read all that it was sent,
// which was something.
func (p *process) tookAll() bool {
	<-p.over
	return p.left == 0 && p.wrote.Load() && !p.endless.Load()
}

func (p *process) post(m outgoing) {
	p.mu.Lock()
	full := p.shut || p.size > 0 && p.size+len(m.body) > maxQueued
	if !full {
		p.queue = append(p.queue, m)
		p.size += len(m.body)
		p.filled.Signal()
	}
	p.mu.Unlock()
	if full && m.id != 0 {
		p.to.lost(m.id, "it does not read what it is sent")
	}
}

func (p *process) write() {
	for {
		p.mu.Lock()
		for len(p.queue) == 0 && !p.shut {
			p.filled.Wait()
		}
		if len(p.queue) == 0 {
			p.mu.Unlock()
			p.ends[0].Close()
			return
		}
		next := p.queue[0]
		p.queue[0] = outgoing{}
		p.queue = p.queue[1:]
		p.mu.Unlock()
		_, err := p.ends[0].Write(append(next.body, '\n'))
		p.wrote.Store(p.wrote.Load() || err == nil)
		p.mu.Lock()
		p.size -= len(next.body)
		p.mu.Unlock()
		if err != nil && next.id != 0 {
			p.isOver(2 * afterEnd) // a server that has ended is told as such
			p.to.lost(next.id, "it does not read any more")
		}
	}
}

// shutQueue closes the server's input once what waits for it was written.
func (p *process) shutQueue() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shut = true
	p.filled.Broadcast()
}

func (p *process) settle(context.Context) {} // what is posted is read in order
func (p *process) forget(uint64)          {}
func (p *process) agreed(string)          {}
func (p *process) refuses() bool          { return false }
func (p *process) gone() <-chan struct{}  { return p.over }

func (p *process) end(polite bool) ending {
	p.ending.Do(func() {
		if polite {
			p.shutQueue()
			p.within(closePatience)
			p.run.ask()
			p.within(termPatience)
		}
		p.run.kill()
		<-p.over
		p.close()
	})
	<-p.over
	if p.hushed.Load() {
		return ending{why: whyProtocol, detail: "it closed its output", code: p.code}
	}
	if p.endless.Load() {
		return ending{why: whyProtocol, detail: fmt.Sprintf("it wrote more than %d bytes without an end of the line", p.limit), code: p.code}
	}
	return ending{why: whyExited, detail: exitWords(p.code), code: p.code}
}

// within waits for the command to end, but no longer than patience.
func (p *process) within(patience time.Duration) {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-p.ended:
	case <-timer.C:
	}
}

// isOver waits until all is over, but no longer than patience.
func (p *process) isOver(patience time.Duration) {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-p.over:
	case <-timer.C:
	}
}

func exitWords(code int) string {
	if code < 0 {
		return "the server was ended by a signal"
	}
	return fmt.Sprintf("the server exited with code %d", code)
}

// confined is a command in a tree of its own.
type confined struct{ tree *launch.Tree }

func startConfined(ctx context.Context, start *hostv1.Start, dir string, stdio [3]*os.File) (running, error) {
	if start.GetHome() == "" {
		return nil, &launch.Unsupported{Piece: "a home of the broker to cover"}
	}
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	tree, err := launch.Start(ctx, launch.Config{
		Home: start.GetHome(), SocketDir: start.GetSocketDir(), NoBroker: true, Tasks: maxTasks, Environ: around(start.GetEnv()),
		Stdin: stdio[0], Stdout: stdio[1], Stderr: stdio[2],
	})
	if err != nil {
		return nil, err
	}
	if err := tree.Go(launch.Command{Argv: start.GetCommand(), Dir: dir, Handed: start.GetEnv()}); err != nil {
		tree.Kill()
		return nil, err
	}
	return confined{tree}, nil
}

func (c confined) wait() int {
	code, err := c.tree.Wait()
	if err != nil || code > 128 && code <= 128+64 { // as a shell says it
		return -1
	}
	return code
}

func (c confined) ask() { c.tree.Signal(syscall.SIGTERM) }

func (c confined) kill() { c.tree.Kill() }

// around is the environment in which doors out of a tree are looked for: that of
// this account, and what the command's names.
func around(given [][]byte) []string {
	var environ []string
	home := false
	for _, pair := range given {
		home = home || strings.HasPrefix(string(pair), "HOME=")
		environ = append(environ, string(pair))
	}
	if !home {
		environ = append(environ, "HOME="+accountHome())
	}
	return environ
}

// lookPath finds a program in the PATH of an environment.
func lookPath(name string, environ []string, dir string) (string, error) {
	if strings.Contains(name, "/") {
		if !filepath.IsAbs(name) {
			name = filepath.Join(dir, name)
		}
		return name, nil
	}
	for _, pair := range environ {
		list, ok := strings.CutPrefix(pair, "PATH=")
		if !ok {
			continue
		}
		for _, place := range filepath.SplitList(list) {
			if !filepath.IsAbs(place) {
				continue // as os/exec: not from the working directory
			}
			path := filepath.Join(place, name)
			if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0 {
				return path, nil
			}
		}
	}
	return "", fmt.Errorf("starting %s: it is not in the PATH that it was given", name)
}

// wordsOf is an error about a start without the paths of this machine's insides.
func wordsOf(err error) string {
	if errors.Is(err, io.EOF) || errors.Is(err, launch.ErrEnded) {
		return "its first process ended before it was there"
	}
	return err.Error()
}
