package wrap

import (
	"math"
	"strconv"

	"subjectbroker/mcpshim/strict"
)

// exact is the first number that a float64 cannot tell from its neighbour.
const exact = 1 << 53

// idKey is the same for two ids that mean the same, however they are written: a
// server may answer 1 to 1.0, or leave out an escape.
func idKey(raw []byte) string {
	if len(raw) > 0 && raw[0] == '"' {
		return `"` + strict.Unquote(raw)
	}
	if number, err := strconv.ParseFloat(string(raw), 64); err == nil && number == math.Trunc(number) && math.Abs(number) < exact {
		return strconv.FormatInt(int64(number), 10)
	}
	return string(raw)
}
