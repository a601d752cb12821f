package policy

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"subjectbroker/grants"
	"subjectbroker/grants/rules"
)

// Verbs of a [Change].
const (
	Add    = "add"
	Modify = "change"
	Remove = "remove"
)

// Things that a [Change] is about.
const (
	AResource = "resource"
	ASubject  = "subject"
	AProfile  = "profile"
	ATool     = "tool"
	AServer   = "server"
	APolicy   = "policy"
	ATenant   = "tenant"
	AGrant    = "grant"
)

// Change is one difference between a document and the current state.
type Change struct {
	Verb   string // Add, Modify or Remove
	What   string // AResource, ATool, AServer, ATenant, ASubject, AProfile, APolicy or AGrant
	Name   string // of the thing; of a policy its subject and server, of a grant its subject, effect and capability
	Detail string // what differs, or what it goes with; empty when the thing is simply new or gone

	// Grant is the grant as it shall be or, when it is removed, as it is. A
	// changed one keeps id, owner and time of creation, its use count and, while
	// until is the same, its end on the boot clock. An added one has no id yet,
	// and one with a new end has no boot clock.
	Grant grants.Grant

	// Profile and Tool are a profile and a tool as they shall be or, when they are
	// removed, as they are. A changed one keeps owner and time of creation.
	Profile grants.Profile
	Tool    grants.Tool

	// Server and Policy are likewise. A changed server also keeps until when its rules
	// only log.
	Server grants.Server
	Policy rules.Policy

	// Tenant is likewise.
	Tenant grants.Tenant
}

// Plan lists what must change so that current becomes what want says, in the
// order to do it: resources, tools, servers, tenants, subjects, profiles, policies and
// grants to add or change, then grants, policies, profiles, subjects, tenants, servers,
// tools and resources to remove.
//
// Something is removed only if prune is set, it carries want's owner, and want
// does not hold it; with a subject go its grants, profiles and policies, with a
// server its policies and the grants to call its tools, with a resource or a tenant the
// exact grants that name it, whoever made them. What exists keeps its owner. A grant whose
// conditions are the same is no change, so that nothing is extended and no use count
// begins anew.
//
// Plan is an error if a resource would turn into one of another kind, or a
// profile into one of another subject; if prune is set without an owner; or if
// pruning removes what a grant or policy of want, or a profile or server that stays,
// names.
func Plan(current, want *Document, prune bool) ([]Change, error) {
	if prune && want.Owner == "" {
		return nil, errors.New("pruning needs an owner in the document")
	}
	var changes []Change
	for _, name := range slices.Sorted(maps.Keys(want.Resources)) {
		was, known := current.Resources[name]
		r := want.Resources[name]
		if !known {
			changes = append(changes, Change{Verb: Add, What: AResource, Name: name})
			continue
		}
		if was.Kind != r.Kind {
			return nil, fmt.Errorf("resource %s is %s and cannot become %s", name, kindOf(was), kindOf(r))
		}
		changes = modified(changes, Change{What: AResource, Name: name}, resourceDifference(was, r))
	}
	changes = slices.Concat(changes, planTools(current, want), planServers(current, want), planTenants(current, want))
	for _, name := range slices.Sorted(maps.Keys(want.Subjects)) {
		was, known := current.Subjects[name]
		if !known {
			changes = append(changes, Change{Verb: Add, What: ASubject, Name: name})
			continue
		}
		changes = modified(changes, Change{What: ASubject, Name: name}, subjectDifference(was, want.Subjects[name]))
	}
	profiles, err := planProfiles(current, want)
	if err != nil {
		return nil, err
	}
	changes = slices.Concat(changes, profiles, planPolicies(current, want), planGrants(current, want))
	if !prune {
		return changes, nil
	}
	removals := planRemovals(current, want)
	if err := checkRemovals(removals, current, want); err != nil {
		return nil, err
	}
	return append(changes, removals...), nil
}

func planTools(current, want *Document) (changes []Change) {
	for _, name := range slices.Sorted(maps.Keys(want.Tools)) {
		was, known := current.Tools[name]
		c := Change{Verb: Add, What: ATool, Name: name, Tool: want.Tools[name]}
		if !known {
			changes = append(changes, c)
			continue
		}
		c.Tool.Owner, c.Tool.Created = was.Owner, was.Created
		changes = modified(changes, c, toolDifference(&was, &c.Tool))
	}
	return changes
}

// planTenants lists what is new: there is nothing about a tenant that could change.
func planTenants(current, want *Document) (changes []Change) {
	for _, name := range slices.Sorted(maps.Keys(want.Tenants)) {
		if _, known := current.Tenants[name]; !known {
			changes = append(changes, Change{Verb: Add, What: ATenant, Name: name, Tenant: want.Tenants[name]})
		}
	}
	return changes
}

