package memory

import (
	"bytes"
	"unicode"
	"unicode/utf8"

	"github.com/clipperhouse/uax29/v2/words"
	"golang.org/x/text/unicode/norm"
)

const (
	// maxWord is the largest size of a word in bytes; of a longer one this much
	// counts. It keeps what nobody types, like an encoded file, out of the dictionary.
	maxWord = 128
	// maxRaw is how much of a word is looked at, before it is folded.
	maxRaw = 1 << 10
)

// scanner finds the words of a text, one by one: those of UAX #29, except that
// what joins words there without being part of one, like . _ and :, parts them
// here. Most of what agents write down is about names like daemon.state, and who
// looks for "state" means it. An apostrophe stays.
type scanner struct {
	segments words.Iterator[string]
	text     string
	// at and end are what is left of the segment.
	at, end int
	raw     []byte
	folded  []byte
	apart   []byte

	// word is what next found, folded, valid until it is called again.
	word []byte
	// start and stop are where it stands in the text; segment is the number of the
	// segment of UAX #29 that it is from.
	start, stop, segment int
}

func newScanner(text string) *scanner {
	s := &scanner{segments: *words.FromString("")}
	s.reset(text)
	return s
}

// reset begins another text.
func (s *scanner) reset(text string) {
	s.segments.SetText(text)
	s.text = text
	s.at, s.end, s.segment = 0, 0, 0
}

// next finds the next word, and reports whether there is one.
func (s *scanner) next() bool {
	for {
		if s.at >= s.end {
			if !s.segments.Next() {
				return false
			}
			s.at, s.end = s.segments.Start(), s.segments.End()
			s.segment++
		}
		if s.piece() {
			return true
		}
	}
}

// piece takes the next word out of the segment.
func (s *scanner) piece() bool {
	s.raw = s.raw[:0]
	ascii, found, apostrophe := true, false, false
	picture, joined := false, false // the last rune is one; a joiner follows it
	for s.at < s.end {
		c := s.text[s.at]
		if c < utf8.RuneSelf {
			switch {
			case 'a' <= c && c <= 'z', '0' <= c && c <= '9':
			case 'A' <= c && c <= 'Z':
				c += 'a' - 'A'
			case c == '\'' && found:
				apostrophe = true
				s.at++
				continue
			default:
				s.at++
				if found {
					return s.finish(ascii)
				}
				continue
			}
			if picture {
				return s.finish(ascii)
			}
			s.begin(&found, &apostrophe)
			s.at++
			s.stop = s.at
			if len(s.raw) < maxRaw {
				s.raw = append(s.raw, c)
			}
			continue
		}
		r, size := utf8.DecodeRuneInString(s.text[s.at:])
		switch {
		case r == '’' && found:
			apostrophe = true
			s.at += size
			continue
		case invisible(r):
			s.at += size
			if found {
				s.stop = s.at
				joined = joined || r == joiner
			}
			continue
		case apostrophe && unicode.IsMark(r):
			s.at += size // it stands over the apostrophe
			continue
		case unicode.IsMark(r) && found:
		case isPicture(r):
			if found && !picture {
				return s.finish(ascii)
			}
			if joined {
				s.raw = utf8.AppendRune(s.raw, joiner)
			}
			picture = true
		case isLetter(r):
			if picture {
				return s.finish(ascii)
			}
		default:
			s.at += size
			if found {
				return s.finish(ascii)
			}
			continue
		}
		s.begin(&found, &apostrophe)
		ascii, joined = false, false
		s.at += size
		s.stop = s.at
		if len(s.raw) < maxRaw {
			s.raw = utf8.AppendRune(s.raw, r)
		}
	}
	return found && s.finish(ascii)
}

// begin notes a rune of a word: where the word begins, and the apostrophe that
// turned out to be inside it.
func (s *scanner) begin(found, apostrophe *bool) {
	if !*found {
		s.start = s.at
	}
	if *apostrophe && len(s.raw) < maxRaw {
		s.raw = append(s.raw, '\'')
	}
	*found, *apostrophe = true, false
}

