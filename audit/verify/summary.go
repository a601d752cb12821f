package verify

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// tally counts the entries of a period.
type tally struct {
	entries                   uint64
	kinds, subjects, outcomes map[string]*uint64
}

func (t *tally) add(l *line) {
	t.entries++
	count(&t.kinds, l.field[fKind])
	if outcome := l.field[fDecision]; outcome != nil {
		count(&t.outcomes, outcome)
	}
	if subject := l.field[fSubjectID]; subject != nil {
		if subject[0] == '~' {
			subject = []byte("(malformed names)")
		}
		count(&t.subjects, subject)
	}
}

func count(in *map[string]*uint64, word []byte) {
	if n := (*in)[string(word)]; n != nil {
		*n++
		return
	}
	if *in == nil {
		*in = map[string]*uint64{}
	}
	(*in)[string(word)] = new(uint64(1))
}

// summary is what a bundle says to people. It is made from what the bundle
// holds and from nothing else, so that a reader can make it again and compare.
func summary(head *bundleHead, e *extents, origin *Origin) []byte {
	var b strings.Builder
	say := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	say("An extract of the audit log of a SubjectBroker")
	say("")
	say("vault     %s", head.Vault)
	say("from      %s", orElse(head.Since, "the first entry"))
	say("until     %s", orElse(head.Until, "the newest entry"))
	say("head      entry %d of %s, in segment %d", head.Seq, head.Timestamp, head.Segment)
	say("          SHA-256 %s", head.Hash)
	say("genesis   %s", head.Genesis)
	if origin != nil {
		say("origin    %s", origin)
	}
	say("")
	for _, form := range []form{whole, ends, pruned} {
		if numbers := segmentsOf(e.list, form); numbers != "" {
			say("%s%s", [...]string{
				whole:  "Whole in here: ",
				ends:   "Only the signed first and last entry, because nothing else in it is of this time: ",
				pruned: "Only the signed first and last entry, because the rest was pruned: ",
			}[form], numbers)
		}
	}
	say("")
	say("%d entries are of this time.", e.tally.entries)
	for _, table := range []struct {
		title string
		rows  map[string]*uint64
	}{{"by kind", e.tally.kinds}, {"by decision", e.tally.outcomes}, {"by subject", e.tally.subjects}} {
		if len(table.rows) > 0 {
			say("")
			say("  %s", table.title)
			writeTable(say, table.rows)
		}
	}
	say("")
	say("To verify it you need the genesis fingerprint from a source that you trust. The")
	say("one above proves nothing: whoever forges a log writes that, too. Then, anywhere:")
	say("")
	say("  sbctl audit verify --genesis FINGERPRINT THIS-FILE")
	say("")
	say("That proves that these segments are what the broker wrote, whole and in order, up")
	say("to the head. It cannot prove that nothing was written after the head. This text")
	say("is part of what is verified.")
	return []byte(b.String())
}

// writeTable writes the most frequent rows.
func writeTable(say func(format string, args ...any), rows map[string]*uint64) {
	const most = 50
	words := slices.SortedFunc(maps.Keys(rows), func(a, b string) int {
		return cmp.Or(cmp.Compare(*rows[b], *rows[a]), cmp.Compare(a, b))
	})
	for _, word := range words[:min(most, len(words))] {
		say("  %10d  %s", *rows[word], word)
	}
	if others := len(words) - most; others > 0 {
		rest := uint64(0)
		for _, word := range words[most:] {
			rest += *rows[word]
		}
		say("  %10d  (%d others)", rest, others)
	}
}

// segmentsOf lists numbers as "segments 1 to 3, 7".
func segmentsOf(list []extent, form form) string {
	var parts []string
	for i := 0; i < len(list); i++ {
		if list[i].form != form {
			continue
		}
		from := i
		for i+1 < len(list) && list[i+1].form == form {
			i++
		}
		part := fmt.Sprint(list[from].number)
		if i > from {
			part += fmt.Sprintf(" to %d", list[i].number)
		}
		parts = append(parts, part)
	}
	if parts == nil {
		return ""
	}
	return "segments " + strings.Join(parts, ", ")
}

func orElse(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}
