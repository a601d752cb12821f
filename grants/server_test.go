package grants

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func command(change func(*Server)) Server {
	s := Server{Name: "github", Command: []string{"github-mcp", "--ro"}, Env: map[string]string{"GITHUB_TOKEN": "${secret:github.token}", "MODE": "ro"}, Hosted: true, Created: noon}
	if change != nil {
		change(&s)
	}
	return s
}

func remote(change func(*Server)) Server {
	s := Server{Name: "remote", URL: "https://mcp.example.com/mcp", Headers: map[string]string{"Authorization": "Bearer ${secret:a}:${secret:b.c}"}, Hosted: true}
	if change != nil {
		change(&s)
	}
	return s
}

func TestServers(t *testing.T) {
	for name, s := range map[string]Server{
		"a command":               command(nil),
		"a folder":                command(func(s *Server) { s.Cwd = "/srv/x y" }),
		"an empty argument":       command(func(s *Server) { s.Command = []string{"a", ""} }),
		"a url":                   remote(nil),
		"a url of this machine":   remote(func(s *Server) { s.URL = "http://127.0.0.1:8080/mcp" }),
		"by its name":             remote(func(s *Server) { s.URL = "http://localhost/" }),
		"in six":                  remote(func(s *Server) { s.URL = "http://[::1]:1/" }),
		"one that is wrapped":     {Name: "a"},
		"a dollar alone":          command(func(s *Server) { s.Env["A"] = "$x $$ }" }),
		"the longest name":        {Name: strings.Repeat("a", 32)},
		"a name of digits":        {Name: "7-"},
		"a header with a tab":     remote(func(s *Server) { s.Headers["X-A"] = "a\tb" }),
		"a variable of two lines": command(func(s *Server) { s.Env["A"] = "a\nb" }),
	} {
		row, err := EncodeServer(s)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		again, err := DecodeServer(row)
		if diff := cmp.Diff(s, again); err != nil || diff != "" {
			t.Errorf("%s: %v %s", name, err, diff)
		}
	}
	marked := "GEHEIM"
	for name, s := range map[string]Server{
		"no name":                       {},
		"a capital":                     {Name: "Github"},
		"an underscore":                 {Name: "a_b"},
		"a leading dash":                {Name: "-a"},
		"33 letters":                    {Name: strings.Repeat("a", 33)},
		"neither":                       {Name: "a", Hosted: true},
		"both":                          command(func(s *Server) { s.URL = "https://x/" }),
		"wrapped with a command":        command(func(s *Server) { s.Hosted = false }),
		"an empty program":              command(func(s *Server) { s.Command = []string{""} }),
		"a NUL in a word":               command(func(s *Server) { s.Command = []string{"a", "b\x00"} }),
		"a secret in a word":            command(func(s *Server) { s.Command = append(s.Command, marked+"${secret:a}") }),
		"a relative folder":             command(func(s *Server) { s.Cwd = "srv" }),
		"a folder that is not clean":    command(func(s *Server) { s.Cwd = "/srv/../x" }),
		"headers of a command":          command(func(s *Server) { s.Headers = map[string]string{"A": "b"} }),
		"env of a url":                  remote(func(s *Server) { s.Env = map[string]string{"A": "b"} }),
		"our own variable":              command(func(s *Server) { s.Env["SB_HOME"] = "/x" }),
		"a variable with a digit":       command(func(s *Server) { s.Env["1A"] = "x" }),
		"a variable with =":             command(func(s *Server) { s.Env["A=B"] = "x" }),
		"a value not in UTF-8":          command(func(s *Server) { s.Env["A"] = marked + "\xff" }),
		"another expansion":             command(func(s *Server) { s.Env["A"] = marked + "${HOME}" }),
		"an expansion of nothing":       command(func(s *Server) { s.Env["A"] = "${secret:}" }),
		"an expansion within one":       command(func(s *Server) { s.Env["A"] = "${secret:${secret:a}}" }),
		"one that is not closed":        command(func(s *Server) { s.Env["A"] = marked + "${secret:a" }),
		"a name that is none":           command(func(s *Server) { s.Env["A"] = "${secret:a b}" }),
		"http elsewhere":                remote(func(s *Server) { s.URL = "http://example.com/" }),
		"what begins like this machine": remote(func(s *Server) { s.URL = "http://127.0.0.1.example.com/" }),
		"another scheme":                remote(func(s *Server) { s.URL = "ftp://example.com/" }),
		"a user":                        remote(func(s *Server) { s.URL = "https://u:" + marked + "@example.com/" }),
		"a fragment":                    remote(func(s *Server) { s.URL = "https://example.com/#x" }),
		"no host":                       remote(func(s *Server) { s.URL = "https:///x" }),
		"a backslash":                   remote(func(s *Server) { s.URL = `https://example.com\@evil.org/` }),
		"a header of two lines":         remote(func(s *Server) { s.Headers["A"] = marked + "\r\nB: c" }),
		"a header with a space":         remote(func(s *Server) { s.Headers["A B"] = "x" }),
	} {
		if _, err := EncodeServer(s); err == nil {
			t.Errorf("%s is taken", name)
		} else if strings.Contains(err.Error(), marked) {
			t.Errorf("%s: the error repeats it: %v", name, err)
		}
	}
}

