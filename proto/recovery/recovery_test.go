package recovery

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func codeOf(entropy []byte) Code { return Code{(*[size]byte)(entropy)} }

// The vectors were made by a program that shares nothing with this package.
func TestVectors(t *testing.T) {
	text, err := os.ReadFile("testdata/vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	type vector struct{ Entropy, Text, Seed, PublicKey string }
	var vectors []vector
	if err := json.Unmarshal(text, &vectors); err != nil {
		t.Fatal(err)
	}
	if len(vectors) == 0 {
		t.Fatal("no vectors")
	}
	for _, want := range vectors {
		code, err := Parse(want.Text)
		if err != nil {
			t.Errorf("%s: %v", want.Text, err)
			continue
		}
		got := vector{hex.EncodeToString(code.entropy[:]), code.Text(), hex.EncodeToString(code.Seed()), hex.EncodeToString(code.PublicKey())}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", want.Text, diff)
		}
	}
}

// A person may type a code in many ways.
func TestParseIsLiberal(t *testing.T) {
	want := codeOf(bytes.Repeat([]byte{0x04, 0x21}, size/2)) // ones and zeros where they can be
	text := want.Text()
	for _, typed := range []string{
		text,
		strings.ToLower(text),
		strings.ReplaceAll(text, "-", ""),
		strings.ReplaceAll(text, "-", " "),
		strings.ReplaceAll(text, "-", "\r\n"),
		" -" + strings.Join(strings.Split(text, ""), "- ") + "\n",
		strings.ReplaceAll(text, "0", "O"),
		strings.ReplaceAll(text, "0", "o"),
		strings.ReplaceAll(text, "1", "I"),
		strings.ReplaceAll(text, "1", "l"),
	} {
		got, err := Parse([]byte(typed))
		if err != nil || *got.entropy != *want.entropy {
			t.Errorf("%q: %v", typed, err)
		}
	}
}

// Every slip that the package comment names is found, and its group is named.
func TestSlips(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		code := codeOf(rapid.SliceOfN(rapid.Byte(), size, size).Draw(t, "entropy"))
		parts := strings.Split(code.Text(), "-")
		group := rapid.IntRange(0, groups-1).Draw(t, "group")
		typed := slices.Clone(parts)
		word := []byte(parts[group])
		named := []int{group + 1}
		switch rapid.SampledFrom([]string{"character", "order", "groups"}).Draw(t, "slip") {
		case "character":
			word[rapid.IntRange(0, perGroup-1).Draw(t, "at")] = alphabet[rapid.IntRange(0, 31).Draw(t, "char")]
			typed[group] = string(word)
		case "order":
			i, j := rapid.IntRange(0, perGroup-1).Draw(t, "i"), rapid.IntRange(0, perGroup-1).Draw(t, "j")
			word[i], word[j] = word[j], word[i]
			typed[group] = string(word)
		case "groups":
			other := rapid.IntRange(0, groups-1).Draw(t, "other")
			typed[group], typed[other] = typed[other], typed[group]
			named = append(named, other+1)
			slices.Sort(named)
			if other == group {
				return
			}
		}
		if slices.Equal(typed, parts) {
			return
		}
		_, err := Parse(strings.Join(typed, "-"))
		want := "group " + strings.Trim(strings.ReplaceAll(fmt.Sprint(named), " ", ", "), "[]")
		if !errors.Is(err, ErrMistyped) || !strings.HasSuffix(err.Error(), want) {
			t.Fatalf("%v typed as %v: %v, want %s", parts, typed, err, want)
		}
	})
}

func TestRefused(t *testing.T) {
	text := New().Text()
	for name, test := range map[string]struct{ typed, want string }{
		"nothing":              {"", "it has 0 characters, a code has 40"},
		"only dashes":          {"-- --", "it has 0 characters"},
		"a character short":    {text[:len(text)-1], "it has 39 characters"},
		"a character too many": {text + "0", "it has 41 characters"},
		"a group too many":     {text + "-00000", "it has 45 characters"},
		"a lost character":     {text[:7] + text[8:], "it has 39 characters"},
		"the letter U":         {"U" + text[1:], "group 1 has a character that no code has"},
		"a letter with accent": {text[:6] + "é" + text[7:], "group 2 has a character"},
		"a NUL":                {text + "\x00", "group 9 has a character"},
		"much":                 {strings.Repeat("0", 1<<20), "it has 1048576 characters"},
	} {
		t.Run(name, func(t *testing.T) {
			code, err := Parse(test.typed)
			if !errors.Is(err, ErrMistyped) || !strings.Contains(fmt.Sprint(err), test.want) {
				t.Errorf("error %v, want %q", err, test.want)
			}
			if code.entropy != nil {
				t.Error("a refused code was returned")
			}
		})
	}
}

func TestNewDiffers(t *testing.T) {
	one, other := New(), New()
	if one.Text() == other.Text() {
		t.Error("two codes are the same")
	}
}

func TestWipe(t *testing.T) {
	code := New()
	duplicate := code
	code.Wipe()
	if *duplicate.entropy != [size]byte{} {
		t.Error("a copy was not wiped")
	}
}

func TestZeroCode(t *testing.T) {
	var none Code
	none.Wipe()
	if none.Text() != "" || none.Seed() != nil || none.PublicKey() != nil {
		t.Error("the zero Code is something")
	}
}

// Everything that can print a value prints a code as [redacted].
func TestRedacted(t *testing.T) {
	code := codeOf(bytes.Repeat([]byte{0xa5}, size))
	var out bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%p"} {
		fmt.Fprintf(&out, verb+"\n", code)
		fmt.Fprintf(&out, verb+"\n", struct{ C Code }{code})
		fmt.Fprintf(&out, verb+"\n", []Code{code})
	}
	slog.New(slog.NewJSONHandler(&out, nil)).Info("a code", "code", code, "in", []Code{code})
	slog.New(slog.NewTextHandler(&out, nil)).Info("a code", "code", code)
	if err := json.NewEncoder(&out).Encode(map[string]any{"code": code, "key": map[string]Code{"a": code}}); err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{code.Text(), "a5a5", "A5A5", "165", "\xa5"} {
		if strings.Contains(out.String(), secret) {
			t.Errorf("%q in:\n%s", secret, out.String())
		}
	}
}

// What parses is written back in the one way of writing it, and means the same.
func FuzzParse(f *testing.F) {
	f.Add("")
	f.Add(codeOf(make([]byte, size)).Text())
	f.Add(strings.ToLower(codeOf(bytes.Repeat([]byte{0xff}, size)).Text()))
	f.Add("O0IL1-")
	f.Fuzz(func(t *testing.T, typed string) {
		code, err := Parse(typed)
		if err != nil {
			if !errors.Is(err, ErrMistyped) {
				t.Fatal(err)
			}
			return
		}
		text := code.Text()
		again, err := Parse(text)
		if err != nil || *again.entropy != *code.entropy || again.Text() != text {
			t.Fatalf("%q became %q: %v", typed, text, err)
		}
		plain := strings.NewReplacer("-", "", " ", "", "\t", "", "\r", "", "\n", "", "O", "0", "I", "1", "L", "1").Replace(strings.ToUpper(typed))
		if plain != strings.ReplaceAll(text, "-", "") {
			t.Fatalf("%q became %q", typed, text)
		}
	})
}
