package verify

import "bytes"

// What each kind of value may be made of. There is no value that could hold a
// line break, a quote, a blank or a byte beyond ASCII.

func isTimestamp(s []byte) bool {
	const form = "0000-00-00T00:00:00.000Z"
	if len(s) != len(form) {
		return false
	}
	for i := range len(s) {
		if form[i] == '0' && !isDigit(s[i]) || form[i] != '0' && s[i] != form[i] {
			return false
		}
	}
	two := func(i int) int { return int(s[i]-'0')*10 + int(s[i+1]-'0') }
	year, month, day := two(0)*100+two(2), two(5), two(8)
	return month >= 1 && month <= 12 && day >= 1 && day <= days(year, month) && two(11) < 24 && two(14) < 60 && two(17) < 60
}

func days(year, month int) int {
	switch month {
	case 4, 6, 9, 11:
		return 30
	case 2:
		if year%4 == 0 && (year%100 != 0 || year%400 == 0) {
			return 29
		}
		return 28
	}
	return 31
}

func isHex(length int) func([]byte) bool {
	return func(s []byte) bool {
		if len(s) != length {
			return false
		}
		for i := range len(s) {
			if !isDigit(s[i]) && (s[i] < 'a' || s[i] > 'f') {
				return false
			}
		}
		return true
	}
}

func oneOf(words ...string) func([]byte) bool {
	return func(s []byte) bool {
		for _, word := range words {
			if string(s) == word {
				return true
			}
		}
		return false
	}
}

var isLoneKind = oneOf("segment.opened", "recovered", "release.withheld", "acquire", "explain", "list", "call",
	"auth", "authz", "flag", "suppressed", "op.intent", "op.applied", "op.not_applied")

var isFamily = oneOf("vault", "run", "approval", "grant", "subject", "resource", "key", "server", "memory",
	"launch", "operator", "policy", "audit", "call", "agentkey")

func isKind(s []byte) bool {
	family, word, found := bytes.Cut(s, []byte("."))
	return found && isFamily(family) && isWord(word) || isLoneKind(s)
}

func isWord(s []byte) bool {
	return madeOf(s, 64, lower|digit|dot|dash) && s[0] >= 'a' && s[0] <= 'z'
}

func isAction(s []byte) bool { return isWord(s) || isMask(s) }

func isCode(s []byte) bool {
	return madeOf(s, 64, upper|digit|underscore) && s[0] >= 'A' && s[0] <= 'Z'
}

func isID(s []byte) bool { return madeOf(s, 64, upper|lower|digit|dash) }

func isName(s []byte) bool {
	return madeOf(s, 128, upper|lower|digit|dot|dash) && classes[s[0]]&(upper|lower|digit) != 0 || isMask(s)
}

func isToken(s []byte) bool { return madeOf(s, 300, upper|lower|digit|dot|dash|punct) }

// isMask takes what stands in for a malformed name: its length and 16 hex
// digits of a keyed hash.
func isMask(s []byte) bool {
	rest, found := bytes.CutPrefix(s, []byte("~"))
	length, sum, separated := bytes.Cut(rest, []byte("~"))
	return found && separated && madeOf(length, 22, digit) && isHex(16)(sum)
}

func isSignature(s []byte) bool {
	return len(s) == 88 && string(s[86:]) == "==" && madeOf(s[:86], 86, upper|lower|digit|plusSlash)
}

// Classes of bytes.
const (
	upper uint8 = 1 << iota
	lower
	digit
	dot
	dash // - and _
	underscore
	punct // what tokens have beside the above
	plusSlash
)

var classes = func() (table [256]uint8) {
	for c := 'A'; c <= 'Z'; c++ {
		table[c] = upper
	}
	for c := 'a'; c <= 'z'; c++ {
		table[c] = lower
	}
	for c := '0'; c <= '9'; c++ {
		table[c] = digit
	}
	for _, c := range ":*=~@,+/" {
		table[c] |= punct
	}
	table['+'] |= plusSlash
	table['/'] |= plusSlash
	table['.'] |= dot
	table['-'] |= dash
	table['_'] |= dash | underscore
	return table
}()

func madeOf(s []byte, limit int, allowed uint8) bool {
	if len(s) == 0 || len(s) > limit {
		return false
	}
	for i := range len(s) {
		if classes[s[i]]&allowed == 0 {
			return false
		}
	}
	return true
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }
