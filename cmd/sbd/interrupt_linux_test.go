package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// openPTY is a terminal: what is written to keyboard is pressed at it.
func openPTY(t *testing.T) (keyboard, terminal *os.File) {
	t.Helper()
	keyboard, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { keyboard.Close() })
	if err := unix.IoctlSetPointerInt(int(keyboard.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(keyboard.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	return keyboard, terminal
}

// Ctrl-C ends a question.
func TestInterruptedQuestion(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	keyboard, terminal := openPTY(t)
	var said bytes.Buffer
	cmd := exec.Command(self)
	cmd.Args, cmd.Env = []string{"sbd", "forget", "--home", t.TempDir()}, []string{"HOME=/", "PATH="}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = terminal, io.Discard, &said
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	terminal.Close()
	late := time.AfterFunc(30*time.Second, func() { _ = cmd.Process.Kill() })
	seen := make([]byte, 0, 1024)
	for !strings.Contains(string(seen), "Go on? [y/N]") {
		n, err := keyboard.Read(seen[len(seen):cap(seen)])
		if seen = seen[:len(seen)+n]; err != nil {
			break // it has ended
		}
	}
	_, _ = keyboard.Write([]byte{3})
	_ = cmd.Wait()
	if !late.Stop() || cmd.ProcessState.ExitCode() != 1 || said.String() != "sbd: interrupted\n" {
		t.Errorf("%v, said %q after %q", cmd.ProcessState, said.String(), seen)
	}
}
