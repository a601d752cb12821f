package screen

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/term"
)

// What is written to the terminal: the alternate screen, so that nothing of
// what was there before is lost, without a cursor.
const (
	enter = "\x1b[?1049h\x1b[?25l"
	leave = "\x1b[?25h\x1b[?1049l"
	home  = "\x1b[H"
	rest  = "\x1b[K" // clear to the end of the line
	below = "\x1b[J" // clear what is below
)

// Terminal is a terminal that shows a screen and hands over single keys.
type Terminal struct {
	file   *os.File
	before *term.State
	keys   chan Key
}

// Open takes the controlling terminal over. Close gives it back as it was.
func Open() (*Terminal, error) {
	file, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("opening the terminal: %w", err)
	}
	before, err := term.MakeRaw(int(file.Fd()))
	if err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("taking the terminal over: %w", err)
	}
	t := &Terminal{file: file, before: before, keys: make(chan Key)}
	if _, err := file.WriteString(enter); err != nil {
		_ = t.Close()
		return nil, fmt.Errorf("writing to the terminal: %w", err)
	}
	go t.read()
	return t, nil
}

// Close gives the terminal back. A read that waits for a key ends with the process.
func (t *Terminal) Close() error {
	_, _ = t.file.WriteString(leave)
	return term.Restore(int(t.file.Fd()), t.before)
}

// Keys are the keys that are pressed. The channel is closed when the terminal
// goes away.
func (t *Terminal) Keys() <-chan Key { return t.keys }

// Draw shows the model.
func (t *Terminal) Draw(m *Model) error {
	width, height, err := term.GetSize(int(t.file.Fd()))
	if err != nil || width <= 0 || height <= 0 {
		width, height = 80, 24
	}
	var text strings.Builder
	text.WriteString(home)
	for i, line := range m.View(width, height) {
		if i > 0 {
			text.WriteString("\r\n")
		}
		text.WriteString(line + rest)
	}
	text.WriteString(below)
	_, err = t.file.WriteString(text.String())
	return err
}

func (t *Terminal) read() {
	defer close(t.keys)
	buffer := make([]byte, 64)
	for {
		n, err := t.file.Read(buffer)
		if err != nil || n == 0 {
			return
		}
		for _, key := range decode(string(buffer[:n])) {
			t.keys <- key
		}
	}
}

// decode reads keys out of what a terminal in raw mode sent. Sequences that it
// does not know are dropped whole, so that no part of one acts as a key.
func decode(typed string) []Key {
	var keys []Key
	for typed != "" {
		switch {
		case strings.HasPrefix(typed, "\x1b[") || strings.HasPrefix(typed, "\x1bO"):
			end := 2
			for end < len(typed) && (typed[end] < '@' || typed[end] > '~') {
				end++
			}
			if end < len(typed) {
				switch typed[end] {
				case 'A':
					keys = append(keys, Up)
				case 'B':
					keys = append(keys, Down)
				}
				end++
			}
			typed = typed[end:]
			continue
		case typed[0] == '\x1b':
			keys = append(keys, Escape)
		case typed[0] == '\x03':
			keys = append(keys, CtrlC)
		case typed[0] == '\t':
			keys = append(keys, Tab)
		case typed[0] > ' ' && typed[0] < 0x7f:
			keys = append(keys, Key(typed[:1]))
		}
		typed = typed[1:]
	}
	return keys
}
