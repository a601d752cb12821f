package terminal_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"testing"

	"subjectbroker/proto/terminal"
	"subjectbroker/proto/terminal/terminaltest"
)

// asks is set for a process that asks on its terminal what its value says.
const asks = "TERMINAL_TEST_ASKS"

func TestMain(m *testing.M) {
	if question := os.Getenv(asks); question != "" {
		os.Exit(ask(strings.Split(question, ",")))
	}
	os.Exit(m.Run())
}

// ask asks each question with a context that an interrupt ends, and says what
// was answered. After an interrupted one it goes on with the next.
func ask(questions []string) int {
	tty, err := terminal.Open()
	if err != nil {
		fmt.Println(err)
		return 1
	}
	for _, question := range questions {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
		var answer any
		if question == "sure" {
			answer, err = tty.Confirm(ctx, question)
		} else {
			answer, err = tty.ReadSecret(ctx, question)
		}
		switch {
		case errors.Is(err, context.Canceled):
			answer = "interrupted"
		case errors.Is(err, io.EOF):
			answer = "nothing"
		case errors.Is(err, terminal.ErrTooLong):
			answer = "too long"
		case err != nil:
			answer = err
		}
		fmt.Printf("<%s is %v>\n", question, printable(answer))
		stop()
	}
	return 0
}

func printable(answer any) any {
	if typed, ok := answer.([]byte); ok {
		return fmt.Sprintf("%q", typed)
	}
	return answer
}

func start(t *testing.T, questions string) *terminaltest.Program {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), asks+"="+questions)
	return terminaltest.Start(t, cmd)
}

func TestKeysOfASecret(t *testing.T) {
	tests := []struct{ name, typed, want string }{
		{"enter", "hunter2\r", `"hunter2"`},
		{"newline", "hunter2\n", `"hunter2"`},
		{"erase", "hunter3\x7f2\r", `"hunter2"`},
		{"the other erase", "hunter3\b2\r", `"hunter2"`},
		{"erase a letter of two bytes", "hä\x7fo\r", `"ho"`},
		{"erase nothing", "\x7f\x7fa\r", `"a"`},
		{"kill the line", "wrong\x15right\r", `"right"`},
		{"end of input after something", "abc\x04", `"abc"`},
		{"end of input", "\x04", `nothing`},
		{"an empty line", "\r", `""`},
		{"interrupt", "half\x03", `interrupted`},
		{"the longest", strings.Repeat("x", 4093) + "\r", `"` + strings.Repeat("x", 4093) + `"`},
		{"too long", strings.Repeat("x", 5000) + "\r", `too long`},
	}
	p := start(t, strings.TrimSuffix(strings.Repeat("word,", len(tests)), ","))
	for _, test := range tests {
		p.Expect(`word: `)
		p.Type(test.typed)
		p.Expect(`<word is `)
		if got := p.Expect(`[^>]*>`); strings.ReplaceAll(got, "\r\n", "") != test.want+">" {
			t.Errorf("%s: got %.80s, want %.80s", test.name, got, test.want)
		}
	}
	if code := p.Wait(); code != 0 {
		t.Errorf("exit %d", code)
	}
}

// Who is asked can go back to the shell meanwhile, and is asked again.
func TestSuspendedQuestion(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", "-i")
	cmd.Env = append(os.Environ(), asks+"=word,next", "PS1=shell> ", "ENV=", "SELF="+self)
	p := terminaltest.Start(t, cmd)
	p.Expect(`shell> `)
	p.Type("$SELF\n")
	for range 2 {
		p.Expect(`word: `)
		p.Type("half\x1a")
		p.Expect(`shell> `)
		if !p.Cooked() {
			t.Error("the terminal was not given back")
		}
		p.Type("fg\n")
	}
	p.Expect(`word: `)
	p.Type("whole\r")
	p.Expect(`<word is "whole">`)
	p.Expect(`next: `)
	p.Type("more\r")
	p.Expect(`<next is "more">`)
	p.Expect(`shell> `)
	p.Type("exit\n")
	if strings.Contains(p.Shown(), "half") {
		t.Error("what was typed is shown")
	}
}

// What is typed is never shown, the terminal is given back, and a question that
// was interrupted takes nothing of what is typed for the next.
func TestInterruptedQuestionReadsNoMore(t *testing.T) {
	p := start(t, "first,sure,second")
	p.Expect(`first: `)
	if p.Cooked() {
		t.Error("a secret is asked for in a mode that shows it")
	}
	p.Type("half\x03")
	p.Expect(`<first is interrupted>`)
	p.Expect(`sure \[y/N\] `)
	if !p.Cooked() {
		t.Error("the terminal was not given back")
	}
	p.Type("\x03")
	p.Expect(`<sure is interrupted>`)
	p.Expect(`second: `)
	p.Type("whole\r")
	p.Expect(`<second is "whole">`)
	if code := p.Wait(); code != 0 {
		t.Errorf("exit %d", code)
	}
	if strings.Contains(p.Shown(), "half") {
		t.Errorf("what was typed was shown:\n%s", p.Shown())
	}
}
