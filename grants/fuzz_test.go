package grants

import (
	"bytes"
	"regexp"
	"strings"
	"testing"
)

func FuzzCheckName(f *testing.F) {
	for _, seed := range []string{"design-doc", "", "-", "a\n", "\u212a", strings.Repeat("x", 129)} {
		f.Add(seed)
	}
	rule := regexp.MustCompile(`\A[A-Za-z0-9][A-Za-z0-9._-]{0,127}\z`)
	f.Fuzz(func(t *testing.T, name string) {
		if got, want := CheckName(name) == nil, rule.MatchString(name); got != want {
			t.Errorf("CheckName(%q) accepts: %v, want %v", name, got, want)
		}
	})
}

func FuzzParseCapability(f *testing.F) {
	for _, seed := range []string{"read:plan", "plan", "call:a/b", "memory.read:x", "read::", "read:*"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		c, err := ParseCapability(text)
		if err != nil {
			return
		}
		if again := c.String(); again != text && again != "read:"+text {
			t.Errorf("ParseCapability(%q) is written %q", text, again)
		}
		if p, err := ParsePattern(text); err != nil || !p.Matches(c) || p.Prefix {
			t.Errorf("ParsePattern(%q) = %+v, %v, which is not the exact pattern of the capability", text, p, err)
		}
	})
}

func FuzzParsePattern(f *testing.F) {
	for _, seed := range []string{"read:plan", "docs.*", "*", "call:a/*", "read:doc*", "memory.write:*", "reach:h:*"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := ParsePattern(text)
		if err != nil {
			return
		}
		if again := p.String(); again != text && again != "read:"+text {
			t.Errorf("ParsePattern(%q) is written %q", text, again)
		}
		if again, err := ParsePattern(p.String()); err != nil || again != p {
			t.Errorf("ParsePattern(%q) = %+v, %v, want %+v", p.String(), again, err, p)
		}
	})
}

func FuzzDecodeGrant(f *testing.F) {
	row, err := EncodeGrant(allow("read:plan").as("a").uses(3).until(noon).Grant)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(row)
	f.Fuzz(func(t *testing.T, row []byte) {
		g, err := DecodeGrant(row)
		if err != nil {
			return
		}
		if again, err := EncodeGrant(g); err != nil || !bytes.Equal(row, again) {
			t.Errorf("%q reads as %+v, which is written %q, %v", row, g, again, err)
		}
	})
}

func FuzzDecodeSubject(f *testing.F) {
	row, err := EncodeSubject(Subject{Name: "worker", MinTier: Bound, Created: noon})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(row)
	f.Fuzz(func(t *testing.T, row []byte) {
		s, err := DecodeSubject(row)
		if err != nil {
			return
		}
		if again, err := EncodeSubject(s); err != nil || !bytes.Equal(row, again) {
			t.Errorf("%q reads as %+v, which is written %q, %v", row, s, again, err)
		}
	})
}

func FuzzCheckTool(f *testing.F) {
	for _, seed := range []string{"github/create_issue", "read_resource", "a/b/c:d", "/", "a/"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if CheckTool(name) != nil || IsBuiltin(name) {
			return
		}
		c, err := ParseCapability("call:" + name)
		if err != nil {
			t.Fatalf("%q is a tool that cannot be called: %v", name, err)
		}
		p := Profile{Name: "p", Subject: "s", Tools: []string{name}}
		if ok, cause := NewCeiling(p, []Tool{{Name: name}}).Covers(c); !ok {
			t.Errorf("%q is listed and cannot be called: %s", name, cause)
		}
	})
}

func FuzzDecodeProfile(f *testing.F) {
	row, err := EncodeProfile(profile("a/b", "read_resource").capped("read:docs.*").approving(ApprovalNever))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(row)
	f.Add([]byte(`{"v":1,"name":"bare","subject":"worker","caps":[]}`))
	f.Fuzz(func(t *testing.T, row []byte) {
		p, err := DecodeProfile(row)
		if err != nil {
			return
		}
		if again, err := EncodeProfile(p); err != nil || !bytes.Equal(row, again) {
			t.Errorf("%q reads as %+v, which is written %q, %v", row, p, again, err)
		}
	})
}

func FuzzDecodeTool(f *testing.F) {
	gated := tool("a/b", "read:docs.*", "use:token")
	gated.Gate, gated.Created = true, noon
	row, err := EncodeTool(gated)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(row)
	f.Fuzz(func(t *testing.T, row []byte) {
		one, err := DecodeTool(row)
		if err != nil {
			return
		}
		if again, err := EncodeTool(one); err != nil || !bytes.Equal(row, again) {
			t.Errorf("%q reads as %+v, which is written %q, %v", row, one, again, err)
		}
	})
}