func planServers(current, want *Document) (changes []Change) {
	for _, name := range slices.Sorted(maps.Keys(want.Servers)) {
		was, known := current.Servers[name]
		c := Change{Verb: Add, What: AServer, Name: name, Server: want.Servers[name]}
		if !known || !was.Hosted { // one that was only wrapped was declared by nobody
			changes = append(changes, c)
			continue
		}
		c.Server.Owner, c.Server.Created, c.Server.ObserveUntil = was.Owner, was.Created, was.ObserveUntil
		changes = modified(changes, c, serverDifference(&was, &c.Server))
	}
	return changes
}

func planPolicies(current, want *Document) (changes []Change) {
	for _, key := range sortedKeys(want.Policies) {
		was, known := current.Policies[key]
		c := Change{Verb: Add, What: APolicy, Name: key.String(), Policy: want.Policies[key]}
		if !known {
			changes = append(changes, c)
			continue
		}
		c.Policy.Owner, c.Policy.Created = was.Owner, was.Created
		changes = modified(changes, c, policyDifference(&was, &c.Policy))
	}
	return changes
}

func planProfiles(current, want *Document) (changes []Change, err error) {
	for _, name := range slices.Sorted(maps.Keys(want.Profiles)) {
		was, known := current.Profiles[name]
		c := Change{Verb: Add, What: AProfile, Name: name, Profile: want.Profiles[name]}
		if !known {
			changes = append(changes, c)
			continue
		}
		if was.Subject != c.Profile.Subject {
			return nil, fmt.Errorf("profile %s is of subject %s and cannot become one of %s", name, was.Subject, c.Profile.Subject)
		}
		c.Profile.Owner, c.Profile.Created = was.Owner, was.Created
		changes = modified(changes, c, profileDifference(&was, &c.Profile))
	}
	return changes, nil
}

func planGrants(current, want *Document) []Change {
	held := make(map[key]*grants.Grant, len(current.Grants))
	for i := range current.Grants {
		held[keyOf(&current.Grants[i])] = &current.Grants[i]
	}
	list := slices.Clone(want.Grants)
	grants.SortGrants(list)
	var changes []Change
	for _, g := range list {
		was, known := held[keyOf(&g)]
		if !known {
			changes = append(changes, Change{Verb: Add, What: AGrant, Name: grantName(&g), Grant: g})
			continue
		}
		g.ID, g.Owner, g.Created = was.ID, was.Owner, was.Created
		if g.Until.Equal(was.Until) {
			g.BootID, g.BootUntil = was.BootID, was.BootUntil // the same end, on both clocks
		}
		changes = modified(changes, Change{What: AGrant, Name: grantName(&g), Grant: g}, grantDifference(was, &g))
	}
	return changes
}

