// Package complete finishes words on a shell's command line. The scripts that
// it writes for shells know nothing: they ask sbctl, which answers from the
// grammar that it also parses with, and for names from the daemon.
//
// It never writes to the terminal and never fails loudly: a completion that
// does not come is better than an error in the middle of a line.
package complete

import (
	"strings"

	"github.com/alecthomas/kong"
)

// Candidate is one way to finish a word.
type Candidate struct {
	// Word replaces what was typed.
	Word string
	// Help says what it means; it may be empty.
	Help string
}

// Names returns the names of one sort that begin with prefix; the sort is the
// name of an argument or the placeholder of a flag, such as "subject". It
// returns nothing for a sort that it does not know.
type Names func(sort string, command []string, typed []string) []Candidate

// Words returns the candidates for the last of args, which may be empty, after
// those before it. The program's own name is not in args.
func Words(program *kong.Node, args []string, names Names) []Candidate {
	if len(args) == 0 {
		args = []string{""}
	}
	before, word := args[:len(args)-1], args[len(args)-1]
	at := walk(program, before)
	var found []Candidate
	switch {
	case at.value != nil:
		found = values(at.value.Value, at, names)
	case at.flagsEnded:
		found = at.arguments(names)
	case strings.HasPrefix(word, "--") && strings.Contains(word, "="):
		name, _, _ := strings.Cut(word, "=")
		if flag := flagNamed(at.node, name); flag != nil {
			for _, value := range values(flag.Value, at, names) {
				found = append(found, Candidate{name + "=" + value.Word, value.Help})
			}
		}
	case strings.HasPrefix(word, "-"):
		found = flags(at.node)
	default:
		found = append(commands(at.node), at.arguments(names)...)
	}
	return beginning(found, word)
}

func beginning(candidates []Candidate, word string) []Candidate {
	var found []Candidate
	for _, candidate := range candidates {
		if strings.HasPrefix(candidate.Word, word) {
			found = append(found, candidate)
		}
	}
	return found
}

// position is where on the command line the cursor stands.
type position struct {
	node       *kong.Node
	path       []string
	typed      []string   // positional arguments before the cursor
	value      *kong.Flag // the flag whose value comes next
	flagsEnded bool       // "--" was given
}

// walk follows the words before the cursor. It is lenient: a word that makes no
// sense is passed over.
func walk(program *kong.Node, words []string) position {
	at := position{node: program}
	for _, word := range words {
		switch {
		case at.value != nil:
			at.value = nil
		case at.flagsEnded:
			at.typed = append(at.typed, word)
		case word == "--":
			at.flagsEnded = true
		case strings.HasPrefix(word, "-") && word != "-":
			if flag := flagNamed(at.node, word); flag != nil && !flag.IsBool() && !strings.Contains(word, "=") {
				at.value = flag
			}
		default:
			if child := childNamed(at.node, word); child != nil && len(at.typed) == 0 {
				at.node, at.path = child, append(at.path, child.Name)
			} else {
				at.typed = append(at.typed, word)
			}
		}
	}
	return at
}

// arguments are the candidates for the next positional argument.
func (at position) arguments(names Names) []Candidate {
	node := at.node
	if len(node.Positional) == 0 && node.DefaultCmd != nil {
		node = node.DefaultCmd
	}
	next := len(at.typed)
	if last := len(node.Positional) - 1; last >= 0 && next > last && node.Positional[last].IsCumulative() {
		next = last
	}
	if next >= len(node.Positional) {
		return nil
	}
	return values(node.Positional[next], at, names)
}

func values(value *kong.Value, at position, names Names) []Candidate {
	if value.Enum != "" {
		var found []Candidate
		for _, word := range value.EnumSlice() {
			if word != "" {
				found = append(found, Candidate{Word: word})
			}
		}
		return found
	}
	sort := value.Name
	if value.Flag != nil && value.Flag.PlaceHolder != "" {
		sort = value.Flag.PlaceHolder
	}
	return names(strings.ToLower(sort), at.path, at.typed)
}

func commands(node *kong.Node) []Candidate {
	var found []Candidate
	for _, child := range node.Children {
		if !child.Hidden {
			found = append(found, Candidate{child.Name, child.Help})
		}
	}
	return found
}

func flags(node *kong.Node) []Candidate {
	var found []Candidate
	for at := node; at != nil; at = at.Parent {
		for _, flag := range at.Flags {
			if !flag.Hidden {
				found = append(found, Candidate{"--" + flag.Name, flag.Help})
			}
		}
	}
	return found
}

// flagNamed is the flag that word names at node or above it, with or without a
// value after "=".
func flagNamed(node *kong.Node, word string) *kong.Flag {
	word, _, _ = strings.Cut(word, "=")
	for at := node; at != nil; at = at.Parent {
		for _, flag := range at.Flags {
			if word == "--"+flag.Name || flag.Short != 0 && word == "-"+string(flag.Short) {
				return flag
			}
		}
	}
	return nil
}

func childNamed(node *kong.Node, word string) *kong.Node {
	for _, child := range node.Children {
		if child.Name == word {
			return child
		}
		for _, alias := range child.Aliases {
			if alias == word {
				return child
			}
		}
	}
	return nil
}
