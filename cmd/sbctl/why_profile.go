package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"subjectbroker/grants/policy"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

// stop is a profile that keeps its runs from a capability, and why.
type stop struct {
	profile string
	cause   cause
	detail  string // the evaluator's words
}

// profileOf is a profile by name, and whose it is.
type profileOf struct{ name, subject string }

// profiles are those of all subjects, sorted by name. They are declared in
// documents, and so read out of the one that export writes; none where that
// cannot be had, because whoever asks has something to say without them.
func (a *app) profiles(ctx context.Context) []profileOf {
	got, err := call(ctx, a, "", &operatorv1.ExportRequest{}, operatorv1.OperatorServiceClient.Export)
	if err != nil {
		return nil
	}
	document, err := policy.Parse(got.GetDocument(), policy.Env{})
	if err != nil {
		return nil
	}
	var all []profileOf
	for _, name := range slices.Sorted(maps.Keys(document.Profiles)) {
		all = append(all, profileOf{name, document.Profiles[name].Subject})
	}
	return all
}

// stops are those of the profiles under which the capability cannot be reached.
func (a *app) stops(ctx context.Context, subject, capability string, profiles []string) []stop {
	var found []stop
	for _, profile := range profiles {
		got, err := call(ctx, a, "", &operatorv1.ExplainRequest{Subject: subject, Capability: capability, Profile: profile}, operatorv1.OperatorServiceClient.Explain)
		if err != nil || !ofProfile(cause(got.GetCause())) {
			continue
		}
		why := stop{profile: profile, cause: cause(got.GetCause())}
		for _, step := range got.GetSteps() {
			if step.GetResult() == "fail" && step.GetDetail() != "" {
				why.detail = step.GetDetail()
			}
		}
		found = append(found, why)
	}
	return found
}

// ofProfile says whether a profile, and no grant, is why something was denied.
func ofProfile(c cause) bool { return c == causeToolNotListed || c == causeCapsNarrowed }

// learnProfiles asks for what a denial that a profile caused is compared with.
func (a *app) learnProfiles(ctx context.Context, known *knowledge, d *operatorv1.DenialGroup) {
	c := cause(d.GetCause())
	if !ofProfile(c) && c != causeUnknownProfile {
		return
	}
	known.profiles = nil
	for _, p := range a.profiles(ctx) {
		if p.subject == d.GetSubject() {
			known.profiles = append(known.profiles, p.name)
		}
	}
	if ofProfile(c) {
		known.stops = a.stops(ctx, d.GetSubject(), d.GetCapability(), known.profiles)
	}
}

// document says what would have to change in a document, and is empty where none
// is about it.
func (k *knowledge) document(d *operatorv1.DenialGroup) string {
	if cause(d.GetCause()) == causeUnknownProfile {
		if len(k.profiles) == 0 {
			return fmt.Sprintf("profiles: declare one of subject %s; there is none", d.GetSubject())
		}
		return fmt.Sprintf("profiles: declare it; those of %s are %s", d.GetSubject(), strings.Join(k.profiles, ", "))
	}
	if place := k.called.document(d); place != "" {
		return place
	}
	var places []string
	for _, s := range k.stops {
		place := fmt.Sprintf("profiles: %s: tools: list a tool that requires %s", s.profile, d.GetCapability())
		if s.cause == causeCapsNarrowed {
			place = fmt.Sprintf("profiles: %s: caps: add %s", s.profile, d.GetCapability())
		}
		if s.detail != "" {
			place += " (" + s.detail + ")"
		}
		places = append(places, place)
	}
	return strings.Join(places, "; ")
}

// mendProfile shows where a profile stops it, and brings a changed document in.
func (k *knowledge) mendProfile(d *operatorv1.DenialGroup) (commands [][]string) {
	for _, s := range k.stops {
		commands = append(commands, []string{"explain", d.GetSubject(), d.GetCapability(), "--profile", s.profile})
	}
	if len(commands) == 0 && ofProfile(cause(d.GetCause())) {
		return nil // mended since
	}
	return append(commands, []string{"apply", "-f", "FILE"})
}

// raiseTier finds how a run gets the tier that is demanded, and then what demands
// it.
func (k *knowledge) raiseTier(subject, capability string) (commands [][]string) {
	demands := []string{k.subjects[subject].GetMinTier()}
	if demands[0] != "" && demands[0] != tierCooperative {
		commands = append(commands, []string{"subject", "set", subject, "--min-tier", tierCooperative})
	}
	for _, g := range k.grants {
		if g.GetSubject() == subject && g.GetEffect() == decisionAllow && g.GetTier() != "" && matches(g.GetCapability(), capability) {
			demands = append(demands, g.GetTier())
			commands = append(commands, []string{"grant", subject, g.GetCapability()})
		}
	}
	if slices.Contains(demands, tierSeparate) {
		return commands // only another uid has it
	}
	run := []string{"run", "--subject", subject}
	if slices.Contains(demands, tierSandboxed) {
		run = append(run, "--sandbox")
	}
	return append([][]string{append(run, "--", "CMD")}, commands...)
}
