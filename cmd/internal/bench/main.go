// Bench measures the product with its real programs and prints each figure
// beside the limit that the machine sets to it in the same run.
//
//	make bench            everything
//	make bench BENCH=-quick          the same in well under a minute, less exact
//	make bench BENCH='-only shim'    figures whose name contains a word
//	make bench BENCH='-only tools -server "node FILE stdio" -tool echo -arguments {\"message\":\"x\"}'
//	                                 calls of a real MCP server instead of our own
//
// A figure is a ratio: value over limit. The limit is what cannot be left out:
// appending a line and waiting for the disk, an empty call over the same kind
// of socket to another process, a pipe there and back, hashing the same bytes.
// Value and limit are measured in turns, so that a machine that is busy, or
// faster tomorrow, changes both. Absolute times are printed and promise nothing.
//
// It exits 0 when everything was measured, whether or not each figure holds;
// -strict makes a figure that does not hold exit 1.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// Hidden first arguments: this program as one of its own limits, or as a client.
const (
	asEmptyServer = "empty-server"
	asDisk        = "disk-server"
	asEcho        = "echo"
	asClient      = "client"
	asTools       = "tool-server"
	asHopsJudge   = "hops-judge"
	asHopsWrapper = "hops-wrapper"
	asEmptyHTTP   = "empty-http"
)

func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	var err error
	switch {
	case len(args) == 2 && args[0] == asEmptyServer:
		err = emptyServer(args[1], stdin)
	case len(args) == 4 && args[0] == asDisk:
		err = diskServer(args[1], args[2], args[3], stdin)
	case len(args) == 1 && args[0] == asEcho:
		err = echoServer(stdin, stdout)
	case len(args) == 2 && args[0] == asClient:
		err = clientServer(ctx, args[1], stdin, stdout)
	case len(args) == 1 && args[0] == asTools:
		err = toolServer(stdin, stdout)
	case len(args) == 1 && args[0] == asEmptyHTTP:
		err = emptyHTTPServer(ctx, stdin, stdout)
	case len(args) == 2 && args[0] == asHopsJudge:
		err = hopsJudge(args[1], stdin)
	case len(args) > 2 && args[0] == asHopsWrapper:
		err = hopsWrapper(ctx, args[1], args[2:], stdin, stdout)
	default:
		return bench(ctx, args, stdout, stderr)
	}
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	return 0
}

func bench(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	quick := flags.Bool("quick", false, "fewer rounds and smaller sizes")
	strict := flags.Bool("strict", false, "exit 1 when a figure does not hold")
	only := flags.String("only", "", "measure groups whose name contains this `word`")
	bin := flags.String("bin", "bin", "`directory` of the three programs")
	var real served
	flags.Func("server", "in group tools, call this `command` instead of our own server: its words, separated by blanks", func(words string) error {
		real.command = strings.Fields(words)
		return nil
	})
	flags.StringVar(&real.tool, "tool", "", "`name` of its tool that is called")
	flags.StringVar(&real.arguments, "arguments", "{}", "`JSON` of the arguments")
	dir := flags.String("dir", "", "`directory` for homes and logs, on the disk to be measured (default: the system's)")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	b, err := newBench(*bin, *dir, *quick)
	if err != nil {
		fmt.Fprintln(stderr, "bench:", err)
		return 1
	}
	defer os.RemoveAll(b.dir)
	b.real = realTools()
	if b.served = ourTools(b.self); len(real.command) > 0 {
		real.shows = `"result"`
		b.served = real
	}
	fmt.Fprintf(stdout, "%s/%s, %d processors, %s\n", runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version())
	code := 0
	for _, group := range groups {
		if !strings.Contains(group.name, *only) {
			continue
		}
		fmt.Fprintf(stdout, "\n%s\n", group.name)
		figures, err := group.measure(ctx, b)
		for _, figure := range figures {
			figure.write(stdout)
			if *strict && !figure.holds() {
				code = 1
			}
		}
		if err != nil {
			fmt.Fprintf(stderr, "bench: %s: %v\n", group.name, err)
			code = 1
		}
	}
	return code
}

// groups are the figures, by what they need to be set up.
var groups = []struct {
	name    string
	measure func(context.Context, *settings) ([]figure, error)
}{
	{"decision", measureDecision},
	{"acquire and shim", measureAcquire},
	{"many clients", measureCrowd},
	{"many resources", measureScale},
	{"cold start and memory", measureStart},
	{"audit verify", measureVerify},
	{"keys and checkpoints", measureKeys},
	{"launch", measureLaunch},
	{"memory", measureMemory},
	{"gateway", measureGateway},
	{"tools", measureTools},
}

// settings are where and how much to measure.
type settings struct {
	bin    string // directory of the three programs
	dir    string // temporary, removed at the end
	self   string // this program, for its hidden modes
	quick  bool
	served served // what is called in the group tools
	real   served // a real server that is called there, too; no command: there is none
}

func newBench(bin, dir string, quick bool) (*settings, error) {
	bin, err := filepath.Abs(bin)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(filepath.Join(bin, "sbd")); err != nil {
		return nil, errors.New("the three programs are not built: make build")
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	dir, err = os.MkdirTemp(dir, "sb-bench-")
	return &settings{bin: bin, dir: dir, self: self, quick: quick}, err
}

// pick chooses between the full and the quick size of something.
func (s *settings) pick(full, quick int) int {
	if s.quick {
		return quick
	}
	return full
}