func (s *scanner) finish(ascii bool) bool {
	s.word = s.raw
	if !ascii {
		s.fold()
	}
	if len(s.word) > maxWord {
		cut := maxWord
		for !utf8.RuneStart(s.word[cut]) {
			cut--
		}
		s.word = bytes.TrimRight(s.word[:cut], "'"+string(joiner))
	}
	return true
}

// fold makes equal what differs only in case or in how it is composed: canonical
// caseless matching, Unicode 3.13 D145, written down composed.
func (s *scanner) fold() {
	if norm.NFC.IsNormal(s.raw) && isFolded(s.raw) {
		return
	}
	s.apart = norm.NFD.Append(s.apart[:0], s.raw...)
	s.folded = s.folded[:0]
	for at := 0; at < len(s.apart); {
		r, size := utf8.DecodeRune(s.apart[at:])
		at += size
		if more, ok := foldsToMore(r); ok {
			s.folded = append(s.folded, more...)
		} else {
			s.folded = utf8.AppendRune(s.folded, foldRune(r))
		}
	}
	s.word = norm.NFC.Append(s.apart[:0], s.folded...)
	s.apart = s.word
}

// isFolded is true when folding would change nothing. It may be false for more.
func isFolded(word []byte) bool {
	for at := 0; at < len(word); {
		r, size := utf8.DecodeRune(word[at:])
		at += size
		if _, more := foldsToMore(r); more || foldRune(r) != r {
			return false
		}
		if 0x1f00 <= r && r < 0x2000 || unicode.IsMark(r) {
			return false // Greek with marks that fold into letters
		}
	}
	return true
}

// foldRune is simple case folding, as CaseFolding.txt of Unicode has it.
func foldRune(r rune) rune {
	switch {
	case 'A' <= r && r <= 'Z':
		return r + 'a' - 'A'
	case r < utf8.RuneSelf, r == 'ı', 0x0e00 <= r && r < 0x10a0, 0x2e80 <= r && r < 0xa640, 0xac00 <= r && r < 0xd800:
		return r
	}
	return unicode.ToLower(unicode.ToUpper(r))
}

// foldsToMore is what is left of full case folding when the rest was taken apart
// before.
func foldsToMore(r rune) (string, bool) {
	switch r {
	case 'ß', 'ẞ':
		return "ss", true
	case 'ŉ':
		return "ʼn", true
	case 'ẚ':
		return "aʾ", true
	case 'և':
		return "եւ", true
	case 'ﬀ':
		return "ff", true
	case 'ﬁ':
		return "fi", true
	case 'ﬂ':
		return "fl", true
	case 'ﬃ':
		return "ffi", true
	case 'ﬄ':
		return "ffl", true
	case 'ﬅ', 'ﬆ':
		return "st", true
	case 'ﬓ':
		return "մն", true
	case 'ﬔ':
		return "մե", true
	case 'ﬕ':
		return "մի", true
	case 'ﬖ':
		return "վն", true
	case 'ﬗ':
		return "մխ", true
	}
	return "", false
}

// joiner makes one picture of two.
const joiner = '\u200d'

func isLetter(r rune) bool { return unicode.In(r, unicode.L, unicode.N) }

// isPicture is true for emoji, and for other signs that are words by themselves.
func isPicture(r rune) bool {
	return r != utf8.RuneError && unicode.Is(unicode.So, r) || 0x1f3fb <= r && r <= 0x1f3ff
}

// invisible is true for what a word reads the same without: joiners, marks of
// direction, soft hyphens, and selectors of how a character is drawn.
func invisible(r rune) bool {
	return unicode.Is(unicode.Cf, r) || 0xfe00 <= r && r <= 0xfe0f
}

// unspaced is true for a word in a script that does not put spaces between
// words. Their characters are words here, and two neighbours tell more than one.
func unspaced(word []byte) bool {
	r, _ := utf8.DecodeRune(word)
	return r >= 0x0e00 && unicode.In(r, unicode.Han, unicode.Hiragana, unicode.Thai, unicode.Lao, unicode.Khmer,
		unicode.Myanmar, unicode.Tai_Le, unicode.New_Tai_Lue, unicode.Tai_Tham, unicode.Tai_Viet)
}
