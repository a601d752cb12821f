package grants

import (
	"strings"
	"testing"
)

func TestParseCapability(t *testing.T) {
	for text, want := range map[string]Capability{
		"read:plan":                {Read, "plan"},
		"plan":                     {Read, "plan"},
		"use:github.token":         {Use, "github.token"},
		"call:github/create_issue": {Call, "github/create_issue"},
		"reach:example.org:443":    {Reach, "example.org:443"},
		"memory.read:acme":         {MemoryRead, "acme"},
		"memory.write:acme":        {MemoryWrite, "acme"},
	} {
		got, err := ParseCapability(text)
		if err != nil || got != want {
			t.Errorf("ParseCapability(%q) = %+v, %v, want %+v", text, got, err, want)
		}
	}
	for _, bad := range []string{
		"", ":", "read:", ":plan", "Read:plan", "READ:plan", "read :plan", " read:plan", "read: plan", "read:plan ",
		"write:plan", "memory:acme", "memory.reads:acme", "read:*", "read:docs.*", "read:a:b", "read:a/b", "use:a/b",
		"read:.x", "read:a\n", "call:", "call:/x", "call:a b", "call:" + strings.Repeat("x", 257), "memory.read:a/b",
		"r\u0435ad:plan", // a Cyrillic e
	} {
		if got, err := ParseCapability(bad); err == nil {
			t.Errorf("ParseCapability(%q) = %+v, want it refused", bad, got)
		}
	}
}

func TestParsePattern(t *testing.T) {
	for text, want := range map[string]Pattern{
		"plan":              {Read, "plan", false},
		"docs.*":            {Read, "docs.", true},
		"*":                 {Read, "", true},
		"read:*":            {Read, "", true},
		"read:plan":         {Read, "plan", false},
		"read:docs.*":       {Read, "docs.", true},
		"read:docs-*":       {Read, "docs-", true},
		"read:docs_*":       {Read, "docs_", true},
		"call:github/*":     {Call, "github/", true},
		"reach:host:*":      {Reach, "host:", true},
		"memory.read:*":     {MemoryRead, "", true},
		"use:github.token":  {Use, "github.token", false},
		"call:github/x.y-z": {Call, "github/x.y-z", false},
	} {
		got, err := ParsePattern(text)
		if err != nil || got != want {
			t.Errorf("ParsePattern(%q) = %+v, %v, want %+v", text, got, err, want)
			continue
		}
		if again, err := ParsePattern(got.String()); err != nil || again != got {
			t.Errorf("ParsePattern(%q) = %+v, %v, want %+v", got.String(), again, err, got)
		}
	}
	for _, bad := range []string{
		"", "read:", "read:doc*", "doc*", "read:**", "read:*.x", "read:a.*.b", "read:a.**", "read:.*", "read:-*", "*:plan",
		"*:*", "re*:plan", "read:docs.* ", "read:a/*", "call:/*", "read:docs.?", "read:" + strings.Repeat("a", 128) + ".*",
	} {
		if got, err := ParsePattern(bad); err == nil {
			t.Errorf("ParsePattern(%q) = %+v, want it refused", bad, got)
		}
	}
}

func TestPatternsMatch(t *testing.T) {
	tests := []struct {
		pattern string
		matches string
		not     string
	}{
		{"read:plan", "read:plan", "read:plan2 read:Plan use:plan read:pla"},
		{"read:docs.*", "read:docs.a read:docs.a.b read:docs.", "read:docs read:docsa read:Docs.a read:a.docs.a use:docs.a"},
		{"read:*", "read:a read:docs.a", "use:a memory.read:a"},
		{"call:github/*", "call:github/x call:github/x/y", "call:github call:githubx/y call:git/x"},
		{"memory.read:*", "memory.read:a", "memory.write:a read:a"},
	}
	for _, test := range tests {
		p := pattern(test.pattern)
		for _, c := range strings.Fields(test.matches) {
			if !p.Matches(capability(c)) {
				t.Errorf("%s does not match %s", p, c)
			}
		}
		for _, c := range strings.Fields(test.not) {
			if p.Matches(capability(c)) {
				t.Errorf("%s matches %s", p, c)
			}
		}
	}
}

func TestPatternsCover(t *testing.T) {
	for wide, narrow := range map[string]string{
		"read:*": "read:docs.*", "read:docs.*": "read:docs.a.*", "read:docs.a.*": "read:docs.a.b", "read:plan": "read:plan",
	} {
		if !pattern(wide).Covers(pattern(narrow)) {
			t.Errorf("%s does not cover %s", wide, narrow)
		}
		if wide != narrow && pattern(narrow).Covers(pattern(wide)) {
			t.Errorf("%s covers %s", narrow, wide)
		}
	}
	if pattern("read:docs.").Covers(pattern("read:docs.*")) {
		t.Error("an exact object covers a prefix of the same text")
	}
}

// pattern and capability are for texts that a test knows to be good.
func pattern(text string) Pattern {
	p, err := ParsePattern(text)
	if err != nil {
		panic(text + ": " + err.Error())
	}
	return p
}

func capability(text string) Capability {
	c, err := ParseCapability(text)
	if err != nil {
		panic(text + ": " + err.Error())
	}
	return c
}
