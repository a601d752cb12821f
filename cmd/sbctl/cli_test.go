package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/alecthomas/kong"

	"subjectbroker/cmd/sbctl/internal/manual"
	"subjectbroker/cmd/sbctl/internal/ui"
	"subjectbroker/proto/wire"
)

func parser(t *testing.T) *kong.Kong {
	t.Helper()
	p, err := newParser(&app{stdout: io.Discard, stderr: io.Discard}, &grammar{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func each(node *kong.Node, visit func(*kong.Node)) {
	for _, child := range manual.Commands(node) {
		visit(child)
		each(child, visit)
	}
}

// Every command can be looked up, and what its manual shows can be typed.
func TestManuals(t *testing.T) {
	p := parser(t)
	example := regexp.MustCompile(`(?m)^  (?:.*\| )?(sbctl .*)$`)
	each(p.Model.Node, func(node *kong.Node) {
		name := strings.Join(manual.Path(node), " ")
		if node.Help == "" || node.Detail == "" {
			t.Errorf("%s has no manual", name)
		}
		for _, argument := range node.Positional {
			if argument.Help == "" {
				t.Errorf("%s: argument %s has no help", name, argument.Name)
			}
		}
		for _, flag := range node.Flags {
			if flag.Help == "" {
				t.Errorf("%s: --%s has no help", name, flag.Name)
			}
		}
		for line := range strings.Lines(node.Detail) {
			if length := utf8.RuneCountInString(line) - 1; length > 86 {
				t.Errorf("%s has a line of %d columns: %s", name, length, line)
			}
		}
		found := example.FindAllStringSubmatch(node.Detail, -1)
		if len(node.Children) == 0 && len(found) == 0 {
			t.Errorf("%s has no example", name)
		}
		for _, line := range found {
			words := shellWords(line[1])
			if _, err := parser(t).Parse(words[1:]); err != nil {
				t.Errorf("%s shows %q: %v", name, line[1], err)
			}
		}
	})
}

// A hint names a command that exists in this build.
func TestHintsExist(t *testing.T) {
	reasons := []wire.Reason{
		wire.BrokerUnavailable, wire.VaultLocked, wire.AuditFailed, wire.IntegrityFailed, wire.PolicyUnavailable,
		wire.KeyUnavailable, wire.WrongKey, wire.KeyFileUnsafe, wire.SocketUnsafe, wire.HomeUnsafe, wire.ResourceChanged,
	}
	refused := wire.Deny(wire.AccessDenied)
	refused.Cause = string(causeOperatorRefused)
	hints := map[wire.Reason]string{"OPERATOR_REFUSED": hintFor(refused)}
	for _, reason := range reasons {
		hint := hintFor(wire.Deny(reason))
		if hint == "" {
			hint = hintFor(&wire.Error{Reason: reason})
		}
		hints[reason] = hint
	}
	for reason, hint := range hints {
		words, ok := strings.CutPrefix(hint, "sbctl ")
		if !ok {
			t.Errorf("%s: hint %q", reason, hint)
			continue
		}
		if _, err := parser(t).Parse(strings.Fields(words)); err != nil {
			t.Errorf("%s: hint %q: %v", reason, hint, err)
		}
	}
}

// A mistake is one line for a person and one object for a program, exit 2.
func TestUsageErrors(t *testing.T) {
	for _, args := range []string{
		"", "frobnicate", "secret put", "secret put a b", "secret get a --version x", "grant", "grant a", "status x", "--frob status",
		"apply", "runs end", "audit export", "completion", "subject set a", "subject", "secret", "resource frob",
	} {
		if args == "subject" || args == "secret" {
			continue // these list
		}
		var stdout, stderr bytes.Buffer
		code := run(context.Background(), strings.Fields(args), strings.NewReader(""), &stdout, &stderr)
		if code != wire.ExitUsage || stdout.Len() > 0 || !strings.HasPrefix(stderr.String(), "sbctl: ") {
			t.Errorf("sbctl %s: exit %d\n%s%s", args, code, stdout.String(), stderr.String())
		}
		if lines := strings.Count(stderr.String(), "\n"); lines != 2 || !strings.Contains(stderr.String(), "\nhint: sbctl") {
			t.Errorf("sbctl %s: not one line and a hint:\n%s", args, stderr.String())
		}
	}
}

func TestOutputOf(t *testing.T) {
	for args, want := range map[string]ui.Format{
		"":                       ui.Table,
		"-o json frob":           ui.JSON,
		"frob -ojson":            ui.JSON,
		"--output json":          ui.JSON,
		"--output=json":          ui.JSON,
		"-o table":               ui.Table,
		"-o":                     ui.Table,
		"get -- -o json":         ui.Table,
		"secret get json":        ui.Table,
		"--output=table -o json": ui.JSON,
	} {
		if got := outputOf(strings.Fields(args)); got != want {
			t.Errorf("%q: %s, want %s", args, got, want)
		}
	}
}

func TestShellQuote(t *testing.T) {
	for word, want := range map[string]string{
		"":           "''",
		"read:x-1.2": "read:x-1.2",
		"docs.*":     "'docs.*'",
		"it's":       `'it'\''s'`,
		"a b":        "'a b'",
		"$(rm)":      "'$(rm)'",
	} {
		if got := shellQuote(word); got != want {
			t.Errorf("%q is quoted as %s, want %s", word, got, want)
		}
	}
}

// shellWords splits an example as a shell would, up to where it is redirected.
func shellWords(line string) []string {
	var words []string
	var word strings.Builder
	var quote rune
	started := false
	flush := func() {
		if started {
			words = append(words, word.String())
		}
		word.Reset()
		started = false
	}
	for _, r := range line {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(r)
		case r == '\'' || r == '"':
			quote, started = r, true
		case r == ' ':
			flush()
		case r == '|' || r == '>' || r == '<' || r == ')':
			flush()
			return words
		default:
			word.WriteRune(r)
			started = true
		}
	}
	flush()
	return words
}

// Every command that is named in the source as a hint or a fix can be typed.
func TestNamedHintsParse(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile(`(?:hint: |hint = |withHint\(|return |Fix: |, )"(sbctl [^"]*)"`)
	found := 0
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range named.FindAllStringSubmatch(string(source), -1) {
			if strings.HasSuffix(match[1], "--help") || strings.HasPrefix(match[1], "sbctl and") || strings.HasPrefix(match[1], "sbctl %s (") || match[1] == "sbctl " {
				continue // needs no test, or is no command
			}
			found++
			for _, kind := range []string{"passphrase", "show"} { // what a verb may stand for
				words := strings.Fields(strings.ReplaceAll(match[1], "%s", kind))
				if _, err = parser(t).Parse(words[1:]); err == nil {
					break
				}
			}
			if err != nil {
				t.Errorf("%s names %q: %v", file, match[1], err)
			}
		}
	}
	if found < 20 {
		t.Errorf("only %d hints found", found)
	}
}

// A hint says which broker is meant, once, when an option said it.
func TestLocated(t *testing.T) {
	for _, test := range []struct{ home, socket, hint, want string }{
		{"", "", "sbctl unlock", "sbctl unlock"},
		{"/a b", "", "sbctl unlock", "sbctl unlock --home '/a b'"},
		{"/h", "/s", "sbctl unlock", "sbctl unlock --home /h --socket /s"},
		{"/h", "/s", "sbd", "sbd --home /h --socket-dir /s"},
		{"/h", "", "sbctl grant --home /h worker x", "sbctl grant --home /h worker x"},
		{"/h", "", "sbctl audit verify --help", "sbctl audit verify --help"},
		{"/h", "", "sbctl run --subject s -- CMD --home /x", "sbctl run --subject s --home /h -- CMD --home /x"},
		{"/h", "", "chmod 700 /h", "chmod 700 /h"},
		{"/h", "", "", ""},
	} {
		a := &app{opts: globals{Home: test.home, Socket: test.socket}}
		if got := a.located(test.hint); got != test.want {
			t.Errorf("%q at %q, %q: %q, want %q", test.hint, test.home, test.socket, got, test.want)
		}
	}
}
