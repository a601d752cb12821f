package main

import (
	"context"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"

	"subjectbroker/cmd/sbctl/internal/complete"
	"subjectbroker/cmd/sbctl/internal/ui"
	"subjectbroker/proto/terminal"
)

// prompt reads lines from a person. The terminal is taken over only while a line
// is typed: a command that runs, and what it asks, has it in its usual mode.
type prompt struct {
	tty    *terminal.TTY
	editor *term.Terminal
}

// newPrompt prompts on tty. finish are the candidates for the last of the words of
// an unfinished line.
func newPrompt(tty *terminal.TTY, finish func(words []string) []complete.Candidate) *prompt {
	p := &prompt{tty: tty}
	p.editor = term.NewTerminal(&keyboard{tty: tty}, "sbctl> ")
	p.editor.History = forgetful{}
	p.editor.AutoCompleteCallback = func(line string, pos int, key rune) (string, int, bool) {
		if key != '\t' {
			return "", 0, false
		}
		before, after := line[:pos], line[pos:]
		done, choices := completeLine(before, finish)
		if done == before && len(choices) > 1 {
			_, _ = p.editor.Write([]byte(ui.Safe(strings.Join(choices, "  ")) + "\n"))
		}
		return done + after, len(done), true
	}
	return p
}

// completeLine finishes the last word of a line as far as that is certain, and
// returns what it could become where it is not.
func completeLine(line string, finish func([]string) []complete.Candidate) (done string, choices []string) {
	words := strings.Fields(line)
	if line == "" || strings.HasSuffix(line, " ") {
		words = append(words, "")
	}
	word := words[len(words)-1]
	if words[0] == "sbctl" && len(words) > 1 {
		words = words[1:]
	}
	for _, candidate := range finish(words) {
		choices = append(choices, candidate.Word)
	}
	if len(choices) == 0 {
		return line, nil
	}
	common := choices[0]
	for _, choice := range choices[1:] {
		for !strings.HasPrefix(choice, common) {
			common = common[:len(common)-1]
		}
	}
	if !utf8.ValidString(common) || !strings.HasPrefix(common, word) {
		return line, choices
	}
	if len(choices) == 1 {
		common += " "
	}
	return line[:len(line)-len(word)] + common, choices
}

func (p *prompt) close() { _ = p.tty.Close() }

func (p *prompt) next(ctx context.Context) (string, error) {
	restore, err := p.tty.Raw()
	if err != nil {
		return "", err
	}
	defer restore()
	release, _ := p.tty.Until(ctx)
	defer release()
	_ = p.editor.SetSize(p.tty.Size()) // a person may have changed it since
	line, err := p.editor.ReadLine()
	if err != nil {
		_, _ = p.tty.Write([]byte("\r\n")) // what follows begins on a line of its own
	}
	return line, err
}

// keyboard hands keys over one at a time, so that what is typed ahead of a command
// is still there for what the command asks. An interrupt takes the line back.
type keyboard struct {
	tty  *terminal.TTY
	left []byte
}

// takenBack is what stands for an interrupt: to the end of the line, erase it
// all, and an empty line.
const takenBack = "\x05\x15\r"

func (k *keyboard) Read(keys []byte) (int, error) {
	if len(k.left) == 0 {
		key := make([]byte, 1)
		n, err := k.tty.Read(key)
		if n == 0 || err != nil {
			return 0, err
		}
		k.left = key
		if key[0] == 'C'-'@' {
			k.left = []byte(takenBack)
		}
	}
	n := copy(keys, k.left)
	k.left = k.left[n:]
	return n, nil
}

func (k *keyboard) Write(text []byte) (int, error) { return k.tty.Write(text) }

// forgetful is a history that keeps nothing.
type forgetful struct{}

func (forgetful) Add(string)    {}
func (forgetful) Len() int      { return 0 }
func (forgetful) At(int) string { return "" }