// planRemovals lists what carries want's owner and is not in want, and what goes
// with it.
func planRemovals(current, want *Document) []Change {
	goes := func(owner string, kept bool) bool { return owner == want.Owner && !kept }
	var profiles, subjects, tenants, tools, servers, resources, policies []Change
	gone := map[string]string{} // what+name → detail of what goes with it
	for _, name := range slices.Sorted(maps.Keys(current.Subjects)) {
		if _, kept := want.Subjects[name]; goes(current.Subjects[name].Owner, kept) {
			subjects = append(subjects, Change{Verb: Remove, What: ASubject, Name: name})
			gone[ASubject+name] = "goes with its subject"
		}
	}
	for _, name := range slices.Sorted(maps.Keys(current.Resources)) {
		if _, kept := want.Resources[name]; goes(current.Resources[name].Owner, kept) {
			resources = append(resources, Change{Verb: Remove, What: AResource, Name: name})
			gone[AResource+name] = "goes with its resource"
		}
	}
	for _, name := range slices.Sorted(maps.Keys(current.Tenants)) {
		t := current.Tenants[name]
		if _, kept := want.Tenants[name]; goes(t.Owner, kept) {
			tenants = append(tenants, Change{Verb: Remove, What: ATenant, Name: name, Tenant: t})
			gone[ATenant+name] = "goes with its tenant"
		}
	}
	for _, name := range slices.Sorted(maps.Keys(current.Tools)) {
		t := current.Tools[name]
		if _, kept := want.Tools[name]; goes(t.Owner, kept) {
			tools = append(tools, Change{Verb: Remove, What: ATool, Name: name, Tool: t})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(current.Servers)) {
		s := current.Servers[name]
		if _, kept := want.Servers[name]; s.Hosted && goes(s.Owner, kept) {
			servers = append(servers, Change{Verb: Remove, What: AServer, Name: name, Server: s})
			gone[AServer+name] = "goes with its server"
		}
	}
	for _, key := range sortedKeys(current.Policies) {
		one := current.Policies[key]
		change := Change{Verb: Remove, What: APolicy, Name: key.String(), Policy: one}
		_, kept := want.Policies[key]
		if !goes(one.Owner, kept) {
			if change.Detail = cmp.Or(gone[ASubject+one.Subject], gone[AServer+one.Server]); change.Detail == "" {
				continue
			}
		}
		policies = append(policies, change)
	}
	for _, name := range slices.Sorted(maps.Keys(current.Profiles)) {
		one := current.Profiles[name]
		change := Change{Verb: Remove, What: AProfile, Name: name, Profile: one}
		_, kept := want.Profiles[name]
		if !goes(one.Owner, kept) {
			change.Detail = gone[ASubject+one.Subject]
			if change.Detail == "" {
				continue
			}
		}
		profiles = append(profiles, change)
	}
	wanted := make(map[key]bool, len(want.Grants))
	for i := range want.Grants {
		wanted[keyOf(&want.Grants[i])] = true
	}
	list := slices.Clone(current.Grants)
	grants.SortGrants(list)
	var changes []Change
	for i := range list {
		g := &list[i]
		change := Change{Verb: Remove, What: AGrant, Name: grantName(g), Grant: *g}
		if goes(g.Owner, wanted[keyOf(g)]) {
			changes = append(changes, change)
			continue
		}
		change.Detail = gone[ASubject+g.Subject]
		if resource, ok := exactResource(g); ok && change.Detail == "" {
			change.Detail = gone[AResource+resource]
		}
		if tenant, ok := exactTenant(g); ok && change.Detail == "" {
			change.Detail = gone[ATenant+tenant]
		}
		if server, ok := calledServer(g); ok && change.Detail == "" {
			change.Detail = gone[AServer+server]
		}
		if change.Detail != "" {
			changes = append(changes, change)
		}
	}
	return slices.Concat(changes, policies, profiles, subjects, tenants, servers, tools, resources)
}

// checkRemovals refuses to remove what the document itself grants or puts into a
// profile: it names something that it does not declare and that only an older
// version of it did. A tool also stays while somebody else's profile lists it.
func checkRemovals(removals []Change, current, want *Document) error {
	gone := map[string]bool{}
	for _, c := range removals {
		gone[c.What+" "+c.Name] = true
	}
	removed := func(what string, names ...string) error {
		for _, name := range names {
			if gone[name] {
				return fmt.Errorf("%s names %s, which pruning would remove", what, name)
			}
		}
		return nil
	}
	for i := range want.Grants {
		g := &want.Grants[i]
		names := []string{ASubject + " " + g.Subject}
		if resource, exact := exactResource(g); exact {
			names = append(names, AResource+" "+resource)
		}
		if tenant, exact := exactTenant(g); exact {
			names = append(names, ATenant+" "+tenant)
		}
		if server, ok := calledServer(g); ok {
			names = append(names, AServer+" "+server)
		}
		if err := removed(AGrant+" "+grantName(g), names...); err != nil {
			return err
		}
	}
	for _, key := range sortedKeys(want.Policies) {
		if err := removed(APolicy+" "+key.String(), ASubject+" "+key.Subject, AServer+" "+key.Server); err != nil {
			return err
		}
	}
	for name, s := range staying(current.Servers, want.Servers, gone) {
		for _, secret := range s.Secrets() {
			if err := removed(AServer+" "+name, AResource+" "+secret); err != nil {
				return err
			}
		}
	}
	stay := maps.Clone(current.Profiles)
	if stay == nil {
		stay = map[string]grants.Profile{}
	}
	maps.DeleteFunc(stay, func(name string, _ grants.Profile) bool { return gone[AProfile+" "+name] })
	maps.Copy(stay, want.Profiles)
	for _, name := range slices.Sorted(maps.Keys(stay)) {
		names := []string{ASubject + " " + stay[name].Subject}
		for _, tool := range stay[name].Tools {
			names = append(names, ATool+" "+tool)
		}
		if err := removed(AProfile+" "+name, names...); err != nil {
			return err
		}
	}
	return nil
}

// staying yields the servers that there will be, by name.
func staying(current, want map[string]grants.Server, gone map[string]bool) iter.Seq2[string, grants.Server] {
	return func(yield func(string, grants.Server) bool) {
		stay := maps.Clone(current)
		if stay == nil {
			stay = map[string]grants.Server{}
		}
		maps.DeleteFunc(stay, func(name string, _ grants.Server) bool { return gone[AServer+" "+name] })
		maps.Copy(stay, want)
		for _, name := range slices.Sorted(maps.Keys(stay)) {
			if !yield(name, stay[name]) {
				return
			}
		}
	}
}

// calledServer is the one server whose tools a grant is about; not ok: it is about
// something else.
func calledServer(g *grants.Grant) (string, bool) {
	server, _, found := strings.Cut(g.Pattern.Object, "/")
	return server, found && g.Pattern.Action == grants.Call
}

func exactResource(g *grants.Grant) (string, bool) {
	return g.Pattern.Object, g.Pattern.Action.NamesResource() && !g.Pattern.Prefix
}

func exactTenant(g *grants.Grant) (string, bool) {
	return g.Pattern.Object, g.Pattern.Action.NamesTenant() && !g.Pattern.Prefix
}

func modified(changes []Change, c Change, d difference) []Change {
	if len(d) == 0 {
		return changes
	}
	c.Verb, c.Detail = Modify, strings.Join(d, ", ")
	return append(changes, c)
}

func grantName(g *grants.Grant) string {
	return g.Subject + " " + g.Effect.String() + " " + g.Pattern.String()
}