func TestServerRow(t *testing.T) {
	row, err := EncodeServer(command(func(s *Server) { s.Owner, s.ObserveUntil = "laptop", noon }))
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"v":1,"name":"github","command":["github-mcp","--ro"],"env":{"GITHUB_TOKEN":"${secret:github.token}","MODE":"ro"},"hosted":true,` +
		`"observeUntil":"2030-06-01T12:00:00Z","created":"2030-06-01T12:00:00Z","owner":"laptop"}`
	if diff := cmp.Diff(want, string(row)); diff != "" {
		t.Error(diff)
	}
	for name, raw := range map[string][]byte{
		"a space":         bytes.Replace(row, []byte(`,"env"`), []byte(`, "env"`), 1),
		"an unknown key":  bytes.Replace(row, []byte(`{"v":1`), []byte(`{"v":1,"w":1`), 1),
		"another version": bytes.Replace(row, []byte(`{"v":1`), []byte(`{"v":2`), 1),
		"something after": slices.Concat(row, []byte(" ")),
		"not valid":       bytes.Replace(row, []byte(`"github-mcp"`), []byte(`""`), 1),
	} {
		if _, err := DecodeServer(raw); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
}

func TestExpand(t *testing.T) {
	lookup := func(name string) ([]byte, error) {
		if name == "ghost" {
			return nil, errors.New("no such resource")
		}
		return []byte("<" + name + "${secret:x}>"), nil // what comes back is not looked into
	}
	for value, want := range map[string]string{
		"":                                "",
		"plain $HOME":                     "plain $HOME",
		"${secret:a}":                     "<a${secret:x}>",
		"Bearer ${secret:a}:${secret:b}!": "Bearer <a${secret:x}>:<b${secret:x}>!",
		"$${secret:a}}":                   "$<a${secret:x}>}",
	} {
		got, err := Expand(value, lookup)
		if err != nil || string(got) != want {
			t.Errorf("%q is %q, %v, want %q", value, got, err, want)
		}
	}
	for _, value := range []string{"${secret:ghost}", "${HOME}", "${secret:a"} {
		if got, err := Expand(value, lookup); err == nil {
			t.Errorf("%q is %q", value, got)
		}
	}
	s := remote(func(s *Server) { s.Headers["X-B"] = "${secret:a}" })
	if diff := cmp.Diff([]string{"a", "b.c"}, s.Secrets()); diff != "" {
		t.Error(diff)
	}
	s = command(nil)
	if diff := cmp.Diff([]string{"github.token"}, s.Secrets()); diff != "" {
		t.Error(diff)
	}
}
