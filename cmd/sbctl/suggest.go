package main

import (
	"context"
	"errors"
	"slices"
	"strings"

	"subjectbroker/cmd/sbctl/internal/nearest"
	"subjectbroker/proto/wire"
)

// suggest adds to a failure for a name that does not exist the same command
// with the nearest name that does. It asks the daemon only after it has said
// that the name is unknown, and a suggestion that does not come is no failure.
func (a *app) suggest(ctx context.Context, args []string, err error) error {
	failed, ok := errors.AsType[*failure](err)
	if !ok || failed.hint != "" || failed.code != wire.InvalidArgument {
		return err
	}
	said, word, found := cutLast(failed.what, " is named ")
	if !found {
		return err
	}
	var names []string
	switch {
	case strings.HasSuffix(said, "resource"):
		resources, _ := a.resources(ctx, "")
		for _, r := range resources {
			names = append(names, r.GetName())
		}
	case strings.HasSuffix(said, "subject"):
		subjects, _ := a.subjects(ctx, "")
		for _, s := range subjects {
			names = append(names, s.GetName())
		}
	}
	near, ok := nearest.Name(word, names)
	if !ok {
		return err
	}
	words := slices.Clone(args)
	replaced := false
	for i, arg := range words {
		action, object, isCapability := strings.Cut(arg, ":")
		switch {
		case arg == word:
			words[i], replaced = near, true
		case isCapability && object == word:
			words[i], replaced = action+":"+near, true
		}
	}
	if replaced {
		for i := range words {
			words[i] = shellQuote(words[i])
		}
		failed.hint = "sbctl " + strings.Join(words, " ")
	}
	return failed
}

// cutLast is strings.Cut at the last separator.
func cutLast(text, separator string) (before, after string, found bool) {
	if at := strings.LastIndex(text, separator); at >= 0 {
		return text[:at], text[at+len(separator):], true
	}
	return text, "", false
}
