package descriptor

import "slices"

// around is how many lines that are the same are shown beside what is not.
const around = 3

// mostCells bounds the work of finding the fewest differences; beyond it everything
// between the first and the last difference is shown as gone and new.
const mostCells = 4 << 20

// Diff shows how after differs from before: lines that are gone begin with "-", new
// ones with "+", and those around them with a blank. Nothing where they are the same.
func Diff(before, after []string) []string {
	if slices.Equal(before, after) {
		return nil
	}
	head := 0
	for head < min(len(before), len(after)) && before[head] == after[head] {
		head++
	}
	tail := 0
	for tail < min(len(before), len(after))-head && before[len(before)-1-tail] == after[len(after)-1-tail] {
		tail++
	}
	var lines []string
	for _, line := range before[:head] {
		lines = append(lines, " "+line)
	}
	lines = append(lines, between(before[head:len(before)-tail], after[head:len(after)-tail])...)
	for _, line := range before[len(before)-tail:] {
		lines = append(lines, " "+line)
	}
	return shortened(lines)
}

// between is the difference of two lists that neither begin nor end alike.
func between(before, after []string) []string {
	var lines []string
	if len(before)*len(after) > mostCells {
		for _, line := range before {
			lines = append(lines, "-"+line)
		}
		for _, line := range after {
			lines = append(lines, "+"+line)
		}
		return lines
	}
	// longest[i][j] is the length of the longest list that is part of before[i:] and after[j:].
	longest := make([][]int32, len(before)+1)
	for i := range longest {
		longest[i] = make([]int32, len(after)+1)
	}
	for i := len(before) - 1; i >= 0; i-- {
		for j := len(after) - 1; j >= 0; j-- {
			if before[i] == after[j] {
				longest[i][j] = longest[i+1][j+1] + 1
			} else {
				longest[i][j] = max(longest[i+1][j], longest[i][j+1])
			}
		}
	}
	i, j := 0, 0
	for i < len(before) || j < len(after) {
		switch {
		case i < len(before) && j < len(after) && before[i] == after[j]:
			lines = append(lines, " "+before[i])
			i, j = i+1, j+1
		case j == len(after) || i < len(before) && longest[i+1][j] >= longest[i][j+1]:
			lines = append(lines, "-"+before[i])
			i++
		default:
			lines = append(lines, "+"+after[j])
			j++
		}
	}
	return lines
}

// shortened leaves out what is far from any difference.
func shortened(lines []string) []string {
	near := make([]bool, len(lines))
	for i, line := range lines {
		if line[0] == ' ' {
			continue
		}
		for j := max(0, i-around); j <= min(len(lines)-1, i+around); j++ {
			near[j] = true
		}
	}
	var shown []string
	skipped := false
	for i, line := range lines {
		if near[i] {
			if skipped {
				shown = append(shown, " …")
			}
			shown, skipped = append(shown, line), false
			continue
		}
		skipped = true
	}
	if skipped {
		shown = append(shown, " …")
	}
	return shown
}
