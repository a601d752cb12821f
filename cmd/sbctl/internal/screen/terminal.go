package screen

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"subjectbroker/proto/terminal"
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
	tty     *terminal.TTY
	restore func()
	keys    chan Key
	stop    context.CancelFunc
}

// Open takes the controlling terminal over. Close gives it back as it was.
func Open() (*Terminal, error) {
	tty, err := terminal.Open()
	if err != nil {
		return nil, fmt.Errorf("opening the terminal: %w", err)
	}
	restore, err := tty.Raw()
	if err != nil {
		_ = tty.Close()
		return nil, fmt.Errorf("taking the terminal over: %w", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	t := &Terminal{tty: tty, restore: restore, keys: make(chan Key), stop: stop}
	if _, err := io.WriteString(tty, enter); err != nil {
		stop()
		restore()
		_ = tty.Close()
		return nil, fmt.Errorf("writing to the terminal: %w", err)
	}
	release, ends := tty.Until(ctx)
	go func() {
		defer close(t.keys)
		defer release()
		t.read(ctx)
	}()
	if !ends { // then nobody waits for the reader either
		t.stop = func() {
			stop()
			go func() {
				for range t.keys {
				}
			}()
		}
		return t, nil
	}
	t.stop = func() {
		stop()
		for range t.keys { // until the reader has let go of the terminal
		}
	}
	return t, nil
}

// Close gives the terminal back. From then on no key is read; where a read of a
// terminal cannot be ended, one that waits ends with the process.
func (t *Terminal) Close() error {
	t.stop()
	_, err := io.WriteString(t.tty, leave)
	t.restore()
	return errors.Join(err, t.tty.Close())
}

// Keys are the keys that are pressed. The channel is closed when the terminal
// goes away.
func (t *Terminal) Keys() <-chan Key { return t.keys }

// Draw shows the model.
func (t *Terminal) Draw(m *Model) error {
	width, height := t.tty.Size()
	var text strings.Builder
	text.WriteString(home)
	for i, line := range m.View(width, height) {
		if i > 0 {
			text.WriteString("\r\n")
		}
		text.WriteString(line + rest)
	}
	text.WriteString(below)
	_, err := io.WriteString(t.tty, text.String())
	return err
}

// read hands keys over until ctx ends or the terminal goes away.
func (t *Terminal) read(ctx context.Context) {
	buffer := make([]byte, 64)
	for {
		n, err := t.tty.Read(buffer)
		if err != nil || n == 0 {
			return
		}
		for _, key := range decode(string(buffer[:n])) {
			select {
			case t.keys <- key:
			case <-ctx.Done():
				return
			}
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
