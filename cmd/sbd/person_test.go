package main

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
)

// descriptor is one that a program opened for sbd, with text in it.
func descriptor(t *testing.T, text string) int {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := w.WriteString(text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	fd, err := syscall.Dup(int(r.Fd())) // stays open when a program is started
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

// One line is a secret, however the program that wrote it ends its lines: sbctl
// sets passphrases in the same way.
func TestSecretFromADescriptor(t *testing.T) {
	for text, want := range map[string]string{
		"two words":                           "two words",
		"two words\n":                         "two words",
		"two words\r\n":                       "two words",
		"two words\nmore\n":                   "two words",
		" two \r words ":                      " two \r words ",
		"":                                    "",
		strings.Repeat("x", maxSecret):        strings.Repeat("x", maxSecret),
		strings.Repeat("y", maxSecret) + "\n": strings.Repeat("y", maxSecret),
	} {
		got, err := readDescriptor(descriptor(t, text))
		if err != nil || string(got) != want {
			t.Errorf("%.20q: %.20q, %v", text, got, err)
		}
		if rest := got[len(got):cap(got)]; strings.Trim(string(rest), "\x00") != "" {
			t.Errorf("%.20q: %.20q is left behind it", text, rest)
		}
	}
	if got, err := readDescriptor(descriptor(t, strings.Repeat("x", maxSecret+1))); err == nil {
		t.Errorf("too long: %.20q", got)
	}
}

// What nobody opened for sbd is no secret: the runtime has files of its own.
func TestDescriptorOfOurOwn(t *testing.T) {
	own, err := os.Open(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	for _, fd := range []int{int(own.Fd()), 9999} {
		if got, err := readDescriptor(fd); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("no descriptor %d was opened for sbd", fd)) {
			t.Errorf("%d: %.20q, %v", fd, got, err)
		}
	}
}
