package manual

import (
	"fmt"
	"io"
	"strings"

	"github.com/alecthomas/kong"
)

// Page is one man page.
type Page struct {
	// Name is the page's name and, with section 1, its file's: "sbctl-secret".
	Name string
	node *kong.Node
}

// File is the name of the page's file.
func (p Page) File() string { return p.Name + ".1" }

// Pages are the man pages of a program: one for itself, one for each of its
// commands with all that is below it.
func Pages(program *kong.Node) []Page {
	pages := []Page{{Name: program.Name, node: program}}
	for _, command := range Commands(program) {
		pages = append(pages, Page{Name: strings.Join(Path(command), "-"), node: command})
	}
	return pages
}

// Roff writes the page in the man macros.
func (p Page) Roff(w io.Writer) error {
	var page strings.Builder
	fmt.Fprintf(&page, ".TH %s 1 \"\" SubjectBroker \"SubjectBroker manual\"\n", roffWord(strings.ToUpper(p.Name)))
	fmt.Fprintf(&page, ".SH NAME\n%s \\- %s\n", roffText(p.Name), roffText(strings.TrimSuffix(p.node.Help, ".")))
	fmt.Fprintf(&page, ".SH SYNOPSIS\n.B %s\n", roffText(Synopsis(p.node)))
	if p.node.Detail != "" {
		page.WriteString(".SH DESCRIPTION\n")
		roffDetail(&page, p.node.Detail)
	}
	roffArguments(&page, ".SH ARGUMENTS", p.node)
	if p.node.Parent == nil {
		for _, group := range groups(p.node) {
			fmt.Fprintf(&page, ".SH %s\n", roffText(strings.ToUpper(group.title)))
			for _, command := range group.commands {
				fmt.Fprintf(&page, ".TP\n.BR %s (1)\n%s\n", roffText(strings.Join(Path(command), "-")), roffText(sentence(command.Help)))
			}
		}
	} else if commands := Commands(p.node); len(commands) > 0 {
		page.WriteString(".SH COMMANDS\n")
		for _, command := range commands {
			fmt.Fprintf(&page, ".SS %s\n%s\n", roffText(Synopsis(command)), roffText(sentence(command.Help)))
			if command.Detail != "" {
				page.WriteString(".PP\n")
				roffDetail(&page, command.Detail)
			}
			roffArguments(&page, ".PP", command)
			roffFlags(&page, Flags(command))
		}
	}
	if flags := Flags(p.node); len(flags) > 0 {
		page.WriteString(".SH OPTIONS\n")
		roffFlags(&page, flags)
	}
	if p.node.Parent != nil {
		fmt.Fprintf(&page, ".SH SEE ALSO\n.BR %s (1)\n", roffText(rootOf(p.node).Name))
	}
	_, err := io.WriteString(w, page.String())
	return err
}

func roffArguments(page *strings.Builder, heading string, node *kong.Node) {
	if len(node.Positional) == 0 {
		return
	}
	fmt.Fprintf(page, "%s\n", heading)
	for _, argument := range node.Positional {
		fmt.Fprintf(page, ".TP\n.I %s\n%s\n", roffWord(argumentName(argument)), roffText(argument.Help))
	}
}

func roffFlags(page *strings.Builder, flags []*kong.Flag) {
	for _, flag := range flags {
		fmt.Fprintf(page, ".TP\n.B %s\n%s\n", roffText(strings.TrimSpace(flagName(flag, true))), roffText(flag.Help))
	}
}

// roffDetail turns the text of a Help method into paragraphs, headings and
// blocks that are shown as they stand.
func roffDetail(page *strings.Builder, detail string) {
	verbatim := false
	for line := range strings.SplitSeq(strings.TrimSpace(detail), "\n") {
		shown := strings.HasPrefix(line, "  ")
		if shown != verbatim {
			page.WriteString(map[bool]string{true: ".RS 4\n.nf\n", false: ".fi\n.RE\n"}[shown])
			verbatim = shown
		}
		switch {
		case shown:
			fmt.Fprintln(page, roffText(strings.TrimPrefix(line, "  ")))
		case line == "":
			page.WriteString(".PP\n")
		default:
			fmt.Fprintln(page, roffText(line))
		}
	}
	if verbatim {
		page.WriteString(".fi\n.RE\n")
	}
}

// roffText escapes what troff would obey: backslashes, hyphens that must stay
// hyphens when copied, and a dot or quote that begins a line.
func roffText(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "…", "...").Replace(text)
	if strings.HasPrefix(text, ".") || strings.HasPrefix(text, "'") {
		text = `\&` + text
	}
	return text
}

// roffWord is text as one argument of a macro.
func roffWord(text string) string {
	return `"` + strings.ReplaceAll(roffText(text), `"`, `""`) + `"`
}
