package main

import (
	"bytes"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"subjectbroker/daemon/daemontest"
)

// roundsDenied is how often one program is given what is denied: a process that is
// denied more often is kept waiting.
const roundsDenied = 15

// cut gives the input of a case again and again, cut in two at another byte each
// time.
func (c policyCase) cut(t *testing.T, d *daemontest.Daemon, subject string, args []string) {
	t.Helper()
	input := c.input()
	if !bytes.HasSuffix(input, []byte("\n")) { // or the next round would go on with the line
		input = append(input, '\n')
	}
	rounds := len(input)
	if slices.ContainsFunc(c.Client, func(want []any) bool { return want[1] == -32000.0 }) {
		rounds = roundsDenied
	}
	for from := 1; from < len(input) && !t.Failed(); from += rounds {
		c.cutAt(t, d, subject, args, input, from, min(from+rounds, len(input)))
	}
}

// cutAt gives the input to one program, cut at each place from from to before to.
// The program's input keeps the pieces apart: one write is one read.
func (c policyCase) cutAt(t *testing.T, d *daemontest.Daemon, subject string, args []string, input []byte, from, to int) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	w := newWrapped(t, d, subject, args, c.Env)
	theirs, ours := os.NewFile(uintptr(pair[0]), "in"), os.NewFile(uintptr(pair[1]), "out")
	defer ours.Close()
	w.command.Stdin = theirs
	w.start()
	theirs.Close()
	for at := from; at < to; at++ {
		for _, piece := range [][]byte{input[:at], input[at:]} {
			if _, err := ours.Write(piece); err != nil {
				t.Fatal(err)
			}
		}
		var answers []answer
		for range c.Client {
			line, err := w.out.ReadString('\n')
			if err != nil {
				t.Fatalf("cut at %d: %v, %s", at, err, w.stderr.String())
			}
			answers = append(answers, parseAnswer(t, line))
		}
		c.compare(t, answers)
		if t.Failed() {
			t.Fatalf("cut at %d", at)
		}
	}
	ours.Close()
	if rest := w.readAll(); rest != "" {
		t.Errorf("the rest is %s", rest)
	}
	if err := w.command.Wait(); err != nil {
		t.Errorf("exit: %v, %s", err, w.stderr.String())
	}
	if saw, want := len(w.serverSaw()), len(c.Server)*(to-from); saw != want {
		t.Errorf("the server saw %d messages, want %d", saw, want)
	}
}
