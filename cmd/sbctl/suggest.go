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
// with the nearest name that does. It asks the daemon only after that has said
// which name is unknown, and a suggestion that does not come is no failure.
func (a *app) suggest(ctx context.Context, args []string, err error) error {
	failed, ok := errors.AsType[*failure](err)
	if !ok || failed.hint != "" {
		return err
	}
	refusal := fromSocket(failed.cause)
	if refusal == nil || refusal.Name == "" {
		return err
	}
	near, ok := nearest.Name(refusal.Name, a.namesOf(ctx, refusal.Unknown))
	if args[0] == "grant" && refusal.Unknown == wire.UnknownResource && slices.Contains(a.namesOf(ctx, wire.UnknownTenant), refusal.Name) {
		failed.hint = a.paste("grant", args[1], "memory.read:"+refusal.Name)
		return failed
	}
	if !ok {
		if refusal.Unknown == wire.UnknownTenant {
			failed.hint = a.paste("tenant", "list")
		}
		return err
	}
	words := slices.Clone(args)
	replaced := false
	for i, arg := range words {
		action, object, isCapability := strings.Cut(arg, ":")
		switch {
		case arg == refusal.Name:
			words[i], replaced = near, true
		case isCapability && object == refusal.Name:
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

// sayNearest says which name was probably meant where a decision was about one
// that does not exist.
func (a *app) sayNearest(ctx context.Context, why cause, subject, capability string) {
	typed, what, noun := subject, wire.UnknownSubject, "subject"
	switch why {
	case causeUnknownSubject:
	case causeUnknownResource:
		typed, what, noun = resourceOf(capability), wire.UnknownResource, "resource"
	case causeUnknownTenant:
		_, tenant, _ := strings.Cut(capability, ":")
		typed, what, noun = tenant, wire.UnknownTenant, "tenant"
	default:
		return
	}
	if near, ok := nearest.Name(typed, a.namesOf(ctx, what)); ok {
		a.done("no %s is named %s, did you mean %s?", noun, typed, near)
	}
}

// namesOf are the names that there are: of resources, of tenants, or of subjects.
func (a *app) namesOf(ctx context.Context, what string) []string {
	var names []string
	switch what {
	case wire.UnknownResource:
		resources, _ := a.resources(ctx, "")
		for _, r := range resources {
			names = append(names, r.GetName())
		}
	case wire.UnknownTenant:
		tenants, _ := a.tenants(ctx, "")
		for _, t := range tenants {
			names = append(names, t.GetName())
		}
	case wire.UnknownSubject:
		subjects, _ := a.subjects(ctx, "")
		for _, s := range subjects {
			names = append(names, s.GetName())
		}
	}
	return names
}
