// Testreport reads the events of `go test -json` on stdin and prints what a
// person wants to see of a run: the output of what failed, the line go test
// prints for each package, and, last, one line for each suite that was left out.
//
// A test that needs something this machine lacks calls
//
//	t.Skip("suite left out: NAME: why")
//
// and is reported by that name. With TEST_ALL=1 a suite left out is a failure,
// and so is a test or a part of one skipped without such a message: where
// everything is meant to run, nothing may pass by not running. Some steps of
// tests need root and are passed over silently without it, so TEST_ALL=1 is
// refused to anybody else.
//
// A line that begins with "figure: " is a result that a person wants to see of a
// test that passed too. It stands before its package's line.
//
// It does not decide which tests run, and trusts the events it is given: a
// stream without a single package is a failure.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// prefix begins the message of a test that leaves a suite out.
const prefix = "suite left out: "

// figure begins a line that is shown in any case.
const figure = "figure: "

func main() {
	all := os.Getenv("TEST_ALL") == "1"
	if all && os.Geteuid() != 0 {
		fmt.Println("testreport: TEST_ALL=1 needs root")
		os.Exit(1)
	}
	os.Exit(run(os.Stdin, os.Stdout, all))
}

// event is one line of `go test -json`, as `go doc test2json` describes it.
type event struct {
	Action      string
	Package     string
	ImportPath  string // of build-output and build-fail events
	Test        string
	Output      string
	FailedBuild string
}

// key names the thing whose output is collected: a build, a package or a test.
type key struct{ pkg, test string }

type report struct {
	out      io.Writer
	output   map[key][]string // lines of what has not ended yet
	packages int
	failed   []string
	leftOut  map[string]int      // "NAME: why" → number of tests
	skipped  []string            // tests skipped without the prefix
	figures  map[string][]string // lines of a package that has not ended yet
}

// run returns the exit code: 1 when a test or a build failed, when nothing ran
// or, with all set, when anything was left out.
func run(in io.Reader, out io.Writer, all bool) int {
	r := &report{out: out, output: map[key][]string{}, leftOut: map[string]int{}, figures: map[string][]string{}}
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			fmt.Fprintln(out, lines.Text()) // go's own words, such as a module error
			continue
		}
		r.add(e)
	}
	if err := lines.Err(); err != nil {
		fmt.Fprintf(out, "testreport: reading events: %v\n", err)
		return 1
	}
	return r.close(all)
}

func (r *report) add(e event) {
	k := key{e.Package, e.Test}
	switch e.Action {
	case "build-output":
		k = key{pkg: e.ImportPath}
		fallthrough
	case "output":
		r.output[k] = append(r.output[k], e.Output)
		if _, said, found := strings.Cut(e.Output, figure); found {
			r.figures[e.Package] = append(r.figures[e.Package], figure+said)
		}
	case "build-fail":
		r.flush(key{pkg: e.ImportPath})
	case "skip":
		if e.Test == "" { // a package without test files
			delete(r.output, k)
			return
		}
		r.skip(k)
	case "pass", "fail":
		r.end(k, e.Action == "fail")
	}
}

// skip records why a test did not run.
func (r *report) skip(k key) {
	reported := false
	for _, line := range r.output[k] {
		if _, why, found := strings.Cut(line, prefix); found {
			r.leftOut[strings.TrimSpace(why)]++
			reported = true
		}
	}
	if !reported {
		r.skipped = append(r.skipped, k.pkg+"."+k.test)
	}
	delete(r.output, k)
}

// end prints what a failed test wrote, or the closing line of a package.
func (r *report) end(k key, failed bool) {
	if k.test == "" {
		for _, line := range r.figures[k.pkg] {
			fmt.Fprint(r.out, line)
		}
		delete(r.figures, k.pkg)
	}
	switch {
	case k.test != "" && failed:
		r.failed = append(r.failed, k.pkg+"."+k.test)
		r.flush(k)
	case k.test == "" && failed:
		r.packages++
		r.failed = append(r.failed, k.pkg)
		r.flush(k)
	case k.test == "":
		r.packages++
		if lines := r.output[k]; len(lines) > 0 {
			fmt.Fprint(r.out, lines[len(lines)-1])
		}
	}
	delete(r.output, k)
}

func (r *report) flush(k key) {
	for _, line := range r.output[k] {
		fmt.Fprint(r.out, line)
	}
	delete(r.output, k)
}

// close prints what was left out and returns the exit code.
func (r *report) close(all bool) int {
	for k := range r.output { // a test that was cut off, such as by a panic
		r.flush(k)
	}
	code := 0
	if len(r.failed) > 0 {
		fmt.Fprintf(r.out, "\nfailed: %s\n", strings.Join(r.failed, " "))
		code = 1
	}
	if r.packages == 0 {
		fmt.Fprintln(r.out, "testreport: no package was tested")
		code = 1
	}
	for _, name := range r.skipped {
		r.leftOut[name+": skipped"]++
	}
	whys := make([]string, 0, len(r.leftOut))
	for why := range r.leftOut {
		whys = append(whys, why)
	}
	slices.Sort(whys)
	for _, why := range whys {
		fmt.Fprintf(r.out, "left out: %s (tests: %d)\n", why, r.leftOut[why])
	}
	if all && len(whys) > 0 {
		fmt.Fprintln(r.out, "TEST_ALL=1: leaving a suite out is a failure")
		code = 1
	}
	return code
}
