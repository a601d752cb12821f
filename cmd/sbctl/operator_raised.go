package main

import (
	"context"
	"fmt"
	"strings"
)

// raised are the subjects whose minimum tier is above cooperative. While there is
// one, what discloses or grants needs an operator who is known.
func (a *app) raised(ctx context.Context, doing string) ([]string, error) {
	all, err := a.subjects(ctx, doing)
	var names []string
	for _, s := range all {
		if tier := s.GetMinTier(); tier != "" && tier != tierCooperative {
			names = append(names, s.GetName())
		}
	}
	return names, err
}

// confirmRemoval asks before the passphrase goes that subjects depend on.
func (a *app) confirmRemoval(ctx context.Context, doing string) error {
	names, err := a.raised(ctx, doing)
	if err != nil || len(names) == 0 {
		return err
	}
	a.say("warning: the minimum tier of %s is above %s: without a passphrase, what grants, discloses or starts their launches is refused until one is set again",
		strings.Join(names, ", "), tierCooperative)
	if a.opts.Yes {
		return nil
	}
	tty, err := a.tty()
	if err != nil {
		return refuse(doing, "there is no terminal to ask on: add --yes, or first lower the minimum tier").
			withHint("%s", a.paste("subject", "set", names[0], "--min-tier", tierCooperative))
	}
	_ = tty.Close()
	return a.confirm(ctx, doing, "Remove the passphrase all the same?")
}

// withoutPassphrase says what it means that no passphrase is set.
func (a *app) withoutPassphrase(ctx context.Context, doing string, others bool) (string, error) {
	names, err := a.raised(ctx, doing)
	switch {
	case err != nil:
		return "", err
	case len(names) > 0 && others:
		return fmt.Sprintf("not set: %s demands more than %s, so what grants or discloses is for another operator, or waits for one", strings.Join(names, ", "), tierCooperative), nil
	case len(names) > 0:
		return fmt.Sprintf("not set, and %s demands more than %s: what grants or discloses is refused until one is set", strings.Join(names, ", "), tierCooperative), nil
	case others:
		return "not set", nil
	}
	return "not set: no subject's minimum tier can be raised, and nothing asks", nil
}
