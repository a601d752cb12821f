package policy

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"

	"subjectbroker/grants"
)

// Marshal writes d in the one form that [Parse] reads back to the same document:
// sections and names in order, what is not said left out, one line for each
// resource, subject, profile, tool, server and grant. Owners of single things, ids, times
// of creation and servers that are only wrapped are not part of a document. It is an error if Parse would refuse the
// result for something else than its references, a past until, or an approval in a grant
// about memory that an older version took.
func Marshal(d *Document) ([]byte, error) {
	root := mapping{}
	root.put("version", number(1))
	if d.Owner != "" {
		if err := grants.CheckName(d.Owner); err != nil {
			return nil, fmt.Errorf("owner: %w", err)
		}
		root.put("owner", text(d.Owner))
	}
	for _, section := range []struct {
		name  string
		build func(*Document) (*yaml.Node, error)
	}{{"resources", resourceNodes}, {"subjects", subjectNodes}, {"profiles", profileNodes}, {"tools", toolNodes}, {"servers", serverNodes}, {"policies", policyNodes}, {"tenants", tenantNodes}, {"grants", grantNodes}} {
		n, err := section.build(d)
		if err != nil {
			return nil, err
		}
		if len(n.Content) > 0 {
			root.put(section.name, n)
		}
	}
	return dump(root.node(0))
}

func resourceNodes(d *Document) (*yaml.Node, error) {
	var m mapping
	for _, name := range slices.Sorted(maps.Keys(d.Resources)) {
		r := d.Resources[name]
		err := grants.CheckName(name)
		if err == nil {
			err = r.check()
		}
		if err == nil && !utf8.ValidString(r.File) {
			err = fmt.Errorf("the path is not valid UTF-8")
		}
		if err != nil {
			return nil, fmt.Errorf("resource %q: %w", name, err)
		}
		var fields mapping
		fields.putText("kind", r.Kind)
		fields.putText("file", r.File)
		fields.putText("pin", r.Pin)
		fields.putText("sha256", r.SHA256)
		fields.putText("domain", r.Domain)
		fields.putText("note", r.Note)
		m.put(name, fields.node(yaml.FlowStyle))
	}
	return m.node(0), nil
}

func subjectNodes(d *Document) (*yaml.Node, error) {
	var m mapping
	for _, name := range slices.Sorted(maps.Keys(d.Subjects)) {
		s := d.Subjects[name]
		err := grants.CheckName(name)
		if err == nil {
			err = s.check()
		}
		if err != nil {
			return nil, fmt.Errorf("subject %q: %w", name, err)
		}
		var fields mapping
		if s.UID != nil {
			fields.put("uid", number(uint64(*s.UID)))
		}
		fields.putText("minTier", s.MinTier.String())
		if s.Enabled != nil {
			fields.put("enabled", boolean(*s.Enabled))
		}
		m.put(name, fields.node(yaml.FlowStyle))
	}
	return m.node(0), nil
}

func profileNodes(d *Document) (*yaml.Node, error) {
	var m mapping
	for _, name := range slices.Sorted(maps.Keys(d.Profiles)) {
		one := d.Profiles[name]
		err := one.Validate()
		if err == nil && one.Name != name {
			err = fmt.Errorf("it is named %q", one.Name)
		}
		if err != nil {
			return nil, fmt.Errorf("profile %q: %w", name, err)
		}
		var fields mapping
		fields.putText("subject", one.Subject)
		tools := &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
		for _, tool := range slices.Sorted(slices.Values(one.Tools)) {
			tools.Content = append(tools.Content, text(tool))
		}
		fields.put("tools", tools)
		if one.Caps != nil {
			fields.put("caps", capabilities(one.Caps))
		}
		if one.Approval != grants.ApprovalAuto {
			fields.putText("approval", one.Approval.String())
		}
		m.put(name, fields.node(yaml.FlowStyle))
	}
	return m.node(0), nil
}

