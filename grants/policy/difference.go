package policy

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"subjectbroker/grants"
)

// difference says in words which fields differ.
type difference []string

func (d *difference) add(field, was, is string) {
	if was != is {
		*d = append(*d, fmt.Sprintf("%s: %s -> %s", field, orNone(was), orNone(is)))
	}
}

// addSaid is add for a field that a document may leave out.
func (d *difference) addSaid(field, was, is string) {
	if is != "" {
		d.add(field, was, is)
	}
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

func kindOf(r Resource) string {
	if r.Kind == "" {
		return "a file"
	}
	return "of kind " + r.Kind
}

func resourceDifference(was, is Resource) (d difference) {
	d.add("file", was.File, is.File)
	d.add("pin", was.Pin, is.Pin)
	d.addSaid("sha256", was.SHA256, is.SHA256)
	d.addSaid("domain", was.Domain, is.Domain)
	d.addSaid("note", was.Note, is.Note)
	return d
}

func subjectDifference(was, is Subject) (d difference) {
	if is.UID != nil {
		d.add("uid", uidText(was.UID), uidText(is.UID))
	}
	d.addSaid("minTier", orCooperative(was.MinTier), is.MinTier.String())
	if is.Enabled != nil {
		enabled := was.Enabled == nil || *was.Enabled
		d.add("enabled", strconv.FormatBool(enabled), strconv.FormatBool(*is.Enabled))
	}
	return d
}

func toolDifference(was, is *grants.Tool) (d difference) {
	d.add("requires", patternsText(was.Requires), patternsText(is.Requires))
	d.add("approval", toolApprovalText(was.Approval), toolApprovalText(is.Approval))
	d.add("gate", gateText(was.Gate), gateText(is.Gate))
	return d
}

func profileDifference(was, is *grants.Profile) (d difference) {
	d.add("tools", strings.Join(was.Tools, " "), strings.Join(is.Tools, " "))
	d.add("caps", capsText(was.Caps), capsText(is.Caps))
	d.add("approval", was.Approval.String(), is.Approval.String())
	return d
}

func patternsText(list []grants.Pattern) string {
	texts := make([]string, len(list))
	for i, p := range list {
		texts[i] = p.String()
	}
	return strings.Join(texts, " ")
}

// capsText tells caps that leave nothing from caps that are not said.
func capsText(list []grants.Pattern) string {
	if list != nil && len(list) == 0 {
		return "[]"
	}
	return patternsText(list)
}

func toolApprovalText(approval bool) string {
	if approval {
		return "always"
	}
	return "never"
}

func gateText(gate bool) string {
	if gate {
		return "always"
	}
	return ""
}

func uidText(uid *uint32) string {
	if uid == nil {
		return ""
	}
	return strconv.FormatUint(uint64(*uid), 10)
}

func orCooperative(t grants.Tier) string {
	if t == 0 {
		t = grants.Cooperative
	}
	return t.String()
}

func grantDifference(was, is *grants.Grant) (d difference) {
	d.add("until", untilText(was.Until), untilText(is.Until))
	d.add("uses", usesText(was.Uses), usesText(is.Uses))
	d.add("tier", was.Tier.String(), is.Tier.String())
	d.add("requireApproval", strconv.FormatBool(was.RequireApproval), strconv.FormatBool(is.RequireApproval))
	d.add("disclose", strconv.FormatBool(was.Disclose), strconv.FormatBool(is.Disclose))
	d.add("note", was.Note, is.Note)
	return d
}

func untilText(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}

func usesText(n uint64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatUint(n, 10)
}
