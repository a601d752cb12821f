package main

import (
	"fmt"
	"os"
	"path/filepath"

	"subjectbroker/cmd/sbctl/internal/manual"
	"subjectbroker/cmd/sbctl/internal/ui"
)

type manCmd struct {
	Dir string `arg:"" help:"Directory to write into; made when it does not exist."`
}

// Help is the manual of man.
func (manCmd) Help() string {
	return `Writes one page for sbctl and one for each of its commands, from the text that
--help shows.

Examples:
  sbctl man /usr/local/share/man/man1`
}

type pageView struct {
	Path string `json:"path"`
}

// Run writes the pages.
func (c manCmd) Run(a *app) error {
	const doing = "writing man pages"
	if err := os.MkdirAll(c.Dir, 0o755); err != nil { //nolint:gosec // manuals are for everybody
		return fail(err, doing)
	}
	list := ui.List{Head: []string{"PAGE"}}
	views := []pageView{}
	for _, page := range manual.Pages(a.model.Node) {
		path := filepath.Join(c.Dir, page.File())
		if err := writePage(path, page); err != nil {
			return fail(err, doing)
		}
		list.IDs = append(list.IDs, path)
		list.Rows = append(list.Rows, []string{path})
		views = append(views, pageView{path})
	}
	list.Items = views
	return a.out.List(list)
}

func writePage(path string, page manual.Page) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := page.Roff(file); err != nil {
		_ = file.Close()
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return file.Close()
}
