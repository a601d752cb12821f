package main

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	"subjectbroker/cmd/sbctl/internal/nearest"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

// What was denied of the memory: a request about tenants.

// Actions of capabilities about the memory.
const (
	memoryRead  = "memory.read"
	memoryWrite = "memory.write"
)

// recalled is a request about the memory that was denied.
type recalled struct {
	action  string   // memory.read or memory.write
	tenants []string // that were named; none: all that may be read, or an entry that is not there
	tool    string   // as the agent called it
	entry   string   // that it was about, if about one
	key     string   // agent key that it came with, if with one
	holds   []string // tenants of that key
}

// aboutMemory is what a denied capability says; ok is false for any other.
func aboutMemory(capability string) (action string, tenants []string, ok bool) {
	action, object, named := strings.Cut(capability, ":")
	if action != memoryRead && action != memoryWrite {
		return "", nil, false
	}
	if named {
		tenants = strings.Split(object, ",")
	}
	return action, tenants, true
}

// asksFor reports whether what was denied is what a person asks about: the same
// capability, or one that names its tenant beside others.
func asksFor(denied, asked string) bool {
	if denied == readCapability(asked) || denied == asked {
		return true
	}
	if asked == agentKeyDenied && strings.HasPrefix(denied, agentKeyDenied+":") {
		return true
	}
	action, tenants, ok := aboutMemory(denied)
	want, tenant, named := strings.Cut(asked, ":")
	return ok && want == action && (!named || slices.Contains(tenants, tenant))
}

// learnMemory finds out what a denied request about the memory was.
func (a *app) learnMemory(ctx context.Context, known *knowledge, d *operatorv1.DenialGroup) {
	action, tenants, ok := aboutMemory(d.GetCapability())
	if !ok {
		return
	}
	r := &recalled{action: action, tenants: tenants}
	known.recalled, known.tenantNames = r, a.tenantNamesNow(ctx)
	request := &operatorv1.ReadAuditRequest{Subject: d.GetSubject(), Decision: "deny", Kind: "memory.*", Since: d.GetLast()}
	_ = a.eachLine(ctx, "", request, func(line []byte) error { // the denial is told all the same
		var e struct {
			ResourceID, ReasonCode, Tool, KeyID, Capability string
			Tenants                                         []string
		}
		if json.Unmarshal(line, &e) == nil && e.ReasonCode == d.GetReasonCode() && e.Capability == action && slices.Equal(e.Tenants, tenants) && r.tool == "" {
			r.tool, r.entry, r.key = e.Tool, e.ResourceID, e.KeyID
		}
		return nil
	})
	if r.key == "" {
		return
	}
	r.holds = a.keyTenants(ctx, r.key)
}

// keyTenants are the tenants that the key of an id was minted with; none where it is
// not there.
func (a *app) keyTenants(ctx context.Context, id string) (tenants []string) {
	got, _ := call(ctx, a, "", &operatorv1.ListAgentKeysRequest{Key: id, All: true}, operatorv1.OperatorServiceClient.ListAgentKeys)
	for _, k := range got.GetKeys() {
		if k.GetKeyId() == id {
			tenants = k.GetTenants()
		}
	}
	return tenants
}

func (a *app) tenantNamesNow(ctx context.Context) (names []string) {
	tenants, _ := a.tenants(ctx, "")
	for _, t := range tenants {
		names = append(names, t.GetName())
	}
	return names
}

// within reports whether the key that it came with reaches a tenant.
func (r *recalled) within(tenant string) bool { return r.key == "" || slices.Contains(r.holds, tenant) }

// recallNow is how the same request would be judged now; empty where it named no
// tenant, so that this depends on all of them.
func (a *app) recallNow(ctx context.Context, r *recalled, subject string) string {
	for _, tenant := range r.tenants {
		got, err := call(ctx, a, "", &operatorv1.ExplainRequest{Subject: subject, Capability: r.action + ":" + tenant}, operatorv1.OperatorServiceClient.Explain)
		switch {
		case err != nil:
			return ""
		case got.GetDecision() != decisionAllow || !r.within(tenant):
			return "deny"
		}
	}
	if len(r.tenants) == 0 {
		return ""
	}
	return decisionAllow
}

// mostTenants bounds the tenants that are offered to who reaches none.
const mostTenants = 3

// mendMemory is what was probably meant and what would let the same request about
// the memory through. ok is false where it was about something else.
func (k *knowledge) mendMemory(d *operatorv1.DenialGroup) (near string, commands [][]string, ok bool) {
	r := k.recalled
	if r == nil || cause(d.GetCause()) != causeNoGrant {
		return "", nil, false
	}
	subject := d.GetSubject()
	switch {
	case len(r.tenants) > 0:
	case r.entry != "": // that there is no such entry is no matter of grants
		return "", nil, true
	case r.key != "" && len(r.holds) == 0:
		return "", append(commands, k.mintFor(subject, k.tenantNames[:min(len(k.tenantNames), mostTenants)])), true
	case k.reachesOne(subject, r):
		return "", nil, true // mended since
	default:
		for _, tenant := range k.tenantNames[:min(len(k.tenantNames), mostTenants)] {
			commands = append(commands, []string{"grant", subject, r.action + ":" + tenant})
		}
		return "", commands, true
	}
	keyLacks := false
	for _, tenant := range r.tenants {
		if !slices.Contains(k.tenantNames, tenant) {
			if close, found := nearest.Name(tenant, k.tenantNames); found && near == "" {
				near = close
				commands = append(commands, k.reach(subject, r.action+":"+close)...)
			}
			commands = append(commands, []string{"tenant", "add", tenant})
		}
		commands = append(commands, k.reach(subject, r.action+":"+tenant)...)
		keyLacks = keyLacks || !r.within(tenant)
	}
	if keyLacks {
		all := slices.Compact(slices.Sorted(slices.Values(slices.Concat(r.holds, r.tenants))))
		commands = append(commands, k.mintFor(subject, all))
	}
	return near, commands, true
}

// reach are the commands that let a subject reach a tenant; none where it does.
func (k *knowledge) reach(subject, capability string) (commands [][]string) {
	granted := false
	for _, g := range k.grants {
		switch {
		case g.GetSubject() != subject || g.GetState() != "active" || !matches(g.GetCapability(), capability):
		case g.GetEffect() == "deny":
			commands = append(commands, []string{"revoke", g.GetGrantId()})
		default:
			granted = true
		}
	}
	if !granted {
		commands = append(commands, []string{"grant", subject, capability})
	}
	return commands
}

func (k *knowledge) reachesOne(subject string, r *recalled) bool {
	return slices.ContainsFunc(k.tenantNames, func(tenant string) bool {
		return r.within(tenant) && len(k.reach(subject, r.action+":"+tenant)) == 0
	})
}

// mintFor is the command that makes another key; what a key reaches is fixed.
func (k *knowledge) mintFor(subject string, tenants []string) []string {
	words := []string{"agent-key", "mint", "--subject", subject}
	for _, tenant := range tenants {
		words = append(words, "--tenant", tenant)
	}
	return words
}
