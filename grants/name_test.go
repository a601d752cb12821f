package grants

import (
	"strings"
	"testing"
)

func TestNames(t *testing.T) {
	for _, good := range []string{
		"a", "A", "7", "design-doc", "github.token", "a_b", "a--b", "a..b", "x.", "x-", "CON", "null", "0x1F",
		strings.Repeat("n", 128),
	} {
		if err := CheckName(good); err != nil {
			t.Errorf("CheckName(%q) = %v, want it accepted", good, err)
		}
	}
	for _, bad := range []string{
		"", ".", "..", ".hidden", "-rf", "_x", "a b", " a", "a ", "a/b", "a:b", "a*", "*", "a\nb", "a\x00", "a\x1b[0m",
		"caf\u00e9", "\u212a", "K\u212a", "a\u200bb", "a\u202eb", "\ufeffa", "a\xff", "\xff",
		strings.Repeat("n", 129),
	} {
		err := CheckName(bad)
		if err == nil {
			t.Errorf("CheckName(%q) accepts it", bad)
		} else if len(bad) > 3 && strings.Contains(err.Error(), bad) {
			t.Errorf("CheckName(%q) repeats what it refuses", bad)
		}
	}
}

func TestNotes(t *testing.T) {
	for _, good := range []string{"", "until the audit", "für Zoë: \"quoted\" & <b>", strings.Repeat("n", 1024)} {
		if err := CheckNote(good); err != nil {
			t.Errorf("CheckNote(%q) = %v, want it accepted", good, err)
		}
	}
	for _, bad := range []string{"a\nb", "a\tb", "\x1b[31m", "a\x00", "\u0085", "\u2028", "\xff", strings.Repeat("n", 1025)} {
		if CheckNote(bad) == nil {
			t.Errorf("CheckNote(%q) accepts it", bad)
		}
	}
}

func TestIDs(t *testing.T) {
	seen := map[string]bool{}
	letters := map[rune]int{}
	for range 2000 {
		id := NewID()
		if err := checkID(id); err != nil || len(id) != idLength {
			t.Fatalf("NewID() = %q: %v", id, err)
		}
		if seen[id] {
			t.Fatalf("NewID() gave %q twice", id)
		}
		seen[id] = true
		for _, r := range id {
			letters[r]++
		}
	}
	if len(letters) != len(idLetters) {
		t.Errorf("20000 letters of ids hold %d different ones, want all %d", len(letters), len(idLetters))
	}
	for _, ambiguous := range "ilou" {
		if letters[ambiguous] > 0 {
			t.Errorf("an id holds the ambiguous letter %q", ambiguous)
		}
	}
}
