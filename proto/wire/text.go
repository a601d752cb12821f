package wire

import (
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// WholeText reports whether the strings of a piece of JSON are made of whole
// characters. Half of a pair of surrogates, as in "\ud800", is none: decoders put
// U+FFFD in its place and say nothing, so that what is kept is not what was sent. The
// piece has to be valid JSON; of anything else the answer is worth nothing.
func WholeText(json []byte) bool {
	for i := 0; i < len(json); i++ {
		if json[i] != '\\' {
			continue
		}
		i++
		if i >= len(json) || json[i] != 'u' {
			continue
		}
		r, ok := escaped(json, i-1)
		if i += 4; !ok || !utf16.IsSurrogate(r) {
			continue
		}
		low, ok := escaped(json, i+1)
		if !ok || utf16.DecodeRune(r, low) == utf8.RuneError {
			return false
		}
		i += 6
	}
	return true
}

// escaped is the unit of UTF-16 that the escape at i stands for.
func escaped(json []byte, i int) (unit rune, ok bool) {
	if i+6 > len(json) || json[i] != '\\' || json[i+1] != 'u' {
		return 0, false
	}
	n, err := strconv.ParseUint(string(json[i+2:i+6]), 16, 16)
	return rune(n), err == nil
}
