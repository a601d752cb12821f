// Package nearest finds the existing name that a mistyped one most likely
// meant. It only suggests; nothing acts on a guess.
package nearest

import "strings"

// Name returns the candidate closest to typed, and false when none is close:
// more than a third of its characters would have to change, and neither begins
// with the other. Ties go to the earlier candidate.
func Name(typed string, candidates []string) (string, bool) {
	best, bestDistance, bestExact := "", -1, 0
	for _, candidate := range candidates {
		if candidate == typed {
			return candidate, true
		}
		distance := Distance(fold(typed), fold(candidate))
		if limit := max(1, max(len(typed), len(candidate))/3); distance > limit && !extends(typed, candidate) {
			continue
		}
		// Of two that differ in case alone the one that was typed so.
		exact := Distance(typed, candidate)
		if bestDistance < 0 || distance < bestDistance || distance == bestDistance && exact < bestExact {
			best, bestDistance, bestExact = candidate, distance, exact
		}
	}
	return best, bestDistance >= 0
}

// fold makes the spellings alike that people confuse: case and separators.
func fold(name string) string {
	return strings.NewReplacer("_", "-", ".", "-", " ", "-").Replace(strings.ToLower(name))
}

// extends says whether one name is the beginning of the other, by enough
// characters to mean something.
func extends(a, b string) bool {
	const meaningful = 3
	short, long := a, b
	if len(short) > len(long) {
		short, long = long, short
	}
	return len(short) >= meaningful && strings.HasPrefix(long, short)
}

// Distance is the number of single-byte insertions, deletions, substitutions
// and swaps of neighbours that make a into b (optimal string alignment).
func Distance(a, b string) int {
	before := make([]int, len(b)+1) // two rows up
	above := make([]int, len(b)+1)
	row := make([]int, len(b)+1)
	for j := range above {
		above[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(above[j]+1, row[j-1]+1, above[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, above, row = above, row, before
	}
	return above[len(b)]
}
