package memory

import (
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"
)

func wordsOf(text string) (words []string) {
	for s := newScanner(text); s.next(); {
		words = append(words, string(s.word))
	}
	return words
}

func TestWords(t *testing.T) {
	tests := []struct {
		name, text string
		want       string // with | between
	}{
		{"nothing", "", ""},
		{"no word", " \t\r\n.,;-…()'’_*", ""},
		{"case", "Vault VAULT vault", "vault|vault|vault"},
		{"punctuation", "Keys, rotated (daily); done.", "keys|rotated|daily|done"},
		{"hyphens and slashes", "well-known retry/backoff", "well|known|retry|backoff"},
		{"names", "daemon.state user_id memory.write:ops __init__ v1.2.3", "daemon|state|user|id|memory|write|ops|init|v1|2|3"},
		{"numbers", "3.14 1,000 0x1f 10⁵ ½", "3|14|1|000|0x1f|10|⁵|½"},
		{"apostrophes", "the vault's key, don't 'quoted' l’eau", "the|vault's|key|don't|quoted|l'eau"},
		{"an apostrophe at an end", "agents' O'", "agents|o"},
		{"a mark over an apostrophe", "a'\u0301 a'\u0301b a'\u0301Ⓐ", "a|a'b|a|ⓐ"},
		{"mail and links", "a@b.org https://x.y/z?q=1", "a|b|org|https|x|y|z|q|1"},
		{"composed and not", "\u00e9t\u00e9 e\u0301te\u0301 E\u0301TE\u0301", "été|été|été"},
		{"marks are kept", "ete été żółw", "ete|été|żółw"},
		{"many marks", "z\u0335\u0321\u0357a", "z\u0335\u0321\u0357a"},
		{"marks in another order", "a\u0323\u0307 a\u0307\u0323", "ạ̇|ạ̇"},
		{"a mark alone", " \u0301 a", "a"},
		{"sharp s", "Straße STRASSE strasse STRAẞE", "strasse|strasse|strasse|strasse"},
		{"sigma", "ΟΔΥΣΣΕΥΣ Ὀδυσσεύς οδυσσευς", "οδυσσευσ|ὀδυσσεύσ|οδυσσευσ"},
		{"Kelvin and Ångström", "\u212a k K \u212b å", "k|k|k|å|å"},
		{"dotted and dotless", "İ i ı I", "i\u0307|i|ı|i"},
		{"a Greek mark that folds into a letter", "ᾳ ΑΙ", "αι|αι"},
		{"ligature", "ofﬁce", "office"},
		{"Han", "数据库 连接", "数|据|库|连|接"},
		{"Japanese", "データベースの接続", "データベース|の|接|続"},
		{"Hangul, composed and not", "한국어 \u1112\u1161\u11ab국어", "한국어|한국어"},
		{"Thai", "ที่นี่", "ที่|นี่"},
		{"Arabic, with marks and a joiner", "مَكتبة می\u200cخواهم", "مَكتبة|میخواهم"},
		{"Hebrew", "\u200fשלום\u200f עולם", "שלום|עולם"},
		{"Devanagari", "नमस्ते दुनिया", "नमस्ते|दुनिया"},
		{"Cherokee", "Ꭰꭰ Ᏸᏸ", "ꭰꭰ|ᏸᏸ"},
		{"Roman and circled", "Ⅷⅷ Ⓐⓐ", "ⅷⅷ|ⓐⓐ"},
		{"Deseret", "𐐀𐐨", "𐐨𐐨"},
		{"emoji", "ship it 🚀🚀 ok❤️❤", "ship|it|🚀|🚀|ok|❤|❤"},
		{"emoji of several", "👩‍💻 👍🏽 🇩🇪🇫🇷 1️⃣", "👩\u200d💻|👍🏽|🇩🇪|🇫🇷|1\u20e3"},
		{"what cannot be seen", "co\u00adop\u200berate \ufeffbom", "coop|erate|bom"},
		{"NUL and controls", "a\x00b\x07c\x1b[0md", "a|b|c|0md"},
		{"not UTF-8", "a\xffb \xc3( ok\xe2\x82", "a|b|ok"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := strings.Join(wordsOf(test.text), "|"); got != test.want {
				t.Errorf("%q has the words\n%+q, not\n%+q", test.text, got, test.want)
			}
		})
	}
}

