package main

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

var handed = cmp.AllowUnexported(handedOver{})

func TestEnvPairs(t *testing.T) {
	for _, test := range []struct {
		pair string
		want handedOver
		err  string
	}{
		{"API_KEY=api.key", handedOver{"API_KEY", "api.key"}, ""},
		{"_x=sb://api.key", handedOver{"_x", "api.key"}, ""},
		{"API_KEY", handedOver{}, "NAME=RESOURCE"},
		{"=api.key", handedOver{}, "no name of a variable"},
		{"1X=api.key", handedOver{}, "no name of a variable"},
		{"A B=api.key", handedOver{}, "no name of a variable"},
		{"API_KEY=", handedOver{}, "no name of a resource"},
		{"API_KEY=sk live", handedOver{}, "never written here"},
		{"API_KEY=a/b", handedOver{}, "no name of a resource"},
		{"API_KEY=" + strings.Repeat("a", 129), handedOver{}, "no name of a resource"},
		{"PATH=api.key", handedOver{}, "set by the launch itself"},
		{"SB_HOME=api.key", handedOver{}, "set by the launch itself"},
		{"LD_PRELOAD=api.key", handedOver{}, "kept out of a launch"},
		{"GODEBUG=api.key", handedOver{}, "kept out of a launch"},
	} {
		got, err := envPairs([]string{test.pair})
		if test.err != "" {
			if err == nil || !strings.Contains(err.Error(), test.err) {
				t.Errorf("%s: %v, want %q", test.pair, err, test.err)
			}
			continue
		}
		if diff := cmp.Diff([]handedOver{test.want}, got, handed); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got)\n%s", test.pair, err, diff)
		}
	}
}

// A secret that was written where its name belongs is not repeated on a screen
// that an agent may read.
func TestEnvErrorsDoNotRepeatValues(t *testing.T) {
	const secret = "sk-live/0123"
	_, inPair := envPairs([]string{"API_KEY=" + secret})
	_, alone := envPairs([]string{secret})
	_, inFile := parseEnvFile([]byte("API_KEY=" + secret + "\n"))
	_, asLine := parseEnvFile([]byte(secret + "\n"))
	_, asName := parseEnvFile([]byte("A=sb://" + secret + "\n"))
	for _, err := range []error{inPair, alone, inFile, asLine, asName} {
		if err == nil || strings.Contains(err.Error(), "0123") {
			t.Errorf("it says %v", err)
		}
	}
}

func TestEnvFile(t *testing.T) {
	for _, test := range []struct {
		name, text string
		want       []handedOver
		err        string
	}{
		{"empty", "", nil, ""},
		{"comments and blank lines", "# a\n\n  # b\r\nA=sb://a\r\n", []handedOver{{"A", "a"}}, ""},
		{"no newline at the end", "A=sb://a\nexport B=sb://b.c", []handedOver{{"A", "a"}, {"B", "b.c"}}, ""},
		{"quotes and a comment behind it", `A = "sb://a" # mine`, []handedOver{{"A", "a"}}, ""},
		{"an empty value", "A=\nB=sb://b", []handedOver{{"A", ""}, {"B", "b"}}, ""},
		{"a plain value", "A=sb://a\nPORT=3000\n", nil, "line 2: PORT has a plain value"},
		{"no reference", "A=sb://\n", nil, "line 1: A: what follows sb://"},
		{"a path", "A=sb://resource/a\n", nil, "line 1: A: what follows sb://"},
		{"more than a reference", "A='Bearer sb://a'\n", nil, "line 1: A has a plain value"},
		{"twice", "A=sb://a\nA=sb://b\n", nil, "line 2: A is given twice"},
		{"no pair", "A\n", nil, "line 1: "},
		{"a variable of ours", "\nHOME=sb://a\n", nil, "line 2: HOME is set by the launch itself"},
	} {
		got, err := parseEnvFile([]byte(test.text))
		if test.err != "" {
			if err == nil || !strings.HasPrefix(err.Error(), test.err) {
				t.Errorf("%s: %v, want %q", test.name, err, test.err)
			}
			continue
		}
		if diff := cmp.Diff(test.want, got, handed); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got)\n%s", test.name, err, diff)
		}
	}
}

func FuzzEnvFile(f *testing.F) {
	f.Add("A=sb://a\n# c\nexport B=sb://b")
	f.Fuzz(func(t *testing.T, text string) {
		all, err := parseEnvFile([]byte(text))
		if err != nil {
			return
		}
		// What parses, written again, parses to the same.
		var written strings.Builder
		for _, h := range all {
			if h.resource == "" {
				fmt.Fprintf(&written, "%s=\n", h.name)
			} else {
				fmt.Fprintf(&written, "%s=sb://%s\n", h.name, h.resource)
			}
		}
		again, err := parseEnvFile([]byte(written.String()))
		if diff := cmp.Diff(all, again, handed); err != nil || diff != "" {
			t.Errorf("%v (-first +second)\n%s", err, diff)
		}
	})
}

func TestTwice(t *testing.T) {
	for _, test := range []struct {
		handed []handedOver
		kept   []string
		want   string
	}{
		{[]handedOver{{"A", "a"}, {"B", "a"}}, []string{"C", "C"}, ""},
		{[]handedOver{{"A", "a"}, {"A", "b"}}, nil, "A"},
		{[]handedOver{{"A", "a"}}, []string{"A"}, "A"},
	} {
		if got := twice(test.handed, test.kept); got != test.want {
			t.Errorf("%v, %v: %q, want %q", test.handed, test.kept, got, test.want)
		}
	}
}

func TestVariables(t *testing.T) {
	contents := []*operatorv1.LaunchContent{
		{Name: "a", Content: []byte("x\n")}, {Name: "nul", Content: []byte("a\x00b")},
		{Name: "fits", Content: bytes.Repeat([]byte("x"), maxEnvValue-2)}, {Name: "large", Content: bytes.Repeat([]byte("x"), maxEnvValue-1)},
	}
	got, err := variables([]handedOver{{"A", "a"}, {"B", "a"}, {"C", "fits"}, {"D", ""}}, contents)
	if err != nil || string(got[0]) != "A=x\n" || string(got[1]) != "B=x\n" || len(got[2]) != maxEnvValue || string(got[3]) != "D=" {
		t.Errorf("%v, %v", len(got), err)
	}
	wipeAll(got)
	for _, b := range got {
		if bytes.ContainsAny(b, "ABCx=") {
			t.Error("a value is still there after it was wiped")
		}
	}
	for _, name := range []string{"nul", "large", "absent"} {
		if _, err := variables([]handedOver{{"A", name}}, contents); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// A variable that is handed over is there once: which of two a program sees is
// up to it.
func TestWithoutHanded(t *testing.T) {
	got := withoutHanded([]string{"A=1", "LANG=C", "AB=2"}, []handedOver{{"A", "a"}, {"LANG", "b"}})
	if diff := cmp.Diff([]string{"AB=2"}, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// A sandbox is shown the folders of programs, and never a home directory for the
// sake of one that lies in it.
func TestFolderOrFile(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	for path, want := range map[string]string{
		home + "/bin/agent":           home + "/bin",
		home + "/agent":               home + "/agent",
		"/agent":                      "/agent",
		filepath.Dir(home) + "/agent": filepath.Dir(home) + "/agent",
		"/opt/agent/bin/agent":        "/opt/agent/bin",
	} {
		if got := folderOrFile(path); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
}