func toolNodes(d *Document) (*yaml.Node, error) {
	var m mapping
	for _, name := range slices.Sorted(maps.Keys(d.Tools)) {
		t := d.Tools[name]
		err := t.Validate()
		if err == nil && t.Name != name {
			err = fmt.Errorf("it is named %q", t.Name)
		}
		if err != nil {
			return nil, fmt.Errorf("tool %q: %w", name, err)
		}
		var fields mapping
		fields.put("requires", capabilities(t.Requires))
		if t.Approval {
			fields.putText("approval", toolApprovalText(t.Approval))
		}
		fields.putText("gate", gateText(t.Gate))
		m.put(name, fields.node(yaml.FlowStyle))
	}
	return m.node(0), nil
}

func tenantNodes(d *Document) (*yaml.Node, error) {
	n := &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
	for _, name := range slices.Sorted(maps.Keys(d.Tenants)) {
		if err := grants.CheckName(name); err != nil {
			return nil, fmt.Errorf("tenant %q: %w", name, err)
		}
		n.Content = append(n.Content, text(name))
	}
	return n, nil
}

func grantNodes(d *Document) (*yaml.Node, error) {
	list := slices.Clone(d.Grants)
	grants.SortGrants(list)
	n := &yaml.Node{Kind: yaml.SequenceNode}
	for i := range list {
		g := &list[i]
		if i > 0 && keyOf(g) == keyOf(&list[i-1]) {
			return nil, fmt.Errorf("grant of %s to %s: twice", g.Pattern, g.Subject)
		}
		fields, err := grantFields(g)
		if err != nil {
			return nil, fmt.Errorf("grant of %s to %s: %w", g.Pattern, g.Subject, err)
		}
		n.Content = append(n.Content, fields.node(yaml.FlowStyle))
	}
	return n, nil
}

func grantFields(g *grants.Grant) (mapping, error) {
	var fields mapping
	if err := grants.CheckName(g.Subject); err != nil {
		return fields, err
	}
	capability, err := g.Pattern.MarshalText()
	if err != nil {
		return fields, err
	}
	if err := g.CheckConditions(); err != nil {
		return fields, err
	}
	fields.putText("subject", g.Subject)
	fields.put("capability", quoted(string(capability)))
	if g.Effect == grants.Deny {
		fields.putText("effect", g.Effect.String())
	}
	if !g.Until.IsZero() {
		fields.putText("until", g.Until.UTC().Format(time.RFC3339Nano))
	}
	if g.Uses != 0 {
		fields.put("uses", number(g.Uses))
	}
	fields.putText("tier", g.Tier.String())
	if g.RequireApproval {
		fields.put("requireApproval", boolean(true))
	}
	if g.Disclose {
		fields.put("disclose", boolean(true))
	}
	fields.putText("note", g.Note)
	return fields, nil
}

// mapping builds a YAML mapping in the order of its puts.
type mapping struct{ content []*yaml.Node }

func (m *mapping) put(key string, value *yaml.Node) {
	m.content = append(m.content, text(key), value)
}

// putText puts value unless it is empty.
func (m *mapping) putText(key, value string) {
	if value != "" {
		m.put(key, text(value))
	}
}

func (m *mapping) node(style yaml.Style) *yaml.Node {
	return &yaml.Node{Kind: yaml.MappingNode, Style: style, Content: m.content}
}

// text relies on the library to put a string in quotes that would read back as
// something else.
func text(s string) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: s}
}

// quoted writes a capability in quotes, which it does not always need, so that
// all of them look alike.
func quoted(s string) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: s, Style: yaml.DoubleQuotedStyle}
}

// capabilities is a sorted list of patterns.
func capabilities(list []grants.Pattern) *yaml.Node {
	n := &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
	for _, p := range grants.SortedPatterns(list) {
		n.Content = append(n.Content, quoted(p.String()))
	}
	return n
}

func number(v uint64) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!int", Value: strconv.FormatUint(v, 10)}
}

func boolean(v bool) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!bool", Value: strconv.FormatBool(v)}
}
