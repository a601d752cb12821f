package main

import (
	"fmt"
	"os/user"
	"strconv"
	"strings"

	"subjectbroker/cmd/sbctl/internal/ui"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

// The JSON shapes of things. Field names are those of an audit entry wherever
// both speak of the same thing; times are RFC 3339, UTC, absent when there is
// none.

type resourceView struct {
	ResourceID string `json:"resourceId"`
	Type       string `json:"type"`
	Kind       string `json:"kind"`
	Version    uint32 `json:"version,omitempty"`
	Bytes      uint64 `json:"bytes"`
	Note       string `json:"note,omitempty"`
	Created    string `json:"created"`
	Updated    string `json:"updated,omitempty"`
	Path       string `json:"path,omitempty"`
	Pin        string `json:"pin,omitempty"`
	SHA256     string `json:"contentSha256,omitempty"`
	Owner      string `json:"owner,omitempty"`
	Domain     string `json:"domain,omitempty"`
}

func viewResource(r *operatorv1.Resource) resourceView {
	return resourceView{
		ResourceID: r.GetName(), Type: r.GetType(), Kind: r.GetKind(), Version: r.GetVersion(), Bytes: r.GetSize(),
		Note: r.GetNote(), Created: ui.Stamp(r.GetCreated()), Updated: ui.Stamp(r.GetUpdated()),
		Path: r.GetPath(), Pin: r.GetPin(), SHA256: r.GetSha256(), Owner: r.GetOwner(), Domain: r.GetDomain(),
	}
}

type versionView struct {
	Version      uint32 `json:"version"`
	Bytes        uint64 `json:"bytes"`
	Created      string `json:"created"`
	RevertedFrom uint32 `json:"revertedFrom,omitempty"`
}

func viewVersions(versions []*operatorv1.Version) []versionView {
	views := make([]versionView, 0, len(versions))
	for _, v := range versions {
		views = append(views, versionView{v.GetVersion(), v.GetSize(), ui.Stamp(v.GetCreated()), v.GetRevertedFrom()})
	}
	return views
}

type subjectView struct {
	SubjectID string  `json:"subjectId"`
	Enabled   bool    `json:"enabled"`
	MinTier   string  `json:"minTier"`
	UID       *uint32 `json:"uid,omitempty"`
	Created   string  `json:"created"`
	Owner     string  `json:"owner,omitempty"`
	Grants    uint32  `json:"grants"`
	Runs      uint32  `json:"runs"`
}

func viewSubject(s *operatorv1.Subject) subjectView {
	return subjectView{
		SubjectID: s.GetName(), Enabled: s.GetEnabled(), MinTier: s.GetMinTier(), UID: s.Uid, Created: ui.Stamp(s.GetCreated()),
		Owner: s.GetOwner(), Grants: s.GetGrants(), Runs: s.GetRuns(),
	}
}

type grantView struct {
	GrantID         string  `json:"grantId"`
	SubjectID       string  `json:"subjectId"`
	Capability      string  `json:"capability"`
	Effect          string  `json:"effect"`
	Until           string  `json:"until,omitempty"`
	Uses            uint64  `json:"uses,omitempty"`
	Used            uint64  `json:"used"`
	Tier            string  `json:"tier,omitempty"`
	RequireApproval bool    `json:"requireApproval"`
	Disclose        bool    `json:"disclose"`
	Note            string  `json:"note,omitempty"`
	Created         string  `json:"created"`
	State           string  `json:"state"`
	Owner           string  `json:"owner,omitempty"`
	GrantedBy       *uint32 `json:"grantedBy,omitempty"`
}

func viewGrant(g *operatorv1.Grant) grantView {
	return grantView{
		GrantID: g.GetGrantId(), SubjectID: g.GetSubject(), Capability: g.GetCapability(), Effect: g.GetEffect(),
		Until: ui.Stamp(g.GetUntil()), Uses: g.GetUses(), Used: g.GetUsed(), Tier: g.GetTier(),
		RequireApproval: g.GetRequireApproval(), Disclose: g.GetDisclose(), Note: g.GetNote(),
		Created: ui.Stamp(g.GetCreated()), State: g.GetState(), Owner: g.GetOwner(), GrantedBy: g.GrantedBy,
	}
}

func viewGrants(grants []*operatorv1.Grant) []grantView {
	views := make([]grantView, 0, len(grants))
	for _, g := range grants {
		views = append(views, viewGrant(g))
	}
	return views
}

type peerView struct {
	UID uint32 `json:"uid"`
	PID int32  `json:"pid"`
}

type denialView struct {
	SubjectID  string `json:"subjectId,omitempty"`
	Capability string `json:"capability,omitempty"`
	ResourceID string `json:"resourceId,omitempty"`
	Cause      string `json:"cause,omitempty"`
	ReasonCode string `json:"reasonCode"`
	Count      uint64 `json:"count"`
	First      string `json:"first"`
	Last       string `json:"last"`
}

func viewDenial(d *operatorv1.DenialGroup) denialView {
	return denialView{
		SubjectID: d.GetSubject(), Capability: d.GetCapability(), ResourceID: resourceOf(d.GetCapability()), Cause: d.GetCause(),
		ReasonCode: d.GetReasonCode(), Count: d.GetCount(), First: ui.Stamp(d.GetFirst()), Last: ui.Stamp(d.GetLast()),
	}
}

// Tables of the same things.

var grantHead = []string{"GRANT", "SUBJECT", "EFFECT", "CAPABILITY", "UNTIL", "USED", "CONDITIONS", "STATE", "BY", "NOTE"}

func (a *app) grantRows(grants []*operatorv1.Grant) [][]string {
	var rows [][]string
	for _, g := range grants {
		rows = append(rows, []string{
			g.GetGrantId(), g.GetSubject(), g.GetEffect(), g.GetCapability(), a.out.When(g.GetUntil()),
			usesOf(g), conditionsOf(g), g.GetState(), uidWords(g.GrantedBy), g.GetNote(),
		})
	}
	return rows
}

// usesOf is how often a grant was used, and of how many uses.
func usesOf(g *operatorv1.Grant) string {
	if g.GetUses() == 0 {
		return fmt.Sprint(g.GetUsed())
	}
	return fmt.Sprintf("%d/%d", g.GetUsed(), g.GetUses())
}

// conditionsOf is what must hold beside time and number of uses.
func conditionsOf(g *operatorv1.Grant) string {
	var conditions []string
	if g.GetTier() != "" {
		conditions = append(conditions, "tier "+g.GetTier())
	}
	if g.GetRequireApproval() {
		conditions = append(conditions, "approval")
	}
	if g.GetDisclose() {
		conditions = append(conditions, "disclose")
	}
	return strings.Join(conditions, ", ")
}

func grantIDs(grants []*operatorv1.Grant) []string {
	var ids []string
	for _, g := range grants {
		ids = append(ids, g.GetGrantId())
	}
	return ids
}

// readCapability is word as a capability: without an action it is read.
func readCapability(word string) string {
	if strings.Contains(word, ":") {
		return word
	}
	return "read:" + word
}

// resourceOf is the resource in a capability to read or use one; else empty.
func resourceOf(capability string) string {
	action, object, _ := strings.Cut(capability, ":")
	if action == "read" || action == "use" {
		return object
	}
	return ""
}

// Tiers, as the daemon calls them. Every run has the first.
const (
	tierCooperative = "cooperative"
	tierBound       = "bound"
	tierSandboxed   = "sandboxed"
	tierSeparate    = "separate"
)

// uidList are uids for people, in one line.
func uidList(uids []uint32) string {
	words := make([]string, 0, len(uids))
	for _, uid := range uids {
		words = append(words, strconv.FormatUint(uint64(uid), 10))
	}
	return strings.Join(words, ", ")
}

// uidWords is a uid for people: with its name, where this machine has one for it.
func uidWords(uid *uint32) string {
	if uid == nil {
		return ""
	}
	number := strconv.FormatUint(uint64(*uid), 10)
	if known, err := user.LookupId(number); err == nil && known.Username != "" {
		return number + " " + known.Username
	}
	return number
}

// yesNo is a truth for people.
func yesNo(value bool) string {
	if value {
		return "yes"
	}
	return "no"
}
