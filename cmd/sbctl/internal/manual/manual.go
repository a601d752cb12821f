// Package manual writes what a person reads about a command, as --help on a
// terminal and as man pages, both from the one grammar that also parses it.
//
// A command's text is its own: the one-line help in the grammar, and what its
// Help method returns. In that text a line that starts with two spaces is shown
// as it stands, and a line that ends in a colon and stands alone is a heading.
package manual

import (
	"fmt"
	"io"
	"strings"

	"github.com/alecthomas/kong"
)

// width is the column after which help text is not continued.
const width = 78

// column is where the descriptions of commands and flags begin.
const column = 26

// Text writes the help of node.
func Text(w io.Writer, node *kong.Node) error {
	var page strings.Builder
	fmt.Fprintf(&page, "Usage: %s\n\n%s\n", Synopsis(node), sentence(node.Help))
	if node.Detail != "" {
		fmt.Fprintf(&page, "\n%s\n", strings.TrimSpace(node.Detail))
	}
	writeCommands(&page, node)
	if len(node.Positional) > 0 {
		page.WriteString("\nArguments:\n")
		for _, argument := range node.Positional {
			entry(&page, argumentName(argument), argument.Help)
		}
	}
	writeFlags(&page, "Flags", Flags(node))
	if root := rootOf(node); root != node {
		writeFlags(&page, "Global flags", Flags(root))
	}
	if len(node.Children) > 0 {
		fmt.Fprintf(&page, "\nRun %q for one of them.\n", strings.Join(append(Path(node), "COMMAND", "--help"), " "))
	}
	_, err := io.WriteString(w, page.String())
	return err
}

// Synopsis is how node is written on a command line.
func Synopsis(node *kong.Node) string {
	words := Path(node)
	flags := []string{"[flags]"}
	for _, argument := range node.Positional {
		name := argumentName(argument)
		if argument.PassthroughMode != kong.PassThroughModeNone { // flags behind it are not ours
			words, flags = append(words, "[flags]", "--"), nil
		}
		if !argument.Required {
			name = "[" + name + "]"
		}
		words = append(words, name)
	}
	switch {
	case node.DefaultCmd != nil && len(node.DefaultCmd.Positional) > 0:
		words = append(words, argumentName(node.DefaultCmd.Positional[0])+" | COMMAND")
	case len(node.Children) > 0 && node.DefaultCmd != nil:
		words = append(words, "[COMMAND]")
	case len(node.Children) > 0:
		words = append(words, "COMMAND")
	}
	for _, flag := range Flags(node) {
		if flag.Required {
			words = append(words, flagName(flag, false))
		}
	}
	return strings.Join(append(words, flags...), " ")
}

// Commands are the children of node that a person is told about.
func Commands(node *kong.Node) []*kong.Node {
	var shown []*kong.Node
	for _, child := range node.Children {
		if !child.Hidden {
			shown = append(shown, child)
		}
	}
	return shown
}

// Flags are the flags of node itself that a person is told about.
func Flags(node *kong.Node) []*kong.Flag {
	var shown []*kong.Flag
	for _, flag := range node.Flags {
		if !flag.Hidden {
			shown = append(shown, flag)
		}
	}
	return shown
}

// Path is the words that lead to node, the program's name first.
func Path(node *kong.Node) []string {
	if node.Parent == nil {
		return []string{node.Name}
	}
	return append(Path(node.Parent), node.Name)
}

func rootOf(node *kong.Node) *kong.Node {
	for node.Parent != nil {
		node = node.Parent
	}
	return node
}

// writeCommands lists the commands below node under their groups' titles, in
// the order in which the grammar first names each group.
func writeCommands(page *strings.Builder, node *kong.Node) {
	for _, group := range groups(node) {
		fmt.Fprintf(page, "\n%s:\n", group.title)
		for _, command := range group.commands {
			name := command.Name
			if command == node.DefaultCmd {
				name += " (default)"
			}
			entry(page, name, command.Help)
		}
	}
}

type group struct {
	title    string
	commands []*kong.Node
}

func groups(node *kong.Node) []group {
	var found []group
	index := map[string]int{}
	for _, command := range Commands(node) {
		title := "Commands"
		if command.Group != nil {
			title = command.Group.Title
		}
		at, ok := index[title]
		if !ok {
			at = len(found)
			index[title] = at
			found = append(found, group{title: title})
		}
		found[at].commands = append(found[at].commands, command)
	}
	return found
}

func writeFlags(page *strings.Builder, title string, flags []*kong.Flag) {
	if len(flags) == 0 {
		return
	}
	fmt.Fprintf(page, "\n%s:\n", title)
	for _, flag := range flags {
		entry(page, flagName(flag, true), flag.Help)
	}
}

// entry writes a name and, beside it or below it, what it means.
func entry(page *strings.Builder, name, help string) {
	lines := wrap(help, width-column)
	if len(name)+2 > column-2 {
		fmt.Fprintf(page, "  %s\n", name)
	} else {
		fmt.Fprintf(page, "  %-*s%s\n", column-2, name, lines[0])
		lines = lines[1:]
	}
	for _, line := range lines {
		fmt.Fprintf(page, "%*s%s\n", column, "", line)
	}
}

// wrap breaks text between words; it returns at least one line.
func wrap(text string, limit int) []string {
	lines := []string{""}
	for word := range strings.FieldsSeq(text) {
		last := &lines[len(lines)-1]
		switch {
		case *last == "":
			*last = word
		case len(*last)+1+len(word) <= limit:
			*last += " " + word
		default:
			lines = append(lines, word)
		}
	}
	return lines
}

func argumentName(argument *kong.Positional) string {
	name := argument.Name
	if argument.Tag != nil && argument.Tag.PlaceHolder != "" {
		name = argument.Tag.PlaceHolder
	}
	if name != "-" {
		name = strings.ToUpper(name)
	}
	if argument.IsCumulative() {
		name += "…"
	}
	return name
}

// flagName is a flag with its value; both spellings where it has two.
func flagName(flag *kong.Flag, both bool) string {
	name := "--" + flag.Name
	if !flag.IsBool() {
		name += " " + flagValue(flag)
	}
	switch {
	case both && flag.Short != 0:
		return fmt.Sprintf("-%c, %s", flag.Short, name)
	case !both && flag.Short != 0:
		return fmt.Sprintf("-%c %s", flag.Short, flagValue(flag))
	case both:
		return "    " + name
	}
	return name
}

func flagValue(flag *kong.Flag) string {
	switch {
	case flag.PlaceHolder != "":
		return flag.PlaceHolder
	case flag.Enum != "":
		return strings.ReplaceAll(flag.Enum, ",", "|")
	}
	return strings.ToUpper(flag.Name)
}

// sentence is a one-line help as a sentence.
func sentence(help string) string {
	if help == "" || strings.HasSuffix(help, ".") {
		return help
	}
	return help + "."
}