// A word is cut at 128 bytes, between characters, and what is the same stays so.
func TestLongWords(t *testing.T) {
	for _, unit := range []string{"a", "é", "语a", "e\u0301", "\U00010400", "a'"} {
		text := strings.Repeat(unit, 1<<18/len(unit))
		words := wordsOf(text)
		if len(words) == 0 {
			t.Errorf("much of %q has no word", unit)
		}
		for _, w := range words {
			if len(w) > maxWord || !utf8.ValidString(w) {
				t.Errorf("much of %q has the word %q", unit, w)
			}
		}
	}
	if got := wordsOf(strings.Repeat("x", 4000) + " y"); !slices.Equal(got, []string{strings.Repeat("x", maxWord), "y"}) {
		t.Errorf("%q", got)
	}
}

// Folding is that of Unicode: two characters are the same word exactly when
// golang.org/x/text, whose tables would weigh more than all of this, says so.
func TestFolding(t *testing.T) {
	full := cases.Fold()
	of := map[string]string{}
	from := map[string]string{}
	for r := rune(1); r <= unicode.MaxRune; r++ {
		if !isLetter(r) && !isPicture(r) || unicode.Is(unicode.Cherokee, r) { // x/text leaves that alone
			continue
		}
		word := wordsOf(string(r))
		if len(word) != 1 {
			continue // variation of the tables: a letter that is none to UAX #29
		}
		want := norm.NFC.String(full.String(norm.NFD.String(string(r))))
		if other, ok := of[want]; ok && other != word[0] {
			t.Errorf("%U is %+q, another that folds to the same %+q", r, word[0], other)
		}
		if other, ok := from[word[0]]; ok && other != want {
			t.Errorf("%U is %+q, which something else is that folds to %+q", r, word[0], other)
		}
		of[want], from[word[0]] = word[0], want
	}
	if len(of) < 100_000 {
		t.Errorf("only %d letters were compared", len(of))
	}
}

// The short way of folding gives what the long one does.
func TestFoldingTwice(t *testing.T) {
	for r := rune(1); r <= unicode.MaxRune; r++ {
		if !unicode.IsLetter(r) && !unicode.IsMark(r) {
			continue
		}
		raw := []byte("x" + string(r))
		if !norm.NFC.IsNormal(raw) || !isFolded(raw) {
			continue
		}
		var long []byte
		for _, d := range norm.NFD.String(string(raw)) {
			if more, ok := foldsToMore(d); ok {
				long = append(long, more...)
			} else {
				long = utf8.AppendRune(long, foldRune(d))
			}
		}
		if got := norm.NFC.Bytes(long); string(got) != string(raw) {
			t.Errorf("%U is taken as it is, and folds to %+q", r, got)
		}
	}
}

// Whatever a text is, its words are valid, bounded, in order and inside it, and
// they are their own words.
func FuzzWords(f *testing.F) {
	for _, seed := range []string{"", "a b", "The vault's daemon.state", "数据库 ที่นี่ 👩‍💻 İı\u00ad", "a'\u0301b 1\u200d👍 Ⓐa", "A'\u030dⒶ", "ﬁx ΐ ᾳ \xff"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		at := 0
		for s := newScanner(text); s.next(); {
			word := string(s.word)
			if s.start < at || s.stop <= s.start || s.stop > len(text) {
				t.Fatalf("%+q: %+q stands at %d to %d, the one before ended at %d", text, word, s.start, s.stop, at)
			}
			at = s.stop
			if word == "" || len(word) > maxWord || !utf8.ValidString(word) || !norm.NFC.IsNormalString(word) {
				t.Fatalf("%+q: %+q is no word", text, word)
			}
			if diff := cmp.Diff([]string{word}, wordsOf(word)); diff != "" && len(word) < maxWord-16 {
				t.Fatalf("%+q: %+q is not its own word:\n%s", text, word, diff)
			}
		}
	})
}
