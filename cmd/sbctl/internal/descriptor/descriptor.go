// Package descriptor writes what an MCP server says of its tools so that a person
// can read it before trusting it, and shows what is different from before.
//
// It protects the reader from text that is there and not seen: characters that do
// not show are written out, long texts are broken into lines, runs of the same line
// are counted and not repeated. It changes nothing and judges nothing.
package descriptor

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"subjectbroker/cmd/sbctl/internal/ui"
)

// Width is how many columns a line of text takes at most, indentation included,
// where it can be broken.
const Width = 88

// mostDepth is how deep values are indented; what is deeper stands as it came.
const mostDepth = 64

// Lines writes a tool's object, or any other JSON value, one member a line. What is
// no JSON, such as the instructions of a server, is written as text.
func Lines(text []byte) []string {
	if len(text) == 0 {
		return nil
	}
	w := &writer{}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	err := w.value(dec, "", "", 0)
	if err == nil {
		if _, err = dec.Token(); errors.Is(err, io.EOF) {
			return gathered(w.lines)
		}
	}
	w = &writer{}
	w.block(string(text), "")
	return gathered(w.lines)
}

// Text is every text in a JSON value, keys included, for what looks at characters;
// what is no JSON is itself.
func Text(text []byte) string {
	var all strings.Builder
	dec := json.NewDecoder(bytes.NewReader(text))
	for {
		token, err := dec.Token()
		if errors.Is(err, io.EOF) {
			return all.String()
		}
		if err != nil {
			return string(text)
		}
		if s, ok := token.(string); ok {
			all.WriteString(s)
		}
	}
}

type writer struct{ lines []string }

func (w *writer) add(line string) { w.lines = append(w.lines, line) }

// value writes the next value of dec. before stands in front of its first line.
func (w *writer) value(dec *json.Decoder, indent, before string, depth int) error {
	token, err := dec.Token()
	if err != nil {
		return err
	}
	delim, container := token.(json.Delim)
	if !container {
		w.scalar(token, indent, before)
		return nil
	}
	if depth >= mostDepth {
		return fmt.Errorf("it is nested deeper than %d levels", mostDepth)
	}
	if !dec.More() {
		if _, err := dec.Token(); err != nil {
			return err
		}
		w.add(indent + before + delim.String() + closing(delim))
		return nil
	}
	first := len(w.lines)
	w.add(indent + before + delim.String())
	inner := indent + "  "
	for dec.More() {
		key := ""
		if delim == '{' {
			token, err := dec.Token()
			if err != nil {
				return err
			}
			name, _ := token.(string)
			key = quoted(name) + ": "
		}
		if err := w.value(dec, inner, key, depth+1); err != nil {
			return err
		}
	}
	if _, err := dec.Token(); err != nil {
		return err
	}
	w.add(indent + closing(delim))
	w.join(first, delim, indent+before)
	return nil
}

// join puts a list of short values on one line.
func (w *writer) join(first int, delim json.Delim, before string) {
	inner := w.lines[first+1 : len(w.lines)-1]
	length := utf8.RuneCountInString(before) + 2
	for _, line := range inner {
		line = strings.TrimSpace(line)
		length += utf8.RuneCountInString(line) + 2
		if delim != '[' || strings.HasPrefix(line, "{") || strings.HasPrefix(line, "[") || strings.HasPrefix(line, "|") || length > Width {
			return
		}
	}
	var words []string
	for _, line := range inner {
		words = append(words, strings.TrimSpace(line))
	}
	w.lines = append(w.lines[:first], before+"["+strings.Join(words, ", ")+"]")
}

func closing(delim json.Delim) string {
	if delim == '{' {
		return "}"
	}
	return "]"
}

func (w *writer) scalar(token json.Token, indent, before string) {
	text, isText := token.(string)
	if !isText {
		word := "null"
		if token != nil {
			word = fmt.Sprint(token)
		}
		w.add(indent + before + word)
		return
	}
	line := indent + before + quoted(text)
	if utf8.RuneCountInString(line) <= Width && !strings.Contains(text, "\n") {
		w.add(line)
		return
	}
	w.add(indent + strings.TrimSuffix(before, " "))
	w.block(text, indent+"  ")
}

var escapes = strings.NewReplacer(`\`, `\\`)

// quoted is text between quotes, on one line.
func quoted(text string) string {
	return `"` + strings.ReplaceAll(ui.Safe(escapes.Replace(text)), `"`, `\"`) + `"`
}

// block writes a long text, broken into lines.
func (w *writer) block(text, indent string) {
	bar := indent + "| "
	room := max(Width-utf8.RuneCountInString(bar), 20)
	for line := range strings.Lines(text) {
		body, ended := strings.CutSuffix(line, "\n")
		shown := ui.Safe(escapes.Replace(body))
		if ended {
			shown += `\n`
		}
		for _, part := range broken(shown, room) {
			w.add(bar + part)
		}
	}
}

// broken is a line in parts of at most room columns, after a space where there is one.
func broken(line string, room int) []string {
	var parts []string
	runes := []rune(line)
	for len(runes) > room {
		cut := room
		for i := room; i > room/2; i-- {
			if runes[i-1] == ' ' {
				cut = i
				break
			}
		}
		parts = append(parts, strings.TrimRight(string(runes[:cut]), " "))
		runes = runes[cut:]
	}
	return append(parts, string(runes))
}

// mostSame is how often a line is shown in a row.
const mostSame = 3

// gathered counts lines that repeat, so that nothing is pushed out of sight by them.
func gathered(lines []string) []string {
	var all []string
	for i := 0; i < len(lines); {
		end := i + 1
		for end < len(lines) && lines[end] == lines[i] {
			end++
		}
		if n := end - i; n > mostSame {
			all = append(all, lines[i], fmt.Sprintf("%s  … the same line %d times more", indentOf(lines[i]), n-1))
		} else {
			all = append(all, lines[i:end]...)
		}
		i = end
	}
	return all
}

func indentOf(line string) string { return line[:len(line)-len(strings.TrimLeft(line, " "))] }
